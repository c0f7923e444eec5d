// The message by which one process tells another that a communicator was aborted, and why. It
// travels as a control message of the engine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "csrc/base/status.h"

namespace uccl::coll {

// Cut to what a control message holds; the end of the free text is what goes.
std::string EncodeAbort(uint64_t comm_id, const Status& cause);
// False for a text that is no abort. The text comes from another process: nothing in it is trusted.
bool DecodeAbort(std::string_view text, uint64_t* comm_id, Status* cause);

}  // namespace uccl::coll
