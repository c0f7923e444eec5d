// How a link ends: a goodbye of either side, a death or a silence that is noticed, giving up.
#include <algorithm>
#include <string>
#include <utility>

#include "csrc/shm/doorbell.h"
#include "csrc/shm/link.h"

namespace uccl::shm {

bool Link::GaveUp() const {
  return reader_.header()->writer_gave_up.load(std::memory_order_acquire) != 0;
}

// `alive` was asked before: what a process wrote before it died, or gave up, is in the ring then.
void Link::NoticeEnd(bool alive) {
  if (left_ || (alive && !GaveUp())) return;
  while (!failed_ && Read(/*early=*/true)) {
  }
  if (failed_ || left_) return;
  FailLocked(Status::Error(StatusCode::kPeerLost,
                           alive ? "the process has closed its shared memory without a goodbye"
                                 : "the process has died"));
}

void Link::Check(Nanos now, Deliveries* out) {
  const Locked lock(this);
  if (!failed_) NoticeEnd(process_->Alive());
  if (!failed_ && !left_) {
    const uint64_t turns = theirs_->header()->turns.load(std::memory_order_relaxed);
    if (turned_at_ == kNever || turns != seen_turns_ || !Outstanding()) {
      seen_turns_ = turns;
      turned_at_ = now;
    } else if (now - turned_at_ >= options_.peer_silence) {
      FailLocked(
          Status::Error(StatusCode::kPeerLost,
                        "its thread for shared memory has not run for " +
                            std::to_string(ToMillis(now - turned_at_)) +
                            " ms (peer_silence_ms): the process is stopped, or starved of CPU"));
    }
    if (!failed_) RingBell(theirs_->header());  // a turn is what it answers with
  }
  Publish();
  Hand(out);
}

void Link::Fail(const Status& status) {
  const Locked lock(this);
  FailLocked(status);
}

void Link::Abort(const Status& status) {
  const Locked lock(this);
  aborting_ = true;
  FailLocked(status);
}

// The link ends: reports every token, and the loss itself when the last copy into a buffer is over.
void Link::FailLocked(Status status) {
  if (failed_) return;
  if (status.process == -1) status.process = ToInt(options_.peer);
  failed_ = true;
  ended_.store(true, std::memory_order_relaxed);
  failure_ = std::move(status);
  any_failed_ = Outstanding();
  // Before any buffer is let go; pairs with the acquire in Conclude. seq_cst also orders it before
  // whatever the owner of a buffer does next.
  writer_.header()->writer_gave_up.store(1, std::memory_order_seq_cst);
  RingBell(theirs_->header());
  for (auto& [id, out] : outgoing_) {
    if (out.state == Outgoing::State::kWithdrawn) {
      Free(std::move(out.freed));
    } else {
      Report(core::EventKind::kSendDone, out.token, failure_);
    }
  }
  outgoing_.clear();
  for (const auto& [tag, posted] : posted_)
    Report(core::EventKind::kRecvDone, posted.token, failure_);
  posted_.clear();
  std::erase_if(fetches_, [&](const auto& entry) {
    const Fetch& fetch = entry.second;
    if (fetch.copying > 0) return false;
    if (!fetch.cancelled && !fetch.lent) Report(core::EventKind::kRecvDone, fetch.token, failure_);
    return true;
  });
  kept_.clear();
  kept_bytes_ = 0;
  arriving_.clear();
  controls_.clear();
  backlog_.clear();
  streams_.clear();
  to_copy_.clear();
  pieces_.store(0, std::memory_order_seq_cst);
  blocked_.store(false, std::memory_order_release);
  FinishFailing();
}

void Link::FinishFailing() {
  if (!fetches_.empty() || std::exchange(told_, true)) return;
  // As in engine/peer_link.cc: an abort is this side's own doing, and a peer that left in order is
  // missed only by what was outstanding.
  if (aborting_ || ((left_ || leaving_) && !any_failed_)) return;
  core::Event event;
  event.kind = core::EventKind::kFailed;
  event.status = failure_;
  Push(std::move(event));
}

bool Link::Drained() const {
  std::lock_guard lock(mutex_);
  return failed_ || left_ || (outgoing_.empty() && backlog_.empty() && controls_.empty());
}

void Link::Leave() {
  const Locked lock(this);
  if (failed_ || std::exchange(leaving_, true)) return;
  Queue({RecordKind::kLeaving, 0, {}});
  Publish();
}

bool Link::Left() const {
  std::lock_guard lock(mutex_);
  return failed_ || left_ || backlog_.empty();
}

Status Link::ShutDownStatus() const {
  Status status = Status::Error(StatusCode::kPeerLost,
                                "process " + std::to_string(ToInt(options_.peer)) + " shut down");
  status.process = ToInt(options_.peer);
  return status;
}

}  // namespace uccl::shm
