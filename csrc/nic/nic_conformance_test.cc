// What every network backend must do, run over each row of the registry. Two backends of the same
// kind live in this process and send to each other. A backend that cannot open here is skipped with
// its reason.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "csrc/nic/nic_backend.h"

namespace uccl::nic {
namespace {

using Clock = std::chrono::steady_clock;
constexpr Nanos kPatience =
    std::chrono::seconds(20);  // a hang ends the test, nothing waits this long

std::vector<std::byte> Pattern(size_t size, uint32_t seed) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>((seed + static_cast<uint32_t>(i) * 2654435761u) >> 13);
  }
  return bytes;
}

struct Received {
  PathId path;
  std::vector<std::byte> bytes;
};

// Collects datagrams of `nic` until there are `count` or `patience` is over without news.
std::vector<Received> Collect(NicBackend* nic, size_t count, Nanos patience = kPatience) {
  std::vector<Received> all;
  std::vector<Incoming> batch(16);
  auto deadline = Clock::now() + patience;
  while (all.size() < count) {
    const size_t n = nic->Poll(batch);
    for (size_t i = 0; i < n; ++i) {
      all.push_back({batch[i].path, {batch[i].datagram.begin(), batch[i].datagram.end()}});
    }
    if (n > 0) {
      deadline = Clock::now() + patience;
      continue;
    }
    const auto left = deadline - Clock::now();
    if (left.count() <= 0) break;
    nic->Wait(std::chrono::duration_cast<Nanos>(left), false);
  }
  return all;
}

class NicConformance : public testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    config_.backend = Backends()[GetParam()].name;
    config_.paths = 3;
    Result<std::unique_ptr<NicBackend>> a = OpenBackend(config_), b = OpenBackend(config_);
    if (!a.ok()) GTEST_SKIP() << config_.backend << ": " << a.status().ToString();
    ASSERT_TRUE(b.ok()) << b.status().ToString();
    a_ = std::move(a.value());
    b_ = std::move(b.value());
    Result<PeerHandle> to_b = a_->AddPeer(b_->LocalAddress());
    Result<PeerHandle> to_a = b_->AddPeer(a_->LocalAddress());
    ASSERT_TRUE(to_b.ok()) << to_b.status().ToString();
    ASSERT_TRUE(to_a.ok()) << to_a.status().ToString();
    to_b_ = to_b.value();
    to_a_ = to_a.value();
  }
  // Posts all of `batch`, waiting for room when the device is full.
  static void PostAll(NicBackend* nic, std::span<const Outgoing> batch) {
    const auto deadline = Clock::now() + kPatience;
    while (!batch.empty()) {
      ASSERT_LT(Clock::now(), deadline) << "the device never took the batch";
      const size_t taken = nic->PostSend(batch);
      ASSERT_LE(taken, batch.size());
      batch = batch.subspan(taken);
      if (!batch.empty()) nic->Wait(std::chrono::milliseconds(100), true);
    }
  }

  Config config_;
  std::unique_ptr<NicBackend> a_, b_;
  PeerHandle to_a_{}, to_b_{};
};

TEST_P(NicConformance, Capabilities_AreUsable) {
  const Capabilities& c = a_->capabilities();
  EXPECT_GE(c.num_paths, 1);
  EXPECT_LE(c.num_paths, config_.paths);
  EXPECT_GE(c.receive_buffer_bytes, 1);
  EXPECT_GE(a_->MaxDatagramBytes(to_b_), 1200u);
  EXPECT_LE(a_->MaxDatagramBytes(to_b_), c.max_datagram_bytes);
}

TEST_P(NicConformance, PostSend_GathersHeaderAndPayloadOfEverySize) {
  const size_t largest = a_->MaxDatagramBytes(to_b_);
  const std::vector<std::byte> header = Pattern(40, 1);
  for (const size_t size : {size_t{41}, size_t{1000}, size_t{1200}, largest / 2, largest}) {
    const std::vector<std::byte> payload =
        Pattern(size - header.size(), static_cast<uint32_t>(size));
    const Outgoing out{to_b_, PathId{0}, header, payload};
    PostAll(a_.get(), std::span(&out, 1));
    const std::vector<Received> got = Collect(b_.get(), 1);
    ASSERT_EQ(got.size(), 1u) << size;
    ASSERT_EQ(got[0].bytes.size(), size);
    EXPECT_EQ(std::memcmp(got[0].bytes.data(), header.data(), header.size()), 0);
    EXPECT_EQ(std::memcmp(got[0].bytes.data() + header.size(), payload.data(), payload.size()), 0);
  }
  const Outgoing bare{to_b_, PathId{0}, header, {}};
  PostAll(a_.get(), std::span(&bare, 1));
  const std::vector<Received> got = Collect(b_.get(), 1);
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].bytes, header);
}

