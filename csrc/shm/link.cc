// The side of the callers: sends, receives, withdrawals. What comes through the rings is in
// link_records.cc, how a link ends in link_end.cc.
#include "csrc/shm/link.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "csrc/base/copy.h"
#include "csrc/shm/doorbell.h"

namespace uccl::shm {
namespace {

// Of one fetch that a thread copies before it looks for other work: long enough to hide what it
// takes to claim it, short enough that a small message waits some 100 us.
constexpr uint64_t kPieceBytes = 1 << 20;
// Of a message that a record takes at most: the reader copies the first out while the writer copies
// the next in.
constexpr size_t kPartBytes = 16 << 10;
// From so many bytes on they go past the writer's cache: the next to touch them is the reader, on
// another core.
constexpr size_t kStreamFrom = 8 << 10;
// In fragments, written in one go.
constexpr size_t kStreamedPerTurn = 64 << 10;
// Operations that were given up before they began are remembered so long.
constexpr size_t kMaxDiscarded = 65'536;

// Into the ring, before a commit.
void StorePart(std::byte* to, Bytes from) {
  if (from.size() < kStreamFrom) return CopyBytes(to, from.data(), from.size());
  StreamBytes(to, from.data(), from.size());
  StreamFence();
}

}  // namespace

Link::Link(const LinkOptions& options, std::unique_ptr<Segment> theirs,
           std::unique_ptr<PeerProcess> process, RingReader incoming)
    : options_(options),
      theirs_(std::move(theirs)),
      process_(std::move(process)),
      reader_(incoming) {
  const uint32_t slot = theirs_->first_slot();
  RingHeader* const header = theirs_->ring(slot);
  writer_ = RingWriter(header, theirs_->data(slot), theirs_->ring_bytes());
  header->session.store(options_.session, std::memory_order_release);
  stats_.one_copy = options_.one_copy;
}

void Link::Send(const core::MessageInfo& info, Bytes data, uint64_t token) {
  const Locked lock(this);
  if (failed_ || left_) {
    Report(core::EventKind::kSendDone, token, failed_ ? failure_ : ShutDownStatus());
    return;
  }
  Outgoing out{Outgoing::State::kQueued, info, data, token, 0, nullptr};
  const uint64_t id = next_id_++;
  const Eager eager = backlog_.empty() ? WriteEager(id, &out) : Eager::kNoRoom;
  if (eager != Eager::kWhole) {
    outgoing_.emplace(id, std::move(out));
    if (eager != Eager::kBegun) Queue({RecordKind::kMessage, id, {}});
    if (!streams_.empty()) (void)Flush();
  }
  Publish();
}

void Link::PostRecv(const core::MessageInfo& info, MutableBytes buffer, uint64_t token,
                    bool borrow) {
  const Locked lock(this);
  if (failed_) return Report(core::EventKind::kRecvDone, token, failure_);
  const Posted posted{info, buffer, token, borrow};
  const auto it = kept_.find(info.tag);
  if (it == kept_.end()) {
    // Records keep their order, so nothing of a peer that has left is still to come.
    if (left_) return Report(core::EventKind::kRecvDone, token, ShutDownStatus());
    posted_.emplace(info.tag, posted);
    return;
  }
  const Kept kept = std::move(it->second);
  kept_.erase(it);
  if (kept.offered) {
    Accept(posted, kept);
    Publish();
    return;
  }
  Release(kept);
  if (kept.whole()) return Place(posted, kept.info, kept.bytes);
  Begin(posted, kept.info, kept.id, kept.bytes);
  Publish();
}

bool Link::Cancel(bool is_send, uint64_t token, std::function<void()> freed) {
  const Locked lock(this);
  Silence(token);
  if (is_send) {
    const auto it = std::ranges::find_if(
        outgoing_, [&](const auto& entry) { return entry.second.token == token; });
    if (it == outgoing_.end()) return true;
    const uint64_t id = it->first;
    Outgoing& out = it->second;
    if (out.state == Outgoing::State::kOffered) {
      // The peer may be reading it.
      out.state = Outgoing::State::kWithdrawn;
      out.freed = std::move(freed);
      Queue({RecordKind::kWithdraw, id, {}});
      Publish();
      return false;
    }
    if (out.state == Outgoing::State::kWithdrawn) {
      out.freed = [first = std::move(out.freed), freed = std::move(freed)] {
        if (first) first();
        if (freed) freed();
      };
      return false;
    }
    const bool begun = out.state == Outgoing::State::kStreaming;
    outgoing_.erase(it);
    std::erase(streams_, id);
    std::erase_if(backlog_, [&](const Note& note) {
      return note.kind == RecordKind::kMessage && note.id == id;
    });
    if (begun) {
      Queue({RecordKind::kWithdraw, id, {}});
      Publish();
    }
    return true;
  }
  std::erase_if(posted_, [&](const auto& entry) { return entry.second.token == token; });
  const auto it = std::ranges::find_if(
      fetches_, [&](const auto& entry) { return entry.second.token == token; });
  if (it == fetches_.end()) return true;
  Fetch& fetch = it->second;
  fetch.cancelled = true;
  const uint64_t id = it->first;
  if (std::erase(to_copy_, id) > 0) pieces_.fetch_sub(1, std::memory_order_seq_cst);
  if (fetch.copying > 0) {
    fetch.freed = std::move(freed);
    return false;
  }
  fetches_.erase(it);
  if (!failed_) {
    Queue({RecordKind::kDropped, id, {}});
    Publish();
  }
  return true;
}

void Link::Discard(const core::MessageTag& tag) {
  const Locked lock(this);
  if (failed_) return;
  if (const auto it = kept_.find(tag); it != kept_.end()) {
    if (!it->second.whole()) Queue({RecordKind::kDropped, it->second.id, {}});
    if (!it->second.offered) Release(it->second);
    kept_.erase(it);
    Publish();
    return;
  }
  if (!discarded_.insert(tag).second) return;
  discarded_order_.push_back(tag);
  if (discarded_order_.size() <= kMaxDiscarded) return;
  discarded_.erase(discarded_order_.front());
  discarded_order_.pop_front();
}

void Link::SendControl(std::string control) {
  const Locked lock(this);
  if (failed_ || left_ || leaving_) return;
  const uint64_t id = next_id_++;
  if (control.size() > kMaxControlBytes) control.resize(kMaxControlBytes);
  controls_.emplace(id, std::move(control));
  Queue({RecordKind::kControl, id, {}});
  // Also where nobody there waits for anything.
  RingBell(theirs_->header());
}

void Link::ControlTaken(uint64_t token) {
  const Locked lock(this);
  if (failed_) return;
  Queue({RecordKind::kDone, token, {}});
  Publish();
}

// Removes the token's event, if it waits to be handed out.
void Link::Silence(uint64_t token) {
  std::erase_if(ready_.events, [&](const core::Event& event) {
    return event.token == token && event.kind != core::EventKind::kFailed &&
           event.kind != core::EventKind::kControl;
  });
}

// Writes the record now, or when there is room; records keep their order.
void Link::Queue(const Note& note) {
  if (backlog_.empty() && Write(note)) return;
  if (backlog_.empty()) ++stats_.ring_full;
  backlog_.push_back(note);
  if (backlog_.size() == 1) (void)Flush();  // announces that this side waits
}

bool Link::Write(const Note& note) {
  switch (note.kind) {
    case RecordKind::kMessage:
      return WriteMessage(note.id);
    case RecordKind::kControl: {
      const auto it = controls_.find(note.id);
      if (it == controls_.end()) return true;
      std::byte* const body =
          writer_.Reserve(static_cast<uint32_t>(note.kind), note.id, it->second.size());
      if (body == nullptr) return false;
      std::memcpy(body, it->second.data(), it->second.size());
      break;
    }
    case RecordKind::kRefused: {
      std::byte* const body =
          writer_.Reserve(static_cast<uint32_t>(note.kind), note.id, sizeof(RecordInfo));
      if (body == nullptr) return false;
      std::memcpy(body, &note.info, sizeof(RecordInfo));
      break;
    }
    default:
      if (writer_.Reserve(static_cast<uint32_t>(note.kind), note.id, 0) == nullptr) return false;
      break;
  }
  Commit(/*urgent=*/true);
  return true;
}

void Link::Commit(bool urgent) {
  writer_.Commit();
  if (urgent) writer_.Urge();
  published_ = true;
  published_urgent_ |= urgent;
}

// Of a message, in one record with so much before them.
size_t Link::PartBytes(size_t overhead) const {
  return std::min(kPartBytes, writer_.max_body() - overhead);
}

// A message that may go without having been asked for, or its first part.
Link::Eager Link::WriteEager(uint64_t id, Outgoing* out) {
  const size_t size = out->data.size();
  const int64_t cost = static_cast<int64_t>(size) + kKeptOverheadBytes;
  // Relaxed: a count of bytes, no data hangs on it.
  const uint64_t returned = writer_.header()->eager_returned.load(std::memory_order_relaxed);
  const auto kept = static_cast<int64_t>(eager_sent_ - returned);
  if (size > options_.eager_max_bytes || kept + cost > theirs_->header()->eager_buffer_bytes)
    return Eager::kNot;
  const RecordInfo info = ToRecord(out->info);
  const size_t first = std::min(size, PartBytes(sizeof(info)));
  std::byte* const at =
      writer_.Reserve(static_cast<uint32_t>(RecordKind::kMessage), id, sizeof(info) + first);
  if (at == nullptr) return Eager::kNoRoom;
  std::memcpy(at, &info, sizeof(info));
  StorePart(at + sizeof(info), out->data.first(first));
  Commit(/*urgent=*/core::IsPut(out->info.tag));
  eager_sent_ += static_cast<uint64_t>(cost);
  if (first == size) {
    Sent(*out);
    return Eager::kWhole;
  }
  out->state = Outgoing::State::kStreaming;
  out->streamed = first;
  stats_.fragment_bytes += first;
  streams_.push_back(id);
  return Eager::kBegun;
}

bool Link::WriteMessage(uint64_t id) {
  const auto it = outgoing_.find(id);
  if (it == outgoing_.end()) return true;  // cancelled
  Outgoing& out = it->second;
  switch (WriteEager(id, &out)) {
    case Eager::kWhole:
      outgoing_.erase(it);
      return true;
    case Eager::kBegun:
      return true;
    case Eager::kNoRoom:
      return false;
    case Eager::kNot:
      break;
  }
  std::byte* const at =
      writer_.Reserve(static_cast<uint32_t>(RecordKind::kOffer), id, sizeof(OfferBody));
  if (at == nullptr) return false;
  const OfferBody offer{ToRecord(out.info), reinterpret_cast<uint64_t>(out.data.data())};
  std::memcpy(at, &offer, sizeof(offer));
  Commit(/*urgent=*/core::IsPut(out.info.tag));
  out.state = Outgoing::State::kOffered;
  return true;
}

// Fragments of messages that were begun, or that the receiver asked for. False when none could be
// written.
bool Link::Stream() {
  bool any = false;
  for (size_t written = 0; written < kStreamedPerTurn && !streams_.empty();) {
    const uint64_t id = streams_.front();
    Outgoing& out = outgoing_.at(id);
    const size_t bytes =
        std::min<size_t>(PartBytes(sizeof(FragmentBody)), out.data.size() - out.streamed);
    std::byte* const at = writer_.Reserve(static_cast<uint32_t>(RecordKind::kFragment), id,
                                          sizeof(FragmentBody) + bytes);
    if (at == nullptr) break;
    const FragmentBody fragment{out.streamed};
    std::memcpy(at, &fragment, sizeof(fragment));
    StorePart(at + sizeof(fragment), out.data.subspan(out.streamed, bytes));
    Commit(/*urgent=*/false);
    any = true;
    written += bytes;
    out.streamed += bytes;
    stats_.fragment_bytes += bytes;
    streams_.pop_front();
    if (out.streamed < out.data.size()) {
      streams_.push_back(id);  // in turn, so that a long one does not hold up a short one
      continue;
    }
    Sent(out);
    outgoing_.erase(id);
  }
  return any;
}

// Writes what waits for room. Afterwards either nothing waits, or the reader knows that we do.
bool Link::Flush() {
  bool any = false;
  for (bool announced = false;;) {
    while (!backlog_.empty() && Write(backlog_.front())) {
      backlog_.pop_front();
      any = true;
    }
    if (backlog_.empty()) any |= Stream();
    const bool blocked = !backlog_.empty() || (!streams_.empty() && !any);
    if (!blocked) break;
    if (announced) {
      blocked_head_.store(writer_.header()->head.load(std::memory_order_relaxed),
                          std::memory_order_relaxed);
      blocked_.store(true, std::memory_order_release);
      // Where nobody there waits for anything, its thread then takes out of the ring what is early;
      // but not to make room for what is early itself.
      if (!backlog_.empty()) {
        writer_.Urge();
        RingBell(theirs_->header());
      }
      return any;
    }
    writer_.WaitForRoom();  // and try once more
    announced = true;
  }
  // More fragments wait, but there was room: the next turn goes on.
  blocked_.store(!streams_.empty(), std::memory_order_release);
  blocked_head_.store(~uint64_t{0}, std::memory_order_relaxed);
  return any;
}

// Tells the peer of new records, once for all of them.
void Link::Publish() {
  if (!std::exchange(published_, false)) return;
  RingIfAsleep(theirs_->header(), std::exchange(published_urgent_, false));
}

bool Link::Drain(Deliveries* out, bool early) {
  const Locked lock(this, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  bool worked = false;
  if (!failed_) {
    worked |= Read(early);
    NoticeEnd(/*alive=*/true);
    if (!failed_ && (!backlog_.empty() || !streams_.empty())) worked |= Flush();
    Publish();
  }
  worked |= !ready_.events.empty() || !ready_.freed.empty();
  Hand(out);
  return worked;
}

void Link::Hand(Deliveries* out) {
  out->events.insert(out->events.end(), std::make_move_iterator(ready_.events.begin()),
                     std::make_move_iterator(ready_.events.end()));
  out->freed.insert(out->freed.end(), std::make_move_iterator(ready_.freed.begin()),
                    std::make_move_iterator(ready_.freed.end()));
  ready_.events.clear();
  ready_.freed.clear();
  has_ready_.store(false, std::memory_order_release);
}

std::optional<Link::Piece> Link::Claim() {
  const Locked lock(this);
  if (failed_ || to_copy_.empty()) return std::nullopt;
  const uint64_t id = to_copy_.front();
  Fetch& fetch = fetches_.at(id);
  const uint64_t size = fetch.buffer.size();
  const uint64_t bytes = std::min(kPieceBytes, size - fetch.claimed);
  const Piece piece{id, fetch.address + fetch.claimed, fetch.buffer.subspan(fetch.claimed, bytes)};
  fetch.claimed += bytes;
  ++fetch.copying;
  to_copy_.pop_front();
  if (fetch.claimed < size) {
    to_copy_.push_back(id);  // in turn with others
  } else {
    pieces_.fetch_sub(1, std::memory_order_seq_cst);
  }
  return piece;
}

void Link::Finish(const Piece& piece, const Status& status, Deliveries* out) {
  const Locked lock(this);
  // First, while this thread still counts as copying: it ends all fetches that nobody copies.
  if (!status.ok()) FailLocked(Status::Error(StatusCode::kPeerLost, status.detail));
  Fetch& fetch = fetches_.at(piece.id);
  --fetch.copying;
  fetch.received += piece.to.size();
  stats_.fetched_bytes += piece.to.size();
  if (failed_ || fetch.cancelled) {
    if (fetch.copying == 0) {
      if (fetch.cancelled) {
        Free(std::move(fetch.freed));
        if (!failed_) Queue({RecordKind::kDropped, piece.id, {}});
      } else {
        Report(core::EventKind::kRecvDone, fetch.token, failure_);
      }
      fetches_.erase(piece.id);
      if (failed_) FinishFailing();
    }
  } else if (fetch.received == fetch.buffer.size()) {
    Conclude(piece.id);
  }
  Publish();
  Hand(out);
}

// Bytes were read from the peer's memory; were they still the message? Fails the link where not.
bool Link::WasMessage() {
  // Acquire: the copies happen before this look. The peer gives up (a store) before it lets go of
  // any buffer, so if it has not by now, the memory was the message while it was copied. And a
  // process that lives now was the one behind its number all the time.
  if (!GaveUp() && process_->Alive()) return true;
  FailLocked(Status::Error(StatusCode::kPeerLost, "the process ended while its data were read"));
  return false;
}

// All bytes of a fetch are there.
void Link::Conclude(uint64_t id) {
  if (!WasMessage()) return;
  const auto it = fetches_.find(id);
  Received(it->second.token, it->second.info);
  fetches_.erase(it);
  Queue({RecordKind::kDone, id, {}});
}

Status Link::Return(uint64_t token, const Status& read) {
  const Locked lock(this);
  if (!failed_ && !read.ok()) FailLocked(Status::Error(StatusCode::kPeerLost, read.detail));
  if (failed_ || !WasMessage()) return failure_;
  const auto it = std::ranges::find_if(fetches_, [&](const auto& entry) {
    return entry.second.lent && entry.second.token == token;
  });
  if (it == fetches_.end()) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "the message of token " + std::to_string(token) + " is not lent");
  }
  CountReceived(it->second.info);
  stats_.fetched_bytes += it->second.info.size_bytes;
  ++stats_.lent_messages;
  const uint64_t id = it->first;
  fetches_.erase(it);
  Queue({RecordKind::kDone, id, {}});
  Publish();
  return Status::Ok();
}

