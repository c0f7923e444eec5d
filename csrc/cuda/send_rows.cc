// Which parameters the kernel of send_rows.h takes.
#include "csrc/cuda/send_rows.h"

#include <string>
#include <utility>

#include "csrc/cuda/check.h"
#include "csrc/fifo/command.h"

namespace uccl::cuda {

Status CheckParams(const SendRowsParams& p) {
  constexpr const char* kKernel = "send_rows";
  if (p.rank >= p.ranks || p.ranks - 1 > fifo::kMaxPeer) {
    return Refuse(kKernel, "rank " + std::to_string(p.rank) + " of " + std::to_string(p.ranks) +
                               ": at most " + std::to_string(fifo::kMaxPeer + 1) + " ranks");
  }
  if (p.fifo.slots == nullptr || p.fifo.capacity == 0) return Refuse(kKernel, "no FIFO");
  if (p.entries > 0 && (p.peers == nullptr || p.slots == nullptr || p.width == 0)) {
    return Refuse(kKernel, "entries without peers or slots");
  }
  // A number of rows must fit beside its one into the amount of a count.
  if (p.entries >= fifo::kMaxAmount) {
    return Refuse(kKernel, std::to_string(p.entries) + " entries: at most " +
                               std::to_string(fifo::kMaxAmount - 1));
  }
  if (p.stride % fifo::kGranuleBytes != 0 || p.stride < p.row_bytes ||
      p.row_bytes > fifo::kMaxWriteBytes) {
    return Refuse(kKernel, "rows of " + std::to_string(p.row_bytes) + " bytes at a distance of " +
                               std::to_string(p.stride) +
                               ": a multiple of 16 that holds a row, below 4 GiB");
  }
  if (p.turn_bytes > fifo::kMaxOffset) return Refuse(kKernel, "buffers more than 64 GiB apart");
  for (const auto& [offset, rows] :
       {std::pair{p.staging_offset, p.staging_rows}, {p.slots_offset, p.num_slots}}) {
    const uint64_t last = offset + p.turn_bytes;  // that of the second buffer
    if (offset % fifo::kGranuleBytes != 0 || last % fifo::kGranuleBytes != 0 ||
        offset > fifo::kMaxOffset || last > fifo::kMaxOffset ||
        (p.stride > 0 && rows > (fifo::kMaxOffset - last) / p.stride)) {
      return Refuse(kKernel, std::to_string(rows) + " rows of " + std::to_string(p.stride) +
                                 " bytes from offset " + std::to_string(offset) +
                                 ": a region has 64 GiB, in granules of 16 bytes");
    }
  }
  if (p.row_channel > fifo::kMaxChannel || p.count_channel > fifo::kMaxChannel ||
      p.row_channel == p.count_channel) {
    return Refuse(kKernel, "rows and counts need two channels below 64");
  }
  if (uint64_t{p.arrived} + p.turn_counters > fifo::kMaxCounter ||
      uint64_t{p.announced} + p.turn_counters > fifo::kMaxCounter) {
    return Refuse(kKernel, "counters are below 2^24");
  }
  return Status::Ok();
}

}  // namespace uccl::cuda
