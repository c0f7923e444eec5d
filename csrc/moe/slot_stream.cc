// See slot_stream.h.
#include "csrc/moe/slot_stream.h"

#include <utility>

#include "csrc/base/hash.h"

namespace uccl::moe {
namespace {

struct StreamRunner {
  const cuda::Device* device;
  cuda::Stream stream;

  Status Run(const cuda::ResolveParams& p) { return device->resolve(p, stream); }
  Status Run(const cuda::MoveRowsParams& p) { return device->move_rows(p, stream); }
  Status Run(const cuda::FoldRowsParams& p) { return device->fold_rows(p, stream); }
  Status Run(const cuda::SendRowsParams& p) { return device->send_rows(p, stream); }
  Status Run(const cuda::AwaitRowsParams& p) { return device->await_rows(p, stream); }
};

}  // namespace

Status SlotStream::Open(const Lane& lane) {
  if (Status s = layout_.Check(); !s.ok()) return s;
  device_ = lane.device;
  const SlotExchange::Results results = SlotExchange::ResultsOf(layout_);
  auto work = executor::AllocateOn(*device_, results.work_bytes);
  if (!work.ok()) return work.status();
  work_ = std::move(work.value());
  auto shared = executor::AllocatePinned(*device_, results.shared_bytes);
  if (!shared.ok()) return shared.status();
  shared_ = std::move(shared.value());
  // Ranks that disagree have no region in common, so nothing lands where it does not belong.
  const uint64_t name = HashWords({lane.tag, NameOf(layout_)});
  auto side = lane.pipes->Side(name, layout_.bytes(), layout_.counters());
  if (!side.ok()) return side.status();
  side_ = side.value();
  SlotExchange::Memory memory;
  memory.region = side_->memory;
  memory.counters = side_->region->counters().data();
  memory.failed = side_->region->failed_word();
  memory.work = work_.get();
  memory.shared = shared_.get();
  memory.mark = lane.begun;
  exchange_ = std::make_unique<SlotExchange>(layout_, lane.pipes->rank(), side_->fifo, memory);
  return Status::Ok();
}

Status SlotStream::Trouble() const {
  return side_->region->has_failed() ? side_->region->status() : exchange_->Trouble();
}

Status SlotStream::Enqueue(cuda::Stream stream, const Dispatch& dispatch) const {
  StreamRunner runner{device_, stream};
  return Start(runner, *exchange_, dispatch);
}

Status SlotStream::Enqueue(cuda::Stream stream, const Combine& combine) const {
  StreamRunner runner{device_, stream};
  return Start(runner, *exchange_, combine);
}

}  // namespace uccl::moe
