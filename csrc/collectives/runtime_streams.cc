// Operations on streams of a device: which call sites have one, and who watches them (runtime.h).
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/base/hash.h"
#include "csrc/collectives/runtime.h"
#include "csrc/collectives/stream_call.h"

namespace uccl::coll {
namespace {

// Apart from the names of lanes that are handed out while operations run.
constexpr uint64_t kStreamLanes = 0x73747265616d73;

}  // namespace

Result<std::shared_ptr<StreamCall>> Runtime::StreamFor(const Call& call,
                                                       const cuda::Device* device) {
  std::lock_guard one_at_a_time(streams_mutex_);
  std::shared_ptr<const DeviceTable> defaults;
  std::shared_ptr<const PlanPolicy> policy;
  uint64_t staging = 0;
  bool fifos = false;
  {
    std::lock_guard lock(mutex_);
    fifos = config_.executor == "fifo";
    staging = static_cast<uint64_t>(config_.executor_staging_bytes);
    defaults = default_devices_;
    policy = policy_;
  }
  if (!fifos) {
    return Status::Error(StatusCode::kUnsupported,
                         "devices that are no CPU go through commands and proxies only; set "
                         "executor=fifo (JAX_UCCL_EXECUTOR) on all processes");
  }
  const Result<CallSite::Seat> seat = call.site->SeatOf(call.device, call.partition, *defaults);
  if (!seat.ok()) return seat.status();
  const std::shared_ptr<const Communicator>& comm = seat.value().comm;
  // Equal on all ranks, and for all executables that hold this call.
  const uint64_t lane =
      HashWords({kStreamLanes, comm->id, static_cast<uint64_t>(call.site->spec().site),
                 static_cast<uint64_t>(call.site->instance().number)});
  {
    std::lock_guard lock(mutex_);
    if (const auto it = streams_.find({lane, call.device}); it != streams_.end()) {
      if (Status status = Usable(comm, nullptr); !status.ok()) return status;
      return it->second;
    }
  }
  const Result<CallSite::Plan> plan =
      call.site->MakePlan(*comm, call.elements, call.dtype, *policy, CallSite::PlanFor::kKernels);
  if (!plan.ok()) return plan.status();
  auto executor = ExecutorFor(comm->self);
  if (!executor.ok()) return executor.status();
  {
    std::lock_guard lock(mutex_);
    if (Status status = Usable(comm, executor.value()); !status.ok()) return status;
  }
  call.site->MarkExecuted(&instances_);
  StreamCall::Options options;
  options.comm = comm;
  options.rank = comm->locals[seat.value().local];
  options.label = call.site->spec().label;
  options.key = lane;
  options.tag = DigestOf(DescriptionOf(call, *comm, *plan.value().algorithm), call.shape);
  options.schedule = plan.value().of_ranks[seat.value().local];
  options.dtype = call.dtype;
  options.reduction = call.site->spec().reduction;
  if (call.stream_program) options.program = call.stream_program();
  options.staging_bytes =
      options.program != nullptr && !options.program->uses_pipes() ? 0 : staging;
  options.ragged = call.site->spec().kind == OpKind::kRaggedAllToAll;
  auto opened = StreamCall::Open(std::move(options), device, executor.value()->proxy());
  if (!opened.ok()) return opened.status();
  std::lock_guard lock(mutex_);
  if (Status status = Usable(comm, executor.value()); !status.ok()) return status;
  streams_.emplace(std::pair(lane, call.device), opened.value());
  ++algorithm_counts_[plan.value().algorithm];
  if (!watchdog_.joinable()) watchdog_ = std::thread([this] { WatchdogLoop(); });
  if (watchdog_asleep_) look_.notify_all();
  return opened;
}

std::vector<std::shared_ptr<StreamCall>> Runtime::Streams() const {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<StreamCall>> all;
  for (const auto& [lane, call] : streams_) all.push_back(call);
  return all;
}

void Runtime::LookAtStreams() {
  Nanos timeout;
  std::map<int32_t, Status> lost;
  {
    std::lock_guard lock(mutex_);
    timeout = FromMillis(config_.op_timeout_ms);
    lost = lost_processes_;
  }
  for (const auto& call : Streams()) {
    if (Status status = call->Look(Now(), timeout, lost); !status.ok())
      AbortComm(call->comm().id, status, /*announce=*/true);
  }
}

void Runtime::CloseStreams(Nanos deadline) {
  constexpr Nanos kNap = std::chrono::milliseconds(1);
  const auto under_way = [](const auto& call) { return call->failure().ok() && !call->idle(); };
  std::vector<std::shared_ptr<StreamCall>> calls = Streams();
  while (std::ranges::any_of(calls, under_way) && Now() < deadline)
    std::this_thread::sleep_for(kNap);
  if (std::ranges::any_of(calls, under_way))
    Abort("shut down while an operation was under way on a stream");
  DropStreams();
}

void Runtime::DropStreams() {
  decltype(streams_) streams;
  {
    std::lock_guard lock(mutex_);
    streams.swap(streams_);
  }
  // All of them first: closing one waits until everything on its device is over, and that may be a
  // kernel of another one that waits.
  for (const auto& [lane, call] : streams)
    call->Fail(Status::Error(StatusCode::kAborted, "the runtime was shut down"));
  for (const auto& [lane, call] : streams) call->Close();
}

}  // namespace uccl::coll
