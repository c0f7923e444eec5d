// Nanoseconds since some time in the past, on either side; only differences mean anything. With HIP
// cycles, as hipcc 5.2 has no wall_clock64.
#pragma once

#include <cstdint>

#include "csrc/fifo/host_device.h"

#if !UCCL_DEVICE_CODE
#include <chrono>
#endif

namespace uccl::cuda {

UCCL_HOST_DEVICE inline uint64_t ClockNs() {
#if UCCL_DEVICE_CODE && defined(__CUDACC__)
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
#elif UCCL_DEVICE_CODE
  return __builtin_readcyclecounter();
#else
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::nanoseconds(now).count());
#endif
}

// What a uint32 of nanoseconds says: the largest also stands for more.
UCCL_HOST_DEVICE inline uint32_t Ns32(uint64_t ns) {
  constexpr uint64_t kMost = ~uint32_t{0};
  return static_cast<uint32_t>(ns < kMost ? ns : kMost);
}

}  // namespace uccl::cuda
