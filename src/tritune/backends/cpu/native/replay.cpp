// The dispatches and copies of WebGPU programs, put into a command encoder without Python between them.
//
// The functions are those of wgpu's C library, handed over by their addresses (this module is not linked against it), with
// the types of webgpu.h. What goes wrong is reported by wgpu's own callback.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

namespace tritune {

namespace {

using Handle = void*;

// As webgpu/replay.py lays them out.
struct Functions {
    Handle (*create_encoder)(Handle, const void*);
    Handle (*begin_pass)(Handle, const void*);
    void (*set_pipeline)(Handle, Handle);
    void (*set_group)(Handle, std::uint32_t, Handle, std::size_t, const std::uint32_t*);
    void (*dispatch)(Handle, std::uint32_t, std::uint32_t, std::uint32_t);
    void (*end_pass)(Handle);
    void (*release_pass)(Handle);
    void (*copy)(Handle, Handle, std::uint64_t, Handle, std::uint64_t, std::uint64_t);
};

struct Dispatch {
    std::uint64_t pipeline;  // 0: that of the dispatch before
    std::uint64_t group;
    std::uint64_t offset_count;  // in the group
    std::uint64_t x, y, z;
};

struct Copy {
    std::uint64_t source, start, target, offset, size;
};

using Step = std::tuple<std::uintptr_t, std::size_t, std::uintptr_t>;  // items, their number, offsets or 0: copies

template <typename T>
T* pointer(std::uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

void dispatch_all(const Functions& call, Handle pass, const Dispatch* items, std::size_t count,
                  const std::uint32_t* offsets) {
    for (std::size_t i = 0; i < count; ++i) {
        const Dispatch& item = items[i];
        if (item.pipeline != 0) call.set_pipeline(pass, pointer<void>(item.pipeline));
        call.set_group(pass, 0, pointer<void>(item.group), item.offset_count, offsets);
        offsets += item.offset_count;
        call.dispatch(pass, static_cast<std::uint32_t>(item.x), static_cast<std::uint32_t>(item.y),
                      static_cast<std::uint32_t>(item.z));
    }
}

std::uintptr_t encode(std::uintptr_t device, std::uintptr_t functions, const std::vector<Step>& steps) {
    const nanobind::gil_scoped_release released;
    const auto& call = *pointer<const Functions>(functions);
    const Handle encoder = call.create_encoder(pointer<void>(device), nullptr);
    Handle pass = nullptr;
    const auto end_pass = [&] {
        if (pass == nullptr) return;
        call.end_pass(pass);
        call.release_pass(pass);
        pass = nullptr;
    };
    for (const auto& [items, count, offsets] : steps) {
        if (offsets != 0) {
            if (pass == nullptr) pass = call.begin_pass(encoder, nullptr);
            dispatch_all(call, pass, pointer<const Dispatch>(items), count, pointer<const std::uint32_t>(offsets));
            continue;
        }
        end_pass();
        for (const Copy* c = pointer<const Copy>(items); c != pointer<const Copy>(items) + count; ++c) {
            call.copy(encoder, pointer<void>(c->source), c->start, pointer<void>(c->target), c->offset, c->size);
        }
    }
    end_pass();
    return reinterpret_cast<std::uintptr_t>(encoder);
}

}  // namespace

void bind_replay(nanobind::module_& module) { module.def("encode_commands", &encode); }

}  // namespace tritune
