// Tests of csrc/proxy/barrier.h: nobody leaves before all have come, for any number of ranks and
// any order of the notes.
#include "csrc/proxy/barrier.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace uccl::proxy {
namespace {

TEST(Barrier, Property_NobodyLeavesBeforeAllHaveCome) {
  for (uint32_t ranks = 1; ranks <= 17; ++ranks) {
    std::mt19937 random(ranks);
    constexpr uint32_t kRounds = 5;
    std::vector<Barrier> barriers;
    for (uint32_t r = 0; r < ranks; ++r) barriers.emplace_back(r, ranks);
    std::vector<uint32_t> entered(ranks), left(ranks);
    struct InFlight {
      uint32_t from;
      Barrier::Note note;
    };
    std::vector<InFlight> notes;
    const auto say = [&](uint32_t from, const std::vector<Barrier::Note>& out) {
      for (const Barrier::Note& note : out) notes.push_back({from, note});
    };
    const auto leave = [&](uint32_t rank) {
      ++left[rank];
      for (uint32_t r = 0; r < ranks; ++r) ASSERT_GE(entered[r], left[rank]) << ranks;
    };
    uint64_t steps = 0;
    uint32_t done = 0;
    while (done < ranks * kRounds) {
      ASSERT_LT(++steps, 1'000'000u);
      const auto rank = static_cast<uint32_t>(random() % ranks);
      if (random() % 3 == 0 && !barriers[rank].entered() && entered[rank] < kRounds) {
        ++entered[rank];
        std::vector<Barrier::Note> out;
        const bool passed = barriers[rank].Enter(&out);
        say(rank, out);
        if (passed) leave(rank), ++done;
      } else if (!notes.empty()) {
        const size_t pick = random() % notes.size();
        const InFlight in = notes[pick];
        notes.erase(notes.begin() + static_cast<ptrdiff_t>(pick));
        std::vector<Barrier::Note> out;
        bool passed = false;
        ASSERT_TRUE(
            barriers[in.note.to].OnNote(in.from, in.note.generation, in.note.round, &out, &passed))
            << ranks;
        say(in.note.to, out);
        if (passed) leave(in.note.to), ++done;
      }
    }
    EXPECT_TRUE(notes.empty());
  }
}

TEST(Barrier, OnNote_WhatNoRankCouldHaveSentIsRefused) {
  Barrier barrier(2, 5);
  std::vector<Barrier::Note> out;
  bool passed = false;
  EXPECT_FALSE(barrier.OnNote(2, 0, 0, &out, &passed)) << "from itself";
  EXPECT_FALSE(barrier.OnNote(0, 0, 0, &out, &passed)) << "that distance is of round 1";
  EXPECT_FALSE(barrier.OnNote(1, 2, 0, &out, &passed)) << "two barriers ahead";
  EXPECT_FALSE(barrier.OnNote(1, 0xffffffffu, 0, &out, &passed)) << "of the past";
  EXPECT_FALSE(barrier.OnNote(1, 0, 3, &out, &passed)) << "5 ranks have 3 rounds";
  EXPECT_FALSE(barrier.OnNote(1, 0, 0xffffffffu, &out, &passed));
  EXPECT_TRUE(barrier.OnNote(1, 0, 0, &out, &passed));
  EXPECT_FALSE(barrier.OnNote(1, 0, 0, &out, &passed)) << "twice";
  EXPECT_TRUE(barrier.OnNote(1, 1, 0, &out, &passed)) << "one ahead";
  EXPECT_FALSE(passed);
  EXPECT_TRUE(out.empty());
}

}  // namespace
}  // namespace uccl::proxy
