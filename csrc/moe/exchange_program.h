// Dispatch and combine of low_latency.h as programs of a rank's stream (executor/rank_stream.h):
// the kernels on the host, and the memory that calls of one shape share.
//
// Each shape has a region of its own beside the pipes of the stream, with slots for the most that
// can come. Its name follows from the shape, so all ranks mean the same one without a word; a put
// for a rank that has not come to the first program of that shape waits for it there.
//
// The wait. A stream of the host must leave its core to those that it waits for, and so sleeps
// until counters say that rows are there; then the kernel finds them. On a GPU it polls.
#pragma once

#include <cstdint>
#include <functional>

#include "csrc/base/status.h"
#include "csrc/executor/rank_stream.h"
#include "csrc/moe/low_latency.h"

namespace uccl::moe {

// Nanoseconds from the start of the wait until the last row of each rank; null: not wanted.
using WaitTimes = uint64_t*;

class DispatchProgram final : public executor::Program {
 public:
  // All buffers stay valid until it has run. `dispatch.slots` are numbers of copies, from 0 on for
  // each rank; its `tokens` and wire format are the same on all ranks.
  DispatchProgram(const Dispatch& dispatch, WaitTimes waited)
      : dispatch_(dispatch), waited_(waited) {}
  Status Run(executor::Pipes* pipes, uint64_t number) override;

 private:
  const Dispatch dispatch_;
  const WaitTimes waited_;
};

class CombineProgram final : public executor::Program {
 public:
  // Likewise; `combine.entries`, tokens and width are the same on all ranks.
  CombineProgram(const Combine& combine, WaitTimes waited) : combine_(combine), waited_(waited) {}
  Status Run(executor::Pipes* pipes, uint64_t number) override;

 private:
  const Combine combine_;
  const WaitTimes waited_;
};

}  // namespace uccl::moe
