// The threads that run one piece of a kernel together. Kernels are templates over the group, so one
// source is a CUDA kernel and host code that tests run with or without threads.
//
// A group has:
//   rank(), size()          of the thread within the group
//   index(), count()        of the group among those of the launch
//   Sync()                  barrier of the group; what each thread wrote before is visible to all
//                           after. Every thread of the group must come.
//   Broadcast(value)        rank 0's value, on every thread; a Sync as well
//   IsLeader()              true on one thread, always the same: rank 0
// No shuffles and no warp-wide votes: they have no cheap equal on the host. Nothing may assume that
// a size is a power of two, or more than 1.
//
//   SoloGroup     a group of one thread, on either side; Sync costs nothing
//   HostGroup     host threads (RunHostGroups starts them), in code for the host's compiler
//   BlockGroup    the threads of a CUDA block
//   WarpGroup     the lanes of a warp; blockDim.x must be a multiple of the warp's size
#pragma once

#include <barrier>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "csrc/fifo/host_device.h"

namespace uccl::fifo {

class SoloGroup final {
 public:
  UCCL_HOST_DEVICE explicit SoloGroup(uint32_t index = 0, uint32_t count = 1)
      : index_(index), count_(count) {}
  UCCL_HOST_DEVICE uint32_t rank() const { return 0; }
  UCCL_HOST_DEVICE uint32_t size() const { return 1; }
  UCCL_HOST_DEVICE uint32_t index() const { return index_; }
  UCCL_HOST_DEVICE uint32_t count() const { return count_; }
  UCCL_HOST_DEVICE bool IsLeader() const { return true; }
  UCCL_HOST_DEVICE void Sync() {}
  template <class T>
  UCCL_HOST_DEVICE T Broadcast(T value) {
    return value;
  }

 private:
  uint32_t index_, count_;
};

// What the threads of one host group share.
class HostGroupState final {
 public:
  static constexpr size_t kMaxBroadcastBytes = 64;

  HostGroupState(uint32_t index, uint32_t count, uint32_t size)
      : index_(index), count_(count), size_(size), barrier_(size) {}

 private:
  friend class HostGroup;
  const uint32_t index_, count_, size_;
  std::barrier<> barrier_;
  // Of the leader: written by it between two Syncs, read by all after the second.
  alignas(16) std::byte value_[kMaxBroadcastBytes];
};

class HostGroup final {
 public:
  HostGroup(HostGroupState* state, uint32_t rank) : state_(state), rank_(rank) {}
  uint32_t rank() const { return rank_; }
  uint32_t size() const { return state_->size_; }
  uint32_t index() const { return state_->index_; }
  uint32_t count() const { return state_->count_; }
  bool IsLeader() const { return rank_ == 0; }
  void Sync() { state_->barrier_.arrive_and_wait(); }
  template <class T>
  T Broadcast(T value) {
    static_assert(std::is_trivially_copyable_v<T> &&
                  sizeof(T) <= HostGroupState::kMaxBroadcastBytes);
    if (IsLeader()) *reinterpret_cast<T*>(state_->value_) = value;
    Sync();
    const T result = *reinterpret_cast<const T*>(state_->value_);
    Sync();  // the leader may write the next one
    return result;
  }

 private:
  HostGroupState* state_;
  uint32_t rank_;
};

// Runs kernel(group) on count * size threads of its own, and waits for them. For tests and for
// machines without a GPU; with size 1, RunSoloGroups does the same without threads.
template <class Kernel>
void RunHostGroups(uint32_t count, uint32_t size, const Kernel& kernel) {
  std::vector<std::unique_ptr<HostGroupState>> states;
  std::vector<std::thread> threads;
  for (uint32_t index = 0; index < count; ++index) {
    states.push_back(std::make_unique<HostGroupState>(index, count, size));
    for (uint32_t rank = 0; rank < size; ++rank) {
      threads.emplace_back([&kernel, state = states.back().get(), rank] {
        HostGroup group(state, rank);
        kernel(group);
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
}

// One group after the other on this thread; not for kernels whose groups wait for each other.
template <class Kernel>
void RunSoloGroups(uint32_t count, const Kernel& kernel) {
  for (uint32_t index = 0; index < count; ++index) {
    SoloGroup group(index, count);
    kernel(group);
  }
}

#if defined(__CUDACC__) || defined(__HIPCC__)

class BlockGroup final {
 public:
  UCCL_DEVICE uint32_t rank() const { return threadIdx.x; }
  UCCL_DEVICE uint32_t size() const { return blockDim.x; }
  UCCL_DEVICE uint32_t index() const { return blockIdx.x; }
  UCCL_DEVICE uint32_t count() const { return gridDim.x; }
  UCCL_DEVICE bool IsLeader() const { return threadIdx.x == 0; }
  UCCL_DEVICE void Sync() { __syncthreads(); }
  template <class T>
  UCCL_DEVICE T Broadcast(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    alignas(T) __shared__ unsigned char storage[sizeof(T)];
    if (IsLeader()) *reinterpret_cast<T*>(storage) = value;
    Sync();
    const T result = *reinterpret_cast<const T*>(storage);
    Sync();  // the leader may write the next one
    return result;
  }
};

class WarpGroup final {
 public:
  UCCL_DEVICE uint32_t rank() const { return threadIdx.x % warpSize; }
  UCCL_DEVICE uint32_t size() const { return warpSize; }
  UCCL_DEVICE uint32_t index() const {
    return blockIdx.x * (blockDim.x / warpSize) + threadIdx.x / warpSize;
  }
  UCCL_DEVICE uint32_t count() const { return gridDim.x * (blockDim.x / warpSize); }
  UCCL_DEVICE bool IsLeader() const { return rank() == 0; }
#if defined(__CUDACC__)
  UCCL_DEVICE void Sync() { __syncwarp(); }
#else
  // Lanes of a wavefront run in step; the fence orders their memory.
  UCCL_DEVICE void Sync() {
    __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "workgroup");
    __builtin_amdgcn_wave_barrier();
  }
#endif
  template <class T>
  UCCL_DEVICE T Broadcast(T value) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(int) == 0);
    union Words {
      T value;
      int words[sizeof(T) / sizeof(int)];
      UCCL_DEVICE Words() {}
    } words;
    words.value = value;
    for (int& word : words.words) {
#if defined(__CUDACC__)
      word = __shfl_sync(0xffffffffu, word, 0);
#else
      word = __shfl(word, 0);
#endif
    }
    Sync();
    return words.value;
  }
};

#endif

}  // namespace uccl::fifo
