// Tables, epochs and failures of runtime.h.
#include "csrc/collectives/runtime.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "csrc/base/hash.h"
#include "csrc/base/huge_pages.h"
#include "csrc/collectives/abort_message.h"
#include "csrc/collectives/direct_operation.h"
#include "csrc/collectives/failure_text.h"
#include "csrc/collectives/fifo_operation.h"

namespace uccl::coll {
namespace {

// Of one of so many processes of this host.
uint64_t ReduceThreads(int processes) {
  constexpr uint64_t kMost = 16;  // more share one memory in vain
  const uint64_t cores = std::thread::hardware_concurrency();
  return std::clamp<uint64_t>(cores / static_cast<uint64_t>(processes), 1, kMost);
}

// Far above what runs at a time: ranks here, times the lanes of their communicators.
constexpr int64_t kMostPrograms = 4096;

bool UsesFifos(const Config& config) { return config.executor == "fifo"; }

Status CheckExecutor(const Config& config) {
  if (config.executor == "direct" || UsesFifos(config)) return Status::Ok();
  return Status::Error(StatusCode::kInvalidArgument,
                       "setting executor=\"" + config.executor +
                           "\" (JAX_UCCL_EXECUTOR) is neither \"direct\" nor \"fifo\"");
}

// A fault point: shuffles the order in which calls of different places and devices come here. Per
// thread, so that it orders nothing by itself; the seed does not matter.
void TestDelay(int64_t limit_us) {
  thread_local uint64_t state =
      std::hash<std::thread::id>()(std::this_thread::get_id()) ^
      static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  state = Mix64(state + 1);
  std::this_thread::sleep_for(
      std::chrono::microseconds(state % (static_cast<uint64_t>(limit_us) + 1)));
}

}  // namespace

Runtime::Runtime()
    : pool_(Config().completion_threads),
      programs_(kMostPrograms),
      reduce_threads_(ReduceThreads(/*processes=*/1)),
      executions_(std::make_unique<ExecutionTable>()) {}

Runtime::~Runtime() {
  (void)Shutdown(Nanos(0));  // what could not be delivered is of no interest to anybody any more
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    look_.notify_all();
  }
  if (watchdog_.joinable()) watchdog_.join();
}

Nanos Runtime::Now() const { return std::chrono::steady_clock::now().time_since_epoch(); }

Result<std::string> Runtime::Start(const Config& config) {
  std::lock_guard lock(mutex_);
  if (engine_ != nullptr) {
    return Status::Error(StatusCode::kInvalidArgument, "already started; call shutdown() first");
  }
  if (!by_id_.empty()) {
    return Status::Error(
        StatusCode::kInvalidArgument,
        std::to_string(by_id_.size()) + " operations are in flight; wait for them first");
  }
  auto policy = MakePolicy(config);
  if (!policy.ok()) return policy.status();
  if (Status status = CheckExecutor(config); !status.ok()) return status;
  auto parts = std::make_shared<EngineParts>();
  engine::EngineSink* sink = this;
  if (UsesFifos(config)) {
    parts->puts = std::make_unique<proxy::PutSwitch>(this);
    sink = parts->puts.get();
  }
  auto engine = engine::Engine::Start(config, sink);
  if (!engine.ok()) return engine.status();
  policy_ = std::move(policy.value());
  parts->engine = std::move(engine.value());
  parts_ = parts;
  engine_ = {parts, parts->engine.get()};
  executor_ = nullptr;  // of operations within this process so far
  Apply(config);
  // A new epoch: everybody counts from zero, and what was aborted works again.
  executions_ = std::make_unique<ExecutionTable>();
  comms_.clear();
  lost_processes_.clear();
  run_offsets_.clear();
  startup_failure_ = abort_ = last_error_ = Status::Ok();
  connected_ = false;
  return engine_->LocalAddress();
}

