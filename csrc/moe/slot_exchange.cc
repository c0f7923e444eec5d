// See slot_exchange.h.
#include "csrc/moe/slot_exchange.h"

#include <atomic>
#include <utility>

#include "csrc/base/hash.h"
#include "csrc/cuda/rows.h"
#include "csrc/fifo/command.h"
#include "csrc/moe/refuse.h"

namespace uccl::moe {
Status SlotLayout::Check() const {
  if (ranks == 0 || ranks - 1 > fifo::kMaxPeer) {
    return Refuse(StatusCode::kInvalidArgument,
                  std::to_string(ranks) + " ranks: 1 to " + std::to_string(fifo::kMaxPeer + 1));
  }
  // Below where the sums of this struct overflow.
  constexpr uint64_t kMost = uint64_t{1} << 31;
  if (staging_rows >= kMost || slots >= kMost || most > slots || row_bytes >= kMost ||
      first_byte % fifo::kGranuleBytes != 0 || first_byte > fifo::kMaxOffset) {
    return Refuse(StatusCode::kInvalidArgument, std::to_string(staging_rows) +
                                                    " rows to send and " + std::to_string(slots) +
                                                    " to receive of " + std::to_string(row_bytes) +
                                                    " bytes: less than 2^31 of each");
  }
  if (stride() > 0 &&
      staging_rows + slots > (fifo::kMaxOffset - first_byte) / kBuffers / stride()) {
    return Refuse(StatusCode::kUnsupported,
                  "a low-latency exchange of " + std::to_string(staging_rows + slots) +
                      " rows of " + std::to_string(row_bytes) +
                      " bytes, twice, does not fit into a region of 64 GiB; use fewer tokens at "
                      "once, or mode='throughput'");
  }
  if (uint64_t{first_counter} + uint64_t{kBuffers} * 2 * ranks > fifo::kMaxCounter ||
      first_channel + kChannels - 1 > fifo::kMaxChannel) {
    return Refuse(StatusCode::kUnsupported,
                  std::to_string(ranks) + " ranks take more counters or channels than there are");
  }
  return Status::Ok();
}

uint64_t NameOf(const SlotLayout& layout) {
  return HashWords({layout.ranks, layout.staging_rows, layout.slots, layout.most, layout.row_bytes,
                    layout.first_byte, layout.first_counter, layout.first_channel});
}

SlotExchange::Results SlotExchange::ResultsOf(const SlotLayout& layout) {
  Results r;
  uint64_t end = 0;
  // Each on a line of its own: one thread of a kernel writes one of these while others read others.
  const auto place = [&](uint64_t bytes) {
    const uint64_t at = end;
    end = (end + bytes + 63) / 64 * 64;
    return at;
  };
  r.uses = place(sizeof(uint64_t));
  r.state = place(SlotLayout::kBuffers * 2 * sizeof(uint64_t) * layout.ranks);
  r.counts = place(sizeof(uint32_t) * layout.ranks);
  r.order = place(sizeof(int32_t) * layout.slots);
  r.work_bytes = std::exchange(end, 0);
  r.outcome = place(sizeof(uint64_t));
  r.fault = place(sizeof(uint64_t));
  r.awaits = place(sizeof(uint64_t) * layout.ranks);
  r.shared_bytes = end;
  return r;
}

SlotExchange::SlotExchange(const SlotLayout& layout, uint32_t rank, const fifo::FifoView& fifo,
                           const Memory& memory)
    : layout_(layout), results_(ResultsOf(layout)), rank_(rank), fifo_(fifo), memory_(memory) {
  *Shared(results_.fault) = cuda::kNoFault;
}

SlotExchange::Use SlotExchange::MakeUse() const {
  const SlotLayout& l = layout_;
  constexpr uint32_t kFirst = 0;  // the buffer that turns count from
  Use use;
  use.begin.uses = Work<uint64_t>(results_.uses);
  use.begin.mark = memory_.mark;
  use.staging = memory_.region + l.staging(kFirst);
  use.slots = memory_.region + l.slot(kFirst);
  use.turn.uses = use.begin.uses;
  use.turn_bytes = l.buffer_bytes();
  cuda::SendRowsParams& send = use.send;
  send.fifo = fifo_;
  send.ranks = l.ranks, send.rank = rank_;
  send.staging_offset = l.staging(kFirst), send.staging_rows = l.staging_rows;
  send.slots_offset = l.slot(kFirst), send.num_slots = l.slots;
  send.stride = l.stride();
  send.arrived = l.arrived(kFirst) + rank_, send.announced = l.announced(kFirst) + rank_;
  send.row_channel = l.first_channel, send.count_channel = l.first_channel + 1;
  send.fault = Shared(results_.fault);
  send.turn = use.turn, send.turn_bytes = use.turn_bytes, send.turn_counters = 2 * l.ranks;
  cuda::AwaitRowsParams& wait = use.wait;
  wait.counters = memory_.counters;
  wait.arrived = l.arrived(kFirst), wait.announced = l.announced(kFirst);
  wait.ranks = l.ranks, wait.most = l.most;
  wait.state = Work<uint64_t>(results_.state);
  wait.counts = Work<uint32_t>(results_.counts);
  wait.order = Work<int32_t>(results_.order);
  wait.awaits = Shared(results_.awaits);
  wait.abort = memory_.failed;
  wait.outcome = Shared(results_.outcome);
  wait.turn = use.turn, wait.turn_counters = 2 * l.ranks;
  return use;
}

Status SlotExchange::Trouble() const {
  // Relaxed: nothing is behind these words.
  const auto look = [&](uint64_t at) {
    return std::atomic_ref(*Shared(at)).load(std::memory_order_relaxed);
  };
  const uint64_t outcome = look(results_.outcome), fault = look(results_.fault);
  if (outcome == cuda::kTooManyRows) {
    return Refuse(StatusCode::kProtocol, "a rank announced more than the " +
                                             std::to_string(layout_.most) +
                                             " rows that one may send");
  }
  if (fault != cuda::kNoFault) {
    return Refuse(StatusCode::kInvalidArgument,
                  "entry " + std::to_string(fault) + " of the rows to send lies outside of " +
                      std::to_string(layout_.staging_rows) + " rows, " +
                      std::to_string(layout_.ranks) + " ranks or " + std::to_string(layout_.slots) +
                      " slots");
  }
  if (outcome != 0) return Refuse(StatusCode::kAborted, "the wait for rows was aborted");
  return Status::Ok();
}

bool SlotExchange::Awaits(uint32_t rank) const {
  // Relaxed: it only tells how far the use is.
  return std::atomic_ref(Shared(results_.awaits)[rank]).load(std::memory_order_relaxed) != 0;
}

std::span<const uint32_t> SlotExchange::counts() const {
  return {Work<uint32_t>(results_.counts), layout_.ranks};
}

}  // namespace uccl::moe
