// Commands out through FIFOs while a consumer takes them, and counters in while a proxy's thread
// raises them, on every launcher.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "csrc/cuda/issue.h"
#include "csrc/cuda/rows.h"
#include "csrc/cuda/testing/launcher.h"
#include "csrc/cuda/testing/pinned_fifo.h"
#include "csrc/cuda/wait.h"
#include "csrc/fifo/native_memory.h"

namespace uccl::cuda {
namespace {

using fifo::Command;
using fifo::CommandKind;

Command Write(uint32_t peer, uint64_t bytes) {
  Command c;
  c.kind = CommandKind::kWrite;
  c.peer = peer;
  c.bytes = bytes;
  return c;
}
Command Count(uint32_t peer, uint32_t amount) {
  Command c;
  c.kind = CommandKind::kCount;
  c.peer = peer;
  c.amount = amount;
  return c;
}

// With everything that goes into it.
struct Queue : PinnedFifo {
  Queue(Launcher* launcher, size_t capacity, const std::vector<Command>& commands)
      : PinnedFifo(launcher, capacity),
        list(launcher->Allocate(commands.size() * sizeof(Command))),
        fault(launcher->Allocate(sizeof(uint64_t))) {
    std::copy(commands.begin(), commands.end(), reinterpret_cast<Command*>(list.get()));
    issue.fifo = view;
    issue.commands = reinterpret_cast<const Command*>(list.get());
    issue.count = static_cast<uint32_t>(commands.size());
    issue.fault = reinterpret_cast<uint64_t*>(fault.get());
    *issue.fault = kNoFault;
  }

  std::shared_ptr<std::byte> list, fault;
  IssueQueue issue;
};

Status RunAll(Launcher* launcher, const std::vector<Queue*>& queues) {
  const auto memory = launcher->Allocate(queues.size() * sizeof(IssueQueue) + 1);
  auto* table = reinterpret_cast<IssueQueue*>(memory.get());
  for (size_t q = 0; q < queues.size(); ++q) new (table + q) IssueQueue(queues[q]->issue);
  IssueParams p;
  p.queues = table;
  p.count = static_cast<uint32_t>(queues.size());
  return launcher->Run(p);
}

TEST(Issue, PushesAllAndKeepsTheOrderOfTheRest) {
  constexpr uint32_t kWrites = 40;
  std::vector<Command> commands;
  for (uint32_t i = 0; i < kWrites; ++i) commands.push_back(Write(i, 100 + i));
  for (uint32_t i = 0; i < 11; ++i) commands.push_back(Count(i, 1 + i));
  for (Launcher* launcher : Launchers()) {
    SCOPED_TRACE(launcher->name());
    std::vector<std::unique_ptr<Queue>> queues;
    std::vector<Queue*> all;
    for (size_t capacity : {1, 3, 64}) {
      queues.push_back(std::make_unique<Queue>(launcher, capacity, commands));
      queues.back()->issue.unordered = kWrites;
      all.push_back(queues.back().get());
    }
    std::thread proxy([&] {
      for (Queue* queue : all) {
        while (queue->taken.size() < commands.size()) {
          for (Queue* any : all) any->Take();
          std::this_thread::yield();
        }
      }
    });
    const Status status = RunAll(launcher, all);
    proxy.join();
    ASSERT_TRUE(status.ok()) << status.ToString();
    for (Queue* queue : all) {
      EXPECT_EQ(*queue->issue.fault, kNoFault);
      ASSERT_EQ(queue->taken.size(), commands.size());
      std::sort(queue->taken.begin(), queue->taken.begin() + kWrites,
                [](const Command& a, const Command& b) { return a.peer < b.peer; });
      EXPECT_TRUE(queue->taken == commands);
    }
  }
}

TEST(Issue, NamesTheFirstCommandThatCannotBe) {
  std::vector<Command> commands = {Write(1, 8), Write(2, 8), Count(1, 1), Count(2, 1)};
  commands[1].peer = fifo::kMaxPeer + 1;
  commands[3].amount = 0;
  for (Launcher* launcher : Launchers()) {
    SCOPED_TRACE(launcher->name());
    Queue queue(launcher, 8, commands);
    queue.issue.unordered = 2;
    ASSERT_TRUE(RunAll(launcher, {&queue}).ok());
    EXPECT_EQ(*queue.issue.fault, 1u);
    queue.Take();
    EXPECT_TRUE((queue.taken == std::vector<Command>{commands[0], commands[2]}));
  }
}

TEST(Issue, EndsWhereTheFifoHasStopped) {
  const std::vector<Command> commands(9, Write(1, 8));
  for (Launcher* launcher : Launchers()) {
    SCOPED_TRACE(launcher->name());
    Queue queue(launcher, 4, commands);
    queue.consumer.Stop();
    ASSERT_TRUE(RunAll(launcher, {&queue}).ok());
    EXPECT_EQ(*queue.issue.fault, 4u);  // what found room was still pushed
    ASSERT_TRUE(RunAll(launcher, {}).ok());
  }
}

// Counters and the rest of WaitParams, in memory that the kernel reaches.
struct Waiting {
  Waiting(Launcher* launcher, const std::vector<uint32_t>& which,
          const std::vector<uint64_t>& thresholds)
      : pinned(launcher->AllocatePinned(64 * 8)), rest(launcher->Allocate(4096)) {
    auto* words = reinterpret_cast<uint64_t*>(pinned.get());
    counters = words, abort = words + 32;
    auto* at = reinterpret_cast<uint64_t*>(rest.get());
    std::copy(thresholds.begin(), thresholds.end(), at);
    std::copy(which.begin(), which.end(), reinterpret_cast<uint32_t*>(at + 64));
    params.counters = counters, params.abort = abort, params.thresholds = at;
    params.which = which.empty() ? nullptr : reinterpret_cast<const uint32_t*>(at + 64);
    params.count = static_cast<uint32_t>(thresholds.size());
    params.outcome = at + 128;
  }
  uint64_t outcome() const { return *params.outcome; }