Status Runtime::Connect(ProcessId self, const std::vector<std::string>& addresses,
                        uint64_t session) {
  std::shared_ptr<engine::Engine> engine;
  {
    std::lock_guard lock(mutex_);
    engine = engine_;
    if (Status fits = CheckHosts(*policy_, addresses.size()); !fits.ok()) return fits;
  }
  if (engine == nullptr) return Status::Error(StatusCode::kInvalidArgument, "not started");
  // Waits for the engine thread, which may be in a callback that needs the mutex.
  Status status = engine->Connect(self, addresses, session);
  std::lock_guard lock(mutex_);
  if (engine_ == engine) connected_ = status.ok();
  reduce_threads_.store(ReduceThreads(engine->LocalProcesses()), std::memory_order_relaxed);
  return status;
}

void Runtime::FailStartup(const Status& cause) {
  std::vector<uint64_t> ids;
  {
    std::lock_guard lock(mutex_);
    startup_failure_ = cause;
    for (const auto& [id, state] : comms_) {
      if (state.comm != nullptr && !state.comm->all_local()) ids.push_back(id);
    }
  }
  for (uint64_t id : ids) AbortComm(id, cause, /*announce=*/false);
}

void Runtime::Abort(const std::string& reason) {
  const Status cause = Status::Error(StatusCode::kAborted, reason);
  std::vector<uint64_t> ids;
  {
    std::lock_guard lock(mutex_);
    if (abort_.ok()) abort_ = cause;
    for (const auto& [id, state] : comms_) ids.push_back(id);
  }
  for (uint64_t id : ids) AbortComm(id, cause, /*announce=*/true);
}

Status Runtime::Shutdown(Nanos timeout) {
  const Nanos deadline = Now() + timeout;
  {
    std::unique_lock lock(mutex_);
    drained_.wait_for(lock, timeout, [&] { return by_id_.empty(); });
  }
  // One that everybody here has the result of is over as soon as a thread of ours is through with
  // it; to tell the others that it was aborted would be wrong.
  if (std::ranges::any_of(Operations(), [](const OpPtr& op) { return !op->completed(); }))
    Abort("shut down while the operation was in flight");
  {
    // Ends soon by itself: threads leave the buffers, the engine confirms that it has dropped the
    // messages.
    std::unique_lock lock(mutex_);
    drained_.wait(lock, [&] { return by_id_.empty(); });
  }
  CloseStreams(deadline);
  std::shared_ptr<engine::Engine> engine;
  std::shared_ptr<executor::Executor> executor;
  {
    std::unique_lock lock(mutex_);
    engine = std::move(engine_);
    parts_ = nullptr;
    executor = std::move(executor_);
    drained_.wait(lock, [&] { return judging_ == 0; });  // soon: there are no operations to judge
    connected_ = false;
    reduce_threads_.store(ReduceThreads(1), std::memory_order_relaxed);
    // The next epoch, or life without one, starts clean.
    executions_ = std::make_unique<ExecutionTable>();
    comms_.clear();
    abort_ = Status::Ok();
  }
  DropStreams();  // opened since, and refused from now on
  if (executor != nullptr) executor->Drain(std::max(Nanos(0), deadline - Now()));
  Status status;
  if (engine != nullptr) status = engine->Shutdown(std::max(Nanos(0), deadline - Now()));
  // Not before: peers that are not that far yet have their puts acknowledged until then.
  if (executor != nullptr) executor->Stop();
  return status;
}

void Runtime::Apply(const Config& config) {
  config_ = config;
  pool_.set_max_threads(config.completion_threads);
  UseHugePages(config.huge_pages != 0);
  scratch_.set_keep_bytes(static_cast<uint64_t>(config.scratch_cache_bytes));
  stay_.set_limit(FromMicros(config.stay_us));
}

Status Runtime::SetConfig(const Config& config) {
  auto policy = MakePolicy(config);
  if (!policy.ok()) return policy.status();
  if (Status status = CheckExecutor(config); !status.ok()) return status;
  std::lock_guard lock(mutex_);
  policy_ = std::move(policy.value());
  Apply(config);
  return Status::Ok();
}

