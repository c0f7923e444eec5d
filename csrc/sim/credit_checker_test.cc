// The books of credit fire on planted packets that break the rules, and on no others.
#include "csrc/sim/credit_checker.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "csrc/sim/contents.h"
#include "csrc/wire/packet.h"

namespace uccl::sim {
namespace {

class CreditCheckerTest : public ::testing::Test {
 protected:
  void SendEager(uint32_t end, uint32_t message, uint64_t size, uint32_t offset = 0) {
    wire::Eager eager;
    eager.description.size_bytes = size;
    eager.message_id = message;
    eager.offset = offset;
    credit.OnSent(Nanos(1), end, Bytes(out).first(wire::EncodeEager({}, eager, {}, out)));
  }
  void DeliverAck(uint32_t end, uint64_t consumed) {
    wire::Ack ack;
    ack.eager_consumed_bytes = consumed;
    credit.OnArrived(Nanos(2), end, Bytes(out).first(wire::EncodeAck({}, ack, out)));
  }
  std::array<std::byte, wire::kMaxAckBytes> out{};
  Contents contents{1, 1};
  Checker checker{&contents};
  CreditChecker credit{1000, &checker};
};

TEST_F(CreditCheckerTest, SilentWithinTheBuffer) {
  SendEager(0, 1, 372);  // 500 with what every message costs
  SendEager(0, 2, 372);
  SendEager(0, 2, 372, 100);  // more of the same
  SendEager(0, 1, 372);       // sent again
  SendEager(7, 1, 872);       // another connection
  DeliverAck(0, 500);
  SendEager(0, 3, 372);
  DeliverAck(0, 0);  // an older ACK, overtaken
  DeliverAck(0, 1500);
  EXPECT_EQ(checker.violations(), 0u);
}

TEST_F(CreditCheckerTest, FiresWhenMoreIsSentThanThePeerKeeps) {
  SendEager(0, 1, 372);
  SendEager(0, 2, 373);
  ASSERT_EQ(checker.violations(), 1u);
  EXPECT_NE(checker.kept()[0].find("is 1001, limit 1000"), std::string::npos) << checker.kept()[0];
}

TEST_F(CreditCheckerTest, FiresWhenMoreIsGivenBackThanWasSent) {
  SendEager(0, 1, 372);
  DeliverAck(0, 501);
  EXPECT_EQ(checker.violations(), 1u);
}

TEST_F(CreditCheckerTest, FiresOnAnAckThatContradictsItself) {
  wire::Ack ack;
  const size_t bytes = wire::EncodeAck({}, ack, out);
  credit.OnArrived(Nanos(2), 0, Bytes(out).first(bytes - 1));
  EXPECT_EQ(checker.violations(), 1u);
}

}  // namespace
}  // namespace uccl::sim
