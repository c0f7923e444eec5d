// What the runtime says of operations that ranks disagree about, and of those that take too long.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/base/types.h"
#include "csrc/collectives/call_site.h"
#include "csrc/collectives/operation.h"
#include "csrc/core/message.h"
#include "csrc/engine/engine.h"

namespace uccl::coll {

// "0, 1, 5", the first few of them.
std::string JoinNumbers(const std::vector<int64_t>& numbers);
// That an operation has not come to its end in time.
std::string DeadlineText(Nanos deadline);
bool HasProcess(const Communicator& comm, ProcessId process);

// A message from a peer that owes us data for `op`, from the same place of the program, but with
// another content. Null when there is none.
const engine::UnexpectedMessage* FindMismatch(
    const Operation& op, const Operation::Missing& missing,
    const std::vector<engine::UnexpectedMessage>& unexpected);

// Both sides in words.
Status MismatchOf(const Operation& op, ProcessId peer, const core::MessageInfo& remote);

// Who is missing, and what came instead.
Status TimeoutOf(const Operation& op, const Operation::Missing& missing, Nanos deadline,
                 const std::vector<engine::UnexpectedMessage>& unexpected);

}  // namespace uccl::coll
