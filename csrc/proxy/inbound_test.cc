// Tests of csrc/proxy/inbound.h and put_note.h: honest puts, and notes that no honest peer sends.
#include "csrc/proxy/inbound.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace uccl::proxy {
namespace {

constexpr size_t kBytes = 1024;
constexpr size_t kCounters = 4;
constexpr uint32_t kWindow = 8;
const ProcessId kPeer{1};

// Rank 0 of three; rank 1 lives in process 1, rank 2 in process 2.
struct Bench {
  Bench() : memory(kBytes + 16) {
    RegionOptions options;
    options.key = 77;
    options.rank = 0;
    options.processes = {ProcessId{0}, ProcessId{1}, ProcessId{2}};
    void* start = memory.data();
    size_t space = memory.size();
    start = std::align(16, kBytes, start, space);
    options.memory = {static_cast<std::byte*>(start), kBytes};
    options.num_counters = kCounters;
    region = std::move(Region::Make(options).value());
    inbound = std::make_unique<Inbound>(region, kWindow);
  }
  std::vector<std::byte> memory;
  std::shared_ptr<Region> region;
  std::unique_ptr<Inbound> inbound;
};

PutNote Note(PutKind kind, uint32_t number) {
  PutNote note;
  note.kind = kind;
  note.channel = 3;
  note.fifo = 5;
  note.number = number;
  note.source = 1;
  if (kind == PutKind::kWriteCount || kind == PutKind::kCount) {
    note.counter = 2;
    note.amount = 7;
  }
  return note;
}

using What = Inbound::Verdict::What;

TEST(PutNote, RoundTripAndRefusals) {
  std::mt19937_64 random(1);
  size_t decoded = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::array<std::byte, 32> bytes{};
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    bytes[0] = static_cast<std::byte>(random() % 8);
    if (i % 2 == 0) {
      bytes[1] &= std::byte{63};
      for (int k = 16; k < 24; ++k) bytes[k] = std::byte{0};
      for (int k = 28; i % 4 == 0 && k < 32; ++k) bytes[k] = std::byte{0};
    }
    const Result<PutNote> note = DecodeNote(bytes, i % 3 == 0 ? 8 : 0);
    if (!note.ok()) {
      EXPECT_EQ(note.status().code, StatusCode::kProtocol);
      continue;
    }
    ++decoded;
    ASSERT_EQ(EncodeNote(note.value()), bytes);
  }
  EXPECT_GT(decoded, 1000u);
}

TEST(Inbound, Write_GoesToItsPlaceAndCountsWhenLanded) {
  Bench bench;
  PutNote write = Note(PutKind::kWrite, 0);
  write.offset = 100;
  const auto verdict = bench.inbound->OnArrival(kPeer, write, 33);
  ASSERT_TRUE(verdict.ok());
  ASSERT_EQ(verdict.value().what, What::kReceive);
  EXPECT_EQ(verdict.value().buffer.data(), bench.region->memory().data() + 100);
  EXPECT_EQ(verdict.value().buffer.size(), 33u);
  const auto count = bench.inbound->OnArrival(kPeer, Note(PutKind::kCount, 1), 0);
  ASSERT_TRUE(count.ok());
  EXPECT_EQ(count.value().what, What::kDone);
  EXPECT_EQ(bench.region->Read(2), 0u) << "before its data";
  const auto answer = bench.inbound->OnLanded(write);
  EXPECT_TRUE(answer.raised);
  EXPECT_EQ(bench.region->Read(2), 7u);
  // Two of a window of eight: an acknowledgement is due.
  ASSERT_EQ(answer.notes.size(), 1u);
  const PutNote& ack = answer.notes[0];
  EXPECT_EQ(ack.kind, PutKind::kAck);
  EXPECT_EQ(ack.number, 2u);
  EXPECT_EQ(ack.source, 0u);
  EXPECT_EQ(ack.destination, 1u);
  EXPECT_EQ(ack.fifo, 5u);
  EXPECT_EQ(ack.channel, 3u);
}

