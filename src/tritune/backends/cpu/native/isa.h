// Which instruction sets this machine can run, found when the program starts (never assumed when it is compiled).
#pragma once

#include <string>
#include <vector>

#include "common.h"

namespace tritune {

const char* isa_name(Isa isa);
bool isa_supported(Isa isa);             // by this processor and this operating system
std::vector<std::string> supported_isas();  // the names, best first; "portable" is the last
bool isa_from_name(const std::string& name, Isa& isa);

}  // namespace tritune

// TABLE(isa) is the kernel table of an instruction set; see README.md, "Kernels for an instruction set".
#if defined(__x86_64__) || defined(_M_X64)
#define TRITUNE_X86 1
#elif defined(__aarch64__) || defined(_M_ARM64)
#define TRITUNE_ARM64 1
#endif

// Declares the tables `const Type kernels_name` of all instruction sets of this architecture, and
// `const Type& name(Isa)` that picks one. Use it in ONE .cpp file, inside of namespace tritune.
#if defined(TRITUNE_X86)
#define TRITUNE_KERNEL_TABLES(Type, name)                     \
    namespace portable { extern const Type name##_table; }    \
    namespace avx2 { extern const Type name##_table; }        \
    namespace avxvnni { extern const Type name##_table; }     \
    namespace avx512vnni { extern const Type name##_table; }  \
    const Type& name(Isa isa) {                               \
        switch (isa) {                                        \
            case Isa::avx2: return avx2::name##_table;        \
            case Isa::avxvnni: return avxvnni::name##_table;  \
            case Isa::avx512vnni: return avx512vnni::name##_table; \
            default: return portable::name##_table;           \
        }                                                     \
    }
#elif defined(TRITUNE_ARM64)
#define TRITUNE_KERNEL_TABLES(Type, name)                  \
    namespace portable { extern const Type name##_table; } \
    namespace neon { extern const Type name##_table; }     \
    const Type& name(Isa isa) { return isa == Isa::neon ? neon::name##_table : portable::name##_table; }
#else
#define TRITUNE_KERNEL_TABLES(Type, name)                  \
    namespace portable { extern const Type name##_table; } \
    const Type& name(Isa) { return portable::name##_table; }
#endif
