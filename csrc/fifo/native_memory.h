// Loads, stores and read-modify-writes with a named order and scope, for the FIFO's algorithms: on
// a GPU by PTX or HIP intrinsics, on the host by std::atomic_ref. The algorithms take it as a
// parameter, so that the model checker (testing/interleave.h) can run the same source.
//
// Scopes. Device: producers among each other, memory that the host never touches. System: between
// the GPU and the host's proxies, in pinned host memory. On the host the two are the same.
//
// Orders. Only acquire loads and release stores cross from one side to the other; each algorithm
// says which pair it needs.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "csrc/fifo/host_device.h"

namespace uccl::fifo {

class NativeMemory final {
 public:
  UCCL_HOST_DEVICE uint64_t LoadAcquireSystem(const uint64_t* p) const {
#if UCCL_DEVICE_CODE && defined(__CUDACC__)
    uint64_t v;
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
#elif UCCL_DEVICE_CODE
    return __hip_atomic_load(p, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
#else
    return std::atomic_ref(*const_cast<uint64_t*>(p)).load(std::memory_order_acquire);
#endif
  }

  UCCL_HOST_DEVICE uint64_t LoadAcquireDevice(const uint64_t* p) const {
#if UCCL_DEVICE_CODE && defined(__CUDACC__)
    uint64_t v;
    asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
#elif UCCL_DEVICE_CODE
    return __hip_atomic_load(p, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT);
#else
    return LoadAcquireSystem(p);
#endif
  }

  UCCL_HOST_DEVICE void StoreReleaseSystem(uint64_t* p, uint64_t v) const {
#if UCCL_DEVICE_CODE && defined(__CUDACC__)
    asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
#elif UCCL_DEVICE_CODE
    __hip_atomic_store(p, v, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
#else
    std::atomic_ref(*p).store(v, std::memory_order_release);
#endif
  }

  UCCL_HOST_DEVICE void StoreReleaseDevice(uint64_t* p, uint64_t v) const {
#if UCCL_DEVICE_CODE && defined(__CUDACC__)
    asm volatile("st.release.gpu.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
#elif UCCL_DEVICE_CODE
    __hip_atomic_store(p, v, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT);
#else
    StoreReleaseSystem(p, v);
#endif
  }

  // Two neighbouring words, aligned to 16 bytes, in one store where the machine has it. Each word
  // is a release of its own; nothing is promised about their order or about both being seen at
  // once.
  UCCL_HOST_DEVICE void StorePairReleaseSystem(uint64_t* pair, uint64_t v0, uint64_t v1) const {
#if UCCL_DEVICE_CODE && defined(__CUDACC__)
    asm volatile("st.release.sys.v2.u64 [%0], {%1, %2};" ::"l"(pair), "l"(v0), "l"(v1) : "memory");
#else
    StoreReleaseSystem(pair, v0);
    StoreReleaseSystem(pair + 1, v1);
#endif
  }

  // Relaxed: it hands out numbers, and no data hangs on them.
  UCCL_HOST_DEVICE uint64_t FetchAddDevice(uint64_t* p, uint64_t v) const {
#if UCCL_DEVICE_CODE && defined(__CUDACC__)
    uint64_t before;
    asm volatile("atom.relaxed.gpu.add.u64 %0, [%1], %2;"
                 : "=l"(before)
                 : "l"(p), "l"(v)
                 : "memory");
    return before;
#elif UCCL_DEVICE_CODE
    return __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
    return std::atomic_ref(*p).fetch_add(v, std::memory_order_relaxed);
#endif
  }

  // Calls `predicate()` until it holds.
  template <class Predicate>
  UCCL_HOST_DEVICE void WaitUntil(Predicate predicate) const {
#if UCCL_DEVICE_CODE
    while (!predicate()) {
    }
#else
    // Whoever makes the predicate hold may need this core.
    constexpr int kTriesBeforeYield = 64;
    for (int tries = 0; !predicate(); ++tries) {
      if (tries >= kTriesBeforeYield) std::this_thread::yield();
    }
#endif
  }
};

}  // namespace uccl::fifo
