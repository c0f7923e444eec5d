// Aborts as they travel, and texts that are none.
#include "csrc/collectives/abort_message.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "csrc/engine/engine.h"

namespace uccl::coll {
namespace {

TEST(AbortMessage, SaysWhichCommunicatorAndWhy) {
  Status cause = Status::Error(StatusCode::kPeerTimeout, "no ack\x1fsince noon");
  cause.peer = 3;
  cause.process = 1;
  uint64_t comm_id = 0;
  Status read;
  const uint64_t high = std::numeric_limits<uint64_t>::max() - 5;
  ASSERT_TRUE(DecodeAbort(EncodeAbort(high, cause), &comm_id, &read));
  EXPECT_EQ(comm_id, high);
  EXPECT_EQ(read.code, cause.code);
  EXPECT_EQ(read.peer, 3);
  EXPECT_EQ(read.process, 1);
  EXPECT_EQ(read.detail, cause.detail) << "the free text may hold the separator";
}

TEST(AbortMessage, IsCutToWhatAControlMessageHolds) {
  const Status cause = Status::Error(StatusCode::kProtocol, std::string(5000, 'x'));
  const std::string text = EncodeAbort(1, cause);
  EXPECT_EQ(text.size(), engine::Engine::kMaxControlBytes);
  uint64_t comm_id = 0;
  Status read;
  ASSERT_TRUE(DecodeAbort(text, &comm_id, &read));
  EXPECT_EQ(read.code, StatusCode::kProtocol);
  EXPECT_TRUE(cause.detail.starts_with(read.detail));
}

TEST(AbortMessage, UnknownCodesAreStillAborts) {
  for (const char* code : {"0", "-1", "9999", "9223372036854775807"}) {
    uint64_t comm_id = 0;
    Status read;
    const std::string text = std::string("abort\x1f") + "7\x1f" + code + "\x1f-1\x1f-1\x1f";
    ASSERT_TRUE(DecodeAbort(text, &comm_id, &read)) << code;
    EXPECT_EQ(read.code, StatusCode::kAborted) << code;
    EXPECT_EQ(comm_id, 7u);
  }
}

TEST(AbortMessage, OtherTextsAreRefused) {
  for (const char* text : {"", "abort", "abort\x1f",
                           "abort\x1f"
                           "1\x1f"
                           "2\x1f"
                           "3",
                           "abort\x1f"
                           "1\x1f"
                           "x\x1f"
                           "3\x1f"
                           "4\x1f",
                           "Abort\x1f"
                           "1\x1f"
                           "2\x1f"
                           "3\x1f"
                           "4\x1f",
                           "abort\x1f"
                           "99999999999999999999\x1f"
                           "2\x1f"
                           "3\x1f"
                           "4\x1f",
                           "abort\x1f"
                           "1 \x1f"
                           "2\x1f"
                           "3\x1f"
                           "4\x1f"}) {
    uint64_t comm_id = 0;
    Status read;
    EXPECT_FALSE(DecodeAbort(text, &comm_id, &read)) << text;
  }
}

}  // namespace
}  // namespace uccl::coll
