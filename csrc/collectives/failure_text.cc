// The words of failure_text.h.
#include "csrc/collectives/failure_text.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "csrc/collectives/description.h"

namespace uccl::coll {

std::string JoinNumbers(const std::vector<int64_t>& numbers) {
  std::string s;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i == 8) return s + ", ... (" + std::to_string(numbers.size()) + " in all)";
    s += (i ? ", " : "") + std::to_string(numbers[i]);
  }
  return s;
}

std::string DeadlineText(Nanos deadline) {
  return "not complete within the deadline of " +
         std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(deadline).count()) +
         " ms (op_timeout_ms)";
}

bool HasProcess(const Communicator& comm, ProcessId process) {
  return std::any_of(comm.members.begin(), comm.members.end(),
                     [&](const Member& m) { return m.process == process; });
}

const engine::UnexpectedMessage* FindMismatch(
    const Operation& op, const Operation::Missing& missing,
    const std::vector<engine::UnexpectedMessage>& unexpected) {
  for (const engine::UnexpectedMessage& u : unexpected) {
    if (u.info.digest == op.digest()) continue;
    if (OpDescription::Decode(u.info.note).position != op.description().position) continue;
    for (uint32_t member : missing.owed_by) {
      if (op.comm().members[member].process == u.peer) return &u;
    }
  }
  return nullptr;
}

Status MismatchOf(const Operation& op, ProcessId peer, const core::MessageInfo& remote) {
  Status s = Status::Error(
      StatusCode::kProtocol,
      "ranks disagree about this operation: here " + op.description().ToString() + "; process " +
          std::to_string(ToInt(peer)) + " has " + OpDescription::Decode(remote.note).ToString() +
          ". Run the same program with the same shapes on every process");
  s.process = ToInt(peer);
  return s;
}

Status TimeoutOf(const Operation& op, const Operation::Missing& missing, Nanos deadline,
                 const std::vector<engine::UnexpectedMessage>& unexpected) {
  Status s = Status::Error(StatusCode::kPeerTimeout, DeadlineText(deadline));
  if (!missing.local_devices.empty()) {
    s.peer = missing.local_devices[0];
    s.process = ToInt(op.comm().self);
    s.detail +=
        "; devices of this process that did not call: " + JoinNumbers(missing.local_devices);
  }
  std::vector<int64_t> owed;
  for (uint32_t m : missing.owed_by) owed.push_back(op.comm().members[m].device);
  if (!owed.empty()) {
    const Member& first = op.comm().members[missing.owed_by[0]];
    s.peer = first.device;
    s.process = ToInt(first.process);
    s.detail += "; no data from ranks " + JoinNumbers(owed);
  } else if (!missing.remote.empty() && missing.local_devices.empty()) {
    s.peer = missing.remote[0].device;
    s.process = ToInt(missing.remote[0].process);
    s.detail += "; rank " + std::to_string(s.peer) + " has not taken our data";
  }
  size_t shown = 0;
  for (const engine::UnexpectedMessage& u : unexpected) {
    if (!HasProcess(op.comm(), u.peer) || shown == 3) continue;
    ++shown;
    s.detail += "; process " + std::to_string(ToInt(u.peer)) + " offers " +
                OpDescription::Decode(u.info.note).ToString();
  }
  return s;
}

}  // namespace uccl::coll
