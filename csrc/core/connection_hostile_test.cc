// Datagrams that are damaged, foreign, old, or from a peer that breaks the rules: never a crash,
// never a wrong byte.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "csrc/core/connection.h"
#include "csrc/core/sender.h"
#include "csrc/core/testing/crafter.h"
#include "csrc/core/testing/messages.h"
#include "csrc/core/testing/random.h"
#include "csrc/core/testing/simulation.h"
#include "csrc/wire/packet.h"

namespace uccl::core {
namespace {

using testing::Crafter;
using testing::DefaultConfig;
using testing::Describe;
using testing::Pattern;
using testing::Random;
using testing::Simulation;
using testing::TestMessage;

// ---- what strangers and networks do ----

TEST(Hostile, GarbageFlipsReplaysAndForeignKeysChangeNothing) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    ConnectionConfig config = DefaultConfig();
    config.window_bytes = 64 * 1024;
    Simulation sim(config, seed);
    Random random(seed);
    std::vector<std::pair<int, std::vector<std::byte>>> recorded;
    sim.network.set_filter([&](int from, PathId, Bytes header, Bytes payload) {
      std::vector<std::byte> whole(header.begin(), header.end());
      whole.insert(whole.end(), payload.begin(), payload.end());
      const int to = 1 - from;
      const auto path = static_cast<PathId>(random.Below(4));
      const Nanos when = sim.now() + FromMicros(static_cast<int64_t>(random.Magnitude(1, 5000)));
      if (random.Chance(0.3)) {
        std::vector<std::byte> flipped = whole;
        const uint64_t flips = random.Between(1, 3);  // the checksum finds up to three for certain
        for (uint64_t i = 0; i < flips; ++i) {
          flipped[random.Below(flipped.size())] ^= static_cast<std::byte>(1u << random.Below(8));
        }
        if (flipped != whole) sim.network.Inject(when, to, path, flipped);
      }
      if (random.Chance(0.2)) {
        std::vector<std::byte> garbage(random.Below(1500));
        for (std::byte& b : garbage) b = static_cast<std::byte>(random.Next());
        if (!garbage.empty() && random.Chance(0.5))
          garbage[0] = static_cast<std::byte>(wire::kVersion);
        sim.network.Inject(when, to, path, garbage);
      }
      if (random.Chance(0.1)) recorded.emplace_back(to, whole);
      if (!recorded.empty() && random.Chance(0.2)) {
        const auto& [end, bytes] = recorded[random.Below(recorded.size())];
        sim.network.Inject(when, end, path, bytes);
      }
      if (random.Chance(0.1)) {
        Crafter stranger(random.Next(), static_cast<uint32_t>(random.Next()));
        sim.network.Inject(when, to, path, stranger.Control(whole));
      }
      return true;
    });
    std::vector<std::unique_ptr<TestMessage>> messages;
    for (uint64_t i = 0; i < 20; ++i) {
      messages.push_back(std::make_unique<TestMessage>(i + 1, random.Magnitude(1, 200'000)));
      TestMessage* m = messages.back().get();
      const int from = static_cast<int>(i % 2);
      sim.end(from).Send(sim.now(), m->info, m->contents, m->token);
      sim.end(1 - from).PostRecv(sim.now(), m->info, m->target.body(), m->token + 100);
    }
    const auto done = [&] {
      return sim.events(0).size() + sim.events(1).size() == 2 * messages.size();
    };
    ASSERT_TRUE(sim.RunUntil(done, sim.now() + FromMillis(60'000)));
    sim.RunFor(FromMillis(20));  // stragglers
    EXPECT_EQ(sim.events(0).size() + sim.events(1).size(), 2 * messages.size());
    for (const auto& m : messages) EXPECT_TRUE(m->Arrived()) << m->token;
    for (int i : {0, 1}) {
      const ConnectionStats stats = sim.end(i).stats();
      EXPECT_FALSE(sim.end(i).failed());
      EXPECT_GT(stats.malformed, 0u);
      EXPECT_GT(stats.bad_checksum, 0u);
      EXPECT_GT(stats.wrong_key, 0u);
      EXPECT_GT(stats.duplicates, 0u);
    }
  }
}

TEST(Hostile, RandomButWellFormedPackets) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    Random random(seed);
    ConnectionConfig config = DefaultConfig(3);
    config.eager_buffer_bytes = 20'000;
    auto made = Connection::Make(config);
    ASSERT_TRUE(made.ok());
    Connection& c = *made.value();
    std::vector<std::unique_ptr<TestMessage>> posted, sent;
    Nanos now(1'000'000);
    for (uint64_t i = 1; i <= 6; ++i) {
      posted.push_back(std::make_unique<TestMessage>(i, random.Magnitude(1, 40'000)));
      c.PostRecv(now, posted.back()->info, posted.back()->target.body(), i);
      sent.push_back(std::make_unique<TestMessage>(10 + i, random.Magnitude(1, 40'000)));
      c.Send(now, sent.back()->info, sent.back()->contents, 10 + i);
    }
    Crafter peer(config.recv_key, config.initial_recv_psn);
    for (int i = 0; i < 200 && !c.failed(); ++i) {
      now += FromMicros(static_cast<int64_t>(random.Magnitude(1, 3000)));
      peer.set_path(static_cast<uint16_t>(random.Below(5)));
      peer.set_timestamp(random.Chance(0.5) ? static_cast<uint32_t>(ToMicros(now))
                                            : static_cast<uint32_t>(random.Next()));
      if (random.Chance(0.2))
        peer.set_psn(config.initial_recv_psn + static_cast<uint32_t>(random.Below(400)));
      const std::vector<std::byte> payload =
          Pattern(random.Chance(0.3) ? 0 : random.Below(1100), i);
      MessageInfo info =
          random.Chance(0.5) ? posted[random.Below(6)]->info : sent[random.Below(6)]->info;
      if (random.Chance(0.1)) info.size_bytes = random.Next();
      if (random.Chance(0.1)) info.digest = random.Next();
      const auto number = static_cast<uint32_t>(random.Below(8));
      const uint64_t offset = random.Chance(0.1) ? random.Next() : random.Below(40'000);
      Crafter::Packet packet;
      switch (random.Below(8)) {
        case 0:
          packet = peer.Eager(info, number, static_cast<uint32_t>(offset), payload);
          break;
        case 1:
          packet = peer.Request(info, number);
          break;
        case 2:
          packet = peer.Grant(info, number);
          break;
        case 3:
        case 4:
          packet = peer.Data(number, offset, payload);
          break;
        case 5:
          packet = random.Chance(0.5) ? peer.Control(payload) : peer.Skip();
          break;
        case 6:
          packet = peer.Probe();
          break;
        default: {
          wire::Ack ack;
          ack.next = random.Chance(0.1)
                         ? static_cast<uint32_t>(random.Next())
                         : config.initial_send_psn + static_cast<uint32_t>(random.Below(20));
          ack.eager_consumed_bytes = random.Chance(0.5) ? random.Next() : random.Below(10'000);
          ack.num_echoes = static_cast<uint8_t>(random.Below(wire::kMaxEchoes + 1));
          for (wire::Echo& echo : ack.echoes) {
            echo = {static_cast<uint16_t>(random.Below(5)), static_cast<uint16_t>(random.Next()),
                    static_cast<uint16_t>(random.Next()),
                    static_cast<uint32_t>(random.Chance(0.5) ? random.Next()
                                                             : ToMicros(now) - random.Below(1000))};
          }
          const std::vector<std::byte> bitmap = Pattern(random.Below(wire::kMaxBitmapBytes + 1), i);
          ack.bitmap_bytes = static_cast<uint16_t>(bitmap.size());
          ack.bitmap = bitmap.data();
          packet = peer.Ack(ack);
        }
      }
      c.OnDatagram(now, PathId{0}, packet);
      while (c.PollEvent().has_value()) {
      }
      for (int k = 0; k < 50; ++k) {
        if (!c.PollTransmit(now).has_value()) break;
      }
      if (c.NextTimeout() <= now) c.OnTimeout(now);
      ASSERT_GE(c.stats().inflight_bytes, 0) << "seed " << seed;
      ASSERT_LE(c.stats().eager_bytes_buffered, c.failed() ? UINT64_MAX : 20'000u)
          << "seed " << seed;
    }
    for (const auto& m : posted) ASSERT_TRUE(m->target.GuardsIntact()) << "seed " << seed;
  }
}

// ---- a peer that breaks the rules ----

class BadPeerTest : public ::testing::Test {
 protected:
  BadPeerTest() : peer_(config_.recv_key, config_.initial_recv_psn) {
    config_.eager_max_bytes = 1000;
    config_.eager_buffer_bytes = 5000;
    auto made = Connection::Make(config_);
    connection_ = std::move(made.value());
  }
  void Give(const Crafter::Packet& packet) {
    connection_->OnDatagram(now_ += FromMicros(1), PathId{0}, packet);
  }
  void Post(TestMessage* m) { connection_->PostRecv(now_, m->info, m->target.body(), m->token); }
  // The text of the failure, or nothing.
  std::string Failure() {
    std::string text;
    while (std::optional<Event> event = connection_->PollEvent()) {
      if (event->kind != EventKind::kFailed) continue;
      EXPECT_EQ(event->status.code, StatusCode::kProtocol);
      text = event->status.detail;
    }
    EXPECT_EQ(connection_->failed(), !text.empty());
    return text;
  }

  ConnectionConfig config_ = DefaultConfig();
  Nanos now_{1'000'000};
  Crafter peer_;
  std::unique_ptr<Connection> connection_;
};

TEST_F(BadPeerTest, HonestOneFirst) {
  TestMessage small(1, 600), large(2, 5000);
  Post(&small);
  Post(&large);
  Give(peer_.Eager(small.info, 0, 0, small.contents));
  Give(peer_.Data(0, 2000, Bytes(large.contents).subspan(2000)));
  Give(peer_.Request(large.info, 1));
  Give(peer_.Data(0, 0, Bytes(large.contents).first(2000)));
  EXPECT_EQ(Failure(), "");
  EXPECT_TRUE(small.Arrived());
  EXPECT_TRUE(large.Arrived());
}

TEST_F(BadPeerTest, MoreEagerBytesThanItsCredit) {
  const std::vector<std::byte> payload(1000);
  for (uint32_t i = 0; i < 4; ++i) Give(peer_.Eager(Describe(i, 1000), i, 0, payload));
  EXPECT_EQ(Failure(), "") << "4512 of 5000";
  Give(peer_.Eager(Describe(9, 1000), 9, 0, payload));
  EXPECT_NE(Failure().find("eager bytes ahead, limit 5000"), std::string::npos);
}

TEST_F(BadPeerTest, EmptyEagerMessagesHaveTheirPriceToo) {
  const auto most = static_cast<uint32_t>(5000 / kEagerOverheadBytes);
  for (uint32_t i = 0; i < most; ++i) Give(peer_.Eager(Describe(i, 0), i, 0, {}));
  EXPECT_EQ(Failure(), "");
  Give(peer_.Eager(Describe(999, 0), 999, 0, {}));
  EXPECT_NE(Failure(), "");
}

TEST_F(BadPeerTest, EagerMessageLargerThanAgreed) {
  Give(peer_.Eager(Describe(1, 1001), 0, 0, {}));
  EXPECT_NE(Failure().find("limit 1000"), std::string::npos);
}

TEST_F(BadPeerTest, EagerBytesBeyondTheMessage) {
  for (const uint32_t offset : {401u, 601u, 0xffff'ffffu}) {
    auto fresh = Connection::Make(config_);
    connection_ = std::move(fresh.value());
    peer_ = Crafter(config_.recv_key, config_.initial_recv_psn);
    TestMessage m(1, 600);
    Post(&m);
    Give(peer_.Eager(m.info, 0, offset, Bytes(m.contents).first(200)));
    EXPECT_NE(Failure(), "") << offset;
    EXPECT_TRUE(m.Untouched());
  }
}

TEST_F(BadPeerTest, EagerPacketsThatDisagree) {
  Give(peer_.Eager(Describe(1, 600), 0, 0, std::vector<std::byte>(100)));
  Give(peer_.Eager(Describe(1, 700), 0, 100, std::vector<std::byte>(100)));
  EXPECT_NE(Failure().find("disagree"), std::string::npos);
}

TEST_F(BadPeerTest, EagerBytesSentTwice) {
  Give(peer_.Eager(Describe(1, 600), 0, 0, std::vector<std::byte>(500)));
  Give(peer_.Eager(Describe(1, 600), 0, 0, std::vector<std::byte>(500)));
  EXPECT_NE(Failure(), "");
}

TEST_F(BadPeerTest, DataOutsideTheReceive) {
  const std::vector<std::byte> payload(1000);
  for (const uint64_t offset : {uint64_t{4001}, uint64_t{5001}, UINT64_MAX - 10, UINT64_MAX}) {
    auto fresh = Connection::Make(config_);
    connection_ = std::move(fresh.value());
    peer_ = Crafter(config_.recv_key, config_.initial_recv_psn);
    TestMessage m(1, 5000);
    Post(&m);
    Give(peer_.Data(0, offset, payload));
    EXPECT_NE(Failure().find("does not fit"), std::string::npos) << offset;
    EXPECT_TRUE(m.Untouched());
  }
}

TEST_F(BadPeerTest, MoreDataThanTheMessageHas) {
  TestMessage m(1, 5000);
  Post(&m);
  for (int i = 0; i < 5; ++i) Give(peer_.Data(0, 0, std::vector<std::byte>(1000)));
  EXPECT_EQ(Failure(), "") << "its own data is damaged; nothing else is";
  Give(peer_.Data(0, 0, std::vector<std::byte>(1)));
  EXPECT_NE(Failure(), "");
}

TEST_F(BadPeerTest, DataForNobodyIsDropped) {
  Give(peer_.Data(77, 0, std::vector<std::byte>(1000)));
  EXPECT_EQ(Failure(), "");
}

TEST_F(BadPeerTest, OutsideTheWindowIsNotAcknowledged) {
  peer_.set_psn(config_.initial_recv_psn + static_cast<uint32_t>(kReceiveWindowPackets));
  Give(peer_.Skip());
  EXPECT_EQ(connection_->stats().out_of_window, 1u);
  EXPECT_FALSE(connection_->PollTransmit(now_).has_value());
}

TEST_F(BadPeerTest, AckOfWhatWasNeverSent) {
  TestMessage m(1, 100);
  connection_->Send(now_, m.info, m.contents, 1);
  ASSERT_TRUE(connection_->PollTransmit(now_).has_value());
  wire::Ack ack;
  ack.next = config_.initial_send_psn + 2;
  Give(peer_.Ack(ack));
  EXPECT_EQ(connection_->stats().malformed, 1u);
  EXPECT_FALSE(connection_->Drained());
  const std::vector<std::byte> bitmap(wire::kMaxBitmapBytes, std::byte{0xff});
  ack.next = config_.initial_send_psn;
  ack.bitmap = bitmap.data();
  ack.bitmap_bytes = static_cast<uint16_t>(bitmap.size());
  Give(peer_.Ack(ack));
  EXPECT_FALSE(connection_->Drained()) << "bits beyond what was sent mean nothing";
  ack.next = config_.initial_send_psn + 1;
  Give(peer_.Ack(ack));
  EXPECT_TRUE(connection_->Drained());
}

// ---- beyond 4 GiB ----

constexpr uint64_t kHuge = (uint64_t{4} << 30) + 100'000;

// Memory that exists only where it is touched.
std::unique_ptr<std::byte, decltype(&std::free)> Sparse(size_t size) {
  return {static_cast<std::byte*>(std::calloc(size, 1)), &std::free};
}

TEST_F(BadPeerTest, ReceivesBeyond4GiB) {
  const auto memory = Sparse(kHuge);
  if (memory == nullptr) GTEST_SKIP() << "no 4 GiB of address space";
  const MessageInfo info = Describe(1, kHuge);
  const std::vector<std::byte> payload = Pattern(1000, 5);
  connection_->PostRecv(now_, info, MutableBytes(memory.get(), kHuge), 1);
  Give(peer_.Request(info, 0));
  Give(peer_.Data(0, kHuge - 1000, payload));
  EXPECT_EQ(Failure(), "");
  EXPECT_TRUE(std::equal(payload.begin(), payload.end(), memory.get() + kHuge - 1000));
  EXPECT_EQ(memory.get()[(kHuge - 1000) & 0xffff'ffff], std::byte{0})
      << "not at the offset modulo 2^32";
  Give(peer_.Data(0, kHuge - 999, payload));
  EXPECT_NE(Failure(), "");
}

TEST_F(BadPeerTest, SendsBeyond4GiB) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer keeps four bytes for each that is read: 16 GiB here";
#endif
  const auto memory = Sparse(kHuge);
  if (memory == nullptr) GTEST_SKIP() << "no 4 GiB of address space";
  config_.max_datagram_bytes = 65'535;
  config_.window_bytes = 4 << 20;
  connection_ = std::move(Connection::Make(config_).value());
  const MessageInfo info = Describe(1, kHuge);
  connection_->Send(now_, info, Bytes(memory.get(), kHuge), 1);
  Give(peer_.Grant(info, 0));
  wire::Ack ack;
  ack.next = config_.initial_send_psn;
  uint64_t next_offset = 0;
  while (!connection_->Drained()) {
    int sent = 0;
    while (const std::optional<Datagram> datagram = connection_->PollTransmit(now_)) {
      const auto type = static_cast<wire::PacketType>(datagram->header[1]);
      if (type == wire::PacketType::kAck) continue;
      ++sent;
      ++ack.next;
      if (type != wire::PacketType::kData) continue;
      ASSERT_EQ(wire::DecodeData(datagram->header.subspan(wire::kHeaderBytes)).offset, next_offset);
      ASSERT_EQ(datagram->payload.data(), memory.get() + next_offset);
      next_offset += datagram->payload.size();
    }
    ASSERT_GT(sent, 0) << "stuck at " << next_offset;
    Give(peer_.Ack(ack));
  }
  EXPECT_EQ(next_offset, kHuge);
  const std::optional<Event> event = connection_->PollEvent();
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->kind, EventKind::kSendDone);
}

}  // namespace
}  // namespace uccl::core
