// A schedule as the program of one rank: exchanges over its pipes, with copies and reductions by
// the kernels of csrc/cuda between them.
//
// The schedule is made as if every rank were a process of its own (CallSite::Plan::of_ranks), so it
// names one local rank and peers by their place in the group.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/collectives/dtype.h"
#include "csrc/collectives/operation.h"
#include "csrc/collectives/schedule.h"
#include "csrc/collectives/scratch_pool.h"
#include "csrc/executor/rank_stream.h"

namespace uccl::coll {

// Set once the program runs, and from then on its pipes tell how far it is. Relaxed: for people.
using StartedFlag = std::shared_ptr<std::atomic<bool>>;

class RankProgram final : public executor::Program {
 public:
  // `call` gives the buffers, which must stay valid, and what a ragged exchange of the rank
  // `member` sends and receives. The pool outlives this.
  RankProgram(std::shared_ptr<const Schedule> schedule, const Call& call, ReduceOp reduction,
              uint32_t member, ScratchPool* pool, StartedFlag started);

  Status Run(executor::Pipes* pipes, uint64_t number) override;

 private:
  void PlaceRagged(const std::vector<Call::RaggedPart>& parts, uint32_t member);
  std::byte* Address(const Slice& slice) const;
  Bytes From(const Slice& slice) const { return {Address(slice), slice.bytes}; }
  MutableBytes To(const Slice& slice) const { return {Address(slice), slice.bytes}; }
  void Announce(executor::Pipes* pipes) const;
  Status RunStage(executor::Pipes* pipes, uint64_t number, uint32_t index) const;
  Status Reduce(const Reduction& reduction) const;

  std::shared_ptr<const Schedule> schedule_;
  const DType dtype_;
  const ReduceOp reduction_;
  const std::byte* const input_;
  std::byte* const output_;
  ScratchPool* const pool_;
  const StartedFlag started_;
  ScratchPool::Buffer scratch_;
};

}  // namespace uccl::coll
