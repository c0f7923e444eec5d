// The proxy around its threads: regions, tokens, what comes from the engine. See proxy.h.
#include "csrc/proxy/proxy.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "csrc/core/watch.h"
#include "csrc/engine/affinity.h"
#include "csrc/proxy/entry.h"
#include "csrc/proxy/fifo_queue.h"
#include "csrc/proxy/proxy_thread.h"
#include "csrc/proxy/put_note.h"

namespace uccl::proxy {
namespace {

// Tokens: bit 63 says whose they are; 62..60 what they are; 59..40 the entry, 39..0 a number.
enum class TokenKind : uint64_t { kSend = 0, kReceive = 1, kEmpty = 2, kLifeline = 3 };
constexpr uint32_t kMaxEntry = (1u << 20) - 1;
uint64_t MakeToken(TokenKind kind, uint32_t entry, uint64_t number) {
  return uint64_t{1} << 63 | static_cast<uint64_t>(kind) << 60 | uint64_t{entry} << 40 |
         (number & ((uint64_t{1} << 40) - 1));
}
TokenKind KindOf(uint64_t token) { return static_cast<TokenKind>(token >> 60 & 7); }
uint32_t EntryOf(uint64_t token) { return static_cast<uint32_t>(token >> 40) & kMaxEntry; }

using RegionName = std::pair<uint64_t, uint32_t>;  // key, rank

}  // namespace

struct Proxy::Impl final : Carrier {
  Impl(const Config& c, engine::Engine* e, ProcessId s)
      : config(c), engine(e), self(s), window(static_cast<uint32_t>(c.proxy_fifo_inflight)) {}

  // ---- Carrier ----
  bool IsLocal(ProcessId process) const override { return process == self; }
  bool in_use() const override { return uses.load(std::memory_order_seq_cst) > 0; }
  PeerLoad& LoadOf(ProcessId process) override {
    std::shared_lock lock(mutex);
    return *loads.at(ToInt(process));
  }
  std::shared_ptr<Entry> LocalEntry(uint64_t key, uint32_t rank) override {
    std::shared_lock lock(mutex);
    const auto it = by_name.find({key, rank});
    return it == by_name.end() ? nullptr : it->second;
  }
  void SendPut(Entry* entry, const PutNote& note, Bytes data) override {
    const ProcessId process = entry->region->ProcessOf(note.destination);
    core::MessageInfo info;
    // One number for all peers: unique for each. Relaxed: nothing hangs on it.
    info.tag = {core::kPutTagHi, next_tag.fetch_add(1, std::memory_order_relaxed)};
    info.digest = entry->region->key();
    info.size_bytes = data.size();
    info.note = EncodeNote(note);
    const uint64_t token = NewToken(TokenKind::kSend, entry->id);
    if (!entry->Hold(token, {process, true, note})) return;
    engine->Send(process, info, data, token);
    entry->HandedOver();
  }
  void EnterBarrier(Entry* entry, uint8_t channel) override {
    Carry(entry, entry->inbound.EnterBarrier(channel));
  }
  void OnQuietTime() override {
    std::vector<engine::Engine::Posted> posted;
    {
      std::unique_lock lock(mutex);
      if (in_use()) return;
      for (const auto& [process, token] : lifelines) {
        posted.push_back({ProcessId{process}, false, token, std::nullopt});
      }
      lifelines.clear();
    }
    if (!posted.empty()) engine->Cancel(std::move(posted), [] {});
  }

  // A receive that never completes, so that the transport looks after that peer. With one for each,
  // a lost peer is noticed although this process owes it nothing.
  void PostLifelines() {
    std::vector<std::pair<int32_t, uint64_t>> fresh;
    {
      std::unique_lock lock(mutex);
      for (const auto& [process, load] : loads) {
        if (ProcessId{process} == self || lost.contains(process)) continue;
        const uint64_t token = NewToken(TokenKind::kLifeline, 0);
        if (lifelines.emplace(process, token).second) fresh.emplace_back(process, token);
      }
    }
    for (const auto& [process, token] : fresh) {
      core::MessageInfo info;
      info.tag = core::WatchTag(next_tag.fetch_add(1, std::memory_order_relaxed));
      engine->PostRecv(ProcessId{process}, info, {}, token);
    }
  }

