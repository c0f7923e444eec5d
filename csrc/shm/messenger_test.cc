// Several messengers in one process and in several, with their threads: polling and sleeping, many
// threads at once, shutdown, and peers that are killed or stopped.
#include "csrc/shm/messenger.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/base/cores.h"
#include "csrc/shm/testing/pair.h"

namespace uccl::shm {
namespace {

using testing::Info;
using testing::Pattern;

class Recorder final : public Sink {
 public:
  void OnMessage(ProcessId, const core::Event& event) override {
    std::lock_guard lock(mutex_);
    if (!events_.emplace(event.token, event).second) ++duplicates_;
    changed_.notify_all();
  }
  void OnControl(ProcessId, const std::string& control) override {
    std::lock_guard lock(mutex_);
    controls_.push_back(control);
  }
  void OnArrival(ProcessId, const core::MessageInfo& info) override {
    std::lock_guard lock(mutex_);
    arrivals_.push_back(info);
    changed_.notify_all();
  }
  bool WaitArrivals(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return arrivals_.size() >= count; });
  }
  void OnPeerLost(ProcessId peer, const Status& status) override {
    std::lock_guard lock(mutex_);
    controls_before_loss_ = controls_.size();
    lost_.emplace_back(peer, status);
    changed_.notify_all();
  }
  bool Wait(uint64_t token) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return events_.contains(token); });
  }
  bool WaitLost() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return !lost_.empty(); });
  }
  bool Has(uint64_t token) const {
    std::lock_guard lock(mutex_);
    return events_.contains(token);
  }
  Status StatusOf(uint64_t token) const {
    std::lock_guard lock(mutex_);
    return events_.at(token).status;
  }
  std::vector<std::pair<ProcessId, Status>> lost() const {
    std::lock_guard lock(mutex_);
    return lost_;
  }
  std::vector<std::string> controls() const {
    std::lock_guard lock(mutex_);
    return controls_;
  }
  size_t controls_before_loss() const {
    std::lock_guard lock(mutex_);
    return controls_before_loss_;
  }
  int duplicates() const {
    std::lock_guard lock(mutex_);
    return duplicates_;
  }

 private:
  static constexpr std::chrono::seconds kPatience{60};
  mutable std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::map<uint64_t, core::Event> events_;
  std::vector<core::MessageInfo> arrivals_;
  std::vector<std::pair<ProcessId, Status>> lost_;
  std::vector<std::string> controls_;
  size_t controls_before_loss_ = 0;
  int duplicates_ = 0;
};

class Group final {
 public:
  explicit Group(size_t size, const Config& config = {}) : sinks_(size) {
    std::vector<std::string> addresses;
    for (size_t i = 0; i < size; ++i) {
      sinks_[i] = std::make_unique<Recorder>();
      auto made = Messenger::Start(config, sinks_[i].get());
      EXPECT_TRUE(made.ok()) << made.status().ToString();
      messengers_.push_back(std::move(made.value()));
      addresses.push_back(messengers_[i]->LocalAddress());
    }
    for (size_t i = 0; i < size; ++i) {
      const Status status = messengers_[i]->Connect(Id(i), addresses, 3);
      EXPECT_TRUE(status.ok()) << status.ToString();
    }
  }
  static ProcessId Id(size_t i) { return ProcessId{static_cast<int32_t>(i)}; }
  Messenger& operator[](size_t i) { return *messengers_[i]; }
  Recorder& sink(size_t i) { return *sinks_[i]; }
  void ShutdownAll() {
    std::vector<std::thread> threads;
    for (auto& messenger : messengers_) {
      threads.emplace_back([&messenger] {
        const Status status = messenger->Shutdown(std::chrono::seconds(60));
        EXPECT_TRUE(status.ok()) << status.ToString();
      });
    }
    for (std::thread& t : threads) t.join();
  }

 private:
  std::vector<std::unique_ptr<Recorder>> sinks_;
  std::vector<std::unique_ptr<Messenger>> messengers_;
};

struct Mode {
  const char* name;
  bool one_copy, at_once, poll;
};
class Messengers : public ::testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(Ways, Messengers,
                         ::testing::Values(Mode{"OneCopyOwn", true, false, false},
                                           Mode{"OneCopyPolled", true, false, true},
                                           Mode{"TwoCopiesOwn", false, false, false},
                                           Mode{"TwoCopiesPolled", false, false, true},
                                           Mode{"AtOnceOwn", true, true, false},
                                           Mode{"AtOncePolled", true, true, true}),
                         [](const auto& info) { return info.param.name; });

