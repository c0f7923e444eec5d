// Who is missed, by the watchdog of runtime.h and by the engine: deadlines, operations that ranks
// disagree about, lost peers.
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/collectives/failure_text.h"
#include "csrc/collectives/runtime.h"

namespace uccl::coll {
namespace {

// How long an operation by FIFO may still wait for data of a process that is gone.
constexpr Nanos kLastData = std::chrono::milliseconds(500);

}  // namespace

void Runtime::OnPeerLost(ProcessId peer, const Status& status) {
  Status cause = status;
  cause.process = ToInt(peer);
  std::vector<uint64_t> ids;
  std::shared_ptr<engine::Engine> engine;
  bool fifos = false;
  {
    std::lock_guard lock(mutex_);
    fifos = parts_ != nullptr && parts_->puts != nullptr;
    judging_ += fifos ? 1 : 0;
    engine = engine_;
    lost_processes_.emplace(ToInt(peer), cause);
    for (const auto& [id, state] : comms_) {
      if (state.comm != nullptr && HasProcess(*state.comm, peer)) ids.push_back(id);
    }
  }
  if (!fifos) {
    for (uint64_t id : ids) AbortComm(id, cause, /*announce=*/true, /*lost=*/peer);
    return;
  }
  // Proxies watch their peers, so one that leaves in order is lost, too, and its last data may be
  // here but not counted yet: threads besides this one see to that.
  programs_.Run([this, ids = std::move(ids), cause, peer, engine = std::move(engine)] {
    const Nanos grace_end = Now() + kLastData;
    const auto needed = [&] {
      return std::ranges::any_of(Operations(), [&](const OpPtr& op) {
        return HasProcess(op->comm(), peer) && !op->failed() && op->Needs(peer);
      });
    };
    const auto ended = [&] {  // the epoch, and with it all of its operations
      std::lock_guard lock(mutex_);
      return engine_ != engine;
    };
    while (!ended() && needed() && Now() < grace_end) std::this_thread::sleep_for(kLastData / 100);
    if (!ended()) {
      for (uint64_t id : ids) AbortComm(id, cause, /*announce=*/true, /*lost=*/peer);
    }
    std::lock_guard lock(mutex_);
    if (--judging_ == 0) drained_.notify_all();  // Shutdown waits for it
  });
}

void Runtime::WatchdogLoop() {
  pthread_setname_np(pthread_self(), "uccl-watchdog");
  std::unique_lock lock(mutex_);
  uint64_t seen = 0;
  while (!stopping_) {
    // Nothing happened for a whole tick: sleep. A stream says nothing, so it is looked at for good.
    const auto nothing = [&] { return by_id_.empty() && streams_.empty(); };
    if (nothing() && seen == started_count_) {
      watchdog_asleep_ = true;
      look_.wait(lock, [&] { return stopping_ || !nothing(); });
      watchdog_asleep_ = false;
      continue;
    }
    seen = started_count_;
    const Nanos timeout = FromMillis(config_.op_timeout_ms),
                grace = FromMillis(config_.mismatch_grace_ms);
    const Nanos tick =
        std::clamp<Nanos>(std::min(timeout, grace) / 4, FromMillis(1), FromMillis(250));
    look_.wait_for(lock, tick, [&] { return stopping_; });
    if (!streams_.empty() && !stopping_) {
      lock.unlock();
      LookAtStreams();
      lock.lock();
    }
    std::vector<OpPtr> old;
    for (const auto& [id, op] : by_id_) {
      if (Now() - op->started() >= std::min(timeout, grace)) old.push_back(op);
    }
    if (old.empty() || stopping_) continue;
    const std::shared_ptr<engine::Engine> engine = connected_ ? engine_ : nullptr;
    // An engine that has ended calls back at once, on this thread.
    lock.unlock();
    if (engine != nullptr) {
      engine->Inspect([this, old](std::vector<engine::UnexpectedMessage> unexpected) {
        Inspect(old, unexpected);
      });
      lock.lock();
      continue;
    }
    Inspect(old, {});
    lock.lock();
  }
}

void Runtime::Inspect(const std::vector<OpPtr>& old,
                      const std::vector<engine::UnexpectedMessage>& unexpected) {
  Nanos timeout, grace;
  {
    std::lock_guard lock(mutex_);
    timeout = FromMillis(config_.op_timeout_ms);
    grace = FromMillis(config_.mismatch_grace_ms);
  }
  for (const OpPtr& op : old) {
    if (op->over()) continue;
    const Nanos age = Now() - op->started();
    const Operation::Missing missing = op->GetMissing();
    if (age >= timeout) {
      AbortComm(op->comm().id, TimeoutOf(*op, missing, timeout, unexpected), /*announce=*/true);
      continue;
    }
    if (age < grace) continue;
    const engine::UnexpectedMessage* other = FindMismatch(*op, missing, unexpected);
    if (other == nullptr) continue;
    // Twice in a row: the missing message may just be late (a retransmission) while the next one is
    // here.
    bool again = false;
    {
      std::lock_guard lock(mutex_);
      again = !suspects_.insert(op->id()).second;
    }
    if (again)
      AbortComm(op->comm().id, MismatchOf(*op, other->peer, other->info), /*announce=*/true);
  }
}

}  // namespace uccl::coll
