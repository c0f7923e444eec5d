// Every sequenced packet from its first transmission until it is acknowledged, by PSN.
#pragma once

#include <cstdint>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/core/recovery/receive_window.h"
#include "csrc/core/sequence.h"
#include "csrc/wire/packet.h"

namespace uccl::core {

struct OutMessage;

enum class SentState : uint8_t { kInFlight, kLost, kAcked };

struct SentPacket {
  OutMessage* message = nullptr;  // what it carries part of; alive while any of its packets is here
  uint64_t offset = 0;
  uint32_t payload_bytes = 0;
  uint32_t wire_bytes = 0;
  SentState state = SentState::kInFlight;
  uint16_t transmissions = 0;
  // Receiver-driven credit: whether the receiver waits for what is in flight, and whether credit
  // for sending it again was asked for.
  bool credited = false, again_wanted = false;
  PathId path{}, previous_path{};
  uint64_t path_seq = 0, previous_path_seq = 0;
  Nanos sent{};  // last transmission
};

// A ring over [base, next). Grows by doubling up to the receive window, then never allocates.
class SentLedger {
 public:
  explicit SentLedger(uint32_t initial_psn)
      : base_((uint64_t{1} << 32) + initial_psn), next_(base_), ring_(64) {}

  uint64_t base() const { return base_; }
  uint64_t next() const { return next_; }
  bool empty() const { return base_ == next_; }
  bool full() const { return next_ - base_ >= kReceiveWindowPackets; }
  SentPacket& at(uint64_t psn) { return ring_[psn & (ring_.size() - 1)]; }
  const SentPacket& at(uint64_t psn) const { return ring_[psn & (ring_.size() - 1)]; }

  // The next PSN, with an empty record. The ledger must not be full.
  uint64_t Append() {
    if (next_ - base_ == ring_.size()) Grow();
    at(next_) = SentPacket{};
    return next_++;
  }
  // Drops acknowledged packets from the front.
  void Trim() {
    while (base_ < next_ && at(base_).state == SentState::kAcked) ++base_;
  }

 private:
  void Grow() {
    std::vector<SentPacket> bigger(ring_.size() * 2);
    for (uint64_t psn = base_; psn < next_; ++psn) bigger[psn & (bigger.size() - 1)] = at(psn);
    ring_ = std::move(bigger);
  }

  uint64_t base_, next_;
  std::vector<SentPacket> ring_;  // size is a power of two
};

}  // namespace uccl::core