  uint64_t NewToken(TokenKind kind, uint32_t entry) {
    return MakeToken(kind, entry, next_token.fetch_add(1, std::memory_order_relaxed));
  }
  std::shared_ptr<Entry> EntryOfToken(uint64_t token) {
    std::shared_lock lock(mutex);
    const auto it = by_id.find(EntryOf(token));
    return it == by_id.end() ? nullptr : it->second;
  }
  void Discard(ProcessId peer, const core::MessageTag& tag) {
    engine->Cancel({{peer, false, 0, tag}}, [] {});
  }

  // Does what Inbound says.
  void Carry(Entry* entry, const Inbound::Answer& answer) {
    if (answer.raised) entry->region->WakeWaiters();
    for (const PutNote& note : answer.notes) {
      if (!IsLocal(entry->region->ProcessOf(note.destination))) {
        SendPut(entry, note, {});
      } else {
        core::MessageInfo info;
        info.digest = entry->region->key();
        info.note = EncodeNote(note);
        Arrive(self, info);
      }
    }
    if (answer.our_ack) {
      Fifo* const fifo = entry->FindFifo(answer.our_ack->fifo);
      if (fifo != nullptr) Tell(entry, fifo, ProxyThread::Event::Kind::kAck, *answer.our_ack);
    }
    if (answer.passed) {
      Fifo* fifo = nullptr;
      {
        std::lock_guard lock(entry->mutex);
        fifo = std::exchange(entry->in_barrier[*answer.passed], nullptr);
      }
      if (fifo != nullptr) Tell(entry, fifo, ProxyThread::Event::Kind::kBarrierPassed, {});
    }
  }
  void Tell(Entry* entry, Fifo* fifo, ProxyThread::Event::Kind kind, const PutNote& note) {
    std::shared_ptr<Fifo> owner;
    {
      std::lock_guard lock(entry->mutex);
      if (entry->closing) return;
      owner = entry->fifos.at(fifo->number);
    }
    fifo->thread->Push({kind, std::move(owner), note, nullptr});
  }

  // A put from `peer`, or a note between two ranks of this process.
  void Arrive(ProcessId peer, const core::MessageInfo& info) {
    const bool ours = peer == self;  // no message of the engine stands behind it
    Result<PutNote> decoded = DecodeNote(info.note, info.size_bytes);
    if (!decoded.ok()) {
      malformed.fetch_add(1, std::memory_order_relaxed);
      Discard(peer, info.tag);
      Status status = decoded.status();
      status.process = ToInt(peer);
      return FailProcess(peer, status, /*lost=*/false);
    }
    const PutNote& note = decoded.value();
    std::shared_ptr<Entry> entry = LocalEntry(info.digest, note.destination);
    if (entry == nullptr) {
      std::unique_lock lock(mutex);
      const RegionName name{info.digest, note.destination};
      const auto it = by_name.find(name);  // it may have been registered since
      if (it != by_name.end()) {
        entry = it->second;
      } else if (!closed.contains(name)) {
        // Its rank has not registered yet. Bounded by what the transport keeps for receives to
        // come.
        early[name].push_back({peer, info});
        return;
      }
    }
    if (entry == nullptr || entry->region->has_failed()) {
      if (!ours) Discard(peer, info.tag);
      return;
    }
    Result<Inbound::Verdict> verdict = entry->inbound.OnArrival(peer, note, info.size_bytes);
    if (!verdict.ok()) {
      malformed.fetch_add(1, std::memory_order_relaxed);
      if (!ours) Discard(peer, info.tag);
      Status status = verdict.status();
      status.process = ToInt(peer);
      return entry->region->Fail(status);
    }
    switch (verdict.value().what) {
      case Inbound::Verdict::What::kDrop:
        if (!ours) Discard(peer, info.tag);
        break;
      case Inbound::Verdict::What::kReceive: {
        const uint64_t token = NewToken(TokenKind::kReceive, entry->id);
        if (entry->Hold(token, {peer, false, note})) {
          engine->PostRecv(peer, info, verdict.value().buffer, token);
          entry->HandedOver();
        } else {
          Discard(peer, info.tag);
        }
        break;
      }
      case Inbound::Verdict::What::kDone:
        if (!ours) {
          engine->PostRecv(peer, info, {}, NewToken(TokenKind::kEmpty, entry->id));
        }
        break;
    }
    Carry(entry.get(), verdict.value().answer);
  }

