// Tests of csrc/engine/suspicion.h: what it takes to condemn a peer.
#include "csrc/engine/suspicion.h"

#include <gtest/gtest.h>

namespace uccl::engine {
namespace {

Nanos Ms(int64_t ms) { return std::chrono::milliseconds(ms); }

TEST(Suspicion, NeverHeardFrom_IsNotSuspected) {
  Suspicion s;
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(s.OnFault(Ms(i * 100)));
  EXPECT_FALSE(s.suspected());
  EXPECT_FALSE(s.condemned());
}

TEST(Suspicion, OnFault_FirstOneAsksForAProbe) {
  Suspicion s;
  s.OnHeard();
  EXPECT_TRUE(s.OnFault(Ms(1)));
  EXPECT_FALSE(s.OnFault(Ms(2)));
  EXPECT_TRUE(s.suspected());
}

TEST(Suspicion, Condemned_NeedsCountAndSpan) {
  Suspicion many;
  many.OnHeard();
  for (int i = 0; i < 50; ++i) many.OnFault(Ms(i));  // a burst, from one unlucky batch
  EXPECT_FALSE(many.condemned());
  many.OnFault(Ms(199));
  EXPECT_FALSE(many.condemned());
  many.OnFault(Ms(200));
  EXPECT_TRUE(many.condemned());

  Suspicion few;
  few.OnHeard();
  few.OnFault(Ms(0));
  few.OnFault(Ms(5000));
  EXPECT_FALSE(few.condemned());
  few.OnFault(Ms(5001));
  EXPECT_TRUE(few.condemned());
}

TEST(Suspicion, OnHeard_Acquits) {
  Suspicion s;
  s.OnHeard();
  s.OnFault(Ms(0));
  s.OnFault(Ms(100));
  s.OnHeard();
  EXPECT_FALSE(s.suspected());
  EXPECT_TRUE(s.OnFault(Ms(300)));
  EXPECT_FALSE(s.condemned());
  s.OnFault(Ms(400));
  s.OnFault(Ms(499));
  EXPECT_FALSE(s.condemned());
  s.OnFault(Ms(500));
  EXPECT_TRUE(s.condemned());
}

}  // namespace
}  // namespace uccl::engine
