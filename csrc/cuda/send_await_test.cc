// Copies numbered, rows out as commands and rows in by counters, on every launcher; proxies and
// peers are played by the test.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <new>
#include <random>
#include <set>
#include <thread>
#include <tuple>
#include <vector>

#include "csrc/cuda/await_rows.h"
#include "csrc/cuda/await_rows_kernel.h"
#include "csrc/cuda/route.h"
#include "csrc/cuda/rows.h"
#include "csrc/cuda/send_rows.h"
#include "csrc/cuda/testing/launcher.h"
#include "csrc/cuda/testing/pinned_fifo.h"
#include "csrc/fifo/native_memory.h"

namespace uccl::cuda {
namespace {

using fifo::Command;
using fifo::CommandKind;

// Memory that the kernel reaches, as an array.
template <class T>
struct Array {
  Array(Launcher* launcher, const std::vector<T>& values)
      : memory(launcher->Allocate(values.size() * sizeof(T))), size(values.size()) {
    std::copy(values.begin(), values.end(), data());
  }
  T* data() const { return reinterpret_cast<T*>(memory.get()); }
  std::vector<T> all() const { return {data(), data() + size}; }

  std::shared_ptr<std::byte> memory;
  size_t size;
};

TEST(Route, NumbersCopiesInTheOrderOfTokens) {
  std::mt19937 random(7);
  for (Launcher* launcher : Launchers()) {
    SCOPED_TRACE(launcher->name());
    for (const auto& [tokens, width, ranks, local] :
         {std::tuple{0u, 2u, 3u, 2u}, {1u, 1u, 1u, 1u}, {9u, 4u, 3u, 2u}, {33u, 8u, 5u, 4u}}) {
      const auto experts = static_cast<int32_t>(ranks * local);
      std::vector<int32_t> choices(tokens * width);
      for (int32_t& c : choices) {
        c = static_cast<int32_t>(random() % static_cast<uint32_t>(experts + 1)) - 1;
      }
      Array<int32_t> given(launcher, choices);
      Array<int32_t> peers(launcher, std::vector<int32_t>(choices.size(), 99)), slots = peers;
      slots = Array<int32_t>(launcher, std::vector<int32_t>(choices.size(), 99));
      Array<uint64_t> fault(launcher, {kNoFault});
      RouteParams p;
      p.choices = given.data(), p.tokens = tokens, p.width = width;
      p.ranks = ranks, p.experts_per_rank = local;
      p.peers = peers.data(), p.slots = slots.data(), p.fault = fault.data();
      const Status status = launcher->Run(p);
      ASSERT_TRUE(status.ok()) << status.ToString();
      std::vector<int32_t> want_peers(choices.size(), -1), want_slots(choices.size(), -1);
      std::map<int32_t, int32_t> copies;
      for (size_t t = 0; t < tokens; ++t) {
        std::set<int32_t> there;
        for (size_t i = t * width; i < (t + 1) * width; ++i) {
          const int32_t rank = choices[i] / static_cast<int32_t>(local);
          if (choices[i] < 0 || !there.insert(rank).second) continue;
          want_peers[i] = rank, want_slots[i] = copies[rank]++;
        }
      }
      EXPECT_EQ(peers.all(), want_peers);
      EXPECT_EQ(slots.all(), want_slots);
      EXPECT_EQ(*fault.data(), kNoFault);
    }
  }
}

TEST(Route, WhatIsNoExpertGoesNowhereAndIsTold) {
  for (Launcher* launcher : Launchers()) {
    SCOPED_TRACE(launcher->name());
    Array<int32_t> choices(launcher, {3, -7, 4, 2, 6, 0}), peers = choices, slots = choices;
    peers = Array<int32_t>(launcher, std::vector<int32_t>(6)), slots = peers;
    slots = Array<int32_t>(launcher, std::vector<int32_t>(6));
    Array<uint64_t> fault(launcher, {kNoFault});
    RouteParams p;
    p.choices = choices.data(), p.tokens = 3, p.width = 2, p.ranks = 2, p.experts_per_rank = 2;
    p.peers = peers.data(), p.slots = slots.data(), p.fault = fault.data();
    ASSERT_TRUE(launcher->Run(p).ok());
    EXPECT_EQ(peers.all(), (std::vector<int32_t>{1, -1, -1, 1, -1, 0}));
    EXPECT_EQ(slots.all(), (std::vector<int32_t>{0, -1, -1, 1, -1, 0}));
    EXPECT_EQ(*fault.data(), 2u);
  }
}

TEST(Route, RefusesWhatHasNoSlots) {
  int32_t words[4] = {};
  RouteParams p;
  EXPECT_TRUE(CheckParams(p).ok());
  p.choices = p.peers = p.slots = words, p.tokens = 2, p.width = 2, p.ranks = 2;
  EXPECT_NE(CheckParams(p).detail.find("0 experts each"), std::string::npos);
  p.experts_per_rank = 1;
  EXPECT_TRUE(CheckParams(p).ok());
  p.tokens = uint32_t{1} << 31;
  EXPECT_NE(CheckParams(p).detail.find("below 2^31"), std::string::npos);
}

SendRowsParams Sending(const PinnedFifo& queue, uint32_t ranks) {
  SendRowsParams p;
  p.fifo = queue.view;
  p.ranks = ranks, p.rank = 1;
  p.staging_offset = 1024, p.staging_rows = 6;
  p.slots_offset = 4096, p.num_slots = 20;
  p.stride = 112, p.row_bytes = 100;
  p.arrived = 5, p.announced = 9;
  return p;
}

TEST(SendRows, OneCommandForEachRowAndOneCountForEachRank) {
  constexpr uint32_t kRanks = 4;
  for (Launcher* launcher : Launchers()) {
    SCOPED_TRACE(launcher->name());
    PinnedFifo queue(launcher, 3);
    const std::vector<int32_t> to = {0, 3, -1, 1, 0, 0, 3, -1, 0, 1},
                               at = {0, 1, 2, 3, 4, 5, 19, 7, -1, 9};
    Array<int32_t> peers(launcher, to), slots(launcher, at);
    Array<uint64_t> fault(launcher, {kNoFault});
    SendRowsParams p = Sending(queue, kRanks);
    p.peers = peers.data(), p.slots = slots.data(), p.entries = to.size(), p.width = 2;
    p.fault = fault.data();
    std::thread proxy([&] {
      while (queue.taken.size() < 7 + kRanks) {
        queue.Take();
        std::this_thread::yield();
      }
    });
    const Status status = launcher->Run(p);
    proxy.join();
    ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(*fault.data(), kNoFault);
    std::map<uint32_t, uint32_t> counts;
    std::map<std::pair<uint32_t, uint64_t>, uint64_t> rows;  // (peer, slot) -> source
    for (const Command& c : queue.taken) {
      if (c.kind == CommandKind::kCount) {
        EXPECT_TRUE(counts.emplace(c.peer, c.amount).second);
        EXPECT_EQ(c.counter, 9u);
        EXPECT_EQ(c.channel, 1u);
        continue;
      }
      EXPECT_EQ(c.kind, CommandKind::kWriteCount);
      EXPECT_EQ(std::tuple(c.bytes, c.counter, c.amount, c.channel), std::tuple(100u, 5u, 1u, 0u));
      EXPECT_TRUE(rows.emplace(std::pair(c.peer, c.destination_offset), c.source_offset).second);
    }
    EXPECT_EQ(counts, (std::map<uint32_t, uint32_t>{{0, 4}, {1, 3}, {2, 1}, {3, 3}}));
    decltype(rows) want;
    for (size_t i = 0; i < to.size(); ++i) {
      if (to[i] < 0 || at[i] < 0) continue;
      want[{static_cast<uint32_t>(to[i]), 4096 + 112u * static_cast<uint32_t>(at[i])}] =
          1024 + 112 * (i / 2);
    }
    EXPECT_EQ(rows, want);
  }
}

TEST(SendRows, WhatLiesOutsideIsToldAndNotAnnounced) {
  for (Launcher* launcher : Launchers()) {
    SCOPED_TRACE(launcher->name());
    // Beyond the ranks, the slots, the staging rows; then one that is right.
    Array<int32_t> peers(launcher, {0, 2, 1, 0, 1}), slots(launcher, {1, 1, 20, 2, 3});
    Array<int32_t> rows(launcher, {-1, 0, 1, 6, 5});
    Array<uint64_t> fault(launcher, {kNoFault});
    PinnedFifo queue(launcher, 16);
    SendRowsParams p = Sending(queue, 2);
    p.rows = rows.data(), p.peers = peers.data(), p.slots = slots.data(), p.entries = 5;
    p.fault = fault.data();
    ASSERT_TRUE(launcher->Run(p).ok());
    queue.Take();
    ASSERT_EQ(queue.taken.size(), 3u);
    EXPECT_EQ(*fault.data(), 1u);
    for (const Command& c : queue.taken) {
      if (c.kind == CommandKind::kCount) {
        EXPECT_EQ(c.amount, c.peer == 1 ? 2u : 1u);
      } else {
        EXPECT_EQ(c.source_offset, 1024u + 5 * 112);
      }
    }
  }
}

TEST(SendRows, RefusesWhatNoFifoTakes) {
  for (Launcher* launcher : {Launchers()[0]}) {
    PinnedFifo queue(launcher, 4);
    const SendRowsParams good = Sending(queue, 2);
    EXPECT_TRUE(CheckParams(good).ok()) << CheckParams(good).ToString();
    const auto says = [&](auto change) {
      SendRowsParams p = good;
      change(p);
      return CheckParams(p).detail;
    };
    const auto has = [](const std::string& text, const char* part) {
      return text.find(part) != std::string::npos;
    };
    EXPECT_TRUE(has(says([](auto& p) { p.rank = 2; }), "rank 2 of 2"));
    EXPECT_TRUE(has(says([](auto& p) { p.stride = 104; }), "multiple of 16"));
    EXPECT_TRUE(has(says([](auto& p) { p.num_slots = uint64_t{1} << 33; }), "64 GiB"));
    EXPECT_TRUE(has(says([](auto& p) { p.turn_bytes = fifo::kMaxOffset - 100; }), "64 GiB"));
    EXPECT_TRUE(has(says([](auto& p) { p.turn_bytes = 8; }), "granules of 16"));
    EXPECT_TRUE(has(says([](auto& p) { p.turn_counters = fifo::kMaxCounter; }), "below 2^24"));
    EXPECT_TRUE(has(says([](auto& p) { p.count_channel = 0; }), "two channels"));
    EXPECT_TRUE(has(says([](auto& p) { p.entries = 1; }), "without peers"));
    EXPECT_TRUE(has(says([](auto& p) { p.fifo = {}; }), "no FIFO"));
  }
}

TEST(SendRows, TheSecondBufferInItsTurn) {
  for (Launcher* launcher : Launchers()) {
    SCOPED_TRACE(launcher->name());
    PinnedFifo queue(launcher, 16);
    Array<int32_t> peers(launcher, {0}), slots(launcher, {2});
    Array<uint64_t> uses(launcher, {0});
    SendRowsParams p = Sending(queue, 2);
    p.peers = peers.data(), p.slots = slots.data(), p.entries = 1;
    p.turn.uses = uses.data(), p.turn_bytes = 65536, p.turn_counters = 30;
    for (uint64_t use = 0; use < 4; ++use) {
      *uses.data() = use;
      ASSERT_TRUE(launcher->Run(p).ok());
      queue.Take();
      ASSERT_EQ(queue.taken.size(), 3u);
      for (const Command& c : queue.taken) {
        const uint64_t second = use % 2;
        if (c.kind == CommandKind::kCount) {
          EXPECT_EQ(c.counter, 9 + 30 * second);
        } else {
          EXPECT_EQ(c.source_offset, 1024 + 65536 * second);
          EXPECT_EQ(c.destination_offset, 4096 + 2 * 112 + 65536 * second);
          EXPECT_EQ(c.counter, 5 + 30 * second);
        }
      }
      queue.taken.clear();
    }
  }
}

// Everything that AwaitRows reads and writes.
struct Waiting {
  Waiting(Launcher* launcher, uint32_t ranks, uint64_t most)
      : pinned(launcher->AllocatePinned(64 * 8)),
        state(launcher, std::vector<uint64_t>(Turn::kBuffers * 2 * ranks)),
        uses(launcher, {0}),
        counts(launcher, std::vector<uint32_t>(ranks)),
        waited(launcher, std::vector<uint32_t>(ranks, ~uint32_t{0})),
        awaits(launcher, std::vector<uint64_t>(ranks, 7)),
        order(launcher, std::vector<int32_t>(ranks * most + 1)),
        outcome(launcher, {0}) {
    words = reinterpret_cast<uint64_t*>(pinned.get());
    p.counters = words, p.arrived = 2, p.announced = 20, p.ranks = ranks, p.most = most;
    p.state = state.data(), p.counts = counts.data(), p.waited = waited.data();
    p.awaits = awaits.data();
    p.order = order.data(), p.order_rows = ranks * most + 1;
    p.abort = words + 60, p.outcome = outcome.data();
  }
  void Raise(uint32_t counter, uint64_t by) {
    fifo::NativeMemory().StoreReleaseSystem(words + counter, words[counter] + by);
  }

