// Links, polling and the thread of messenger.h.
#include "csrc/shm/messenger.h"

#include <pthread.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "csrc/base/cores.h"
#include "csrc/base/quiet_thread.h"
#include "csrc/shm/doorbell.h"

namespace uccl::shm {
namespace {

// Between looks whether the peers live, while something is outstanding.
constexpr Nanos kCheckEvery = FromMillis(50);

// A yield that takes longer let somebody else run.
constexpr Nanos kSomebodyRan = FromMicros(2);
// A thread that moved finds its caches cold, and what it saw may be over by now.
constexpr Nanos kMoveEvery = FromMillis(1);

Nanos Now() { return std::chrono::steady_clock::now().time_since_epoch(); }

Status Named(Status status, ProcessId peer) {
  status.process = ToInt(peer);
  return status;
}

}  // namespace

Messenger::Messenger(const Config& config, std::unique_ptr<Segment> segment, const Address& address,
                     std::unique_ptr<uint64_t> probe, Sink* sink)
    : config_(config),
      segment_(std::move(segment)),
      address_(address),
      probe_(std::move(probe)),
      sink_(sink),
      spin_(FromMicros(config.spin_us)) {}

Messenger::~Messenger() { (void)Shutdown(Nanos(0)); }

Result<std::unique_ptr<Messenger>> Messenger::Start(const Config& config, Sink* sink) {
  const Result<uint64_t> host = HostIdentity();
  if (!host.ok()) return host.status();
  Address address;
  address.host = host.value();
  address.pid = getpid();
  if (getrandom(&address.nonce, sizeof(address.nonce), 0) != sizeof(address.nonce)) {
    return Status::Error(StatusCode::kUnsupported, "getrandom gives nothing");
  }
  Result<std::unique_ptr<Segment>> segment = Segment::Make(
      static_cast<size_t>(config.shm_ring_bytes), config.eager_buffer_bytes, address.nonce);
  if (!segment.ok()) return segment.status();
  address.fd = segment.value()->fd();
  auto probe = std::make_unique<uint64_t>(address.nonce);
  address.probe = reinterpret_cast<uint64_t>(probe.get());
  return std::unique_ptr<Messenger>(
      new Messenger(config, std::move(segment.value()), address, std::move(probe), sink));
}

std::string Messenger::LocalAddress() const { return EncodeAddress(address_); }

Link* Messenger::FindLink(ProcessId peer) const {
  const int32_t index = ToInt(peer);
  if (!connected_.load(std::memory_order_acquire) || index < 0 ||
      static_cast<size_t>(index) >= links_.size()) {
    return nullptr;
  }
  return links_[static_cast<size_t>(index)].get();
}

Result<std::unique_ptr<Link>> Messenger::OpenLink(ProcessId peer, const Address& address,
                                                  uint32_t their_slot, uint32_t my_slot,
                                                  uint64_t session) const {
  Result<std::unique_ptr<PeerProcess>> process = PeerProcess::Open(address.pid);
  if (!process.ok()) return process.status();
  Result<std::unique_ptr<Segment>> theirs =
      Segment::Open(address.pid, static_cast<int>(address.fd), address.nonce, my_slot);
  if (!theirs.ok()) return theirs.status();
  LinkOptions options;
  options.peer = peer;
  options.session = session;
  options.eager_max_bytes = static_cast<size_t>(config_.shm_eager_bytes);
  options.eager_buffer_bytes = config_.eager_buffer_bytes;
  options.peer_silence = FromMillis(config_.peer_silence_ms);
  if (config_.shm_one_copy != 0) {
    // Whether the kernel allows it depends on its security modules: try, on a word that is known.
    uint64_t word = 0;
    const Status read = process.value()->Read(
        MutableBytes(reinterpret_cast<std::byte*>(&word), sizeof(word)), address.probe);
    options.one_copy = read.ok() && word == address.nonce;
  }
  return std::make_unique<Link>(
      options, std::move(theirs.value()), std::move(process.value()),
      RingReader(segment_->ring(their_slot), segment_->data(their_slot), segment_->ring_bytes()));
}

Status Messenger::Connect(ProcessId self, const std::vector<std::string>& addresses,
                          uint64_t session) {
  if (connected_.load(std::memory_order_acquire)) {
    return Status::Error(StatusCode::kInvalidArgument, "shared memory is connected already");
  }
  // Those of this host, in the order that all of them see.
  std::vector<std::pair<ProcessId, Address>> neighbours;
  std::optional<uint32_t> my_slot;
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (addresses[i].empty()) continue;
    const ProcessId process{static_cast<int32_t>(i)};
    const Result<Address> address = DecodeAddress(addresses[i]);
    if (!address.ok()) return Named(address.status(), process);
    if (address.value().host != address_.host || neighbours.size() == kMaxLocalProcesses) continue;
    if (process == self) my_slot = static_cast<uint32_t>(neighbours.size());
    neighbours.emplace_back(process, address.value());
  }
  std::vector<std::unique_ptr<Link>> links(addresses.size());
  std::vector<Link*> served;
  for (uint32_t slot = 0; my_slot.has_value() && slot < neighbours.size(); ++slot) {
    const auto& [process, address] = neighbours[slot];
    if (process == self) continue;
    Result<std::unique_ptr<Link>> link = OpenLink(process, address, slot, *my_slot, session);
    if (!link.ok()) {
      Status status = Named(link.status(), process);
      status.detail += "; process " + std::to_string(ToInt(process)) +
                       " says that it runs on this host. Set shared_memory=off "
                       "(JAX_UCCL_SHARED_MEMORY=off) on all processes to do without";
      return status;
    }
    served.push_back(link.value().get());
    links[static_cast<size_t>(ToInt(process))] = std::move(link.value());
  }
  const auto cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  most_copiers_ = std::max(1, cores / static_cast<int>(std::max<size_t>(neighbours.size(), 1)));
  self_ = self;
  links_ = std::move(links);
  served_ = std::move(served);
  connected_.store(true, std::memory_order_release);
  if (served_.empty()) return Status::Ok();
  Result<std::thread> thread = StartQuietThread("the shared-memory thread", [this] { Loop(); });
  if (!thread.ok()) return thread.status();
  thread_ = std::move(thread.value());
  return Status::Ok();
}