  // With `lost`, regions that leave the judgement to the layer above go on.
  void FailProcess(ProcessId process, const Status& status, bool lost) {
    std::vector<std::shared_ptr<Entry>> concerned;
    {
      std::shared_lock lock(mutex);
      for (const auto& [name, entry] : by_name) {
        if (lost && !entry->region->fails_on_lost_peer()) continue;
        for (uint32_t rank = 0; rank < entry->region->ranks(); ++rank) {
          if (entry->region->ProcessOf(rank) != process) continue;
          concerned.push_back(entry);
          break;
        }
      }
    }
    for (const auto& entry : concerned) entry->region->Fail(status);
    for (const auto& thread : threads) thread->Push({});  // they stop the FIFOs
  }

  void Unregister(const std::shared_ptr<Entry>& entry) {
    std::vector<engine::Engine::Posted> posted;
    std::vector<std::shared_ptr<Fifo>> fifos;
    {
      std::lock_guard lock(entry->mutex);
      if (std::exchange(entry->closing, true)) return;
      fifos = entry->fifos;
    }
    entry->region->Fail(Status::Error(StatusCode::kAborted, "the region was unregistered"));
    // What is counted down by the threads that let go of FIFOs and by the engine.
    struct Left {
      std::mutex mutex;
      std::condition_variable changed;
      size_t count = 0;
      void Down() {
        std::lock_guard lock(mutex);
        --count;
        changed.notify_all();  // under the lock: the waiter owns this
      }
      void Wait() {
        std::unique_lock lock(mutex);
        changed.wait(lock, [this] { return count == 0; });
      }
    } left;
    left.count = fifos.size();
    for (const auto& fifo : fifos) {
      fifo->thread->Push({ProxyThread::Event::Kind::kRemove, fifo, {}, [&left] { left.Down(); }});
    }
    left.Wait();
    entry->AwaitHandedOver();
    {
      std::lock_guard lock(entry->mutex);
      for (const auto& [token, held] : entry->held) {
        posted.push_back({held.peer, held.is_send, token, std::nullopt});
      }
    }
    if (engine != nullptr) {
      left.count = 1;
      engine->Cancel(std::move(posted), [&left] { left.Down(); });
      left.Wait();
    }
    std::lock_guard lock(entry->mutex);
    entry->fifos.clear();  // they hold the entry
  }

  const Config config;
  engine::Engine* const engine;
  const ProcessId self;
  const uint32_t window;
  std::vector<std::unique_ptr<ProxyThread>> threads;  // fixed once started

  std::atomic<uint64_t> next_tag{1}, next_token{0}, malformed{0};
  // Counts are changed before threads are told, and looked at by them before they sleep.
  std::atomic<int> uses{0};

