// The UDP backend: spreads batches over the sockets, gathers what arrives, sleeps on epoll.
//
// Threads: everything belongs to the engine thread, except Wake(), which touches only `wake_state_`
// and writes to the eventfd. Construction and destruction happen while no other thread calls.
//
// Left to others: what is in the datagrams, loss, order, windows. Segmentation on send is
// Endpoint's alone; what comes joined is taken apart here.
#include "csrc/nic/udp/device.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "csrc/nic/udp/address.h"
#include "csrc/nic/udp/completion.h"
#include "csrc/nic/udp/endpoint.h"
#include "csrc/nic/udp/memory.h"

namespace uccl::nic::udp {
namespace {

// Largest datagram where the route would carry more (loopback). Measured on a 2-core VM, one sender
// and one receiver thread, 32 datagrams per call, GB/s: 1400 B 0.5, 4 KiB 1.4, 8 KiB 2.3, 16
// KiB 4.0, 32 KiB 6.1, 48 KiB 7.3, 65507 B 8.6. Whole engines, GB per CPU second: 8 KiB 0.9, 32
// KiB 2.5, 48 KiB 2.8, 65000 B 3.0.
constexpr size_t kLargestDatagram = 65000;

// The kernel charges a receive buffer with the memory that packets occupy (truesize), not with
// their bytes: SO_RCVBUF is doubled for that reason when set and read back doubled. Measured on
// loopback: 1.65 bytes charged per byte at 1400 B, 2.06 at 4 KiB, 1.02 from 32 KiB up; drivers that
// give every 1500 B frame a page reach about 3. A third of the granted size is therefore what may
// safely be in flight.
constexpr int64_t kTruesizeFactor = 3;

constexpr size_t kReceiveSlots = 32;
constexpr uint64_t kWakeTag = ~uint64_t{0};  // epoll data of the eventfd; sockets carry their index

// States of Wake/Wait. Running --Wait--> sleeping --Wait returns--> running; Wake moves either to
// notified.
enum WakeState : int { kRunning, kSleeping, kNotified };

struct Peer {
  std::vector<SocketAddress> by_path;  // where local path p sends to
  size_t max_datagram_bytes = 0;
};

class UdpBackend final : public NicBackend {
 public:
  explicit UdpBackend(const Config& config, SocketAddress ip)
      : ip_(ip),
        // Room for joined packets, whatever the size of a datagram.
        slots_(kReceiveSlots, kLargestPacket) {
    capabilities_.max_datagram_bytes = config.max_datagram_bytes > 0
                                           ? static_cast<size_t>(config.max_datagram_bytes)
                                           : kLargestDatagram;
  }

  Status Open(const Config& config);

  const Capabilities& capabilities() const override { return capabilities_; }
  std::string LocalAddress() const override;
  Result<PeerHandle> AddPeer(const std::string& remote_address) override;
  size_t MaxDatagramBytes(PeerHandle peer) const override {
    return peers_[peer].max_datagram_bytes;
  }
  size_t PostSend(std::span<const Outgoing> batch) override;
  size_t Poll(std::span<Incoming> out) override;
  std::vector<Fault> PollFaults() override;
  NicStats stats() const override;
  void Wait(Nanos timeout, bool want_send) override;
  void Wake() override;

 private:
  // Waits on the epoll set and files what it reports: readable sockets, error queues, the eventfd.
  void CollectReadiness(Nanos timeout);
  // Moves datagrams of packets that were received before into `out` from `count` on; the new count.
  size_t TakeArrived(std::span<Incoming> out, size_t count);
  Status Watch(int fd, uint64_t tag);
  void WatchWritable(size_t endpoint, bool on);
  // Errors of a PostSend, by place in the batch.
  void NoteSendError(const Outgoing& out, int error) {
    faults_.Add(out.peer, peers_[out.peer].by_path[ToInt(out.path)], error);
  }

  SocketAddress ip_;
  Capabilities capabilities_;
  std::vector<Endpoint> endpoints_;  // by path
  std::vector<Peer> peers_;          // by handle
  ReceiveSlots slots_;
  FaultLog faults_;
  FileDescriptor epoll_, event_;

