// The links of a fabric, the packets on them, and the faults: carries datagrams from host to host.
// What hosts do with them is left to the caller.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/sim/event_queue.h"
#include "csrc/sim/fabric.h"
#include "csrc/sim/faults.h"
#include "csrc/sim/link.h"
#include "csrc/sim/packet.h"
#include "csrc/sim/random.h"

namespace uccl::sim {

// Every packet ends in exactly one of these; see Network::Conserved.
struct NetworkTotals {
  uint64_t sent = 0, duplicated = 0, delivered = 0, dropped = 0;
  uint64_t sent_bytes = 0, delivered_bytes = 0;
  uint64_t marked = 0;  // delivered ones that carry the mark
};

class Network final {
 public:
  Network(const Fabric* fabric, const LinkSpec& host_link, const LinkSpec& core_link, uint64_t seed,
          EventQueue* events);

  PacketPool& packets() { return packets_; }
  // Takes a packet from its source's NIC.
  void Send(Nanos now, uint32_t packet);
  // A packet reached the end of its link. Returns it when that is its host; it is then the
  // caller's.
  std::optional<uint32_t> OnArrive(Nanos now, uint32_t packet);
  // The caller has taken or dropped a packet that OnArrive returned.
  void Delivered(uint32_t packet);
  void DropAtHost(uint32_t packet) { Drop(packet); }
  // The time at which a host's NIC has sent all it was given.
  Nanos NicFreeAt(uint32_t host) const { return links_[fabric_->host_link(host)].free_at(); }

  void Begin(const Fault& fault) { Apply(fault, true); }
  void End(const Fault& fault) { Apply(fault, false); }
  // The switches take note of whether a link is down, and route around it if so. Until then they
  // send into it.
  void LearnState(uint32_t link);

  const Fabric& fabric() const { return *fabric_; }
  const std::vector<Link>& links() const { return links_; }
  const NetworkTotals& totals() const { return totals_; }
  bool Conserved() const {
    return totals_.sent + totals_.duplicated ==
           totals_.delivered + totals_.dropped + packets_.in_use();
  }

 private:
  void Enter(Nanos now, uint32_t link, uint32_t packet);
  void Drop(uint32_t packet);
  void Apply(const Fault& fault, bool begin);

  const Fabric* const fabric_;
  EventQueue* const events_;
  Random random_;
  std::vector<Link> links_;
  std::vector<bool> routed_around_;  // per link
  size_t num_routed_around_ = 0;
  PacketPool packets_;
  NetworkTotals totals_;
};

}  // namespace uccl::sim
