// The kernels of exchange.h and resolve.h on every launcher: one rank that sends to itself, and a
// thread of the test in the place of the proxy. executor/pipes_test.cc and
// collectives/stream_call_test.cc have several ranks.
#include "csrc/cuda/exchange.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <thread>
#include <vector>

#include "csrc/cuda/resolve.h"
#include "csrc/cuda/testing/launcher.h"
#include "csrc/cuda/testing/pinned_fifo.h"
#include "csrc/fifo/native_memory.h"

namespace uccl::cuda {
namespace {

// Pipes of one rank to itself: two slots of 48 bytes each way.
class Loop final {
 public:
  Loop(Launcher* launcher, const std::vector<uint64_t>& sizes)
      : launcher_(launcher),
        fifo_(launcher, 8),
        region_(launcher->AllocatePinned(4096)),
        rest_(launcher->AllocatePinned(65536)) {
    PipeLayout& l = params.layout;
    l.ranks = 1, l.slots = 2, l.piece_bytes = 48, l.stride_bytes = 80;
    params.region = region_.get();
    params.fifo = fifo_.view;
    counters_ = Take<uint64_t>(l.counters());
    params.counters = counters_;
    abort = Take<uint64_t>(1);
    params.abort = abort;
    params.state = new (Take<PipeState>(1)) PipeState();
    params.progress = new (Take<PipeProgress>(1)) PipeProgress();
    params.fault = new (Take<ExchangeFault>(1)) ExchangeFault();
    auto* const messages = Take<PipeMessage>(2 * sizes.size());
    auto* const lines = Take<PipeLine>(2);
    auto* const addresses = Take<std::byte*>(2 * sizes.size());
    const auto count = static_cast<uint32_t>(sizes.size());
    for (uint32_t i = 0; i < 2 * count; ++i) {
      new (&messages[i]) PipeMessage{sizes[i % count], {7, 1, i % count}};
      addresses[i] = Take<std::byte>(sizes[i % count]);
    }
    new (&lines[0]) PipeLine{0, 1, 0, count, 0, 0};
    new (&lines[1]) PipeLine{0, 0, count, count, 0, 0};
    params.messages = all = messages;
    params.addresses = addresses;
    params.lines = lines, params.line_count = 2;
    from = addresses, to = addresses + count;
  }

  // Launches, and carries out what is pushed until the kernel is over.
  Status Run() {
    std::atomic<bool> over{false};
    std::thread proxy([&] {
      while (!over.load()) {
        Serve();
        std::this_thread::yield();
      }
    });
    const Status status = launcher_->Run(params);
    over.store(true);
    proxy.join();
    Serve();
    return status;
  }

  ExchangeParams params;
  PipeMessage* all = nullptr;
  std::byte *const *from = nullptr, *const *to = nullptr;
  uint64_t* abort = nullptr;

 private:
  template <class T>
  T* Take(uint64_t count) {
    T* const at = reinterpret_cast<T*>(rest_.get() + used_);
    used_ += (count * sizeof(T) + 63) / 64 * 64;
    return at;
  }
  void Serve() {
    const fifo::NativeMemory memory;
    fifo_.Take();
    for (const fifo::Command& c : fifo_.taken) {
      if (c.kind == fifo::CommandKind::kWriteCount) {
        std::memcpy(params.region + c.destination_offset, params.region + c.source_offset, c.bytes);
      }
      memory.StoreReleaseSystem(&counters_[c.counter], counters_[c.counter] + c.amount);
    }
    fifo_.taken.clear();
  }

