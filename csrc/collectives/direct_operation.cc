// The state machine of direct_operation.h. Under the mutex it only decides; copies, posts and
// reductions run outside.
#include "csrc/collectives/direct_operation.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "csrc/base/copy.h"
#include "csrc/base/hash.h"
#include "csrc/base/huge_pages.h"

namespace uccl::coll {
namespace {

// Reductions below this run where they became possible, even on the engine thread: handing them
// over costs more.
constexpr uint64_t kInlineReduceBytes = 64 << 10;

// A lent message costs its reader a system call for each block, and its sender a longer wait.
constexpr uint64_t kBorrowFromBytes = 1 << 20;

// Whether the slice is in a buffer of a local rank.
bool OfLocal(const Slice& slice) {
  return slice.kind == BufferKind::kInput || slice.kind == BufferKind::kOutput;
}

// The operation for which this thread stays in its Arrive.
thread_local const DirectOperation* staying_for = nullptr;

// The name of a message, with its part of those between the same two ranks.
core::MessageTag TagOf(const OpKey& key, uint32_t stage, const Transfer& t) {
  return TagOf(key, stage | t.part << 16, t.from, t.to);
}
static_assert(kMaxStages <= 1u << 16 && kMaxParts <= 1u << 16);

}  // namespace

DirectOperation::DirectOperation(OperationHost* host, const Identity& identity, const Call& first,
                                 const CallSite::Plan& plan)
    : Operation(host, identity, first, plan),
      schedule_(plan.schedule),
      has_ends_(first.ends != nullptr),
      finishes_(has_ends_ && first.ends->finishes()) {
  if (description().kind == OpKind::kRaggedAllToAll) {
    ragged_ = std::make_shared<Schedule>(*schedule_);
    schedule_ = ragged_;
  }
  locals_.resize(comm_->locals.size());
  uint32_t total = 0;
  for (const Stage& s : schedule_->stages) {
    transfer_base_.push_back(total);
    total += static_cast<uint32_t>(s.sends.size() + s.receives.size());
    for (const Transfer& t : s.sends) Touch(t.slice, 1);
    for (const Transfer& t : s.receives) Touch(t.slice, 1);
    for (const Copy& c : s.copies) {
      Touch(c.from, 1);
      Touch(c.to, 1);
    }
    for (const Reduction& r : s.reductions) {
      for (const Slice& slice : r.from) Touch(slice, 1);
      for (const Slice& slice : r.to) Touch(slice, 1);
    }
  }
  HoldForFinish(1);
  transfers_.assign(total, ItemState::kIdle);
  // Its contents are left as they are: every byte that is read was received first.
  if (schedule_->scratch_bytes > 0) scratch_ = host->scratch().Take(schedule_->scratch_bytes);
  stages_done_ = schedule_->stages.empty();
  if (!stages_done_) {
    stage_left_ = locals_.size() + stage().receives.size() + stage().copies.size();
    sends_left_ = stage().sends.size();
    copied_.assign(stage().copies.size(), false);
  }
}

// The three helpers below need the mutex (the constructor excepted).
void DirectOperation::Touch(const Slice& slice, int64_t delta) {
  if (OfLocal(slice)) {
    locals_[slice.local].left =
        static_cast<uint64_t>(static_cast<int64_t>(locals_[slice.local].left) + delta);
  }
}

bool DirectOperation::Ready(const Slice& slice) const {
  return !OfLocal(slice) || locals_[slice.local].arrived;
}

std::byte* DirectOperation::Address(const Slice& slice) const {
  switch (slice.kind) {
    // Inputs are only read; the transports and copies take one pointer type for both directions.
    case BufferKind::kInput:
      return const_cast<std::byte*>(locals_[slice.local].call.input) + slice.offset;
    case BufferKind::kOutput:
      return locals_[slice.local].call.output + slice.offset;
    case BufferKind::kScratch:
    case BufferKind::kZero:
      break;
  }
  return scratch_.data() + slice.offset;
}

const Transfer& DirectOperation::TransferAt(uint32_t index, bool* is_send, uint32_t* stage) const {
  const auto after = std::upper_bound(transfer_base_.begin(), transfer_base_.end(), index);
  // Stages without transfers share their base with the next one; upper_bound lands on the last of
  // them, which is the one that holds the index.
  *stage = static_cast<uint32_t>(after - transfer_base_.begin()) - 1;
  const Stage& s = schedule_->stages[*stage];
  const uint32_t offset = index - transfer_base_[*stage];
  *is_send = offset < s.sends.size();
  return *is_send ? s.sends[offset] : s.receives[offset - s.sends.size()];
}

// Adds what became possible when `local` arrived (or, with -1, everything of the stage) and marks
// it taken.
void DirectOperation::CollectReady(int64_t local, Work* work) {
  const auto concerns = [&](const Slice& slice) {
    return local < 0 || (OfLocal(slice) && slice.local == local);
  };
  const uint32_t base = transfer_base_[stage_];
  const auto take = [&](uint32_t index, const Slice& slice) {
    if (transfers_[index] != ItemState::kIdle) return;
    // Scratch needs nobody, so the first arrival takes it.
    if (OfLocal(slice) && !concerns(slice)) return;
    transfers_[index] = ItemState::kPosted;
    work->transfers.push_back(index);
  };
  uint32_t index = base;
  // Receives first: then a peer's data finds its place.
  const Stage& s = stage();
  for (size_t i = 0; i < s.receives.size(); ++i) {
    take(base + static_cast<uint32_t>(s.sends.size() + i), s.receives[i].slice);
  }
  for (const Transfer& t : s.sends) take(index++, t.slice);
  for (uint32_t i = 0; i < s.copies.size(); ++i) {
    const Copy& c = s.copies[i];
    if (copied_[i] || !(concerns(c.from) || concerns(c.to)) || !Ready(c.from) || !Ready(c.to))
      continue;
    copied_[i] = true;
    work->copies.push_back(i);
  }
}

void DirectOperation::Arrive(uint32_t local, Call call, const ExecutionTable::Call& matched,
                             engine::Engine* engine, StayPolicy* policy) {
  Work work;
  Status disagreement;
  bool last = false;                                      // all ranks of this process are here
  if (const Status fits = CheckEnds(call); !fits.ok()) {  // others must not meet it here
    host_->OnFault(*this, fits);
    host_->OnLocalDone(matched);
    return call.done(Describe(fits, started()));
  }
  if (has_ends_) {
    std::vector<bool> remote;
    for (const Member& member : comm_->members) remote.push_back(member.process != comm_->self);
    call.ends->Begin(&host_->scratch(), remote);  // others may take from it once it has arrived
  }
  {
    std::unique_lock lock(mutex_);
    Local& l = locals_[local];
    if (l.arrived) {
      lock.unlock();
      host_->OnLocalDone(matched);
      call.done(JoinedTwice(call));
      return;
    }
    l.call = std::move(call);
    l.matched = matched;
    l.arrived = true;
    l.arriving = true;
    ++arrived_;
    ++active_;
    last = arrived_ == locals_.size();
    if (ragged_ != nullptr) disagreement = PlaceRagged(local);
    if (!failed_ && !stages_done_ && disagreement.ok()) CollectReady(local, &work);
  }
  if (!disagreement.ok()) host_->OnFault(*this, disagreement);
  // Begun before the first message is posted: then nobody is woken for it.
  std::optional<engine::Engine::PollScope> polling;
  if (last && engine != nullptr && policy->Wants()) polling.emplace(engine);
  Perform(work);
  std::unique_lock lock(mutex_);
  FinishItems(lock, stages_done_ ? 0 : 1, /*heavy=*/true);
  if (polling.has_value()) Stay(local, engine, &*polling, policy);
  LeaveArrive(local);
}

// Waits for the operation's messages on this thread, for as long as something comes in or little
// time has passed. Others are served as well, but this thread does long work only for its own.
void DirectOperation::Stay(uint32_t local, engine::Engine* engine,
                           engine::Engine::PollScope* polling, StayPolicy* policy) {
  const auto ready = [&] {
    std::lock_guard lock(mutex_);
    return locals_[local].ready || failed_;
  };
  const auto clock = [] {
    return std::chrono::duration_cast<Nanos>(std::chrono::steady_clock::now().time_since_epoch());
  };
  staying_for = this;
  Nanos last_work = clock();
  bool completed = ready();
  while (!completed) {
    if (engine->Poll()) {
      last_work = clock();
    } else if (clock() - last_work >= policy->limit()) {
      break;
    } else {
      polling->Yield();
    }
    completed = ready();
  }
  staying_for = nullptr;
  policy->OnStay(completed);
}

// The end of the rank's Arrive: completes it here if it can be, and leaves it to others otherwise.
void DirectOperation::LeaveArrive(uint32_t local) {
  std::unique_lock lock(mutex_);
  Local& l = locals_[local];
  l.arriving = false;
  if (!l.ready) return;
  Call call = std::exchange(l.call, {});
  const Status status = failed_ ? failure_ : Status::Ok();
  lock.unlock();
  call.done(status);
}

// Posts and copies; the caller counted itself into active_, and FinishItems counts it out.
void DirectOperation::Perform(const Work& work) {
  for (uint32_t index : work.transfers) {
    bool is_send = false;
    uint32_t stage = 0;
    const Transfer& t = TransferAt(index, &is_send, &stage);
    const core::MessageInfo info = InfoOf(TagOf(key(), stage, t), t.slice.bytes);
    RaggedEnds* const ends = EndsOf(t.slice);
    if (is_send) {
      const std::byte* from = ends == nullptr ? Address(t.slice) : ends->Outgoing(t.to);
      host_->engine()->Send(t.peer, info, Bytes(from, t.slice.bytes), TokenOf(index));
    } else {
      std::byte* to = ends == nullptr ? Address(t.slice) : ends->Landing(t.from);
      host_->engine()->PostRecv(t.peer, info, MutableBytes(to, t.slice.bytes), TokenOf(index),
                                /*borrow=*/t.read_once && t.slice.bytes >= kBorrowFromBytes);
    }
  }
  if (work.copies.empty()) return;
  uint64_t bytes = 0;
  for (uint32_t i : work.copies) bytes += stage().copies[i].to.bytes;
  // Many small copies leave the caches as one large one does.
  const bool stream = bytes >= kStreamBytes;
  const auto copy = stream ? &StreamBytes : &CopyBytes;
  for (uint32_t i : work.copies) {
    const Copy& c = stage().copies[i];
    if (has_ends_) {
      EndsOf(c.to)->Take(c.source, *EndsOf(c.from), c.target);
    } else if (c.from.kind == BufferKind::kZero) {
      std::memset(Address(c.to), 0, c.to.bytes);
    } else {
      copy(Address(c.to), Address(c.from), c.from.bytes);
    }
  }
  if (stream) StreamFence();
  std::lock_guard lock(mutex_);
  for (uint32_t i : work.copies) {
    Touch(stage().copies[i].from, -1);
    Touch(stage().copies[i].to, -1);
  }
  stage_left_ -= work.copies.size();
}

// Counts `items` and this thread out; moves on when the stage is finished. Unlocks.
void DirectOperation::FinishItems(std::unique_lock<std::mutex>& lock, uint64_t items, bool heavy) {
  stage_left_ -= items;
  Advance(lock, heavy);
}

// Walks through all stages that can be finished now; this thread is counted in active_, and out at
// the end. Unlocks.
void DirectOperation::Advance(std::unique_lock<std::mutex>& lock, bool heavy) {
  while (!failed_ && !stages_done_ && !reducing_) {
    // This thread is the one that saw the end of the stage, or of what its reductions wait for.
    if ((reduced_ ? sends_left_ : stage_left_) > 0) break;
    if (reduced_) {
      EnterNextStage(lock);
      continue;
    }
    uint64_t bytes = FinishBytes();
    for (const Reduction& r : stage().reductions) bytes += r.to[0].bytes * r.from.size();
    reducing_ = true;
    lock.unlock();
    if (bytes > kInlineReduceBytes && !heavy) {
      // This thread's count in active_ goes with the task.
      host_->pool().Run([self = Self()] {
        self->RunReductions(/*share=*/true);
        std::unique_lock relock(self->mutex_);
        self->FinishReductions();
        self->Advance(relock, /*heavy=*/true);
      });
      return;
    }
    RunReductions(/*share=*/heavy);
    lock.lock();
    FinishReductions();
  }
  --active_;
  CompleteLocals(lock);
}

// Under the mutex.
void DirectOperation::FinishReductions() {
  reducing_ = false;
  reduced_ = true;
  HoldForFinish(-1);
  for (const Reduction& r : stage().reductions) {
    for (const Slice& slice : r.from) Touch(slice, -1);
    for (const Slice& slice : r.to) Touch(slice, -1);
  }
}

// The current stage is finished. Posts and copies without the mutex, and has it again at the end.
void DirectOperation::EnterNextStage(std::unique_lock<std::mutex>& lock) {
  reduced_ = false;
  if (++stage_ == schedule_->stages.size()) {
    stages_done_ = true;
    return;
  }
  // One more than its items: this thread, so that the stage cannot end before Perform returned.
  stage_left_ = 1 + stage().receives.size() + stage().copies.size();
  sends_left_ = stage().sends.size();
  copied_.assign(stage().copies.size(), false);
  Work work;
  CollectReady(-1, &work);
  lock.unlock();
  Perform(work);
  lock.lock();
  --stage_left_;
}

void DirectOperation::OnTransferDone(uint32_t index, uint64_t address) {
  std::unique_lock lock(mutex_);
  transfers_[index] = ItemState::kDone;
  bool is_send = false;
  uint32_t stage = 0;
  const Transfer& t = TransferAt(index, &is_send, &stage);
  // (Withdrawn meanwhile: then it is not lent any more, and nobody looks at this again.)
  if (address != 0) lent_.push_back({index, t.peer, t.slice, address});
  if (failed_) return;
  if (has_ends_ && !is_send) EndsOf(t.slice)->OnReceived(t.from);
  Touch(t.slice, -1);
  ++active_;
  if (is_send) --sends_left_;
  FinishItems(lock, is_send ? 0 : 1, /*heavy=*/staying_for == this);
}

void DirectOperation::Fail(const Status& cause) {
  std::unique_lock lock(mutex_);
  if (failed_ || over_) return;
  failed_ = true;
  failure_ = cause;
  CompleteLocals(lock);
}

// Completes what can be completed, and withdraws the messages of a failed operation. Unlocks.
void DirectOperation::CompleteLocals(std::unique_lock<std::mutex>& lock) {
  if (failed_ && !withdrawn_) {
    WithdrawIfQuiet(lock);
    return;
  }
  std::vector<std::pair<std::function<void(const Status&)>, Status>> leaving;
  std::vector<ExecutionTable::Call> finished;
  for (Local& l : locals_) {
    // A barrier's messages name no rank's buffer, but it is they that are waited for.
    const bool held = l.left > 0 || (description().kind == OpKind::kBarrier && !stages_done_);
    if (!l.arrived || l.completed || (!failed_ && held)) continue;
    l.completed = true;
    ++completed_;
    finished.push_back(l.matched);
    if (l.arriving) {
      l.ready = true;
      continue;
    }
    // Moved out: the buffers and the call site are not needed any more.
    leaving.emplace_back(std::move(l.call.done), failed_ ? failure_ : Status::Ok());
    l.call = {};
  }
  // After a failure ranks may still arrive until the runtime forgets the operation, so it is over
  // only when those that arrived are done; without one, when all are and the last stage is through:
  // messages out of scratch memory hold no rank, but they need the memory.
  const bool now_over =
      !over_ && active_ == 0 &&
      (failed_ ? completed_ == arrived_ : completed_ == locals_.size() && stages_done_);
  if (now_over) over_ = true;
  std::shared_ptr<Operation> self = now_over ? Self() : nullptr;
  lock.unlock();
  for (const ExecutionTable::Call& call : finished) host_->OnLocalDone(call);
  if (now_over) host_->OnOperationOver(this);
  for (auto& [done, status] : leaving) {
    host_->pool().Run([done = std::move(done), status = std::move(status)] { done(status); });
  }
}

// After a failure: once no thread of ours touches buffers, takes the posted messages back; when the
// engine has confirmed that, everybody is completed.
void DirectOperation::WithdrawIfQuiet(std::unique_lock<std::mutex>& lock) {
  if (active_ > 0 || withdrawing_) {
    lock.unlock();
    return;
  }
  withdrawing_ = true;
  const std::vector<Lent> lent = std::exchange(lent_, {});
  std::vector<engine::Engine::Posted> posted;
  for (uint32_t i = 0; i < transfers_.size(); ++i) {
    bool is_send = false;
    uint32_t stage = 0;
    const Transfer& t = TransferAt(i, &is_send, &stage);
    if (transfers_[i] == ItemState::kPosted) {
      posted.push_back({t.peer, is_send, TokenOf(i)});
    } else if (transfers_[i] == ItemState::kIdle || is_send) {
      // What the peer sent ahead for a receive that will not be posted. Or its grant: for a send
      // that will not happen, or for a small one that went without and did not match.
      posted.push_back({t.peer, is_send, 0, TagOf(key(), stage, t)});
    }
  }
  if (posted.empty() && lent.empty()) {
    withdrawn_ = true;
    CompleteLocals(lock);
    return;
  }
  lock.unlock();
  // What was read of them is of no interest any more.
  for (const Lent& l : lent) (void)host_->engine()->Return(l.peer, TokenOf(l.index), Status::Ok());
  host_->engine()->Cancel(std::move(posted), [self = Self()] {
    std::unique_lock relock(self->mutex_);
    self->withdrawn_ = true;
    self->CompleteLocals(relock);
  });
}

bool DirectOperation::Needs(ProcessId process) const {
  std::lock_guard lock(mutex_);
  for (uint32_t i = 0; i < transfers_.size(); ++i) {
    bool is_send = false;
    uint32_t stage = 0;
    if (transfers_[i] != ItemState::kDone && TransferAt(i, &is_send, &stage).peer == process)
      return true;
  }
  return false;
}

Operation::Missing DirectOperation::GetMissing() const {
  std::lock_guard lock(mutex_);
  Missing missing;
  for (size_t i = 0; i < locals_.size(); ++i) {
    if (!locals_[i].arrived)
      missing.local_devices.push_back(comm_->members[comm_->locals[i]].device);
  }
  std::vector<bool> seen(comm_->members.size(), false);
  const auto add = [&](uint32_t member, bool owes) {
    if (owes && std::find(missing.owed_by.begin(), missing.owed_by.end(), member) ==
                    missing.owed_by.end()) {
      missing.owed_by.push_back(member);
    }
    if (seen[member]) return;
    seen[member] = true;
    missing.remote.push_back(comm_->members[member]);
  };
  // Receives of later stages are owed too, but name the rank that has not done its part of this
  // stage first.
  for (uint32_t i = 0; i < transfers_.size(); ++i) {
    bool is_send = false;
    uint32_t stage = 0;
    const Transfer& t = TransferAt(i, &is_send, &stage);
    if (stage != stage_ || transfers_[i] == ItemState::kDone || is_send) continue;
    add(t.from, true);
    // Whoever of them is late, only that process knows.
    for (uint32_t m = 0; t.of_process && m < comm_->members.size(); ++m) {
      if (comm_->members[m].process == t.peer) add(m, true);
    }
  }
  for (uint32_t i = 0; i < transfers_.size(); ++i) {
    bool is_send = false;
    uint32_t stage = 0;
    const Transfer& t = TransferAt(i, &is_send, &stage);
    if (transfers_[i] == ItemState::kPosted && is_send) add(t.to, false);
  }
  return missing;
}

}  // namespace uccl::coll
