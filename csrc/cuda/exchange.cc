// Which parameters the kernel of exchange.h takes.
#include "csrc/cuda/exchange.h"

#include <string>

#include "csrc/cuda/check.h"
#include "csrc/fifo/command.h"

namespace uccl::cuda {

Status CheckParams(const ExchangeParams& p) {
  constexpr const char* kKernel = "exchange";
  const PipeLayout& l = p.layout;
  if (l.ranks == 0 || p.rank >= l.ranks || l.ranks > fifo::kMaxWriteCountCounter + 1) {
    return Refuse(kKernel, "rank " + std::to_string(p.rank) + " of " + std::to_string(l.ranks) +
                               ": at most " + std::to_string(fifo::kMaxWriteCountCounter + 1) +
                               " ranks");
  }
  if (l.slots == 0 || l.slots > PipeLayout::kMaxSlots || l.piece_bytes == 0 ||
      l.stride_bytes % fifo::kGranuleBytes != 0 || l.stride_bytes > fifo::kMaxWriteCountBytes ||
      l.piece_bytes + PipeLayout::kHeaderBytes > l.stride_bytes) {
    return Refuse(kKernel, std::to_string(l.slots) + " slots of " + std::to_string(l.piece_bytes) +
                               " bytes every " + std::to_string(l.stride_bytes) +
                               ": 1 to 8 slots, each with room for its header");
  }
  if (p.line_count == 0) return Status::Ok();
  if (p.region == nullptr || p.counters == nullptr || p.abort == nullptr || p.state == nullptr ||
      p.progress == nullptr || p.fault == nullptr || p.addresses == nullptr ||
      p.messages == nullptr || p.lines == nullptr || p.fifo.slots == nullptr) {
    return Refuse(kKernel, "region, FIFO, counters, state or messages without an address");
  }
  if (!Aligned(p.region, fifo::kGranuleBytes)) {
    return Refuse(kKernel, "the region must be aligned to " + std::to_string(fifo::kGranuleBytes));
  }
  return Status::Ok();
}

}  // namespace uccl::cuda
