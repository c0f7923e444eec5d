// A device as those need it who do not include CUDA: its launch functions and its memory, in a
// table. The shared object with the kernels fills one in (device.cu) and hands it to the module
// that runs the collectives; tests have one whose streams are queues of the host
// (testing/host_device.h).
//
// All of these mean the device that is current on the calling thread. Launches only enqueue: they
// may be recorded into a graph. The others may not.
#pragma once

#include <cstddef>

#include "csrc/base/status.h"
#include "csrc/cuda/await_rows.h"
#include "csrc/cuda/exchange.h"
#include "csrc/cuda/fold.h"
#include "csrc/cuda/issue.h"
#include "csrc/cuda/ragged.h"
#include "csrc/cuda/reduce.h"
#include "csrc/cuda/resolve.h"
#include "csrc/cuda/rows.h"
#include "csrc/cuda/send_rows.h"
#include "csrc/cuda/stream.h"

namespace uccl::cuda {

struct Device {
  // Changes with the table, so that objects of two builds do not misread each other's.
  static constexpr uint64_t kVersion = 2;
  uint64_t version = kVersion;

  Status (*move_rows)(const MoveRowsParams& params, Stream stream) = nullptr;
  Status (*fold_rows)(const FoldRowsParams& params, Stream stream) = nullptr;
  Status (*reduce)(const ReduceParams& params, Stream stream) = nullptr;
  Status (*resolve)(const ResolveParams& params, Stream stream) = nullptr;
  Status (*ragged)(const RaggedParams& params, Stream stream) = nullptr;
  Status (*exchange)(const ExchangeParams& params, Stream stream) = nullptr;
  Status (*issue)(const IssueParams& params, Stream stream) = nullptr;
  Status (*send_rows)(const SendRowsParams& params, Stream stream) = nullptr;
  Status (*await_rows)(const AwaitRowsParams& params, Stream stream) = nullptr;

  // Zeroed, aligned to 256 bytes.
  Result<std::byte*> (*allocate)(size_t bytes) = nullptr;
  void (*free)(std::byte* memory) = nullptr;
  // As pinned.h.
  Result<std::byte*> (*allocate_pinned)(size_t bytes) = nullptr;
  void (*free_pinned)(std::byte* memory) = nullptr;
  // Done when it returns.
  Status (*upload)(std::byte* to, const std::byte* from, size_t bytes) = nullptr;
  // Its number, for threads on which another one is current.
  Result<int> (*current)() = nullptr;
  // Until everything that was launched on that device is over.
  Status (*settle)(int device) = nullptr;
};

// Of the CUDA runtime.
const Device& CudaDevice();

}  // namespace uccl::cuda