// A peer that sleeps because it waits for nothing hears of it all the same, and one that waits
// hears it before the loss.
TEST(Messenger, WhatIsSaidBeforeALeaveIsHeardBeforeTheLoss) {
  for (const bool waits : {false, true}) {
    Group group(2);
    std::vector<std::byte> buffer(100);
    if (waits) group[1].PostRecv(Group::Id(0), Info(1, 100), buffer, 11);
    for (const char* text : {"one", "two"}) group[0].SendControl(Group::Id(1), text);
    EXPECT_TRUE(group[0].Shutdown(std::chrono::seconds(60)).ok());
    EXPECT_EQ(group.sink(1).controls(), (std::vector<std::string>{"one", "two"}));
    if (waits) {
      ASSERT_TRUE(group.sink(1).WaitLost());
      EXPECT_EQ(group.sink(1).controls_before_loss(), 2u);
    }
    EXPECT_TRUE(group[1].Shutdown(std::chrono::seconds(60)).ok());
  }
}

// The system moves them apart as well, but later, and either of them.
TEST(Messenger, OfTwoThatPollOnOneCoreTheSecondMovesToAnother) {
  const std::vector<int> cores = AllowedCores();
  if (cores.size() < 2) GTEST_SKIP() << "one core";
  Group group(2);
  std::atomic<bool> apart{false};
  const auto poll = [&](size_t i) {
    ASSERT_TRUE(MoveToCore(cores[0]));
    Messenger::PollScope scope(&group[i]);
    while (!apart) {
      if (!group[i].Poll()) scope.Yield();
      if (i == 1 && CurrentCore() != cores[0]) apart = true;
    }
    EXPECT_EQ(AllowedCores(), cores);
  };
  std::thread first([&] { poll(0); });
  poll(1);
  first.join();
  EXPECT_TRUE(group[0].Shutdown(std::chrono::seconds(60)).ok());
  EXPECT_TRUE(group[1].Shutdown(std::chrono::seconds(60)).ok());
}

// Every process sends to every other one, from two threads each, messages of many sizes.
TEST_P(Messengers, EverybodyToEverybody) {
  Config config;
  config.shm_one_copy = GetParam().one_copy;
  config.shm_eager_bytes = GetParam().at_once ? 4 << 20 : 8192;
  config.shm_ring_bytes = 16384;
  constexpr size_t kProcesses = 3, kMessages = 60;
  Group group(kProcesses, config);
  const auto size_of = [](uint64_t name) {
    return name % 13 == 0 ? 1'200'000 + name : name * 97 % 9000;
  };
  const auto name_of = [](size_t from, size_t to, size_t i) {
    return (from * kProcesses + to) * kMessages + i + 1;
  };
  std::vector<std::vector<std::byte>> data(kProcesses * kProcesses * kMessages + 1),
      buffers(data.size());
  for (uint64_t name = 1; name < data.size(); ++name) {
    data[name] = Pattern(size_of(name), name);
    buffers[name].resize(size_of(name));
  }
  std::vector<std::thread> threads;
  for (size_t self = 0; self < kProcesses; ++self) {
    for (const bool sends : {true, false}) {
      threads.emplace_back([&, self, sends] {
        std::optional<Messenger::PollScope> scope;
        if (GetParam().poll) scope.emplace(&group[self]);
        std::vector<uint64_t> tokens;
        for (size_t i = 0; i < kMessages; ++i) {
          for (size_t other = 0; other < kProcesses; ++other) {
            if (other == self) continue;
            const uint64_t name = sends ? name_of(self, other, i) : name_of(other, self, i);
            if (sends) {
              group[self].Send(Group::Id(other), Info(name, data[name].size()), data[name], name);
            } else {
              group[self].PostRecv(Group::Id(other), Info(name, data[name].size()), buffers[name],
                                   name);
            }
            tokens.push_back(name);
          }
        }
        for (const uint64_t token : tokens) {
          const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
          while (GetParam().poll && !group.sink(self).Has(token) &&
                 std::chrono::steady_clock::now() < give_up) {
            if (!group[self].Poll()) std::this_thread::yield();
          }
          EXPECT_TRUE(group.sink(self).Wait(token)) << token;
        }
      });
    }
  }
  for (std::thread& t : threads) t.join();
  for (size_t from = 0; from < kProcesses; ++from) {
    for (size_t to = 0; to < kProcesses; ++to) {
      for (size_t i = 0; from != to && i < kMessages; ++i) {
        const uint64_t name = name_of(from, to, i);
        ASSERT_EQ(buffers[name], data[name]) << name;
      }
    }
    EXPECT_EQ(group.sink(from).duplicates(), 0);
  }
  EXPECT_EQ(group[0].Stats().size(), kProcesses - 1);
  EXPECT_EQ(group[0].Stats()[1].one_copy, GetParam().one_copy);
  group.ShutdownAll();
  for (size_t i = 0; i < kProcesses; ++i) EXPECT_TRUE(group.sink(i).lost().empty());
}