void Messenger::Send(ProcessId peer, const core::MessageInfo& info, Bytes data, uint64_t token) {
  Link* const link = FindLink(peer);
  link->Send(info, data, token);
  NudgeThread(link);
}

void Messenger::PostRecv(ProcessId peer, const core::MessageInfo& info, MutableBytes buffer,
                         uint64_t token, bool borrow) {
  Link* const link = FindLink(peer);
  link->PostRecv(info, buffer, token, borrow);
  NudgeThread(link);
}

Status Messenger::Return(ProcessId peer, uint64_t token, const Status& read) {
  Link* const link = FindLink(peer);
  Status status = link->Return(token, read);
  NudgeThread(link);
  return status;
}

void Messenger::SendControl(ProcessId peer, std::string control) {
  Link* const link = FindLink(peer);
  link->SendControl(std::move(control));
  NudgeThread(link);
}

bool Messenger::Cancel(ProcessId peer, bool is_send, uint64_t token, std::function<void()> freed) {
  Link* const link = FindLink(peer);
  const bool free = link->Cancel(is_send, token, std::move(freed));
  NudgeThread(link);
  return free;
}

void Messenger::Discard(ProcessId peer, const core::MessageTag& tag) {
  Link* const link = FindLink(peer);
  link->Discard(tag);
  NudgeThread(link);
}

void Messenger::FailPeer(ProcessId peer, const Status& status) {
  Link* const link = FindLink(peer);
  link->Fail(status);
  NudgeThread(link);
}

// After a call that may have made work: a thread that polls finds it, else the own one must. It
// also starts to look after the peers when it sees the first message outstanding.
void Messenger::NudgeThread(Link* link) {
  if (stopping_.load(std::memory_order_seq_cst)) {
    // Nobody else answers any more (or Shutdown does, which then hands out this answer too).
    Deliveries deliveries;
    link->Drain(&deliveries);
    Deliver(link, &deliveries);
    return;
  }
  if (pollers_.load(std::memory_order_seq_cst) > 0) return;
  if (asleep_.load(std::memory_order_seq_cst)) RingBell(segment_->header());
}

bool Messenger::HasWork() const {
  const bool may_copy = copiers_.load(std::memory_order_relaxed) < most_copiers_;
  return std::ranges::any_of(
      served_, [&](const Link* link) { return link->HasWork() || (may_copy && link->HasPiece()); });
}

bool Messenger::Waiting() const {
  return std::ranges::any_of(served_, [](const Link* link) { return link->Waiting(); });
}

bool Messenger::Poll() { return ServeAll(/*early=*/false); }

