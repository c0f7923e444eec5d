// Datagrams on their way, in a pool: a thousand hosts have some hundred thousand of them under way.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/base/types.h"

namespace uccl::sim {

// What Ethernet (preamble, header, checksum, gap), IP and UDP add to a datagram. A datagram larger
// than a frame is modelled as one frame.
inline constexpr uint32_t kFramingBytes = 20 + 14 + 4 + 20 + 8;

struct Packet {
  uint32_t src = 0, dst = 0;          // hosts
  uint32_t to_end = 0;                // the connection's end at dst
  uint32_t entropy = 0;               // what the switches hash besides src and dst
  PathId path{};                      // of the connection
  uint32_t wire_bytes = 0;            // framing included
  std::vector<std::byte> head;        // header, and the payload of what is not in `payload`
  Bytes payload;                      // views the simulation's message contents, which never change
  bool ce = false;                    // ECN congestion experienced
  bool corrupt = false;               // a bit is flipped on delivery
  uint32_t link = 0, link_epoch = 0;  // the hop it is on; another epoch means it was cut meanwhile
};

// Indices stay valid until released. References do not survive an Allocate.
class PacketPool final {
 public:
  uint32_t Allocate() {
    ++in_use_;
    peak_ = std::max(peak_, in_use_);
    if (free_.empty()) {
      packets_.emplace_back();
      return static_cast<uint32_t>(packets_.size() - 1);
    }
    const uint32_t index = free_.back();
    free_.pop_back();
    return index;
  }
  void Release(uint32_t index) {
    Packet& p = packets_[index];
    std::vector<std::byte> head = std::move(p.head);  // its memory serves the next one
    head.clear();
    p = Packet();
    p.head = std::move(head);
    free_.push_back(index);
    --in_use_;
  }
  Packet& at(uint32_t index) { return packets_[index]; }
  size_t in_use() const { return in_use_; }
  size_t peak() const { return peak_; }

 private:
  std::vector<Packet> packets_;
  std::vector<uint32_t> free_;
  size_t in_use_ = 0, peak_ = 0;
};

}  // namespace uccl::sim
