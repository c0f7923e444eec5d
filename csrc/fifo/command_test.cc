// Tests of csrc/fifo/command.h: every field at its limits, what is refused, and golden words.
#include "csrc/fifo/command.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace uccl::fifo {
namespace {

// Boundary values of a field: both ends, their neighbours inside, and every single bit.
std::vector<uint64_t> Edges(uint64_t least, uint64_t most, uint64_t step = 1) {
  std::vector<uint64_t> values = {least, least + step, most - step, most};
  for (uint64_t bit = step; bit <= most && bit != 0; bit <<= 1) {
    if (bit >= least) values.push_back(bit);
  }
  return values;
}

void ExpectRoundTrip(const Command& command) {
  CommandWords words;
  ASSERT_EQ(EncodeCommand(command, &words), CommandFault::kNone)
      << FaultStatus(CheckCommand(command), command).detail;
  EXPECT_EQ((words.word0 | words.word1) & kPhaseBit, 0u);
  for (const uint64_t phase : {uint64_t{0}, kPhaseBit}) {
    Command back;
    ASSERT_EQ(DecodeCommand({words.word0 | phase, words.word1 | phase}, &back),
              CommandFault::kNone);
    ASSERT_EQ(back, command);
  }
}

struct Ranges {
  CommandKind kind;
  uint64_t max_peer, min_bytes, max_bytes, max_offset, max_counter, min_amount, max_amount;
};

const Ranges kRanges[] = {
    {CommandKind::kWrite, kMaxPeer, 0, kMaxWriteBytes, kMaxOffset, 0, 0, 0},
    {CommandKind::kWriteCount, kMaxPeer, 1, kMaxWriteCountBytes, kMaxOffset, kMaxWriteCountCounter,
     1, kMaxWriteCountAmount},
    {CommandKind::kCount, kMaxPeer, 0, 0, 0, kMaxCounter, 1, kMaxAmount},
    {CommandKind::kQuiet, 0, 0, 0, 0, kMaxCounter, 1, kMaxAmount},
    {CommandKind::kBarrier, 0, 0, 0, 0, kMaxCounter, 1, kMaxAmount},
};

// A field of a command and the values that it may take.
struct Field {
  const char* name;
  uint64_t least, most, step;
  void (*set)(Command*, uint64_t);
};

std::vector<Field> FieldsOf(const Ranges& r) {
  return {
      {"peer", 0, r.max_peer, 1, [](Command* c, uint64_t v) { c->peer = uint32_t(v); }},
      {"channel", 0, kMaxChannel, 1, [](Command* c, uint64_t v) { c->channel = uint32_t(v); }},
      {"bytes", r.min_bytes, r.max_bytes, 1, [](Command* c, uint64_t v) { c->bytes = v; }},
      {"source_offset", 0, r.max_offset, kGranuleBytes,
       [](Command* c, uint64_t v) { c->source_offset = v; }},
      {"destination_offset", 0, r.max_offset, kGranuleBytes,
       [](Command* c, uint64_t v) { c->destination_offset = v; }},
      {"counter", 0, r.max_counter, 1, [](Command* c, uint64_t v) { c->counter = uint32_t(v); }},
      {"amount", r.min_amount, r.max_amount, 1,
       [](Command* c, uint64_t v) { c->amount = uint32_t(v); }},
  };
}

// All fields at their least, or all at their most.
Command Corner(const Ranges& r, bool most) {
  Command c;
  c.kind = r.kind;
  for (const Field& field : FieldsOf(r)) field.set(&c, most ? field.most : field.least);
  return c;
}

TEST(Command, RoundTrip_EveryPairOfFieldsAtItsEdges) {
  for (const Ranges& r : kRanges) {
    for (const bool most : {false, true}) {
      ExpectRoundTrip(Corner(r, most));
      const std::vector<Field> fields = FieldsOf(r);
      for (size_t i = 0; i < fields.size(); ++i) {
        if (fields[i].most == 0) continue;
        for (const uint64_t a : Edges(fields[i].least, fields[i].most, fields[i].step)) {
          for (size_t j = i + 1; j < fields.size(); ++j) {
            if (fields[j].most == 0) continue;
            for (const uint64_t b : Edges(fields[j].least, fields[j].most, fields[j].step)) {
              Command c = Corner(r, most);
              fields[i].set(&c, a);
              fields[j].set(&c, b);
              ExpectRoundTrip(c);
            }
          }
        }
      }
    }
  }
}

TEST(Command, RoundTrip_SmallFieldsExhaustively) {
  Command c = Corner(kRanges[1], false);
  for (c.channel = 0; c.channel <= kMaxChannel; ++c.channel) {
    for (c.amount = 1; c.amount <= kMaxWriteCountAmount; ++c.amount) {
      for (c.counter = 0; c.counter <= kMaxWriteCountCounter; c.counter += 61) ExpectRoundTrip(c);
    }
  }
  c = Corner(kRanges[1], true);
  for (c.bytes = 1; c.bytes <= kMaxWriteCountBytes; ++c.bytes) ExpectRoundTrip(c);
  for (c.bytes = 7, c.counter = 0; c.counter <= kMaxWriteCountCounter; ++c.counter) {
    ExpectRoundTrip(c);
  }
}

TEST(Command, Encode_OneBeyondALimitIsRefusedByName) {
  for (const Ranges& r : kRanges) {
    for (const Field& field : FieldsOf(r)) {
      Command c = Corner(r, false);
      std::vector<uint64_t> bad;
      if (std::string(field.name) == "peer" || std::string(field.name) == "channel" ||
          field.most < 0xffffffffu || field.step > 1 || std::string(field.name) == "bytes") {
        bad.push_back(field.most + field.step);
      }
      if (field.least > 0) bad.push_back(field.least - 1);
      if (field.step > 1 && field.most > 0) bad.push_back(field.step / 2);
      for (const uint64_t value : bad) {
        Command wrong = c;
        field.set(&wrong, value);
        const Result<CommandWords> words = EncodeChecked(wrong);
        ASSERT_FALSE(words.ok()) << CommandKindName(r.kind) << " " << field.name << " " << value;
        EXPECT_EQ(words.status().code, StatusCode::kInvalidArgument);
        EXPECT_NE(words.status().detail.find(field.name), std::string::npos)
            << words.status().detail;
        EXPECT_NE(words.status().detail.find(std::to_string(value)), std::string::npos)
            << words.status().detail;
        EXPECT_NE(words.status().detail.find(CommandKindName(r.kind)), std::string::npos);
      }
    }
  }
  for (const int kind : {0, 6, 7, 8, 255}) {
    Command c;
    c.kind = static_cast<CommandKind>(kind);
    EXPECT_EQ(CheckCommand(c), CommandFault::kKind);
    EXPECT_FALSE(EncodeChecked(c).ok());
  }
}

// What decodes at all encodes to the same words: no two words mean the same, no bit is ignored.
TEST(Command, Decode_RandomWordsAreRefusedOrRoundTrip) {
  std::mt19937_64 random(20260101);
  size_t decoded = 0, refused = 0;
  for (int i = 0; i < 300'000; ++i) {
    CommandWords words{random() & ~kPhaseBit, random() & ~kPhaseBit};
    if (i % 2 == 0) words.word0 &= ~(uint64_t{0x3ff} << 24);  // so that counts decode, too
    if (i % 4 == 0) words.word1 &= 0xffffffffu;
    if (i % 8 == 0) words.word0 &= ~(uint64_t{kMaxPeer} << 34);
    Command command;
    if (DecodeCommand(words, &command) != CommandFault::kNone) {
      ++refused;
      EXPECT_FALSE(DecodeChecked(words).ok());
      continue;
    }
    ++decoded;
    CommandWords again;
    ASSERT_EQ(EncodeCommand(command, &again), CommandFault::kNone);
    ASSERT_EQ(again, words);
  }
  EXPECT_GT(decoded, 50'000u);
  EXPECT_GT(refused, 50'000u);
}

TEST(Command, Decode_ZeroedMemoryIsNoCommand) {
  Command command;
  EXPECT_EQ(DecodeCommand({0, 0}, &command), CommandFault::kKind);
  EXPECT_EQ(DecodeCommand({kPhaseBit, kPhaseBit}, &command), CommandFault::kKind);
  EXPECT_EQ(DecodeCommand({~uint64_t{0}, ~uint64_t{0}}, &command), CommandFault::kKind);
}

TEST(Command, Decode_BitsThatTheKindDoesNotUseAreRefused) {
  const auto fault = [](uint64_t word0, uint64_t word1) {
    Command command;
    return DecodeCommand({word0, word1}, &command);
  };
  const uint64_t write = uint64_t{1} << 60, count = uint64_t{3} << 60;
  EXPECT_EQ(fault(write | uint64_t{1} << 32, 0), CommandFault::kReserved);
  EXPECT_EQ(fault(count | uint64_t{1} << 33, 1), CommandFault::kReserved);
  EXPECT_EQ(fault(count | uint64_t{1} << 24, 1), CommandFault::kReserved);
  EXPECT_EQ(fault(count, uint64_t{1} << 32 | 1), CommandFault::kReserved);
  EXPECT_EQ(fault(count, 1), CommandFault::kNone);
  // A quiet has no peer.
  EXPECT_EQ(fault(uint64_t{4} << 60 | uint64_t{1} << 34, 1), CommandFault::kPeer);
}

// The words printed in docs/fifo_and_proxy.md.
TEST(Command, Encode_GoldenWords) {
  Command c;
  c.kind = CommandKind::kWriteCount;
  c.peer = 0x12345;
  c.channel = 9;
  c.bytes = 7169 * 2;
  c.source_offset = 0x1000;
  c.destination_offset = uint64_t{0xdeadbeef} * 16;
  c.counter = 0x0abc;
  c.amount = 3;
  CommandWords words;
  ASSERT_EQ(EncodeCommand(c, &words), CommandFault::kNone);
  EXPECT_EQ(words.word0, 0x22448d164abc3801u);
  EXPECT_EQ(words.word1, 0x5eadbeef00000100u);
  Command count;
  count.kind = CommandKind::kCount;
  count.peer = 2;
  count.channel = 63;
  count.counter = 0xffffff;
  count.amount = 0xfffffffe;
  ASSERT_EQ(EncodeCommand(count, &words), CommandFault::kNone);
  EXPECT_EQ(words.word0, 0x3fc0000800ffffffu);
  EXPECT_EQ(words.word1, 0x00000000fffffffeu);
}

}  // namespace
}  // namespace uccl::fifo