core::MessageInfo Put(uint64_t name, size_t size) {
  core::MessageInfo info = Info(name, size);
  info.tag = {core::kPutTagHi, name};
  return info;
}

// Nothing is outstanding at the receiver, so its thread sleeps without a timeout: only a ring of
// the sender's wakes it, also when the last look into the rings was another thread's.
TEST(Messenger, APutWakesAProcessThatWaitsForNothing) {
  Group group(2);
  const std::vector<std::byte> data = Pattern(100'000, 1);
  size_t count = 0;
  for (uint64_t name = 1; name <= 20; ++name) {
    const size_t size = name % 2 == 0 ? 40 : data.size();
    if (name % 3 == 0) {
      const Messenger::PollScope scope(&group[1]);
      group[1].Poll();
    }
    if (name % 5 == 0) {
      // In the ring while a thread looks there, found by it or by the own one afterwards.
      const Messenger::PollScope scope(&group[1]);
      group[0].Send(Group::Id(1), Put(name, size), Bytes(data).first(size), name);
    } else {
      group[0].Send(Group::Id(1), Put(name, size), Bytes(data).first(size), name);
    }
    ASSERT_TRUE(group.sink(1).WaitArrivals(++count)) << name;
    std::vector<std::byte> buffer(size);
    group[1].PostRecv(Group::Id(0), Put(name, size), buffer, name);
    ASSERT_TRUE(group.sink(1).Wait(name) && group.sink(0).Wait(name));
    EXPECT_TRUE(std::ranges::equal(buffer, Bytes(data).first(size)));
  }
  group.ShutdownAll();
}

TEST(Messenger, APollerThatLeavesHandsOverToTheThread) {
  Group group(2);
  std::vector<std::byte> buffer(4 << 20);
  const std::vector<std::byte> data = Pattern(buffer.size(), 1);
  for (uint64_t i = 1; i <= 200; ++i) {
    const size_t size = i % 10 == 0 ? buffer.size() : 100;
    {
      const Messenger::PollScope scope(&group[1]);
      group[1].PostRecv(Group::Id(0), Info(i, size), MutableBytes(buffer).first(size), i);
      group[0].Send(Group::Id(1), Info(i, size), Bytes(data).first(size), i);
      if (i % 3 == 0) group[1].Poll();
    }
    ASSERT_TRUE(group.sink(1).Wait(i)) << i;
    ASSERT_TRUE(group.sink(0).Wait(i)) << i;
  }
  group.ShutdownAll();
}

TEST(Messenger, Idle_CostsNoCpu) {
  Config config;
  config.spin_us = 0;
  Group group(2, config);
  const auto cpu = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return std::chrono::seconds(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           std::chrono::microseconds(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  };
  // With a receive outstanding the thread looks after its peer now and then; that is all.
  std::vector<std::byte> buffer(8);
  group[0].PostRecv(Group::Id(1), Info(1, 8), buffer, 1);
  const auto before = cpu();
  std::mutex mutex;
  std::condition_variable never;
  std::unique_lock lock(mutex);
  never.wait_for(lock, std::chrono::milliseconds(600), [] { return false; });
  EXPECT_LT(cpu() - before, std::chrono::milliseconds(200));
}

TEST(Messenger, Shutdown_WaitsForSendsAndAnswersLaterCalls) {
  Group group(2);
  const std::vector<std::byte> data = Pattern(3 << 20, 1);
  std::vector<std::byte> buffer(data.size());
  group[0].Send(Group::Id(1), Info(1, data.size()), data, 1);
  std::thread receiver([&] {
    group[1].PostRecv(Group::Id(0), Info(1, data.size()), buffer, 2);
    EXPECT_TRUE(group.sink(1).Wait(2));
  });
  EXPECT_TRUE(group[0].Shutdown(std::chrono::seconds(60)).ok());
  receiver.join();
  EXPECT_EQ(buffer, data);
  EXPECT_TRUE(group.sink(0).StatusOf(1).ok());
  group[0].Send(Group::Id(1), Info(2, 8), Bytes(data).first(8), 3);
  ASSERT_TRUE(group.sink(0).Has(3)) << "answered on the calling thread";
  EXPECT_EQ(group.sink(0).StatusOf(3).code, StatusCode::kAborted);
  EXPECT_TRUE(group[0].Cancel(Group::Id(1), true, 3, nullptr));
  EXPECT_TRUE(group[1].Shutdown(std::chrono::seconds(1)).ok());
  EXPECT_TRUE(group.sink(1).lost().empty());
}

TEST(Messenger, Shutdown_NamesWhoDidNotTakeItsMessage) {
  Group group(2);
  const std::vector<std::byte> data = Pattern(1'000'000, 1);
  group[0].Send(Group::Id(1), Info(1, data.size()), data, 1);
  const Status status = group[0].Shutdown(FromMillis(50));
  EXPECT_EQ(status.code, StatusCode::kPeerTimeout);
  EXPECT_NE(status.detail.find("process 1"), std::string::npos) << status.detail;
  EXPECT_EQ(group.sink(0).StatusOf(1).code, StatusCode::kAborted);
}

TEST(Messenger, ProcessesOfOtherHostsAndWithoutSharedMemoryAreNotReached) {
  Recorder sink;
  auto made = Messenger::Start({}, &sink);
  ASSERT_TRUE(made.ok());
  Address other = DecodeAddress(made.value()->LocalAddress()).value();
  other.host ^= 1;
  ASSERT_TRUE(
      made.value()
          ->Connect(ProcessId{1}, {"", made.value()->LocalAddress(), EncodeAddress(other)}, 1)
          .ok());
  EXPECT_EQ(made.value()->peers(), 0);
  for (const int peer : {0, 1, 2, 3, -1}) EXPECT_FALSE(made.value()->Reaches(ProcessId{peer}));
  EXPECT_FALSE(made.value()->Poll());
}

TEST(Messenger, Connect_ErrorsNameTheProcessAndTheFix) {
  Recorder sink;
  auto made = Messenger::Start({}, &sink);
  Address gone = DecodeAddress(made.value()->LocalAddress()).value();
  gone.fd = 1'000'000;
  const Status status =
      made.value()->Connect(ProcessId{0}, {made.value()->LocalAddress(), EncodeAddress(gone)}, 1);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.process, 1);
  EXPECT_NE(status.detail.find("JAX_UCCL_SHARED_MEMORY=off"), std::string::npos) << status.detail;
  const Status bad = made.value()->Connect(ProcessId{0}, {made.value()->LocalAddress(), "?"}, 1);
  EXPECT_EQ(bad.code, StatusCode::kInvalidArgument);
  EXPECT_EQ(bad.process, 1);
}

// A second process that answers nothing by itself.
class Child : public ::testing::Test {
 protected:
  void Begin(const Config& config) {
    int up[2], down[2];
    ASSERT_EQ(pipe(up), 0);
    ASSERT_EQ(pipe(down), 0);
    child_ = fork();  // before this process has threads
    ASSERT_GE(child_, 0);
    if (child_ == 0) _exit(Run(config, up[1], down[0]));
    auto made = Messenger::Start(config, &sink_);
    ASSERT_TRUE(made.ok());
    messenger_ = std::move(made.value());
    const std::string own = messenger_->LocalAddress();
    std::string theirs(300, '\0');
    const ssize_t got = read(up[0], theirs.data(), theirs.size());
    ASSERT_GT(got, 0);
    theirs.resize(static_cast<size_t>(got));
    ASSERT_EQ(write(down[1], own.data(), own.size()), static_cast<ssize_t>(own.size()));
    ASSERT_TRUE(messenger_->Connect(ProcessId{0}, {own, theirs}, 1).ok());
    char ready = 0;
    ASSERT_EQ(read(up[0], &ready, 1), 1);
    for (const int fd : {up[0], up[1], down[0], down[1]}) close(fd);
  }
  static int Run(const Config& config, int up, int down) {
    Recorder sink;
    auto made = Messenger::Start(config, &sink);
    if (!made.ok()) return 1;
    const std::string own = made.value()->LocalAddress();
    if (write(up, own.data(), own.size()) < 0) return 2;
    std::string theirs(300, '\0');
    const ssize_t got = read(down, theirs.data(), theirs.size());
    if (got <= 0) return 3;
    theirs.resize(static_cast<size_t>(got));
    if (!made.value()->Connect(ProcessId{1}, {theirs, own}, 1).ok()) return 4;
    if (write(up, "!", 1) != 1) return 5;
    // One message each way, then silence.
    std::vector<std::byte> buffer(2 << 20);
    made.value()->PostRecv(ProcessId{0}, Info(1, buffer.size()), buffer, 1);
    if (!sink.Wait(1)) return 6;
    made.value()->Send(ProcessId{0}, Info(2, buffer.size()), buffer, 2);
    while (true) pause();
  }
  void TearDown() override {
    messenger_.reset();
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }

  pid_t child_ = -1;
  Recorder sink_;
  std::unique_ptr<Messenger> messenger_;
};

class ChildThatIsSentAll : public Child, public ::testing::WithParamInterface<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Eager, ChildThatIsSentAll, ::testing::Values(8192, 4 << 20),
                         [](const auto& info) { return info.param > 8192 ? "AtOnce" : "Offered"; });

