// Tests of csrc/executor/pipes.h between ranks of one process, where the proxy copies.
#include "csrc/executor/pipes.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <utility>

namespace uccl::executor {
namespace {

constexpr uint64_t kStaging = 65536;  // the least: pieces are small, and laps many

// `ranks` ranks, each driven by a thread of its own.
class Ranks final {
 public:
  explicit Ranks(uint32_t ranks, uint64_t key = 7) {
    auto proxy = proxy::Proxy::Start(Config(), nullptr, ProcessId{0});
    EXPECT_TRUE(proxy.ok()) << proxy.status().ToString();
    proxy_ = std::move(proxy.value());
    for (uint32_t r = 0; r < ranks; ++r) {
      auto pipes = Pipes::Open(proxy_.get(), key, std::vector<ProcessId>(ranks), r, kStaging);
      EXPECT_TRUE(pipes.ok()) << pipes.status().ToString();
      pipes_.push_back(std::move(pipes.value()));
    }
  }
  Pipes& operator[](uint32_t rank) { return *pipes_[rank]; }
  template <class Body>
  void Run(const Body& body) {
    std::vector<std::thread> threads;
    for (uint32_t r = 0; r < pipes_.size(); ++r) threads.emplace_back([&, r] { body(r); });
    for (std::thread& t : threads) t.join();
  }

