// Where tests run the kernels: on groups of host threads of several shapes, and on a GPU where this
// build has CUDA and the machine a device. One test body serves all.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/cuda/await_rows.h"
#include "csrc/cuda/exchange.h"
#include "csrc/cuda/fold.h"
#include "csrc/cuda/issue.h"
#include "csrc/cuda/limit.h"
#include "csrc/cuda/ragged.h"
#include "csrc/cuda/reduce.h"
#include "csrc/cuda/resolve.h"
#include "csrc/cuda/route.h"
#include "csrc/cuda/rows.h"
#include "csrc/cuda/send_rows.h"
#include "csrc/cuda/wait.h"

namespace uccl::cuda {

class Launcher {
 public:
  virtual ~Launcher() = default;
  virtual std::string name() const = 0;

  // Each runs the kernel to its end, after CheckParams.
  virtual Status Run(const MoveRowsParams& params) = 0;
  virtual Status Run(const FoldRowsParams& params) = 0;
  virtual Status Run(const ReduceParams& params) = 0;
  virtual Status Run(const IssueParams& params) = 0;
  virtual Status Run(const WaitParams& params) = 0;
  virtual Status Run(const RouteParams& params) = 0;
  virtual Status Run(const SendRowsParams& params) = 0;
  virtual Status Run(const AwaitRowsParams& params) = 0;
  virtual Status Run(const ExchangeParams& params) = 0;
  virtual Status Run(const ResolveParams& params) = 0;
  virtual Status Run(const RaggedParams& params) = 0;
  virtual Status Run(const LimitParams& params) = 0;

  // Zeroed memory that both the test and the kernel reach, aligned to 256 bytes.
  virtual std::shared_ptr<std::byte> Allocate(size_t bytes) = 0;
  // Memory whose words the kernel and another thread may share while the kernel runs.
  virtual std::shared_ptr<std::byte> AllocatePinned(size_t bytes) = 0;
};

// The host's shapes: 1 thread, groups of 3, 8 in lanes of 4, 32; then, if there is one, the GPU.
const std::vector<Launcher*>& Launchers();

}  // namespace uccl::cuda
