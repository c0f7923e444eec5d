// All hosts: each a NIC of finite rate, and the ends of its connections, which are the production
// core::Connection. Drives them the way an engine does: arrivals, timers, events, then what wants
// to be sent; a NIC takes the next datagram when it has sent the one before, from its ends in turn.
//
// Connections come into being with the first message of a pair of hosts. Both ends are made at
// once: how processes find each other is not simulated. A pair has `lanes` connections; more than
// one is the baseline of N independent connections.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/base/types.h"
#include "csrc/core/connection.h"
#include "csrc/core/credit/registry.h"
#include "csrc/core/ring.h"
#include "csrc/sim/contents.h"
#include "csrc/sim/datagram_tap.h"
#include "csrc/sim/event_queue.h"
#include "csrc/sim/network.h"

namespace uccl::sim {

struct TransportSpec {
  uint32_t lanes = 1;             // connections per pair of hosts
  core::ConnectionConfig config;  // keys, numbers and seed are set per end
  std::string receiver_scheduler = "none";
  core::CreditParams credit;  // of each host
};
struct HostSpec {
  Nanos per_datagram_send{0}, per_datagram_receive{0};  // processor time
  uint32_t receive_ring = 4096;  // datagrams that wait for the processor; more are dropped
};

// One end of one connection.
using EndId = uint32_t;

class HostStack final {
 public:
  using Sink = std::function<void(Nanos now, EndId end, core::Event event)>;

  HostStack(const TransportSpec& transport, const HostSpec& host, uint64_t seed, Network* network,
            EventQueue* events, const Contents* contents);

  // Hears of every event of every connection, kFailed included.
  void set_sink(Sink sink) { sink_ = std::move(sink); }

  // Sees every datagram from now on; nullptr: nobody does.
  void set_tap(DatagramTap* tap) { tap_ = tap; }

  // The end at `host` of the connection to `peer`.
  Result<EndId> EndOf(uint32_t host, uint32_t peer, uint32_t lane);
  void Send(Nanos now, EndId end, const core::MessageInfo& info, Bytes data, uint64_t token);
  void PostRecv(Nanos now, EndId end, const core::MessageInfo& info, MutableBytes buffer,
                uint64_t token);

  // A packet came to its host.
  void OnPacket(Nanos now, uint32_t packet);
  void OnReceive(Nanos now, uint32_t packet);
  void OnTimer(Nanos now, EndId end);
  void OnNicReady(Nanos now, uint32_t host);
  void OnCredit(Nanos now, uint32_t host);
  // After each event of the queue: events of the connections that were touched, and their
  // datagrams.
  void Settle(Nanos now);

  size_t num_ends() const { return ends_.size(); }
  const core::Connection& connection(EndId end) const { return *ends_[end].connection; }
  uint32_t peer_of(EndId end) const { return ends_[end].peer; }
  EndId other_of(EndId end) const { return ends_[end].other; }
  uint32_t host_of(EndId end) const { return ends_[end].host; }
  // Datagrams handed to a connection with a flipped bit.
  uint64_t corrupted_delivered() const { return corrupted_delivered_; }
  uint64_t receive_ring_drops() const { return receive_ring_drops_; }
  // A timer that does not move on after it fired would hold virtual time still for ever.
  bool stands_still() const { return stands_still_; }

 private:
  struct End {
    std::unique_ptr<core::Connection> connection;
    uint32_t host = 0, peer = 0;
    EndId other = 0;
    uint64_t entropy_seed = 0;
    Nanos timer_at = kNever;  // the earliest kTimer event that is scheduled
    bool touched = false;     // is in touched_
    bool ready = false;       // is in its NIC's queue
  };
  struct Nic {
    core::Ring<EndId> ready;
    Nanos next_send{0};
    bool scheduled = false;  // a kNicReady event is
    Nanos processor_free{0};
    uint32_t waiting = 0;  // datagrams that came and wait for the processor
    std::unique_ptr<core::ReceiverScheduler> scheduler;  // or null
    Nanos credit_at = kNever;  // the earliest kCredit event that is scheduled
  };

  Result<EndId> MakeEnd(uint32_t host, uint32_t peer, uint32_t lane);
  void Touch(EndId end);
  void Deliver(Nanos now, uint32_t packet);
  void SetTimer(Nanos now, EndId end);
  // Hands out the credits that are due.
  void GrantCredits(Nanos now, uint32_t host);
  void Pump(Nanos now, uint32_t host);
  void Transmit(Nanos now, EndId end, const core::Datagram& datagram);

  const TransportSpec transport_;
  const HostSpec spec_;
  const uint64_t seed_;
  Network* const network_;
  EventQueue* const events_;
  const Contents* const contents_;
  Sink sink_;
  DatagramTap* tap_ = nullptr;

  std::vector<Nic> nics_;  // before the connections, which know their host's scheduler
  std::deque<End> ends_;   // grows while references are held
  std::unordered_map<uint64_t, EndId>
      first_end_;  // of (host, peer): the others follow, lane by lane
  core::Ring<EndId> touched_;
  std::vector<std::byte> datagram_;  // scratch: header and payload in one piece
  uint64_t receive_ring_drops_ = 0, corrupted_delivered_ = 0;
  Nanos still_since_{-1};
  size_t still_count_ = 0;
  bool stands_still_ = false;
};

}  // namespace uccl::sim
