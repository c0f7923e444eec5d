// What a rank does on a stream of a device beside messages through pipes: rows that it places where
// peers know them, for instance (moe/slot_stream.h). To a stream of a device what Program is to
// that of the host: who keeps lanes, watches executions and ends them does not know what they do.
#pragma once

#include <cstdint>

#include "csrc/base/status.h"
#include "csrc/cuda/device.h"
#include "csrc/executor/pipes.h"

namespace uccl::executor {

class StreamProgram {
 public:
  virtual ~StreamProgram() = default;

  struct Lane {
    Pipes* pipes = nullptr;
    const cuda::Device* device = nullptr;
    uint64_t tag = 0;           // of the operation: ranks whose tags differ must not meet
    uint64_t* begun = nullptr;  // pinned; grows by one with each execution that begins
  };
  // Once, before anything is enqueued, on a thread whose current device is the rank's: memory and
  // regions are made here. All of `lane` outlives the executions.
  virtual Status Open(const Lane& lane) = 0;
  // Whether it sends through the pipes, which are as small as can be otherwise.
  virtual bool uses_pipes() const = 0;
  // The region whose FIFO takes all its commands.
  virtual const SideRegion& side() const = 0;

  // Any thread, at any time once it is open. Ok, or what its kernels have found wrong.
  virtual Status Trouble() const = 0;
  // Whether the execution under way waits for that peer.
  virtual bool HasToReceive(uint32_t peer) const = 0;
};

}  // namespace uccl::executor
