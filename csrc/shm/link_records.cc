// What comes through the ring, record by record. Each is checked: a peer that breaks the protocol
// fails the link, never this process.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "csrc/base/copy.h"
#include "csrc/core/watch.h"
#include "csrc/shm/doorbell.h"
#include "csrc/shm/link.h"

namespace uccl::shm {
namespace {

// Records read in one turn, before other links have theirs.
constexpr int kRecordsPerTurn = 64;
constexpr size_t kReadPerTurn = 64 << 10;  // bytes

}  // namespace

// Whether what is in the ring, or comes into it, is of interest now.
bool Link::Wanted() const { return Outstanding() || !controls_.empty() || reader_.urged(); }

// False when nothing was there, or nothing that is wanted yet.
bool Link::Read(bool early) {
  // Acquire: the ring's first records are those of the writer that set it.
  if (reader_.header()->session.load(std::memory_order_acquire) != options_.session) return false;
  int count = 0;
  for (size_t bytes = 0; count < kRecordsPerTurn && bytes < kReadPerTurn && !failed_; ++count) {
    if (!early && !Wanted()) break;
    RingReader::Record record;
    const RingReader::Front front = reader_.Peek(&record);
    if (front == RingReader::Front::kEmpty) break;
    if (front == RingReader::Front::kBroken || !OnRecord(record)) {
      Break(front == RingReader::Front::kBroken
                ? "lengths that do not fit"
                : "a malformed record of kind " + std::to_string(record.header.kind));
      return true;
    }
    bytes += record.header.body_bytes;
    reader_.Pop();
  }
  // Whatever the writer waits with, it may be an answer that nobody over there waits for.
  if (count > 0 && reader_.TakeWish()) RingIfAsleep(theirs_->header(), /*urgent=*/true);
  return count > 0;
}

void Link::Break(const std::string& what) {
  FailLocked(Status::Error(StatusCode::kProtocol, "the peer's ring holds " + what));
}

bool Link::OnRecord(const RingReader::Record& record) {
  switch (static_cast<RecordKind>(record.header.kind)) {
    case RecordKind::kMessage:
      return OnMessage(record);
    case RecordKind::kOffer:
      return OnOffer(record);
    case RecordKind::kFragment:
      return OnFragment(record);
    case RecordKind::kRefused:
      return OnRefused(record);
    case RecordKind::kControl:
      return OnControl(record);
    case RecordKind::kDone:
    case RecordKind::kWant:
    case RecordKind::kDropped:
    case RecordKind::kWithdraw:
      OnAnswer(static_cast<RecordKind>(record.header.kind), record.header.id);
      return true;
    case RecordKind::kLeaving:
      OnLeaving();
      return true;
    case RecordKind::kPadding:
      break;
  }
  return false;
}

// Gives the receive its mismatch; the caller tells the sender.
bool Link::Mismatch(const Posted& posted, const core::MessageInfo& info) {
  if (posted.info.digest == info.digest && posted.info.size_bytes == info.size_bytes) return false;
  Differ(posted.token, info);
  return true;
}

void Link::Differ(uint64_t token, const core::MessageInfo& remote) {
  core::Event event;
  event.kind = core::EventKind::kMismatch;
  event.token = token;
  event.remote = remote;
  Push(std::move(event));
}

// A message that came whole has met its receive.
void Link::Place(const Posted& posted, const core::MessageInfo& info, Bytes bytes) {
  if (Mismatch(posted, info)) return;
  CopyBytes(posted.buffer.data(), bytes.data(), bytes.size());
  Received(posted.token, info);
}

// Whether the message was given up before it came; it may be so once.
bool Link::TakeDiscarded(const core::MessageTag& tag) {
  if (discarded_.erase(tag) == 0) return false;
  std::erase(discarded_order_, tag);
  return true;
}

void Link::ReturnCredit(uint64_t bytes) {
  // Only this side writes it, under the mutex; a count, so relaxed. The writer looks at it when it
  // sends again.
  std::atomic<uint64_t>& returned = reader_.header()->eager_returned;
  returned.store(
      returned.load(std::memory_order_relaxed) + bytes + static_cast<uint64_t>(kKeptOverheadBytes),
      std::memory_order_relaxed);
}

// An eager message that is no longer kept.
void Link::Release(const Kept& kept) {
  kept_bytes_ -= static_cast<int64_t>(kept.info.size_bytes) + kKeptOverheadBytes;
  ReturnCredit(kept.info.size_bytes);
  arriving_.erase(kept.id);
}

bool Link::OnMessage(const RingReader::Record& record) {
  RecordInfo raw;
  if (record.header.body_bytes < sizeof(raw)) return false;
  std::memcpy(&raw, record.body, sizeof(raw));
  const core::MessageInfo info = FromRecord(raw);
  const Bytes bytes(record.body + sizeof(raw), record.header.body_bytes - sizeof(raw));
  const uint64_t id = record.header.id;
  if (bytes.size() > info.size_bytes) return false;
  const bool whole = bytes.size() == info.size_bytes;
  if (!whole && (fetches_.contains(id) || arriving_.contains(id))) return false;
  const auto it = posted_.find(info.tag);
  if (it == posted_.end()) {
    if (!TakeDiscarded(info.tag)) return KeepMessage(info, id, bytes);
    ReturnCredit(info.size_bytes);
    if (!whole) Queue({RecordKind::kDropped, id, {}});
    return true;
  }
  const Posted posted = it->second;
  posted_.erase(it);
  ReturnCredit(info.size_bytes);
  if (whole) {
    Place(posted, info, bytes);
  } else {
    Begin(posted, info, id, bytes);
  }
  return true;
}

// No receive has met it yet.
bool Link::KeepMessage(const core::MessageInfo& info, uint64_t id, Bytes bytes) {
  // The sender minds its credit, so more is a violation.
  if (info.size_bytes > static_cast<uint64_t>(options_.eager_buffer_bytes)) return false;
  kept_bytes_ += static_cast<int64_t>(info.size_bytes) + kKeptOverheadBytes;
  if (kept_bytes_ > options_.eager_buffer_bytes) return false;
  Kept kept;
  kept.info = info;
  kept.order = next_order_++;
  kept.id = id;
  kept.bytes.reserve(info.size_bytes);
  kept.bytes.assign(bytes.begin(), bytes.end());
  if (!kept.whole()) arriving_.emplace(id, info.tag);
  // A second message of one name is a violation as well.
  if (!kept_.emplace(info.tag, std::move(kept)).second) return false;
  Announce(info);
  return true;
}

bool Link::KeepFragment(uint64_t id, uint64_t offset, Bytes bytes) {
  const auto it = arriving_.find(id);
  if (it == arriving_.end()) return true;  // of one that was dropped here
  Kept& kept = kept_.at(it->second);
  if (offset != kept.bytes.size() || bytes.size() > kept.info.size_bytes - offset) return false;
  kept.bytes.insert(kept.bytes.end(), bytes.begin(), bytes.end());
  if (kept.whole()) arriving_.erase(it);
  return true;
}

// A message of which this is the first part has met its receive.
void Link::Begin(const Posted& posted, const core::MessageInfo& info, uint64_t id, Bytes bytes) {
  if (Mismatch(posted, info)) return Queue({RecordKind::kRefused, id, ToRecord(posted.info)});
  Fetch* const fetch = Open(posted, info, id);
  if (fetch == nullptr) return;
  fetch->streamed = true;
  Append(id, fetch, bytes);
}

// Null where the peer used the id twice, which breaks the link.
Link::Fetch* Link::Open(const Posted& posted, const core::MessageInfo& info, uint64_t id) {
  Fetch fetch;
  fetch.info = info;
  fetch.buffer = posted.buffer;
  fetch.token = posted.token;
  const auto [it, fresh] = fetches_.emplace(id, std::move(fetch));
  if (fresh) return &it->second;
  Break("two messages of one id");
  Report(core::EventKind::kRecvDone, posted.token, failure_);
  return nullptr;
}

// The next bytes of a fetch that comes in parts.
void Link::Append(uint64_t id, Fetch* fetch, Bytes bytes) {
  CopyBytes(fetch->buffer.data() + fetch->received, bytes.data(), bytes.size());
  fetch->received += bytes.size();
  if (fetch->received < fetch->buffer.size()) return;
  Received(fetch->token, fetch->info);
  fetches_.erase(id);
}

bool Link::OnOffer(const RingReader::Record& record) {
  OfferBody body;
  if (record.header.body_bytes != sizeof(body)) return false;
  std::memcpy(&body, record.body, sizeof(body));
  Kept offer;
  offer.info = FromRecord(body.info);
  offer.order = next_order_++;
  offer.offered = true;
  offer.id = record.header.id;
  offer.address = body.address;
  const auto it = posted_.find(offer.info.tag);
  if (it != posted_.end()) {
    const Posted posted = it->second;
    posted_.erase(it);
    Accept(posted, offer);
    return true;
  }
  if (TakeDiscarded(offer.info.tag)) {
    Queue({RecordKind::kDropped, offer.id, {}});
    return true;
  }
  const core::MessageInfo info = offer.info;
  if (kept_.size() >= core::kMaxOpenMessages || fetches_.contains(offer.id) ||
      arriving_.contains(offer.id) || !kept_.emplace(info.tag, std::move(offer)).second) {
    return false;
  }
  Announce(info);
  return true;
}

// An offer has met its receive.
void Link::Accept(const Posted& posted, const Kept& offer) {
  if (Mismatch(posted, offer.info)) {
    Queue({RecordKind::kRefused, offer.id, ToRecord(posted.info)});
    return;
  }
  Fetch* const fetch = Open(posted, offer.info, offer.id);
  if (fetch == nullptr) return;
  fetch->address = offer.address;
  fetch->streamed = !options_.one_copy;
  if (posted.buffer.empty()) return Conclude(offer.id);
  if (posted.borrow && options_.one_copy) {
    fetch->lent = true;
    core::Event event;
    event.kind = core::EventKind::kRecvDone;
    event.token = posted.token;
    event.remote = offer.info;
    event.address = offer.address;
    return Push(std::move(event));
  }
  if (!options_.one_copy) return Queue({RecordKind::kWant, offer.id, {}});
  to_copy_.push_back(offer.id);
  pieces_.fetch_add(1, std::memory_order_seq_cst);
}

bool Link::OnFragment(const RingReader::Record& record) {
  FragmentBody body;
  if (record.header.body_bytes < sizeof(body)) return false;
  std::memcpy(&body, record.body, sizeof(body));
  const Bytes bytes(record.body + sizeof(body), record.header.body_bytes - sizeof(body));
  const auto it = fetches_.find(record.header.id);
  if (it == fetches_.end()) return KeepFragment(record.header.id, body.offset, bytes);
  Fetch& fetch = it->second;
  if (!fetch.streamed || body.offset != fetch.received ||
      bytes.size() > fetch.buffer.size() - fetch.received) {
    return false;
  }
  Append(it->first, &fetch, bytes);
  return true;
}

bool Link::OnControl(const RingReader::Record& record) {
  if (record.header.body_bytes > kMaxControlBytes) return false;
  core::Event event;
  event.kind = core::EventKind::kControl;
  event.token = record.header.id;
  event.control.assign(reinterpret_cast<const char*>(record.body), record.header.body_bytes);
  Push(std::move(event));
  return true;
}

bool Link::OnRefused(const RingReader::Record& record) {
  RecordInfo raw;
  if (record.header.body_bytes != sizeof(raw)) return false;
  std::memcpy(&raw, record.body, sizeof(raw));
  const auto it = outgoing_.find(record.header.id);
  if (it == outgoing_.end()) return true;
  Outgoing& out = it->second;
  if (out.state == Outgoing::State::kWithdrawn) {
    Free(std::move(out.freed));
  } else {
    Differ(out.token, FromRecord(raw));
  }
  std::erase(streams_, record.header.id);
  outgoing_.erase(it);
  return true;
}

// Answers to our offers, and the peer's second thoughts about its own. One that is unknown is about
// something that has ended meanwhile on this side.
void Link::OnAnswer(RecordKind kind, uint64_t id) {
  if (kind == RecordKind::kWithdraw) {
    if (const auto it = arriving_.find(id); it != arriving_.end()) {
      const auto kept = kept_.find(it->second);
      Release(kept->second);
      kept_.erase(kept);
      return;
    }
    // Where it is being fetched in one copy, or was, kDone says so soon.
    const auto it = std::ranges::find_if(
        kept_, [&](const auto& entry) { return entry.second.offered && entry.second.id == id; });
    const auto fetch = fetches_.find(id);
    if (it != kept_.end()) {
      kept_.erase(it);
    } else if (fetch == fetches_.end() || !fetch->second.streamed) {
      return;
    }
    // One that comes in parts stays open, as if it had never come: the kWant finds it withdrawn.
    return Queue({RecordKind::kDropped, id, {}});
  }
  if (kind == RecordKind::kDone && controls_.erase(id) > 0) return;
  const auto it = outgoing_.find(id);
  if (it == outgoing_.end()) return;
  Outgoing& out = it->second;
  const bool withdrawn = out.state == Outgoing::State::kWithdrawn;
  if (kind == RecordKind::kWant) {
    if (withdrawn || out.state != Outgoing::State::kOffered) return;
    out.state = Outgoing::State::kStreaming;
    streams_.push_back(id);
    return;
  }
  if (withdrawn) {
    Free(std::move(out.freed));
    outgoing_.erase(it);
    return;
  }
  if (kind == RecordKind::kDropped) {
    // The operation failed over there; this side hears of it by its own way, and cancels.
    out.state = Outgoing::State::kDropped;
    std::erase(streams_, id);
    return;
  }
  Sent(out);
  std::erase(streams_, id);
  outgoing_.erase(it);
}

void Link::OnLeaving() {
  left_ = true;
  ended_.store(true, std::memory_order_relaxed);
  // What it still offers, or has not sent to the end, was given up by its shutdown.
  std::erase_if(kept_, [&](const auto& entry) {
    if (entry.second.whole()) return false;
    if (!entry.second.offered) Release(entry.second);
    return true;
  });
  controls_.clear();  // it would not read them
  // Who only watches is told, but not by a failure: what has come and is not asked for yet stays.
  bool watched = false;
  std::erase_if(posted_, [&](const auto& entry) {
    if (!core::IsWatch(entry.first)) return false;
    Report(core::EventKind::kRecvDone, entry.second.token, ShutDownStatus());
    return watched = true;
  });
  if (Outstanding()) return FailLocked(ShutDownStatus());
  if (!watched || std::exchange(told_, true)) return;
  core::Event event;
  event.kind = core::EventKind::kFailed;
  event.status = ShutDownStatus();
  Push(std::move(event));
}

}  // namespace uccl::shm
