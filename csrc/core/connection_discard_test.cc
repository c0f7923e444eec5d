// What a peer sends ahead: dropped when the operation that would take it was given up before it
// began, and bounded when nobody ever takes it.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "csrc/core/connection.h"
#include "csrc/core/sender.h"
#include "csrc/core/testing/crafter.h"
#include "csrc/core/testing/messages.h"
#include "csrc/core/testing/simulation.h"
#include "csrc/core/testing/transfer.h"
#include "csrc/wire/packet.h"

namespace uccl::core {
namespace {

using testing::Crafter;
using testing::DefaultConfig;
using testing::Describe;
using testing::Finish;
using testing::Simulation;
using testing::Start;
using testing::TestMessage;

ConnectionConfig Config() {
  ConnectionConfig config = DefaultConfig();
  config.eager_max_bytes = 1000;
  config.eager_buffer_bytes = 5000;
  return config;
}

TEST(Discard, AnEagerMessageThatIsHereGivesItsCreditBack) {
  Simulation sim(Config(), 1);
  // More than the buffer holds, one after the other.
  for (uint64_t i = 1; i <= 20; ++i) {
    TestMessage m(i, 900);
    sim.end(0).Send(sim.now(), m.info, m.contents, m.token);
    sim.RunFor(FromMillis(1));
    ASSERT_EQ(sim.end(1).Unexpected().size(), 1u) << i;
    EXPECT_EQ(sim.end(1).stats().eager_bytes_buffered, 900u + kEagerOverheadBytes);
    sim.end(1).Discard(/*is_send=*/false, m.info.tag);
    EXPECT_TRUE(sim.end(1).Unexpected().empty());
    EXPECT_EQ(sim.end(1).stats().eager_bytes_buffered, 0u);
    sim.RunFor(FromMillis(1));
    EXPECT_EQ(sim.events(0).size(), i) << "it went eagerly, so its credit came back";
  }
}

TEST(Discard, AnEagerMessageOfWhichHalfIsHere) {
  ConnectionConfig config = Config();
  auto made = Connection::Make(config);
  Connection& c = *made.value();
  Crafter peer(config.recv_key, config.initial_recv_psn);
  TestMessage m(1, 1000);
  const Nanos now = FromMillis(1);
  c.OnDatagram(now, PathId{0}, peer.Eager(m.info, 0, 0, Bytes(m.contents).first(500)));
  c.Discard(/*is_send=*/false, m.info.tag);
  EXPECT_TRUE(c.Unexpected().empty());
  c.OnDatagram(now, PathId{0}, peer.Eager(m.info, 0, 500, Bytes(m.contents).subspan(500)));
  EXPECT_EQ(c.stats().eager_bytes_buffered, 0u);
  EXPECT_FALSE(c.failed());
}

TEST(Discard, ARequestThatIsHere) {
  Simulation sim(Config(), 1);
  TestMessage m(1, 50'000);
  sim.end(0).Send(sim.now(), m.info, m.contents, m.token);
  sim.RunFor(FromMillis(1));
  ASSERT_EQ(sim.end(1).Unexpected().size(), 1u);
  sim.end(1).Discard(/*is_send=*/false, m.info.tag);
  EXPECT_TRUE(sim.end(1).Unexpected().empty());
  sim.end(0).CancelSend(sim.now(), m.token);  // as all members of a failed operation do
  sim.RunFor(FromMillis(1));
  EXPECT_TRUE(sim.end(0).Drained() && sim.end(1).Drained());
  TestMessage next(2, 50'000);
  Start(&sim, &next);
  EXPECT_TRUE(Finish(&sim, &next));
}

TEST(Discard, WhatComesLater) {
  Simulation sim(Config(), 1);
  TestMessage small(1, 900), large(2, 50'000);
  for (const TestMessage* m : {&small, &large}) {
    sim.end(1).Discard(/*is_send=*/false, m->info.tag);
    sim.end(0).Send(sim.now(), m->info, m->contents, m->token);
  }
  sim.RunFor(FromMillis(1));
  EXPECT_TRUE(sim.end(1).Unexpected().empty());
  EXPECT_EQ(sim.end(1).stats().eager_bytes_buffered, 0u);
}

TEST(Discard, WhatIsReceivedAfterAllStays) {
  Simulation sim(Config(), 1);
  TestMessage m(1, 900);
  sim.end(1).PostRecv(sim.now(), m.info, m.target.body(), m.token);
  sim.end(1).Discard(/*is_send=*/false, m.info.tag);
  sim.end(0).Send(sim.now(), m.info, m.contents, m.token);
  EXPECT_TRUE(Finish(&sim, &m));
}

// A grant that no message meets would meet the next one of the tag. Tags are not used again; here
// that shows what was kept.
TEST(Discard, GrantsBeforeAndAfter) {
  for (const bool before : {true, false}) {
    SCOPED_TRACE(before);
    ConnectionConfig config = Config();
    auto made = Connection::Make(config);
    Connection& c = *made.value();
    Crafter peer(config.recv_key, config.initial_recv_psn);
    TestMessage m(1, 50'000);
    const Nanos now = FromMillis(1);
    if (!before) c.Discard(/*is_send=*/true, m.info.tag);
    c.OnDatagram(now, PathId{0}, peer.Grant(m.info, 0));
    if (before) c.Discard(/*is_send=*/true, m.info.tag);
    c.Send(now, m.info, m.contents, m.token);
    std::vector<wire::PacketType> sent;
    while (const std::optional<Datagram> datagram = c.PollTransmit(now))
      sent.push_back(static_cast<wire::PacketType>(datagram->header[1]));
    EXPECT_EQ(sent, (std::vector{wire::PacketType::kAck, wire::PacketType::kRequest}))
        << "no data: the grant is gone";
  }
}

// ---- bounds ----

class FloodTest : public ::testing::Test {
 protected:
  FloodTest() : peer_(config_.recv_key, config_.initial_recv_psn) {
    connection_ = std::move(Connection::Make(config_).value());
  }
  void Give(const Crafter::Packet& packet) { connection_->OnDatagram(now_, PathId{0}, packet); }
  std::string Failure() {
    std::string text;
    while (std::optional<Event> event = connection_->PollEvent()) {
      if (event->kind != EventKind::kFailed) continue;
      EXPECT_EQ(event->status.code, StatusCode::kProtocol);
      text = event->status.detail;
    }
    return text;
  }

  ConnectionConfig config_ = Config();
  const Nanos now_{1'000'000};
  Crafter peer_;
  std::unique_ptr<Connection> connection_;
};

TEST_F(FloodTest, RequestsAreBounded) {
  for (uint32_t i = 0; i < kMaxOpenMessages; ++i) Give(peer_.Request(Describe(i, 5000), i));
  EXPECT_FALSE(connection_->failed());
  EXPECT_EQ(connection_->Unexpected().size(), kMaxOpenMessages);
  // Those that are met, or dropped, make room.
  TestMessage met(7, 5000);
  connection_->PostRecv(now_, met.info, met.target.body(), 1);
  connection_->Discard(/*is_send=*/false, Describe(8, 0).tag);
  Give(peer_.Request(Describe(1'000'000, 5000), 0));
  Give(peer_.Request(Describe(1'000'001, 5000), 0));
  EXPECT_FALSE(connection_->failed());
  Give(peer_.Request(Describe(1'000'002, 5000), 0));
  EXPECT_NE(Failure().find("more than 65536 messages"), std::string::npos);
  EXPECT_TRUE(connection_->Unexpected().empty());
}

// Of one tag, to whatever tables make of that. (It took a walk along the line for each.)
TEST_F(FloodTest, RequestsOfOneTagAreBounded) {
  for (uint32_t i = 0; i < kMaxOpenMessages; ++i) Give(peer_.Request(Describe(1, 5000), i));
  EXPECT_FALSE(connection_->failed());
  Give(peer_.Request(Describe(1, 5000), 0));
  EXPECT_NE(Failure().find("65536"), std::string::npos);
}

TEST_F(FloodTest, GrantsAreBounded) {
  for (uint32_t i = 0; i < kMaxOpenMessages; ++i) Give(peer_.Grant(Describe(i, 5000), i));
  EXPECT_FALSE(connection_->failed());
  Give(peer_.Grant(Describe(1'000'000, 5000), 0));
  EXPECT_NE(Failure().find("granted more than 65536 messages"), std::string::npos);
}

// The own application is told before it makes the peer believe in a violation.
TEST(OpenMessages, AreRefusedBeyondTheLimit) {
  auto made = Connection::Make(Config());
  Connection& c = *made.value();
  TestMessage m(1, 1001);
  const Nanos now = FromMillis(1);
  for (const bool is_send : {true, false}) {
    const uint64_t base = is_send ? 0 : kMaxOpenMessages + 1;
    const auto open = [&](uint64_t i) {
      const MessageInfo info = Describe(i, 1001);
      if (is_send) {
        c.Send(now, info, m.contents, base + i);
      } else {
        c.PostRecv(now, info, m.target.body(), base + i);
      }
    };
    for (uint64_t i = 0; i < kMaxOpenMessages; ++i) open(i);
    EXPECT_FALSE(c.PollEvent().has_value());
    open(kMaxOpenMessages);
    const std::optional<Event> refused = c.PollEvent();
    ASSERT_TRUE(refused.has_value());
    EXPECT_EQ(refused->token, base + kMaxOpenMessages);
    EXPECT_EQ(refused->status.code, StatusCode::kResourceExhausted);
    EXPECT_NE(refused->status.detail.find("65536"), std::string::npos);
  }
  EXPECT_FALSE(c.failed());
}

}  // namespace
}  // namespace uccl::core
