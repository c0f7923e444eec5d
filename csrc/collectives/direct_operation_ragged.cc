// Ragged exchanges: sizes that come with the calls, and ends that move the bytes themselves.
#include <algorithm>
#include <vector>

#include "csrc/collectives/direct_operation.h"
#include "csrc/collectives/share_work.h"

namespace uccl::coll {
// The rank's part of every item that names its buffers. Under the mutex.
Status DirectOperation::PlaceRagged(uint32_t local) {
  const std::vector<Call::RaggedPart>& parts = locals_[local].call.ragged;
  const uint32_t me = comm_->locals[local];
  Stage& stage = ragged_->stages[0];
  const auto place = [](Slice* slice, uint64_t offset, uint64_t bytes) {
    slice->offset = offset;
    slice->bytes = bytes;
  };
  for (Transfer& t : stage.sends) {
    if (t.from == me) place(&t.slice, parts[t.to].send_offset, parts[t.to].send_bytes);
  }
  for (Transfer& t : stage.receives) {
    if (t.to == me) place(&t.slice, parts[t.from].receive_offset, parts[t.from].receive_bytes);
  }
  for (Copy& c : stage.copies) {
    if (c.source == me) place(&c.from, parts[c.target].send_offset, parts[c.target].send_bytes);
    if (c.target == me) place(&c.to, parts[c.source].receive_offset, parts[c.source].receive_bytes);
    const bool both = Ready(c.from) && Ready(c.to);
    if ((c.source == me || c.target == me) && both && c.from.bytes != c.to.bytes) {
      return SizesDiffer(c.source, c.from.bytes, c.target, c.to.bytes);
    }
  }
  return Status::Ok();
}

// Ranks of one operation move their bytes alike.
Status DirectOperation::CheckEnds(const Call& call) const {
  const bool has = call.ends != nullptr;
  if (has == has_ends_ && (!has || call.ends->finishes() == finishes_)) return Status::Ok();
  return Status::Error(StatusCode::kInvalidArgument,
                       "device " + std::to_string(call.device) +
                           " moves the rows of this operation in another way than the first rank "
                           "that called; run the same program on all devices");
}

RaggedEnds* DirectOperation::EndsOf(const Slice& slice) const {
  return has_ends_ ? locals_[slice.local].call.ends.get() : nullptr;
}

// What is finished in the end may read the operand of any rank. Under the mutex.
void DirectOperation::HoldForFinish(int64_t delta) {
  if (!finishes_) return;
  for (Local& l : locals_) l.left = static_cast<uint64_t>(static_cast<int64_t>(l.left) + delta);
}

// The two below run when all ranks are here and everything has come.
uint64_t DirectOperation::FinishBytes() const {
  uint64_t bytes = 0;
  for (const Local& l : locals_) bytes += finishes_ ? l.call.ends->finish_bytes() : 0;
  return bytes;
}

void DirectOperation::FinishEnds(bool share) {
  const uint64_t bytes = FinishBytes();
  if (bytes == 0) return;
  const uint64_t threads = share ? ThreadsFor(bytes, host_->reduce_threads()) : 1;
  struct Part {
    RaggedEnds* ends;
    uint64_t begin, end;
  };
  std::vector<Part> parts;
  for (const Local& l : locals_) {
    const uint64_t units = l.call.ends->finish_units();
    const uint64_t pieces = std::min(
        units,
        threads == 1 ? 1 : (threads * kPartsPerThread + locals_.size() - 1) / locals_.size());
    for (uint64_t i = 0; i < pieces; ++i)
      parts.push_back({l.call.ends.get(), units * i / pieces, units * (i + 1) / pieces});
  }
  ShareWork(&host_->pool(), threads, parts.size(),
            [&](size_t i) { parts[i].ends->Finish(parts[i].begin, parts[i].end); });
}

}  // namespace uccl::coll
