// A barrier of n ranks by dissemination: in round r a rank tells the one 2^r above it and waits for
// the one 2^r below, around the ring; ceil(log2 n) rounds, any n.
//
// A rank may be one barrier ahead of another, never two: it leaves only when all have entered. So
// notes of this barrier and of the next are expected, others are a violation.
//
// Pure. The owner drains its puts before Enter: the barrier carries no data.
#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

namespace uccl::proxy {

class Barrier final {
 public:
  struct Note {
    uint32_t to = 0, generation = 0, round = 0;
    bool operator==(const Note&) const = default;
  };
  Barrier(uint32_t rank, uint32_t ranks) : rank_(rank), ranks_(ranks) {
    while (Distance(rounds_) < ranks_) ++rounds_;
  }

  bool entered() const { return entered_; }
  // This rank has come. Not while entered(). Appends what is to be said; true when all have come.
  bool Enter(std::vector<Note>* out) {
    entered_ = true;
    round_ = 0;
    if (rounds_ > 0) Say(out);
    return Advance(out);
  }
  // False for a note that no rank could have sent. `*passed` is set when it was the last one.
  [[nodiscard]] bool OnNote(uint32_t from, uint32_t generation, uint32_t round,
                            std::vector<Note>* out, bool* passed) {
    if (round >= rounds_ || generation - generation_ > 1 ||
        (from + Distance(round)) % ranks_ != rank_ ||
        !received_.emplace(generation, round).second) {
      return false;
    }
    *passed = Advance(out);
    return true;
  }

 private:
  static uint64_t Distance(uint32_t round) { return uint64_t{1} << round; }
  void Say(std::vector<Note>* out) const {
    out->push_back(
        {static_cast<uint32_t>((rank_ + Distance(round_)) % ranks_), generation_, round_});
  }
  bool Advance(std::vector<Note>* out) {
    if (!entered_) return false;
    while (round_ < rounds_ && received_.erase({generation_, round_}) > 0) {
      if (++round_ < rounds_) Say(out);
    }
    if (round_ < rounds_) return false;
    entered_ = false;
    ++generation_;
    return true;
  }

  const uint32_t rank_, ranks_;
  uint32_t rounds_ = 0;
  uint32_t generation_ = 0, round_ = 0;
  bool entered_ = false;
  std::set<std::pair<uint32_t, uint32_t>> received_;  // (generation, round), of this and the next
};

}  // namespace uccl::proxy
