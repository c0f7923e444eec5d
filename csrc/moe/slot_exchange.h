// Rows from every rank of a communicator to slots of every other one, without telling sizes first:
// where things lie, which counters count them, and why a slot may be used again.
//
//   staging of the sender, buffer b --rows, each counted--> slots of the receiver, buffer b
//                                   --number of rows------>
//
// A use is one exchange of all ranks: each packs rows into staging, sends them (cuda/send_rows.h),
// waits for those of all ranks (cuda/await_rows.h) and reads its slots. Uses take the two buffers
// in turn. Whose turn it is, kernels count (cuda/turn.h): so what one use launches is the same for
// all, and may be repeated by a graph. Who fills which slot is agreed above, once and for all: by
// source and number, or by the place that waits for a row there.
//
// Why two buffers are enough, without a word about slots that are free. Rank A writes into the
// slots of rank B for use s + 2 after its own use s + 1 is over. That use took the number of rows
// that B sends to A in it, which B tells even if it is zero; B's stream tells it behind its use s,
// at the end of which B has read its slots. So B's slots of use s are free. Likewise A's staging:
// at B all rows of use s had landed when B's use s was over, for every B. And a counter of buffer b
// that A sees grow after use s grew for use s + 2, or less, never for s + 4: await_rows.h may take
// what is new in it as one number. All this rests on the kernels of one use being over before those
// of the next begin, as they are on one stream; dispatches and combines are two exchanges, so one
// of each may be under way.
//
// Leaves to others: what rows are (low_latency.h), threads and streams.
//
// Threads: what it hands out may be used by one stream; the rest by any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "csrc/base/status.h"
#include "csrc/base/types.h"
#include "csrc/cuda/await_rows.h"
#include "csrc/cuda/resolve.h"
#include "csrc/cuda/send_rows.h"
#include "csrc/cuda/turn.h"
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

  static constexpr uint32_t kBuffers = cuda::Turn::kBuffers, kChannels = 2;

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

// Equal for equal layouts; what a region for one is called among those of the same ranks.
uint64_t NameOf(const SlotLayout& layout);

// One rank's side.
class SlotExchange final {
 public:
  // What kernels write: for themselves, and for a host that may look at any time.
  struct Results {
    uint64_t uses, state, counts, order, work_bytes;  // offsets into the work memory
    uint64_t outcome, fault, awaits, shared_bytes;    // into the shared memory
  };
  static Results ResultsOf(const SlotLayout& layout);

  // All of these outlive the exchange: the region's memory, counters and failure word; zeroed
  // memory of ResultsOf(layout), aligned to 16; `mark` as in cuda/resolve.h.
  struct Memory {
    std::byte* region = nullptr;
    const uint64_t* counters = nullptr;
    const uint64_t* failed = nullptr;
    std::byte* work = nullptr;
    std::byte* shared = nullptr;  // the host reaches it, too
    uint64_t* mark = nullptr;
  };
  SlotExchange(const SlotLayout& layout, uint32_t rank, const fifo::FifoView& fifo,
               const Memory& memory);

  // What the kernels of a use get, in this order, and where the first buffer lies; entries,
  // `row_bytes` and `waited` are the caller's to add. `begin` comes first of all.
  struct Use {
    cuda::ResolveParams begin;
    std::byte* staging = nullptr;
    const std::byte* slots = nullptr;
    cuda::Turn turn;
    uint64_t turn_bytes = 0;  // from staging or slots to those of the second buffer
    cuda::SendRowsParams send;
    cuda::AwaitRowsParams wait;
  };
  Use MakeUse() const;

  // Ok, or what the kernels of any use have found wrong: its rows are not to be trusted.
  Status Trouble() const;
  // Whether the kernel that runs waits for rows of that rank.
  bool Awaits(uint32_t rank) const;

  const SlotLayout& layout() const { return layout_; }
  // Of the last use, which is over: rows from each rank. Where the host reaches the work memory.
  std::span<const uint32_t> counts() const;

 private:
  template <class T>
  T* Work(uint64_t offset) const {
    return reinterpret_cast<T*>(memory_.work + offset);
  }
  uint64_t* Shared(uint64_t offset) const {
    return reinterpret_cast<uint64_t*>(memory_.shared + offset);
  }

  const SlotLayout layout_;
  const Results results_;
  const uint32_t rank_;
  const fifo::FifoView fifo_;
  const Memory memory_;
};

}  // namespace uccl::moe
