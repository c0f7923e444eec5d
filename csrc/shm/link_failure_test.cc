// How a link ends: goodbye, silence, death, giving up, and peers that break the protocol.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "csrc/core/watch.h"
#include "csrc/shm/link.h"
#include "csrc/shm/testing/pair.h"

namespace uccl::shm {
namespace {

using testing::Info;
using testing::Pair;
using testing::PairOptions;
using testing::Pattern;

// The loss that was told, if it was; at most once.
const core::Event* Lost(Pair& pair, size_t end) {
  const core::Event* lost = nullptr;
  for (const core::Event& event : pair.events(end)) {
    if (event.kind != core::EventKind::kFailed) continue;
    EXPECT_EQ(lost, nullptr) << "told twice";
    lost = &event;
  }
  return lost;
}

TEST(LinkEnd, Goodbye_IsQuietAndLeavesEarlyMessagesToBeReceived) {
  Pair pair;
  const std::vector<std::byte> data = Pattern(500, 1);
  std::vector<std::byte> buffer(500);
  pair[0].Send(Info(1, 500), data, 1);
  pair[0].Leave();
  EXPECT_TRUE(pair[0].Left());
  pair[0].Abort(Status::Error(StatusCode::kAborted, "shut down"));
  pair.Run();
  pair.Check(1, FromMillis(1));
  EXPECT_EQ(Lost(pair, 1), nullptr);
  EXPECT_EQ(Lost(pair, 0), nullptr);
  pair[1].PostRecv(Info(1, 500), buffer, 11);
  pair[1].PostRecv(Info(2, 500), buffer, 12);  // never comes
  pair[1].Send(Info(3, 500), data, 13);
  pair.Run();
  EXPECT_EQ(buffer, data);
  EXPECT_TRUE(pair.EventOf(1, 11)->status.ok());
  EXPECT_EQ(pair.EventOf(1, 12)->status.code, StatusCode::kPeerLost);
  EXPECT_EQ(pair.EventOf(1, 12)->status.detail, "process 0 shut down");
  EXPECT_EQ(pair.EventOf(1, 13)->status.code, StatusCode::kPeerLost);
  EXPECT_EQ(Lost(pair, 1), nullptr) << "answered, not lost";
}

// Whoever watches hears of it, and what was sent last is there for those who ask later.
TEST(LinkEnd, Goodbye_ToAWatcherIsTold_AndLeavesEarlyMessagesAllTheSame) {
  Pair pair;
  const std::vector<std::byte> data = Pattern(500, 1);
  std::vector<std::byte> buffer(500);
  core::MessageInfo watch;
  watch.tag = core::WatchTag(1);
  pair[1].PostRecv(watch, {}, 10);
  pair[0].Send(Info(1, 500), data, 1);
  pair[0].Leave();
  pair.Run();
  ASSERT_NE(Lost(pair, 1), nullptr);
  EXPECT_EQ(Lost(pair, 1)->status.detail, "process 0 shut down");
  EXPECT_EQ(pair.CountOf(1, 10), 1u);
  EXPECT_EQ(pair.EventOf(1, 10)->status.code, StatusCode::kPeerLost);
  pair[1].PostRecv(Info(1, 500), buffer, 11);
  pair.Run();
  EXPECT_TRUE(pair.EventOf(1, 11)->status.ok());
  EXPECT_EQ(buffer, data);
  pair[1].Fail(Status::Error(StatusCode::kPeerLost, "again"));
  pair.Run();
  EXPECT_NE(Lost(pair, 1), nullptr);
}

// Controls that were handed out, in order.
std::vector<std::string> Controls(Pair& pair, size_t end) {
  std::vector<std::string> controls;
  for (const core::Event& event : pair.events(end)) {
    if (event.kind == core::EventKind::kControl) controls.push_back(event.control);
  }
  return controls;
}

TEST(LinkEnd, Controls_AreSeenBeforeTheGoodbye) {
  Pair pair;
  std::vector<std::byte> buffer(500);
  pair[1].PostRecv(Info(1, 500), buffer, 11);  // so that the goodbye is a loss
  pair[0].SendControl("why");
  pair[0].SendControl(std::string(kMaxControlBytes + 1, 'x'));
  pair[0].SendControl("");
  EXPECT_TRUE(pair[0].Waiting());
  pair.Run();
  EXPECT_EQ(Controls(pair, 1),
            (std::vector<std::string>{"why", std::string(kMaxControlBytes, 'x'), ""}));
  EXPECT_FALSE(pair[0].Drained()) << "handed out, but nobody said that it was seen";
  for (const core::Event& event : pair.events(1)) pair[1].ControlTaken(event.token);
  pair.Run();
  EXPECT_TRUE(pair[0].Drained());
  EXPECT_FALSE(pair[0].Waiting());
  pair[0].Leave();
  pair[0].SendControl("too late");
  EXPECT_TRUE(pair[0].Drained());
  pair.Run();
  EXPECT_EQ(Controls(pair, 1).size(), 3u);
  ASSERT_NE(Lost(pair, 1), nullptr);
}

TEST(LinkEnd, Controls_WaitForRoomInTheRing) {
  Pair pair({.ring_bytes = 4096});
  constexpr size_t kControls = 40;  // of 200 bytes
  for (size_t i = 0; i < kControls; ++i) pair[0].SendControl(std::string(200, 'a') + char('0' + i));
  EXPECT_GT(pair[0].stats().ring_full, 0u);
  pair.Run();
  const std::vector<std::string> controls = Controls(pair, 1);
  ASSERT_EQ(controls.size(), kControls);
  for (size_t i = 0; i < kControls; ++i) EXPECT_EQ(controls[i].back(), char('0' + i));
}

TEST(LinkEnd, Controls_ToAPeerThatLeavesAreDropped) {
  Pair pair;
  pair[1].Leave();
  pair[0].SendControl("crosses the goodbye");
  EXPECT_FALSE(pair[0].Drained());
  (void)pair.Turn(0);
  EXPECT_TRUE(pair[0].Drained());
  EXPECT_FALSE(pair[0].Waiting());
  pair.Check(0, FromMillis(1));
  EXPECT_EQ(Lost(pair, 0), nullptr) << "nothing of ours was outstanding";
}

TEST(LinkEnd, Goodbye_WhileSomethingIsOutstandingIsALoss) {
  Pair pair;
  std::vector<std::byte> buffer(500);
  pair[1].PostRecv(Info(2, 500), buffer, 12);
  pair[0].Leave();
  pair.Run();
  EXPECT_EQ(pair.EventOf(1, 12)->status.code, StatusCode::kPeerLost);
  ASSERT_NE(Lost(pair, 1), nullptr);
  EXPECT_EQ(Lost(pair, 1)->status.process, 0);
}

TEST(LinkEnd, GivingUp_IsSeenByThePeerBeforeItTrustsWhatItRead) {
  Pair pair;
  const std::vector<std::byte> data = Pattern(3 << 20, 1);
  std::vector<std::byte> buffer(data.size());
  pair[1].PostRecv(Info(1, data.size()), buffer, 11);
  pair[0].Send(Info(1, data.size()), data, 1);
  pair.Turn(1, /*copy=*/false);
  std::vector<Link::Piece> pieces;
  while (const auto piece = pair[1].Claim()) pieces.push_back(*piece);
  ASSERT_EQ(pieces.size(), 3u);
  Deliveries d;
  pair[1].Finish(pieces[0], pair[1].Copy(pieces[0]), &d);
  pair[0].Abort(Status::Error(StatusCode::kAborted, "shut down"));
  pair.Turn(0);
  EXPECT_EQ(pair.EventOf(0, 1)->status.code, StatusCode::kAborted);
  for (size_t i = 1; i < 3; ++i) pair[1].Finish(pieces[i], pair[1].Copy(pieces[i]), &d);
  pair.Take(1, &d);
  pair.Run();
  ASSERT_EQ(pair.CountOf(1, 11), 1u);
  EXPECT_EQ(pair.EventOf(1, 11)->status.code, StatusCode::kPeerLost);
  ASSERT_NE(Lost(pair, 1), nullptr);
  EXPECT_EQ(pair.events(1).back().kind, core::EventKind::kFailed) << "after the tokens";
}

TEST(LinkEnd, ABorrowedMessageOfAPeerThatGaveUp_IsNotTrusted) {
  for (const bool read_failed : {false, true}) {
    Pair pair;
    const std::vector<std::byte> data = Pattern(100'000, 1);
    std::vector<std::byte> buffer(data.size());
    pair[1].PostRecv(Info(1, data.size()), buffer, 11, /*borrow=*/true);
    pair[0].Send(Info(1, data.size()), data, 1);
    pair.Run();
    ASSERT_NE(pair.EventOf(1, 11)->address, 0u);
    Status read;
    if (read_failed) {
      read = Status::Error(StatusCode::kPeerLost, "gone");
    } else {
      pair[0].Fail(Status::Error(StatusCode::kPeerLost, "gave up"));
    }
    EXPECT_EQ(pair[1].Return(11, read).code, StatusCode::kPeerLost);
    pair.Run();
    EXPECT_EQ(pair.CountOf(1, 11), 1u) << "its one event was that it was lent";
    ASSERT_NE(Lost(pair, 1), nullptr);
    EXPECT_EQ(pair[1].Return(11, Status::Ok()).code, StatusCode::kPeerLost);
  }
}

TEST(LinkEnd, Fail_WaitsForCopiesAndReportsEveryTokenOnce) {
  Pair pair;
  const std::vector<std::byte> data = Pattern(3 << 20, 1);
  std::vector<std::byte> buffer(data.size());
  pair[1].PostRecv(Info(1, data.size()), buffer, 11);
  pair[1].PostRecv(Info(2, 10), buffer, 12);
  pair[1].Send(Info(3, data.size()), data, 13);
  pair[0].Send(Info(1, data.size()), data, 1);
  pair.Turn(1, /*copy=*/false);
  const auto piece = pair[1].Claim();
  ASSERT_TRUE(piece.has_value());
  pair[1].Fail(Status::Error(StatusCode::kPeerLost, "lost elsewhere"));
  pair.Turn(1, false);
  EXPECT_TRUE(pair.EventOf(1, 12) && pair.EventOf(1, 13));
  EXPECT_FALSE(pair.EventOf(1, 11).has_value()) << "a thread still copies into it";
  EXPECT_EQ(Lost(pair, 1), nullptr);
  Deliveries d;
  pair[1].Finish(*piece, pair[1].Copy(*piece), &d);
  pair.Take(1, &d);
  for (const uint64_t token : {11, 12, 13}) {
    ASSERT_EQ(pair.CountOf(1, token), 1u) << token;
    EXPECT_EQ(pair.EventOf(1, token)->status.detail, "lost elsewhere");
  }
  EXPECT_NE(Lost(pair, 1), nullptr);
  // Later calls are answered alike.
  pair[1].PostRecv(Info(4, 10), buffer, 14);
  pair[1].Send(Info(5, 10), Bytes(data).first(10), 15);
  pair.Turn(1);
  EXPECT_TRUE(pair.EventOf(1, 14) && pair.EventOf(1, 15));
}

TEST(LinkEnd, ACancelledSendIsFreedWhenTheLinkEnds) {
  Pair pair;
  const std::vector<std::byte> data = Pattern(50'000, 1);
  pair[0].Send(Info(1, data.size()), data, 1);
  bool freed = false;
  EXPECT_FALSE(pair[0].Cancel(true, 1, [&] { freed = true; }));
  pair[0].Fail(Status::Error(StatusCode::kPeerLost, "gone"));
  pair.Turn(0);
  EXPECT_TRUE(freed);
  EXPECT_EQ(pair.CountOf(0, 1), 0u);
}

TEST(LinkEnd, Silence_IsJudgedByTheTurnsOfThePeersThread) {
  Pair pair;  // a second of silence is allowed
  std::vector<std::byte> buffer(10);
  pair.Check(1, FromMillis(0));
  pair.Check(1, FromMillis(5000));
  EXPECT_EQ(Lost(pair, 1), nullptr) << "nothing waits for the peer";
  pair[1].PostRecv(Info(1, 10), buffer, 11);
  for (int ms = 5000; ms <= 9000; ms += 500) {
    pair.segment(0).header()->turns.fetch_add(1);  // its thread runs, though nothing comes
    pair.Check(1, FromMillis(ms));
  }
  EXPECT_EQ(Lost(pair, 1), nullptr);
  const uint32_t rung = pair.segment(0).header()->bell.load();
  pair.Check(1, FromMillis(9900));
  EXPECT_EQ(Lost(pair, 1), nullptr);
  EXPECT_GT(pair.segment(0).header()->bell.load(), rung) << "asked for a turn";
  pair.Check(1, FromMillis(10'000));
  ASSERT_NE(Lost(pair, 1), nullptr);
  EXPECT_EQ(Lost(pair, 1)->status.code, StatusCode::kPeerLost);
  EXPECT_NE(Lost(pair, 1)->status.detail.find("1000 ms (peer_silence_ms)"), std::string::npos)
      << Lost(pair, 1)->status.detail;
  EXPECT_EQ(pair.EventOf(1, 11)->status.code, StatusCode::kPeerLost);
}

// Writes one raw record as end 0 and looks how end 1 takes it.
void ExpectBroken(const std::string& what, uint32_t kind, uint64_t id, Bytes body,
                  const std::function<void(Pair&)>& before = nullptr) {
  SCOPED_TRACE(what);
  Pair pair;
  if (before) before(pair);
  pair.Run();
  RingHeader* const header = pair.segment(1).ring(0);
  RingWriter writer(header, pair.segment(1).data(0), pair.segment(1).ring_bytes());
  std::byte* const at = writer.Reserve(kind, id, body.size());
  ASSERT_NE(at, nullptr);
  if (!body.empty()) std::memcpy(at, body.data(), body.size());
  writer.Commit();
  std::vector<std::byte> buffer(10);
  pair[1].PostRecv(Info(77, 10), buffer, 77);
  pair.Turn(1);
  ASSERT_NE(Lost(pair, 1), nullptr);
  EXPECT_EQ(Lost(pair, 1)->status.code, StatusCode::kProtocol);
  EXPECT_EQ(Lost(pair, 1)->status.process, 0);
  EXPECT_EQ(pair.EventOf(1, 77)->status.code, StatusCode::kProtocol);
}

template <class T>
Bytes Raw(const T& value) {
  return Bytes(reinterpret_cast<const std::byte*>(&value), sizeof(value));
}

TEST(LinkEnd, MalformedRecords_FailTheLinkAndNothingElse) {
  const auto kind = [](RecordKind k) { return static_cast<uint32_t>(k); };
  const RecordInfo small = ToRecord(Info(1, 4));
  const OfferBody offer{ToRecord(Info(2, 5000)), 0x1000};
  ExpectBroken("unknown kind", 99, 0, {});
  ExpectBroken("a message without its description", kind(RecordKind::kMessage), 0,
               Raw(small).first(10));
  ExpectBroken("a message longer than it says", kind(RecordKind::kMessage), 0,
               Raw(OfferBody{ToRecord(Info(1, 4)), 0}));
  ExpectBroken("a message too long to be kept", kind(RecordKind::kMessage), 1,
               Raw(ToRecord(Info(1, size_t{1} << 60))));
  // One of 100 bytes of which 8 came.
  const auto begun = [kind](Pair& pair) {
    const OfferBody begin{ToRecord(Info(3, 100)), 0};
    RingWriter writer(pair.segment(1).ring(0), pair.segment(1).data(0),
                      pair.segment(1).ring_bytes());
    std::byte* const at = writer.Reserve(kind(RecordKind::kMessage), 1, sizeof(begin));
    std::memcpy(at, &begin, sizeof(begin));
    writer.Commit();
  };
  std::vector<std::byte> fragment(sizeof(FragmentBody) + 100);
  const auto at = [&fragment](uint64_t offset, size_t bytes) {
    std::memcpy(fragment.data(), &offset, sizeof(offset));
    return Bytes(fragment).first(sizeof(offset) + bytes);
  };
  ExpectBroken("a fragment too many", kind(RecordKind::kFragment), 1, at(8, 93), begun);
  ExpectBroken("a fragment of another place", kind(RecordKind::kFragment), 1, at(9, 1), begun);
  ExpectBroken("the same message twice", kind(RecordKind::kMessage), 1, Raw(small), begun);
  ExpectBroken("an offer under the number of a message", kind(RecordKind::kOffer), 1, Raw(offer),
               begun);
  ExpectBroken("half an offer", kind(RecordKind::kOffer), 1, Raw(offer).first(64));
  ExpectBroken("half a refusal", kind(RecordKind::kRefused), 1, Raw(small).first(63));
  ExpectBroken("half a fragment", kind(RecordKind::kFragment), 1, Raw(small).first(7));
  ExpectBroken("the same offer twice", kind(RecordKind::kOffer), 1, Raw(offer), [](Pair& pair) {
    static const std::vector<std::byte> data(5000);
    pair[0].Send(Info(2, 5000), data, 1);
  });
}

TEST(LinkEnd, AnswersToUnknownOffers_AreIgnored) {
  Pair pair;
  RingHeader* const header = pair.segment(1).ring(0);
  RingWriter writer(header, pair.segment(1).data(0), pair.segment(1).ring_bytes());
  for (const RecordKind kind :
       {RecordKind::kDone, RecordKind::kWant, RecordKind::kDropped, RecordKind::kWithdraw}) {
    ASSERT_NE(writer.Reserve(static_cast<uint32_t>(kind), 1234, 0), nullptr);
    writer.Commit();
  }
  pair.Turn(1);
  EXPECT_EQ(Lost(pair, 1), nullptr);
  EXPECT_TRUE(pair.events(1).empty());
}

TEST(LinkEnd, AnOfferOfMemoryThatIsNotThere_FailsTheLink) {
  Pair pair;
  RingHeader* const header = pair.segment(1).ring(0);
  RingWriter writer(header, pair.segment(1).data(0), pair.segment(1).ring_bytes());
  const OfferBody offer{ToRecord(Info(1, 5000)), 0x10};
  std::byte* const at = writer.Reserve(static_cast<uint32_t>(RecordKind::kOffer), 1, sizeof(offer));
  std::memcpy(at, &offer, sizeof(offer));
  writer.Commit();
  std::vector<std::byte> buffer(5000);
  pair[1].PostRecv(Info(1, 5000), buffer, 11);
  pair.Run();
  ASSERT_TRUE(pair.EventOf(1, 11).has_value());
  EXPECT_EQ(pair.EventOf(1, 11)->status.code, StatusCode::kPeerLost);
  EXPECT_NE(Lost(pair, 1), nullptr);
}

TEST(LinkEnd, AnotherSession_IsNotHeard) {
  Pair pair;
  std::vector<std::byte> buffer(10);
  const std::vector<std::byte> data = Pattern(10, 1);
  pair.segment(1).ring(0)->session.store(6);
  pair[1].PostRecv(Info(1, 10), buffer, 11);
  pair[0].Send(Info(1, 10), data, 1);
  pair.Run();
  EXPECT_FALSE(pair.EventOf(1, 11).has_value());
}

TEST(PeerProcess, ItsDeathIsSeen_AndItsMemoryIsNot) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte = 0;
    (void)!read(fds[0], &byte, 1);
    _exit(0);
  }
  auto process = PeerProcess::Open(child);
  ASSERT_TRUE(process.ok()) << process.status().ToString();
  EXPECT_TRUE(process.value()->Alive());
  uint64_t word = 1;
  static uint64_t here = 42;  // a copy of it lies at the same place of the child
  const MutableBytes to(reinterpret_cast<std::byte*>(&word), sizeof(word));
  const Status read = process.value()->Read(to, reinterpret_cast<uint64_t>(&here));
  EXPECT_TRUE(read.ok()) << read.ToString();
  EXPECT_EQ(word, 42u);
  EXPECT_FALSE(process.value()->Read(to, 16).ok());
  ASSERT_EQ(kill(child, SIGKILL), 0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(process.value()->Alive());
  EXPECT_FALSE(process.value()->Read(to, reinterpret_cast<uint64_t>(&here)).ok());
  const auto again = PeerProcess::Open(child);
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.status().code, StatusCode::kPeerLost);
  close(fds[0]);
  close(fds[1]);
}

}  // namespace
}  // namespace uccl::shm