  Launcher* const launcher_;
  PinnedFifo fifo_;
  const std::shared_ptr<std::byte> region_, rest_;
  uint64_t used_ = 0;
  uint64_t* counters_ = nullptr;
};

ExchangeTrouble TroubleOf(const Loop& loop) {
  return static_cast<ExchangeTrouble>(loop.params.fault->trouble);
}

TEST(Exchange, MessagesLongerThanTheirPipe_AgainAndAgain) {
  const std::vector<uint64_t> sizes = {0, 1, 48, 49, 500, 17};
  for (Launcher* launcher : Launchers()) {
    SCOPED_TRACE(launcher->name());
    Loop loop(launcher, sizes);
    std::mt19937 random(3);
    for (int repeat = 0; repeat < 2; ++repeat) {
      for (size_t i = 0; i < sizes.size(); ++i) {
        for (uint64_t k = 0; k < sizes[i]; ++k) {
          loop.from[i][k] = static_cast<std::byte>(random());
          loop.to[i][k] = std::byte{0xdb};
        }
      }
      const Status status = loop.Run();
      ASSERT_TRUE(status.ok()) << status.ToString();
      ASSERT_EQ(TroubleOf(loop), ExchangeTrouble::kNone);
      for (size_t i = 0; i < sizes.size(); ++i)
        EXPECT_EQ(std::memcmp(loop.from[i], loop.to[i], sizes[i]), 0) << "message " << i;
    }
    EXPECT_EQ(loop.params.state->sent, loop.params.state->received);
    const PipeProgress& progress = *loop.params.progress;
    EXPECT_EQ(progress.sent, loop.params.state->sent);
    EXPECT_EQ(progress.sent, progress.send_goal);
    EXPECT_EQ(progress.received, progress.receive_goal);
    EXPECT_EQ(progress.sent, progress.received);
    EXPECT_EQ(loop.params.state->sent, 2u * (1 + 1 + 1 + 2 + 11 + 1));
  }
}

TEST(Exchange, WhatWasNotExpected_IsNotedAndNotUnpacked) {
  for (Launcher* launcher : Launchers()) {
    SCOPED_TRACE(launcher->name());
    Loop loop(launcher, {20, 30});
    loop.all[3].tag.stage = 2;  // the second one to receive
    loop.to[1][0] = std::byte{0xdb};
    ASSERT_TRUE(loop.Run().ok());
    EXPECT_EQ(TroubleOf(loop), ExchangeTrouble::kMismatch);
    EXPECT_EQ(loop.params.fault->got.message_bytes, 30u);
    EXPECT_EQ(loop.params.fault->got.tag.stage, 1u);
    EXPECT_EQ(loop.params.fault->wanted.tag.stage, 2u);
    EXPECT_EQ(loop.to[1][0], std::byte{0xdb});
  }
}

TEST(Exchange, AnAbortEndsIt) {
  for (Launcher* launcher : Launchers()) {
    SCOPED_TRACE(launcher->name());
    Loop loop(launcher, {20});
    loop.params.lines += 1, loop.params.line_count = 1;  // it waits for what nobody sends
    std::thread watchdog([&] { fifo::NativeMemory().StoreReleaseSystem(loop.abort, 1); });
    EXPECT_TRUE(loop.Run().ok());
    watchdog.join();
    EXPECT_EQ(TroubleOf(loop), ExchangeTrouble::kAborted);
  }
}

TEST(Exchange, RefusesWhatNoPipeIs) {
  ExchangeParams p;
  EXPECT_NE(CheckParams(p).detail.find("rank 0 of 0"), std::string::npos);
  p.layout.ranks = 1;
  EXPECT_NE(CheckParams(p).detail.find("1 to 8 slots"), std::string::npos);
  p.layout.slots = 2, p.layout.piece_bytes = 48, p.layout.stride_bytes = 80;
  EXPECT_TRUE(CheckParams(p).ok());  // of nothing
  p.line_count = 1;
  EXPECT_NE(CheckParams(p).detail.find("without an address"), std::string::npos);
  p.layout.stride_bytes = 64;  // no room for a header
  EXPECT_EQ(CheckParams(p).code, StatusCode::kInvalidArgument);
}

TEST(Resolve, AddressesAndTheMark) {
  for (Launcher* launcher : Launchers()) {
    SCOPED_TRACE(launcher->name());
    constexpr uint64_t kCount = 100;
    const auto memory = launcher->Allocate(kCount * (sizeof(Place) + sizeof(std::byte*)));
    const auto pinned = launcher->AllocatePinned(sizeof(uint64_t));
    const auto uses = launcher->Allocate(sizeof(uint64_t));
    auto* const places = reinterpret_cast<Place*>(memory.get());
    auto* const to = reinterpret_cast<std::byte**>(places + kCount);
    for (uint64_t i = 0; i < kCount; ++i)
      new (&places[i]) Place{i * 3, static_cast<uint32_t>(i % kMaxBuffers)};
    std::byte bases[kMaxBuffers * 1000];
    ResolveParams p;
    p.places = places, p.to = to, p.count = kCount;
    p.mark = reinterpret_cast<uint64_t*>(pinned.get());
    p.uses = reinterpret_cast<uint64_t*>(uses.get());
    for (uint32_t b = 0; b < kMaxBuffers; ++b) p.buffers[b] = bases + 1000 * b;
    for (uint64_t run = 1; run < 3; ++run) {
      ASSERT_TRUE(launcher->Run(p).ok());
      EXPECT_EQ(*p.mark, run);
      EXPECT_EQ(*p.uses, run);
    }
    for (uint64_t i = 0; i < kCount; ++i) EXPECT_EQ(to[i], bases + 1000 * (i % 4) + 3 * i);
    p.places = nullptr;
    EXPECT_EQ(launcher->Run(p).code, StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace uccl::cuda
