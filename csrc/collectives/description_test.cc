// Tests of csrc/collectives/description.h: the note that travels with messages, and the digest.
#include "csrc/collectives/description.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <vector>

namespace uccl::coll {
namespace {

OpDescription Example() {
  OpDescription d;
  d.kind = OpKind::kAllReduce;
  d.dtype = DType::kF32;
  d.reduction = ReduceOp::kSum;
  d.algorithm = 5;
  d.dims = 2;
  d.group_size = 4;
  d.elements = 1024;
  d.position = 0x0102030405060708;
  d.run = 0xfffefdfc;
  d.launch = 9;
  return d;
}

TEST(OpDescription, Encode_GoldenBytes) {
  const std::array<uint8_t, 32> want = {
      2,    12,   0x29, 2,    4,    0,    0,    0,     // kind dtype reduction+algorithm dims group
      0,    4,    0,    0,    0,    0,    0,    0,     // elements
      0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01,  // position
      0xfc, 0xfd, 0xfe, 0xff, 9,    0,    0,    0};    // run launch
  const std::array<std::byte, 32> note = Example().Encode();
  for (size_t i = 0; i < note.size(); ++i)
    EXPECT_EQ(static_cast<uint8_t>(note[i]), want[i]) << "byte " << i;
}

TEST(OpDescription, EncodeDecode_IsIdentity) {
  const OpDescription d = Example();
  const OpDescription back = OpDescription::Decode(d.Encode());
  EXPECT_EQ(back.Encode(), d.Encode());
  EXPECT_EQ(back.kind, d.kind);
  EXPECT_EQ(back.dtype, d.dtype);
  EXPECT_EQ(back.reduction, d.reduction);
  EXPECT_EQ(back.algorithm, d.algorithm);
  EXPECT_EQ(back.dims, d.dims);
  EXPECT_EQ(back.group_size, d.group_size);
  EXPECT_EQ(back.elements, d.elements);
  EXPECT_EQ(back.position, d.position);
  EXPECT_EQ(back.run, d.run);
  EXPECT_EQ(back.launch, d.launch);
}

TEST(OpDescription, ToString_ForPeople) {
  OpDescription d = Example();
  EXPECT_EQ(d.ToString(),
            "all_reduce sum float32, 1024 elements (2 dims) per rank, 4 ranks, by halving");
  d.kind = OpKind::kAllToAll;
  d.reduction = ReduceOp::kNone;
  d.algorithm = 0;
  EXPECT_EQ(d.ToString(), "all_to_all float32, 1024 elements (2 dims) per rank, 4 ranks");
}

TEST(OpDescription, Decode_AnyBytesPrint) {
  std::array<std::byte, 32> note;
  for (int fill = 0; fill < 256; ++fill) {
    note.fill(static_cast<std::byte>(fill));
    EXPECT_FALSE(OpDescription::Decode(note).ToString().empty());
  }
}

TEST(DigestOf, EveryPartThatRanksMustAgreeOnCounts) {
  const std::vector<int64_t> shape = {4, 256};
  std::set<uint64_t> digests = {DigestOf(Example(), shape)};
  const auto differs = [&](OpDescription d, const std::vector<int64_t>& s) {
    return digests.insert(DigestOf(d, s)).second;
  };
  OpDescription d = Example();
  d.kind = OpKind::kAllToAll;
  EXPECT_TRUE(differs(d, shape));
  d = Example();
  d.dtype = DType::kS32;
  EXPECT_TRUE(differs(d, shape));
  d = Example();
  d.reduction = ReduceOp::kMax;
  EXPECT_TRUE(differs(d, shape));
  d = Example();
  d.algorithm = 4;
  EXPECT_TRUE(differs(d, shape));
  d = Example();
  d.group_size = 8;
  EXPECT_TRUE(differs(d, shape));
  d = Example();
  ++d.position;
  EXPECT_TRUE(differs(d, shape));
  EXPECT_TRUE(differs(Example(), {256, 4}));
  EXPECT_TRUE(differs(Example(), {1024}));
  EXPECT_TRUE(differs(Example(), {4, 256, 1}));
  EXPECT_TRUE(differs(Example(), {}));
}

TEST(DigestOf, WhatDiffersBetweenHonestRanksDoesNotCount) {
  const std::vector<int64_t> shape = {4, 256};
  OpDescription d = Example();
  d.run = 1;
  d.launch = 2;
  EXPECT_EQ(DigestOf(d, shape), DigestOf(Example(), shape));
}

}  // namespace
}  // namespace uccl::coll