Result<std::shared_ptr<executor::Executor>> Runtime::ExecutorFor(ProcessId self) {
  std::lock_guard one_at_a_time(executor_mutex_);
  std::shared_ptr<EngineParts> parts;
  Config config;
  {
    std::lock_guard lock(mutex_);
    if (executor_ != nullptr) return executor_;
    parts = parts_;
    config = config_;
  }
  auto made = executor::Executor::Start(
      config, parts == nullptr ? nullptr : parts->engine.get(), self,
      [this](std::function<void()> task) { programs_.Run(std::move(task)); });
  if (!made.ok()) return made.status();
  if (parts != nullptr) {
    parts->executor = made.value();
    parts->puts->Attach(made.value()->proxy());  // calls back for puts that came early
  }
  std::lock_guard lock(mutex_);
  if (parts_ != parts) return Status::Error(StatusCode::kAborted, "the runtime was shut down");
  executor_ = std::move(made.value());
  return executor_;
}

void Runtime::SetDefaultDevices(DeviceTable table) {
  std::lock_guard lock(mutex_);
  default_devices_ = std::make_shared<const DeviceTable>(std::move(table));
}

void Runtime::Fail(Call& call, const Status& status) {
  Status s = status;
  if (s.op.empty()) s.op = call.site->spec().label;
  {
    std::lock_guard lock(mutex_);
    ++failed_count_;
    last_error_ = s;
  }
  call.done(s);
}

void Runtime::Submit(Call call) {
  std::shared_ptr<const DeviceTable> defaults;
  std::shared_ptr<const PlanPolicy> policy;
  int64_t test_delay_us = 0;
  bool fifos = false;
  {
    std::lock_guard lock(mutex_);
    fifos = UsesFifos(config_);
    defaults = default_devices_;
    policy = policy_;
    test_delay_us = config_.test_delay_us;
  }
  if (test_delay_us > 0) TestDelay(test_delay_us);
  Result<CallSite::Seat> seat = call.site->SeatOf(call.device, call.partition, *defaults);
  if (!seat.ok()) return Fail(call, seat.status());
  const CallSite::Seat& at = seat.value();
  if (call.program && call.ends == nullptr && !fifos) {
    return Fail(call, Status::Error(StatusCode::kUnsupported,
                                    "runs through commands and proxies only; set executor=fifo "
                                    "(JAX_UCCL_EXECUTOR) on all processes"));
  }
  // Wrong settings are wrong on all ranks, which therefore all come to an end here.
  const Result<CallSite::Plan> plan =
      call.site->MakePlan(*at.comm, call.elements, call.dtype, *policy,
                          fifos ? CallSite::PlanFor::kRanks : CallSite::PlanFor::kProcess);
  if (!plan.ok()) return Fail(call, plan.status());
  std::shared_ptr<executor::Executor> executor;
  if (fifos) {
    auto made = ExecutorFor(at.comm->self);
    if (!made.ok()) return Fail(call, made.status());
    executor = std::move(made.value());
  }
  const CallSiteSpec& spec = call.site->spec();
  ExecutionTable::Call matched;
  matched.comm = at.comm->id;
  matched.site = static_cast<uint64_t>(spec.site);
  matched.instance = call.site->instance().number;
  matched.device = call.device;
  matched.launch = call.site->launch();
  matched.run = call.run;
  matched.exact = at.comm->all_local();
  matched.ordered = spec.ordered;
  call.site->MarkExecuted(&instances_);

  // Held until the call leaves: the operation may be over before that, and the epoch with it.
  std::shared_ptr<engine::Engine> engine;
  Result<OpPtr> op = Join(call, at, matched, plan.value(), executor, &engine);
  if (!op.ok()) {
    // A call that cannot be matched leaves its peers waiting for it, so they must hear of it.
    if (op.status().code == StatusCode::kProtocol)
      AbortComm(at.comm->id, op.status(), /*announce=*/true);
    return Fail(call, op.status());
  }
  op.value()->Arrive(at.local, std::move(call), matched, engine.get(), &stay_);
}

