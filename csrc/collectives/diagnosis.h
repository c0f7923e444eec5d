// Why an operation does not end, in words for people: who is missing, who disagrees. Pure functions
// of what the runtime and the transport know.
#pragma once

#include <vector>

#include "csrc/base/status.h"
#include "csrc/base/types.h"
#include "csrc/collectives/call_site.h"
#include "csrc/collectives/operation.h"
#include "csrc/engine/engine.h"

namespace uccl::coll {

bool HasProcess(const Communicator& comm, ProcessId process);

// A message from a peer that owes us data for `op`, from the same place of the program, but with
// another content; null when there is none.
const engine::UnexpectedMessage* FindMismatch(
    const Operation& op, const Operation::Missing& missing,
    const std::vector<engine::UnexpectedMessage>& unexpected);

// Both sides of a disagreement.
Status MismatchOf(const Operation& op, ProcessId peer, const core::MessageInfo& remote);

// The operation is older than `deadline`.
Status TimeoutOf(const Operation& op, const Operation::Missing& missing, Nanos deadline,
                 const std::vector<engine::UnexpectedMessage>& unexpected);

}  // namespace uccl::coll
