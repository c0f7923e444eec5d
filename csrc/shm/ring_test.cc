// Tests of csrc/shm/ring.h: one thread on both ends, two threads, and a writer of ill will.
#include "csrc/shm/ring.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

namespace uccl::shm {
namespace {

constexpr size_t kBytes = 4096;

struct Memory {
  alignas(64) RingHeader header{};
  alignas(64) std::byte bytes[kBytes] = {};
};

std::byte ByteOf(uint64_t record, size_t at) {
  return static_cast<std::byte>(record * 31 + at * 7);
}

// False when the ring is full.
bool WriteOne(RingWriter* writer, uint64_t id, size_t body) {
  std::byte* const at = writer->Reserve(1, id, body);
  if (at == nullptr) return false;
  for (size_t i = 0; i < body; ++i) at[i] = ByteOf(id, i);
  writer->Commit();
  return true;
}

void ExpectRecord(const RingReader::Record& record, uint64_t id, size_t body) {
  ASSERT_EQ(record.header.id, id);
  ASSERT_EQ(record.header.body_bytes, body);
  for (size_t i = 0; i < body; ++i) ASSERT_EQ(record.body[i], ByteOf(id, i)) << id << " " << i;
}

TEST(Ring, RecordsOfAllSizes_ManyTimesAround) {
  auto memory = std::make_unique<Memory>();
  RingWriter writer(&memory->header, memory->bytes, kBytes);
  RingReader reader(&memory->header, memory->bytes, kBytes);
  EXPECT_TRUE(reader.empty());
  uint64_t written = 0, read = 0;
  const auto size_of = [](uint64_t id) { return id * 37 % (MaxBody(kBytes) + 1); };
  while (read < 5000) {
    // As many as fit, then some of them out: every fill level comes.
    while (WriteOne(&writer, written, size_of(written))) ++written;
    EXPECT_FALSE(reader.empty());
    for (uint64_t i = 0; i < 1 + read % 3; ++i) {
      RingReader::Record record;
      if (reader.Peek(&record) != RingReader::Front::kRecord) break;
      ASSERT_NO_FATAL_FAILURE(ExpectRecord(record, read, size_of(read)));
      reader.Pop();
      ++read;
    }
  }
}

TEST(Ring, TheLargestRecordFitsWhereverAnEmptyRingStands) {
  for (size_t shift = 0; shift < kBytes / kRecordAlign; ++shift) {
    auto memory = std::make_unique<Memory>();
    RingWriter writer(&memory->header, memory->bytes, kBytes);
    RingReader reader(&memory->header, memory->bytes, kBytes);
    RingReader::Record record;
    for (size_t i = 0; i < shift; ++i) {
      ASSERT_TRUE(WriteOne(&writer, i, 0));
      ASSERT_EQ(reader.Peek(&record), RingReader::Front::kRecord);
      reader.Pop();
    }
    ASSERT_TRUE(WriteOne(&writer, 7, MaxBody(kBytes))) << shift;
    ASSERT_EQ(reader.Peek(&record), RingReader::Front::kRecord);
    ASSERT_NO_FATAL_FAILURE(ExpectRecord(record, 7, MaxBody(kBytes)));
  }
}

TEST(Ring, AWriterThatWaitsIsToldOnce) {
  auto memory = std::make_unique<Memory>();
  RingWriter writer(&memory->header, memory->bytes, kBytes);
  RingReader reader(&memory->header, memory->bytes, kBytes);
  uint64_t id = 0;
  while (WriteOne(&writer, id, 200)) ++id;
  EXPECT_FALSE(reader.TakeWish());
  writer.WaitForRoom();
  EXPECT_FALSE(WriteOne(&writer, id, 200));
  RingReader::Record record;
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(reader.Peek(&record), RingReader::Front::kRecord);
    reader.Pop();
  }
  EXPECT_TRUE(reader.TakeWish());
  EXPECT_FALSE(reader.TakeWish());
  EXPECT_TRUE(WriteOne(&writer, id, 200));
}

TEST(Ring, WhatIsUrgedIsSoUntilItIsRead) {
  auto memory = std::make_unique<Memory>();
  RingWriter writer(&memory->header, memory->bytes, kBytes);
  RingReader reader(&memory->header, memory->bytes, kBytes);
  RingReader::Record record;
  ASSERT_TRUE(WriteOne(&writer, 1, 8));
  EXPECT_FALSE(reader.urged());
  ASSERT_TRUE(WriteOne(&writer, 2, 8));
  writer.Urge();
  ASSERT_TRUE(WriteOne(&writer, 3, 8));
  for (int left = 3; left > 0; --left) {
    EXPECT_EQ(reader.urged(), left > 1) << left;
    ASSERT_EQ(reader.Peek(&record), RingReader::Front::kRecord);
    reader.Pop();
  }
  // Of a writer of ill will, nothing there.
  memory->header.urgent.store(UINT64_MAX);
  EXPECT_FALSE(reader.urged());
}

TEST(Ring, TwoThreads) {
  auto memory = std::make_unique<Memory>();
  constexpr uint64_t kRecords = 50'000;
  const auto size_of = [](uint64_t id) { return id % 97 * 3; };
  std::thread other([&] {
    RingWriter writer(&memory->header, memory->bytes, kBytes);
    for (uint64_t id = 0; id < kRecords;) {
      if (WriteOne(&writer, id, size_of(id))) {
        ++id;
      } else {
        std::this_thread::yield();
      }
    }
  });
  RingReader reader(&memory->header, memory->bytes, kBytes);
  for (uint64_t id = 0; id < kRecords;) {
    RingReader::Record record;
    const RingReader::Front front = reader.Peek(&record);
    if (front == RingReader::Front::kEmpty) {
      std::this_thread::yield();
      continue;
    }
    if (front != RingReader::Front::kRecord) {
      ADD_FAILURE() << "broken at " << id;
      break;
    }
    ExpectRecord(record, id, size_of(id));
    if (::testing::Test::HasFailure()) break;
    reader.Pop();
    ++id;
  }
  if (::testing::Test::HasFailure()) {
    // Lets the writer end.
    memory->header.head.store(memory->header.tail.load() + (uint64_t{1} << 40));
  }
  other.join();
}

TEST(Ring, LengthsThatCannotBe_AreReportedNotFollowed) {
  struct Case {
    uint64_t tail;
    uint32_t body;
    uint32_t kind;
  };
  for (const Case& c : std::vector<Case>{
           {kBytes + 16, 0, 1},  // more than the ring holds
           {uint64_t{1} << 60, 0, 1},
           {8, 0, 1},    // half a header
           {32, 17, 1},  // more than was published
           {32, 0xffffffff, 1},
           {kBytes, kBytes, 1},      // past the end
           {48, 1000, kPaddingKind}  // padding that is not there
       }) {
    auto memory = std::make_unique<Memory>();
    RecordHeader header{c.body, c.kind, 0};
    std::memcpy(memory->bytes, &header, sizeof(header));
    memory->header.tail.store(c.tail);
    RingReader reader(&memory->header, memory->bytes, kBytes);
    RingReader::Record record;
    EXPECT_EQ(reader.Peek(&record), RingReader::Front::kBroken) << c.tail << " " << c.body;
  }
}

}  // namespace
}  // namespace uccl::shm