TEST_P(NicConformance, PostSend_PathArrivesAtTheSamePathOfThePeer) {
  // Paths alternate as a spraying policy makes them; each datagram carries its path and number.
  std::vector<std::array<std::byte, 2>> contents;
  std::vector<Outgoing> batch;
  const uint16_t paths = a_->capabilities().num_paths;
  for (int i = 0; i < 60; ++i) contents.push_back({std::byte(i % paths), std::byte(i)});
  for (int i = 0; i < 60; ++i) {
    batch.push_back({to_b_, PathId{static_cast<uint16_t>(i % paths)}, contents[i], {}});
  }
  PostAll(a_.get(), batch);
  const std::vector<Received> got = Collect(b_.get(), batch.size());
  ASSERT_EQ(got.size(), batch.size());
  std::vector<bool> seen(60, false);
  std::map<int, int> last_of_path;
  for (const Received& r : got) {
    ASSERT_EQ(r.bytes.size(), 2u);
    EXPECT_EQ(static_cast<int>(r.bytes[0]), ToInt(r.path));
    const int number = static_cast<int>(r.bytes[1]);
    EXPECT_FALSE(seen[number]);
    seen[number] = true;
    if (a_->capabilities().ordered && last_of_path.contains(ToInt(r.path))) {
      EXPECT_GT(number, last_of_path[ToInt(r.path)]);
    }
    last_of_path[ToInt(r.path)] = number;
  }
}

TEST_P(NicConformance, PostSend_BothDirectionsDoNotMix) {
  const std::vector<std::byte> ab = Pattern(300, 5), ba = Pattern(500, 6);
  const Outgoing to_b{to_b_, PathId{0}, ab, {}}, to_a{to_a_, PathId{0}, ba, {}};
  PostAll(a_.get(), std::span(&to_b, 1));
  PostAll(b_.get(), std::span(&to_a, 1));
  const std::vector<Received> at_b = Collect(b_.get(), 1), at_a = Collect(a_.get(), 1);
  ASSERT_EQ(at_b.size(), 1u);
  ASSERT_EQ(at_a.size(), 1u);
  EXPECT_EQ(at_b[0].bytes, ab);
  EXPECT_EQ(at_a[0].bytes, ba);
}

TEST_P(NicConformance, PostSend_BeyondTheReceiversBufferLosesButNeverCorrupts) {
  // Twice what the receiver says it keeps, with nobody reading: some is lost, at least what was
  // promised arrives, and afterwards the device still works.
  const size_t size = std::min<size_t>(a_->MaxDatagramBytes(to_b_), 16384);
  const size_t promised = static_cast<size_t>(b_->capabilities().receive_buffer_bytes) / size;
  const size_t count = std::min<size_t>(promised * 2, 8192);
  const std::vector<std::byte> payload = Pattern(size - 4, 9);
  const uint16_t paths = a_->capabilities().num_paths;
  std::vector<uint32_t> numbers(count);
  std::vector<Outgoing> batch;
  for (size_t i = 0; i < count; ++i) {
    numbers[i] = static_cast<uint32_t>(i);
    batch.push_back({to_b_, PathId{static_cast<uint16_t>(i % paths)},
                     std::as_bytes(std::span(&numbers[i], 1)), payload});
  }
  PostAll(a_.get(), batch);
  const std::vector<Received> got = Collect(b_.get(), count, std::chrono::milliseconds(200));
  EXPECT_GE(got.size(), std::min(promised, count));
  std::vector<bool> seen(count, false);
  for (const Received& r : got) {
    ASSERT_EQ(r.bytes.size(), size);
    uint32_t number = 0;
    std::memcpy(&number, r.bytes.data(), sizeof(number));
    ASSERT_LT(number, count);
    EXPECT_FALSE(seen[number]);
    seen[number] = true;
    ASSERT_EQ(std::memcmp(r.bytes.data() + 4, payload.data(), payload.size()), 0);
  }
  PostAll(a_.get(), std::span(batch).first(1));
  EXPECT_EQ(Collect(b_.get(), 1).size(), 1u);
}