// `early`: also what is early.
bool Messenger::ServeAll(bool early) {
  if (!connected_.load(std::memory_order_acquire)) return false;
  // Counted before the flag is read, which Shutdown sets before it reads the count: it either waits
  // for this thread, or this thread sees that it is too late. (seq_cst.)
  serving_.fetch_add(1, std::memory_order_seq_cst);
  bool worked = false;
  if (!stopping_.load(std::memory_order_seq_cst)) {
    for (Link* link : served_) worked |= Serve(link, early);
  }
  serving_.fetch_sub(1, std::memory_order_seq_cst);
  return worked;
}

bool Messenger::Serve(Link* link, bool early) {
  bool worked = false;
  if (early || link->HasWork()) {
    Deliveries deliveries;
    worked = link->Drain(&deliveries, early);
    Deliver(link, &deliveries);
  }
  if (!link->HasPiece()) return worked;
  // More threads than cores would only take turns. (Relaxed: a limit, no data hangs on it.)
  if (copiers_.fetch_add(1, std::memory_order_relaxed) < most_copiers_) {
    if (const std::optional<Link::Piece> piece = link->Claim()) {
      Deliveries deliveries;
      link->Finish(*piece, link->Copy(*piece), &deliveries);
      Deliver(link, &deliveries);
      worked = true;
    }
  }
  copiers_.fetch_sub(1, std::memory_order_relaxed);
  return worked;
}

void Messenger::Deliver(Link* link, Deliveries* deliveries) {
  for (const core::Event& event : deliveries->events) {
    if (event.kind == core::EventKind::kFailed) {
      sink_->OnPeerLost(link->peer(), event.status);
    } else if (event.kind == core::EventKind::kControl) {
      sink_->OnControl(link->peer(), event.control);
      link->ControlTaken(event.token);
    } else if (event.kind == core::EventKind::kArrived) {
      sink_->OnArrival(link->peer(), event.remote);
    } else {
      sink_->OnMessage(link->peer(), event);
    }
  }
  for (const auto& freed : deliveries->freed) freed();
}

Messenger::PollScope::PollScope(Messenger* messenger) : messenger_(messenger) {
  messenger->pollers_.fetch_add(1, std::memory_order_seq_cst);
  // Peers need not ring while this thread looks.
  SegmentHeader* const header = messenger->segment_->header();
  header->sleeping.store(kAwake, std::memory_order_seq_cst);
  header->polling_core.store(CurrentCore(), std::memory_order_relaxed);
}

