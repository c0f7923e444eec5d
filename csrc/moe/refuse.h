// What the exchanges of rows say no with.
#pragma once

#include <string>

#include "csrc/base/status.h"

namespace uccl::moe {

inline Status Refuse(StatusCode code, const std::string& why) {
  Status status = Status::Error(code, why);
  status.op = "moe.exchange";
  return status;
}

}  // namespace uccl::moe
