// Stages of rank_program.h.
#include "csrc/collectives/rank_program.h"

#include <algorithm>
#include <optional>
#include <span>
#include <tuple>

#include "csrc/collectives/kernel_types.h"
#include "csrc/collectives/wide_reduce.h"
#include "csrc/cuda/reduce.h"
#include "csrc/executor/host_kernels.h"

namespace uccl::coll {

RankProgram::RankProgram(std::shared_ptr<const Schedule> schedule, const Call& call,
                         ReduceOp reduction, uint32_t member, ScratchPool* pool,
                         StartedFlag started)
    : schedule_(std::move(schedule)),
      dtype_(call.dtype),
      reduction_(reduction),
      input_(call.input),
      output_(call.output),
      pool_(pool),
      started_(std::move(started)) {
  if (!call.ragged.empty()) PlaceRagged(call.ragged, member);
}

void RankProgram::PlaceRagged(const std::vector<Call::RaggedPart>& parts, uint32_t member) {
  auto placed = std::make_shared<Schedule>(*schedule_);
  for (Stage& stage : placed->stages) {
    for (Transfer& t : stage.sends) {
      t.slice.offset = parts[t.to].send_offset;
      t.slice.bytes = parts[t.to].send_bytes;
    }
    for (Transfer& t : stage.receives) {
      t.slice.offset = parts[t.from].receive_offset;
      t.slice.bytes = parts[t.from].receive_bytes;
    }
    for (Copy& c : stage.copies) {  // to itself
      c.from.offset = parts[member].send_offset;
      c.from.bytes = parts[member].send_bytes;
      c.to.offset = parts[member].receive_offset;
      c.to.bytes = parts[member].receive_bytes;
    }
  }
  schedule_ = std::move(placed);
}

std::byte* RankProgram::Address(const Slice& slice) const {
  switch (slice.kind) {
    // Inputs are only read.
    case BufferKind::kInput:
      return const_cast<std::byte*>(input_) + slice.offset;
    case BufferKind::kOutput:
      return output_ + slice.offset;
    case BufferKind::kScratch:
    case BufferKind::kZero:
      break;
  }
  return scratch_.data() + slice.offset;
}

Status RankProgram::Run(executor::Pipes* pipes, uint64_t number) {
  if (schedule_->scratch_bytes > 0) scratch_ = pool_->Take(schedule_->scratch_bytes);
  Announce(pipes);
  started_->store(true, std::memory_order_release);
  for (uint32_t i = 0; i < schedule_->stages.size(); ++i) {
    if (Status status = RunStage(pipes, number, i); !status.ok()) return status;
  }
  return Status::Ok();
}

void RankProgram::Announce(executor::Pipes* pipes) const {
  std::vector<uint64_t> to_send(pipes->ranks()), to_receive(pipes->ranks());
  for (const Stage& stage : schedule_->stages) {
    for (const Transfer& t : stage.sends) to_send[t.to] += pipes->layout().pieces(t.slice.bytes);
    for (const Transfer& t : stage.receives)
      to_receive[t.from] += pipes->layout().pieces(t.slice.bytes);
  }
  pipes->Announce(to_send, to_receive);
}

Status RankProgram::RunStage(executor::Pipes* pipes, uint64_t number, uint32_t index) const {
  const Stage& stage = schedule_->stages[index];
  std::vector<executor::Outgoing> out;
  for (const Transfer& t : stage.sends)
    out.push_back(executor::Send(t.to, {number, index, t.part}, From(t.slice)));
  std::vector<executor::Incoming> in;
  for (const Transfer& t : stage.receives)
    in.push_back(executor::Receive(t.from, {number, index, t.part}, To(t.slice)));
  for (const Copy& c : stage.copies) {
    const Status status = c.from.kind == BufferKind::kZero
                              ? executor::ZeroOnHost(To(c.to))
                              : executor::CopyOnHost(To(c.to), From(c.from));
    if (!status.ok()) return status;
  }
  if (!out.empty() || !in.empty()) {
    if (Status status = pipes->Exchange(out, in); !status.ok()) return status;
  }
  for (const Reduction& r : stage.reductions) {
    if (Status status = Reduce(r); !status.ok()) return status;
  }
  return Status::Ok();
}

Status RankProgram::Reduce(const Reduction& reduction) const {
  if (reduction.to[0].bytes == 0) return Status::Ok();
  const auto is_wide = [](const Slice& s) { return s.wide; };
  const std::optional<KernelTypes> types = KernelFor(dtype_, reduction_);
  if (!types || std::ranges::any_of(reduction.from, is_wide) ||
      std::ranges::any_of(reduction.to, is_wide)) {
    // The host's own: kernels know neither partial results in float32 nor these types.
    std::vector<WideInput> from;
    std::vector<WideOutput> to;
    for (const Slice& s : reduction.from) from.push_back({Address(s), s.wide});
    for (const Slice& s : reduction.to) to.push_back({Address(s), s.wide});
    const Slice& first = reduction.to[0];
    ReduceWide(dtype_, reduction_, from, to,
               first.bytes / (first.wide ? kWideBytes : DTypeBytes(dtype_)));
    return Status::Ok();
  }
  std::vector<const std::byte*> from;
  for (const Slice& s : reduction.from) from.push_back(Address(s));
  cuda::ReduceParams params;
  params.inputs = from.data();
  params.input_count = static_cast<uint32_t>(from.size());
  params.to = Address(reduction.to[0]);
  params.count = reduction.to[0].bytes / DTypeBytes(dtype_) * types->parts;
  params.element = types->element;
  params.op = types->reduction;
  if (Status status = executor::RunOnHost(params); !status.ok()) return status;
  for (const Slice& s : std::span(reduction.to).subspan(1)) {
    if (Status status = executor::CopyOnHost(To(s), From(reduction.to[0])); !status.ok())
      return status;
  }
  return Status::Ok();
}

}  // namespace uccl::coll
