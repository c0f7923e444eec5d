// Datagrams on their way from connections to the device: gathered into batches, and kept when the
// device is full. Used on the engine thread only.
//
// Headers live in memory of the connection that its next datagram overwrites, so they are copied
// here; payloads point into user memory and are not. They must stay valid until Flush, which the
// engine guarantees by calling nothing but PollTransmit between Add and Flush. What a full device
// refuses is copied whole, because the buffers may be withdrawn before it takes datagrams again;
// that is rare, the memory comes and stays.
//
// In a batch so small that latency counts, datagrams with payload go before those without: an
// answer leaves before the acknowledgement of what it answers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "csrc/core/connection.h"
#include "csrc/nic/nic_backend.h"
#include "csrc/wire/packet.h"

namespace uccl::engine {

class TransmitBatch final {
 public:
  // Enough small datagrams that each of many paths gets several, which may leave as one packet; of
  // large ones no more than stay in the cache between the checksum and the kernel's copy.
  static constexpr size_t kCapacity = 256;
  static constexpr size_t kMaxBytes = size_t{512} << 10;

  TransmitBatch() : headers_(kHeaderBytes) { batch_.reserve(kCapacity); }

  bool full() const {
    return batch_.size() == kCapacity || bytes_ >= kMaxBytes ||
           headers_.size() - headers_used_ < wire::kMaxAckBytes;
  }
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
  void Clear();

  // Longer batches are bulk, where nobody waits for a single datagram.
  static constexpr size_t kUrgentBytes = 16384;
  // Room for kCapacity headers of data and a few long acknowledgements.
  static constexpr size_t kHeaderBytes = kCapacity * wire::kMaxHeadBytes + 16 * wire::kMaxAckBytes;

  std::vector<std::byte> headers_;  // of the datagrams in batch_, one after the other
  size_t headers_used_ = 0, bytes_ = 0;
  std::vector<nic::Outgoing> batch_;
  std::vector<Refused> refused_;  // oldest first
};

}  // namespace uccl::engine
