// Which buffer is given out, and which are kept.
#include "csrc/collectives/scratch_pool.h"

#include <algorithm>

#include "csrc/base/huge_pages.h"

namespace uccl::coll {
namespace {

// Sizes are rounded up to this, so that operations of nearly equal size share.
constexpr uint64_t kRound = 4096;
// A kept buffer serves requests down to an eighth of its size.
constexpr uint64_t kLargestWaste = 8;

}  // namespace

ScratchPool::Buffer ScratchPool::Take(uint64_t bytes) {
  Buffer buffer;
  buffer.pool_ = this;
  buffer.bytes_ = (bytes + kRound - 1) / kRound * kRound;
  {
    std::lock_guard lock(mutex_);
    auto best = kept_.end();
    for (auto it = kept_.begin(); it != kept_.end(); ++it) {
      if (it->bytes < buffer.bytes_ || it->bytes / kLargestWaste > buffer.bytes_) continue;
      if (best == kept_.end() || it->bytes < best->bytes) best = it;
    }
    if (best != kept_.end()) {
      buffer.memory_ = std::move(best->memory);
      buffer.bytes_ = best->bytes;
      kept_bytes_ -= best->bytes;
      kept_.erase(best);
      return buffer;
    }
  }
  // Not make_unique, which would touch every page.
  buffer.memory_.reset(new std::byte[buffer.bytes_]);
  AdviseHugePages(buffer.memory_.get(), buffer.bytes_);
  return buffer;
}

void ScratchPool::Return(std::unique_ptr<std::byte[]> memory, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  kept_.push_back({std::move(memory), bytes});
  kept_bytes_ += bytes;
  Trim();
}

void ScratchPool::set_keep_bytes(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  keep_bytes_ = bytes;
  Trim();
}

uint64_t ScratchPool::kept_bytes() const {
  std::lock_guard lock(mutex_);
  return kept_bytes_;
}

void ScratchPool::Trim() {
  while (kept_bytes_ > keep_bytes_) {
    kept_bytes_ -= kept_.front().bytes;
    kept_.erase(kept_.begin());
  }
}

}  // namespace uccl::coll