  // Packets of the last Poll that is not handed out to its end, which may hold several datagrams.
  struct Arrived {
    PathId path{};
    Bytes rest;
    size_t segment_bytes = 0;
    Ecn ecn = Ecn::kNotCapable;
  };
  std::vector<Arrived> arrived_;  // handed out up to next_arrived_
  size_t next_arrived_ = 0;
  NicStats stats_;

  std::vector<size_t> ready_;       // endpoints with datagrams left, oldest first
  std::vector<char> is_ready_;      // by endpoint: is in ready_
  std::vector<char> send_blocked_;  // by endpoint: its last send found the socket full
  // Scratch of PostSend: the places of the batch in the order of sending.
  struct Place {
    size_t first_of_path;  // the first place with the same path
    PeerHandle peer;
    size_t index;
    auto operator<=>(const Place&) const = default;
  };
  std::vector<Place> order_;
  std::vector<size_t> first_place_;                  // by endpoint
  std::vector<std::pair<size_t, int>> send_errors_;  // scratch of PostSend

  // Shared with threads that Wake. See Wake for the order.
  std::atomic<int> wake_state_{kRunning};
};

Status UdpBackend::Open(const Config& config) {
  epoll_ = FileDescriptor(::epoll_create1(EPOLL_CLOEXEC));
  if (epoll_.get() < 0) return SystemError("epoll_create1", errno);
  event_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (event_.get() < 0) return SystemError("eventfd", errno);
  Status status = Watch(event_.get(), kWakeTag);
  if (!status.ok()) return status;
  int64_t granted = 0;
  for (int64_t path = 0; path < config.paths; ++path) {
    const EndpointOptions options{
        config.socket_buffer_bytes, config.ecn != 0 ? Ecn::kCapable : Ecn::kNotCapable,
        static_cast<size_t>(config.udp_segments), config.udp_receive_offload != 0};
    Result<Endpoint> endpoint = Endpoint::Open(ip_, options);
    if (!endpoint.ok()) return endpoint.status();
    status = Watch(endpoint.value().fd(), static_cast<uint64_t>(path));
    if (!status.ok()) return status;
    granted += endpoint.value().granted_receive_buffer();
    endpoints_.push_back(std::move(endpoint.value()));
  }
  capabilities_.num_paths = static_cast<uint16_t>(config.paths);
  capabilities_.receive_buffer_bytes = granted / kTruesizeFactor;
  is_ready_.assign(endpoints_.size(), 0);
  send_blocked_.assign(endpoints_.size(), 0);
  ready_.reserve(endpoints_.size());
  arrived_.reserve(slots_.count());
  return Status::Ok();
}

Status UdpBackend::Watch(int fd, uint64_t tag) {
  epoll_event event{};
  event.events = EPOLLIN;  // EPOLLERR (the error queue) is always reported
  event.data.u64 = tag;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return Status::Ok();
  return SystemError("epoll_ctl", errno);
}

void UdpBackend::WatchWritable(size_t endpoint, bool on) {
  epoll_event event{};
  event.events = on ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.u64 = endpoint;
  // Changing an existing entry of a valid set has no failure that the kernel documents for this
  // use.
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, endpoints_[endpoint].fd(), &event);
}

std::string UdpBackend::LocalAddress() const {
  EndpointSet set{ip_, {}};
  for (const Endpoint& e : endpoints_) set.ports.push_back(e.port());
  return ToText(set);
}

Result<PeerHandle> UdpBackend::AddPeer(const std::string& remote_address) {
  Result<EndpointSet> remote = FromText(remote_address);
  if (!remote.ok()) return remote.status();
  const EndpointSet& set = remote.value();
  if (set.ip.family() != ip_.family()) {
    return Status::Error(
        StatusCode::kInvalidArgument,
        "cannot send from " + IpText(ip_) + " to " + IpText(set.ip) +
            ": one is IPv4 and one IPv6; set address (JAX_UCCL_ADDRESS) alike everywhere");
  }
  Peer peer;
  for (size_t path = 0; path < endpoints_.size(); ++path) {
    SocketAddress to = set.ip;
    to.set_port(set.ports[path % set.ports.size()]);
    peer.by_path.push_back(to);
  }
  Result<size_t> route = RoutePayloadBytes(ip_, peer.by_path[0]);
  if (!route.ok()) return route.status();
  peer.max_datagram_bytes = std::min(route.value(), capabilities_.max_datagram_bytes);
  peers_.push_back(std::move(peer));
  return static_cast<PeerHandle>(peers_.size() - 1);
}

size_t UdpBackend::PostSend(std::span<const Outgoing> batch) {
  // The datagrams of one socket go out in one system call although policies alternate between
  // sockets, and those of one peer next to each other, so that they may leave as one packet. The
  // socket of the batch's first datagram comes first. Between one socket and one peer the order of
  // the batch is kept.
  order_.clear();
  first_place_.assign(endpoints_.size(), batch.size());
  for (size_t i = 0; i < batch.size(); ++i) {
    const size_t path = ToInt(batch[i].path) % endpoints_.size();
    first_place_[path] = std::min(first_place_[path], i);
    order_.push_back({first_place_[path], batch[i].peer, i});
  }
  // The place breaks ties: std::stable_sort would allocate on every call.
  std::sort(order_.begin(), order_.end());
  size_t taken = batch.size();
  std::array<OutgoingDatagram, kSyscallBatch> group;
  for (size_t begin = 0; begin < order_.size();) {
    const size_t first = order_[begin].first_of_path;
    const size_t path = ToInt(batch[first].path) % endpoints_.size();
    // What lies behind a refused datagram is offered again with it. A few of those may have left
    // already and then travel twice, which the protocol bears; it takes a full device.
    size_t count = 0, lowest = batch.size();
    while (count < kSyscallBatch && begin + count < order_.size() &&
           order_[begin + count].first_of_path == first) {
      const Place& place = order_[begin + count];
      const Outgoing& out = batch[place.index];
      lowest = std::min(lowest, place.index);
      group[count++] = {&peers_[out.peer].by_path[path], out.header, out.payload};
    }
    if (lowest < taken) {
      send_errors_.clear();
      const Endpoint::SendResult result =
          endpoints_[path].Send(std::span(group.data(), count), &send_errors_, &stats_);
      for (const auto& [place, error] : send_errors_)
        NoteSendError(batch[order_[begin + place].index], error);
      send_blocked_[path] = result.full;
      if (result.full) {
        for (size_t i = result.taken; i < count; ++i)
          taken = std::min(taken, order_[begin + i].index);
      }
    }
    begin += count;
  }
  return taken;
}

size_t UdpBackend::TakeArrived(std::span<Incoming> out, size_t count) {
  while (next_arrived_ < arrived_.size() && count < out.size()) {
    Arrived& packet = arrived_[next_arrived_];
    const size_t size = std::min(packet.segment_bytes, packet.rest.size());
    // A longer one than anything a peer of ours sends is no datagram of ours.
    if (size <= capabilities_.max_datagram_bytes) {
      out[count++] = {packet.path, packet.rest.first(size), packet.ecn};
    }
    packet.rest = packet.rest.subspan(size);
    if (packet.rest.empty()) ++next_arrived_;
  }
  return count;
}

size_t UdpBackend::Poll(std::span<Incoming> out) {
  // The slots are in use until all that is in them was handed out.
  if (next_arrived_ < arrived_.size()) return TakeArrived(out, 0);
  arrived_.clear();
  next_arrived_ = 0;
  if (ready_.empty()) CollectReadiness(Nanos(0));
  const size_t limit = std::min(out.size(), slots_.count());
  size_t used = 0;
  // One system call per socket in turn, so that a flooded path does not hide the others.
  while (used < limit && !ready_.empty()) {
    const size_t index = ready_.front();
    ready_.erase(ready_.begin());
    std::array<MutableBytes, kSlotsPerCall> slots;
    std::array<ReceivedDatagram, kSlotsPerCall> got;
    const size_t want = std::min(limit - used, kSlotsPerCall);
    for (size_t i = 0; i < want; ++i) slots[i] = slots_.slot(used + i);
    const size_t received = endpoints_[index].Receive(std::span(slots.data(), want),
                                                      std::span(got.data(), want), &stats_);
    for (size_t i = 0; i < received; ++i) {
      if (got[i].truncated || got[i].size == 0) continue;  // nothing that a peer of ours sends
      arrived_.push_back({PathId{static_cast<uint16_t>(index)}, Bytes(slots[i].first(got[i].size)),
                          got[i].segment_bytes, got[i].ecn});
    }
    used += received;
    if (received == want) {
      ready_.push_back(index);
    } else {
      is_ready_[index] = 0;
    }
  }
  return TakeArrived(out, 0);
}

NicStats UdpBackend::stats() const {
  NicStats stats = stats_;
  for (const Endpoint& e : endpoints_) {
    stats.segmentation |= e.segmentation();
    stats.receive_offload |= e.receive_offload();
  }
  return stats;
}

std::vector<Fault> UdpBackend::PollFaults() { return faults_.Take(); }

void UdpBackend::Wait(Nanos timeout, bool want_send) {
  if (!ready_.empty() || !faults_.empty() || next_arrived_ < arrived_.size()) return;
  // From here to the last exchange, Wake writes to the eventfd.
  //
  // acquire on every read of the state: sees what the caller of a Wake wrote before it. An exchange
  // to kRunning may use up several wakes at once, which is right: each came after its command was
  // queued, and the engine empties the queue after this returns.
  int expected = kRunning;
  if (!wake_state_.compare_exchange_strong(expected, kSleeping, std::memory_order_acquire,
                                           std::memory_order_acquire)) {
    wake_state_.exchange(kRunning,
                         std::memory_order_acquire);  // notified since the last Wait: do not sleep
    return;
  }
  bool any_blocked = false;
  if (want_send) {
    for (size_t i = 0; i < endpoints_.size(); ++i) {
      if (send_blocked_[i]) WatchWritable(i, true), any_blocked = true;
    }
  }
  CollectReadiness(want_send && !any_blocked ? Nanos(0) : timeout);
  if (any_blocked) {
    for (size_t i = 0; i < endpoints_.size(); ++i) {
      if (send_blocked_[i]) WatchWritable(i, false), send_blocked_[i] = 0;
    }
  }
  wake_state_.exchange(kRunning, std::memory_order_acquire);
}

void UdpBackend::Wake() {
  // release: what the caller wrote before (a queued command) is visible to the Wait that finds
  // kNotified. Only the first Wake of a sleep pays a system call; while the engine runs it is one
  // exchange, and the state kNotified then keeps the next Wait from sleeping on a queue that was
  // filled after it was drained.
  if (wake_state_.exchange(kNotified, std::memory_order_acq_rel) != kSleeping) return;
  const uint64_t one = 1;
  // An eventfd write fails only when the counter would overflow, and then it is readable anyway.
  (void)!::write(event_.get(), &one, sizeof(one));
}

void UdpBackend::CollectReadiness(Nanos timeout) {
  std::array<epoll_event, 64> events;
  const int count = EpollWait(epoll_.get(), events, timeout);
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == kWakeTag) {
      uint64_t drained = 0;
      (void)!::read(event_.get(), &drained,
                    sizeof(drained));  // nonblocking; only clears readability
      continue;
    }
    const size_t index = events[i].data.u64;
    if ((events[i].events & EPOLLERR) != 0) {
      std::vector<DestinationError> errors;  // rare: a fault of the network
      endpoints_[index].ReadErrors(&errors);
      for (const DestinationError& e : errors) {
        for (PeerHandle peer = 0; peer < peers_.size(); ++peer) {
          const auto& to = peers_[peer].by_path;
          const auto hit = std::find_if(to.begin(), to.end(),
                                        [&](const SocketAddress& a) { return a.SameAs(e.to); });
          if (hit != to.end()) faults_.Add(peer, *hit, e.error);
        }
      }
    }
    if ((events[i].events & EPOLLIN) != 0 && !is_ready_[index]) {
      is_ready_[index] = 1;
      ready_.push_back(index);
    }
  }
}

}  // namespace

Result<std::unique_ptr<NicBackend>> OpenUdp(const Config& config) {
  Result<SocketAddress> ip = ParseIp(config.address.empty() ? "127.0.0.1" : config.address);
  if (!ip.ok()) {
    Status status = ip.status();
    status.detail = "setting address: " + status.detail;
    return status;
  }
  auto backend = std::make_unique<UdpBackend>(config, ip.value());
  Status status = backend->Open(config);
  if (!status.ok()) return status;
  return std::unique_ptr<NicBackend>(std::move(backend));
}

}  // namespace uccl::nic::udp
