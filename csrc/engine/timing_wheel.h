// Deadlines of many peers: pacing, retransmission, probes. A hierarchical timing wheel (Varghese
// and Lauck, SOSP'87; as the pacer of Carousel, SIGCOMM'17): setting, moving and cancelling a
// deadline cost the same whatever the number of peers, and so does asking for the earliest one.
//
//   level 0   64 slots of one tick (1024 ns)
//   level n   64 slots, each as long as the whole level below
//
// A deadline lies in the level of the highest group of six bits in which its tick differs from the
// current one, so everything in a level is earlier than everything in the levels above, and the
// slots of a level are in order. When the current tick enters a slot of a higher level, what is in
// it moves down. Nothing fires early, and late by less than a tick.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/base/types.h"

namespace uccl::engine {

class TimingWheel final {
 public:
  static constexpr int64_t kTickNanos = 1024;

  // Of ids 0 to size - 1, at `now` or later.
  TimingWheel(size_t size, Nanos now) : now_(Floor(now)), timers_(size) {
    for (auto& level : slots_) level.fill(kNone);
  }

  // Replaces the deadline of `id`; kNever: it has none.
  void Set(size_t id, Nanos deadline) {
    Unlink(id);
    if (deadline == kNever) return;
    Link(id, Ceiling(deadline));
  }

  // Appends those whose deadline has come, in the order of their ticks, and takes their deadlines
  // away.
  void Expire(Nanos now, std::vector<size_t>* expired) {
    const uint64_t end = std::max(Floor(now), now_);
    for (int level = Lowest(); level >= 0; level = Lowest()) {
      const uint64_t slot = FirstSlot(level);
      const uint64_t start = SlotStart(level, slot);
      if (start > end) break;
      now_ = std::max(now_, start);
      while (slots_[level][slot] != kNone) {
        const size_t id = slots_[level][slot];
        const uint64_t tick = timers_[id].tick;
        Unlink(id);
        if (tick <= now_) {
          expired->push_back(id);
        } else {
          Link(id, tick);  // into a lower level
        }
      }
    }
    now_ = end;
  }

  // When Expire has something to do next; kNever without deadlines. May be before the earliest
  // deadline where that is far away, never after it.
  Nanos Next() const {
    const int level = Lowest();
    if (level < 0) return kNever;
    const uint64_t start = SlotStart(level, FirstSlot(level));
    return Nanos(static_cast<int64_t>(std::max(start, now_)) * kTickNanos);
  }

 private:
  static constexpr int kBits = 6, kLevels = 9;  // 2^54 ticks: all that Nanos can say
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint64_t kLastTick = static_cast<uint64_t>(INT64_MAX) / kTickNanos;
  static constexpr uint64_t kSlots = uint64_t{1} << kBits;

  struct Timer {
    uint64_t tick = 0;
    uint32_t previous = kNone, next = kNone;
    int8_t level = -1;  // -1: no deadline
    uint8_t slot = 0;
  };

  static uint64_t Floor(Nanos t) {
    return t.count() <= 0 ? 0 : static_cast<uint64_t>(t.count()) / kTickNanos;
  }
  static uint64_t Ceiling(Nanos t) {
    if (t.count() <= 0) return 0;
    return std::min((static_cast<uint64_t>(t.count()) + kTickNanos - 1) / kTickNanos, kLastTick);
  }

  // The lowest level that holds a deadline, or -1.
  int Lowest() const {
    for (int level = 0; level < kLevels; ++level) {
      if (occupied_[level] != 0) return level;
    }
    return -1;
  }
  uint64_t FirstSlot(int level) const {
    return static_cast<uint64_t>(std::countr_zero(occupied_[level]));
  }
  // The first tick of a slot; the groups above its level are those of the current tick.
  uint64_t SlotStart(int level, uint64_t slot) const {
    const int shift = kBits * level;
    const uint64_t above = now_ >> shift >> kBits << kBits;
    return (above | slot) << shift;
  }

  void Link(size_t id, uint64_t tick) {
    Timer& timer = timers_[id];
    timer.tick = tick;
    const uint64_t at = std::max(tick, now_);  // one that is past fires at once
    const uint64_t differs = at ^ now_;
    const int level = differs == 0 ? 0 : (63 - std::countl_zero(differs)) / kBits;
    const uint64_t slot = at >> (kBits * level) & (kSlots - 1);
    timer.level = static_cast<int8_t>(level);
    timer.slot = static_cast<uint8_t>(slot);
    timer.previous = kNone;
    timer.next = slots_[level][slot];
    if (timer.next != kNone) timers_[timer.next].previous = static_cast<uint32_t>(id);
    slots_[level][slot] = static_cast<uint32_t>(id);
    occupied_[level] |= uint64_t{1} << slot;
  }
  void Unlink(size_t id) {
    Timer& timer = timers_[id];
    if (timer.level < 0) return;
    if (timer.next != kNone) timers_[timer.next].previous = timer.previous;
    if (timer.previous != kNone) {
      timers_[timer.previous].next = timer.next;
    } else {
      slots_[timer.level][timer.slot] = timer.next;
      if (timer.next == kNone) occupied_[timer.level] &= ~(uint64_t{1} << timer.slot);
    }
    timer.level = -1;
  }

  uint64_t now_;  // tick
  std::vector<Timer> timers_;
  std::array<std::array<uint32_t, kSlots>, kLevels> slots_{};
  std::array<uint64_t, kLevels> occupied_{};
};

}  // namespace uccl::engine
