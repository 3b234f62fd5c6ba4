// Dispatches of the WebGPU backend, recorded into a compute pass without Python between them.
//
// The functions are those of wgpu's C library, handed over by their addresses (this module is not linked against it), with
// the types of webgpu.h. What goes wrong is reported by wgpu's own callback.
#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>

namespace tritune {

namespace {

using Handle = void*;

struct Item {  // as webgpu/replay.py lays it out
    std::uint64_t pipeline;  // 0: that of the item before
    std::uint64_t group;
    std::uint64_t offset_count;  // in the group
    std::uint64_t x, y, z;
};

void replay(std::uintptr_t pass_address, std::uintptr_t set_pipeline_address, std::uintptr_t set_group_address,
            std::uintptr_t dispatch_address, std::uintptr_t items_address, std::size_t count,
            std::uintptr_t offsets_address) {
    const nanobind::gil_scoped_release released;
    const auto pass = reinterpret_cast<Handle>(pass_address);
    const auto set_pipeline = reinterpret_cast<void (*)(Handle, Handle)>(set_pipeline_address);
    const auto set_group =
        reinterpret_cast<void (*)(Handle, std::uint32_t, Handle, std::size_t, const std::uint32_t*)>(set_group_address);
    const auto dispatch =
        reinterpret_cast<void (*)(Handle, std::uint32_t, std::uint32_t, std::uint32_t)>(dispatch_address);
    const auto* items = reinterpret_cast<const Item*>(items_address);
    const auto* offsets = reinterpret_cast<const std::uint32_t*>(offsets_address);
    for (std::size_t i = 0; i < count; ++i) {
        const Item& item = items[i];
        if (item.pipeline != 0) set_pipeline(pass, reinterpret_cast<Handle>(item.pipeline));
        set_group(pass, 0, reinterpret_cast<Handle>(item.group), item.offset_count, offsets);
        offsets += item.offset_count;
        dispatch(pass, static_cast<std::uint32_t>(item.x), static_cast<std::uint32_t>(item.y),
                 static_cast<std::uint32_t>(item.z));
    }
}

}  // namespace

void bind_replay(nanobind::module_& module) { module.def("replay_dispatches", &replay); }

}  // namespace tritune
