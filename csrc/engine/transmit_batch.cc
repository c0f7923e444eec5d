// Gathering, offering, keeping.
#include "csrc/engine/transmit_batch.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace uccl::engine {

void TransmitBatch::Add(nic::PeerHandle peer, const core::Datagram& datagram) {
  std::byte* const storage = headers_.data() + headers_used_;
  // No header of csrc/wire is longer than the longest ACK, and full() says whether one fits.
  const size_t size = std::min(datagram.header.size(), wire::kMaxAckBytes);
  std::memcpy(storage, datagram.header.data(), size);
  headers_used_ += size;
  bytes_ += size + datagram.payload.size();
  batch_.push_back({peer, datagram.path, Bytes(storage, size), datagram.payload});
}

void TransmitBatch::Clear() {
  batch_.clear();
  headers_used_ = bytes_ = 0;
}

bool TransmitBatch::Flush(nic::NicBackend* nic) {
  if (stalled()) return FlushRefused(nic);
  if (batch_.empty()) return false;
  if (batch_.size() > 1 && bytes_ <= kUrgentBytes) {
    // Swaps, because std::stable_partition allocates. The bare ones may change their order, which
    // the network might do as well.
    std::partition(batch_.begin(), batch_.end(),
                   [](const nic::Outgoing& out) { return !out.payload.empty(); });
  }
  const size_t taken = nic->PostSend(batch_);
  for (size_t i = taken; i < batch_.size(); ++i) {
    const nic::Outgoing& out = batch_[i];
    Refused kept{out.peer, out.path, {}};
    kept.bytes.reserve(out.header.size() + out.payload.size());
    kept.bytes.insert(kept.bytes.end(), out.header.begin(), out.header.end());
    kept.bytes.insert(kept.bytes.end(), out.payload.begin(), out.payload.end());
    refused_.push_back(std::move(kept));
  }
  Clear();
  return taken > 0;
}

bool TransmitBatch::FlushRefused(nic::NicBackend* nic) {
  for (const Refused& r : refused_) batch_.push_back({r.peer, r.path, r.bytes, {}});
  const size_t taken = nic->PostSend(batch_);
  Clear();
  refused_.erase(refused_.begin(), refused_.begin() + static_cast<ptrdiff_t>(taken));
  return taken > 0;
}

}  // namespace uccl::engine
