// One direction of a cable with the output queue in front of it: rate, delay, a finite drop-tail
// queue with an ECN threshold, random faults, failure.
//
// The queue is first in first out and the rate is constant, so the moment at which a packet leaves
// is known when it is queued: the link is the time until which it is busy, and a hop costs one
// event. What is queued or under way when a link fails is lost; such packets are told by the link's
// epoch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "csrc/base/types.h"
#include "csrc/sim/random.h"

namespace uccl::sim {

struct LinkSpec {
  int64_t bits_per_s = 400'000'000'000;
  Nanos delay{500};               // propagation and the switch behind it
  int64_t queue_bytes = 2 << 20;  // what waits, besides the packet that is being sent
  int64_t ecn_bytes = 512 << 10;  // packets that find more than this are marked
};

struct LinkFaults {
  double loss = 0, corrupt = 0, duplicate = 0;
};

struct LinkStats {
  uint64_t packets = 0, bytes = 0;  // sent; not what was dropped
  uint64_t queue_drops = 0, loss_drops = 0, down_drops = 0;
  uint64_t marked = 0, corrupted = 0, duplicated = 0;
  int64_t peak_queue_bytes = 0;
};

class Link final {
 public:
  explicit Link(const LinkSpec& spec) : spec_(spec) {}

  struct Sent {
    Nanos arrival{};
    bool marked = false, corrupt = false, duplicate = false;
  };
  // Queues a packet; nothing when it is dropped.
  std::optional<Sent> Send(Nanos now, uint32_t bytes, Random* random);

  // Bytes that wait at `now`, the rest of the packet in transmission included.
  int64_t QueueBytes(Nanos now) const {
    const int64_t left_ps = busy_until_ps_ - ToPicos(now);
    return left_ps <= 0 ? 0 : static_cast<int64_t>(static_cast<double>(left_ps) * BytesPerPico());
  }
  // The time at which all that is queued has left.
  Nanos free_at() const { return Nanos((busy_until_ps_ + 999) / 1000); }

  void Fail() {
    ++down_;
    ++epoch_;
    busy_until_ps_ = 0;
  }
  // A link that failed twice has to heal twice.
  void Heal() { down_ -= down_ > 0 ? 1 : 0; }
  bool down() const { return down_ > 0; }
  uint32_t epoch() const { return epoch_; }
  // A packet of an earlier epoch that reached the end of the link after all.
  void CountCut() { ++stats_.down_drops; }

  LinkFaults& faults() { return faults_; }
  const LinkSpec& spec() const { return spec_; }
  const LinkStats& stats() const { return stats_; }

 private:
  static int64_t ToPicos(Nanos t) { return t.count() * 1000; }
  double BytesPerPico() const { return static_cast<double>(spec_.bits_per_s) / 8e12; }

  LinkSpec spec_;
  LinkFaults faults_;
  LinkStats stats_;
  int64_t busy_until_ps_ = 0;  // picoseconds: a small packet takes about a nanosecond
  uint32_t epoch_ = 0;
  int down_ = 0;
};

inline std::optional<Link::Sent> Link::Send(Nanos now, uint32_t bytes, Random* random) {
  if (down_ > 0) {
    ++stats_.down_drops;
    return std::nullopt;
  }
  if (random->Chance(faults_.loss)) {
    ++stats_.loss_drops;
    return std::nullopt;
  }
  const int64_t queued = QueueBytes(now);
  // An idle link takes any packet.
  if (queued > 0 && queued + bytes > spec_.queue_bytes) {
    ++stats_.queue_drops;
    return std::nullopt;
  }
  Sent sent;
  sent.marked = queued > spec_.ecn_bytes;
  sent.corrupt = random->Chance(faults_.corrupt);
  sent.duplicate = random->Chance(faults_.duplicate);
  busy_until_ps_ = std::max(busy_until_ps_, ToPicos(now)) +
                   static_cast<int64_t>(static_cast<double>(bytes) / BytesPerPico() + 0.5);
  sent.arrival = free_at() + spec_.delay;
  ++stats_.packets;
  stats_.bytes += bytes;
  stats_.marked += sent.marked ? 1 : 0;
  stats_.corrupted += sent.corrupt ? 1 : 0;
  stats_.duplicated += sent.duplicate ? 1 : 0;
  stats_.peak_queue_bytes = std::max(stats_.peak_queue_bytes, queued + bytes);
  return sent;
}

}  // namespace uccl::sim
