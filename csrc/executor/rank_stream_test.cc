// Tests of csrc/executor/rank_stream.h.
#include "csrc/executor/rank_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace uccl::executor {
namespace {

// What happened, in order.
class Log final {
 public:
  void Add(const std::string& line) {
    std::lock_guard lock(mutex_);
    lines_.push_back(line);
    changed_.notify_all();
  }
  std::vector<std::string> Wait(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return lines_.size() >= count; });
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
};

// Logs its number; waits for a message of its own rank that nobody sends, or fails.
class TestProgram final : public Program {
 public:
  enum class Kind : uint8_t { kRun, kStuck, kFail };
  TestProgram(Log* log, Kind kind) : log_(log), kind_(kind) {}
  Status Run(Pipes* pipes, uint64_t number) override {
    log_->Add("run " + std::to_string(number));
    if (kind_ == Kind::kFail) return Status::Error(StatusCode::kInvalidArgument, "bad");
    if (kind_ == Kind::kRun) return Status::Ok();
    const Incoming in = Receive(0, {}, {});
    return pipes->Exchange({}, {&in, 1});
  }

 private:
  Log* const log_;
  const Kind kind_;
};
using Kind = TestProgram::Kind;

class RankStreamTest : public ::testing::Test {
 protected:
  RankStreamTest() {
    proxy_ = std::move(proxy::Proxy::Start(Config(), nullptr, ProcessId{0}).value());
    auto pipes = Pipes::Open(proxy_.get(), 1, {ProcessId{0}}, 0, 65536);
    stream_ = std::make_shared<RankStream>(
        std::move(pipes.value()),
        [this](std::function<void()> task) { threads_.emplace_back(std::move(task)); });
  }
  ~RankStreamTest() override {
    for (std::thread& t : threads_) t.join();
  }
  void Enqueue(uint64_t number, Kind kind = Kind::kRun) {
    stream_->Enqueue(
        number, std::make_unique<TestProgram>(&log_, kind), [this, number](const Status& status) {
          log_.Add(std::to_string(number) + " " + (status.ok() ? "ok" : status.detail));
        });
  }

  std::unique_ptr<proxy::Proxy> proxy_;
  Log log_;
  std::vector<std::thread> threads_;
  std::shared_ptr<RankStream> stream_;
};
using Lines = std::vector<std::string>;

TEST_F(RankStreamTest, RunsInTheOrderOfNumbers) {
  Enqueue(2);
  Enqueue(1);
  EXPECT_TRUE(threads_.empty());  // nothing is ready
  Enqueue(0);
  EXPECT_EQ(log_.Wait(6), (Lines{"run 0", "0 ok", "run 1", "1 ok", "run 2", "2 ok"}));
}

TEST_F(RankStreamTest, AFailureKeepsWhatIsBehindItFromRunning) {
  Enqueue(3);
  Enqueue(1, Kind::kFail);
  Enqueue(0);
  const Lines lines = log_.Wait(5);
  EXPECT_EQ(lines, (Lines{"run 0", "0 ok", "run 1", "3 bad", "1 bad"}));
  Enqueue(2);
  EXPECT_EQ(log_.Wait(6).back(), "2 bad");
}

TEST_F(RankStreamTest, FailFrom_EndsTheOneThatRuns) {
  Enqueue(0, Kind::kStuck);
  Enqueue(1);
  log_.Wait(1);
  stream_->FailFrom(0, Status::Error(StatusCode::kAborted, "enough"));
  const Lines lines = log_.Wait(3);
  EXPECT_EQ(lines[0], "run 0");
  EXPECT_NE(std::ranges::find(lines, "0 enough"), lines.end());
  EXPECT_NE(std::ranges::find(lines, "1 enough"), lines.end());
}

TEST_F(RankStreamTest, FailFrom_LeavesWhatIsBeforeAlone) {
  stream_->FailFrom(1, Status::Error(StatusCode::kAborted, "enough"));
  Enqueue(1);
  EXPECT_EQ(log_.Wait(1), (Lines{"1 enough"}));
  // It needs the pipes, from its own rank to itself.
  class Sends final : public Program {
    Status Run(Pipes* pipes, uint64_t) override {
      const Outgoing out = Send(0, {}, {});
      const Incoming in = Receive(0, {}, {});
      return pipes->Exchange({&out, 1}, {&in, 1});
    }
  };
  stream_->Enqueue(0, std::make_unique<Sends>(), [this](const Status& status) {
    log_.Add(status.ok() ? "0 ok" : status.detail);
  });
  EXPECT_EQ(log_.Wait(2).back(), "0 ok");
}

TEST(Place, WordsAndBack) {
  for (const Place& place : {Place{0, 0}, Place{3, 1}, Place{Place::kMaxLanes - 1, 1ull << 47}}) {
    const Place back = Place::FromWord(place.AsWord());
    EXPECT_EQ(back.lane, place.lane);
    EXPECT_EQ(back.number, place.number);
  }
}

}  // namespace
}  // namespace uccl::executor