void Runtime::Reject(Call call, const Status& cause) {
  std::shared_ptr<const DeviceTable> defaults;
  {
    std::lock_guard lock(mutex_);
    defaults = default_devices_;
  }
  const Result<CallSite::Seat> seat = call.site->SeatOf(call.device, call.partition, *defaults);
  if (seat.ok()) {
    {
      std::lock_guard lock(mutex_);
      CommState& state = comms_[seat.value().comm->id];
      if (state.comm == nullptr) state.comm = seat.value().comm;
    }
    AbortComm(seat.value().comm->id, cause, /*announce=*/true);
  }
  Fail(call, cause);
}

Status Runtime::Usable(const std::shared_ptr<const Communicator>& comm,
                       const std::shared_ptr<executor::Executor>& executor) {
  const auto refuse = [&](const Status& cause) {
    Status s = Status::Error(StatusCode::kAborted,
                             "the communicator was aborted earlier by " + cause.ToString());
    s.comm_id = static_cast<int64_t>(comm->id);
    s.peer = cause.peer;
    s.process = cause.process;
    return s;
  };
  if (!abort_.ok()) return refuse(abort_);
  if (executor != nullptr && executor != executor_)  // an epoch began or ended meanwhile
    return refuse(Status::Error(StatusCode::kAborted, "shut down"));
  CommState& state = comms_[comm->id];
  if (state.comm == nullptr) state.comm = comm;
  if (!state.aborted.ok()) return refuse(state.aborted);
  if (comm->all_local()) return Status::Ok();
  if (!startup_failure_.ok()) return startup_failure_;
  if (engine_ == nullptr) {
    return Status::Error(
        StatusCode::kInvalidArgument,
        "this operation reaches other processes, but jax_uccl is not started in this one; "
        "call jax_uccl.init() after jax.distributed.initialize()");
  }
  for (const auto& [process, status] : lost_processes_) {
    if (HasProcess(*comm, static_cast<ProcessId>(process))) return status;
  }
  return Status::Ok();
}

Result<Runtime::OpPtr> Runtime::Join(const Call& call, const CallSite::Seat& seat,
                                     const ExecutionTable::Call& matched,
                                     const CallSite::Plan& plan,
                                     const std::shared_ptr<executor::Executor>& executor,
                                     std::shared_ptr<engine::Engine>* engine) {
  std::lock_guard lock(mutex_);
  const Communicator& comm = *seat.comm;
  if (Status status = Usable(seat.comm, executor); !status.ok()) return status;
  CommState& state = comms_[comm.id];
  if (!comm.all_local()) {
    if (connected_ && !state.neighbours.has_value()) {
      state.neighbours = std::ranges::all_of(comm.members, [&](const Member& m) {
        return m.process == comm.self || engine_->Shares(m.process);
      });
    }
    if (state.neighbours.value_or(false)) *engine = engine_;
  }
  Result<OpKey> key = executions_->Next(matched);
  if (!key.ok()) return key.status();
  OpPtr& slot = by_key_[key.value()];
  if (slot == nullptr) {
    const uint64_t id = next_op_id_++;
    const Operation::Identity identity{id, key.value(), state.next_seq++, Now(), seat.comm};
    if (executor == nullptr) {
      slot = std::make_shared<DirectOperation>(this, identity, call, plan);
    } else {
      std::optional<executor::Place> place;  // others are told it
      if (comm.members[0].process == comm.self) place = TakePlace(&state);
      slot = std::make_shared<FifoOperation>(this, identity, call, plan, executor, place);
    }
    by_id_.emplace(id, slot);
    ++started_count_;
    ++algorithm_counts_[plan.algorithm];
    if (!watchdog_.joinable()) watchdog_ = std::thread([this] { WatchdogLoop(); });
    if (watchdog_asleep_) look_.notify_all();
  }
  return slot;
}

void Runtime::OnLocalDone(const ExecutionTable::Call& call) {
  std::lock_guard lock(mutex_);
  executions_->Finish(call);
}

void Runtime::OnFault(const Operation& op, const Status& cause) {
  AbortComm(op.comm().id, cause, /*announce=*/true);
}

