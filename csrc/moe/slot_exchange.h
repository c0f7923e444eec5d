// Rows from every rank of a communicator to slots of every other one, without telling sizes first:
// where things lie, which counters count them, and why a slot may be used again.
//
//   staging of the sender, buffer b --rows, each counted--> slots of the receiver, buffer b
//                                   --number of rows------>
//
// A use is one exchange of all ranks: each packs rows into staging, sends them (cuda/send_rows.h),
// waits for those of all ranks (cuda/await_rows.h) and reads its slots. Uses are numbered from 0 on
// and take the two buffers in turn. Who fills which slot is agreed above, once and for all: by
// source and number, or by the place that waits for a row there.
//
// Why two buffers are enough, without a word about slots that are free. Rank A writes into the
// slots of rank B for use s + 2 after its own use s + 1 is over. That use took the number of rows
// that B sends to A in it, which B tells even if it is zero; B's stream tells it behind its use s,
// at the end of which B has read its slots. So B's slots of use s are free. Likewise A's staging:
// at B all rows of use s had landed when B's use s was over, for every B. And a counter of buffer b
// that A sees grow after use s grew for use s + 2, or less, never for s + 4: await_rows.h may take
// what is new in it as one number. All this rests on one use being over before the next begins,
// which Begin holds callers to; dispatches and combines are two exchanges, so one of each may be
// under way.
//
// Leaves to others: what rows are (low_latency.h), threads and streams.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "csrc/base/status.h"
#include "csrc/base/types.h"
#include "csrc/cuda/await_rows.h"
#include "csrc/cuda/send_rows.h"
#include "csrc/fifo/slot.h"

namespace uccl::moe {

// Equal on all ranks.
struct SlotLayout {
  uint32_t ranks = 0;
  uint64_t staging_rows = 0;  // that a rank packs
  uint64_t slots = 0;         // that a rank receives, of all ranks
  uint64_t most = 0;          // rows that one rank sends to one
  uint64_t row_bytes = 0;     // of the longest row
  // Of this exchange's part of the region, its counters and its channels.
  uint64_t first_byte = 0;
  uint32_t first_counter = 0, first_channel = 0;

  static constexpr uint32_t kBuffers = 2, kChannels = 2;

  // kInvalidArgument, kUnsupported where commands cannot say what this needs.
  Status Check() const;

  constexpr uint64_t stride() const { return (row_bytes + 15) / 16 * 16; }
  constexpr uint64_t buffer_bytes() const { return (staging_rows + slots) * stride(); }
  constexpr uint64_t bytes() const { return kBuffers * buffer_bytes(); }
  constexpr uint64_t staging(uint32_t buffer) const { return first_byte + buffer * buffer_bytes(); }
  constexpr uint64_t slot(uint32_t buffer) const {
    return staging(buffer) + staging_rows * stride();
  }
  // Of rank 0; the others follow.
  constexpr uint32_t arrived(uint32_t buffer) const { return first_counter + buffer * 2 * ranks; }
  constexpr uint32_t announced(uint32_t buffer) const { return arrived(buffer) + ranks; }
  constexpr uint32_t counters() const { return kBuffers * 2 * ranks; }
};

// One rank's side.
class SlotExchange final {
 public:
  // Memory that kernels write and the host reads when they are over.
  struct Results {
    uint64_t state[SlotLayout::kBuffers];  // offsets into the work memory, as the rest
    uint64_t counts, order, waited, outcome, fault, bytes;
  };
  static Results ResultsOf(const SlotLayout& layout);

  // All of these outlive the exchange: the region's memory, counters and failure word, and
  // ResultsOf(layout).bytes of zeroed work memory, aligned to 16.
  struct Memory {
    std::byte* region = nullptr;
    const uint64_t* counters = nullptr;
    const uint64_t* failed = nullptr;
    std::byte* work = nullptr;
  };
  SlotExchange(const SlotLayout& layout, uint32_t rank, const fifo::FifoView& fifo,
               const Memory& memory);

  // What the kernels of one use get; entries, `row_bytes` and `waited` are the caller's to add.
  struct Use {
    std::byte* staging = nullptr;
    const std::byte* slots = nullptr;
    cuda::SendRowsParams send;
    cuda::AwaitRowsParams wait;
  };
  // kInvalidArgument while one is under way.
  Result<Use> Begin();
  // Its kernels are over. Ok, or why the rows are not to be trusted; `failure` is the region's.
  Status End(const Status& failure);

  const SlotLayout& layout() const { return layout_; }
  // Of the last use: rows from each rank, and how long each was waited for.
  std::span<const uint32_t> counts() const;
  std::span<const uint64_t> waited_ns() const;

 private:
  template <class T>
  T* At(uint64_t offset) const {
    return reinterpret_cast<T*>(memory_.work + offset);
  }

  const SlotLayout layout_;
  const Results results_;
  const uint32_t rank_;
  const fifo::FifoView fifo_;
  const Memory memory_;
  uint64_t uses_ = 0;
  bool under_way_ = false;
};

}  // namespace uccl::moe
