// See network.h.
#include "csrc/sim/network.h"

#include <algorithm>

namespace uccl::sim {

Network::Network(const Fabric* fabric, const LinkSpec& host_link, const LinkSpec& core_link,
                 uint64_t seed, EventQueue* events)
    : fabric_(fabric), events_(events), random_(seed) {
  links_.reserve(fabric->cables().size());
  for (const Fabric::Cable& cable : fabric->cables()) {
    const bool host = fabric->IsHost(cable.from) || fabric->IsHost(cable.to);
    links_.emplace_back(host ? host_link : core_link);
  }
  routed_around_.resize(links_.size());
}

void Network::Send(Nanos now, uint32_t packet) {
  Packet& p = packets_.at(packet);
  ++totals_.sent;
  totals_.sent_bytes += p.wire_bytes;
  Enter(now, fabric_->host_link(p.src), packet);
}

void Network::Enter(Nanos now, uint32_t link_id, uint32_t packet) {
  Link& link = links_[link_id];
  const auto sent = link.Send(now, packets_.at(packet).wire_bytes, &random_);
  if (!sent) return Drop(packet);
  uint32_t copy = packet;
  if (sent->duplicate) {
    copy = packets_.Allocate();
    packets_.at(copy) = packets_.at(packet);
    ++totals_.duplicated;
  }
  for (const uint32_t each : {packet, copy}) {
    Packet& p = packets_.at(each);
    p.ce |= sent->marked;
    p.corrupt |= sent->corrupt;
    p.link = link_id;
    p.link_epoch = link.epoch();
    events_->Push(sent->arrival, EventType::kArrive, each);
    if (copy == packet) break;
  }
}

std::optional<uint32_t> Network::OnArrive(Nanos now, uint32_t packet) {
  const Packet& p = packets_.at(packet);
  Link& link = links_[p.link];
  if (p.link_epoch != link.epoch()) {
    link.CountCut();
    Drop(packet);
    return std::nullopt;
  }
  const uint32_t node = fabric_->cables()[p.link].to;
  if (fabric_->IsHost(node)) return packet;
  const uint32_t next = num_routed_around_ == 0
                            ? fabric_->Route(node, p.src, p.dst, p.entropy)
                            : fabric_->RouteAround(node, p.src, p.dst, p.entropy, routed_around_);
  Enter(now, next, packet);
  return std::nullopt;
}

void Network::LearnState(uint32_t link) {
  const bool down = links_[link].down();
  if (down == routed_around_[link]) return;
  routed_around_[link] = down;
  num_routed_around_ += down ? 1 : -1;
}

void Network::Delivered(uint32_t packet) {
  const Packet& p = packets_.at(packet);
  ++totals_.delivered;
  totals_.delivered_bytes += p.wire_bytes;
  totals_.marked += p.ce ? 1 : 0;
  packets_.Release(packet);
}

void Network::Drop(uint32_t packet) {
  ++totals_.dropped;
  packets_.Release(packet);
}

void Network::Apply(const Fault& fault, bool begin) {
  Link& link = links_[fault.link];
  // Where two overlap, the sum counts; what is left over from adding is not a probability.
  const auto add = [&](double* rate) {
    *rate = std::clamp(*rate + (begin ? fault.probability : -fault.probability), 0.0, 1.0);
    if (*rate < 1e-12) *rate = 0;
  };
  switch (fault.kind) {
    case FaultKind::kDown:
      begin ? link.Fail() : link.Heal();
      break;
    case FaultKind::kLoss:
      add(&link.faults().loss);
      break;
    case FaultKind::kCorrupt:
      add(&link.faults().corrupt);
      break;
    case FaultKind::kDuplicate:
      add(&link.faults().duplicate);
      break;
  }
}

}  // namespace uccl::sim
