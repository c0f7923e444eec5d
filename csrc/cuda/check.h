// What the CheckParams functions of this room share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "csrc/base/status.h"

namespace uccl::cuda {

inline Status Refuse(const char* kernel, std::string why) {
  Status status = Status::Error(StatusCode::kInvalidArgument, std::move(why));
  status.op = kernel;
  return status;
}

inline bool Aligned(const void* p, size_t to) { return reinterpret_cast<uintptr_t>(p) % to == 0; }

}  // namespace uccl::cuda