executor::Place Runtime::TakePlace(CommState* state) {
  std::vector<CommState::Lane>& lanes = state->lanes;
  const auto idle = std::ranges::find(lanes, false, &CommState::Lane::busy);
  auto lane = static_cast<uint32_t>(idle - lanes.begin());
  if (idle == lanes.end()) {
    // Each has memory and counters of its own; beyond this many they queue. All programs that are
    // under way have a thread.
    constexpr size_t kMostLanes = 64, kMostOfComm = kMostPrograms / 8;
    const size_t most =
        std::clamp<size_t>(kMostOfComm / state->comm->members.size(), 1, kMostLanes);
    if (lanes.size() < most) {
      lanes.emplace_back();
    } else {
      lane = static_cast<uint32_t>(state->next_seq % most);
    }
  }
  lanes[lane].busy = true;
  return {lane, lanes[lane].next++};
}

void Runtime::OnOperationOver(Operation* op) {
  const std::optional<executor::Place> place = op->place();
  std::lock_guard lock(mutex_);
  if (auto it = by_key_.find(op->key()); it != by_key_.end() && it->second.get() == op)
    by_key_.erase(it);
  by_id_.erase(op->id());
  if (const auto it = comms_.find(op->comm().id); place && it != comms_.end()) {
    // Shut down and begun again meanwhile, the lanes may be others.
    if (place->lane < it->second.lanes.size()) it->second.lanes[place->lane].busy = false;
  }
  suspects_.erase(op->id());
  if (by_id_.empty()) drained_.notify_all();
}

void Runtime::AbortComm(uint64_t comm_id, const Status& cause, bool announce,
                        std::optional<ProcessId> lost) {
  std::vector<OpPtr> failed;
  std::vector<std::shared_ptr<StreamCall>> calls;
  bool first = false;
  {
    std::lock_guard lock(mutex_);
    CommState& state = comms_[comm_id];
    first = state.aborted.ok();
    if (first) state.aborted = cause;  // nothing joins from now on
    for (const auto& [lane, call] : streams_) {
      if (call->comm().id == comm_id) calls.push_back(call);
    }
    for (const auto& [id, op] : by_id_) {
      if (op->comm().id == comm_id) failed.push_back(op);
    }
  }
  std::erase_if(failed,
                [&](const OpPtr& op) { return op->failed() || (lost && !op->Needs(*lost)); });
  std::erase_if(calls, [](const auto& call) { return !call->failure().ok(); });
  if (lost) calls.clear();  // the watchdog judges whether they need it
  // The others will miss the lost process themselves; they only need to hear of operations that
  // they wait for.
  if (failed.empty() && calls.empty() && (lost || !first)) return;

  const auto under_way = [](const auto& call) { return !call->idle(); };
  std::set<ProcessId> tell;
  std::shared_ptr<engine::Engine> engine;
  {
    std::lock_guard lock(mutex_);
    const CommState& state = comms_[comm_id];
    failed_count_ += failed.size() + static_cast<uint64_t>(std::ranges::count_if(calls, under_way));
    last_error_ = failed.empty() ? cause : failed[0]->Describe(cause, Now());
    if (announce && engine_ != nullptr && state.comm != nullptr) {
      for (const Member& m : state.comm->members) {
        if (m.process != state.comm->self && !lost_processes_.contains(ToInt(m.process)))
          tell.insert(m.process);
      }
    }
    engine = engine_;
  }
  // Our own ranks were not told by anybody; the others get the cause in the words used here.
  for (ProcessId process : tell) engine->SendControl(process, EncodeAbort(comm_id, cause));
  for (const OpPtr& op : failed) op->Fail(op->Describe(cause, Now()));
  for (const auto& call : calls) call->Fail(cause);
}

Runtime::OpPtr Runtime::FindByToken(uint64_t token, uint32_t* index) const {
  *index = static_cast<uint32_t>(token & ((1u << Operation::kIndexBits) - 1));
  std::lock_guard lock(mutex_);
  const auto it = by_id_.find(token >> Operation::kIndexBits);
  return it == by_id_.end() ? nullptr : it->second;
}

