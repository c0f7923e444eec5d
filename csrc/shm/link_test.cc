// Messages over a link, in all ways of moving them, in every order of its two ends.
#include "csrc/shm/link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "csrc/shm/testing/pair.h"

namespace uccl::shm {
namespace {

using testing::Info;
using testing::Pair;
using testing::PairOptions;
using testing::Pattern;

// What becomes of a message that is too long for one record.
struct Way {
  const char* name;
  bool offered;   // else it is sent at once
  bool one_copy;  // of one that is offered
};

class Links : public ::testing::TestWithParam<Way> {
 protected:
  static PairOptions Options() {
    PairOptions options;
    options.one_copy = GetParam().one_copy;
    if (!GetParam().offered) {
      options.eager_max_bytes = 16 << 20;
      options.eager_buffer_bytes = 64 << 20;
    }
    return options;
  }
  static bool OneCopy() { return GetParam().offered && GetParam().one_copy; }
};
INSTANTIATE_TEST_SUITE_P(Ways, Links,
                         ::testing::Values(Way{"OneCopy", true, true},
                                           Way{"TwoCopies", true, false},
                                           Way{"AtOnce", false, true}),
                         [](const auto& info) { return info.param.name; });

TEST_P(Links, MessagesOfAllSizes_ReceiverFirstAndSenderFirst) {
  for (const bool receiver_first : {true, false}) {
    Pair pair(Options());
    uint64_t name = 1;
    for (const size_t size : {0u, 1u, 63u, 1024u, 1025u, 5000u, 100'000u, 3'000'001u}) {
      const std::vector<std::byte> data = Pattern(size, name);
      std::vector<std::byte> buffer(size + 2, std::byte{0xee});
      const core::MessageInfo info = Info(name, size);
      const auto post = [&] {
        pair[1].PostRecv(info, MutableBytes(buffer).subspan(1, size), 100 + name);
      };
      if (receiver_first) post();
      pair[0].Send(info, data, name);
      pair.Run();
      if (!receiver_first) {
        EXPECT_EQ(pair[1].Unexpected().size(), 1u);
        post();
        pair.Run();
      }
      ASSERT_TRUE(pair.EventOf(0, name).has_value()) << size;
      ASSERT_TRUE(pair.EventOf(1, 100 + name).has_value()) << size;
      const core::Event received = *pair.EventOf(1, 100 + name);
      EXPECT_EQ(received.kind, core::EventKind::kRecvDone);
      EXPECT_TRUE(received.status.ok() && pair.EventOf(0, name)->status.ok());
      EXPECT_EQ(received.remote.note, info.note);
      EXPECT_TRUE(std::ranges::equal(Bytes(buffer).subspan(1, size), data)) << size;
      EXPECT_TRUE(buffer.front() == std::byte{0xee} && buffer.back() == std::byte{0xee});
      ++name;
    }
    EXPECT_TRUE(pair[0].Drained() && pair[1].Drained());
    const LinkStats sent = pair[0].stats(), received = pair[1].stats();
    EXPECT_EQ(sent.messages_sent, name - 1);
    EXPECT_EQ(received.messages_received, name - 1);
    EXPECT_EQ(sent.bytes_sent, received.bytes_received);
    EXPECT_EQ(received.kept_bytes, 0u);
    // The large ones went the way that was asked for.
    const uint64_t large = (GetParam().offered ? 1025 : 0) + 5000 + 100'000 + 3'000'001;
    EXPECT_EQ(received.fetched_bytes, OneCopy() ? large : 0u);
    EXPECT_EQ(sent.fragment_bytes, OneCopy() ? 0u : large);
  }
}

TEST_P(Links, ManyMessagesThroughASmallRing_BothWays) {
  PairOptions options = Options();
  options.ring_bytes = 4096;
  options.eager_buffer_bytes = 3000;  // most have to be offered
  Pair pair(options);
  constexpr uint64_t kMessages = 300;
  std::vector<std::vector<std::byte>> data, buffers(2 * kMessages);
  for (uint64_t i = 0; i < 2 * kMessages; ++i) data.push_back(Pattern(i * 11 % 2500, i));
  for (uint64_t i = 0; i < kMessages; ++i) {
    for (const uint64_t end : {0, 1}) {
      const uint64_t name = end * kMessages + i;
      pair[end].Send(Info(name, data[name].size()), data[name], name);
    }
    if (i % 64 == 63) pair.Turn(i / 64 % 2);
  }
  EXPECT_GT(pair[0].stats().ring_full, 0u);
  pair.Run();
  for (uint64_t i = 0; i < kMessages; ++i) {
    for (const uint64_t end : {0, 1}) {
      const uint64_t name = (1 - end) * kMessages + i;
      buffers[name].resize(data[name].size());
      pair[end].PostRecv(Info(name, data[name].size()), buffers[name], 10'000 + name);
    }
    if (i % 5 == 0) pair.Turn(i % 2);
  }
  pair.Run();
  EXPECT_EQ(pair.events(0).size(), 2 * kMessages);
  EXPECT_EQ(pair.events(1).size(), 2 * kMessages);
  for (uint64_t i = 0; i < 2 * kMessages; ++i) EXPECT_EQ(buffers[i], data[i]) << i;
}

TEST_P(Links, AShortMessageOvertakesALongOne) {
  Pair pair(Options());
  const std::vector<std::byte> lots = Pattern(8 << 20, 1), few = Pattern(8, 2);
  std::vector<std::byte> lots_in(lots.size()), few_in(few.size());
  pair[1].PostRecv(Info(1, lots.size()), lots_in, 11);
  pair[1].PostRecv(Info(2, few.size()), few_in, 12);
  pair[0].Send(Info(1, lots.size()), lots, 1);
  pair.Turn(1);
  pair.Turn(0);
  pair.Turn(1);
  pair[0].Send(Info(2, few.size()), few, 2);
  // Behind at most what one ring holds, or one piece.
  for (int i = 0; i < 4 && !pair.EventOf(1, 12); ++i) {
    pair.Turn(0);
    pair.Turn(1);
  }
  EXPECT_TRUE(pair.EventOf(1, 12).has_value());
  EXPECT_FALSE(pair.EventOf(1, 11).has_value());
  pair.Run();
  EXPECT_TRUE(pair.EventOf(1, 11).has_value());
  EXPECT_EQ(lots_in, lots);
}

TEST_P(Links, MismatchesAreShownToBothSidesAndPlaceNothing) {
  Pair pair(Options());
  const std::vector<std::byte> data = Pattern(50'000, 1);
  std::vector<std::byte> buffer(60'000, std::byte{1});
  for (const bool receiver_first : {true, false}) {
    const uint64_t name = receiver_first ? 1 : 2;
    core::MessageInfo theirs = Info(name, 60'000);
    theirs.note[1] = std::byte{0x77};
    if (receiver_first) pair[1].PostRecv(theirs, buffer, 10 + name);
    pair[0].Send(Info(name, 50'000), data, name);
    pair.Run();
    if (!receiver_first) pair[1].PostRecv(theirs, buffer, 10 + name);
    pair.Run();
    ASSERT_TRUE(pair.EventOf(1, 10 + name) && pair.EventOf(0, name));
    EXPECT_EQ(pair.EventOf(1, 10 + name)->kind, core::EventKind::kMismatch);
    EXPECT_EQ(pair.EventOf(1, 10 + name)->remote.size_bytes, 50'000u);
    if (!GetParam().offered && !receiver_first) {  // all of it had gone by then
      EXPECT_EQ(pair.EventOf(0, name)->kind, core::EventKind::kSendDone);
      continue;
    }
    EXPECT_EQ(pair.EventOf(0, name)->kind, core::EventKind::kMismatch);
    EXPECT_EQ(pair.EventOf(0, name)->remote.size_bytes, 60'000u);
    EXPECT_EQ(pair.EventOf(0, name)->remote.note[1], std::byte{0x77});
  }
  EXPECT_EQ(buffer, std::vector<std::byte>(60'000, std::byte{1}));
  EXPECT_TRUE(pair[0].Drained() && pair[1].Drained());
  // An equal size with another digest, small enough to go at once: the receiver sees it.
  core::MessageInfo other = Info(3, 10);
  other.digest ^= 1;
  pair[1].PostRecv(other, MutableBytes(buffer).first(10), 13);
  pair[0].Send(Info(3, 10), Bytes(data).first(10), 3);
  pair.Run();
  EXPECT_EQ(pair.EventOf(1, 13)->kind, core::EventKind::kMismatch);
}

TEST_P(Links, CancelledReceives) {
  Pair pair(Options());
  const std::vector<std::byte> data = Pattern(3 << 20, 1);
  std::vector<std::byte> buffer(data.size());
  const auto never = [] { FAIL() << "it was free at once"; };
  // Before anything came; the message then finds no receive.
  pair[1].PostRecv(Info(1, 100), MutableBytes(buffer).first(100), 11);
  EXPECT_TRUE(pair[1].Cancel(false, 11, never));
  pair[0].Send(Info(1, 100), Bytes(data).first(100), 1);
  pair.Run();
  EXPECT_EQ(pair[1].Unexpected().size(), 1u);
  // With its event not handed out yet.
  pair[1].PostRecv(Info(1, 100), MutableBytes(buffer).first(100), 12);
  EXPECT_TRUE(pair[1].Cancel(false, 12, never));
  pair.Run();
  EXPECT_EQ(pair.CountOf(1, 11) + pair.CountOf(1, 12), 0u);
  // In the middle of a large one: the sender is told that nobody takes it.
  pair[1].PostRecv(Info(2, data.size()), buffer, 13);
  pair[0].Send(Info(2, data.size()), data, 2);
  for (int i = 0; i < 3; ++i) pair.Turn(i % 2);
  pair.Turn(1);
  EXPECT_TRUE(pair[1].Cancel(false, 13, never));
  const std::vector<std::byte> before = buffer;
  pair.Run();
  EXPECT_EQ(buffer, before) << "written after it was free";
  EXPECT_EQ(pair.CountOf(1, 13), 0u);
  EXPECT_FALSE(pair.EventOf(0, 2).has_value());
  EXPECT_TRUE(pair[0].Cancel(true, 2, never));
  EXPECT_TRUE(pair[0].Drained());
  EXPECT_TRUE(pair[1].Cancel(false, 999, never)) << "unknown";
}

TEST(Link, AReceiveIsFreeOnlyWhenNoThreadCopiesIntoIt) {
  Pair pair;
  const std::vector<std::byte> data = Pattern(3 << 20, 1);
  std::vector<std::byte> buffer(data.size());
  pair[1].PostRecv(Info(1, data.size()), buffer, 11);
  pair[0].Send(Info(1, data.size()), data, 1);
  pair.Turn(1, /*copy=*/false);
  const auto piece = pair[1].Claim();
  ASSERT_TRUE(piece.has_value());
  bool freed = false;
  EXPECT_FALSE(pair[1].Cancel(false, 11, [&] { freed = true; }));
  EXPECT_FALSE(pair[1].Claim().has_value()) << "no more of it";
  pair.Run();
  EXPECT_FALSE(freed);
  Deliveries d;
  pair[1].Finish(*piece, pair[1].Copy(*piece), &d);
  pair.Take(1, &d);
  EXPECT_TRUE(freed);
  EXPECT_EQ(pair.CountOf(1, 11), 0u);
}

TEST_P(Links, ABorrowedMessage_StaysWithItsSenderUntilItIsReturned) {
  Pair pair(Options());
  const std::vector<std::byte> data = Pattern(100'000, 1);
  const std::vector<std::byte> before(data.size(), std::byte{0x11});
  for (const bool receiver_first : {true, false}) {
    std::vector<std::byte> buffer = before, read(data.size());
    const uint64_t token = receiver_first ? 11 : 12;
    const core::MessageInfo info = Info(token, data.size());
    if (receiver_first) pair[1].PostRecv(info, buffer, token, /*borrow=*/true);
    pair[0].Send(info, data, token);
    if (!receiver_first) {
      pair.Run();
      pair[1].PostRecv(info, buffer, token, /*borrow=*/true);
    }
    pair.Run();
    ASSERT_TRUE(pair.EventOf(1, token).has_value());
    const core::Event event = *pair.EventOf(1, token);
    EXPECT_TRUE(event.status.ok());
    if (!OneCopy()) {  // cannot be read there, so it was received
      EXPECT_EQ(event.address, 0u);
      EXPECT_EQ(buffer, data);
      continue;
    }
    ASSERT_NE(event.address, 0u);
    EXPECT_EQ(buffer, before);
    EXPECT_FALSE(pair.EventOf(0, token).has_value()) << "the sender may not have its memory back";
    EXPECT_TRUE(pair[1].Waiting()) << "the sender's death would go unnoticed";
    EXPECT_TRUE(pair[1].Read(read, event.address).ok());
    EXPECT_EQ(read, data);
    EXPECT_TRUE(pair[1].Return(token, Status::Ok()).ok());
    EXPECT_FALSE(pair[1].Return(token, Status::Ok()).ok()) << "twice";
    pair.Run();
    EXPECT_TRUE(pair.EventOf(0, token)->status.ok());
    EXPECT_FALSE(pair[1].Waiting());
  }
  EXPECT_EQ(pair[1].stats().messages_received, 2u);
  EXPECT_EQ(pair[1].stats().lent_messages, OneCopy() ? 2u : 0u);
}

TEST(Link, ABorrowedMessage_CanBeCancelledAndWithdrawn) {
  Pair pair;
  const std::vector<std::byte> data = Pattern(100'000, 1);
  std::vector<std::byte> buffer(data.size());
  for (const uint64_t token : {11, 12}) {
    pair[1].PostRecv(Info(token, data.size()), buffer, token, /*borrow=*/true);
    pair[0].Send(Info(token, data.size()), data, token);
  }
  pair.Run();
  const auto never = [] { FAIL(); };
  EXPECT_TRUE(pair[1].Cancel(false, 11, never)) << "no buffer of ours is in use";
  bool freed = false;
  EXPECT_FALSE(pair[0].Cancel(true, 12, [&] { freed = true; })) << "it is being read";
  pair.Run();
  EXPECT_FALSE(freed);
  EXPECT_TRUE(pair[1].Return(12, Status::Ok()).ok()) << "it was the message when it was read";
  pair.Run();
  EXPECT_TRUE(freed);
  EXPECT_TRUE(pair[0].Cancel(true, 11, never));
  EXPECT_TRUE(pair[0].Drained());
}

TEST(Link, NothingWaitsOnceTheLastPieceIsThere) {
  Pair pair;
  const std::vector<std::byte> data = Pattern(100'000, 1);
  std::vector<std::byte> buffer(data.size());
  pair[1].PostRecv(Info(1, data.size()), buffer, 11);
  pair[0].Send(Info(1, data.size()), data, 1);
  pair.Turn(1, /*copy=*/false);
  const auto piece = pair[1].Claim();
  ASSERT_TRUE(piece.has_value());
  EXPECT_TRUE(pair[1].Waiting());
  Deliveries d;
  pair[1].Finish(*piece, pair[1].Copy(*piece), &d);
  EXPECT_FALSE(pair[1].Waiting()) << "its thread would look after the peer for ever";
  ASSERT_EQ(d.events.size(), 1u);
  EXPECT_EQ(d.events[0].token, 11u);
}

TEST_P(Links, CancelledSends) {
  Pair pair(Options());
  const std::vector<std::byte> data = Pattern(3 << 20, 1);
  std::vector<std::byte> buffer(data.size());
  // Never asked for: the peer lets go of it.
  pair[0].Send(Info(1, data.size()), data, 1);
  pair.Turn(1);
  pair.Turn(0);
  pair.Turn(1);
  EXPECT_EQ(pair[1].Unexpected().size(), 1u);
  bool freed = false;
  // What is offered the peer may be reading.
  EXPECT_EQ(pair[0].Cancel(true, 1, [&] { freed = true; }), !GetParam().offered);
  EXPECT_FALSE(freed);
  pair.Run();
  EXPECT_EQ(freed, GetParam().offered);
  EXPECT_TRUE(pair[1].Unexpected().empty());
  EXPECT_EQ(pair[1].stats().kept_bytes, 0u);
  EXPECT_EQ(pair.CountOf(0, 1), 0u);
  // While it is taken.
  pair[1].PostRecv(Info(2, data.size()), buffer, 12);
  pair[0].Send(Info(2, data.size()), data, 2);
  pair.Turn(1);
  freed = pair[0].Cancel(true, 2, [&] { freed = true; });
  pair.Run();
  EXPECT_TRUE(freed);
  EXPECT_EQ(pair.CountOf(0, 2), 0u);
  if (OneCopy()) {
    EXPECT_EQ(buffer, data)
        << "the receiver had begun, and the memory was left alone until it ended";
  } else {
    EXPECT_FALSE(pair.EventOf(1, 12).has_value());
    EXPECT_TRUE(pair[1].Cancel(false, 12, nullptr));
  }
  EXPECT_TRUE(pair[0].Drained() && pair[1].Drained());
}

TEST(Link, ASendThatWaitsForRoomIsFreeAtOnce) {
  PairOptions options;
  options.ring_bytes = 4096;
  Pair pair(options);
  const std::vector<std::byte> data = Pattern(900, 1);
  uint64_t token = 1;
  while (pair[0].stats().ring_full == 0) {
    pair[0].Send(Info(token, data.size()), data, token);
    ++token;
  }
  const uint64_t waiting = token - 1;
  EXPECT_FALSE(pair[0].Drained());
  EXPECT_TRUE(pair[0].Cancel(true, waiting, nullptr));
  EXPECT_TRUE(pair[0].Drained());
  pair.Run();
  EXPECT_EQ(pair.CountOf(0, waiting), 0u);
  EXPECT_EQ(pair[1].Unexpected().size(), waiting - 1);
}

TEST_P(Links, DiscardedTags_DropWhatCameAndWhatComes) {
  Pair pair(Options());
  const std::vector<std::byte> data = Pattern(50'000, 1);
  uint64_t name = 1;
  for (const size_t size : {100u, 50'000u}) {
    for (const bool early : {true, false}) {
      if (early) pair[1].Discard(Info(name, size).tag);
      pair[0].Send(Info(name, size), Bytes(data).first(size), name);
      pair.Run();
      if (!early) {
        EXPECT_EQ(pair[1].Unexpected().size(), 1u);
        pair[1].Discard(Info(name, size).tag);
        pair.Run();
      }
      EXPECT_TRUE(pair[1].Unexpected().empty());
      if (size > 1024) {
        // All of it had gone when it was discarded late.
        EXPECT_EQ(pair.EventOf(0, name).has_value(), !GetParam().offered && !early);
        EXPECT_TRUE(pair[0].Cancel(true, name, nullptr)) << "nobody reads it";
      }
      ++name;
    }
  }
  EXPECT_TRUE(pair[0].Drained());
  EXPECT_EQ(pair[1].stats().kept_bytes, 0u);
}

TEST(Link, EarlyMessagesAreBounded_TheRestIsOffered) {
  PairOptions options;
  options.eager_buffer_bytes = 2500;
  Pair pair(options);
  const std::vector<std::byte> data = Pattern(1000, 1);
  std::vector<std::byte> buffer(1000);
  for (uint64_t name = 1; name <= 5; ++name) pair[0].Send(Info(name, 1000), data, name);
  pair.Run();
  EXPECT_LE(pair[1].stats().kept_bytes, 2500u);
  EXPECT_EQ(pair[1].Unexpected().size(), 5u);
  EXPECT_EQ(pair[1].Unexpected()[4].tag, Info(5, 0).tag) << "oldest first";
  EXPECT_EQ(pair.events(0).size(), 2u) << "two went at once";
  for (uint64_t name = 1; name <= 5; ++name) {
    buffer.assign(1000, std::byte{0});
    pair[1].PostRecv(Info(name, 1000), buffer, 10 + name);
    pair.Run();
    EXPECT_EQ(buffer, data);
  }
  EXPECT_EQ(pair.events(0).size(), 5u);
  // The room came back.
  pair[0].Send(Info(6, 1000), data, 6);
  pair[0].Send(Info(7, 1000), data, 7);
  EXPECT_TRUE(pair[0].Drained());
}

PairOptions AtOnce(int64_t eager_buffer_bytes) {
  PairOptions options;
  options.eager_max_bytes = 1 << 20;
  options.eager_buffer_bytes = eager_buffer_bytes;
  return options;
}

// Whatever had come when its receive is posted, or when it is discarded or withdrawn. There is room
// for one such message at a time, so each must give back what it took.
TEST(Link, AMessageKeptInPart_GoesOnIntoItsReceiveOrAway) {
  constexpr size_t kSize = 100'000;
  Pair pair(AtOnce(kSize + kKeptOverheadBytes));
  uint64_t name = 1;
  for (const char* end : {"posted", "discarded", "withdrawn"}) {
    for (int turns = 0; turns < 12; turns += 2) {
      SCOPED_TRACE(std::string(end) + " after " + std::to_string(turns));
      const std::vector<std::byte> data = Pattern(kSize, name);
      std::vector<std::byte> buffer(kSize);
      pair[0].Send(Info(name, kSize), data, name);
      for (int i = 0; i < turns; ++i) pair.Turn((i + 1) % 2);
      EXPECT_FALSE(pair.EventOf(0, name).has_value()) << "it does not show what it should";
      if (end == std::string("posted")) {
        pair[1].PostRecv(Info(name, kSize), buffer, 100 + name);
        pair.Run();
        EXPECT_TRUE(pair.EventOf(0, name).has_value() && pair.EventOf(1, 100 + name).has_value());
        EXPECT_EQ(buffer, data);
      } else if (end == std::string("discarded")) {
        pair[1].Discard(Info(name, kSize).tag);
        pair.Run();
        EXPECT_FALSE(pair.EventOf(0, name).has_value());
        EXPECT_TRUE(pair[0].Cancel(true, name, nullptr));
      } else {
        EXPECT_TRUE(pair[0].Cancel(true, name, nullptr));
        pair.Run();
      }
      EXPECT_EQ(pair[1].stats().kept_bytes, 0u);
      EXPECT_TRUE(pair[1].Unexpected().empty());
      EXPECT_TRUE(pair[0].Drained() && pair[1].Drained());
      ++name;
    }
  }
  EXPECT_EQ(pair[1].stats().fetched_bytes, 0u) << "one of them was offered for want of room";
}

// Else its bytes would be copied once more, into memory of their own.
TEST(Link, WhatIsEarlyStaysInTheRing_WhatIsUrgentDoesNot) {
  Pair pair(AtOnce(1 << 20));
  const std::vector<std::byte> data = Pattern(100'000, 1);
  std::vector<std::byte> buffer(data.size());
  const auto turn = [&](size_t end) {
    Deliveries d;
    const bool worked = pair[end].HasWork() && pair[end].Drain(&d, /*early=*/false);
    pair.Take(end, &d);
    return worked;
  };
  pair[0].Send(Info(1, data.size()), data, 1);
  while (turn(0)) {
  }
  EXPECT_FALSE(pair[1].HasWork());
  EXPECT_TRUE(pair[1].Unexpected().empty());
  // Wanted: it comes, and what is behind it stays again.
  pair[1].PostRecv(Info(1, data.size()), buffer, 11);
  EXPECT_TRUE(pair[1].HasWork());
  while (!pair.EventOf(0, 1)) {
    turn(0);
    if (!pair.EventOf(0, 1)) turn(1);
  }
  pair[0].Send(Info(3, 8), Bytes(data).first(8), 3);
  while (turn(1)) {
  }
  ASSERT_TRUE(pair.EventOf(1, 11).has_value());
  EXPECT_EQ(buffer, data);
  EXPECT_TRUE(pair[1].Unexpected().empty());
  // A put, or a record that is no message, takes along what is before it.
  core::MessageInfo put = Info(4, 8);
  put.tag = {core::kPutTagHi, 4};
  pair[0].Send(put, Bytes(data).first(8), 4);
  EXPECT_TRUE(turn(1));
  EXPECT_EQ(pair[1].Unexpected().back().tag, put.tag);
  pair[0].Send(Info(5, 8), Bytes(data).first(8), 5);
  EXPECT_FALSE(turn(1));
  pair[0].SendControl("urgent");
  EXPECT_TRUE(turn(1));
  EXPECT_EQ(pair[1].Unexpected().back().tag, Info(5, 0).tag);
  // A record that finds no room behind what is early.
  uint64_t token = 100;
  for (; pair[0].stats().ring_full == 0; ++token)
    pair[0].Send(Info(token, 900), Bytes(data).first(900), token);
  EXPECT_TRUE(turn(1));
}

TEST(Link, AMessageThatItsSenderDidNotFinish_EndsWithTheSender) {
  Pair pair(AtOnce(1 << 20));
  const std::vector<std::byte> data = Pattern(100'000, 1);
  std::vector<std::byte> buffer(data.size());
  for (const uint64_t name : {1, 2}) pair[0].Send(Info(name, data.size()), data, name);
  pair[1].PostRecv(Info(1, data.size()), buffer, 11);
  for (int i = 1; i < 4; ++i) pair.Turn(i % 2);
  pair[0].Abort(Status::Error(StatusCode::kAborted, "shut down"));
  pair.Run();
  for (const uint64_t token : {1, 2})
    EXPECT_EQ(pair.EventOf(0, token)->status.code, StatusCode::kAborted);
  ASSERT_EQ(pair.CountOf(1, 11), 1u);
  EXPECT_EQ(pair.EventOf(1, 11)->status.code, StatusCode::kPeerLost);
  EXPECT_TRUE(pair[1].Unexpected().empty());
}

}  // namespace
}  // namespace uccl::shm
