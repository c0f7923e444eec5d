// Launches of host_kernels.h.
#include "csrc/executor/host_kernels.h"

#include <cstdint>

#include "csrc/cuda/await_rows_kernel.h"
#include "csrc/cuda/clock.h"
#include "csrc/cuda/fold_kernel.h"
#include "csrc/cuda/issue.h"
#include "csrc/cuda/issue_kernel.h"
#include "csrc/cuda/reduce_kernel.h"
#include "csrc/cuda/resolve_kernel.h"
#include "csrc/cuda/rows_kernel.h"
#include "csrc/cuda/send_rows_kernel.h"
#include "csrc/fifo/thread_group.h"

namespace uccl::executor {
namespace {

// One row of bytes.
cuda::MoveRowsParams OneRow(MutableBytes to) {
  cuda::MoveRowsParams params;
  params.from_rows = params.to_rows = params.moves = 1;
  params.from_stride = params.to_stride = params.channels = to.size();
  params.to = to.data();
  return params;
}

}  // namespace

Status RunOnHost(const cuda::MoveRowsParams& params) {
  if (Status status = CheckParams(params); !status.ok()) return status;
  fifo::SoloGroup group;
  cuda::WithRowCodec(params, [&]<class Codec>() { cuda::MoveRows<Codec>(group, params); });
  return Status::Ok();
}

Status RunOnHost(const cuda::ReduceParams& params) {
  if (Status status = CheckParams(params); !status.ok()) return status;
  fifo::SoloGroup group;
  cuda::WithReduction(params.element, params.op,
                      [&]<class Kind, class Op>() { cuda::Reduce<Kind, Op>(group, params); });
  return Status::Ok();
}

Status RunOnHost(const cuda::FoldRowsParams& params) {
  if (Status status = CheckParams(params); !status.ok()) return status;
  fifo::SoloGroup group;
  cuda::WithFoldCodecs(params,
                       [&]<class From, class To>() { cuda::FoldRows<From, To>(group, params); });
  return Status::Ok();
}

Status RunOnHost(const cuda::ResolveParams& params) {
  if (Status status = CheckParams(params); !status.ok()) return status;
  fifo::SoloGroup group;
  cuda::Resolve(group, params);
  return Status::Ok();
}

Status RunOnHost(const cuda::SendRowsParams& params) {
  if (Status status = CheckParams(params); !status.ok()) return status;
  fifo::SoloGroup group;
  cuda::SendRows(group, params);
  return Status::Ok();
}

Status RunOnHost(const cuda::AwaitRowsParams& params) {
  if (Status status = CheckParams(params); !status.ok()) return status;
  fifo::SoloGroup group;
  cuda::AwaitRows(group, params, HostClockNs);
  return Status::Ok();
}

uint64_t HostClockNs() { return cuda::ClockNs(); }

Status IssueOnHost(const fifo::FifoView& fifo, const fifo::Command& command) {
  if (const fifo::CommandFault fault = CheckCommand(command); fault != fifo::CommandFault::kNone)
    return fifo::FaultStatus(fault, command);
  uint64_t fault = cuda::kNoFault;
  cuda::IssueQueue queue;
  queue.fifo = fifo;
  queue.commands = &command;
  queue.count = 1;
  queue.fault = &fault;
  const cuda::IssueParams params{&queue, 1};
  if (Status status = CheckParams(params); !status.ok()) return status;
  fifo::SoloGroup group;
  cuda::Issue(group, params);
  return fault == cuda::kNoFault
             ? Status::Ok()
             : Status::Error(StatusCode::kAborted, "the proxy takes no more commands");
}

Status CopyOnHost(MutableBytes to, Bytes from) {
  if (to.empty()) return Status::Ok();
  cuda::MoveRowsParams params = OneRow(to);
  params.from = from.data();
  return RunOnHost(params);
}

Status ZeroOnHost(MutableBytes to) {
  if (to.empty()) return Status::Ok();
  // A row that is missing.
  constexpr int32_t kMissing = -1;
  cuda::MoveRowsParams params = OneRow(to);
  params.from = to.data();
  params.from_index = &kMissing;
  params.fill_missing = true;
  return RunOnHost(params);
}

}  // namespace uccl::executor
