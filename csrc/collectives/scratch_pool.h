// Scratch memory of operations, kept for the next ones: fresh memory costs a page fault for every
// 4 KiB, which for a large reduction is more than the reduction.
//
// Any thread; one mutex. Buffers go back when they are destroyed, and must not outlive the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace uccl::coll {

class ScratchPool final {
 public:
  class Buffer final {
   public:
    Buffer() = default;
    Buffer(Buffer&& other) noexcept { *this = std::move(other); }
    Buffer& operator=(Buffer&& other) noexcept {
      std::swap(pool_, other.pool_);
      std::swap(memory_, other.memory_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Buffer() {
      if (pool_ != nullptr) pool_->Return(std::move(memory_), bytes_);
    }
    std::byte* data() const { return memory_.get(); }

   private:
    friend class ScratchPool;
    ScratchPool* pool_ = nullptr;
    std::unique_ptr<std::byte[]> memory_;
    uint64_t bytes_ = 0;
  };

  // At least `bytes`, with whatever the last user left in it.
  Buffer Take(uint64_t bytes);
  // At most so much is kept; what is in use does not count.
  void set_keep_bytes(uint64_t bytes);
  uint64_t kept_bytes() const;

 private:
  struct Kept {
    std::unique_ptr<std::byte[]> memory;
    uint64_t bytes = 0;
  };
  void Return(std::unique_ptr<std::byte[]> memory, uint64_t bytes);
  void Trim();

  mutable std::mutex mutex_;  // guards all below
  std::vector<Kept> kept_;    // oldest first
  uint64_t kept_bytes_ = 0;
  uint64_t keep_bytes_ = 0;
};

}  // namespace uccl::coll
