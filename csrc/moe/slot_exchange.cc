// See slot_exchange.h.
#include "csrc/moe/slot_exchange.h"

#include "csrc/cuda/rows.h"
#include "csrc/fifo/command.h"

namespace uccl::moe {
namespace {

Status Refuse(StatusCode code, const std::string& why) {
  Status status = Status::Error(code, why);
  status.op = "moe.exchange";
  return status;
}

}  // namespace

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

SlotExchange::Results SlotExchange::ResultsOf(const SlotLayout& layout) {
  Results r;
  uint64_t end = 0;
  // Each on a line of its own: one thread of a kernel writes one of these while others read others.
  const auto place = [&](uint64_t bytes) {
    const uint64_t at = end;
    end = (end + bytes + 63) / 64 * 64;
    return at;
  };
  for (uint64_t& state : r.state) state = place(2 * sizeof(uint64_t) * layout.ranks);
  r.counts = place(sizeof(uint32_t) * layout.ranks);
  r.waited = place(sizeof(uint64_t) * layout.ranks);
  r.outcome = place(sizeof(uint64_t));
  r.fault = place(sizeof(uint64_t));
  r.order = place(sizeof(int32_t) * layout.slots);
  r.bytes = end;
  return r;
}

SlotExchange::SlotExchange(const SlotLayout& layout, uint32_t rank, const fifo::FifoView& fifo,
                           const Memory& memory)
    : layout_(layout), results_(ResultsOf(layout)), rank_(rank), fifo_(fifo), memory_(memory) {}

Result<SlotExchange::Use> SlotExchange::Begin() {
  if (under_way_) {
    return Refuse(StatusCode::kInvalidArgument,
                  "an exchange begins while one between the same slots is under way; end that one "
                  "before");
  }
  under_way_ = true;
  const auto buffer = static_cast<uint32_t>(uses_++ % SlotLayout::kBuffers);
  const SlotLayout& l = layout_;
  Use use;
  use.staging = memory_.region + l.staging(buffer);
  use.slots = memory_.region + l.slot(buffer);
  cuda::SendRowsParams& send = use.send;
  send.fifo = fifo_;
  send.ranks = l.ranks, send.rank = rank_;
  send.staging_offset = l.staging(buffer), send.staging_rows = l.staging_rows;
  send.slots_offset = l.slot(buffer), send.num_slots = l.slots;
  send.stride = l.stride();
  send.arrived = l.arrived(buffer) + rank_, send.announced = l.announced(buffer) + rank_;
  send.row_channel = l.first_channel, send.count_channel = l.first_channel + 1;
  send.fault = At<uint64_t>(results_.fault);
  cuda::AwaitRowsParams& wait = use.wait;
  wait.counters = memory_.counters;
  wait.arrived = l.arrived(buffer), wait.announced = l.announced(buffer);
  wait.ranks = l.ranks, wait.most = l.most;
  wait.state = At<uint64_t>(results_.state[buffer]);
  wait.counts = At<uint32_t>(results_.counts);
  wait.waited = At<uint64_t>(results_.waited);
  wait.order = At<int32_t>(results_.order);
  wait.abort = memory_.failed;
  wait.outcome = At<uint64_t>(results_.outcome);
  *wait.outcome = 0;
  *send.fault = cuda::kNoFault;
  return use;
}

Status SlotExchange::End(const Status& failure) {
  under_way_ = false;
  if (!failure.ok()) return failure;
  const uint64_t outcome = *At<uint64_t>(results_.outcome), fault = *At<uint64_t>(results_.fault);
  if (outcome == cuda::kTooManyRows) {
    return Refuse(StatusCode::kProtocol, "a rank announced more than the " +
                                             std::to_string(layout_.most) +
                                             " rows that one may send");
  }
  if (outcome != 0) return Refuse(StatusCode::kAborted, "the wait for rows was aborted");
  if (fault != cuda::kNoFault) {
    return Refuse(StatusCode::kInvalidArgument,
                  "entry " + std::to_string(fault) + " of the rows to send lies outside of " +
                      std::to_string(layout_.staging_rows) + " rows, " +
                      std::to_string(layout_.ranks) + " ranks or " + std::to_string(layout_.slots) +
                      " slots");
  }
  return Status::Ok();
}

std::span<const uint32_t> SlotExchange::counts() const {
  return {At<uint32_t>(results_.counts), layout_.ranks};
}
std::span<const uint64_t> SlotExchange::waited_ns() const {
  return {At<uint64_t>(results_.waited), layout_.ranks};
}

}  // namespace uccl::moe
