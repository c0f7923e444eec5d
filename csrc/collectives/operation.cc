// What operations of every kind know about themselves. See operation.h.
#include "csrc/collectives/operation.h"

#include "csrc/base/hash.h"

namespace uccl::coll {

OpDescription DescriptionOf(const Call& call, const Communicator& comm,
                            const Algorithm& algorithm) {
  const CallSiteSpec& spec = call.site->spec();
  OpDescription d;
  d.kind = spec.kind;
  d.dtype = call.dtype;
  d.reduction = spec.reduction;
  d.algorithm = algorithm.code;
  d.dims = static_cast<uint8_t>(call.shape.size());
  d.group_size = static_cast<uint32_t>(comm.members.size());
  d.elements = call.elements;
  d.position = HashWords({static_cast<uint64_t>(spec.position), comm.id});
  d.run = static_cast<uint32_t>(call.run);
  d.launch = static_cast<uint32_t>(call.site->launch());
  return d;
}

Operation::Operation(OperationHost* host, const Identity& identity, const Call& first,
                     const CallSite::Plan& plan)
    : host_(host),
      comm_(identity.comm),
      id_(identity.id),
      key_(identity.key),
      seq_(identity.seq),
      started_(identity.started),
      label_(first.site->spec().label),
      description_(DescriptionOf(first, *identity.comm, *plan.algorithm)),
      digest_(DigestOf(description_, first.shape)) {}

bool Operation::completed() const {
  std::lock_guard lock(mutex_);
  return completed_ == comm_->locals.size();
}

bool Operation::over() const {
  std::lock_guard lock(mutex_);
  return over_;
}

bool Operation::failed() const {
  std::lock_guard lock(mutex_);
  return failed_;
}

core::MessageInfo Operation::InfoOf(const core::MessageTag& tag, uint64_t size_bytes) const {
  core::MessageInfo info;
  info.tag = tag;
  info.digest = digest_;
  info.size_bytes = size_bytes;
  info.note = description_.Encode();
  return info;
}

Status Operation::JoinedTwice(const Call& call) const {
  return Describe(
      Status::Error(StatusCode::kProtocol,
                    "device " + std::to_string(call.device) +
                        " joined this operation twice; launch multi-process programs from "
                        "one thread"),
      started_);
}

Status Operation::SizesDiffer(uint32_t source, uint64_t sends, uint32_t target,
                              uint64_t expects) const {
  return Status::Error(
      StatusCode::kInvalidArgument,
      "rank " + std::to_string(comm_->members[source].device) + " sends " + std::to_string(sends) +
          " bytes to rank " + std::to_string(comm_->members[target].device) + ", which expects " +
          std::to_string(expects) + "; recv_sizes must be the send_sizes of the sources");
}

Status Operation::Describe(const Status& cause, Nanos now) const {
  Status s = cause;
  s.op = label_;
  s.comm_id = static_cast<int64_t>(comm_->id);
  s.seq = static_cast<int64_t>(seq_);
  s.elapsed = now - started_;
  if (s.peer < 0 && s.process >= 0) {
    for (const Member& m : comm_->members) {
      if (ToInt(m.process) == s.process) {
        s.peer = m.device;
        break;
      }
    }
  }
  return s;
}

}  // namespace uccl::coll
