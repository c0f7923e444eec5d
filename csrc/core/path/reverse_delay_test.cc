// Waiting on the way back, whatever the clocks show.
#include "csrc/core/path/reverse_delay.h"

#include <gtest/gtest.h>

namespace uccl::core {
namespace {

// The peer's clock is `offset` us ahead of ours.
struct Peer {
  uint32_t offset = 0;
  ReverseDelay delay;
  Nanos Ack(Nanos sent, Nanos way) {
    return delay.Sample(sent + way, static_cast<uint32_t>(ToMicros(sent)) + offset);
  }
};

TEST(ReverseDelay, IsWhatExceedsTheSmallest) {
  // Also where the difference of the clocks wraps around, or the peer seems to answer from the
  // future.
  for (const uint32_t offset : {0u, 5u, 0x7fff'fff0u, 0x8000'0010u, 0xffff'fff0u}) {
    Peer peer{offset, {}};
    EXPECT_EQ(peer.Ack(FromMillis(10), FromMicros(100)), Nanos(0))
        << "the first sample is the best";
    EXPECT_EQ(peer.Ack(FromMillis(11), FromMicros(350)), FromMicros(250));
    EXPECT_EQ(peer.Ack(FromMillis(12), FromMicros(60)), Nanos(0));
    EXPECT_EQ(peer.Ack(FromMillis(13), FromMicros(350)), FromMicros(290));
  }
}

TEST(ReverseDelay, ALongerWayIsTheWayAfterTwoPeriods) {
  Peer peer;
  peer.Ack(FromMillis(0), FromMicros(100));
  Nanos last{};
  for (int ms = 1; ms <= 1000; ++ms) last = peer.Ack(FromMillis(ms), FromMicros(900));
  EXPECT_EQ(last, FromMicros(800));
  for (int ms = 1001; ms <= 2100; ++ms) last = peer.Ack(FromMillis(ms), FromMicros(900));
  EXPECT_EQ(last, Nanos(0));
}

TEST(ReverseDelay, SilenceForgets) {
  Peer peer;
  peer.Ack(FromMillis(0), FromMicros(100));
  EXPECT_EQ(peer.Ack(FromMillis(5000), FromMicros(900)), Nanos(0));
}

TEST(ReverseDelay, ClocksThatRunApartAddLittle) {
  for (const int ppm : {-50, 50}) {
    ReverseDelay delay;
    Nanos most{};
    for (int64_t ms = 0; ms < 60'000; ++ms) {
      const int64_t peer_us = ms * 1000 + ms * ppm / 1000;
      most = std::max(most, delay.Sample(FromMillis(ms), static_cast<uint32_t>(peer_us)));
    }
    EXPECT_LE(most, FromMicros(101)) << ppm;
  }
}

}  // namespace
}  // namespace uccl::core
