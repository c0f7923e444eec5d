// Each checker fires on what it is for, and on nothing else.
#include "csrc/sim/checker.h"

#include <gtest/gtest.h>

#include <vector>

namespace uccl::sim {
namespace {

class CheckerTest : public ::testing::Test {
 protected:
  std::vector<std::byte> Right(MessageId id, uint64_t size) {
    const Bytes bytes = contents.Of(id, size);
    return {bytes.begin(), bytes.end()};
  }
  Contents contents{1, 4096};
  Checker checker{&contents};
  const MessageId a{1, 0}, b{1, 1};
};

TEST_F(CheckerTest, SilentWhenAllIsWell) {
  checker.OnHandedIn(Nanos(0), a, 100);
  checker.OnHandedIn(Nanos(0), b, 0);
  checker.OnArrived(Nanos(1), b, {});
  checker.OnArrived(Nanos(1), a, Right(a, 100));
  checker.OnSendDone(Nanos(2), a);
  checker.OnSendDone(Nanos(2), b);
  checker.AtMost(Nanos(2), 5, 5, "x");
  checker.Finish(Nanos(3));
  EXPECT_EQ(checker.violations(), 0u);
  EXPECT_EQ(checker.arrived_messages(), 2u);
}

TEST_F(CheckerTest, OneWrongByte) {
  checker.OnHandedIn(Nanos(0), a, 100);
  std::vector<std::byte> bytes = Right(a, 100);
  bytes[57] ^= std::byte{1};
  checker.OnArrived(Nanos(1), a, bytes);
  EXPECT_EQ(checker.violations(), 1u);
}

TEST_F(CheckerTest, BytesOfAnotherMessage) {
  checker.OnHandedIn(Nanos(0), a, 100);
  checker.OnArrived(Nanos(1), a, Right(b, 100));
  EXPECT_EQ(checker.violations(), 1u);
}

TEST_F(CheckerTest, WrongSize) {
  checker.OnHandedIn(Nanos(0), a, 100);
  checker.OnArrived(Nanos(1), a, Right(a, 99));
  EXPECT_EQ(checker.violations(), 1u);
}

TEST_F(CheckerTest, TwiceAndUnasked) {
  checker.OnHandedIn(Nanos(0), a, 100);
  checker.OnHandedIn(Nanos(0), a, 100);
  EXPECT_EQ(checker.violations(), 1u);
  checker.OnArrived(Nanos(1), a, Right(a, 100));
  checker.OnArrived(Nanos(1), a, Right(a, 100));
  EXPECT_EQ(checker.violations(), 2u);
  checker.OnArrived(Nanos(1), b, Right(b, 100));
  EXPECT_EQ(checker.violations(), 3u);
  checker.OnSendDone(Nanos(2), a);
  checker.OnSendDone(Nanos(2), a);
  EXPECT_EQ(checker.violations(), 4u);
  checker.OnSendDone(Nanos(2), b);
  EXPECT_EQ(checker.violations(), 5u);
}

TEST_F(CheckerTest, MissingAtTheEnd) {
  checker.OnHandedIn(Nanos(0), a, 100);
  checker.Finish(Nanos(3));
  EXPECT_EQ(checker.violations(), 2u);  // neither arrived nor reported as sent
}

TEST_F(CheckerTest, LimitsAndTexts) {
  checker.AtMost(Nanos(9), 6, 5, "a queue");
  ASSERT_EQ(checker.kept().size(), 1u);
  EXPECT_EQ(checker.kept()[0], "at 9 ns: a queue is 6, limit 5");
  for (int i = 0; i < 100; ++i) checker.Require(Nanos(9), false, "again");
  EXPECT_EQ(checker.violations(), 101u);
  EXPECT_EQ(checker.kept().size(), Checker::kMaxKept);
}

}  // namespace
}  // namespace uccl::sim
