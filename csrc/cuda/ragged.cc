// Which parameters the kernel of ragged.h takes.
#include "csrc/cuda/ragged.h"

#include <string>

#include "csrc/cuda/check.h"

namespace uccl::cuda {

Status CheckParams(const RaggedParams& p) {
  constexpr const char* kKernel = "ragged";
  if (p.ranks == 0) return Status::Ok();
  if (p.send_offsets == nullptr || p.send_sizes == nullptr || p.receive_sizes == nullptr ||
      p.messages == nullptr || p.addresses == nullptr || p.fault == nullptr) {
    return Refuse(kKernel, "offsets, sizes or messages without an address");
  }
  // Far below where products of rows and bytes overflow.
  constexpr uint64_t kMost = uint64_t{1} << 31;
  if (p.row_bytes > kMost || p.from_rows > kMost || p.to_rows > kMost) {
    return Refuse(kKernel, std::to_string(p.from_rows) + " and " + std::to_string(p.to_rows) +
                               " rows of " + std::to_string(p.row_bytes) +
                               " bytes: at most 2^31 of each");
  }
  return Status::Ok();
}

}  // namespace uccl::cuda