Messenger::PollScope::~PollScope() {
  Messenger& m = *messenger_;
  if (m.pollers_.fetch_sub(1, std::memory_order_seq_cst) != 1) return;
  m.segment_->header()->polling_core.store(kNoCore, std::memory_order_relaxed);
  if (!m.asleep_.load(std::memory_order_seq_cst)) return;  // it looks for work before it sleeps
  // It takes over: the rings, and the looks after the peers.
  SegmentHeader* const header = m.segment_->header();
  if (!m.Waiting()) {
    // Nothing to take over but what comes unasked. Should another thread poll by now, or the own
    // one be awake, the word costs a peer one ring too many. One that the own thread has set
    // meanwhile is newer, and stays.
    uint32_t awake = kAwake;
    header->sleeping.compare_exchange_strong(awake, kAsleepButForUrgent, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // and the look into the rings after it
    if (!m.HasWork()) return;
  }
  RingBell(header);
}

void Messenger::PollScope::Yield() {
  const Nanos before = Now();
  std::this_thread::yield();
  const Nanos after = Now();
  if (after - before >= kSomebodyRan) messenger_->LeaveSharedCore(after);
}

// Of several threads on one core that of the first process stays. Cores are compared as they were a
// moment ago (relaxed): at worst a thread moves in vain, or later.
void Messenger::LeaveSharedCore(Nanos now) {
  const int own = CurrentCore();
  segment_->header()->polling_core.store(own, std::memory_order_relaxed);
  if (now < next_move_.load(std::memory_order_relaxed)) return;
  std::vector<int> others;
  bool stays = true;
  for (const Link* link : served_) {
    const int core = link->polling_core();
    if (core != kNoCore) others.push_back(core);
    if (core == own && link->peer() < self_) stays = false;
  }
  if (stays) return;
  next_move_.store(now + kMoveEvery, std::memory_order_relaxed);
  const std::optional<int> better = BetterCore(own, others, AllowedCores());
  if (!better.has_value() || !MoveToCore(*better)) return;
  segment_->header()->polling_core.store(*better, std::memory_order_relaxed);
}

void Messenger::Loop() {
  pthread_setname_np(pthread_self(), "uccl-shm");
  while (!stopping_.load(std::memory_order_seq_cst)) {
    // Relaxed: peers only compare it with what they saw before.
    segment_->header()->turns.fetch_add(1, std::memory_order_relaxed);
    const Nanos now = Now();
    if (now >= next_check_) CheckLinks(now);
    const bool others = pollers_.load(std::memory_order_seq_cst) > 0;
    if (!others && Poll()) {
      spin_.OnWork(now);
    } else if (!others && spin_.OnIdle(now)) {
      yield_.OnIdleTurn(&spin_);
    } else {
      Sleep();
    }
  }
}

void Messenger::Sleep() {
  SegmentHeader* const header = segment_->header();
  const uint32_t bell = BellValue(*header);
  asleep_.store(true, std::memory_order_seq_cst);
  const bool others = pollers_.load(std::memory_order_seq_cst) > 0;
  const bool waiting = Waiting();
  if (!others) {
    header->sleeping.store(waiting ? kAsleep : kAsleepButForUrgent, std::memory_order_seq_cst);
  }
  // Between that store and the look into the rings; see RingIfAsleep.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  // The last look. Others may leave, and calls come, from here on: they see asleep_.
  if (!stopping_.load(std::memory_order_seq_cst) && (others || !HasWork())) {
    if (!waiting) next_check_ = Nanos(0);  // the next message that waits starts the looks again
    WaitForBell(header, bell, waiting ? kCheckEvery : kNever);
  }
  asleep_.store(false, std::memory_order_seq_cst);
  header->sleeping.store(kAwake, std::memory_order_seq_cst);
}

void Messenger::CheckLinks(Nanos now) {
  const Nanos silence = FromMillis(config_.peer_silence_ms);
  next_check_ = now + std::min(kCheckEvery, std::max(silence / 8, FromMillis(1)));
  for (Link* link : served_) {
    if (!link->Waiting()) continue;
    Deliveries deliveries;
    link->Check(now, &deliveries);
    Deliver(link, &deliveries);
  }
}

std::vector<Messenger::Unexpected> Messenger::Inspect() {
  std::vector<Unexpected> all;
  if (!connected_.load(std::memory_order_acquire)) return all;
  ServeAll(/*early=*/true);  // what nothing here waits for may still lie in the rings
  for (const Link* link : served_) {
    for (const core::MessageInfo& info : link->Unexpected()) all.push_back({link->peer(), info});
  }
  return all;
}

std::map<int32_t, LinkStats> Messenger::Stats() const {
  std::map<int32_t, LinkStats> stats;
  if (!connected_.load(std::memory_order_acquire)) return stats;
  for (const Link* link : served_) stats.emplace(ToInt(link->peer()), link->stats());
  return stats;
}

Status Messenger::Shutdown(Nanos timeout) {
  std::lock_guard lock(stop_mutex_);
  if (!connected_.load(std::memory_order_acquire) || stopping_.load(std::memory_order_seq_cst))
    return Status::Ok();
  const Nanos start = Now();
  // Far enough for "no limit", near enough not to overflow.
  const Nanos deadline = start + std::min<Nanos>(timeout, std::chrono::hours(24 * 365));
  const auto until = [&](const auto& done) {
    while (!std::ranges::all_of(served_, done)) {
      if (Now() >= deadline) return false;
      // The own thread works; this one only looks, seldom enough to cost nothing.
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return true;
  };
  Status outcome;
  if (!until([](const Link* link) { return link->Drained(); })) {
    std::string waiting;
    for (const Link* link : served_) {
      if (!link->Drained())
        waiting += (waiting.empty() ? "" : ", ") + std::to_string(ToInt(link->peer()));
    }
    outcome = Status::Error(StatusCode::kPeerTimeout,
                            "shutdown: not everything sent was taken by process " + waiting);
  }
  for (Link* link : served_) link->Leave();
  (void)until([](const Link* link) { return link->Left(); });  // a full ring: the peer is stuck
  stopping_.store(true, std::memory_order_seq_cst);
  RingBell(segment_->header());
  if (thread_.joinable()) thread_.join();
  // Callbacks on other threads end soon: they must not block.
  while (serving_.load(std::memory_order_seq_cst) > 0) std::this_thread::yield();
  const Status aborted = Status::Error(StatusCode::kAborted, "the engine was shut down");
  for (Link* link : served_) {
    link->Abort(aborted);
    Deliveries deliveries;
    link->Drain(&deliveries);
    Deliver(link, &deliveries);
  }
  return outcome;
}

}  // namespace uccl::shm