  std::shared_ptr<std::byte> pinned, rest;
  uint64_t *counters, *abort;
  WaitParams params;
};

TEST(Wait, SeesTheDataThatTheCountersStandFor) {
  for (Launcher* launcher : Launchers()) {
    SCOPED_TRACE(launcher->name());
    Waiting wait(launcher, {5, 0, 9}, {3, 1, 7});
    const auto data = launcher->AllocatePinned(16 * 8);
    auto* cells = reinterpret_cast<uint64_t*>(data.get());
    std::thread proxy([&] {
      fifo::NativeMemory memory;
      for (const auto& [counter, upto] : {std::pair{9, 8}, {5, 3}, {0, 1}}) {
        for (uint64_t value = 1; value <= static_cast<uint64_t>(upto); ++value) {
          cells[counter] = value;  // not atomic: the counter orders it
          if (value == static_cast<uint64_t>(upto))
            memory.StoreReleaseSystem(&wait.counters[counter], value);
        }
      }
    });
    const Status status = launcher->Run(wait.params);
    EXPECT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(wait.outcome(), 0u);
    EXPECT_TRUE(cells[5] == 3 && cells[0] == 1 && cells[9] == 8);
    proxy.join();
  }
}

TEST(Wait, AnAbortEndsItAndIsTold) {
  for (Launcher* launcher : Launchers()) {
    SCOPED_TRACE(launcher->name());
    Waiting wait(launcher, {}, std::vector<uint64_t>(20, 1));
    std::thread watchdog([&] { fifo::NativeMemory().StoreReleaseSystem(wait.abort, 17); });
    EXPECT_TRUE(launcher->Run(wait.params).ok());
    watchdog.join();
    EXPECT_EQ(wait.outcome(), 17u);
    // What has arrived all the same is complete.
    Waiting done(launcher, {}, {1, 1});
    done.counters[0] = done.counters[1] = 1;
    *done.abort = 17;
    EXPECT_TRUE(launcher->Run(done.params).ok());
    EXPECT_EQ(done.outcome(), 0u);
  }
}

TEST(Wait, RefusesWhatCouldNotEnd) {
  uint64_t words[4] = {};
  WaitParams p;
  EXPECT_TRUE(CheckParams(p).ok());  // for nothing
  p.count = 1, p.counters = words, p.thresholds = words + 1, p.outcome = words + 2;
  EXPECT_NE(CheckParams(p).detail.find("abort word"), std::string::npos);
  p.abort = words + 3;
  EXPECT_TRUE(CheckParams(p).ok());
  p.counters = reinterpret_cast<uint64_t*>(reinterpret_cast<std::byte*>(words) + 4);
  EXPECT_NE(CheckParams(p).detail.find("aligned to 8"), std::string::npos);
}

}  // namespace
}  // namespace uccl::cuda
