// Engines of one host: what goes over shared memory, what over the network, and that callers cannot
// tell the difference.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/engine/engine.h"
#include "csrc/engine/testing/cluster.h"

namespace uccl::engine {
namespace {

using testing::Cluster;
using testing::Info;
using testing::Pattern;

Config Shared() {
  Config config;
  config.shared_memory = "on";
  return config;
}

uint64_t BytesOverNetwork(Engine* engine) {
  uint64_t bytes = 0;
  for (const auto& [process, peer] : engine->Stats().peers) bytes += peer.payload_bytes_sent;
  return bytes;
}

TEST(SharedMemory, CarriesMessages_AndControlGoesOverTheNetwork) {
  Cluster cluster(3, Shared());
  ASSERT_TRUE(cluster.Connect());
  const std::vector<std::byte> small = Pattern(100, 1), large = Pattern(1'000'000, 2);
  std::vector<std::byte> small_in(small.size()), large_in(large.size());
  for (const size_t from : {0, 2}) {
    Engine& engine = *cluster[from].engine;
    const ProcessId self{static_cast<int32_t>(from)};
    EXPECT_TRUE(engine.Shares(ProcessId{1}) && !engine.Shares(self));
    EXPECT_EQ(engine.LocalProcesses(), 3);
    cluster[1].engine->PostRecv(self, Info(1, small.size()), small_in, 10 * from + 1);
    cluster[1].engine->PostRecv(self, Info(2, large.size()), large_in, 10 * from + 2);
    engine.Send(ProcessId{1}, Info(1, small.size()), small, 1);
    engine.Send(ProcessId{1}, Info(2, large.size()), large, 2);
    engine.SendControl(ProcessId{1}, "hello");
    ASSERT_TRUE(cluster[from].sink.WaitTokens({1, 2}));
    ASSERT_TRUE(cluster[1].sink.WaitTokens({10 * from + 1, 10 * from + 2}));
    EXPECT_EQ(small_in, small);
    EXPECT_EQ(large_in, large);
    EXPECT_LT(BytesOverNetwork(&engine), 1000u);
    EXPECT_EQ(engine.Stats().shared.at(1).bytes_sent, small.size() + large.size());
  }
  EXPECT_TRUE(cluster[1].sink.WaitControls(2));
  cluster.ShutdownAll();
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(cluster[i].sink.lost().empty());
}

TEST(SharedMemory, MessagesBeforeConnectWait) {
  Cluster cluster(2, Shared());
  const std::vector<std::byte> data = Pattern(50'000, 1);
  std::vector<std::byte> buffer(data.size()), other(data.size());
  cluster[1].engine->PostRecv(ProcessId{0}, Info(1, data.size()), buffer, 1);
  cluster[0].engine->Send(ProcessId{1}, Info(1, data.size()), data, 1);
  // Withdrawn before there is anybody to send it to.
  cluster[0].engine->Send(ProcessId{1}, Info(2, data.size()), other, 2);
  std::atomic<bool> freed{false};
  cluster[0].engine->Cancel({{ProcessId{1}, true, 2}}, [&] { freed = true; });
  ASSERT_TRUE(cluster.ConnectOne(0).ok());
  ASSERT_TRUE(cluster.ConnectOne(1).ok());
  ASSERT_TRUE(cluster[0].sink.WaitTokens({1}) && cluster[1].sink.WaitTokens({1}));
  EXPECT_EQ(buffer, data);
  EXPECT_TRUE(freed);
  EXPECT_FALSE(cluster[0].sink.Has(2));
  EXPECT_GT(cluster[0].engine->Stats().shared.at(1).bytes_sent, 0u);
  cluster.ShutdownAll();
}

TEST(SharedMemory, CancelCoversBothWays) {
  Cluster cluster(2, Shared());
  ASSERT_TRUE(cluster.Connect());
  const std::vector<std::byte> data = Pattern(500'000, 1);
  std::vector<std::byte> buffer(data.size());
  Engine& engine = *cluster[0].engine;
  engine.Send(ProcessId{1}, Info(1, data.size()), data, 1);
  engine.PostRecv(ProcessId{1}, Info(2, buffer.size()), buffer, 2);
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  engine.Cancel({{ProcessId{1}, true, 1},
                 {ProcessId{1}, false, 2},
                 {ProcessId{1}, false, 0, Info(3, 8).tag},
                 {ProcessId{7}, true, 9}},
                [&] {
                  std::lock_guard lock(mutex);
                  done = true;
                  changed.notify_all();
                });
  {
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), [&] { return done; }));
  }
  EXPECT_FALSE(cluster[0].sink.Has(1) || cluster[0].sink.Has(2));
  // What the peer sends for the discarded tag is dropped.
  cluster[1].engine->Send(ProcessId{0}, Info(3, 8), Bytes(data).first(8), 3);
  ASSERT_TRUE(cluster[1].sink.WaitTokens({3}));
  cluster.ShutdownAll();
}

TEST(SharedMemory, InspectShowsWhatMetNoReceive) {
  Cluster cluster(2, Shared());
  ASSERT_TRUE(cluster.Connect());
  const std::vector<std::byte> data = Pattern(500, 1);
  cluster[0].engine->Send(ProcessId{1}, Info(5, data.size()), data, 1);
  ASSERT_TRUE(cluster[0].sink.WaitTokens({1}));
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<std::vector<UnexpectedMessage>> seen;
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  // Until the receiver's thread has taken it out of the ring.
  while (std::chrono::steady_clock::now() < give_up) {
    seen.reset();
    cluster[1].engine->Inspect([&](std::vector<UnexpectedMessage> messages) {
      std::lock_guard lock(mutex);
      seen = std::move(messages);
      changed.notify_all();
    });
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), [&] { return seen.has_value(); }));
    if (!seen->empty()) break;
  }
  ASSERT_EQ(seen->size(), 1u);
  EXPECT_EQ((*seen)[0].peer, ProcessId{0});
  EXPECT_EQ((*seen)[0].info.tag, Info(5, 0).tag);
  std::vector<std::byte> buffer(500);
  cluster[1].engine->PostRecv(ProcessId{0}, Info(5, 500), buffer, 2);
  ASSERT_TRUE(cluster[1].sink.WaitTokens({2}));
  EXPECT_EQ(buffer, data);
  cluster.ShutdownAll();
}

