// A NIC of the simulated network as the engine's backend: datagrams become packets of the fabric,
// arrivals wait in a ring until the engine polls. Virtual time is told from outside, before each
// turn of the engine.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "csrc/core/ring.h"
#include "csrc/nic/nic_backend.h"
#include "csrc/sim/network.h"

namespace uccl::sim {

struct SimNicSpec {
  uint16_t paths = 1;
  size_t max_datagram_bytes = 8192;
  int64_t receive_ring_bytes = 4 << 20;  // more is dropped
  uint64_t seed = 1;                     // of what the switches hash
};

class SimNic final : public nic::NicBackend {
 public:
  // `on_wake` hears of commands that were queued for the engine.
  SimNic(uint32_t host, const SimNicSpec& spec, Network* network, std::function<void()> on_wake);
  ~SimNic() override;

  // Before each turn.
  void set_now(Nanos now) { now_ = now; }
  // A packet came to this host. A host that is off drops it.
  void OnPacket(uint32_t packet);
  void TurnOff();
  bool has_arrivals() const { return !arrivals_.empty(); }
  // When the device takes datagrams again.
  Nanos free_at() const { return network_->NicFreeAt(host_); }
  uint64_t ring_drops() const { return ring_drops_; }

  const nic::Capabilities& capabilities() const override { return capabilities_; }
  std::string LocalAddress() const override { return "host:" + std::to_string(host_); }
  Result<nic::PeerHandle> AddPeer(const std::string& remote_address) override;
  size_t MaxDatagramBytes(nic::PeerHandle) const override {
    return capabilities_.max_datagram_bytes;
  }
  size_t PostSend(std::span<const nic::Outgoing> batch) override;
  size_t Poll(std::span<nic::Incoming> out) override;
  std::vector<nic::Fault> PollFaults() override { return {}; }
  void Wait(Nanos, bool) override {}  // whoever drives the engine knows when to call it again
  void Wake() override { on_wake_(); }

 private:
  void Send(const nic::Outgoing& datagram);
  void ReleasePolled();

  const uint32_t host_;
  const SimNicSpec spec_;
  const nic::Capabilities capabilities_;
  Network* const network_;
  const std::function<void()> on_wake_;
  Nanos now_{0};
  bool off_ = false;
  std::vector<uint32_t> peers_;    // hosts by handle
  core::Ring<uint32_t> arrivals_;  // packets
  int64_t arrived_bytes_ = 0;
  std::vector<uint32_t> polled_;  // packets that the engine looks at until the next Poll
  uint64_t ring_drops_ = 0;
};

}  // namespace uccl::sim
