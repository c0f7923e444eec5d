// Commands from a kernel to the proxies, through FIFOs (csrc/fifo). The kernel is issue_kernel.h;
// this header needs no CUDA.
#pragma once

#include <cstdint>

#include "csrc/cuda/stream.h"
#include "csrc/fifo/command.h"
#include "csrc/fifo/slot.h"

namespace uccl::cuda {

// What one group of threads pushes into one FIFO. The first `unordered` commands go in any order,
// from all its threads; the rest follow one by one, after all of those: a count after the writes
// that it stands for, a quiet after everything.
struct IssueQueue {
  fifo::FifoView fifo;
  const fifo::Command* commands = nullptr;
  uint32_t unordered = 0, count = 0;
  // Lowered to the first command that was not pushed (kNoFault where all were): it breaks a rule of
  // CheckCommand, or the FIFO had stopped. Null: not told.
  uint64_t* fault = nullptr;
};

struct IssueParams {
  const IssueQueue* queues = nullptr;  // memory that the device reaches, as all that hangs on it
  uint32_t count = 0;
};

// kInvalidArgument where a kernel could not run with these; no memory is read.
Status CheckParams(const IssueParams& params);
// Puts the kernel on the stream: everything that the stream wrote before is visible to the proxy
// when it takes a command.
Status LaunchIssue(const IssueParams& params, Stream stream);

}  // namespace uccl::cuda
