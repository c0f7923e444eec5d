// See host_stack.h.
#include "csrc/sim/host_stack.h"

#include <algorithm>
#include <utility>

#include "csrc/base/hash.h"

namespace uccl::sim {
namespace {

// Per connection, on the average.
constexpr size_t kMaxTimersPerInstant = 1000;

uint64_t PairKey(uint32_t host, uint32_t peer) { return uint64_t{host} << 32 | peer; }

}  // namespace

HostStack::HostStack(const TransportSpec& transport, const HostSpec& host, uint64_t seed,
                     Network* network, EventQueue* events, const Contents* contents)
    : transport_(transport),
      spec_(host),
      seed_(seed),
      network_(network),
      events_(events),
      contents_(contents),
      nics_(network->fabric().num_hosts()) {
  for (Nic& nic : nics_) {
    nic.scheduler = std::move(
        core::MakeReceiverScheduler(transport.receiver_scheduler, transport.credit).value());
  }
}

Result<EndId> HostStack::EndOf(uint32_t host, uint32_t peer, uint32_t lane) {
  if (const auto it = first_end_.find(PairKey(host, peer)); it != first_end_.end()) {
    return it->second + 2 * lane;
  }
  const auto first = static_cast<EndId>(ends_.size());
  for (uint32_t l = 0; l < transport_.lanes; ++l) {
    const Result<EndId> here = MakeEnd(host, peer, l);
    if (!here.ok()) return here.status();
    const Result<EndId> there = MakeEnd(peer, host, l);
    if (!there.ok()) return there.status();
    ends_[here.value()].other = there.value();
    ends_[there.value()].other = here.value();
  }
  first_end_[PairKey(host, peer)] = first;
  first_end_[PairKey(peer, host)] = first + 1;
  return first + 2 * lane;
}

Result<EndId> HostStack::MakeEnd(uint32_t host, uint32_t peer, uint32_t lane) {
  const auto direction = [&](uint32_t from, uint32_t to, uint64_t what) {
    return HashWords({from, to, lane, what}, seed_);
  };
  core::ConnectionConfig config = transport_.config;
  config.send_key = direction(host, peer, 1);
  config.recv_key = direction(peer, host, 1);
  // Anywhere, so that some wrap around.
  config.initial_send_psn = static_cast<uint32_t>(direction(host, peer, 2));
  config.initial_recv_psn = static_cast<uint32_t>(direction(peer, host, 2));
  config.seed = direction(host, peer, 3);
  auto made = core::Connection::Make(config, {nics_[host].scheduler.get(), ends_.size()});
  if (!made.ok()) return made.status();
  End end;
  end.connection = std::move(made.value());
  end.host = host;
  end.peer = peer;
  end.entropy_seed = direction(host, peer, 4);
  ends_.push_back(std::move(end));
  return static_cast<EndId>(ends_.size() - 1);
}

void HostStack::Send(Nanos now, EndId end, const core::MessageInfo& info, Bytes data,
                     uint64_t token) {
  ends_[end].connection->Send(now, info, data, token);
  Touch(end);
}

void HostStack::PostRecv(Nanos now, EndId end, const core::MessageInfo& info, MutableBytes buffer,
                         uint64_t token) {
  ends_[end].connection->PostRecv(now, info, buffer, token);
  Touch(end);
}

void HostStack::Touch(EndId end) {
  if (ends_[end].touched) return;
  ends_[end].touched = true;
  touched_.push_back(end);
}

// ---- arrivals ----

void HostStack::OnPacket(Nanos now, uint32_t packet) {
  if (spec_.per_datagram_receive == Nanos(0)) return Deliver(now, packet);
  Nic& nic = nics_[network_->packets().at(packet).dst];
  if (nic.waiting >= spec_.receive_ring) {
    ++receive_ring_drops_;
    network_->DropAtHost(packet);
    return;
  }
  ++nic.waiting;
  nic.processor_free = std::max(nic.processor_free, now) + spec_.per_datagram_receive;
  events_->Push(nic.processor_free, EventType::kReceive, packet);
}

void HostStack::OnReceive(Nanos now, uint32_t packet) {
  --nics_[network_->packets().at(packet).dst].waiting;
  Deliver(now, packet);
}

void HostStack::Deliver(Nanos now, uint32_t packet) {
  Packet& p = network_->packets().at(packet);
  Bytes whole = p.head;
  if (!p.payload.empty() || p.corrupt) {
    datagram_.assign(p.head.begin(), p.head.end());
    datagram_.insert(datagram_.end(), p.payload.begin(), p.payload.end());
    // Which bit does not matter: the checksum has to find any.
    if (p.corrupt) datagram_[p.entropy % datagram_.size()] ^= std::byte{0x10};
    whole = datagram_;
    corrupted_delivered_ += p.corrupt ? 1 : 0;
  }
  const EndId end = p.to_end;
  if (tap_ != nullptr && !p.corrupt) tap_->OnArrived(now, end, p.head);
  ends_[end].connection->OnDatagram(now, p.path, whole, p.ce ? Ecn::kCongested : Ecn::kCapable);
  network_->Delivered(packet);
  Touch(end);
}

// ---- timers ----

void HostStack::OnTimer(Nanos now, EndId id) {
  End& end = ends_[id];
  if (now != end.timer_at) return;  // an earlier one took its place
  end.timer_at = kNever;
  if (end.connection->NextTimeout() <= now) {
    if (still_since_ != now) still_count_ = 0;
    still_since_ = now;
    if (++still_count_ > kMaxTimersPerInstant * ends_.size()) {
      stands_still_ = true;
      return;
    }
    end.connection->OnTimeout(now);
  }
  Touch(id);
}

void HostStack::SetTimer(Nanos now, EndId id) {
  End& end = ends_[id];
  const Nanos next = end.connection->NextTimeout();
  // A timer that moved to a later time is looked at again when the scheduled event comes.
  if (next >= end.timer_at) return;
  end.timer_at = std::max(next, now);
  events_->Push(end.timer_at, EventType::kTimer, id);
}

// ---- credits ----

void HostStack::OnCredit(Nanos now, uint32_t host) {
  if (now != nics_[host].credit_at) return;  // an earlier one took its place
  nics_[host].credit_at = kNever;
  GrantCredits(now, host);
}

void HostStack::GrantCredits(Nanos now, uint32_t host) {
  Nic& nic = nics_[host];
  if (nic.scheduler == nullptr) return;
  while (const core::CreditFlow* flow = nic.scheduler->Grant(now)) {
    Touch(static_cast<EndId>(flow->owner));
  }
  const Nanos next = nic.scheduler->NextGrant();
  if (next >= nic.credit_at) return;
  nic.credit_at = next;
  events_->Push(next, EventType::kCredit, host);
}

// ---- departures ----

void HostStack::OnNicReady(Nanos now, uint32_t host) {
  nics_[host].scheduled = false;
  Pump(now, host);
}

void HostStack::Settle(Nanos now) {
  while (!touched_.empty()) {
    const EndId id = touched_.front();
    touched_.pop_front();
    End& end = ends_[id];
    end.touched = false;
    while (std::optional<core::Event> event = end.connection->PollEvent()) {
      sink_(now, id, std::move(*event));
    }
    if (!end.ready) {
      end.ready = true;
      nics_[end.host].ready.push_back(id);
    }
    SetTimer(now, id);
    GrantCredits(now, end.host);
    Pump(now, end.host);
  }
}

void HostStack::Pump(Nanos now, uint32_t host) {
  Nic& nic = nics_[host];
  if (nic.scheduled) return;
  while (!nic.ready.empty()) {
    if (nic.next_send > now) {
      nic.scheduled = true;
      events_->Push(nic.next_send, EventType::kNicReady, host);
      return;
    }
    const EndId id = nic.ready.front();
    nic.ready.pop_front();
    const std::optional<core::Datagram> datagram = ends_[id].connection->PollTransmit(now);
    if (datagram) {
      Transmit(now, id, *datagram);
      nic.ready.push_back(id);
      nic.next_send = std::max(network_->NicFreeAt(host), now + spec_.per_datagram_send);
    } else {
      ends_[id].ready = false;
    }
    SetTimer(now, id);
  }
}

void HostStack::Transmit(Nanos now, EndId id, const core::Datagram& datagram) {
  const End& end = ends_[id];
  const uint32_t packet = network_->packets().Allocate();
  Packet& p = network_->packets().at(packet);
  p.src = end.host;
  p.dst = end.peer;
  p.to_end = end.other;
  p.path = datagram.path;
  p.entropy = static_cast<uint32_t>(Mix64(end.entropy_seed + ToInt(datagram.path)));
  p.wire_bytes =
      static_cast<uint32_t>(datagram.header.size() + datagram.payload.size()) + kFramingBytes;
  p.head.assign(datagram.header.begin(), datagram.header.end());
  // The core's own copies of small messages do not outlive this call.
  if (contents_->Owns(datagram.payload)) {
    p.payload = datagram.payload;
  } else {
    p.head.insert(p.head.end(), datagram.payload.begin(), datagram.payload.end());
  }
  if (tap_ != nullptr) tap_->OnSent(now, id, p.head, p.wire_bytes - kFramingBytes);
  network_->Send(now, packet);
}

}  // namespace uccl::sim
