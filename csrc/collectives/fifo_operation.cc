// The life of fifo_operation.h.
#include "csrc/collectives/fifo_operation.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>
#include <utility>

namespace uccl::coll {
namespace {

// A program that the call brought: from its start on it needs all peers, until it says less.
class ForeignProgram final : public executor::Program {
 public:
  ForeignProgram(std::unique_ptr<executor::Program> inner, StartedFlag started)
      : inner_(std::move(inner)), started_(std::move(started)) {}
  Status Run(executor::Pipes* pipes, uint64_t number) override {
    pipes->Announce(std::vector<uint64_t>(pipes->ranks()), std::vector<uint64_t>(pipes->ranks()));
    for (uint32_t peer = 0; peer < pipes->ranks(); ++peer) pipes->SetAwaits(peer, true);
    started_->store(true, std::memory_order_release);
    const Status status = inner_->Run(pipes, number);
    for (uint32_t peer = 0; peer < pipes->ranks(); ++peer) pipes->SetAwaits(peer, false);
    return status;
  }

 private:
  const std::unique_ptr<executor::Program> inner_;
  const StartedFlag started_;
};

}  // namespace

FifoOperation::FifoOperation(OperationHost* host, const Identity& identity, const Call& first,
                             const CallSite::Plan& plan,
                             std::shared_ptr<executor::Executor> executor,
                             std::optional<executor::Place> place)
    : Operation(host, identity, first, plan),
      schedules_(plan.of_ranks),
      executor_(std::move(executor)),
      locals_(comm_->locals.size()),
      place_(place) {
  if (decides()) {
    const uint64_t word = place_->AsWord();
    std::memcpy(place_bytes_.data(), &word, sizeof(word));
    std::set<ProcessId> seen{comm_->self};
    for (uint32_t m = 0; m < comm_->members.size(); ++m) {
      const ProcessId process = comm_->members[m].process;
      if (seen.insert(process).second) notices_.push_back({process, m});
    }
  } else {
    notices_.push_back({comm_->members[0].process, comm_->locals[0]});
  }
}

core::MessageTag FifoOperation::TagOfNotice(const Notice& notice) const {
  return TagOf(key(), /*stage=*/0, /*from=*/0, notice.to);
}

void FifoOperation::Arrive(uint32_t local, Call call, const ExecutionTable::Call& matched,
                           engine::Engine* engine, StayPolicy* policy) {
  (void)engine;
  (void)policy;
  bool post = false;
  Status disagreement;
  {
    std::unique_lock lock(mutex_);
    Local& l = locals_[local];
    if (l.arrived) {
      lock.unlock();
      host_->OnLocalDone(matched);
      return call.done(JoinedTwice(call));
    }
    l.call = std::move(call);
    l.matched = matched;
    l.arrived = true;
    ++arrived_;
    disagreement = CheckRagged(local);
    if (failed_) return CompleteLocals(lock);  // nothing is posted from then on
    if (disagreement.ok() && !posted_) post = posted_ = posting_ = true;
  }
  if (!disagreement.ok()) host_->OnFault(*this, disagreement);
  if (post) PostNotices();
  EnqueueReady();
}

// Of two ranks that are here: what one sends is what the other expects. Under the mutex.
Status FifoOperation::CheckRagged(uint32_t local) const {
  const Local& mine = locals_[local];
  const uint32_t me = comm_->locals[local];
  for (uint32_t other = 0; other < locals_.size() && !mine.call.ragged.empty(); ++other) {
    const Local& theirs = locals_[other];
    const uint32_t them = comm_->locals[other];
    if (!theirs.arrived || theirs.call.ragged.empty()) continue;
    const Call::RaggedPart &there = mine.call.ragged[them], &back = theirs.call.ragged[me];
    if (there.send_bytes != back.receive_bytes)
      return SizesDiffer(me, there.send_bytes, them, back.receive_bytes);
    if (back.send_bytes != there.receive_bytes)
      return SizesDiffer(them, back.send_bytes, me, there.receive_bytes);
  }
  return Status::Ok();
}

void FifoOperation::PostNotices() {
  for (uint32_t i = 0; i < notices_.size(); ++i) {
    const Notice& notice = notices_[i];  // what is read here never changes
    const core::MessageInfo info = InfoOf(TagOfNotice(notice), place_bytes_.size());
    if (decides()) {
      host_->engine()->Send(notice.peer, info, place_bytes_, TokenOf(i));
    } else {
      host_->engine()->PostRecv(notice.peer, info, place_bytes_, TokenOf(i));
    }
  }
  std::unique_lock lock(mutex_);
  posting_ = false;
  CompleteLocals(lock);  // a failure had to wait for this
}

void FifoOperation::OnTransferDone(uint32_t index, uint64_t address) {
  (void)address;
  {
    std::unique_lock lock(mutex_);
    notices_[index].done = true;
    if (failed_) return;
    if (decides()) return CompleteLocals(lock);
    uint64_t word = 0;
    std::memcpy(&word, place_bytes_.data(), sizeof(word));
    place_ = executor::Place::FromWord(word);
  }
  EnqueueReady();
  std::unique_lock lock(mutex_);
  CompleteLocals(lock);
}

void FifoOperation::EnqueueReady() {
  std::vector<uint32_t> ready;
  executor::Place place;
  {
    std::lock_guard lock(mutex_);
    if (!place_.has_value() || failed_) return;
    place = *place_;
    for (uint32_t i = 0; i < locals_.size(); ++i) {
      if (!locals_[i].arrived || locals_[i].enqueued) continue;
      locals_[i].enqueued = locals_[i].busy = true;
      ready.push_back(i);
    }
  }
  for (uint32_t local : ready) Enqueue(local, place);
}

void FifoOperation::Enqueue(uint32_t local, const executor::Place& place) {
  std::vector<ProcessId> processes;
  for (const Member& member : comm_->members) processes.push_back(member.process);
  const uint32_t rank = comm_->locals[local];
  auto stream = executor_->StreamOf(comm_->id, place.lane, processes, rank);
  if (!stream.ok()) return OnProgramOver(local, stream.status());
  std::unique_ptr<executor::Program> program;
  bool failed = false;
  {
    std::lock_guard lock(mutex_);
    Local& l = locals_[local];
    failed = failed_;  // it looked for streams to stop before this one was known
    l.stream = stream.value();
    program = l.call.program ? std::make_unique<ForeignProgram>(l.call.program(), l.started)
                             : std::unique_ptr<executor::Program>(std::make_unique<RankProgram>(
                                   schedules_[local], l.call, description().reduction, rank,
                                   &host_->scratch(), l.started));
  }
  stream.value()->Enqueue(
      place.number, std::move(program),
      [self = Self(), local](const Status& status) { self->OnProgramOver(local, status); });
  if (failed)
    stream.value()->FailFrom(place.number, Status::Error(StatusCode::kAborted, "aborted"));
}

// The rank's buffers are not touched any more.
void FifoOperation::OnProgramOver(uint32_t local, const Status& status) {
  bool news = false;
  {
    std::lock_guard lock(mutex_);
    news = !status.ok() && !failed_;
  }
  // Fails the operation, and with it the communicator.
  if (news) host_->OnFault(*this, status);
  std::unique_lock lock(mutex_);
  locals_[local].busy = false;
  locals_[local].ran = status.ok();
  CompleteLocals(lock);
}

void FifoOperation::Fail(const Status& cause) {
  std::vector<std::shared_ptr<executor::RankStream>> streams;
  uint64_t number = 0;
  {
    std::unique_lock lock(mutex_);
    if (failed_ || over_) return;
    failed_ = true;
    failure_ = cause;
    number = place_.value_or(executor::Place()).number;
    for (const Local& l : locals_) {
      if (l.stream != nullptr) streams.push_back(l.stream);
    }
  }
  for (const auto& stream : streams) stream->FailFrom(number, cause);
  std::unique_lock lock(mutex_);
  CompleteLocals(lock);
}

// Completes the ranks whose program has run, once nothing of the operation is under way here; after
// a failure those whose program will not run or has ended, and takes the notices back. Then the
// operation may be over, which it is before anybody is told. Unlocks.
void FifoOperation::CompleteLocals(std::unique_lock<std::mutex>& lock) {
  std::vector<std::function<void(const Status&)>> leaving;
  std::vector<ExecutionTable::Call> finished;
  std::vector<engine::Engine::Posted> posted;
  bool withdraw = false;
  for (Local& l : locals_) {
    if (!l.arrived || l.completed || l.busy || !(failed_ || (l.ran && told()))) continue;
    l.completed = true;
    ++completed_;
    finished.push_back(l.matched);
    leaving.push_back(std::move(l.call.done));
    l.call = {};
  }
  if (failed_) {
    if (!withdrawn_ && !withdrawing_ && !posting_) {
      withdraw = withdrawing_ = true;
      for (uint32_t i = 0; i < notices_.size(); ++i) {
        const Notice& notice = notices_[i];
        if (posted_ && !notice.done) {
          posted.push_back({notice.peer, decides(), TokenOf(i), std::nullopt});
        } else if (!posted_ || decides()) {
          // What the peer sent ahead for it: the notice, or a grant for one that will not come.
          posted.push_back({notice.peer, decides(), 0, TagOfNotice(notice)});
        }
      }
    }
  }
  const bool now_over =
      !over_ && (failed_ ? completed_ == arrived_ && withdrawn_ : completed_ == locals_.size());
  if (now_over) over_ = true;
  const Status status = failure_;
  const std::shared_ptr<FifoOperation> self = Self();
  lock.unlock();
  for (const ExecutionTable::Call& call : finished) host_->OnLocalDone(call);
  if (now_over) host_->OnOperationOver(this);
  for (auto& done : leaving) host_->pool().Run([done = std::move(done), status] { done(status); });
  if (!withdraw) return;
  const auto withdrawn = [self] {
    std::unique_lock relock(self->mutex_);
    self->withdrawn_ = true;
    self->CompleteLocals(relock);
  };
  if (posted.empty()) {
    withdrawn();
  } else {
    host_->engine()->Cancel(std::move(posted), withdrawn);
  }
}

std::optional<executor::Place> FifoOperation::place() const {
  std::lock_guard lock(mutex_);
  return place_;
}

bool FifoOperation::Needs(ProcessId process) const {
  std::lock_guard lock(mutex_);
  for (const Notice& notice : notices_) {
    if (notice.peer == process && !notice.done) return true;
  }
  for (const Local& l : locals_) {
    if (l.completed || l.ran) continue;
    if (l.stream == nullptr || !l.started->load(std::memory_order_acquire)) return true;
    for (uint32_t m = 0; m < comm_->members.size(); ++m) {
      if (comm_->members[m].process == process && l.stream->pipes().Needs(m)) return true;
    }
  }
  return false;
}

Operation::Missing FifoOperation::GetMissing() const {
  std::lock_guard lock(mutex_);
  Missing missing;
  std::vector<bool> owed(comm_->members.size(), false), due(comm_->members.size(), false);
  for (uint32_t local = 0; local < locals_.size(); ++local) {
    const Local& l = locals_[local];
    if (!l.arrived) missing.local_devices.push_back(comm_->members[comm_->locals[local]].device);
    if (l.completed || l.ran) continue;
    const bool started = l.stream != nullptr && l.started->load(std::memory_order_acquire);
    for (uint32_t m = 0; m < comm_->members.size(); ++m) {
      // Until its place is known everybody has still to come, but only one is to blame.
      due[m] = due[m] || !started;
      if (!started) continue;
      owed[m] = owed[m] || l.stream->pipes().Awaits(m);
      due[m] = due[m] || l.stream->pipes().Owes(m);
    }
  }
  for (const Notice& notice : notices_) {
    // Whoever of its process is late, only that process knows.
    for (uint32_t m = 0; !notice.done && m < comm_->members.size(); ++m) {
      if (comm_->members[m].process != notice.peer) continue;
      owed[m] = owed[m] || !decides();
      due[m] = true;
    }
  }
  for (uint32_t m = 0; m < comm_->members.size(); ++m) {
    if (comm_->members[m].process == comm_->self) continue;
    if (owed[m]) missing.owed_by.push_back(m);
    if (owed[m] || due[m]) missing.remote.push_back(comm_->members[m]);
  }
  return missing;
}

}  // namespace uccl::coll
