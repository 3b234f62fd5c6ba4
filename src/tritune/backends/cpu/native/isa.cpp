#include "isa.h"

#if defined(TRITUNE_X86)
#if defined(_MSC_VER)
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#elif defined(TRITUNE_ARM64) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(TRITUNE_ARM64) && defined(_WIN32)
#include <windows.h>
#endif

namespace tritune {

namespace {

constexpr const char* kNames[kNumIsas] = {"portable", "neon", "avx2", "avxvnni", "avx512vnni"};

#if defined(TRITUNE_X86)

struct Registers {
    std::uint32_t a, b, c, d;
};

Registers cpuid(std::uint32_t leaf, std::uint32_t subleaf) {
    Registers r{};
#if defined(_MSC_VER)
    int out[4];
    __cpuidex(out, static_cast<int>(leaf), static_cast<int>(subleaf));
    r = {static_cast<std::uint32_t>(out[0]), static_cast<std::uint32_t>(out[1]), static_cast<std::uint32_t>(out[2]),
         static_cast<std::uint32_t>(out[3])};
#else
    __cpuid_count(leaf, subleaf, r.a, r.b, r.c, r.d);
#endif
    return r;
}

std::uint64_t enabled_states() {  // XCR0: which registers the operating system saves
#if defined(_MSC_VER)
    return _xgetbv(0);
#else
    std::uint32_t low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (static_cast<std::uint64_t>(high) << 32) | low;
#endif
}

constexpr bool bit(std::uint32_t word, int n) { return (word >> n & 1) != 0; }

bool supported(Isa isa) {
    const std::uint32_t highest = cpuid(0, 0).a;
    if (highest < 7) return false;
    const Registers one = cpuid(1, 0), seven = cpuid(7, 0);
    if (!bit(one.c, 27)) return false;  // OSXSAVE
    const std::uint64_t states = enabled_states();
    const bool avx2 = (states & 0x6) == 0x6 && bit(one.c, 28) && bit(one.c, 12) && bit(one.c, 29) &&  // AVX, FMA, F16C
                      bit(seven.b, 5) && bit(seven.b, 3) && bit(seven.b, 8);                          // AVX2, BMI1, BMI2
    switch (isa) {
        case Isa::avx2: return avx2;
        case Isa::avxvnni: return avx2 && seven.a >= 1 && bit(cpuid(7, 1).a, 4);
        case Isa::avx512vnni:
            return avx2 && (states & 0xe6) == 0xe6 && bit(seven.b, 16) && bit(seven.b, 17) && bit(seven.b, 30) &&
                   bit(seven.b, 31) && bit(seven.c, 11);  // F, DQ, BW, VL, VNNI
        default: return false;
    }
}

#elif defined(TRITUNE_ARM64)

bool supported(Isa isa) {
    if (isa != Isa::neon) return false;
#if defined(__linux__)
    return (getauxval(AT_HWCAP) >> 20 & 1) != 0;  // HWCAP_ASIMDDP
#elif defined(_WIN32)
    return IsProcessorFeaturePresent(43) != 0;  // PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE
#else
    return true;  // every Apple processor of this architecture
#endif
}

#else

bool supported(Isa) { return false; }

#endif

}  // namespace

const char* isa_name(Isa isa) { return kNames[static_cast<int>(isa)]; }

bool isa_supported(Isa isa) { return isa == Isa::portable || supported(isa); }

std::vector<std::string> supported_isas() {
    std::vector<std::string> names;
    for (int i = kNumIsas - 1; i >= 0; --i) {
        if (isa_supported(static_cast<Isa>(i))) names.emplace_back(kNames[i]);
    }
    return names;
}

bool isa_from_name(const std::string& name, Isa& isa) {
    for (int i = 0; i < kNumIsas; ++i) {
        if (name == kNames[i]) {
            isa = static_cast<Isa>(i);
            return true;
        }
    }
    return false;
}

}  // namespace tritune
