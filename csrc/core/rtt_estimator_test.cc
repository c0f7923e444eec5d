// Against values worked out by hand from RFC 6298 section 2.
#include "csrc/core/rtt_estimator.h"

#include <gtest/gtest.h>

namespace uccl::core {
namespace {

TEST(RttEstimator, NothingKnown) {
  const RttEstimator rtt;
  EXPECT_FALSE(rtt.has_sample());
  EXPECT_EQ(rtt.Bound(), Nanos(0));
  EXPECT_EQ(rtt.Rto(FromMillis(10), FromMillis(1000)), FromMillis(20));
}

TEST(RttEstimator, SamplesByHand) {
  RttEstimator rtt;
  rtt.Sample(Nanos(100'000));  // (2.2): SRTT = R, RTTVAR = R/2
  EXPECT_EQ(rtt.srtt(), Nanos(100'000));
  EXPECT_EQ(rtt.rttvar(), Nanos(50'000));
  EXPECT_EQ(rtt.Bound(), Nanos(300'000));

  rtt.Sample(Nanos(
      200'000));  // (2.3): RTTVAR = 3/4 * 50000 + 1/4 * 100000, SRTT = 7/8 * 100000 + 1/8 * 200000
  EXPECT_EQ(rtt.rttvar(), Nanos(62'500));
  EXPECT_EQ(rtt.srtt(), Nanos(112'500));
  EXPECT_EQ(rtt.Bound(), Nanos(362'500));

  rtt.Sample(Nanos(112'500));  // no error: only RTTVAR shrinks
  EXPECT_EQ(rtt.rttvar(), Nanos(46'875));
  EXPECT_EQ(rtt.srtt(), Nanos(112'500));

  rtt.Sample(Nanos(12'500));  // below: error 100000
  EXPECT_EQ(rtt.rttvar(), Nanos(60'156));
  EXPECT_EQ(rtt.srtt(), Nanos(100'000));
  EXPECT_EQ(rtt.min_rtt(), Nanos(12'500));
}

TEST(RttEstimator, RtoStaysWithinLimits) {
  RttEstimator rtt;
  rtt.Sample(FromMicros(100));
  EXPECT_EQ(rtt.Rto(FromMillis(10), FromMillis(1000)), FromMillis(10));
  rtt.Sample(FromMillis(5000));
  EXPECT_EQ(rtt.Rto(FromMillis(10), FromMillis(1000)), FromMillis(1000));
  EXPECT_EQ(rtt.Rto(FromMillis(10), FromMillis(5)), FromMillis(10)) << "limits the wrong way round";
}

TEST(RttEstimator, NeverBelowOneNanosecond) {
  RttEstimator rtt;
  rtt.Sample(Nanos(0));
  EXPECT_EQ(rtt.srtt(), Nanos(1));
  rtt.Sample(Nanos(-5));
  EXPECT_GE(rtt.srtt(), Nanos(1));
  EXPECT_GE(rtt.rttvar(), Nanos(0));
}

TEST(RttEstimator, SteadyPathConverges) {
  RttEstimator rtt;
  for (int i = 0; i < 200; ++i) rtt.Sample(FromMicros(80));
  EXPECT_EQ(rtt.srtt(), FromMicros(80));
  EXPECT_LE(rtt.rttvar(), Nanos(3)) << "rounds to zero apart from the last units";
}

}  // namespace
}  // namespace uccl::core