  struct Early {
    ProcessId peer;
    core::MessageInfo info;
  };
  std::shared_mutex mutex;  // guards all below
  std::map<RegionName, std::shared_ptr<Entry>> by_name;
  std::map<uint32_t, std::shared_ptr<Entry>> by_id;
  std::set<RegionName> closed;  // were registered, and are no more
  std::map<RegionName, std::deque<Early>> early;
  std::map<int32_t, std::unique_ptr<PeerLoad>> loads;  // by process; never erased
  std::map<int32_t, uint64_t> lifelines;               // tokens, by process
  std::map<int32_t, Status> lost;
  std::vector<std::shared_ptr<fifo::HostFifo>> memories;  // of FIFOs that are our own
  uint32_t next_entry = 0;
  size_t next_thread = 0;
};

Proxy::Proxy(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Proxy::~Proxy() { Shutdown(); }

Result<std::unique_ptr<Proxy>> Proxy::Start(const Config& config, engine::Engine* engine,
                                            ProcessId self) {
  const auto count = static_cast<int>(config.proxy_threads);
  const std::vector<int> allowed = engine::AllowedCpus();
  Result<std::vector<int>> cpus = engine::PlanCpus(config.proxy_cpus, allowed, count, ToInt(self),
                                                   "proxy_cpus", "JAX_UCCL_PROXY_CPUS");
  if (!cpus.ok()) return cpus.status();
  std::unique_ptr<Proxy> proxy(new Proxy(std::make_unique<Impl>(config, engine, self)));
  ThreadLimits limits;
  limits.fifo_inflight = config.proxy_fifo_inflight;
  limits.peer_inflight = config.proxy_peer_inflight;
  limits.spin = FromMicros(config.spin_us);
  limits.nap = FromMicros(config.proxy_nap_us);
  for (int i = 0; i < count; ++i) {
    proxy->impl_->threads.push_back(
        std::make_unique<ProxyThread>(proxy->impl_.get(), limits, i == 0));
    const Status status = proxy->impl_->threads.back()->Start(
        cpus.value().empty() ? -1 : cpus.value()[static_cast<size_t>(i)]);
    if (!status.ok()) return status;
  }
  return proxy;
}

Result<std::shared_ptr<Region>> Proxy::RegisterRegion(RegionOptions options) {
  Impl& impl = *impl_;
  Result<std::shared_ptr<Region>> region = Region::Make(std::move(options));
  if (!region.ok()) return region.status();
  const Region& r = *region.value();
  if (r.ProcessOf(r.rank()) != impl.self) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "region: rank " + std::to_string(r.rank()) + " belongs to process " +
                             std::to_string(ToInt(r.ProcessOf(r.rank()))) + ", not to this one (" +
                             std::to_string(ToInt(impl.self)) + ")");
  }
  if (impl.engine == nullptr) {
    for (uint32_t rank = 0; rank < r.ranks(); ++rank) {
      if (r.ProcessOf(rank) == impl.self) continue;
      return Status::Error(StatusCode::kInvalidArgument,
                           "region: rank " + std::to_string(rank) + " belongs to process " +
                               std::to_string(ToInt(r.ProcessOf(rank))) +
                               ", and this proxy has no engine to reach it");
    }
  }
  const RegionName name{r.key(), r.rank()};
  std::deque<Impl::Early> early;
  Status lost;
  {
    std::unique_lock lock(impl.mutex);
    if (impl.by_name.contains(name) || impl.closed.contains(name)) {
      return Status::Error(StatusCode::kInvalidArgument,
                           "region: rank " + std::to_string(r.rank()) +
                               " has registered one under this key before; every region of a "
                               "communicator needs a key of its own");
    }
    if (impl.next_entry > kMaxEntry) {
      return Status::Error(
          StatusCode::kResourceExhausted,
          "a process registers at most " + std::to_string(kMaxEntry + 1) + " regions");
    }
    for (uint32_t rank = 0; rank < r.ranks(); ++rank) {
      const int32_t process = ToInt(r.ProcessOf(rank));
      auto& load = impl.loads[process];
      if (load == nullptr) load = std::make_unique<PeerLoad>();
      if (const auto it = impl.lost.find(process); it != impl.lost.end()) {
        lost = it->second;
        load->lost.store(true, std::memory_order_relaxed);
      }
    }
    auto entry = std::make_shared<Entry>(impl.next_entry++, region.value(), impl.window);
    impl.by_name[name] = entry;
    impl.by_id[entry->id] = entry;
    if (const auto it = impl.early.find(name); it != impl.early.end()) {
      early = std::move(it->second);
      impl.early.erase(it);
    }
  }
  if (!lost.ok() && r.fails_on_lost_peer()) region.value()->Fail(lost);
  if (impl.in_use()) impl.PostLifelines();
  for (const Impl::Early& put : early) impl.Arrive(put.peer, put.info);
  return region;
}

void Proxy::UnregisterRegion(const std::shared_ptr<Region>& region) {
  const std::shared_ptr<Entry> entry = impl_->LocalEntry(region->key(), region->rank());
  if (entry == nullptr || entry->region != region) return;
  impl_->Unregister(entry);
  std::unique_lock lock(impl_->mutex);
  impl_->by_name.erase({region->key(), region->rank()});
  impl_->by_id.erase(entry->id);
  impl_->closed.insert({region->key(), region->rank()});
}

Status Proxy::OpenFifo(const std::shared_ptr<Region>& region, std::span<const fifo::Slot> slots,
                       fifo::FifoControl* control) {
  const std::shared_ptr<Entry> entry = impl_->LocalEntry(region->key(), region->rank());
  if (entry == nullptr || entry->region != region || slots.empty()) {
    return Status::Error(StatusCode::kInvalidArgument,
                         slots.empty() ? "a FIFO without slots" : "the region is not registered");
  }
  ProxyThread* thread = nullptr;
  {
    std::unique_lock lock(impl_->mutex);
    thread = impl_->threads[impl_->next_thread++ % impl_->threads.size()].get();
  }
  std::shared_ptr<Fifo> fifo;
  {
    std::lock_guard lock(entry->mutex);
    if (entry->closing || entry->fifos.size() > 0xffff) {
      return Status::Error(StatusCode::kResourceExhausted,
                           entry->closing ? "the region is being unregistered"
                                          : "a rank has at most 65536 FIFOs in a region");
    }
    fifo = std::make_shared<Fifo>(entry, static_cast<uint16_t>(entry->fifos.size()), thread, slots,
                                  control);
    entry->fifos.push_back(fifo);
  }
  thread->Push({ProxyThread::Event::Kind::kAdd, std::move(fifo), {}, nullptr});
  return Status::Ok();
}

