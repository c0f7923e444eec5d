// Which vector instructions this machine has, for code that is compiled several times.
//
// A file that holds such code includes all it needs, opens a region with UCCL_BEGIN_TARGET, and
// defines functions of its own in it: everything between the two may use those instructions.
// Nothing of the standard library is instantiated there, or the linker might pick that copy for
// code that runs on every machine.
#pragma once

#include <cstdint>
#include <span>

namespace uccl {

// Each has those before it. kBaseline: what the compiler was told that every machine has (SSE2 on
// x86-64). kAvx2 includes F16C; kAvx512 includes the F, BW, DQ and VL parts.
enum class VectorLevel : uint8_t { kBaseline, kAvx2, kAvx512 };

const char* VectorLevelName(VectorLevel level);

// Those that this machine can run, best first; never empty.
std::span<const VectorLevel> VectorLevels();

inline VectorLevel BestVectorLevel() { return VectorLevels().front(); }

}  // namespace uccl

#if defined(__x86_64__)
#define UCCL_HAVE_X86_LEVELS
#define UCCL_TARGET_AVX2 "avx2,f16c"
#define UCCL_TARGET_AVX512 "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl"
#endif

#define UCCL_PRAGMA(tokens) _Pragma(#tokens)
#if defined(__clang__)
#define UCCL_BEGIN_TARGET(features) \
  UCCL_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define UCCL_END_TARGET UCCL_PRAGMA(clang attribute pop)
#else
#define UCCL_BEGIN_TARGET(features) UCCL_PRAGMA(GCC push_options) UCCL_PRAGMA(GCC target features)
#define UCCL_END_TARGET UCCL_PRAGMA(GCC pop_options)
#endif
