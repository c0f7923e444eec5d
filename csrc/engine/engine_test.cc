// Tests of csrc/engine/engine.h with several engines in this process over loopback: what works when
// all do their part. engine_failure_test.cc has the rest.
#include "csrc/engine/engine.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "csrc/core/cc/registry.h"
#include "csrc/core/path/path_selector.h"
#include "csrc/engine/limits.h"
#include "csrc/engine/testing/cluster.h"
#include "csrc/wire/packet.h"

namespace uccl::engine {
namespace {

using testing::Cluster;
using testing::Info;
using testing::Pattern;

struct Message {
  int from, to;
  std::vector<std::byte> data, received;
  core::MessageInfo info;
  uint64_t send_token, recv_token;
};

// Posts all sends and receives in a random order, waits, and compares every byte.
void Exchange(Cluster* cluster, std::vector<Message>* messages, uint32_t seed) {
  uint64_t token = 1;
  std::vector<std::function<void()>> posts;
  std::vector<std::vector<uint64_t>> tokens(cluster->size());
  for (Message& m : *messages) {
    m.send_token = token++;
    m.recv_token = token++;
    tokens[m.from].push_back(m.send_token);
    tokens[m.to].push_back(m.recv_token);
    posts.push_back([cluster, &m] {
      (*cluster)[m.from].engine->Send(ProcessId{m.to}, m.info, m.data, m.send_token);
    });
    posts.push_back([cluster, &m] {
      (*cluster)[m.to].engine->PostRecv(ProcessId{m.from}, m.info, m.received, m.recv_token);
    });
  }
  std::mt19937 random(seed);
  std::shuffle(posts.begin(), posts.end(), random);
  for (auto& post : posts) post();
  for (size_t i = 0; i < cluster->size(); ++i) {
    ASSERT_TRUE((*cluster)[i].sink.WaitTokens(tokens[i])) << "process " << i << ", seed " << seed;
    EXPECT_EQ((*cluster)[i].sink.duplicates(), 0);
  }
  for (const Message& m : *messages) {
    const core::Event sent = (*cluster)[m.from].sink.Get(m.send_token);
    const core::Event received = (*cluster)[m.to].sink.Get(m.recv_token);
    EXPECT_EQ(sent.kind, core::EventKind::kSendDone);
    EXPECT_TRUE(sent.status.ok()) << sent.status.ToString();
    EXPECT_EQ(received.kind, core::EventKind::kRecvDone);
    EXPECT_TRUE(received.status.ok()) << received.status.ToString();
    EXPECT_TRUE(m.data == m.received)
        << m.data.size() << " bytes from " << m.from << " to " << m.to;
  }
}

std::vector<Message> AllPairs(int processes, const std::vector<size_t>& sizes) {
  std::vector<Message> messages;
  uint64_t name = 1;
  for (int from = 0; from < processes; ++from) {
    for (int to = 0; to < processes; ++to) {
      if (from == to) continue;
      for (const size_t size : sizes) {
        Message m{from, to, Pattern(size, name), std::vector<std::byte>(size), Info(name, size),
                  0,    0};
        messages.push_back(std::move(m));
        ++name;
      }
    }
  }
  return messages;
}

TEST(Engine, Messages_OfManySizesBetweenFourProcesses) {
  for (const uint32_t seed : {1u, 2u, 3u}) {
    Cluster cluster(4);
    ASSERT_TRUE(cluster.Connect());
    std::vector<Message> messages =
        AllPairs(4, {0, 1, 7, 8, 1000, 16383, 16384, 16385, 49152, 100000, 300001});
    Exchange(&cluster, &messages, seed);
    cluster.ShutdownAll();
  }
}

TEST(Engine, Messages_LargeBothWaysAtOnceWithSmallOnesBetween) {
  Cluster cluster(2);
  ASSERT_TRUE(cluster.Connect());
  std::vector<Message> messages = AllPairs(2, {size_t{64} << 20, 8, size_t{3} << 20, 0, 65536});
  Exchange(&cluster, &messages, 5);
  cluster.ShutdownAll();
}

TEST(Engine, Messages_ManySmallOnes) {
  Cluster cluster(2);
  ASSERT_TRUE(cluster.Connect());
  std::vector<size_t> sizes;
  std::mt19937 random(7);
  for (int i = 0; i < 1500; ++i) sizes.push_back(random() % 3000);
  std::vector<Message> messages = AllPairs(2, sizes);
  Exchange(&cluster, &messages, 8);
  cluster.ShutdownAll();
}

TEST(Engine, Messages_WithTinyDatagramsBuffersAndWindows) {
  Config config = testing::OverNetwork();
  config.max_datagram_bytes = 1400;
  config.socket_buffer_bytes = 65536;
  config.window_bytes = 3000;
  config.eager_buffer_bytes = 20000;
  config.paths = 3;
  Cluster cluster(3, config);
  ASSERT_TRUE(cluster.Connect());
  std::vector<Message> messages = AllPairs(3, {0, 100, 5000, 16384, 50000, 200000});
  Exchange(&cluster, &messages, 9);
  cluster.ShutdownAll();
}

// Over real sockets and clocks: pacing, marks and path choice together.
TEST(Engine, Messages_WithEveryPathPolicyAndController) {
  for (const core::PathSelectorRow& policy : core::PathSelectors()) {
    for (const core::CongestionControllerRow& controller : core::CongestionControllers()) {
      for (const char* scope : {"connection", "path"}) {
        SCOPED_TRACE(std::string(policy.name) + " " + controller.name + " " + scope);
        Config config = testing::OverNetwork();
        config.path_policy = policy.name;
        config.congestion_control = controller.name;
        config.cc_scope = scope;
        config.max_datagram_bytes = 1400;
        Cluster cluster(2, config);
        ASSERT_TRUE(cluster.Connect());
        std::vector<Message> messages = AllPairs(2, {100, 5000, 500'000});
        Exchange(&cluster, &messages, 9);
        const EngineStats stats = cluster[0].engine->Stats();
        const std::vector<core::PathStats>& paths = stats.peers.at(1).paths;
        ASSERT_EQ(paths.size(), static_cast<size_t>(config.paths));
        int sampled = 0;
        for (size_t i = 0; i < paths.size(); ++i) {
          const bool used = i == 0 || !policy.single_path;
          EXPECT_EQ(paths[i].packets_sent > 0, used) << i;
          // Not every path must have a sample yet: the last acknowledgements may be under way.
          sampled += paths[i].srtt_ns > 0;
          if (!used) {
            EXPECT_EQ(paths[i].srtt_ns, 0) << i;
          }
        }
        EXPECT_GT(sampled, 0);
        cluster.ShutdownAll();
      }
    }
  }
}

TEST(Engine, Messages_BetweenDifferentlyConfiguredProcesses) {
  Config small = testing::OverNetwork(), large = small;
  small.paths = 1;
  small.eager_max_bytes = 100;
  small.max_datagram_bytes = 1400;
  large.paths = 5;
  testing::RecordingSink sinks[2];
  Result<std::unique_ptr<Engine>> a = Engine::Start(small, &sinks[0]),
                                  b = Engine::Start(large, &sinks[1]);
  ASSERT_TRUE(a.ok() && b.ok());
  const std::vector<std::string> addresses = {a.value()->LocalAddress(), b.value()->LocalAddress()};
  ASSERT_TRUE(a.value()->Connect(ProcessId{0}, addresses, 1).ok());
  ASSERT_TRUE(b.value()->Connect(ProcessId{1}, addresses, 1).ok());
  for (const size_t size : {size_t{10}, size_t{5000}, size_t{100000}}) {
    const std::vector<std::byte> data = Pattern(size, size);
    std::vector<std::byte> there(size), back(size);
    a.value()->Send(ProcessId{1}, Info(size, size), data, size);
    b.value()->PostRecv(ProcessId{0}, Info(size, size), there, size);
    b.value()->Send(ProcessId{0}, Info(size, size), data, size + 1);
    a.value()->PostRecv(ProcessId{1}, Info(size, size), back, size + 1);
    ASSERT_TRUE(sinks[0].WaitTokens({size, size + 1}));
    ASSERT_TRUE(sinks[1].WaitTokens({size, size + 1}));
    EXPECT_TRUE(data == there && data == back) << size;
  }
}

TEST(Engine, Messages_BeforeConnectWait) {
  Cluster cluster(2);
  const std::vector<std::byte> data = Pattern(100000, 1);
  std::vector<std::byte> received(data.size()), unused(data.size());
  cluster[0].engine->Send(ProcessId{1}, Info(1, data.size()), data, 1);
  cluster[0].engine->SendControl(ProcessId{1}, "early word");
  cluster[0].engine->Send(ProcessId{1}, Info(2, data.size()), data, 2);
  bool cancelled = false;
  cluster[0].engine->Cancel({{ProcessId{1}, true, 2}}, [&] { cancelled = true; });
  (void)cluster[0].engine->Stats();  // the commands before it are done
  EXPECT_TRUE(cancelled);
  cluster[1].engine->PostRecv(ProcessId{0}, Info(1, data.size()), received, 1);
  ASSERT_TRUE(cluster.Connect());
  ASSERT_TRUE(cluster[0].sink.WaitTokens({1}));
  ASSERT_TRUE(cluster[1].sink.WaitTokens({1}));
  ASSERT_TRUE(cluster[1].sink.WaitControls(1));
  EXPECT_EQ(cluster[1].sink.controls()[0].second, "early word");
  EXPECT_TRUE(received == data);
  EXPECT_FALSE(cluster[0].sink.Has(2));
}

TEST(Engine, Control_ArrivesOnceEachInBothDirections) {
  Cluster cluster(3);
  ASSERT_TRUE(cluster.Connect());
  constexpr int kEach = 200;
  for (int i = 0; i < kEach; ++i) {
    for (int from = 0; from < 3; ++from) {
      for (int to = 0; to < 3; ++to) {
        if (from != to) cluster[from].engine->SendControl(ProcessId{to}, std::to_string(i));
      }
    }
  }
  for (int at = 0; at < 3; ++at) {
    ASSERT_TRUE(cluster[at].sink.WaitControls(2 * kEach));
    std::vector<int> count(3 * kEach, 0);
    for (const auto& [peer, text] : cluster[at].sink.controls()) {
      ++count[ToInt(peer) * kEach + std::stoi(text)];
    }
    for (int from = 0; from < 3; ++from) {
      for (int i = 0; i < kEach; ++i) EXPECT_EQ(count[from * kEach + i], from == at ? 0 : 1);
    }
  }
  cluster.ShutdownAll();
}

TEST(Engine, Mismatch_ShowsTheOtherSide) {
  Cluster cluster(2);
  ASSERT_TRUE(cluster.Connect());
  const std::vector<std::byte> data = Pattern(100, 1);
  std::vector<std::byte> buffer(200, std::byte{0x55});
  cluster[0].engine->Send(ProcessId{1}, Info(1, 100), data, 1);
  cluster[1].engine->PostRecv(ProcessId{0}, Info(1, 200), buffer, 1);
  ASSERT_TRUE(cluster[1].sink.WaitTokens({1}));
  const core::Event event = cluster[1].sink.Get(1);
  EXPECT_EQ(event.kind, core::EventKind::kMismatch);
  EXPECT_EQ(event.remote.size_bytes, 100u);
  for (const std::byte b : buffer) EXPECT_EQ(b, std::byte{0x55});
}

TEST(Engine, Cancel_FreesBuffersAndSilencesTokens) {
  Cluster cluster(2);
  ASSERT_TRUE(cluster.Connect());
  auto data = std::make_unique<std::vector<std::byte>>(Pattern(size_t{8} << 20, 1));
  auto buffer = std::make_unique<std::vector<std::byte>>(size_t{8} << 20);
  // Both sides withdraw while the bytes may be on their way; the sanitizer sees a late touch.
  for (uint64_t round = 0; round < 20; ++round) {
    const core::MessageInfo info = Info(100 + round, data->size());
    cluster[0].engine->Send(ProcessId{1}, info, *data, round);
    cluster[1].engine->PostRecv(ProcessId{0}, info, *buffer, round);
    for (const int side : {0, 1}) {
      testing::RecordingSink done;  // only its waiting is used
      cluster[side].engine->Cancel({{ProcessId{1 - side}, side == 0, round}},
                                   [&] { done.OnControl(ProcessId{0}, "done"); });
      ASSERT_TRUE(done.WaitControls(1));
      auto fresh = std::make_unique<std::vector<std::byte>>(size_t{8} << 20);
      (side == 0 ? data : buffer) = std::move(fresh);
    }
  }
  // The connection still works, and no withdrawn token came back after its cancel.
  std::vector<std::byte> small = Pattern(1000, 3), got(1000);
  cluster[0].engine->Send(ProcessId{1}, Info(1, 1000), small, 1000);
  cluster[1].engine->PostRecv(ProcessId{0}, Info(1, 1000), got, 1000);
  ASSERT_TRUE(cluster[1].sink.WaitTokens({1000}));
  EXPECT_TRUE(small == got);
  EXPECT_EQ(cluster[0].sink.duplicates(), 0);
  cluster.ShutdownAll();
}

TEST(Engine, Cancel_OfUnknownAndFinishedTokensIsIgnored) {
  Cluster cluster(2);
  ASSERT_TRUE(cluster.Connect());
  cluster[0].engine->Send(ProcessId{1}, Info(1, 0), {}, 1);
  ASSERT_TRUE(cluster[0].sink.WaitTokens({1}));
  testing::RecordingSink done;
  cluster[0].engine->Cancel({{ProcessId{1}, true, 1},
                             {ProcessId{1}, false, 9},
                             {ProcessId{7}, true, 3},
                             {ProcessId{-1}, true, 3},
                             {ProcessId{0}, true, 3}},
                            [&] { done.OnControl(ProcessId{0}, "done"); });
  EXPECT_TRUE(done.WaitControls(1));
}

TEST(Engine, Inspect_ShowsMessagesThatMetNoReceive) {
  Cluster cluster(2);
  ASSERT_TRUE(cluster.Connect());
  const std::vector<std::byte> data = Pattern(100000, 1);
  cluster[0].engine->Send(ProcessId{1}, Info(11, 10), Bytes(data).first(10), 1);
  cluster[0].engine->Send(ProcessId{1}, Info(12, data.size()), data, 2);
  cluster[0].engine->SendControl(ProcessId{1}, "after");
  std::vector<UnexpectedMessage> seen;
  testing::RecordingSink looks;
  // Looks again until both have arrived; each look is a round through the engine thread.
  for (size_t look = 1; look < 100000 && seen.size() < 2; ++look) {
    cluster[1].engine->Inspect([&](std::vector<UnexpectedMessage> messages) {
      seen = std::move(messages);
      looks.OnControl(ProcessId{0}, "look");
    });
    ASSERT_TRUE(looks.WaitControls(look));
  }
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[0].peer, ProcessId{0});
  std::vector<uint64_t> sizes = {seen[0].info.size_bytes, seen[1].info.size_bytes};
  std::sort(sizes.begin(), sizes.end());
  EXPECT_EQ(sizes, (std::vector<uint64_t>{10, data.size()}));
}

TEST(Engine, Send_ToNobodyIsReported) {
  Cluster cluster(2);
  ASSERT_TRUE(cluster.Connect());
  for (const int peer : {0, 2, -1, 1000000}) {  // itself, and numbers outside
    const uint64_t token = static_cast<uint64_t>(peer) + 10;
    cluster[0].engine->Send(ProcessId{peer}, Info(1, 0), {}, token);
    cluster[0].engine->PostRecv(ProcessId{peer}, Info(1, 0), {}, token + 5000);
    cluster[0].engine->SendControl(ProcessId{peer}, "x");
    ASSERT_TRUE(cluster[0].sink.WaitTokens({token, token + 5000}));
    EXPECT_EQ(cluster[0].sink.Get(token).status.code, StatusCode::kInvalidArgument);
    EXPECT_EQ(cluster[0].sink.Get(token + 5000).kind, core::EventKind::kRecvDone);
  }
}

// Three senders to one: its engine paces them together.
TEST(Engine, Messages_WithReceiverCredits) {
  Config config = testing::OverNetwork();
  config.receiver_scheduler = "eqds";
  config.line_rate_mbps = 400;
  config.max_datagram_bytes = 1400;
  for (const char* controller : {"none", "cubic"}) {
    config.congestion_control = controller;
    Cluster cluster(4, config);
    ASSERT_TRUE(cluster.Connect());
    std::vector<Message> messages = AllPairs(4, {0, 100, 5000, 16384, 500'000});
    const auto begin = std::chrono::steady_clock::now();
    Exchange(&cluster, &messages, 9);
    // 1.5 MB come to each process, less what is unasked for; they take 30 ms at 400 Mbit/s.
    EXPECT_GT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(20));
    for (size_t i = 0; i < 4; ++i) {
      const EngineStats stats = cluster[i].engine->Stats();
      for (const auto& [peer, s] : stats.peers) {
        EXPECT_GT(s.requests_to_send, 0u);
        EXPECT_GT(s.credit_used_bytes, 500'000);
        EXPECT_GE(s.credit_received_bytes, s.credit_used_bytes);
      }
    }
    cluster.ShutdownAll();
  }
}

TEST(Engine, Connect_ReceiverSchedulersMustAgree) {
  Config config = testing::OverNetwork();
  config.receiver_scheduler = "eqds";
  Cluster unpaced(2, config);
  EXPECT_NE(unpaced.ConnectOne(0).detail.find("line_rate_mbps"), std::string::npos);
  config.line_rate_mbps = 1000;
  Cluster cluster(2, config);
  Hello other = DecodeHello(cluster.addresses()[1]).value();
  other.receiver_scheduler = "none";
  const Status status =
      cluster[0].engine->Connect(ProcessId{0}, {cluster.addresses()[0], EncodeHello(other)}, 1);
  EXPECT_EQ(status.code, StatusCode::kInvalidArgument);
  EXPECT_EQ(status.process, 1);
  EXPECT_NE(status.detail.find("receiver_scheduler"), std::string::npos);
}

TEST(Engine, Connect_ErrorsNameTheProcess) {
  Cluster cluster(1);
  Engine& engine = *cluster[0].engine;
  const std::string own = engine.LocalAddress();
  EXPECT_EQ(engine.Connect(ProcessId{5}, {own}, 1).code, StatusCode::kInvalidArgument);
  Status damaged = engine.Connect(ProcessId{0}, {own, own, "damaged"}, 1);
  EXPECT_EQ(damaged.code, StatusCode::kInvalidArgument);
  EXPECT_EQ(damaged.process, 2);
  Hello other = DecodeHello(own).value();
  other.backend = "pigeon";
  Status backend = engine.Connect(ProcessId{0}, {own, EncodeHello(other)}, 1);
  EXPECT_EQ(backend.code, StatusCode::kInvalidArgument);
  EXPECT_NE(backend.detail.find("pigeon"), std::string::npos);
  EXPECT_TRUE(engine.Connect(ProcessId{0}, {own}, 1).ok());
  EXPECT_EQ(engine.Connect(ProcessId{0}, {own}, 1).code, StatusCode::kInvalidArgument);
  EXPECT_TRUE(engine.Shutdown(std::chrono::seconds(1)).ok());
}

TEST(Engine, Start_UnknownPolicyOrBackendIsAnError) {
  testing::RecordingSink sink;
  Config config = testing::OverNetwork();
  config.backend = "pigeon";
  EXPECT_EQ(Engine::Start(config, &sink).status().code, StatusCode::kInvalidArgument);
  config = testing::OverNetwork();
  config.congestion_control = "prayer";
  Cluster cluster(2, config);
  Status status = cluster.ConnectOne(0);
  EXPECT_EQ(status.code, StatusCode::kInvalidArgument);
  EXPECT_NE(status.detail.find("prayer"), std::string::npos);
}

TEST(Engine, Thread_HasItsName) {
  Cluster cluster(1);
  (void)cluster[0].engine->Stats();  // its thread runs
  bool found = false;
  DIR* tasks = opendir("/proc/self/task");
  ASSERT_NE(tasks, nullptr);
  while (const dirent* entry = readdir(tasks)) {
    std::ifstream file("/proc/self/task/" + std::string(entry->d_name) + "/comm");
    std::string name;
    if (std::getline(file, name) && name == "uccl-engine") found = true;
  }
  closedir(tasks);
  EXPECT_TRUE(found);
}

// Process 1 has a socket but never connects, so that process 0 waits for 400 ms with nothing to do
// but ask now and then whether somebody is there.
TEST(Engine, Idle_SleepsBetweenTimers) {
  for (const int64_t spin_us : {0, 50}) {
    Config config = testing::OverNetwork();
    config.spin_us = spin_us;
    config.peer_silence_ms = 400;
    Cluster cluster(2, config);
    ASSERT_TRUE(cluster.ConnectOne(0).ok());
    std::vector<std::byte> buffer(8);
    const EngineStats before = cluster[0].engine->Stats();
    cluster[0].engine->PostRecv(ProcessId{1}, Info(1, 8), buffer, 1);
    ASSERT_TRUE(cluster[0].sink.WaitLost(1));
    const EngineStats after = cluster[0].engine->Stats();
    // One that polls makes several hundred thousand turns in that time.
    EXPECT_LT(after.turns - before.turns, spin_us == 0 ? 500u : 20'000u);
    EXPECT_GE(after.sleeps - before.sleeps, 3u);
  }
}

TEST(Engine, Garbage_IsDroppedAndCounted) {
  Cluster cluster(2);
  ASSERT_TRUE(cluster.Connect());
  // Raw datagrams to a socket of process 1: random bytes, packets of another session, cut ones.
  const std::string at = DecodeHello(cluster.addresses()[1]).value().nic_address;
  const size_t colon = at.find(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  ASSERT_EQ(inet_pton(AF_INET, at.substr(0, colon).c_str(), &to.sin_addr), 1);
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(at.substr(colon + 1))));
  const int fd = socket(AF_INET, SOCK_DGRAM, 0);
  ASSERT_GE(fd, 0);
  std::mt19937 random(11);
  const uint64_t real_key =
      MakeConnectionConfig(Config(), DecodeHello(cluster.addresses()[1]).value(),
                           DecodeHello(cluster.addresses()[0]).value(),
                           {99, ProcessId{1}, ProcessId{0}, 2}, 9000)
          .recv_key;
  const uint64_t before = cluster[1].engine->Stats().unknown_key_drops;
  constexpr int kCount = 300;
  for (int i = 0; i < kCount; ++i) {
    std::vector<std::byte> bytes = Pattern(random() % 2000, i);
    // A third begins like a packet of ours, a part of these with the right key.
    if (i % 3 == 0 && bytes.size() > 64) {
      bytes[0] = std::byte{wire::kVersion};
      bytes[1] = static_cast<std::byte>(random() % 10);
      if (i % 2 == 0) std::memcpy(&bytes[8], &real_key, sizeof(real_key));
    }
    ASSERT_GE(
        sendto(fd, bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  }
  close(fd);
  std::vector<Message> messages = AllPairs(2, {10, 100000, 1 << 20});
  Exchange(&cluster, &messages, 12);
  const EngineStats stats = cluster[1].engine->Stats();
  EXPECT_GT(stats.unknown_key_drops, before + kCount / 2);
  EXPECT_TRUE(cluster[1].sink.lost().empty());
  cluster.ShutdownAll();
}

TEST(Engine, OtherSession_IsNotHeard) {
  Cluster cluster(2);
  ASSERT_TRUE(cluster.ConnectOne(0, 1).ok());
  ASSERT_TRUE(cluster.ConnectOne(1, 2).ok());
  cluster[0].engine->SendControl(ProcessId{1}, "hello?");
  const std::vector<std::byte> data = Pattern(8, 1);
  cluster[0].engine->Send(ProcessId{1}, Info(1, 8), data, 1);
  // Retransmissions make the count grow until it is seen.
  uint64_t drops = 0;
  for (int i = 0; i < 1'000'000 && drops < 2; ++i)
    drops = cluster[1].engine->Stats().unknown_key_drops;
  EXPECT_GE(drops, 2u);
  EXPECT_TRUE(cluster[1].sink.controls().empty());
}

TEST(Engine, Commands_FromManyThreads) {
  Cluster cluster(2);
  ASSERT_TRUE(cluster.Connect());
  constexpr int kThreads = 4, kEach = 300;
  std::vector<std::vector<std::byte>> received(kThreads * kEach, std::vector<std::byte>(64));
  std::vector<uint64_t> tokens;
  for (uint64_t t = 0; t < kThreads * kEach; ++t) tokens.push_back(t);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const uint64_t name = static_cast<uint64_t>(t * kEach + i);
        const std::vector<std::byte> data = Pattern(64, name);  // eager: copied, may go at once
        cluster[1].engine->PostRecv(ProcessId{0}, Info(name, 64), received[name], name);
        cluster[0].engine->Send(ProcessId{1}, Info(name, 64), data, name);
        if (!cluster[0].sink.WaitTokens({name})) ADD_FAILURE() << name;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  ASSERT_TRUE(cluster[1].sink.WaitTokens(tokens));
  for (uint64_t name : tokens) EXPECT_TRUE(received[name] == Pattern(64, name)) << name;
  cluster.ShutdownAll();
}

}  // namespace
}  // namespace uccl::engine
