// See sim_nic.h.
#include "csrc/sim/sim_nic.h"

#include <charconv>
#include <string_view>
#include <system_error>
#include <utility>

#include "csrc/base/hash.h"

namespace uccl::sim {
namespace {

constexpr std::string_view kAddressPrefix = "host:";

nic::Capabilities MakeCapabilities(const SimNicSpec& spec) {
  nic::Capabilities c;
  c.max_datagram_bytes = spec.max_datagram_bytes;
  c.num_paths = spec.paths;
  c.receive_buffer_bytes = spec.receive_ring_bytes;
  return c;
}

}  // namespace

SimNic::SimNic(uint32_t host, const SimNicSpec& spec, Network* network,
               std::function<void()> on_wake)
    : host_(host),
      spec_(spec),
      capabilities_(MakeCapabilities(spec)),
      network_(network),
      on_wake_(std::move(on_wake)) {}

SimNic::~SimNic() { TurnOff(); }

void SimNic::TurnOff() {
  off_ = true;
  ReleasePolled();
  while (!arrivals_.empty()) {
    network_->DropAtHost(arrivals_.front());
    arrivals_.pop_front();
  }
  arrived_bytes_ = 0;
}

void SimNic::OnPacket(uint32_t packet) {
  const int64_t bytes = network_->packets().at(packet).wire_bytes;
  if (off_ || arrived_bytes_ + bytes > spec_.receive_ring_bytes) {
    ring_drops_ += off_ ? 0 : 1;
    return network_->DropAtHost(packet);
  }
  arrived_bytes_ += bytes;
  arrivals_.push_back(packet);
}

Result<nic::PeerHandle> SimNic::AddPeer(const std::string& remote_address) {
  const std::string_view text = remote_address;
  uint32_t host = 0;
  bool ok = text.starts_with(kAddressPrefix);
  if (ok) {
    const auto [stop, error] =
        std::from_chars(text.data() + kAddressPrefix.size(), text.data() + text.size(), host);
    ok = error == std::errc() && stop == text.data() + text.size() &&
         host < network_->fabric().num_hosts();
  }
  if (!ok) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "\"" + remote_address + "\" is no host of the simulated fabric");
  }
  peers_.push_back(host);
  return static_cast<nic::PeerHandle>(peers_.size() - 1);
}

size_t SimNic::PostSend(std::span<const nic::Outgoing> batch) {
  size_t taken = 0;
  // The device holds a batch; a next one while it is being sent is refused.
  if (free_at() > now_) return 0;
  for (const nic::Outgoing& datagram : batch) {
    Send(datagram);
    ++taken;
  }
  return taken;
}

void SimNic::Send(const nic::Outgoing& datagram) {
  const uint32_t packet = network_->packets().Allocate();
  Packet& p = network_->packets().at(packet);
  p.src = host_;
  p.dst = peers_[datagram.peer];
  p.path = datagram.path;
  p.entropy = static_cast<uint32_t>(HashWords({host_, p.dst, ToInt(datagram.path)}, spec_.seed));
  p.head.assign(datagram.header.begin(), datagram.header.end());
  p.head.insert(p.head.end(), datagram.payload.begin(), datagram.payload.end());
  p.wire_bytes = static_cast<uint32_t>(p.head.size()) + kFramingBytes;
  network_->Send(now_, packet);
}

void SimNic::ReleasePolled() {
  for (const uint32_t packet : polled_) network_->Delivered(packet);
  polled_.clear();
}

size_t SimNic::Poll(std::span<nic::Incoming> out) {
  ReleasePolled();
  size_t count = 0;
  while (count < out.size() && !arrivals_.empty()) {
    const uint32_t packet = arrivals_.front();
    arrivals_.pop_front();
    polled_.push_back(packet);
    Packet& p = network_->packets().at(packet);
    arrived_bytes_ -= p.wire_bytes;
    // Which bit does not matter: the checksum has to find any.
    if (p.corrupt) p.head[p.entropy % p.head.size()] ^= std::byte{0x10};
    out[count++] = {p.path, p.head, p.ce ? Ecn::kCongested : Ecn::kCapable};
  }
  return count;
}

}  // namespace uccl::sim