 private:
  std::unique_ptr<proxy::Proxy> proxy_;
  std::vector<std::unique_ptr<Pipes>> pipes_;
};

std::vector<std::byte> Contents(uint64_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> data(bytes);
  for (std::byte& b : data) b = static_cast<std::byte>(random());
  return data;
}

TEST(PipeLayout, PlacesDoNotOverlapAndFitCommands) {
  for (uint32_t ranks : {1u, 2u, 3u, 8u, 17u, 1024u, 1500u, 8192u}) {
    const auto layout = MakePipeLayout(ranks, 4 << 20);
    ASSERT_TRUE(layout.ok());
    const PipeLayout& l = layout.value();
    EXPECT_GE(l.slots, 1u);
    EXPECT_LE(l.piece_bytes + PipeLayout::kHeaderBytes, fifo::kMaxWriteCountBytes);
    EXPECT_LE(l.landed(ranks - 1, l.slots - 1), fifo::kMaxWriteCountCounter);
    EXPECT_LT(l.landed(ranks - 1, l.slots - 1), l.credit(0));
    EXPECT_LT(l.credit(ranks - 1), l.drained());
    EXPECT_EQ(l.outbox(ranks - 1, l.slots - 1) + l.stride_bytes, l.inbox(0, 0));
    EXPECT_EQ(l.inbox(ranks - 1, l.slots - 1) + l.stride_bytes, l.region_bytes());
    EXPECT_EQ(l.inbox(0, 0) % fifo::kGranuleBytes, 0u);
  }
  const auto refused = MakePipeLayout(8193, 4 << 20);
  EXPECT_EQ(refused.status().code, StatusCode::kUnsupported);
}

TEST(Pipes, MessagesOfAllSizes_InOrderAndInBothDirections) {
  for (uint32_t ranks : {1u, 2u, 5u}) {
    SCOPED_TRACE(ranks);
    Ranks all(ranks);
    const uint64_t piece = all[0].layout().piece_bytes, lap = piece * all[0].layout().slots;
    const std::vector<uint64_t> sizes = {0,         1,   15, piece - 1,   piece,
                                         piece + 1, lap, 0,  3 * lap + 5, 7};
    const auto seed = [&](uint32_t from, uint32_t to, uint64_t i) {
      return (uint64_t{from} * ranks + to) * 100 + i;
    };
    all.Run([&](uint32_t me) {
      std::vector<std::vector<std::byte>> sent, got;
      std::vector<Outgoing> out;
      std::vector<Incoming> in;
      sent.reserve(ranks * sizes.size());
      got.reserve(ranks * sizes.size());
      // The rank itself too: then it goes through the proxy like any other.
      for (uint32_t peer = 0; peer < ranks; ++peer) {
        for (uint32_t i = 0; i < sizes.size(); ++i) {
          sent.push_back(Contents(sizes[i], seed(me, peer, i)));
          out.push_back(Send(peer, {1, 2, i}, sent.back()));
          got.emplace_back(sizes[i]);
          in.push_back(Receive(peer, {1, 2, i}, got.back()));
        }
      }
      const Status status = all[me].Exchange(out, in);
      EXPECT_TRUE(status.ok()) << status.ToString();
      for (uint32_t peer = 0; peer < ranks; ++peer) {
        for (uint32_t i = 0; i < sizes.size(); ++i) {
          EXPECT_EQ(got[peer * sizes.size() + i], Contents(sizes[i], seed(peer, me, i)))
              << peer << " to " << me << ", message " << i;
        }
      }
    });
  }
}

// Each rank sends on and receives behind, many times, some faster than others.
TEST(Pipes, ManyExchanges_OnesThatRunAhead) {
  constexpr uint32_t kRanks = 3;
  Ranks all(kRanks);
  all.Run([&](uint32_t me) {
    for (uint64_t n = 0; n < 300; ++n) {
      const auto mine = Contents(n * 37 % 5000, n * kRanks + me);
      const uint32_t to = (me + 1) % kRanks, from = (me + kRanks - 1) % kRanks;
      const auto want = Contents(n * 37 % 5000, n * kRanks + from);
      std::vector<std::byte> got(want.size());
      const Outgoing out = Send(to, {n, 0, 0}, mine);
      const Incoming in = Receive(from, {n, 0, 0}, got);
      // Sends first, and waits for what comes apart from it.
      Status status = all[me].Exchange({&out, 1}, {});
      if (status.ok()) status = all[me].Exchange({}, {&in, 1});
      ASSERT_TRUE(status.ok()) << status.ToString();
      ASSERT_EQ(got, want) << "exchange " << n << " of rank " << me;
    }
  });
}

TEST(Pipes, WhatRanksDisagreeAbout_IsAnErrorAndNoData) {
  struct Case {
    Tag tag;
    uint64_t bytes;
    const char* words;
  };
  for (const Case& c :
       {Case{{4, 5, 6},
             101,
             "sends 100 bytes in stage 5, part 6 of operation 4, this one expects 101 bytes"},
        Case{{5, 5, 6}, 100, "of operation 5"}, Case{{4, 6, 6}, 100, "in stage 6"},
        Case{{4, 5, 7}, 100, "part 7"}}) {
    Ranks all(2);
    const auto data = Contents(100, 1);
    std::vector<std::byte> got(c.bytes, std::byte{0xdb});
    all.Run([&](uint32_t me) {
      if (me == 0) {
        const Outgoing out = Send(1, {4, 5, 6}, data);
        EXPECT_TRUE(all[0].Exchange({&out, 1}, {}).ok());
      } else {
        const Incoming in = Receive(0, c.tag, got);
        const Status status = all[1].Exchange({}, {&in, 1});
        EXPECT_EQ(status.code, StatusCode::kProtocol);
        EXPECT_NE(status.detail.find(c.words), std::string::npos) << status.detail;
        EXPECT_EQ(status.process, 0);
      }
    });
    EXPECT_EQ(got, std::vector<std::byte>(c.bytes, std::byte{0xdb}));
  }
}

TEST(Pipes, TellsWhatIsMissing_AndAFailureEndsTheWait) {
  Ranks all(3);
  Pipes& pipes = all[0];
  const uint64_t lap = pipes.layout().piece_bytes * pipes.layout().slots;
  const auto data = Contents(2 * lap, 1);  // rank 1 does not take it
  std::vector<std::byte> got(10);
  const std::vector<uint64_t> to_send = {0, pipes.layout().pieces(data.size()), 0};
  const std::vector<uint64_t> to_receive = {0, 0, 1};
  pipes.Announce(to_send, to_receive);
  for (uint32_t peer : {1u, 2u}) EXPECT_TRUE(pipes.Needs(peer));
  EXPECT_FALSE(pipes.Needs(0));
  Status status;
  std::thread waits([&] {
    const Outgoing out = Send(1, {}, data);
    const Incoming in = Receive(2, {}, got);
    status = pipes.Exchange({&out, 1}, {&in, 1});
  });
  while (!pipes.Owes(1) || !pipes.Awaits(2)) std::this_thread::yield();
  const Outgoing out = Send(0, {}, got);
  EXPECT_TRUE(all[2].Exchange({&out, 1}, {}).ok());
  while (pipes.Awaits(2) || pipes.Needs(2)) std::this_thread::yield();
  EXPECT_TRUE(pipes.Owes(1));
  EXPECT_TRUE(pipes.Needs(1));
  pipes.Fail(Status::Error(StatusCode::kPeerLost, "rank 1 is gone"));
  waits.join();
  EXPECT_EQ(status.code, StatusCode::kPeerLost);
  // And so does every later one, while the others go on.
  const Outgoing again = Send(2, {}, got);
  EXPECT_EQ(pipes.Exchange({&again, 1}, {}).code, StatusCode::kPeerLost);
  EXPECT_TRUE(all[1].Drain(std::chrono::seconds(60)).ok());
}

// Rank 0 -> 1 -> 2, through rank 1 in pieces, as far as they have come.
TEST(Pipes, AMessageMadeOfAnother_FlowsAsThatOneComes) {
  Ranks all(3);
  const uint64_t lap = all[0].layout().piece_bytes * all[0].layout().slots;
  const auto data = Contents(5 * lap + 3, 1);
  std::vector<std::byte> between(data.size()), got(data.size());
  uint64_t come = 0, left_at_first = 0;
  all.Run([&](uint32_t me) {
    Outgoing out = Send(me + 1, {}, me == 0 ? Bytes(data) : Bytes(between));
    Incoming in = Receive(me - 1, {}, me == 1 ? between : got);
    if (me == 1) {
      in.unpack = [&, unpack = in.unpack](uint64_t offset, Bytes from) {
        come = offset + from.size();
        return unpack(offset, from);
      };
      out.ready = [&] { return come; };
      out.pack = [&, pack = out.pack](uint64_t offset, MutableBytes to) {
        if (offset == 0) left_at_first = come;
        return pack(offset, to);
      };
    }
    const Status status = all[me].Exchange({&out, me < 2 ? 1u : 0u}, {&in, me > 0 ? 1u : 0u});
    EXPECT_TRUE(status.ok()) << status.ToString();
  });
  EXPECT_EQ(got, data);
  EXPECT_GT(left_at_first, 0u);
  EXPECT_LT(left_at_first, data.size()) << "nothing was sent on before all had come";
  // One that nothing makes ready ends.
  Outgoing never = Send(1, {}, got);
  never.ready = [] { return uint64_t{0}; };
  const Status status = all[0].Exchange({&never, 1}, {});
  EXPECT_NE(status.detail.find("no other one of its exchange"), std::string::npos);
}

TEST(Pipes, ErrorsOfPackAndUnpack_EndTheExchange) {
  Ranks all(2);
  const Status broken = Status::Error(StatusCode::kInvalidArgument, "broken");
  Outgoing out = Send(1, {}, {});
  out.pack = [&](uint64_t, MutableBytes) { return broken; };
  EXPECT_EQ(all[0].Exchange({&out, 1}, {}).detail, "broken");
  const Outgoing good = Send(1, {}, {});
  EXPECT_TRUE(all[1].Exchange({&good, 1}, {}).ok());
  Incoming in = Receive(1, {}, {});
  in.unpack = [&](uint64_t, Bytes) { return broken; };
  EXPECT_EQ(all[1].Exchange({}, {&in, 1}).detail, "broken");
}

}  // namespace
}  // namespace uccl::executor
