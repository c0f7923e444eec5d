// The memory that received datagrams land in: a fixed set of slots, one datagram each, filled by
// one Poll and free again at the next. All sockets of a backend share it, so memory does not grow
// with the path count and the same few hundred KiB stay warm in the cache. Owned by the backend;
// used on the engine thread only.
#pragma once

#include <cstddef>
#include <memory>

#include "csrc/base/types.h"

namespace uccl::nic::udp {

class ReceiveSlots final {
 public:
  // The memory is not touched here: pages come into being as datagrams first reach them.
  ReceiveSlots(size_t count, size_t slot_bytes)
      : count_(count),
        slot_bytes_((slot_bytes + 63) & ~size_t{63}),
        data_(std::make_unique_for_overwrite<std::byte[]>(count_ * slot_bytes_)) {}

  size_t count() const { return count_; }
  MutableBytes slot(size_t index) { return {data_.get() + index * slot_bytes_, slot_bytes_}; }

 private:
  size_t count_, slot_bytes_;
  std::unique_ptr<std::byte[]> data_;
};

}  // namespace uccl::nic::udp
