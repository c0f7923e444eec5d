// The kernels of csrc/cuda, run to their end on the calling thread by a group of one: what a launch
// is on a stream of the host.
#pragma once

#include <cstdint>

#include "csrc/base/status.h"
#include "csrc/base/types.h"
#include "csrc/cuda/await_rows.h"
#include "csrc/cuda/fold.h"
#include "csrc/cuda/reduce.h"
#include "csrc/cuda/resolve.h"
#include "csrc/cuda/rows.h"
#include "csrc/cuda/send_rows.h"
#include "csrc/fifo/command.h"
#include "csrc/fifo/slot.h"

namespace uccl::executor {

Status RunOnHost(const cuda::MoveRowsParams& params);
Status RunOnHost(const cuda::ReduceParams& params);
Status RunOnHost(const cuda::FoldRowsParams& params);
Status RunOnHost(const cuda::ResolveParams& params);
Status RunOnHost(const cuda::SendRowsParams& params);
Status RunOnHost(const cuda::AwaitRowsParams& params);
// That by which a host's kernels measure waits.
uint64_t HostClockNs();
// kAborted when the proxy has stopped the FIFO, kInvalidArgument for what is no command. Waits
// while the FIFO is full.
Status IssueOnHost(const fifo::FifoView& fifo, const fifo::Command& command);

// Bytes from one place to another, which do not overlap, and zeros.
Status CopyOnHost(MutableBytes to, Bytes from);
Status ZeroOnHost(MutableBytes to);

}  // namespace uccl::executor
