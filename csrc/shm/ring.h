// A queue of records in memory that two processes share: one writes, the other reads, neither takes
// a lock. A record is a header of 16 bytes and a body, contiguous, so that both sides work in
// place.
//
//   head (reader)            tail (writer)                 both count bytes and never wrap;
//     |  record  |  record  |                              position = count mod size
//
// Memory order. The writer fills a record, then stores `tail` with release; the reader loads `tail`
// with acquire, so it sees the whole record. The reader is done with a record, then stores `head`
// with release; the writer loads `head` with acquire, so it does not write over what is still read.
// Each side keeps a copy of the other's counter and looks again only when the copy says "empty" or
// "full": otherwise every record would move both cache lines between the cores.
//
// The other process may be of another mind, or broken: the reader checks every length against what
// the writer has published, and reports what does not fit instead of following it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace uccl::shm {

// In shared memory, before the bytes of the ring; zero is a valid start. Counters that different
// processes write lie in different cache lines.
struct RingHeader {
  alignas(64) std::atomic<uint64_t> head;     // written by the reader
  std::atomic<uint64_t> eager_returned;       // by the reader; see link.h
  alignas(64) std::atomic<uint64_t> tail;     // by the writer
  alignas(64) std::atomic<uint64_t> session;  // by the writer, before its first record
  std::atomic<uint32_t> writer_waits;         // set by a writer that found no room
  std::atomic<uint32_t> writer_gave_up;       // by the writer: trust nothing of mine any more
  std::atomic<uint64_t> urgent;               // by the writer: up to here it must be read soon
};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "shared between processes");

struct RecordHeader {
  uint32_t body_bytes = 0;  // without padding
  uint32_t kind = 0;
  uint64_t id = 0;
};
static_assert(sizeof(RecordHeader) == 16);

// Records start at multiples of this, so a header is never cut by the end of the ring.
inline constexpr size_t kRecordAlign = sizeof(RecordHeader);
// Fills the rest of the ring where a record does not fit before its end.
inline constexpr uint32_t kPaddingKind = 0;

constexpr size_t RecordBytes(size_t body) {
  return sizeof(RecordHeader) + (body + kRecordAlign - 1) / kRecordAlign * kRecordAlign;
}

// `bytes` is a power of two. A body may take a quarter of it, so that one always fits into an empty
// ring, wherever it starts.
constexpr size_t MaxBody(size_t bytes) { return bytes / 4 - sizeof(RecordHeader); }

class RingWriter final {
 public:
  RingWriter() = default;
  RingWriter(RingHeader* header, std::byte* data, size_t bytes)
      : header_(header), data_(data), bytes_(bytes) {
    tail_ = header->tail.load(std::memory_order_relaxed);  // only this side writes it
  }

  // Room for one record, or null when the ring is full. What Reserve gave is published by Commit;
  // without it the next Reserve gives the same room.
  std::byte* Reserve(uint32_t kind, uint64_t id, size_t body) {
    const size_t record = RecordBytes(body);
    const size_t at = tail_ & (bytes_ - 1);
    const size_t padding = at + record > bytes_ ? bytes_ - at : 0;
    if (tail_ + padding + record - head_ > bytes_) {
      head_ = header_->head.load(std::memory_order_acquire);
      if (tail_ + padding + record - head_ > bytes_) return nullptr;
    }
    if (padding > 0) {
      *Header(tail_) = {static_cast<uint32_t>(padding - sizeof(RecordHeader)), kPaddingKind, 0};
    }
    RecordHeader* const header = Header(tail_ + padding);
    *header = {static_cast<uint32_t>(body), kind, id};
    next_ = tail_ + padding + record;
    return reinterpret_cast<std::byte*>(header + 1);
  }
  void Commit() {
    tail_ = next_;
    header_->tail.store(tail_, std::memory_order_release);
  }
  // What was committed must be read also by a reader that waits for nothing. (Release, and after
  // the tail: whoever sees it sees the records.)
  void Urge() { header_->urgent.store(tail_, std::memory_order_release); }
  // Asks the reader to ring when it has made room. The caller must try once more afterwards: the
  // reader may have made room just before it could see the wish. (seq_cst on both sides: either the
  // reader sees the wish, or this side sees the new head.)
  void WaitForRoom() {
    header_->writer_waits.store(1, std::memory_order_seq_cst);
    head_ = header_->head.load(std::memory_order_seq_cst);
  }
  RingHeader* header() const { return header_; }
  size_t max_body() const { return MaxBody(bytes_); }

 private:
  RecordHeader* Header(uint64_t count) const {
    return reinterpret_cast<RecordHeader*>(data_ + (count & (bytes_ - 1)));
  }

  RingHeader* header_ = nullptr;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  uint64_t tail_ = 0, next_ = 0;
  uint64_t head_ = 0;  // as last seen
};

class RingReader final {
 public:
  RingReader() = default;
  RingReader(RingHeader* header, const std::byte* data, size_t bytes)
      : header_(header), data_(data), bytes_(bytes) {}

  struct Record {
    RecordHeader header;  // a copy: the writer could change its own
    const std::byte* body = nullptr;
  };
  enum class Front { kEmpty, kRecord, kBroken };
  // The oldest record. It stays until Pop.
  Front Peek(Record* record) {
    while (true) {
      if (head_ == tail_) {
        tail_ = header_->tail.load(std::memory_order_acquire);
        if (head_ == tail_) return Front::kEmpty;
      }
      const uint64_t published = tail_ - head_;
      const size_t at = head_ & (bytes_ - 1);
      if (published > bytes_ || published < sizeof(RecordHeader)) return Front::kBroken;
      record->header = *reinterpret_cast<const RecordHeader*>(data_ + at);
      const uint64_t size = RecordBytes(record->header.body_bytes);
      if (size > published || at + size > bytes_) return Front::kBroken;
      if (record->header.kind != kPaddingKind) {
        record->body = data_ + at + sizeof(RecordHeader);
        size_ = size;
        return Front::kRecord;
      }
      head_ += size;
    }
  }
  void Pop() {
    head_ += size_;
    header_->head.store(head_, std::memory_order_release);
  }
  // After Pops: whether the writer waits for the room they made, once.
  bool TakeWish() {
    // The store of `head` must be visible before the wish is read, or the wish could come in
    // between and stay unseen; see WaitForRoom.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (header_->writer_waits.load(std::memory_order_seq_cst) == 0) return false;
    return header_->writer_waits.exchange(0, std::memory_order_seq_cst) != 0;
  }
  // Any thread; a hint.
  bool empty() const {
    return header_->tail.load(std::memory_order_acquire) ==
           header_->head.load(std::memory_order_acquire);
  }
  // Any thread; a hint. Whether something that is there must be read soon.
  bool urged() const {
    const uint64_t urgent = header_->urgent.load(std::memory_order_acquire);
    return urgent > header_->head.load(std::memory_order_acquire) && !empty();
  }
  RingHeader* header() const { return header_; }

 private:
  RingHeader* header_ = nullptr;
  const std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  uint64_t head_ = 0, size_ = 0;
  uint64_t tail_ = 0;  // as last seen
};

}  // namespace uccl::shm
