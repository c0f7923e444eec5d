// A link against numbers worked out by hand: 8 Gbit/s is a byte a nanosecond.
#include "csrc/sim/link.h"

#include <gtest/gtest.h>

namespace uccl::sim {
namespace {

LinkSpec BytePerNano() {
  LinkSpec spec;
  spec.bits_per_s = 8'000'000'000;
  spec.delay = Nanos(100);
  spec.queue_bytes = 3000;
  spec.ecn_bytes = 1500;
  return spec;
}

TEST(Link, ArrivalIsTransmissionPlusDelay) {
  Link link(BytePerNano());
  Random random(1);
  EXPECT_EQ(link.Send(Nanos(10), 1000, &random)->arrival, Nanos(10 + 1000 + 100));
  // The second one waits for the first.
  EXPECT_EQ(link.Send(Nanos(10), 500, &random)->arrival, Nanos(10 + 1500 + 100));
  EXPECT_EQ(link.QueueBytes(Nanos(10)), 1500);
  EXPECT_EQ(link.QueueBytes(Nanos(510)), 1000);
  EXPECT_EQ(link.QueueBytes(Nanos(2000)), 0);
  EXPECT_EQ(link.Send(Nanos(5000), 1, &random)->arrival, Nanos(5101));
}

TEST(Link, FractionsOfANanosecondAddUp) {
  LinkSpec spec = BytePerNano();
  spec.bits_per_s = 400'000'000'000;  // 50 bytes a nanosecond
  Link link(spec);
  Random random(1);
  for (int i = 0; i < 99; ++i) ASSERT_TRUE(link.Send(Nanos(0), 10, &random));
  EXPECT_EQ(link.Send(Nanos(0), 10, &random)->arrival, Nanos(20 + 100));
}

TEST(Link, DropsTheTailAndMarksAboveTheThreshold) {
  Link link(BytePerNano());
  Random random(1);
  EXPECT_FALSE(link.Send(Nanos(0), 1000, &random)->marked);
  EXPECT_FALSE(link.Send(Nanos(0), 1000, &random)->marked);  // found 1000
  EXPECT_TRUE(link.Send(Nanos(0), 1000, &random)->marked);   // found 2000
  EXPECT_FALSE(link.Send(Nanos(0), 1000, &random));          // 3000 + 1000 do not fit
  EXPECT_TRUE(link.Send(Nanos(1500), 1000, &random));        // 1500 + 1000 do
  EXPECT_EQ(link.stats().queue_drops, 1u);
  EXPECT_EQ(link.stats().marked, 1u);
  EXPECT_EQ(link.stats().packets, 4u);
  EXPECT_EQ(link.stats().bytes, 4000u);
  EXPECT_EQ(link.stats().peak_queue_bytes, 3000);
}

TEST(Link, IdleTakesAPacketLargerThanItsQueue) {
  Link link(BytePerNano());
  Random random(1);
  EXPECT_TRUE(link.Send(Nanos(0), 9000, &random));
}

TEST(Link, FailureCutsWhatIsUnderWayAndHealsAsOftenAsItFailed) {
  Link link(BytePerNano());
  Random random(1);
  ASSERT_TRUE(link.Send(Nanos(0), 1000, &random));
  const uint32_t epoch = link.epoch();
  link.Fail();
  EXPECT_NE(link.epoch(), epoch);
  EXPECT_EQ(link.QueueBytes(Nanos(0)), 0);
  EXPECT_FALSE(link.Send(Nanos(1), 100, &random));
  link.Fail();
  link.Heal();
  EXPECT_FALSE(link.Send(Nanos(1), 100, &random));
  link.Heal();
  EXPECT_EQ(link.Send(Nanos(1), 100, &random)->arrival, Nanos(201));
  EXPECT_EQ(link.stats().down_drops, 2u);
}

TEST(Link, RandomFaultsHappenAsOftenAsSaid) {
  LinkSpec spec = BytePerNano();
  spec.queue_bytes = 1 << 30;
  Link link(spec);
  Random random(3);
  link.faults() = {.loss = 0.1, .corrupt = 0.2, .duplicate = 0.3};
  for (int i = 0; i < 10'000; ++i) link.Send(Nanos(0), 1, &random);
  const LinkStats& stats = link.stats();
  EXPECT_EQ(stats.packets + stats.loss_drops, 10'000u);
  EXPECT_NEAR(static_cast<double>(stats.loss_drops), 1000, 150);
  EXPECT_NEAR(static_cast<double>(stats.corrupted), 1800, 200);
  EXPECT_NEAR(static_cast<double>(stats.duplicated), 2700, 250);
}

}  // namespace
}  // namespace uccl::sim
