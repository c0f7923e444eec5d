// In steady state packets cost no heap allocation: this test counts calls of operator new.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "csrc/core/connection.h"
#include "csrc/core/testing/messages.h"
#include "csrc/core/testing/simulation.h"

namespace {
uint64_t allocations = 0;
}  // namespace

// Not inlined: gcc would see free() meet operator new and warn.
[[gnu::noinline]] void* operator new(size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace uccl::core {
namespace {

using testing::DefaultConfig;
using testing::TestMessage;

// Hands datagrams over by hand, losing every `drop_every`-th, without a network that would allocate
// itself.
class Pump final {
 public:
  explicit Pump(const ConnectionConfig& config) : datagram_(config.max_datagram_bytes) {
    ends_[0] = std::move(Connection::Make(config).value());
    ends_[1] = std::move(Connection::Make(testing::Mirror(config)).value());
  }
  Connection& end(int i) { return *ends_[i]; }
  Nanos now() const { return now_; }

  // One turn of each end. Returns the packets moved.
  int Turn(uint64_t drop_every) {
    int moved = 0;
    for (int from : {0, 1}) {
      now_ += FromMicros(20);
      if (ends_[from]->NextTimeout() <= now_) ends_[from]->OnTimeout(now_);
      for (int i = 0; i < 32; ++i) {
        const std::optional<Datagram> d = ends_[from]->PollTransmit(now_);
        if (!d.has_value()) break;
        ++moved;
        if (drop_every != 0 && ++count_ % drop_every == 0) continue;
        std::ranges::copy(d->header, datagram_.begin());
        std::ranges::copy(d->payload, datagram_.begin() + static_cast<ptrdiff_t>(d->header.size()));
        ends_[1 - from]->OnDatagram(now_, d->path,
                                    Bytes(datagram_).first(d->header.size() + d->payload.size()));
      }
      while (ends_[from]->PollEvent().has_value()) {
      }
    }
    return moved;
  }

 private:
  std::array<std::unique_ptr<Connection>, 2> ends_;
  std::vector<std::byte> datagram_;
  Nanos now_{1'000'000};
  uint64_t count_ = 0;
};

void ExpectNoAllocationPerPacket(uint64_t drop_every) {
  ConnectionConfig config = DefaultConfig();
  config.window_bytes = 256 * 1024;
  Pump pump(config);
  TestMessage m(1, 48 << 20);
  pump.end(1).PostRecv(pump.now(), m.info, m.target.body(), 1);
  pump.end(0).Send(pump.now(), m.info, m.contents, 1);
  int moved = 0;
  while (moved < 15'000) moved += pump.Turn(drop_every);  // all queues reach their size
  const uint64_t before = allocations;
  moved = 0;
  while (moved < 15'000) moved += pump.Turn(drop_every);
  EXPECT_EQ(allocations - before, 0u) << "in " << moved << " packets";
  EXPECT_FALSE(pump.end(0).Drained()) << "the transfer was to go on all the while";
}

TEST(Allocation, NoneWithoutLoss) { ExpectNoAllocationPerPacket(0); }
TEST(Allocation, NoneWithLoss) { ExpectNoAllocationPerPacket(97); }

// Small messages are not packets of a stream: each may cost a few, but a bounded few.
TEST(Allocation, FewPerSmallMessage) {
  Pump pump(DefaultConfig());
  std::vector<std::unique_ptr<TestMessage>> messages;
  for (uint64_t i = 0; i < 2000; ++i) messages.push_back(std::make_unique<TestMessage>(i + 1, 64));
  uint64_t before = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (i == 1000) before = allocations;
    TestMessage& m = *messages[i];
    pump.end(1).PostRecv(pump.now(), m.info, m.target.body(), m.token);
    pump.end(0).Send(pump.now(), m.info, m.contents, m.token);
    pump.Turn(0);
    ASSERT_TRUE(m.Arrived());
  }
  EXPECT_LE(allocations - before, 1000u * 5)
      << "receive, its two index nodes, the early record and its index node";
}

}  // namespace
}  // namespace uccl::core