bool Link::HasWork() const {
  if (has_ready_.load(std::memory_order_acquire)) return true;
  if (ended_.load(std::memory_order_relaxed)) return false;
  if (GaveUp() || (Waiting() ? !reader_.empty() : reader_.urged())) return true;
  return blocked_.load(std::memory_order_acquire) &&
         blocked_head_.load(std::memory_order_relaxed) !=
             writer_.header()->head.load(std::memory_order_relaxed);
}

void Link::Push(core::Event event) {
  ready_.events.push_back(std::move(event));
  has_ready_.store(true, std::memory_order_release);
}

void Link::Free(std::function<void()> freed) {
  if (!freed) return;
  ready_.freed.push_back(std::move(freed));
  has_ready_.store(true, std::memory_order_release);
}

void Link::Sent(const Outgoing& out) {
  ++stats_.messages_sent;
  stats_.bytes_sent += out.data.size();
  Report(core::EventKind::kSendDone, out.token, Status::Ok());
}

void Link::CountReceived(const core::MessageInfo& info) {
  ++stats_.messages_received;
  stats_.bytes_received += info.size_bytes;
}

void Link::Received(uint64_t token, const core::MessageInfo& info) {
  CountReceived(info);
  core::Event event;
  event.kind = core::EventKind::kRecvDone;
  event.token = token;
  event.remote = info;
  Push(std::move(event));
}

void Link::Report(core::EventKind kind, uint64_t token, const Status& status) {
  core::Event event;
  event.kind = kind;
  event.token = token;
  event.status = status;
  Push(std::move(event));
}

// A put that met no receive: its owner is to post one.
void Link::Announce(const core::MessageInfo& info) {
  if (!core::IsPut(info.tag)) return;
  core::Event event;
  event.kind = core::EventKind::kArrived;
  event.remote = info;
  Push(std::move(event));
}

std::vector<core::MessageInfo> Link::Unexpected() const {
  std::lock_guard lock(mutex_);
  std::vector<const Kept*> kept;
  for (const auto& [tag, message] : kept_) kept.push_back(&message);
  std::ranges::sort(kept, {}, [](const Kept* message) { return message->order; });
  std::vector<core::MessageInfo> infos;
  for (const Kept* message : kept) infos.push_back(message->info);
  return infos;
}

LinkStats Link::stats() const {
  std::lock_guard lock(mutex_);
  LinkStats stats = stats_;
  stats.unexpected_messages = kept_.size();
  stats.kept_bytes = static_cast<uint64_t>(kept_bytes_);
  return stats;
}

}  // namespace uccl::shm
