// One-sided puts through engines, over the network and over shared memory: the receiving sink posts
// the buffer when it hears of the arrival, straight from the callback.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "csrc/engine/engine.h"
#include "csrc/engine/testing/cluster.h"

namespace uccl::engine {
namespace {

using testing::Cluster;
using testing::Pattern;

core::MessageInfo Put(uint64_t number, size_t size) {
  core::MessageInfo info;
  info.tag = {core::kPutTagHi, number};
  info.digest = number * 3;
  info.size_bytes = size;
  info.note[31] = static_cast<std::byte>(number);
  return info;
}

struct Way {
  const char* name;
  bool shared;
  int engines;
};

class Puts : public ::testing::TestWithParam<Way> {
 protected:
  static Config Settings() {
    Config config;
    config.shared_memory = GetParam().shared ? "on" : "off";
    config.engines = GetParam().engines;
    return config;
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, Puts,
                         ::testing::Values(Way{"Network", false, 1}, Way{"TwoEngines", false, 2},
                                           Way{"SharedMemory", true, 1}),
                         [](const auto& info) { return info.param.name; });

// Receives every put into a buffer of its own, and sends as any other node.
class Receiver final : public EngineSink {
 public:
  void OnArrival(ProcessId peer, const core::MessageInfo& info) override {
    std::vector<std::byte>* buffer = nullptr;
    {
      std::lock_guard lock(mutex_);
      buffer = &buffers_[info.tag.lo];
      announced_ += buffer->empty() ? 1 : 1000;
      buffer->resize(info.size_bytes + 1);  // never empty, so that a second time shows
    }
    engine->PostRecv(peer, info, MutableBytes(*buffer).first(info.size_bytes), info.tag.lo);
  }
  void OnMessage(ProcessId, const core::Event& event) override {
    std::lock_guard lock(mutex_);
    if (event.status.ok()) ++done_;
    changed_.notify_all();
  }
  void OnControl(ProcessId, const std::string&) override {}
  void OnPeerLost(ProcessId, const Status&) override {}

  bool Wait(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return done_ >= count; });
  }
  std::vector<std::byte> Take(uint64_t number) {
    std::lock_guard lock(mutex_);
    std::vector<std::byte> bytes = buffers_[number];
    if (!bytes.empty()) bytes.pop_back();
    return bytes;
  }
  size_t announced() {
    std::lock_guard lock(mutex_);
    return announced_;
  }
  std::unique_ptr<Engine> engine;

 private:
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::map<uint64_t, std::vector<std::byte>> buffers_;
  size_t announced_ = 0, done_ = 0;
};

TEST_P(Puts, AreReceivedFromTheCallback) {
  Receiver nodes[2];
  std::vector<std::string> addresses;
  for (Receiver& node : nodes) {
    node.engine = std::move(Engine::Start(Settings(), &node).value());
    addresses.push_back(node.engine->LocalAddress());
  }
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(nodes[i].engine->Connect(ProcessId{i}, addresses, 42).ok());
  }
  std::vector<std::vector<std::byte>> data(1);
  for (uint64_t number = 1; number <= 200; ++number) {
    const size_t size = number % 20 == 0 ? 300'000 + number : number * 131 % 20'000;
    data.push_back(Pattern(size, number));
  }
  for (uint64_t number = 1; number < data.size(); ++number) {
    nodes[0].engine->Send(ProcessId{1}, Put(number, data[number].size()), data[number], number);
  }
  ASSERT_TRUE(nodes[1].Wait(data.size() - 1));
  ASSERT_TRUE(nodes[0].Wait(data.size() - 1));
  EXPECT_EQ(nodes[1].announced(), data.size() - 1);
  for (uint64_t number = 1; number < data.size(); ++number) {
    ASSERT_EQ(nodes[1].Take(number), data[number]) << number;
  }
  std::thread other([&] { (void)nodes[1].engine->Shutdown(std::chrono::seconds(20)); });
  EXPECT_TRUE(nodes[0].engine->Shutdown(std::chrono::seconds(20)).ok());
  other.join();
}

TEST_P(Puts, AreAnnouncedOnceAndWaitForTheirReceive) {
  Cluster cluster(2, Settings());
  ASSERT_TRUE(cluster.Connect());
  const std::vector<std::byte> data = Pattern(100'000, 1);
  std::vector<std::byte> small(10), large(data.size());
  cluster[0].engine->Send(ProcessId{1}, Put(1, small.size()), Bytes(data).first(10), 1);
  cluster[0].engine->Send(ProcessId{1}, Put(2, large.size()), data, 2);
  cluster[0].engine->Send(ProcessId{1}, Put(3, 10), Bytes(data).first(10), 3);
  ASSERT_TRUE(cluster[1].sink.WaitArrivals(3));
  for (const UnexpectedMessage& arrival : cluster[1].sink.arrivals()) {
    EXPECT_EQ(arrival.peer, ProcessId{0});
    EXPECT_EQ(arrival.info.note, Put(arrival.info.tag.lo, 0).note);
    EXPECT_EQ(arrival.info.digest, arrival.info.tag.lo * 3);
  }
  // The third is not wanted.
  std::atomic<bool> dropped{false};
  cluster[1].engine->Cancel({{ProcessId{0}, false, 0, Put(3, 10).tag}}, [&] { dropped = true; });
  cluster[1].engine->PostRecv(ProcessId{0}, Put(1, small.size()), small, 11);
  cluster[1].engine->PostRecv(ProcessId{0}, Put(2, large.size()), large, 12);
  ASSERT_TRUE(cluster[1].sink.WaitTokens({11, 12}));
  ASSERT_TRUE(cluster[0].sink.WaitTokens({1, 2, 3}));
  EXPECT_TRUE(std::ranges::equal(small, Bytes(data).first(10)));
  EXPECT_EQ(large, data);
  EXPECT_EQ(cluster[1].sink.arrivals().size(), 3u);
  cluster.ShutdownAll();
  EXPECT_TRUE(dropped);
}

}  // namespace
}  // namespace uccl::engine
