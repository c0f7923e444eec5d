// Datagrams on their way from connections to the device: gathered into batches, and kept when the
// device is full. Used on the engine thread only.
//
// Headers live in memory of the connection that its next datagram overwrites, so they are copied
// here; payloads point into user memory and are not. They must stay valid until Flush, which the
// engine guarantees by calling nothing but PollTransmit between Add and Flush. What a full device
// refuses is copied whole, because the buffers may be withdrawn before it takes datagrams again;
// that is rare, the memory comes and stays.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "csrc/core/connection.h"
#include "csrc/nic/nic_backend.h"
#include "csrc/wire/packet.h"

namespace uccl::engine {

class TransmitBatch final {
 public:
  // Enough to spread one system call over; the kernel's copy of a larger batch would leave the
  // cache.
  static constexpr size_t kCapacity = 32;

  TransmitBatch() : headers_(kCapacity) { batch_.reserve(kCapacity); }

  bool full() const { return batch_.size() == kCapacity; }
  // Something the device refused waits; nothing may be added until it is gone.
  bool stalled() const { return !refused_.empty(); }

  // Requires !full() and !stalled().
  void Add(nic::PeerHandle peer, const core::Datagram& datagram);
  // Offers all to the device. True when something was taken.
  bool Flush(nic::NicBackend* nic);

 private:
  struct Refused {
    nic::PeerHandle peer{};
    PathId path{};
    std::vector<std::byte> bytes;
  };
  bool FlushRefused(nic::NicBackend* nic);

  std::vector<std::array<std::byte, wire::kMaxAckBytes>> headers_;  // by place in batch_
  std::vector<nic::Outgoing> batch_;
  std::vector<Refused> refused_;  // oldest first
};

}  // namespace uccl::engine