TEST_P(ChildThatIsSentAll, ExchangesThenIsKilled) {
  Config config;
  config.shm_eager_bytes = GetParam();
  ASSERT_NO_FATAL_FAILURE(Begin(config));
  const std::vector<std::byte> data = Pattern(2 << 20, 1);
  std::vector<std::byte> buffer(data.size()), rest(100);
  messenger_->PostRecv(ProcessId{1}, Info(2, buffer.size()), buffer, 2);
  messenger_->Send(ProcessId{1}, Info(1, data.size()), data, 1);
  ASSERT_TRUE(sink_.Wait(1) && sink_.Wait(2));
  EXPECT_EQ(buffer, data);
  messenger_->PostRecv(ProcessId{1}, Info(3, 100), rest, 3);
  messenger_->Send(ProcessId{1}, Info(4, data.size()), data, 4);
  ASSERT_EQ(kill(child_, SIGKILL), 0);
  ASSERT_TRUE(sink_.Wait(3) && sink_.Wait(4) && sink_.WaitLost());
  EXPECT_EQ(sink_.StatusOf(3).code, StatusCode::kPeerLost);
  EXPECT_EQ(sink_.StatusOf(3).process, 1);
  EXPECT_EQ(sink_.StatusOf(4).code, StatusCode::kPeerLost);
  EXPECT_NE(sink_.StatusOf(3).detail.find("died"), std::string::npos);
  EXPECT_EQ(sink_.lost().size(), 1u);
  messenger_->Send(ProcessId{1}, Info(5, 8), Bytes(data).first(8), 5);
  EXPECT_TRUE(sink_.Wait(5));
  EXPECT_TRUE(messenger_->Shutdown(std::chrono::seconds(5)).ok());
  EXPECT_EQ(sink_.duplicates(), 0);
}

