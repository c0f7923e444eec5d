// Tests of csrc/engine/engine.h when a peer leaves, dies or hangs, and of shutdown.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <vector>

#include "csrc/engine/engine.h"
#include "csrc/engine/testing/cluster.h"

namespace uccl::engine {
namespace {

using testing::Cluster;
using testing::Info;
using testing::Pattern;
using testing::RecordingSink;
using Clock = std::chrono::steady_clock;

TEST(EngineShutdown, InOrder_IsQuietAndQuick) {
  Cluster cluster(3);
  ASSERT_TRUE(cluster.Connect());
  std::vector<std::byte> buffer(8);
  const std::vector<std::byte> data = Pattern(8, 1);
  for (const int from : {1, 2}) {
    cluster[from].engine->Send(ProcessId{0}, Info(1, 8), data, 1);
    cluster[0].engine->PostRecv(ProcessId{from}, Info(1, 8), buffer, static_cast<uint64_t>(from));
  }
  ASSERT_TRUE(cluster[0].sink.WaitTokens({1, 2}));
  const auto before = Clock::now();
  // One after the other: the last ones meet peers that are gone.
  for (size_t i = 0; i < cluster.size(); ++i) {
    Status status = cluster[i].engine->Shutdown(std::chrono::seconds(20));
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  EXPECT_LT(Clock::now() - before, std::chrono::seconds(10));
  for (size_t i = 0; i < cluster.size(); ++i) EXPECT_TRUE(cluster[i].sink.lost().empty());
}

TEST(EngineShutdown, WaitsUntilLargeSendsAreAcknowledged) {
  Cluster cluster(2);
  ASSERT_TRUE(cluster.Connect());
  const std::vector<std::byte> data = Pattern(size_t{16} << 20, 1);
  std::vector<std::byte> received(data.size());
  cluster[0].engine->Send(ProcessId{1}, Info(1, data.size()), data, 1);
  cluster[1].engine->PostRecv(ProcessId{0}, Info(1, data.size()), received, 1);
  Status status = cluster[0].engine->Shutdown(std::chrono::seconds(30));
  EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_TRUE(cluster[0].sink.Get(1).status.ok());
  ASSERT_TRUE(cluster[1].sink.WaitTokens({1}));
  EXPECT_TRUE(cluster[1].sink.Get(1).status.ok());
  EXPECT_TRUE(received == data);
}

TEST(EngineShutdown, OutstandingTokensAreAborted) {
  Cluster cluster(2);
  ASSERT_TRUE(cluster.Connect());
  const std::vector<std::byte> data = Pattern(100000, 1);
  std::vector<std::byte> buffer(100000);
  cluster[0].engine->Send(ProcessId{1}, Info(1, data.size()), data, 1);  // nobody receives it
  cluster[0].engine->PostRecv(ProcessId{1}, Info(2, buffer.size()), buffer, 2);
  Status status = cluster[0].engine->Shutdown(std::chrono::milliseconds(50));
  EXPECT_EQ(status.code, StatusCode::kPeerTimeout);
  EXPECT_NE(status.detail.find("process 1"), std::string::npos) << status.detail;
  ASSERT_TRUE(cluster[0].sink.Has(1) && cluster[0].sink.Has(2));
  EXPECT_EQ(cluster[0].sink.Get(1).status.code, StatusCode::kAborted);
  EXPECT_EQ(cluster[0].sink.Get(2).status.code, StatusCode::kAborted);
  EXPECT_TRUE(cluster[0].sink.lost().empty());
  EXPECT_EQ(cluster[0].engine->Shutdown(Nanos(0)).code,
            StatusCode::kPeerTimeout);  // says the same again
}

TEST(EngineShutdown, BeforeConnectAbortsWhatWaits) {
  Cluster cluster(1);
  std::vector<std::byte> buffer(8);
  cluster[0].engine->PostRecv(ProcessId{1}, Info(1, 8), buffer, 1);
  Status status = cluster[0].engine->Shutdown(std::chrono::milliseconds(10));
  EXPECT_EQ(status.code, StatusCode::kPeerTimeout);
  ASSERT_TRUE(cluster[0].sink.Has(1));
  EXPECT_EQ(cluster[0].sink.Get(1).status.code, StatusCode::kAborted);
}

TEST(EngineShutdown, CallsAfterwardsAreAnswered) {
  Cluster cluster(2);
  ASSERT_TRUE(cluster.Connect());
  Engine& engine = *cluster[0].engine;
  ASSERT_TRUE(engine.Shutdown(std::chrono::seconds(20)).ok());
  engine.Send(ProcessId{1}, Info(1, 0), {}, 1);
  engine.PostRecv(ProcessId{1}, Info(1, 0), {}, 2);
  engine.SendControl(ProcessId{1}, "x");
  ASSERT_TRUE(cluster[0].sink.Has(1) && cluster[0].sink.Has(2));
  EXPECT_EQ(cluster[0].sink.Get(1).status.code, StatusCode::kAborted);
  EXPECT_EQ(cluster[0].sink.Get(2).status.code, StatusCode::kAborted);
  bool cancelled = false, inspected = false;
  engine.Cancel({{ProcessId{1}, true, 1}}, [&] { cancelled = true; });
  engine.Inspect([&](std::vector<UnexpectedMessage> m) { inspected = m.empty(); });
  EXPECT_TRUE(cancelled && inspected);
  EXPECT_EQ(engine.Stats().peers.size(), 1u);
  EXPECT_EQ(engine.Connect(ProcessId{0}, cluster.addresses(), 1).code, StatusCode::kAborted);
  EXPECT_TRUE(engine.Shutdown(Nanos(0)).ok());
}

TEST(EngineShutdown, PeerThatLeftFailsOnlyWhatIsOutstanding) {
  Cluster cluster(3);
  ASSERT_TRUE(cluster.Connect());
  std::vector<std::byte> buffer(8), other(8);
  const std::vector<std::byte> data = Pattern(8, 1);
  // Process 1 leaves a message behind, which is received later, and owes another one, which never
  // comes.
  cluster[1].engine->Send(ProcessId{0}, Info(1, 8), data, 1);
  cluster[0].engine->PostRecv(ProcessId{1}, Info(2, 8), buffer, 2);
  // Process 2 sees it leave as well and has nothing with it.
  cluster[2].engine->SendControl(ProcessId{1}, "hello");
  ASSERT_TRUE(cluster[1].sink.WaitControls(1));
  ASSERT_TRUE(cluster[1].sink.WaitTokens({1}));
  EXPECT_TRUE(cluster[1].engine->Shutdown(std::chrono::seconds(20)).ok());
  ASSERT_TRUE(cluster[0].sink.WaitTokens({2}));
  EXPECT_EQ(cluster[0].sink.Get(2).status.code, StatusCode::kPeerLost);
  EXPECT_EQ(cluster[0].sink.Get(2).status.detail, "process 1 shut down");
  EXPECT_EQ(cluster[0].sink.Get(2).status.process, 1);
  ASSERT_TRUE(cluster[0].sink.WaitLost(1));
  EXPECT_EQ(cluster[0].sink.lost()[0].peer, ProcessId{1});
  // Later calls are answered at once, and process 2 is as well as ever.
  cluster[0].engine->Send(ProcessId{1}, Info(3, 8), data, 3);
  ASSERT_TRUE(cluster[0].sink.WaitTokens({3}));
  EXPECT_EQ(cluster[0].sink.Get(3).status.code, StatusCode::kPeerLost);
  cluster[2].engine->Send(ProcessId{0}, Info(4, 8), data, 4);
  cluster[0].engine->PostRecv(ProcessId{2}, Info(4, 8), other, 4);
  ASSERT_TRUE(cluster[0].sink.WaitTokens({4}));
  EXPECT_TRUE(other == data);
  EXPECT_TRUE(cluster[2].sink.lost().empty());
}

TEST(EngineShutdown, MessageOfAPeerThatLeftIsStillReceived) {
  Cluster cluster(2);
  ASSERT_TRUE(cluster.Connect());
  const std::vector<std::byte> data = Pattern(5000, 1);
  std::vector<std::byte> buffer(5000), never(8);
  cluster[1].engine->Send(ProcessId{0}, Info(1, 5000), data, 1);
  EXPECT_TRUE(cluster[1].engine->Shutdown(std::chrono::seconds(20)).ok());
  cluster[0].engine->PostRecv(ProcessId{1}, Info(1, 5000), buffer, 1);
  ASSERT_TRUE(cluster[0].sink.WaitTokens({1}));
  EXPECT_TRUE(cluster[0].sink.Get(1).status.ok()) << cluster[0].sink.Get(1).status.ToString();
  EXPECT_TRUE(buffer == data);
  EXPECT_TRUE(cluster[0].sink.lost().empty());
  cluster[0].engine->PostRecv(ProcessId{1}, Info(2, 8), never, 2);
  ASSERT_TRUE(cluster[0].sink.WaitTokens({2}));
  EXPECT_EQ(cluster[0].sink.Get(2).status.code, StatusCode::kPeerLost);
}

// A peer in a child process, so that it can really be killed or stopped.
class EngineChild : public ::testing::Test {
 protected:
  // The child connects as process 1, says "hello", and then only keeps its engine running.
  void StartChild(const Config& config) {
    int up[2], down[2];
    ASSERT_EQ(pipe(up), 0);
    ASSERT_EQ(pipe(down), 0);
    child_ = fork();  // before any thread of this process exists
    ASSERT_GE(child_, 0);
    if (child_ == 0) _exit(RunChild(config, up[1], down[0]));
    Result<std::unique_ptr<Engine>> engine = Engine::Start(config, &sink_);
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = std::move(engine.value());
    const std::string own = engine_->LocalAddress();
    ASSERT_TRUE(WriteText(down[1], own));
    std::string theirs;
    ASSERT_TRUE(ReadText(up[0], &theirs));
    for (const int fd : {up[0], up[1], down[0], down[1]}) close(fd);
    Status status = engine_->Connect(ProcessId{0}, {own, theirs}, 5);
    ASSERT_TRUE(status.ok()) << status.ToString();
    ASSERT_TRUE(sink_.WaitControls(1));
  }
  void TearDown() override {
    if (child_ > 0) {
      kill(child_, SIGKILL);
      waitpid(child_, nullptr, 0);
    }
  }

  static bool WriteText(int fd, const std::string& text) {
    const uint32_t size = static_cast<uint32_t>(text.size());
    return write(fd, &size, sizeof(size)) == sizeof(size) &&
           write(fd, text.data(), size) == static_cast<ssize_t>(size);
  }
  static bool ReadText(int fd, std::string* text) {
    uint32_t size = 0;
    if (read(fd, &size, sizeof(size)) != sizeof(size)) return false;
    text->resize(size);
    return read(fd, text->data(), size) == static_cast<ssize_t>(size);
  }
  static int RunChild(const Config& config, int up, int down) {
    RecordingSink sink;
    Result<std::unique_ptr<Engine>> engine = Engine::Start(config, &sink);
    if (!engine.ok()) return 1;
    const std::string own = engine.value()->LocalAddress();
    std::string theirs;
    if (!WriteText(up, own) || !ReadText(down, &theirs)) return 2;
    if (!engine.value()->Connect(ProcessId{1}, {theirs, own}, 5).ok()) return 3;
    engine.value()->SendControl(ProcessId{0}, "hello");
    while (true) pause();
  }

  pid_t child_ = -1;
  RecordingSink sink_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineChild, Killed_IsNoticedLongBeforeTheSilenceLimit) {
  Config config = testing::OverNetwork();
  config.peer_silence_ms = 60000;
  ASSERT_NO_FATAL_FAILURE(StartChild(config));
  std::vector<std::byte> buffer(100000);
  const std::vector<std::byte> data = Pattern(100000, 1);
  engine_->PostRecv(ProcessId{1}, Info(1, buffer.size()), buffer, 1);
  engine_->Send(ProcessId{1}, Info(2, data.size()), data, 2);
  ASSERT_EQ(kill(child_, SIGKILL), 0);
  const auto before = Clock::now();
  ASSERT_TRUE(sink_.WaitTokens({1, 2}));
  EXPECT_LT(Clock::now() - before, std::chrono::seconds(30));
  for (const uint64_t token : {1, 2}) {
    const Status status = sink_.Get(token).status;
    EXPECT_EQ(status.code, StatusCode::kPeerLost) << status.ToString();
    EXPECT_EQ(status.process, 1);
  }
  ASSERT_TRUE(sink_.WaitLost(1));
  EXPECT_EQ(sink_.lost()[0].peer, ProcessId{1});
  EXPECT_EQ(sink_.lost()[0].status.code, StatusCode::kPeerLost);
  // Afterwards: answered at once, said once.
  engine_->PostRecv(ProcessId{1}, Info(3, 8), buffer, 3);
  engine_->Send(ProcessId{1}, Info(3, 8), data, 4);
  ASSERT_TRUE(sink_.WaitTokens({3, 4}));
  EXPECT_EQ(sink_.Get(3).status.code, StatusCode::kPeerLost);
  EXPECT_EQ(sink_.Get(4).status.code, StatusCode::kPeerLost);
  EXPECT_TRUE(engine_->Shutdown(std::chrono::seconds(5)).ok());
  EXPECT_EQ(sink_.lost().size(), 1u);
  EXPECT_EQ(sink_.duplicates(), 0);
}

TEST_F(EngineChild, Stopped_IsNoticedAtTheSilenceLimitAndCostsNoCpu) {
  Config config = testing::OverNetwork();
  config.peer_silence_ms = 600;
  config.spin_us = 0;
  ASSERT_NO_FATAL_FAILURE(StartChild(config));
  ASSERT_EQ(kill(child_, SIGSTOP), 0);
  const EngineStats before = engine_->Stats();
  std::vector<std::byte> buffer(100);
  const auto start = Clock::now();
  engine_->PostRecv(ProcessId{1}, Info(1, buffer.size()), buffer, 1);
  ASSERT_TRUE(sink_.WaitTokens({1}));
  EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(500));
  const Status status = sink_.Get(1).status;
  EXPECT_EQ(status.code, StatusCode::kPeerLost) << status.ToString();
  EXPECT_EQ(status.process, 1);
  // Six tenths of a second of waiting: a few commands, timers and probes, no polling (millions of
  // turns).
  const EngineStats after = engine_->Stats();
  EXPECT_LT(after.turns - before.turns, 1000u);
  EXPECT_GE(after.sleeps, before.sleeps + 2);
}

TEST_F(EngineChild, Alive_PeerIsNotLostWhileItOwesUsAMessage) {
  Config config = testing::OverNetwork();
  config.peer_silence_ms = 200;
  ASSERT_NO_FATAL_FAILURE(StartChild(config));
  std::vector<std::byte> buffer(100);
  engine_->PostRecv(ProcessId{1}, Info(1, buffer.size()), buffer, 1);
  // Probes are answered, so time passes and the peer stays. Five silence limits, seen by the
  // probes.
  uint64_t probes = 0;
  const auto start = Clock::now();
  while (probes < 40 && Clock::now() - start < std::chrono::seconds(30) && !sink_.Has(1)) {
    probes = engine_->Stats().peers[1].probes;
  }
  EXPECT_GE(probes, 40u);
  EXPECT_FALSE(sink_.Has(1));
  EXPECT_TRUE(sink_.lost().empty());
}

}  // namespace
}  // namespace uccl::engine
