// Turns and commands of a proxy thread. See proxy_thread.h.
#include "csrc/proxy/proxy_thread.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "csrc/base/quiet_thread.h"

namespace uccl::proxy {
namespace {

using fifo::Command;
using fifo::CommandKind;

// Without a Use for so long, peers are no longer watched.
constexpr Nanos kQuietTime = FromMillis(100);
// The longest nap, in first ones.
constexpr int kMostNaps = 50;

Nanos Now() { return std::chrono::steady_clock::now().time_since_epoch(); }

void Count(std::atomic<uint64_t>* count, uint64_t by = 1) {
  count->fetch_add(by, std::memory_order_relaxed);
}

Status Refuse(const Command& c, const std::string& what) {
  return Status::Error(StatusCode::kInvalidArgument,
                       std::string("FIFO command ") + fifo::CommandKindName(c.kind) + ": " + what);
}

// Whether the command means memory and counters that exist. Regions are symmetric, so this side's
// sizes hold for the peer's.
Status Check(const Region& region, const Command& c) {
  if (fifo::HasPeer(c.kind) && c.peer >= region.ranks()) {
    return Refuse(c, "peer " + std::to_string(c.peer) + " of a communicator of " +
                         std::to_string(region.ranks()) + " ranks");
  }
  const uint64_t size = region.memory().size();
  for (const uint64_t offset : {c.source_offset, c.destination_offset}) {
    if (offset > size || c.bytes > size - offset) {
      return Refuse(c, std::to_string(c.bytes) + " bytes at offset " + std::to_string(offset) +
                           " of a region of " + std::to_string(size));
    }
  }
  if (fifo::HasCounter(c.kind) && c.counter >= region.counters().size()) {
    return Refuse(c, "counter " + std::to_string(c.counter) + " of " +
                         std::to_string(region.counters().size()));
  }
  return Status::Ok();
}

}  // namespace

ProxyThread::ProxyThread(Carrier* carrier, const ThreadLimits& limits, bool first)
    : carrier_(carrier), limits_(limits), first_(first), spin_(limits.spin), nap_(limits.nap) {}

Status ProxyThread::Start(int cpu) {
  Result<std::thread> thread = StartQuietThread("a proxy thread", [this] { Run(); });
  if (!thread.ok()) return thread.status();
  thread_ = std::move(thread.value());
  return cpu < 0 ? Status::Ok() : BindThread(&thread_, cpu, "proxy_cpus", "a proxy thread");
}

void ProxyThread::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    any_events_.store(true, std::memory_order_relaxed);
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void ProxyThread::Push(Event event) {
  {
    std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    any_events_.store(true, std::memory_order_relaxed);
  }
  changed_.notify_one();
}

void ProxyThread::Run() {
  pthread_setname_np(pthread_self(), "uccl-proxy");
  while (true) {
    const Nanos now = Now();
    bool worked = false;
    // Before the look into the FIFOs: what was pushed under a Use that has ended by now is seen in
    // this turn, and one that begins later rings (an event). Asked only when about to sleep, a
    // command pushed behind the look would lie there until the next Use.
    const bool in_use = carrier_->in_use();
    // Relaxed: the mutex orders what matters, and a hint that comes late comes with the next turn.
    if (any_events_.load(std::memory_order_relaxed)) {
      worked = TakeEvents();
      std::lock_guard lock(mutex_);
      if (stopping_ && events_.empty()) return;
    }
    for (const auto& fifo : fifos_) worked |= Step(fifo.get());
    if (worked) {
      spin_.OnWork(now);
      nap_ = limits_.nap;
    } else if (spin_.OnIdle(now)) {
      yield_.OnIdleTurn(&spin_);
    } else {
      Sleep(in_use);
    }
  }
}

void ProxyThread::Sleep(bool in_use) {
  // What is in flight must not wait for a quarter of the window to fill: another FIFO may wait for
  // the same peer's cap.
  bool asked = false, pending = false;
  for (const auto& fifo : fifos_) {
    asked |= RequestAcks(fifo.get());
    pending |= fifo->stalled && !fifo->stopped;
  }
  if (asked) return;
  const bool nap = pending || in_use;
  Count(nap ? &stats_.naps : &stats_.sleeps);
  std::unique_lock lock(mutex_);
  const auto rung = [this] { return !events_.empty() || stopping_; };
  if (nap) {
    changed_.wait_for(lock, nap_, rung);
    // Longer and longer, so that a long wait costs little.
    nap_ = std::min(nap_ * 2, limits_.nap * kMostNaps);
  } else if (!first_ || changed_.wait_for(lock, kQuietTime, rung)) {
    changed_.wait(lock, rung);
  } else {
    lock.unlock();
    if (!carrier_->in_use()) carrier_->OnQuietTime();
    lock.lock();
    changed_.wait(lock, [&] { return rung() || carrier_->in_use(); });
  }
}

bool ProxyThread::TakeEvents() {
  {
    std::lock_guard lock(mutex_);
    taken_.swap(events_);
    if (!stopping_) any_events_.store(false, std::memory_order_relaxed);
  }
  for (Event& event : taken_) {
    Fifo* const fifo = event.fifo.get();
    switch (event.kind) {
      case Event::Kind::kWake:
        break;
      case Event::Kind::kAdd:
        fifos_.push_back(std::move(event.fifo));
        break;
      case Event::Kind::kRemove:
        StopFifo(fifo);
        std::erase(fifos_, event.fifo);
        event.done();
        break;
      case Event::Kind::kAck:
        OnAck(fifo, event.note);
        break;
      case Event::Kind::kLost:
        for (const auto& each : fifos_) OnLost(each.get(), event.load);
        break;
      case Event::Kind::kBarrierPassed:
        fifo->barrier = Fifo::Barrier::kPassed;
        break;
    }
  }
  const bool any = !taken_.empty();
  taken_.clear();
  return any;
}

void ProxyThread::OnAck(Fifo* fifo, const PutNote& note) {
  const auto it = fifo->streams.find(Fifo::StreamKey(note.source, note.channel));
  const uint32_t sent = it == fifo->streams.end() ? 0 : it->second.next - it->second.acked;
  const uint32_t news = it == fifo->streams.end() ? 0 : note.number - it->second.acked;
  if (it != fifo->streams.end() && static_cast<int32_t>(news) <= 0) return;  // overtaken by another
  if (news > sent || it == fifo->streams.end()) {
    Status status =
        Status::Error(StatusCode::kProtocol, "rank " + std::to_string(note.source) +
                                                 " acknowledges puts that were never sent to it");
    status.peer = note.source;
    return fifo->entry->region->Fail(status);
  }
  it->second.acked = note.number;
  if (static_cast<int32_t>(it->second.requested - note.number) < 0) {
    it->second.requested = note.number;
  }
  fifo->in_flight -= news;
  // Relaxed: a limit, no data hangs on it.
  it->second.load->in_flight.fetch_sub(news, std::memory_order_relaxed);
}

void ProxyThread::OnLost(Fifo* fifo, PeerLoad* load) {
  for (auto& [key, stream] : fifo->streams) {
    if (stream.load != load) continue;
    const uint32_t count = stream.next - stream.acked;
    stream.acked = stream.requested = stream.next;
    fifo->in_flight -= count;
    load->in_flight.fetch_sub(count, std::memory_order_relaxed);
  }
}

void ProxyThread::StopFifo(Fifo* fifo) {
  if (std::exchange(fifo->stopped, true)) return;
  fifo->consumer.Stop();
  // What it has in flight is nobody's any more; the caps are for those that go on.
  for (const auto& [key, stream] : fifo->streams) {
    stream.load->in_flight.fetch_sub(stream.next - stream.acked, std::memory_order_relaxed);
  }
  fifo->streams.clear();
  fifo->in_flight = 0;
}

// False when there was nothing to do.
bool ProxyThread::Step(Fifo* fifo) {
  if (fifo->stopped) return false;
  if (fifo->entry->region->has_failed()) {
    StopFifo(fifo);
    return true;
  }
  bool worked = false;
  if (fifo->batch_next == fifo->batch_size) {
    fifo->batch_size = fifo->consumer.Poll(fifo->batch);
    fifo->batch_next = 0;
  }
  const size_t first = fifo->batch_next;
  while (fifo->batch_next < fifo->batch_size) {
    Command command;
    const fifo::CommandWords& words = fifo->batch[fifo->batch_next];
    if (fifo::DecodeCommand(words, &command) != fifo::CommandFault::kNone) {
      fifo->entry->region->Fail(fifo::DecodeChecked(words).status());
      return true;
    }
    const Outcome outcome = Carry(fifo, command);
    if (outcome == Outcome::kFailed) return true;
    if (outcome == Outcome::kWait) {
      if (!std::exchange(fifo->stalled, true)) Count(&stats_.stalls);
      worked |= RequestAcks(fifo);
      break;
    }
    fifo->stalled = false;
    ++fifo->batch_next;
  }
  Count(&stats_.commands, fifo->batch_next - first);
  return worked || fifo->batch_next > first;
}

ProxyThread::Outcome ProxyThread::Carry(Fifo* fifo, const Command& command) {
  Region& region = *fifo->entry->region;
  if (!fifo->stalled) {
    const Status status = Check(region, command);
    if (!status.ok()) {
      region.Fail(status);
      return Outcome::kFailed;
    }
  }
  switch (command.kind) {
    case CommandKind::kWrite:
    case CommandKind::kWriteCount:
    case CommandKind::kCount:
      return carrier_->IsLocal(region.ProcessOf(command.peer)) ? CarryLocally(fifo, command)
                                                               : CarryPut(fifo, command);
    case CommandKind::kQuiet:
      if (fifo->in_flight > 0) return Outcome::kWait;
      region.Add(command.counter, command.amount);
      return Outcome::kDone;
    case CommandKind::kBarrier:
      return CarryBarrier(fifo, command);
  }
  return Outcome::kDone;
}

ProxyThread::Outcome ProxyThread::CarryPut(Fifo* fifo, const Command& command) {
  Entry& entry = *fifo->entry;
  Fifo::Stream& stream = fifo->streams[Fifo::StreamKey(command.peer, command.channel)];
  if (stream.load == nullptr) {
    stream.load = &carrier_->LoadOf(entry.region->ProcessOf(command.peer));
  }
  // Nobody is there to take it; where that matters, the region has failed.
  if (stream.load->lost.load(std::memory_order_relaxed)) return Outcome::kDone;
  if (fifo->in_flight >= limits_.fifo_inflight ||
      stream.load->in_flight.load(std::memory_order_relaxed) >= limits_.peer_inflight) {
    return Outcome::kWait;
  }
  PutNote note;
  note.kind = static_cast<PutKind>(command.kind);
  note.channel = static_cast<uint8_t>(command.channel);
  note.fifo = fifo->number;
  note.number = stream.next++;
  note.source = entry.region->rank();
  note.destination = command.peer;
  note.offset = command.destination_offset;
  note.counter = command.counter;
  note.amount = command.amount;
  ++fifo->in_flight;
  // Relaxed: a limit, and several threads may pass it by one put each.
  stream.load->in_flight.fetch_add(1, std::memory_order_relaxed);
  Count(&stats_.puts);
  Count(&stats_.put_bytes, command.bytes);
  carrier_->SendPut(&entry, note,
                    entry.region->memory().subspan(command.source_offset, command.bytes));
  return Outcome::kDone;
}
static_assert(static_cast<int>(PutKind::kWrite) == static_cast<int>(CommandKind::kWrite) &&
              static_cast<int>(PutKind::kWriteCount) ==
                  static_cast<int>(CommandKind::kWriteCount) &&
              static_cast<int>(PutKind::kCount) == static_cast<int>(CommandKind::kCount));

// Earlier puts of this FIFO to a rank of this process are in place already: copies are made in the
// order of the commands.
ProxyThread::Outcome ProxyThread::CarryLocally(Fifo* fifo, const Command& command) {
  Region& from = *fifo->entry->region;
  const std::shared_ptr<Entry> to = carrier_->LocalEntry(from.key(), command.peer);
  if (to == nullptr) return Outcome::kWait;
  const uint64_t size = to->region->memory().size();
  if (command.destination_offset > size || command.bytes > size - command.destination_offset ||
      (command.amount > 0 && command.counter >= to->region->counters().size())) {
    from.Fail(Refuse(command, "the region of rank " + std::to_string(command.peer) +
                                  " is smaller than that of rank " + std::to_string(from.rank())));
    return Outcome::kFailed;
  }
  if (command.bytes > 0) {
    // memmove: a rank may put to itself.
    std::memmove(to->region->memory().data() + command.destination_offset,
                 from.memory().data() + command.source_offset, command.bytes);
  }
  if (command.amount > 0) to->region->Add(command.counter, command.amount);
  Count(&stats_.local_puts);
  return Outcome::kDone;
}

ProxyThread::Outcome ProxyThread::CarryBarrier(Fifo* fifo, const Command& command) {
  Entry& entry = *fifo->entry;
  if (fifo->barrier == Fifo::Barrier::kNone) {
    if (fifo->in_flight > 0) return Outcome::kWait;
    {
      std::lock_guard lock(entry.mutex);
      Fifo*& in_barrier = entry.in_barrier[command.channel];
      if (in_barrier != nullptr) return Outcome::kWait;  // another FIFO's; ours is the next one
      in_barrier = fifo;
    }
    fifo->barrier = Fifo::Barrier::kUnderWay;
    carrier_->EnterBarrier(&entry, static_cast<uint8_t>(command.channel));
  }
  if (fifo->barrier != Fifo::Barrier::kPassed) return Outcome::kWait;
  fifo->barrier = Fifo::Barrier::kNone;
  entry.region->Add(command.counter, command.amount);
  return Outcome::kDone;
}

// Asks for what is not acknowledged and was not asked for. Whether there was anything.
bool ProxyThread::RequestAcks(Fifo* fifo) {
  if (fifo->in_flight == 0) return false;
  bool any = false;
  for (auto& [key, stream] : fifo->streams) {
    if (stream.acked == stream.next || stream.requested == stream.next) continue;
    stream.requested = stream.next;
    PutNote note;
    note.kind = PutKind::kAckRequest;
    note.channel = static_cast<uint8_t>(key & 63);
    note.fifo = fifo->number;
    note.number = stream.next;
    note.source = fifo->entry->region->rank();
    note.destination = key >> 6;
    carrier_->SendPut(fifo->entry.get(), note, {});
    Count(&stats_.ack_requests);
    any = true;
  }
  return any;
}

}  // namespace uccl::proxy
