// Gathering, offering, keeping.
#include "csrc/engine/transmit_batch.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace uccl::engine {

void TransmitBatch::Add(nic::PeerHandle peer, const core::Datagram& datagram) {
  std::array<std::byte, wire::kMaxAckBytes>& storage = headers_[batch_.size()];
  // No header of csrc/wire is longer than the longest ACK.
  const size_t size = std::min(datagram.header.size(), storage.size());
  std::memcpy(storage.data(), datagram.header.data(), size);
  batch_.push_back({peer, datagram.path, Bytes(storage.data(), size), datagram.payload});
}

bool TransmitBatch::Flush(nic::NicBackend* nic) {
  if (stalled()) return FlushRefused(nic);
  if (batch_.empty()) return false;
  const size_t taken = nic->PostSend(batch_);
  for (size_t i = taken; i < batch_.size(); ++i) {
    const nic::Outgoing& out = batch_[i];
    Refused kept{out.peer, out.path, {}};
    kept.bytes.reserve(out.header.size() + out.payload.size());
    kept.bytes.insert(kept.bytes.end(), out.header.begin(), out.header.end());
    kept.bytes.insert(kept.bytes.end(), out.payload.begin(), out.payload.end());
    refused_.push_back(std::move(kept));
  }
  batch_.clear();
  return taken > 0;
}

bool TransmitBatch::FlushRefused(nic::NicBackend* nic) {
  for (const Refused& r : refused_) batch_.push_back({r.peer, r.path, r.bytes, {}});
  const size_t taken = nic->PostSend(batch_);
  batch_.clear();
  refused_.erase(refused_.begin(), refused_.begin() + static_cast<ptrdiff_t>(taken));
  return taken > 0;
}

}  // namespace uccl::engine