void Runtime::OnMessage(ProcessId peer, const core::Event& event) {
  uint32_t index = 0;
  const OpPtr op = FindByToken(event.token, &index);
  if (op == nullptr) return;  // failed and forgotten meanwhile
  switch (event.kind) {
    case core::EventKind::kSendDone:
    case core::EventKind::kRecvDone:
      if (event.status.ok()) {
        if (event.kind == core::EventKind::kRecvDone) CheckRuns(*op, peer, event.remote);
        op->OnTransferDone(index, event.address);
      } else {
        Status cause = event.status;
        cause.process = ToInt(peer);
        AbortComm(op->comm().id, cause, /*announce=*/true);
      }
      return;
    case core::EventKind::kMismatch:
      AbortComm(op->comm().id, MismatchOf(*op, peer, event.remote), /*announce=*/true);
      return;
    case core::EventKind::kControl:
    case core::EventKind::kArrived:
    case core::EventKind::kFailed:
      return;  // not per message; they come through the two calls below
  }
}

// Both sides of a pair of executables count their launches, so the difference of their RunIds is
// constant. If it changes, two launches were paired that do not belong together, which equal keys
// cannot show.
void Runtime::CheckRuns(const Operation& op, ProcessId peer, const core::MessageInfo& remote) {
  const OpDescription theirs = OpDescription::Decode(remote.note);
  if (theirs.kind == OpKind::kInvalid)
    return;  // the transport had not seen the sender's description
  const uint32_t offset = theirs.run - op.description().run;
  {
    std::lock_guard lock(mutex_);
    const auto [it, fresh] =
        run_offsets_.try_emplace({op.description().launch, ToInt(peer), theirs.launch}, offset);
    if (fresh || it->second == offset) return;
  }
  Status cause = Status::Error(
      StatusCode::kProtocol,
      "ambiguous call site: a launch here met another launch of the same program on "
      "process " +
          std::to_string(ToInt(peer)) +
          ". Launch multi-process programs from one thread and equally often on every "
          "process");
  cause.process = ToInt(peer);
  AbortComm(op.comm().id, cause, /*announce=*/true);
}

void Runtime::OnControl(ProcessId peer, const std::string& control) {
  uint64_t comm_id = 0;
  Status cause;
  if (!DecodeAbort(control, &comm_id, &cause)) {
    std::lock_guard lock(mutex_);
    last_error_ =
        Status::Error(StatusCode::kProtocol, "control message that this version does not know");
    last_error_.process = ToInt(peer);
    return;
  }
  cause.detail += " (reported by process " + std::to_string(ToInt(peer)) + ")";
  AbortComm(comm_id, cause, /*announce=*/false);
}

std::vector<Runtime::OpPtr> Runtime::Operations() const {
  std::lock_guard lock(mutex_);
  std::vector<OpPtr> ops;
  for (const auto& [id, op] : by_id_) ops.push_back(op);
  return ops;
}

std::vector<OperationStatus> Runtime::InFlight() const {
  std::vector<OperationStatus> all;
  for (const OpPtr& op : Operations()) {
    const Operation::Missing missing = op->GetMissing();
    all.push_back({op->label(), static_cast<int64_t>(op->comm().id),
                   static_cast<int64_t>(op->seq()), Now() - op->started(), missing.local_devices,
                   missing.remote});
  }
  return all;
}

RuntimeStats Runtime::Stats() {
  RuntimeStats stats;
  std::unique_lock lock(mutex_);
  stats.operations_started = started_count_;
  stats.operations_failed = failed_count_;
  stats.operations_in_flight = by_id_.size();
  for (const auto& [algorithm, count] : algorithm_counts_)
    stats.algorithms[std::string(OpKindName(algorithm->kind)) + " " + algorithm->name] = count;
  const std::shared_ptr<engine::Engine> engine = engine_;
  lock.unlock();
  stats.worker_threads = static_cast<uint64_t>(pool_.threads() + programs_.threads());
  if (engine != nullptr) stats.engine = engine->Stats();
  return stats;
}

Status Runtime::last_error() const {
  std::lock_guard lock(mutex_);
  return last_error_;
}

Runtime& TheRuntime() {
  static Runtime* runtime = new Runtime;  // outlives every XLA thread
  return *runtime;
}

}  // namespace uccl::coll