// A receive that was posted by a thread that polled, and left, is looked after all the same.
TEST_F(Child, KilledAfterAPollerLeft_IsLost) {
  ASSERT_NO_FATAL_FAILURE(Begin({}));
  std::vector<std::byte> buffer(100);
  {
    const Messenger::PollScope scope(messenger_.get());
    messenger_->PostRecv(ProcessId{1}, Info(3, 100), buffer, 3);
    messenger_->Poll();
  }
  ASSERT_EQ(kill(child_, SIGKILL), 0);
  ASSERT_TRUE(sink_.Wait(3));
  EXPECT_EQ(sink_.StatusOf(3).code, StatusCode::kPeerLost);
}

TEST_F(Child, Stopped_IsLostAtTheSilenceLimit) {
  Config config;
  config.peer_silence_ms = 400;
  ASSERT_NO_FATAL_FAILURE(Begin(config));
  ASSERT_EQ(kill(child_, SIGSTOP), 0);
  std::vector<std::byte> buffer(100);
  const auto start = std::chrono::steady_clock::now();
  messenger_->PostRecv(ProcessId{1}, Info(9, 100), buffer, 9);
  ASSERT_TRUE(sink_.Wait(9));
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(350));
  EXPECT_NE(sink_.StatusOf(9).detail.find("peer_silence_ms"), std::string::npos)
      << sink_.StatusOf(9).ToString();
}

TEST_F(Child, Alive_IsNotLostWhileItOwesAMessage) {
  Config config;
  config.peer_silence_ms = 300;
  ASSERT_NO_FATAL_FAILURE(Begin(config));
  std::vector<std::byte> buffer(100);
  messenger_->PostRecv(ProcessId{1}, Info(9, 100), buffer, 9);
  std::mutex mutex;
  std::condition_variable never;
  std::unique_lock lock(mutex);
  never.wait_for(lock, std::chrono::milliseconds(1000), [&] { return sink_.Has(9); });
  EXPECT_FALSE(sink_.Has(9));
}

}  // namespace
}  // namespace uccl::shm
