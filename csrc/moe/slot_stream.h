// Dispatch and combine of low_latency.h on a stream of a device: the launches of one call site,
// which may be recorded into a graph and repeated by it. What exchange_program.h is on the host.
//
// Slots lie in a region of their own in pinned memory: kernels pack into it and unpack from it, and
// what travels is told and counted by them. The host looks at three words (SlotExchange::Results).
//
// Threads: as executor/stream_program.h; Enqueue by one at a time for each stream.
#pragma once

#include <cstdint>
#include <memory>

#include "csrc/executor/device_memory.h"
#include "csrc/executor/stream_program.h"
#include "csrc/moe/low_latency.h"

namespace uccl::moe {

class SlotStream final : public executor::StreamProgram {
 public:
  // That of calls like these, of which only sizes are looked at.
  SlotStream(const Dispatch& dispatch, uint32_t ranks) : layout_(LayoutOf(dispatch, ranks)) {}
  SlotStream(const Combine& combine, uint32_t ranks) : layout_(LayoutOf(combine, ranks)) {}

  Status Open(const Lane& lane) override;
  bool uses_pipes() const override { return false; }
  const executor::SideRegion& side() const override { return *side_; }
  Status Trouble() const override;
  bool HasToReceive(uint32_t peer) const override { return exchange_->Awaits(peer); }

  // The launches of one execution.
  Status Enqueue(cuda::Stream stream, const Dispatch& dispatch) const;
  Status Enqueue(cuda::Stream stream, const Combine& combine) const;

 private:
  const SlotLayout layout_;
  const cuda::Device* device_ = nullptr;
  executor::SideRegion* side_ = nullptr;
  executor::DeviceMemory work_, shared_;
  std::unique_ptr<SlotExchange> exchange_;
};

}  // namespace uccl::moe