Result<fifo::FifoView> Proxy::OpenFifo(const std::shared_ptr<Region>& region, size_t capacity) {
  auto made = fifo::HostFifo::Make(capacity);
  if (!made.ok()) return made.status();
  std::shared_ptr<fifo::HostFifo> memory = std::move(made.value());
  Status status = OpenFifo(region, memory->slots(), memory->control());
  if (!status.ok()) return status;
  // Producers may come late: their memory lives as long as the proxy.
  std::unique_lock lock(impl_->mutex);
  impl_->memories.push_back(memory);
  return memory->view();
}

Proxy::Use::Use(Proxy* proxy) : proxy_(proxy) {
  Impl& impl = *proxy->impl_;
  if (impl.uses.fetch_add(1, std::memory_order_seq_cst) > 0) return;
  impl.PostLifelines();
  for (const auto& thread : impl.threads) thread->Push({});
}
Proxy::Use::~Use() { proxy_->impl_->uses.fetch_sub(1, std::memory_order_seq_cst); }

void Proxy::OnMessage(ProcessId peer, const core::Event& event) {
  const TokenKind kind = KindOf(event.token);
  if (kind == TokenKind::kEmpty || kind == TokenKind::kLifeline) {
    if (kind == TokenKind::kEmpty) return;
    std::unique_lock lock(impl_->mutex);
    const auto it = impl_->lifelines.find(ToInt(peer));
    if (it != impl_->lifelines.end() && it->second == event.token) impl_->lifelines.erase(it);
    return;
  }
  const std::shared_ptr<Entry> entry = impl_->EntryOfToken(event.token);
  Entry::Held held;
  if (entry == nullptr || !entry->Release(event.token, &held)) return;
  if (!event.status.ok() || event.kind == core::EventKind::kMismatch) {
    const Status status = event.status.ok()
                              ? Status::Error(StatusCode::kProtocol, "a put changed under way")
                              : event.status;
    // The connection died, and OnPeerLost says so.
    if (!event.status.ok() && !entry->region->fails_on_lost_peer()) return;
    return entry->region->Fail(status);
  }
  if (!held.is_send) impl_->Carry(entry.get(), entry->inbound.OnLanded(held.note));
}

void Proxy::OnArrival(ProcessId peer, const core::MessageInfo& info) { impl_->Arrive(peer, info); }

void Proxy::OnPeerLost(ProcessId peer, const Status& status) {
  PeerLoad* load = nullptr;
  {
    std::unique_lock lock(impl_->mutex);
    impl_->lost.emplace(ToInt(peer), status);
    if (const auto it = impl_->loads.find(ToInt(peer)); it != impl_->loads.end()) {
      load = it->second.get();
      load->lost.store(true, std::memory_order_relaxed);
    }
    impl_->lifelines.erase(ToInt(peer));
    for (auto& [name, puts] : impl_->early) {
      std::erase_if(puts, [&](const Impl::Early& put) { return put.peer == peer; });
    }
  }
  impl_->FailProcess(peer, status, /*lost=*/true);
  for (const auto& thread : impl_->threads) {
    ProxyThread::Event event;
    event.kind = ProxyThread::Event::Kind::kLost;
    event.load = load;
    if (load != nullptr) thread->Push(std::move(event));
  }
}

void Proxy::StopWatching() { impl_->OnQuietTime(); }

ProxyStats Proxy::Stats() const {
  ProxyStats all;
  for (const auto& thread : impl_->threads) {
    const ThreadStats& s = thread->stats();
    all.commands += s.commands;
    all.puts += s.puts;
    all.put_bytes += s.put_bytes;
    all.local_puts += s.local_puts;
    all.stalls += s.stalls;
    all.sleeps += s.sleeps;
    all.naps += s.naps;
    all.ack_requests += s.ack_requests;
  }
  all.malformed = impl_->malformed;
  std::shared_lock lock(impl_->mutex);
  for (const auto& [name, entry] : impl_->by_name) all.duplicates += entry->inbound.duplicates();
  return all;
}

void Proxy::Shutdown() {
  std::vector<std::shared_ptr<Region>> regions;
  {
    std::shared_lock lock(impl_->mutex);
    for (const auto& [name, entry] : impl_->by_name) regions.push_back(entry->region);
  }
  for (const auto& region : regions) UnregisterRegion(region);
  impl_->OnQuietTime();
  for (const auto& thread : impl_->threads) thread->Stop();
}

}  // namespace uccl::proxy
