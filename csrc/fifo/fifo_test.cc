// Tests of a FIFO between threads: order, wrap-around at capacities of all kinds, full, empty,
// stopping. Run under ThreadSanitizer they check the orders that the model checker argues.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

#include "csrc/fifo/fifo_device.h"
#include "csrc/fifo/host_fifo.h"

namespace uccl::fifo {
namespace {

Command CountOf(uint32_t channel, uint32_t counter, uint32_t amount) {
  Command c;
  c.kind = CommandKind::kCount;
  c.channel = channel;
  c.counter = counter;
  c.amount = amount;
  return c;
}

Command Decode(const CommandWords& words) {
  Command command;
  EXPECT_EQ(DecodeCommand(words, &command), CommandFault::kNone);
  return command;
}

std::unique_ptr<HostFifo> MakeFifo(size_t capacity) {
  auto fifo = HostFifo::Make(capacity);
  EXPECT_TRUE(fifo.ok());
  return std::move(fifo.value());
}

TEST(HostFifo, Make_BadCapacityIsRefused) {
  for (const size_t capacity : {size_t{0}, HostFifo::kMaxCapacity + 1}) {
    const auto fifo = HostFifo::Make(capacity);
    ASSERT_FALSE(fifo.ok());
    EXPECT_EQ(fifo.status().code, StatusCode::kInvalidArgument);
    EXPECT_NE(fifo.status().detail.find(std::to_string(capacity)), std::string::npos);
  }
}

TEST(Fifo, Poll_EmptyGivesNothing) {
  const auto fifo = MakeFifo(4);
  FifoConsumer consumer(fifo->slots(), fifo->control());
  std::vector<CommandWords> out(8);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(consumer.Poll(out), 0u);
  EXPECT_EQ(fifo->control()->tail, 0u);
}

// Fills, drains, and goes on, so that the place and the phase wrap many times.
TEST(Fifo, Poll_KeepsOrderAcrossLapsAtAnyCapacity) {
  for (const size_t capacity : {1, 2, 3, 5, 7, 8, 24, 100}) {
    const auto fifo = MakeFifo(capacity);
    FifoConsumer consumer(fifo->slots(), fifo->control());
    uint32_t pushed = 0, taken = 0;
    std::vector<CommandWords> out(capacity + 1);
    for (int round = 0; round < 50; ++round) {
      // What fits at least: up to a quarter may be taken but not yet published.
      const size_t room = capacity - (capacity + 3) / 4 + 1;
      for (size_t i = 0; i < room; ++i) {
        ASSERT_EQ(Push(fifo->view(), CountOf(0, pushed, pushed + 1)), PushOutcome::kPushed);
        ++pushed;
      }
      const size_t count = consumer.Poll(out);
      ASSERT_EQ(count, room) << "capacity " << capacity;
      for (size_t i = 0; i < count; ++i, ++taken) {
        ASSERT_EQ(Decode(out[i]), CountOf(0, taken, taken + 1)) << "capacity " << capacity;
      }
      ASSERT_EQ(consumer.Poll(out), 0u);
    }
    EXPECT_EQ(consumer.taken(), pushed);
  }
}

TEST(Fifo, Push_RefusesWhatCannotBeEncoded) {
  const auto fifo = MakeFifo(2);
  EXPECT_EQ(Push(fifo->view(), CountOf(kMaxChannel + 1, 0, 1)), PushOutcome::kRefused);
  EXPECT_EQ(*fifo->view().head, 0u) << "a number without a command would stop the FIFO";
  Command c = CountOf(0, 0, 0);
  c.bytes = 8;
  EXPECT_EQ(PushWriteCount(fifo->view(), c), PushOutcome::kRefused);
  EXPECT_EQ(*fifo->view().head, 0u);
}

TEST(Fifo, PushWriteCount_UsesOneCommandWhereItFitsElseTwo) {
  const auto fifo = MakeFifo(8);
  FifoConsumer consumer(fifo->slots(), fifo->control());
  Command c;
  c.peer = 5;
  c.channel = 3;
  c.bytes = kMaxWriteCountBytes;
  c.source_offset = 32;
  c.destination_offset = 48;
  c.counter = 9;
  c.amount = kMaxWriteCountAmount;
  ASSERT_EQ(PushWriteCount(fifo->view(), c), PushOutcome::kPushed);
  for (const int field : {0, 1, 2}) {
    Command larger = c;
    if (field == 0) larger.bytes += 1;
    if (field == 1) larger.counter = kMaxWriteCountCounter + 1;
    if (field == 2) larger.amount += 1;
    ASSERT_EQ(PushWriteCount(fifo->view(), larger), PushOutcome::kPushed);
    std::vector<CommandWords> out(8);
    const size_t single = field == 0 ? 1 : 0;
    ASSERT_EQ(consumer.Poll(out), single + 2);
    if (single == 1) {
      const Command one = Decode(out[0]);
      EXPECT_EQ(one.kind, CommandKind::kWriteCount);
      EXPECT_EQ(one.bytes, kMaxWriteCountBytes);
    }
    const Command write = Decode(out[single]), count = Decode(out[single + 1]);
    EXPECT_EQ(write.kind, CommandKind::kWrite);
    EXPECT_EQ(write.bytes, larger.bytes);
    EXPECT_EQ(write.source_offset, 32u);
    EXPECT_EQ(write.destination_offset, 48u);
    EXPECT_EQ(count.kind, CommandKind::kCount);
    EXPECT_EQ(count.peer, 5u);
    EXPECT_EQ(count.channel, 3u);
    EXPECT_EQ(count.counter, larger.counter);
    EXPECT_EQ(count.amount, larger.amount);
  }
}

TEST(Fifo, Push_WaitsWhileFullAndGoesOnWhenRoomIsPublished) {
  const auto fifo = MakeFifo(2);
  FifoConsumer consumer(fifo->slots(), fifo->control());
  std::atomic<int> pushed{0};
  std::thread producer([&] {
    for (uint32_t i = 0; i < 3; ++i) {
      EXPECT_EQ(Push(fifo->view(), CountOf(0, i, 1)), PushOutcome::kPushed);
      pushed.fetch_add(1);
    }
  });
  // The third number is handed out, its slot is not.
  NativeMemory memory;
  memory.WaitUntil([&] { return memory.LoadAcquireDevice(fifo->view().head) == 3; });
  EXPECT_EQ(pushed.load(), 2);
  std::vector<CommandWords> out(1);
  for (uint32_t i = 0; i < 3; ++i) {
    memory.WaitUntil([&] { return consumer.Poll(out) == 1; });
    EXPECT_EQ(Decode(out[0]).counter, i);
  }
  producer.join();
  EXPECT_EQ(pushed.load(), 3);
}

TEST(Fifo, Stop_ReleasesProducersThatFoundItFull) {
  const auto fifo = MakeFifo(3);
  FifoConsumer consumer(fifo->slots(), fifo->control());
  for (uint32_t i = 0; i < 3; ++i) {
    ASSERT_EQ(Push(fifo->view(), CountOf(0, i, 1)), PushOutcome::kPushed);
  }
  std::vector<std::thread> producers;
  std::atomic<int> stopped{0};
  for (int i = 0; i < 4; ++i) {
    producers.emplace_back([&] {
      if (Push(fifo->view(), CountOf(0, 0, 1)) == PushOutcome::kStopped) stopped.fetch_add(1);
    });
  }
  consumer.Stop();
  for (std::thread& producer : producers) producer.join();
  EXPECT_EQ(stopped.load(), 4);
  std::vector<CommandWords> out(8);
  EXPECT_EQ(consumer.Poll(out), 3u) << "what was pushed before can still be taken";
}

// Many producers, small FIFOs. Each command names a cell of plain memory that its producer wrote
// before the push; the consumer reads it, which ThreadSanitizer checks.
TEST(Fifo, Hammer_EveryCommandOnceInOrderWithItsData) {
  constexpr int kProducers = 4;
  for (const size_t capacity : {1, 3, 64, 1000}) {
    // Small ones make every push wait for the consumer.
    const uint32_t kEach = capacity < 8 ? 400 : 4000;
    const auto fifo = MakeFifo(capacity);
    FifoConsumer consumer(fifo->slots(), fifo->control());
    std::vector<std::vector<uint32_t>> data(kProducers, std::vector<uint32_t>(kEach));
    std::vector<std::thread> producers;
    for (int p = 0; p < kProducers; ++p) {
      producers.emplace_back([&, p] {
        for (uint32_t i = 0; i < kEach; ++i) {
          data[p][i] = i * 7 + p;
          const auto outcome = Push(fifo->view(), CountOf(uint32_t(p), i, i + 1));
          if (outcome != PushOutcome::kPushed) return;
        }
      });
    }
    std::vector<uint32_t> next(kProducers);
    std::vector<CommandWords> out(37);
    NativeMemory memory;
    bool right = true;
    while (consumer.taken() < uint64_t{kProducers} * kEach) {
      size_t count = 0;
      memory.WaitUntil([&] { return (count = consumer.Poll(out)) > 0; });
      for (size_t i = 0; i < count; ++i) {
        const Command c = Decode(out[i]);
        right &= c.counter == next[c.channel] && c.amount == c.counter + 1 &&
                 data[c.channel][c.counter] == c.counter * 7 + c.channel;
        ++next[c.channel];
      }
    }
    for (std::thread& producer : producers) producer.join();
    EXPECT_TRUE(right) << "capacity " << capacity;
    EXPECT_EQ(next, std::vector<uint32_t>(kProducers, kEach));
    EXPECT_EQ(consumer.Poll(out), 0u);
  }
}

}  // namespace
}  // namespace uccl::fifo