TEST(SharedMemory, OneSideWithoutIt_BothUseTheNetwork) {
  testing::RecordingSink sinks[2];
  auto with = Engine::Start(Shared(), &sinks[0]);
  auto without = Engine::Start(testing::OverNetwork(), &sinks[1]);
  ASSERT_TRUE(with.ok() && without.ok());
  const std::vector<std::string> addresses = {with.value()->LocalAddress(),
                                              without.value()->LocalAddress()};
  ASSERT_TRUE(with.value()->Connect(ProcessId{0}, addresses, 1).ok());
  ASSERT_TRUE(without.value()->Connect(ProcessId{1}, addresses, 1).ok());
  EXPECT_FALSE(with.value()->Shares(ProcessId{1}));
  EXPECT_EQ(with.value()->LocalProcesses(), 1);
  EXPECT_EQ(without.value()->Stats().not_shared_because, "shared_memory=off");
  const std::vector<std::byte> data = Pattern(100'000, 1);
  std::vector<std::byte> buffer(data.size());
  without.value()->PostRecv(ProcessId{0}, Info(1, data.size()), buffer, 1);
  with.value()->Send(ProcessId{1}, Info(1, data.size()), data, 1);
  ASSERT_TRUE(sinks[1].WaitTokens({1}));
  EXPECT_EQ(buffer, data);
  EXPECT_GE(BytesOverNetwork(with.value().get()), data.size());
}

TEST(SharedMemory, PeerThatEndsWithoutAWord_IsLostOnce) {
  Cluster cluster(3, Shared());
  ASSERT_TRUE(cluster.Connect());
  std::vector<std::byte> buffer(100);
  for (const size_t end : {0, 2}) {
    cluster[end].engine->PostRecv(ProcessId{1}, Info(1, 100), buffer, 1);
  }
  const std::vector<std::byte> data = Pattern(1'000'000, 1);
  cluster[1].engine->Send(ProcessId{0}, Info(9, data.size()), data, 9);  // nobody takes it
  EXPECT_FALSE(cluster[1].engine->Shutdown(Nanos(0)).ok());
  for (const size_t end : {0, 2}) {
    ASSERT_TRUE(cluster[end].sink.WaitTokens({1}));
    EXPECT_EQ(cluster[end].sink.Get(1).status.code, StatusCode::kPeerLost);
    EXPECT_EQ(cluster[end].sink.Get(1).status.process, 1);
    ASSERT_TRUE(cluster[end].sink.WaitLost(1));
    EXPECT_EQ(cluster[end].sink.lost()[0].peer, ProcessId{1});
  }
  // The others go on.
  std::vector<std::byte> more(1000);
  const std::vector<std::byte> rest = Pattern(1000, 2);
  cluster[0].engine->PostRecv(ProcessId{2}, Info(4, 1000), more, 4);
  cluster[2].engine->Send(ProcessId{0}, Info(4, 1000), rest, 4);
  ASSERT_TRUE(cluster[0].sink.WaitTokens({4}));
  EXPECT_EQ(more, rest);
  EXPECT_TRUE(cluster[0].engine->Shutdown(std::chrono::seconds(5)).ok());
  EXPECT_TRUE(cluster[2].engine->Shutdown(std::chrono::seconds(5)).ok());
  EXPECT_EQ(cluster[0].sink.lost().size(), 1u);
  EXPECT_EQ(cluster[0].sink.duplicates() + cluster[2].sink.duplicates(), 0);
}

TEST(SharedMemory, Setting_IsChecked) {
  testing::RecordingSink sink;
  Config config;
  config.shared_memory = "maybe";
  const Status status = Engine::Start(config, &sink).status();
  EXPECT_EQ(status.code, StatusCode::kInvalidArgument);
  EXPECT_NE(status.detail.find("maybe"), std::string::npos);
}

}  // namespace
}  // namespace uccl::engine
