// See low_latency.h.
#include "csrc/moe/low_latency.h"

#include <string>

namespace uccl::moe {

SlotLayout LayoutOf(const Dispatch& dispatch, uint32_t ranks) {
  SlotLayout layout;
  layout.ranks = ranks;
  layout.staging_rows = layout.most = dispatch.tokens;
  layout.slots = uint64_t{ranks} * dispatch.tokens;
  layout.row_bytes = dispatch.row_bytes();
  return layout;
}

SlotLayout LayoutOf(const Combine& combine, uint32_t ranks) {
  SlotLayout layout;
  layout.ranks = ranks;
  layout.staging_rows = combine.entries;
  layout.slots = layout.most = combine.tokens * combine.width;
  layout.row_bytes = combine.row_bytes();
  return layout;
}

Status CheckRoom(const SlotLayout& layout, uint64_t packed, uint64_t row_bytes, const char* op) {
  if (packed <= layout.staging_rows && row_bytes <= layout.row_bytes) return Status::Ok();
  Status status = Status::Error(StatusCode::kInvalidArgument,
                                std::to_string(packed) + " rows of " + std::to_string(row_bytes) +
                                    " bytes through an exchange made for " +
                                    std::to_string(layout.staging_rows) + " of " +
                                    std::to_string(layout.row_bytes));
  status.op = op;
  return status;
}

}  // namespace uccl::moe
