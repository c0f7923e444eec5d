// Tests of csrc/engine/engine.h with the setting `engines` above 1: several workers look like one.
#include <dirent.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <string>
#include <vector>

#include "csrc/engine/affinity.h"
#include "csrc/engine/engine.h"
#include "csrc/engine/limits.h"
#include "csrc/engine/testing/cluster.h"

namespace uccl::engine {
namespace {

using testing::Cluster;
using testing::Info;
using testing::Pattern;

Config With(int64_t engines) {
  Config config = testing::OverNetwork();
  config.engines = engines;
  config.paths = 2;
  return config;
}

struct Transfer {
  std::vector<std::byte> data, received;
};

// `count` messages of each size from 0 to 1, all posted before this returns; tokens 1, 2, 3, ...
std::vector<Transfer> Post(Cluster* cluster, const std::vector<size_t>& sizes, int count) {
  std::vector<Transfer> transfers;
  for (const size_t size : sizes) {
    for (int i = 0; i < count; ++i) {
      transfers.push_back({Pattern(size, transfers.size()), std::vector<std::byte>(size)});
    }
  }
  for (size_t i = 0; i < transfers.size(); ++i) {
    const core::MessageInfo info = Info(i, transfers[i].data.size());
    (*cluster)[1].engine->PostRecv(ProcessId{0}, info, transfers[i].received, i + 1);
    (*cluster)[0].engine->Send(ProcessId{1}, info, transfers[i].data, i + 1);
  }
  return transfers;
}

std::vector<uint64_t> Tokens(size_t count) {
  std::vector<uint64_t> tokens;
  for (size_t i = 1; i <= count; ++i) tokens.push_back(i);
  return tokens;
}

TEST(SeveralEngines, Messages_AreDividedAndAddUp) {
  for (const int64_t engines : {1, 2, 3}) {
    SCOPED_TRACE(engines);
    Cluster cluster(2, With(engines));
    ASSERT_TRUE(cluster.Connect());
    const std::vector<Transfer> transfers = Post(&cluster, {0, 100, 20'000, 300'000}, 12);
    ASSERT_TRUE(cluster[0].sink.WaitTokens(Tokens(transfers.size())));
    ASSERT_TRUE(cluster[1].sink.WaitTokens(Tokens(transfers.size())));
    uint64_t total = 0;
    for (const Transfer& t : transfers) {
      EXPECT_TRUE(t.data == t.received) << t.data.size();
      total += t.data.size();
    }
    EXPECT_EQ(cluster[1].sink.duplicates(), 0);
    const EngineStats sent = cluster[0].engine->Stats(), received = cluster[1].engine->Stats();
    EXPECT_EQ(sent.engines, static_cast<uint64_t>(engines));
    EXPECT_GE(sent.peers.at(1).payload_bytes_sent, total);
    EXPECT_GE(received.peers.at(0).payload_bytes_received, total);
    EXPECT_GE(sent.nic.datagrams_sent, sent.peers.at(1).packets_sent);
    // The paths of all engines, and each engine used some.
    const std::vector<core::PathStats>& paths = sent.peers.at(1).paths;
    ASSERT_EQ(paths.size(), static_cast<size_t>(2 * engines));
    for (size_t e = 0; e < paths.size(); e += 2) {
      EXPECT_GT(paths[e].packets_sent + paths[e + 1].packets_sent, 0u) << e / 2;
    }
    cluster.ShutdownAll();
  }
}

TEST(SeveralEngines, Connect_DifferentCountsAreRefusedOnBothSides) {
  testing::RecordingSink sinks[2];
  auto one = Engine::Start(With(1), &sinks[0]), two = Engine::Start(With(2), &sinks[1]);
  ASSERT_TRUE(one.ok() && two.ok());
  const std::vector<std::string> addresses = {one.value()->LocalAddress(),
                                              two.value()->LocalAddress()};
  for (int32_t self : {0, 1}) {
    Engine& engine = *(self == 0 ? one : two).value();
    const Status status = engine.Connect(ProcessId{self}, addresses, 1);
    EXPECT_EQ(status.code, StatusCode::kInvalidArgument);
    EXPECT_EQ(status.process, 1 - self);
    EXPECT_NE(status.detail.find("JAX_UCCL_ENGINES"), std::string::npos) << status.detail;
  }
}

// Counts at the moment of OnPeerLost what was reported before.
class LossSink final : public EngineSink {
 public:
  void OnMessage(ProcessId, const core::Event& event) override {
    if (event.status.code == StatusCode::kPeerLost) ++failed;
  }
  void OnControl(ProcessId, const std::string&) override {}
  void OnPeerLost(ProcessId peer, const Status& status) override {
    failed_at_loss = failed.load();
    recording.OnPeerLost(peer, status);
  }
  std::atomic<int> failed{0}, failed_at_loss{0};
  testing::RecordingSink recording;
};

// Of process 1's two engines, one is a socket where nobody reads. The other answers, and yet all
// that waits for process 1 fails.
TEST(SeveralEngines, PeerLost_OnOneIsLostForAllAndToldOnce) {
  Config config = With(2);
  config.peer_silence_ms = 200;
  LossSink sink;
  testing::RecordingSink peer_sink, silent_sink;
  auto engine = Engine::Start(config, &sink), peer = Engine::Start(config, &peer_sink),
       silent = Engine::Start(config, &silent_sink);
  ASSERT_TRUE(engine.ok() && peer.ok() && silent.ok());
  auto answers = SplitAddresses(peer.value()->LocalAddress(), 2, ProcessId{1});
  auto mute = SplitAddresses(silent.value()->LocalAddress(), 2, ProcessId{1});
  ASSERT_TRUE(answers.ok() && mute.ok());
  const std::string own = engine.value()->LocalAddress();
  ASSERT_TRUE(
      engine.value()
          ->Connect(ProcessId{0}, {own, JoinAddresses({answers.value()[0], mute.value()[1]})}, 1)
          .ok());
  ASSERT_TRUE(peer.value()->Connect(ProcessId{1}, {own, peer.value()->LocalAddress()}, 1).ok());
  constexpr int kReceives = 40;  // enough that both engines have some
  std::vector<std::vector<std::byte>> buffers(kReceives, std::vector<std::byte>(100'000));
  for (int i = 0; i < kReceives; ++i) {
    engine.value()->PostRecv(ProcessId{1}, Info(i, buffers[i].size()), buffers[i], i + 1);
  }
  ASSERT_TRUE(sink.recording.WaitLost(1));
  EXPECT_EQ(sink.failed_at_loss.load(), kReceives) << "tokens are reported before the loss";
  EXPECT_EQ(sink.recording.lost()[0].status.code, StatusCode::kPeerLost);
  // What comes later fails at once, on either engine.
  for (int i = 0; i < kReceives; ++i) {
    engine.value()->Send(ProcessId{1}, Info(i, buffers[i].size()), buffers[i], 1000 + i);
  }
  (void)engine.value()->Stats();  // the commands before it are done
  EXPECT_EQ(sink.failed.load(), 2 * kReceives);
  EXPECT_TRUE(engine.value()->Shutdown(std::chrono::seconds(5)).ok());
  EXPECT_EQ(sink.recording.lost().size(), 1u);
}

TEST(SeveralEngines, Shutdown_DrainsAll) {
  Cluster cluster(2, With(3));
  ASSERT_TRUE(cluster.Connect());
  const std::vector<Transfer> transfers = Post(&cluster, {10, 1 << 20}, 12);
  cluster.ShutdownAll();
  for (size_t i = 0; i < transfers.size(); ++i) {
    EXPECT_TRUE(cluster[1].sink.Get(i + 1).status.ok()) << i;
    EXPECT_TRUE(transfers[i].data == transfers[i].received) << i;
  }
}

TEST(SeveralEngines, CancelAndInspect_AnswerOnceForAll) {
  Cluster cluster(2, With(3));
  ASSERT_TRUE(cluster.Connect());
  std::vector<std::vector<std::byte>> buffers(20, std::vector<std::byte>(50'000));
  std::vector<Engine::Posted> posted;
  for (uint64_t i = 0; i < buffers.size(); ++i) {
    cluster[1].engine->PostRecv(ProcessId{0}, Info(i, buffers[i].size()), buffers[i], i + 1);
    posted.push_back({ProcessId{0}, false, i + 1});
  }
  testing::RecordingSink answers;
  cluster[1].engine->Cancel(posted, [&] { answers.OnControl(ProcessId{0}, "cancelled"); });
  ASSERT_TRUE(answers.WaitControls(1));
  // Unmet messages of all engines are in one answer.
  std::vector<std::byte> data(100);
  for (uint64_t i = 0; i < 20; ++i) {
    cluster[0].engine->Send(ProcessId{1}, Info(100 + i, data.size()), data, 100 + i);
  }
  size_t seen = 0;
  for (size_t look = 2; look < 100'000 && seen < 20; ++look) {
    cluster[1].engine->Inspect([&](std::vector<UnexpectedMessage> messages) {
      seen = messages.size();
      answers.OnControl(ProcessId{0}, "look");
    });
    ASSERT_TRUE(answers.WaitControls(look));
  }
  EXPECT_EQ(seen, 20u);
  const size_t before = answers.controls().size();
  // After the end they are answered on this thread.
  ASSERT_TRUE(cluster[0].engine->Shutdown(std::chrono::seconds(5)).ok());
  cluster[0].engine->Cancel(posted, [&] { answers.OnControl(ProcessId{0}, "cancelled"); });
  cluster[0].engine->Inspect([&](std::vector<UnexpectedMessage> messages) {
    EXPECT_TRUE(messages.empty());
    answers.OnControl(ProcessId{0}, "look");
  });
  EXPECT_EQ(answers.controls().size(), before + 2);
  for (uint64_t i = 1; i <= 20; ++i) EXPECT_FALSE(cluster[1].sink.Has(i));
}

// The processors of this process's engine threads.
std::vector<std::vector<int>> EngineThreadCpus() {
  std::vector<std::vector<int>> all;
  DIR* tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return all;
  while (const dirent* entry = readdir(tasks)) {
    std::ifstream file("/proc/self/task/" + std::string(entry->d_name) + "/comm");
    std::string name;
    if (!std::getline(file, name) || name != "uccl-engine") continue;
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(std::stoi(entry->d_name), sizeof(set), &set) != 0) continue;
    std::vector<int> cpus;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    }
    all.push_back(cpus);
  }
  closedir(tasks);
  std::sort(all.begin(), all.end());
  return all;
}

TEST(SeveralEngines, EngineCpus_BindsWithinTheMask) {
  const std::vector<int> allowed = AllowedCpus();
  for (const std::string& setting : {std::string("auto"), std::to_string(allowed.back())}) {
    Config config = With(2);
    config.engine_cpus = setting;
    Cluster cluster(1, config);
    ASSERT_TRUE(cluster.Connect());
    const EngineStats stats = cluster[0].engine->Stats();
    ASSERT_EQ(stats.cpus.size(), 2u);
    std::vector<std::vector<int>> expected = {{stats.cpus[0]}, {stats.cpus[1]}};
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(EngineThreadCpus(), expected);
    for (const int cpu : stats.cpus) {
      EXPECT_NE(std::find(allowed.begin(), allowed.end(), cpu), allowed.end());
    }
    const bool shared = setting != "auto" || allowed.size() == 1;
    EXPECT_EQ(stats.cpus[0] == stats.cpus[1], shared);
  }
  EXPECT_EQ(AllowedCpus(), allowed) << "the caller's own mask is left alone";
}

TEST(SeveralEngines, EngineCpus_OutsideTheMaskIsAnError) {
  Config config = With(1);
  config.engine_cpus = std::to_string(CPU_SETSIZE - 1);
  testing::RecordingSink sink;
  const auto engine = Engine::Start(config, &sink);
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().code, StatusCode::kInvalidArgument);
  EXPECT_NE(engine.status().detail.find(config.engine_cpus), std::string::npos);
  EXPECT_NE(engine.status().detail.find(CpuListText(AllowedCpus())), std::string::npos);
}

}  // namespace
}  // namespace uccl::engine
