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
    const size_t bytes = wire::EncodeEager({.psn = psn++}, eager, {}, out);
    credit.OnSent(Nanos(1), end, Bytes(out).first(bytes), bytes);
  }
  void DeliverAck(uint32_t end, uint64_t consumed) {
    wire::Ack ack;
    ack.eager_consumed_bytes = consumed;
    credit.OnArrived(Nanos(2), end, Bytes(out).first(wire::EncodeAck({}, ack, out)));
  }
  std::array<std::byte, wire::kMaxAckBytes> out{};
  uint32_t psn = 0xffff'fffe;  // wraps around
  Contents contents{1, 1};
  Checker checker{&contents};
  CreditChecker credit{{.eager_buffer_bytes = 1000}, &checker};
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

// 500 bytes may be sent unasked; a data packet without payload has 40.
class ReceiverCreditTest : public CreditCheckerTest {
 protected:
  void SendData(uint32_t with_psn, size_t bytes) {
    const size_t head = wire::EncodeData({.psn = with_psn}, {}, {}, out);
    driven.OnSent(Nanos(1), 0, Bytes(out).first(head), bytes);
  }
  void DeliverCredit(uint64_t granted) {
    driven.OnArrived(Nanos(1), 0, Bytes(out).first(wire::EncodeCredit({}, {granted}, out)));
  }
  void DeliverDemand(uint64_t wanted) {
    driven.OnArrived(Nanos(1), 0, Bytes(out).first(wire::EncodeDemand({}, {wanted, 0}, out)));
  }
  void SendCredit(uint64_t granted) {
    const size_t bytes = wire::EncodeCredit({}, {granted}, out);
    driven.OnSent(Nanos(1), 0, Bytes(out).first(bytes), bytes);
  }
  CreditChecker driven{{.eager_buffer_bytes = 1000, .receiver_driven = true, .initial_bytes = 500},
                       &checker};
};

TEST_F(ReceiverCreditTest, SilentWhenWhatIsSentWasGranted) {
  SendData(0xffff'ffff, 500);
  DeliverCredit(1500);
  DeliverCredit(700);  // overtaken
  SendData(0, 600);
  SendData(0xffff'ffff, 500);  // sent again
  SendData(1, 400);
  DeliverDemand(5000);
  DeliverDemand(1000);
  SendCredit(5500);
  EXPECT_EQ(checker.violations(), 0u);
}

TEST_F(ReceiverCreditTest, FiresOnBytesThatNobodyGranted) {
  SendData(7, 501);
  ASSERT_EQ(checker.violations(), 1u);
  EXPECT_NE(checker.kept()[0].find("bytes sent is 501, limit 500"), std::string::npos);
  DeliverCredit(600);
  SendData(8, 100);
  EXPECT_EQ(checker.violations(), 2u);
}

TEST_F(ReceiverCreditTest, FiresOnCreditThatNobodyAskedFor) {
  DeliverDemand(1000);
  SendCredit(1501);
  ASSERT_EQ(checker.violations(), 1u);
  EXPECT_NE(checker.kept()[0].find("granted is 1501, limit 1500"), std::string::npos);
}

TEST_F(ReceiverCreditTest, FiresOnCreditWhereThereIsNone) {
  const size_t bytes = wire::EncodeCredit({}, {1}, out);
  credit.OnSent(Nanos(1), 0, Bytes(out).first(bytes), bytes);
  EXPECT_EQ(checker.violations(), 1u);
}

}  // namespace
}  // namespace uccl::sim