TEST(Inbound, Duplicate_GoesNowhere) {
  Bench bench;
  const PutNote write = Note(PutKind::kWriteCount, 0);
  ASSERT_EQ(bench.inbound->OnArrival(kPeer, write, 16).value().what, What::kReceive);
  EXPECT_EQ(bench.inbound->OnArrival(kPeer, write, 16).value().what, What::kDrop);
  (void)bench.inbound->OnLanded(write);
  EXPECT_EQ(bench.inbound->OnArrival(kPeer, write, 16).value().what, What::kDrop);
  (void)bench.inbound->OnLanded(write);
  EXPECT_EQ(bench.region->Read(2), 7u) << "counted once";
  EXPECT_EQ(bench.inbound->duplicates(), 2u);
}

TEST(Inbound, StreamsDoNotWaitForEachOther) {
  Bench bench;
  ASSERT_EQ(bench.inbound->OnArrival(kPeer, Note(PutKind::kWrite, 0), 16).value().what,
            What::kReceive);
  PutNote count = Note(PutKind::kCount, 0);
  count.channel = 4;
  ASSERT_TRUE(bench.inbound->OnArrival(kPeer, count, 0).ok());
  count.channel = 3;
  count.fifo = 6;
  ASSERT_TRUE(bench.inbound->OnArrival(kPeer, count, 0).ok());
  count.fifo = 5;
  count.source = 2;
  ASSERT_TRUE(bench.inbound->OnArrival(ProcessId{2}, count, 0).ok());
  EXPECT_EQ(bench.region->Read(2), 21u);
}

TEST(Inbound, OnArrival_HostileNotesAreRefusedAndTouchNothing) {
  struct Case {
    const char* what;
    std::function<void(PutNote*, uint64_t* size)> change;
  };
  const std::vector<Case> cases = {
      {"source is no rank", [](PutNote* n, uint64_t*) { n->source = 3; }},
      {"source of another process", [](PutNote* n, uint64_t*) { n->source = 2; }},
      {"source is this rank", [](PutNote* n, uint64_t*) { n->source = 0; }},
      {"for another rank", [](PutNote* n, uint64_t*) { n->destination = 1; }},
      {"one byte too far", [](PutNote* n, uint64_t*) { n->offset = kBytes - 15; }},
      {"offset far away", [](PutNote* n, uint64_t*) { n->offset = ~uint64_t{0}; }},
      {"offset that wraps around", [](PutNote* n, uint64_t*) { n->offset = ~uint64_t{0} - 7; }},
      {"larger than the region", [](PutNote*, uint64_t* size) { *size = kBytes + 1; }},
      {"size that wraps around",
       [](PutNote* n, uint64_t* size) {
         n->offset = 16;
         *size = ~uint64_t{0} - 8;
       }},
      {"counter that is none", [](PutNote* n, uint64_t*) { n->counter = kCounters; }},
      {"beyond the window", [](PutNote* n, uint64_t*) { n->number = kWindow; }},
      {"asks about the future",
       [](PutNote* n, uint64_t* size) {
         *n = Note(PutKind::kAckRequest, kWindow + 1);
         *size = 0;
       }},
      {"barrier from the wrong rank",
       [](PutNote* n, uint64_t* size) {
         *n = Note(PutKind::kBarrier, 0);
         *size = 0;
       }},
  };
  for (const Case& c : cases) {
    Bench bench;
    PutNote note = Note(PutKind::kWriteCount, 0);
    uint64_t size = 16;
    ASSERT_TRUE(bench.inbound->OnArrival(kPeer, Note(PutKind::kWrite, 1), 16).ok());
    c.change(&note, &size);
    const auto verdict = bench.inbound->OnArrival(kPeer, note, size);
    ASSERT_FALSE(verdict.ok()) << c.what;
    EXPECT_EQ(verdict.status().code, StatusCode::kProtocol) << c.what;
    for (uint32_t i = 0; i < kCounters; ++i) EXPECT_EQ(bench.region->Read(i), 0u) << c.what;
  }
}

}  // namespace
}  // namespace uccl::proxy
