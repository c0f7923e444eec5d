// Messages between two connections over a network that delivers: matching, order, mismatch, cancel,
// failure.
#include "csrc/core/connection.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "csrc/core/testing/messages.h"
#include "csrc/core/testing/simulation.h"
#include "csrc/wire/packet.h"

namespace uccl::core {
namespace {

using testing::DefaultConfig;
using testing::Simulation;
using testing::TestMessage;

constexpr Nanos kSecond = FromMillis(1000);

void Send(Simulation* sim, int from, TestMessage* m) {
  sim->end(from).Send(sim->now(), m->info, m->contents, m->token);
}
void Post(Simulation* sim, int to, TestMessage* m) {
  sim->end(to).PostRecv(sim->now(), m->info, m->target.body(), m->token);
}
bool Arrives(Simulation* sim, int to, TestMessage* m) {
  if (!sim->RunUntilEvent(to, EventKind::kRecvDone, m->token, sim->now() + 10 * kSecond))
    return false;
  const Event* event = sim->Find(to, EventKind::kRecvDone, m->token);
  return event->status.ok() && testing::Same(event->remote, m->info) && m->Arrived();
}
bool Drains(Simulation* sim) {
  return sim->RunUntil([&] { return sim->end(0).Drained() && sim->end(1).Drained(); },
                       sim->now() + 10 * kSecond);
}

// ---- settings ----

TEST(Connection, RefusesImpossibleSettings) {
  const auto refused = [](auto change) {
    ConnectionConfig config = DefaultConfig();
    change(&config);
    const auto made = Connection::Make(config);
    return made.ok() ? std::string() : made.status().ToString();
  };
  EXPECT_EQ(refused([](ConnectionConfig*) {}), "");
  EXPECT_EQ(refused([](ConnectionConfig* c) { c->max_datagram_bytes = 540; }), "");
  EXPECT_NE(refused([](ConnectionConfig* c) {
              c->max_datagram_bytes = 539;
            }).find("must be 540 to 65535"),
            std::string::npos);
  EXPECT_NE(refused([](ConnectionConfig* c) { c->max_datagram_bytes = 65536; }).find("65536"),
            std::string::npos);
  EXPECT_NE(refused([](ConnectionConfig* c) { c->num_paths = 0; }).find("paths"),
            std::string::npos);
  EXPECT_NE(refused([](ConnectionConfig* c) { c->path_policy = "best"; }).find("round_robin"),
            std::string::npos);
  EXPECT_NE(refused([](ConnectionConfig* c) { c->congestion_control = "warp"; }).find("none"),
            std::string::npos);
}

TEST(Connection, IdleConnectionNeedsNothing) {
  Simulation sim(DefaultConfig(), 1);
  EXPECT_EQ(sim.end(0).NextTimeout(), kNever);
  EXPECT_FALSE(sim.end(0).PollTransmit(sim.now()).has_value());
  EXPECT_FALSE(sim.end(0).PollEvent().has_value());
  EXPECT_TRUE(sim.end(0).Drained());
  EXPECT_FALSE(sim.end(0).WaitingForPeer());
}

// ---- delivery ----

TEST(Connection, EverySizeInEveryOrderOfPosting) {
  const int64_t eager = DefaultConfig().eager_max_bytes;
  for (const int64_t size :
       {int64_t{0}, int64_t{1}, int64_t{8}, eager - 1, eager, eager + 1, int64_t{1'000'000}}) {
    for (const bool receive_first : {true, false}) {
      for (const int from : {0, 1}) {
        SCOPED_TRACE(::testing::Message()
                     << size << " bytes from " << from << ", receive first: " << receive_first);
        Simulation sim(DefaultConfig(), 1);
        TestMessage m(5, static_cast<size_t>(size));
        if (receive_first) {
          Post(&sim, 1 - from, &m);
          sim.RunFor(FromMillis(5));
          EXPECT_TRUE(sim.end(1 - from).WaitingForPeer());
        }
        Send(&sim, from, &m);
        sim.RunFor(FromMillis(5));
        if (!receive_first) {
          // Small ones are out of the sender's hands at once, large ones wait for their receive.
          EXPECT_EQ(sim.Find(from, EventKind::kSendDone, 5) != nullptr, size <= eager);
          EXPECT_EQ(sim.end(from).WaitingForPeer(), size > eager);
          EXPECT_EQ(sim.end(from).Drained(), size <= eager);
          EXPECT_EQ(sim.end(1 - from).Unexpected().size(), 1u);
          Post(&sim, 1 - from, &m);
        }
        EXPECT_TRUE(Arrives(&sim, 1 - from, &m));
        EXPECT_TRUE(Drains(&sim));
        EXPECT_NE(sim.Find(from, EventKind::kSendDone, 5), nullptr);
        EXPECT_EQ(sim.events(0).size() + sim.events(1).size(), 2u);
        EXPECT_TRUE(sim.end(1 - from).Unexpected().empty());
        EXPECT_FALSE(sim.end(0).WaitingForPeer() || sim.end(1).WaitingForPeer());
        EXPECT_EQ(sim.end(0).NextTimeout(), kNever) << "idle again";
      }
    }
  }
}

TEST(Connection, EagerSendCopies) {
  Simulation sim(DefaultConfig(), 1);
  TestMessage m(5, 3000);
  std::vector<std::byte> source = m.contents;
  sim.end(0).Send(sim.now(), m.info, source, 5);
  std::ranges::fill(source, std::byte{0});
  source = {};
  Post(&sim, 1, &m);
  EXPECT_TRUE(Arrives(&sim, 1, &m));
}

TEST(Connection, WrongBufferSizeIsRefused) {
  Simulation sim(DefaultConfig(), 1);
  TestMessage m(5, 100);
  sim.end(0).Send(sim.now(), m.info, Bytes(m.contents).first(99), 5);
  sim.end(1).PostRecv(sim.now(), m.info, m.target.body().first(99), 5);
  sim.RunFor(kSecond);
  ASSERT_EQ(sim.events(0).size(), 1u);
  ASSERT_EQ(sim.events(1).size(), 1u);
  EXPECT_EQ(sim.events(0)[0].status.code, StatusCode::kInvalidArgument);
  EXPECT_EQ(sim.events(1)[0].status.code, StatusCode::kInvalidArgument);
  EXPECT_TRUE(m.Untouched());
  EXPECT_FALSE(sim.end(1).WaitingForPeer());
}

TEST(Connection, ControlArrivesOnceAndWithoutAReceive) {
  Simulation sim(DefaultConfig(), 1);
  sim.end(0).SendControl(sim.now(), "hello");
  sim.end(0).SendControl(sim.now(), "");
  sim.end(1).SendControl(sim.now(), std::string(600, 'x'));
  ASSERT_TRUE(sim.RunUntil([&] { return sim.events(1).size() == 2 && sim.events(0).size() == 1; },
                           kSecond));
  EXPECT_EQ(sim.events(1)[0].kind, EventKind::kControl);
  EXPECT_EQ(sim.events(1)[0].control, "hello");
  EXPECT_EQ(sim.events(1)[1].control, "");
  EXPECT_EQ(sim.events(0)[0].control, std::string(512, 'x')) << "cut, as documented";
  EXPECT_TRUE(Drains(&sim));
}

TEST(Connection, SmallMessageOvertakesBulk) {
  ConnectionConfig config = DefaultConfig();
  config.window_bytes = 256 * 1024;
  Simulation sim(config, 1);
  sim.network.ForEachLink([](testing::Link& link) { link.delay = FromMillis(1); });
  TestMessage bulk(1, 16 << 20), small(2, 8);
  Post(&sim, 1, &bulk);
  Post(&sim, 1, &small);
  Send(&sim, 0, &bulk);
  sim.RunFor(FromMillis(20));
  const Nanos begin = sim.now();
  Send(&sim, 0, &small);
  ASSERT_TRUE(Arrives(&sim, 1, &small));
  EXPECT_LE(sim.now() - begin, FromMillis(3)) << "a round trip until the window opens, and one way";
  EXPECT_EQ(sim.Find(1, EventKind::kRecvDone, 1), nullptr)
      << "the bulk transfer is still under way";
  EXPECT_TRUE(Arrives(&sim, 1, &bulk));
}

TEST(Connection, GrantedMessagesTakeTurns) {
  ConnectionConfig config = DefaultConfig();
  config.window_bytes = 100'000;
  Simulation sim(config, 1);
  TestMessage large(1, 8 << 20), medium(2, 100'000);
  for (TestMessage* m : {&large, &medium}) {
    Post(&sim, 1, m);
    Send(&sim, 0, m);
  }
  ASSERT_TRUE(Arrives(&sim, 1, &medium));
  EXPECT_EQ(sim.Find(1, EventKind::kRecvDone, 1), nullptr);
  EXPECT_TRUE(Arrives(&sim, 1, &large));
}

TEST(Connection, DistinctTagsDoNotWaitForEachOther) {
  Simulation sim(DefaultConfig(), 1);
  TestMessage stuck_small(1, 100), stuck_large(2, 1 << 20), small(3, 100), large(4, 1 << 20);
  for (TestMessage* m : {&stuck_small, &stuck_large, &small, &large}) Send(&sim, 0, m);
  sim.RunFor(FromMillis(5));
  Post(&sim, 1, &large);
  Post(&sim, 1, &small);
  EXPECT_TRUE(Arrives(&sim, 1, &small));
  EXPECT_TRUE(Arrives(&sim, 1, &large));
  Post(&sim, 1, &stuck_large);
  Post(&sim, 1, &stuck_small);
  EXPECT_TRUE(Arrives(&sim, 1, &stuck_small));
  EXPECT_TRUE(Arrives(&sim, 1, &stuck_large));
}

TEST(Connection, WithoutCreditSmallMessagesWaitAtTheSender) {
  ConnectionConfig config = DefaultConfig();
  config.eager_buffer_bytes = 10'000;
  Simulation sim(config, 1);
  std::vector<std::unique_ptr<TestMessage>> messages;
  for (uint64_t i = 1; i <= 50; ++i) {
    messages.push_back(std::make_unique<TestMessage>(i, 1000));
    Send(&sim, 0, messages.back().get());
  }
  sim.RunFor(FromMillis(50));
  EXPECT_LE(sim.end(1).stats().eager_bytes_buffered, 10'000u);
  EXPECT_GT(sim.end(1).stats().eager_bytes_buffered, 8'000u);
  EXPECT_EQ(sim.end(1).Unexpected().size(), 50u);
  for (auto it = messages.rbegin(); it != messages.rend(); ++it) Post(&sim, 1, it->get());
  for (const auto& m : messages) EXPECT_TRUE(Arrives(&sim, 1, m.get())) << m->token;
  EXPECT_TRUE(Drains(&sim));
  // The credit is back: the next one goes eagerly.
  TestMessage last(99, 1000);
  Send(&sim, 0, &last);
  sim.RunFor(FromMillis(1));
  EXPECT_NE(sim.Find(0, EventKind::kSendDone, 99), nullptr);
}

TEST(Connection, TagIsUsedAgainAfterBothEndsAreDone) {
  Simulation sim(DefaultConfig(), 1);
  for (const size_t size : {10u, 100'000u, 0u, 20'000u}) {
    TestMessage m(5, size);
    Send(&sim, 0, &m);
    Post(&sim, 1, &m);
    ASSERT_TRUE(Arrives(&sim, 1, &m)) << size;
    ASSERT_TRUE(Drains(&sim));
    sim.events(0).clear();
    sim.events(1).clear();
  }
}

TEST(Connection, WindowSmallerThanAPacket) {
  ConnectionConfig config = DefaultConfig();
  config.window_bytes = 1;
  Simulation sim(config, 1);
  TestMessage eager(1, 10'000), large(2, 100'000);
  for (TestMessage* m : {&eager, &large}) {
    Send(&sim, 0, m);
    Post(&sim, 1, m);
    EXPECT_TRUE(Arrives(&sim, 1, m));
  }
  EXPECT_EQ(sim.end(0).stats().timeouts, 0u);
}

TEST(Connection, UnexpectedMessagesAreListedOldestFirst) {
  Simulation sim(DefaultConfig(), 1);
  TestMessage a(1, 100), b(2, 1 << 20), c(3, 0);
  for (TestMessage* m : {&a, &b, &c}) {
    Send(&sim, 0, m);
    sim.RunFor(FromMillis(1));
  }
  const std::vector<MessageInfo> listed = sim.end(1).Unexpected();
  ASSERT_EQ(listed.size(), 3u);
  EXPECT_TRUE(testing::Same(listed[0], a.info));
  EXPECT_TRUE(testing::Same(listed[1], b.info));
  EXPECT_TRUE(testing::Same(listed[2], c.info));
  EXPECT_EQ(sim.end(1).stats().unexpected_messages, 3u);
  Post(&sim, 1, &a);
  EXPECT_EQ(sim.end(1).Unexpected().size(), 2u);
}

TEST(Connection, AcksGoWhereSomethingCameFrom) {
  Simulation sim(DefaultConfig(4), 1);
  // Only path 2 works from the peer; the way there is free on all.
  for (size_t path : {0u, 1u, 3u}) sim.network.link(1, path).down = true;
  int elsewhere = 0;
  sim.network.set_filter([&](int from, PathId path, Bytes header, Bytes) {
    if (from == 0) return ToInt(path) == 2;  // as if the sender used this one only
    elsewhere += ToInt(path) != 2 && header[1] == static_cast<std::byte>(wire::PacketType::kAck);
    return true;
  });
  sim.end(0).SendControl(sim.now(), "a");
  EXPECT_TRUE(Drains(&sim));
  EXPECT_EQ(elsewhere, 0);
}

// ---- mismatch ----

class MismatchTest : public ::testing::TestWithParam<std::tuple<bool, bool, bool, bool>> {};

TEST_P(MismatchTest, IsReportedAndWritesNothing) {
  const auto [send_large, recv_large, same_size, receive_first] = GetParam();
  Simulation sim(DefaultConfig(), 1);
  const size_t send_size = send_large ? 100'000 : 1000;
  size_t recv_size = recv_large ? 100'000 : 1000;
  if (send_large == recv_large && !same_size) recv_size += 8;
  TestMessage sent(5, send_size, 70), wanted(5, recv_size, same_size ? 71 : 70);
  if (receive_first) Post(&sim, 1, &wanted);
  if (receive_first) sim.RunFor(FromMillis(2));
  Send(&sim, 0, &sent);
  sim.RunFor(FromMillis(2));
  if (!receive_first) Post(&sim, 1, &wanted);
  sim.RunFor(kSecond);

  const Event* seen = sim.Find(1, EventKind::kMismatch, 5);
  ASSERT_NE(seen, nullptr);
  EXPECT_TRUE(testing::Same(seen->remote, sent.info));
  EXPECT_EQ(sim.Find(1, EventKind::kRecvDone, 5), nullptr);
  EXPECT_TRUE(wanted.Untouched());
  if (send_large) {
    // A large message is not gone yet, so its sender learns of it too.
    const Event* theirs = sim.Find(0, EventKind::kMismatch, 5);
    ASSERT_NE(theirs, nullptr);
    EXPECT_TRUE(testing::Same(theirs->remote, wanted.info));
    EXPECT_EQ(sim.Find(0, EventKind::kSendDone, 5), nullptr);
  }
  EXPECT_FALSE(sim.end(0).WaitingForPeer() || sim.end(1).WaitingForPeer());
  EXPECT_EQ(sim.end(1).stats().eager_bytes_buffered, 0u);
  // The connection goes on.
  TestMessage next(6, 50'000);
  Send(&sim, 0, &next);
  Post(&sim, 1, &next);
  EXPECT_TRUE(Arrives(&sim, 1, &next));
  EXPECT_TRUE(Drains(&sim));
}

INSTANTIATE_TEST_SUITE_P(Connection, MismatchTest,
                         ::testing::Combine(::testing::Bool(), ::testing::Bool(), ::testing::Bool(),
                                            ::testing::Bool()));

// ---- cancel ----

TEST(Connection, CancelOfAHalfSentMessageYieldsSkips) {
  ConnectionConfig config = DefaultConfig();
  config.window_bytes = 50'000;
  Simulation sim(config, 1);
  TestMessage m(5, 1 << 20);
  Post(&sim, 1, &m);
  Send(&sim, 0, &m);
  sim.RunFor(FromMillis(1));
  // What is in flight gets lost, so that it is owed when the message is withdrawn.
  sim.network.ForEachLink([](testing::Link& link) { link.down = true; });
  sim.RunFor(FromMillis(3));
  const uint64_t payload_before = sim.end(0).stats().payload_bytes_sent;
  sim.end(0).CancelSend(sim.now(), 5);
  m.contents = {};  // the memory is gone
  int skips = 0;
  sim.network.set_filter([&](int from, PathId, Bytes header, Bytes) {
    skips += from == 0 && header[1] == static_cast<std::byte>(wire::PacketType::kSkip);
    return true;
  });
  sim.network.Heal();
  EXPECT_TRUE(Drains(&sim));
  EXPECT_GT(skips, 0);
  EXPECT_EQ(sim.end(0).stats().payload_bytes_sent, payload_before);
  EXPECT_EQ(sim.Find(0, EventKind::kSendDone, 5), nullptr);
  EXPECT_EQ(sim.Find(1, EventKind::kRecvDone, 5), nullptr);
  sim.end(1).CancelRecv(sim.now(), 5);
  TestMessage next(6, 1 << 20);
  Send(&sim, 0, &next);
  Post(&sim, 1, &next);
  EXPECT_TRUE(Arrives(&sim, 1, &next));
  EXPECT_TRUE(Drains(&sim));
  EXPECT_EQ(sim.end(0).NextTimeout(), kNever);
}

TEST(Connection, CancelledReceiveIsNotWritten) {
  for (const size_t size : {1000u, 1u << 20}) {
    ConnectionConfig config = DefaultConfig();
    config.window_bytes = 20'000;
    Simulation sim(config, 1);
    TestMessage m(5, size);
    Post(&sim, 1, &m);
    Send(&sim, 0, &m);
    sim.RunFor(FromMicros(300));  // large: some of it is here
    if (sim.Find(1, EventKind::kRecvDone, 5) == nullptr) {
      sim.end(1).CancelRecv(sim.now(), 5);
      m.target.Clear();
      sim.RunFor(kSecond);
      EXPECT_TRUE(m.Untouched());
      EXPECT_EQ(sim.Find(1, EventKind::kRecvDone, 5), nullptr);
    } else {
      EXPECT_EQ(size, 1000u);
    }
    EXPECT_TRUE(Drains(&sim)) << "what nobody wants is acknowledged all the same";
    EXPECT_NE(sim.Find(0, EventKind::kSendDone, 5), nullptr);
  }
}

TEST(Connection, CancelBeforeArrivalGivesTheCreditBack) {
  ConnectionConfig config = DefaultConfig();
  config.eager_buffer_bytes = 3000;
  Simulation sim(config, 1);
  for (uint64_t token = 1; token <= 100; ++token) {
    TestMessage m(token, 1000);
    Post(&sim, 1, &m);
    sim.end(1).CancelRecv(sim.now(), token);
    Send(&sim, 0, &m);
    sim.RunFor(FromMillis(1));
    ASSERT_NE(sim.Find(0, EventKind::kSendDone, token), nullptr)
        << "no credit for message " << token;
    ASSERT_TRUE(m.Untouched());
  }
  EXPECT_EQ(sim.end(1).stats().eager_bytes_buffered, 0u);
  EXPECT_TRUE(sim.end(1).Unexpected().empty());
}

TEST(Connection, GrantOfACancelledSendIsVoid) {
  Simulation sim(DefaultConfig(), 1);
  TestMessage m(5, 100'000);
  Send(&sim, 0, &m);
  sim.RunFor(FromMillis(1));
  sim.end(0).CancelSend(sim.now(), 5);
  Post(&sim, 1, &m);
  sim.RunFor(kSecond);
  EXPECT_EQ(sim.Find(1, EventKind::kRecvDone, 5), nullptr);
  EXPECT_TRUE(m.Untouched());
  sim.end(1).CancelRecv(sim.now(), 5);
  EXPECT_TRUE(Drains(&sim));
  EXPECT_FALSE(sim.end(1).WaitingForPeer());
}

TEST(Connection, NoEventFollowsACancel) {
  auto made = Connection::Make(DefaultConfig());
  ASSERT_TRUE(made.ok());
  Connection& connection = *made.value();
  TestMessage small(5, 10);
  connection.Send(Nanos(1), small.info, small.contents, 5);  // done at once, but not fetched yet
  connection.CancelSend(Nanos(1), 5);
  EXPECT_FALSE(connection.PollEvent().has_value());
  connection.CancelSend(Nanos(1), 77);  // never given: nothing happens
  connection.CancelRecv(Nanos(1), 77);
}

// ---- failure ----

TEST(Connection, FailReportsEveryTokenFirst) {
  Simulation sim(DefaultConfig(), 1);
  TestMessage waiting(1, 100'000), posted(2, 10), early(3, 100'000);
  Send(&sim, 0, &waiting);
  Post(&sim, 0, &posted);
  Post(&sim, 0, &early);
  sim.RunFor(FromMillis(1));
  sim.events(0).clear();
  sim.end(0).Fail(Status::Error(StatusCode::kNicError, "unplugged"));
  sim.end(0).Fail(Status::Error(StatusCode::kPeerLost, "the first failure counts"));
  sim.RunFor(FromMillis(1));
  ASSERT_EQ(sim.events(0).size(), 4u);
  EXPECT_NE(sim.Find(0, EventKind::kSendDone, 1), nullptr);
  EXPECT_NE(sim.Find(0, EventKind::kRecvDone, 2), nullptr);
  EXPECT_NE(sim.Find(0, EventKind::kRecvDone, 3), nullptr);
  EXPECT_EQ(sim.events(0).back().kind, EventKind::kFailed);
  for (const Event& event : sim.events(0)) EXPECT_EQ(event.status.code, StatusCode::kNicError);

  EXPECT_TRUE(sim.end(0).failed());
  EXPECT_EQ(sim.end(0).NextTimeout(), kNever);
  EXPECT_FALSE(sim.end(0).PollTransmit(sim.now()).has_value());
  sim.events(0).clear();
  TestMessage late_send(8, 10), late_recv(9, 10);
  Send(&sim, 0, &late_send);
  Post(&sim, 0, &late_recv);
  sim.end(0).SendControl(sim.now(), "x");
  sim.end(0).CancelSend(sim.now(), 1);
  sim.end(0).CancelRecv(sim.now(), 2);
  sim.RunFor(FromMillis(1));
  ASSERT_EQ(sim.events(0).size(), 2u);
  EXPECT_EQ(sim.Find(0, EventKind::kSendDone, 8)->status.code, StatusCode::kNicError);
  EXPECT_EQ(sim.Find(0, EventKind::kRecvDone, 9)->status.code, StatusCode::kNicError);
}

}  // namespace
}  // namespace uccl::core