  std::shared_ptr<std::byte> pinned;
  Array<uint64_t> state, uses;
  Array<uint32_t> counts;
  Array<uint32_t> waited;
  Array<uint64_t> awaits;
  Array<int32_t> order;
  Array<uint64_t> outcome;
  uint64_t* words;
  AwaitRowsParams p;
};

// Use after use, in two buffers in turn: counts before rows and behind them, ranks without rows.
TEST(AwaitRows, LearnsHowManyAndSeesThem) {
  constexpr uint32_t kRanks = 5, kMost = 6;
  for (Launcher* launcher : Launchers()) {
    SCOPED_TRACE(launcher->name());
    Waiting wait(launcher, kRanks, kMost);
    wait.p.turn.uses = wait.uses.data(), wait.p.turn_counters = 2 * kRanks;
    wait.p.announced = wait.p.arrived + kRanks;
    const auto data = launcher->AllocatePinned(kRanks * kMost * 8);
    auto* cells = reinterpret_cast<uint64_t*>(data.get());
    std::mt19937 random(3);
    for (uint64_t use = 1; use <= 8; ++use) {
      *wait.uses.data() = use;
      const uint32_t arrived = 2 + 2 * kRanks * (use % 2), announced = arrived + kRanks;
      std::vector<uint32_t> rows(kRanks);
      std::vector<std::pair<uint32_t, uint32_t>> steps;  // rank, row; kMost: the announcement
      for (uint32_t r = 0; r < kRanks; ++r) {
        rows[r] = random() % (kMost + 1);
        for (uint32_t i = 0; i < rows[r]; ++i) steps.emplace_back(r, i);
        steps.emplace_back(r, kMost);
      }
      std::shuffle(steps.begin(), steps.end(), random);
      std::thread proxy([&] {
        for (const auto& [rank, row] : steps) {
          if (row < kMost) cells[rank * kMost + row] = use * 100 + row;  // not atomic
          if (row < kMost) wait.Raise(arrived + rank, 1);
          if (row == kMost) wait.Raise(announced + rank, rows[rank] + 1);
        }
      });
      const Status status = launcher->Run(wait.p);
      EXPECT_TRUE(status.ok()) << status.ToString();
      std::vector<int32_t> order;
      for (uint32_t r = 0; r < kRanks; ++r) {
        for (uint32_t i = 0; i < rows[r]; ++i) {
          EXPECT_EQ(cells[r * kMost + i], use * 100 + i);
          order.push_back(static_cast<int32_t>(r * kMost + i));
        }
      }
      proxy.join();
      order.resize(kRanks * kMost + 1, -1);
      EXPECT_EQ(*wait.outcome.data(), 0u);
      EXPECT_EQ(wait.awaits.all(), std::vector<uint64_t>(kRanks));
      EXPECT_EQ(wait.counts.all(), rows);
      EXPECT_EQ(wait.order.all(), order);
      for (uint32_t ns : wait.waited.all()) EXPECT_NE(ns, ~uint32_t{0});
    }
  }
}

// A clock that each look advances, and counters that its hands raise: the time of each rank is that
// of its own last row.
TEST(AwaitRows, TellsHowLongEachRankWasWaitedFor) {
  Waiting wait(Launchers()[0], 4, 9);
  wait.Raise(20 + 1, 1);  // rank 1 has nothing to send and is first
  uint64_t now = 5'000;
  const auto clock = [&] {
    const uint64_t read = now;
    now += 1'000;
    // After the start: rank 3 announces two rows; after each end the next row or rank.
    if (read == 5'000) wait.Raise(20 + 3, 3), wait.Raise(2 + 3, 2);
    if (read == 6'000) wait.Raise(20 + 0, 2), wait.Raise(2 + 0, 1);
    if (read == 7'000) wait.Raise(20 + 2, 1);
    return read;
  };
  fifo::SoloGroup group;
  AwaitRows(group, wait.p, clock);
  EXPECT_EQ(wait.counts.all(), (std::vector<uint32_t>{1, 0, 0, 2}));
  // Looked at in the order 1, 3, then 0 and 2.
  EXPECT_EQ(wait.waited.all(), (std::vector<uint32_t>{3'000, 1'000, 4'000, 2'000}));
}

TEST(AwaitRows, AnAbortEndsItAndIsTold) {
  for (Launcher* launcher : Launchers()) {
    SCOPED_TRACE(launcher->name());
    Waiting wait(launcher, 3, 4);
    wait.Raise(20, 3);  // two rows, one of which never comes
    wait.Raise(2, 1);
    std::thread watchdog([&] { fifo::NativeMemory().StoreReleaseSystem(wait.words + 60, 17); });
    EXPECT_TRUE(launcher->Run(wait.p).ok());
    watchdog.join();
    EXPECT_EQ(*wait.outcome.data(), 17u);
    EXPECT_EQ(wait.awaits.all(), std::vector<uint64_t>(3, 1));
    EXPECT_EQ(wait.order.data()[0], -1);
  }
}

TEST(AwaitRows, MoreRowsThanSlotsAreAFault) {
  for (Launcher* launcher : Launchers()) {
    SCOPED_TRACE(launcher->name());
    Waiting wait(launcher, 2, 4);
    wait.Raise(20, 1);
    wait.Raise(21, 6);
    wait.Raise(3, 5);
    EXPECT_TRUE(launcher->Run(wait.p).ok());
    EXPECT_EQ(*wait.outcome.data(), kTooManyRows);
  }
}

TEST(AwaitRows, RefusesWhatCouldNotEnd) {
  Waiting wait(Launchers()[0], 2, 4);
  EXPECT_TRUE(CheckParams(wait.p).ok());
  AwaitRowsParams p = wait.p;
  p.abort = nullptr;
  EXPECT_NE(CheckParams(p).detail.find("abort word"), std::string::npos);
  p = wait.p, p.most = uint64_t{1} << 30;
  EXPECT_NE(CheckParams(p).detail.find("below 2^31"), std::string::npos);
  p = wait.p, p.state = nullptr;
  EXPECT_NE(CheckParams(p).detail.find("without an address"), std::string::npos);
}

}  // namespace
}  // namespace uccl::cuda