TEST_P(NicConformance, Poll_HonoursTheCallersLimit) {
  const std::vector<std::byte> bytes = Pattern(64, 2);
  std::vector<Outgoing> batch(10, Outgoing{to_b_, PathId{0}, bytes, {}});
  PostAll(a_.get(), batch);
  size_t got = 0;
  std::array<Incoming, 3> few;
  const auto deadline = Clock::now() + kPatience;
  while (got < batch.size() && Clock::now() < deadline) {
    const size_t n = b_->Poll(few);
    ASSERT_LE(n, few.size());
    got += n;
    if (n == 0) b_->Wait(std::chrono::seconds(1), false);
  }
  EXPECT_EQ(got, batch.size());
}

TEST_P(NicConformance, Wait_EndsAtItsTimeout) {
  const auto before = Clock::now();
  a_->Wait(std::chrono::milliseconds(3), false);
  const auto waited = Clock::now() - before;
  EXPECT_GE(waited, std::chrono::microseconds(2900));
  EXPECT_LT(waited, kPatience);
  a_->Wait(std::chrono::microseconds(50), false);
  a_->Wait(Nanos(0), false);
}

TEST_P(NicConformance, Wait_WithRoomToSendReturnsAtOnce) {
  const auto before = Clock::now();
  a_->Wait(kPatience, true);
  EXPECT_LT(Clock::now() - before, kPatience);
}

TEST_P(NicConformance, Wait_DatagramThatArrivedBeforeEndsIt) {
  const std::vector<std::byte> bytes = Pattern(64, 3);
  const Outgoing out{to_b_, PathId{0}, bytes, {}};
  PostAll(a_.get(), std::span(&out, 1));
  b_->Wait(kNever, false);
  EXPECT_EQ(Collect(b_.get(), 1).size(), 1u);
}

TEST_P(NicConformance, Wake_BeforeWaitEndsIt) {
  a_->Wake();
  a_->Wake();
  a_->Wait(kNever, false);
}

TEST_P(NicConformance, Wake_FromOtherThreadsIsNeverLost) {
  // Ping-pong of 2000 rounds between this thread, which sleeps without limit, and one that wakes it
  // after publishing a number. A lost wake hangs (the test runner's timeout ends it).
  constexpr int kRounds = 2000;
  std::atomic<int> published{0}, consumed{0};
  std::thread waker([&] {
    for (int i = 1; i <= kRounds; ++i) {
      published.store(i, std::memory_order_release);
      a_->Wake();
      while (consumed.load(std::memory_order_acquire) < i) std::this_thread::yield();
    }
  });
  for (int i = 1; i <= kRounds; ++i) {
    while (published.load(std::memory_order_acquire) < i) a_->Wait(kNever, false);
    consumed.store(i, std::memory_order_release);
  }
  waker.join();
  EXPECT_EQ(consumed.load(), kRounds);
}

TEST_P(NicConformance, AddPeer_RefusesWhatIsNotAnAddress) {
  for (const char* text : {"", "nonsense", "127.0.0.1"}) {
    Result<PeerHandle> peer = a_->AddPeer(text);
    ASSERT_FALSE(peer.ok()) << text;
    EXPECT_EQ(peer.status().code, StatusCode::kInvalidArgument);
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, NicConformance, testing::Range(size_t{0}, Backends().size()),
                         [](const auto& info) { return std::string(Backends()[info.param].name); });

TEST(NicRegistry, OpenBackend_UnknownNameListsTheKnown) {
  Config config;
  config.backend = "carrier_pigeon";
  Result<std::unique_ptr<NicBackend>> r = OpenBackend(config);
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.status().code, StatusCode::kInvalidArgument);
  EXPECT_NE(r.status().detail.find("carrier_pigeon"), std::string::npos);
  for (const BackendRow& row : Backends()) {
    EXPECT_NE(r.status().detail.find(row.name), std::string::npos);
  }
}

}  // namespace
}  // namespace uccl::nic
