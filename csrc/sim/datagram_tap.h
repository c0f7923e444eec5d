// Sees every datagram that leaves a connection and every one that it takes in.
#pragma once

#include <cstdint>

#include "csrc/base/types.h"

namespace uccl::sim {

// `end` is the connection's end that sends or receives. `head` is the header and the body, perhaps
// with the payload behind it; `bytes` the size of the whole datagram.
class DatagramTap {
 public:
  virtual ~DatagramTap() = default;
  virtual void OnSent(Nanos now, uint32_t end, Bytes head, size_t bytes) = 0;
  // Not of what was corrupted on the way.
  virtual void OnArrived(Nanos now, uint32_t end, Bytes head) = 0;
};

}  // namespace uccl::sim
