// Asks the processor, once.
#include "csrc/base/vector_level.h"

#ifdef UCCL_HAVE_X86_LEVELS
#include <cpuid.h>
#endif

namespace uccl {
namespace {

constexpr VectorLevel kBestFirst[] = {VectorLevel::kAvx512, VectorLevel::kAvx2,
                                      VectorLevel::kBaseline};

#ifdef UCCL_HAVE_X86_LEVELS
// Not a name that clang's __builtin_cpu_supports knows.
bool HaveF16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

VectorLevel Detect() {
#ifdef UCCL_HAVE_X86_LEVELS
  // The builtin also asks whether the system saves the wide registers.
  if (!__builtin_cpu_supports("avx2") || !HaveF16c()) return VectorLevel::kBaseline;
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return wide ? VectorLevel::kAvx512 : VectorLevel::kAvx2;
#else
  return VectorLevel::kBaseline;
#endif
}

}  // namespace

const char* VectorLevelName(VectorLevel level) {
  switch (level) {
    case VectorLevel::kBaseline:
      return "baseline";
    case VectorLevel::kAvx2:
      return "avx2";
    case VectorLevel::kAvx512:
      return "avx512";
  }
  return "unknown";
}

std::span<const VectorLevel> VectorLevels() {
  static const VectorLevel best = Detect();
  return std::span(kBestFirst).last(static_cast<size_t>(best) + 1);
}

}  // namespace uccl
