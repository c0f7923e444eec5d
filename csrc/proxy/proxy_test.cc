// Proxies end to end: host threads push commands, engines of one test process carry puts between
// "processes" over the network and over shared memory, counters tell what has landed.
#include "csrc/proxy/proxy.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "csrc/fifo/fifo_device.h"
#include "csrc/proxy/testing/fleet.h"

namespace uccl::proxy {
namespace {

using fifo::Command;
using fifo::CommandKind;
using fifo::FifoView;
using fifo::PushOutcome;

constexpr Nanos kPatience = std::chrono::seconds(60);
constexpr size_t kCounters = Fleet::kCounters;

Command Make(CommandKind kind, uint32_t peer, uint32_t counter, uint32_t amount) {
  Command c;
  c.kind = kind;
  c.peer = peer;
  c.counter = counter;
  c.amount = amount;
  return c;
}
Command MakePut(CommandKind kind, uint32_t peer, uint64_t from, uint64_t to, uint64_t bytes,
                uint32_t counter = 0, uint32_t amount = 0) {
  Command c = Make(kind, peer, counter, amount);
  c.source_offset = from;
  c.destination_offset = to;
  c.bytes = bytes;
  return c;
}

struct Way {
  const char* name;
  bool shared;
  int engines;
  int threads;
};
class Proxies : public ::testing::TestWithParam<Way> {
 protected:
  static Config Settings() {
    Config config;
    config.shared_memory = GetParam().shared ? "on" : "off";
    config.engines = GetParam().engines;
    config.proxy_threads = GetParam().threads;
    config.proxy_fifo_inflight = 24;  // so that caps are met
    config.proxy_peer_inflight = 40;
    return config;
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, Proxies,
                         ::testing::Values(Way{"Network", false, 1, 1},
                                           Way{"TwoEngines", false, 2, 2},
                                           Way{"SharedMemory", true, 1, 2}),
                         [](const auto& info) { return info.param.name; });

// Every rank writes a block of its own into every rank, in rows of odd sizes: some with their
// count, some followed by one count, some large; then the receivers check when the counters say so.
TEST_P(Proxies, EveryRankToEveryRank_DataIsThereWhenTheCounterSaysSo) {
  constexpr size_t kBlock = 1 << 18;
  const int each = 2;
  Fleet fleet(2, each, kBlock * 4 * 2, Settings());
  fleet.RegisterAll();
  const size_t ranks = fleet.ranks();
  constexpr int kRows = 40;
  const auto row_bytes = [](int row) -> uint64_t {
    return row % 13 == 12 ? 70'001 : static_cast<uint64_t>(row) * 37 % 900 + 1;
  };
  const auto value = [](size_t from, size_t to, int row, uint64_t i) {
    return static_cast<std::byte>(from * 89 + to * 31 + row * 7 + i * 3 + 1);
  };
  // Each rank's sources lie in the second half of its region, by destination.
  const auto source = [&](size_t to) { return ranks * kBlock + to * kBlock; };
  std::vector<std::thread> senders;
  for (size_t from = 0; from < ranks; ++from) {
    std::vector<FifoView> fifos = {fleet.Open(from, 5), fleet.Open(from, 64)};
    senders.emplace_back([&, from, fifos] {
      for (size_t to = 0; to < ranks; ++to) {
        uint64_t offset = 0;
        for (int row = 0; row < kRows; ++row) {
          const uint64_t bytes = row_bytes(row);
          for (uint64_t i = 0; i < bytes; ++i) {
            fleet.memory(from)[source(to) + offset + i] = value(from, to, row, i);
          }
          // Odd rows count for themselves; even ones are covered by the count at the end.
          Command c = MakePut(row % 2 == 1 ? CommandKind::kWriteCount : CommandKind::kWrite,
                              static_cast<uint32_t>(to), source(to) + offset,
                              from * kBlock + offset, bytes);
          c.channel = static_cast<uint32_t>(from % 3);
          if (row % 2 == 1) {
            c.counter = static_cast<uint32_t>(from);
            c.amount = 1;
            ASSERT_EQ(PushWriteCount(fifos[row / 2 % 2], c), PushOutcome::kPushed);
          } else {
            ASSERT_EQ(Push(fifos[0], c), PushOutcome::kPushed);
          }
          offset += (bytes + 15) / 16 * 16;
        }
        Command count = Make(CommandKind::kCount, static_cast<uint32_t>(to),
                             static_cast<uint32_t>(ranks + from), 1000);
        count.channel = static_cast<uint32_t>(from % 3);
        ASSERT_EQ(Push(fifos[0], count), PushOutcome::kPushed);
      }
      for (const FifoView& fifo : fifos) {
        ASSERT_EQ(Push(fifo, Make(CommandKind::kQuiet, 0, 60, 1)), PushOutcome::kPushed);
      }
    });
  }
  for (size_t to = 0; to < ranks; ++to) {
    for (size_t from = 0; from < ranks; ++from) {
      for (const bool even : {true, false}) {
        const auto counter = static_cast<uint32_t>(even ? ranks + from : from);
        const Status status = fleet.region(to).Wait(counter, even ? 1000 : kRows / 2, kPatience);
        ASSERT_TRUE(status.ok()) << status.ToString();
        uint64_t offset = 0;
        for (int row = 0; row < kRows; ++row) {
          const uint64_t bytes = row_bytes(row);
          for (uint64_t i = 0; (row % 2 == 0) == even && i < bytes; ++i) {
            ASSERT_EQ(fleet.memory(to)[from * kBlock + offset + i], value(from, to, row, i))
                << from << " to " << to << " row " << row << " byte " << i;
          }
          offset += (bytes + 15) / 16 * 16;
        }
      }
    }
  }
  for (std::thread& t : senders) t.join();
  for (size_t r = 0; r < ranks; ++r) {
    ASSERT_TRUE(fleet.region(r).Wait(60, 2, kPatience).ok());
    // Exactly once: after the drain nothing more is counted.
    for (size_t from = 0; from < ranks; ++from) {
      EXPECT_EQ(fleet.region(r).Read(static_cast<uint32_t>(ranks + from)), 1000u);
      EXPECT_EQ(fleet.region(r).Read(static_cast<uint32_t>(from)), uint64_t{kRows} / 2);
    }
    EXPECT_TRUE(fleet.region(r).status().ok()) << fleet.region(r).status().ToString();
  }
  EXPECT_GT(fleet.proxy(0).Stats().stalls, 0u) << "no cap was met";
  EXPECT_EQ(fleet.proxy(0).Stats().malformed, 0u);
}

// What the quiet of one rank drained is visible to all after a barrier, round after round.
TEST_P(Proxies, Barrier_EverybodySeesWhatWasPutBefore) {
  Fleet fleet(3, 2, 4096, Settings());
  fleet.RegisterAll();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (size_t rank = 0; rank < fleet.ranks(); ++rank) {
    const FifoView fifo = fleet.Open(rank, 8);
    threads.emplace_back([&, rank, fifo] {
      Region& region = fleet.region(rank);
      uint64_t barriers = 0;
      const auto barrier = [&] {
        if (Push(fifo, Make(CommandKind::kBarrier, 0, 7, 1)) != PushOutcome::kPushed ||
            !region.Wait(7, ++barriers, kPatience).ok()) {
          ++wrong;
        }
      };
      for (uint64_t round = 1; round <= 6; ++round) {
        std::memcpy(fleet.memory(rank) + 2048, &round, sizeof(round));
        for (uint32_t to = 0; to < fleet.ranks(); ++to) {
          Push(fifo, MakePut(CommandKind::kWrite, to, 2048, rank * 16, sizeof(round)));
        }
        barrier();
        for (size_t from = 0; from < fleet.ranks(); ++from) {
          uint64_t seen = 0;
          std::memcpy(&seen, fleet.memory(rank) + from * 16, sizeof(seen));
          if (seen != round) ++wrong;
        }
        barrier();  // before anybody writes the next round
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong.load(), 0);
}

// A rank that registers late: what was put to it before waits.
TEST_P(Proxies, PutsWaitForTheRegionOfTheirDestination) {
  Fleet fleet(2, 1, 65536, Settings());
  fleet.Register(0);
  const FifoView fifo = fleet.Open(0, 64);
  for (size_t i = 0; i < 30'000; ++i) fleet.memory(0)[i] = static_cast<std::byte>(i * 5);
  Push(fifo, MakePut(CommandKind::kWriteCount, 1, 0, 32, 1000, 1, 1));
  Push(fifo, MakePut(CommandKind::kWrite, 1, 1008, 2048, 20'000));
  Push(fifo, Make(CommandKind::kCount, 1, 2, 5));
  EXPECT_EQ(fleet.region(0).Wait(3, 1, std::chrono::milliseconds(20)).code,
            StatusCode::kPeerTimeout);
  fleet.Register(1);
  ASSERT_TRUE(fleet.region(1).Wait(1, 1, kPatience).ok());
  ASSERT_TRUE(fleet.region(1).Wait(2, 5, kPatience).ok());
  EXPECT_EQ(std::memcmp(fleet.memory(1) + 32, fleet.memory(0), 1000), 0);
  EXPECT_EQ(std::memcmp(fleet.memory(1) + 2048, fleet.memory(0) + 1008, 20'000), 0);
}

TEST_P(Proxies, LostPeer_WaitersGetItsStatusAndProducersGoOn) {
  Fleet fleet(2, 1, 65536, Settings());
  fleet.RegisterAll();
  const FifoView fifo = fleet.Open(0, 4);
  std::promise<Status> watched;
  fleet.region(0).OnReached(1, 1, [&](const Status& status) { watched.set_value(status); });
  std::thread leaver([&] { fleet.Leave(1); });
  // Nothing of ours is owed by the peer; it is missed all the same.
  const Status status = fleet.region(0).Wait(0, 1, kPatience);
  EXPECT_EQ(status.code, StatusCode::kPeerLost) << status.ToString();
  EXPECT_EQ(status.process, 1);
  auto future = watched.get_future();
  ASSERT_EQ(future.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(future.get().code, StatusCode::kPeerLost);
  // More than the FIFO holds: whoever finds it full is told, nobody hangs.
  PushOutcome outcome = PushOutcome::kPushed;
  for (int i = 0; i < 1000 && outcome == PushOutcome::kPushed; ++i) {
    outcome = Push(fifo, MakePut(CommandKind::kWrite, 1, 0, 0, 100));
  }
  EXPECT_EQ(outcome, PushOutcome::kStopped);
  EXPECT_EQ(fleet.region(0).Wait(0, 1, kPatience).code, StatusCode::kPeerLost);
  EXPECT_EQ(*fleet.region(0).failed_word(), 1u);
  leaver.join();
}

TEST_P(Proxies, BadCommands_FailTheRegionInWords) {
  struct Case {
    Command command;
    const char* says;
  };
  const std::vector<Case> cases = {
      {Make(CommandKind::kCount, 2, 0, 1), "peer 2"},
      {Make(CommandKind::kCount, 1, kCounters, 1), "counter 64"},
      {Make(CommandKind::kQuiet, 0, kCounters, 1), "counter 64"},
      {MakePut(CommandKind::kWrite, 1, 4080, 0, 17), "17 bytes at offset 4080"},
      {MakePut(CommandKind::kWrite, 1, 0, 4096, 1), "1 bytes at offset 4096"},
      {MakePut(CommandKind::kWrite, 1, fifo::kMaxOffset, 0, 1), "of a region of 4096"},
  };
  Fleet fleet(2, 1, 4096, Settings());
  RegionOptions options = fleet.Options(0);
  for (const Case& c : cases) {
    ++options.key;
    const std::shared_ptr<Region> region = fleet.proxy(0).RegisterRegion(options).value();
    const FifoView fifo = fleet.proxy(0).OpenFifo(region, 4).value();
    ASSERT_EQ(Push(fifo, c.command), PushOutcome::kPushed);
    const Status status = region->Wait(0, 1, kPatience);
    EXPECT_EQ(status.code, StatusCode::kInvalidArgument);
    EXPECT_NE(status.detail.find(c.says), std::string::npos) << status.detail;
  }
}

TEST_P(Proxies, Unregister_StopsFifosAndWaitersAndLeavesMemoryAlone) {
  Fleet fleet(2, 1, 1 << 20, Settings());
  fleet.RegisterAll();
  const FifoView fifo = fleet.Open(0, 16);
  std::thread producer([&] {
    while (Push(fifo, MakePut(CommandKind::kWrite, 1, 0, 0, 50'000)) == PushOutcome::kPushed) {
    }
  });
  std::thread waiter(
      [&] { EXPECT_EQ(fleet.region(1).Wait(0, 1, kPatience).code, StatusCode::kAborted); });
  fleet.proxy(1).UnregisterRegion(fleet.shared_region(1));
  std::memset(fleet.memory(1), 0x5a, 50'000);
  fleet.proxy(0).UnregisterRegion(fleet.shared_region(0));
  producer.join();
  waiter.join();
  for (size_t i = 0; i < 50'000; ++i) ASSERT_EQ(fleet.memory(1)[i], std::byte{0x5a}) << i;
  const auto again = fleet.proxy(1).RegisterRegion(fleet.Options(1));
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.status().code, StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace uccl::proxy
