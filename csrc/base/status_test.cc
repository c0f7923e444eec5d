// Tests of csrc/base/status.h: the text form that Python parses.
#include "csrc/base/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

namespace uccl {
namespace {

TEST(Status, ToString_AllFieldsInOrder) {
  Status s = Status::Error(StatusCode::kPeerTimeout, "no ack since 30 s");
  s.op = "all_reduce";
  s.comm_id = 0;
  s.peer = 3;
  s.process = 1;
  s.path = 5;
  s.seq = 4711;
  s.bytes = 64;
  s.elapsed = std::chrono::milliseconds(30001) + Nanos(999'999);
  EXPECT_EQ(s.ToString(),
            "uccl.PeerTimeout op=all_reduce comm=0 peer=3 process=1 path=5 seq=4711 bytes=64 "
            "elapsed_ms=30001: no ack since 30 s");
}

TEST(Status, ToString_UnknownFieldsAreLeftOut) {
  EXPECT_EQ(Status::Error(StatusCode::kAborted, "why").ToString(), "uccl.Aborted: why");
  EXPECT_EQ(Status::Error(StatusCode::kAborted, "").ToString(), "uccl.Aborted");
  EXPECT_EQ(Status::Ok().ToString(), "uccl.Ok");
}

TEST(Status, ToString_NegativeHashesAreKnownValues) {
  Status s = Status::Error(StatusCode::kProtocol, "x");
  s.comm_id = -5;
  EXPECT_EQ(s.ToString(), "uccl.Protocol comm=-5: x");
}

TEST(Status, ToString_OpIsQuotedWhenItNeedsTo) {
  Status s = Status::Error(StatusCode::kPeerLost, "gone");
  s.op = "all_to_all f32[4,8]";
  EXPECT_EQ(s.ToString(), "uccl.PeerLost op=\"all_to_all f32[4,8]\": gone");
  s.op = "a\"b\\c";
  EXPECT_EQ(s.ToString(), "uccl.PeerLost op=\"a\\\"b\\\\c\": gone");
  s.op = "a:b";
  EXPECT_EQ(s.ToString(), "uccl.PeerLost op=\"a:b\": gone");
}

TEST(Status, ToString_StaysOnOneLine) {
  Status s = Status::Error(StatusCode::kPeerLost, "two\nlines\r\tand a tab");
  s.op = "x\ny";
  EXPECT_EQ(s.ToString(), "uccl.PeerLost op=\"x y\": two lines  and a tab");
}

TEST(Status, CodeName_EveryRowHasItsOwn) {
  std::set<std::string> names = {StatusCodeName(StatusCode::kOk)};
  size_t rows = 1;
#define UCCL_STATUS(enumerator, name, ffi_code, python, meaning) \
  EXPECT_STREQ(StatusCodeName(StatusCode::enumerator), name);    \
  EXPECT_STREQ("k" name, #enumerator);                           \
  names.insert(name);                                            \
  ++rows;
#include "csrc/base/status_codes.inc"
#undef UCCL_STATUS
  EXPECT_EQ(names.size(), rows);
  EXPECT_STREQ(StatusCodeName(static_cast<StatusCode>(250)), "Unknown");
}

TEST(Result, HoldsValueOrStatus) {
  Result<std::unique_ptr<int>> good(std::make_unique<int>(7));
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(*good.value(), 7);
  Result<std::unique_ptr<int>> bad(Status::Error(StatusCode::kUnsupported, "no"));
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().code, StatusCode::kUnsupported);
}

}  // namespace
}  // namespace uccl
