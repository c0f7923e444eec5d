// The collectives of one process: call sites come in, operations run, failures spread to all
// members.
//
// Created when the extension is loaded and never destroyed (XLA threads may call until the process
// ends); Start/Shutdown bracket an epoch: the engine, the counters and the abort state belong to
// one epoch. A process that talks to no other one needs no Start.
//
// Threads: Submit on XLA threads, EngineSink on the engine thread, the rest on Python threads, plus
// one watchdog that wakes a few times a second only while operations are in flight. `mutex_` guards
// the tables; it is never held while an operation or the engine is called (they take their own
// locks and call back).
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "csrc/base/config.h"
#include "csrc/base/status.h"
#include "csrc/collectives/call_site.h"
#include "csrc/collectives/matching.h"
#include "csrc/collectives/operation.h"
#include "csrc/collectives/stream_call.h"
#include "csrc/collectives/worker_pool.h"
#include "csrc/engine/engine.h"
#include "csrc/executor/executor.h"
#include "csrc/proxy/put_switch.h"

namespace uccl::coll {

// One operation in flight, for people.
struct OperationStatus {
  std::string op;
  int64_t comm_id = 0, seq = 0;
  Nanos elapsed{};
  std::vector<int64_t> waiting_for_local;  // devices of this process that have not called
  std::vector<Member> waiting_for_remote;
};

struct RuntimeStats {
  uint64_t operations_started = 0, operations_failed = 0;
  uint64_t operations_in_flight = 0, worker_threads = 0;
  std::map<std::string, uint64_t> algorithms;  // operations started, by "all_reduce ring"
  engine::EngineStats engine;
};

class Runtime final : public OperationHost, public engine::EngineSink {
 public:
  Runtime();
  ~Runtime() override;  // ends the epoch at once; tests only

  // --- epochs (Python threads) ---
  // Opens the backend; returns the address to publish. An error when already started.
  Result<std::string> Start(const Config& config);
  // All processes' addresses are known.
  Status Connect(ProcessId self, const std::vector<std::string>& addresses, uint64_t session);
  // Start-up failed: operations with remote members fail with `cause`, now and later.
  void FailStartup(const Status& cause);
  // Ends the epoch: waits up to `timeout` for operations in flight and for acknowledgements, aborts
  // the rest.
  Status Shutdown(Nanos timeout);
  // Fails every operation in flight and every later one of this epoch, here and on the other
  // members. The news may overtake data on its way to them.
  void Abort(const std::string& reason);
  // For processes that never Start; deadlines, sizes and algorithms only.
  Status SetConfig(const Config& config);
  void SetDefaultDevices(DeviceTable table);

  // --- operations (XLA threads) ---
  // Never blocks on a peer. call.done runs exactly once, whatever happens.
  void Submit(Call call);
  // For a call whose arguments are wrong, instead of Submit: fails it, and the operation on all
  // other members, who would wait for it.
  void Reject(Call call, const Status& cause);
  InstanceTable& instances() { return instances_; }

  // --- operations on a stream of a device (runtime_streams.cc) ---
  // That of the call's site and device, whose executions are its to enqueue; `done` and the buffers
  // are not looked at. Opened by the first call of an epoch, on a thread whose current device is
  // that one; refused once its communicator has failed. kUnsupported unless executor=fifo.
  Result<std::shared_ptr<StreamCall>> StreamFor(const Call& call, const cuda::Device* device);

  // --- seen by people (any thread but the engine's) ---
  std::vector<OperationStatus> InFlight() const;
  RuntimeStats Stats();
  Status last_error() const;

  // OperationHost
  // Not under the mutex: only operations in the tables call it, they saw the engine under the mutex
  // when they were made, and Shutdown replaces it only when the tables are empty.
  engine::Engine* engine() override { return engine_.get(); }
  WorkerPool& pool() override { return pool_; }
  ScratchPool& scratch() override { return scratch_; }
  // Relaxed: how many threads share a reduction does not change its result.
  uint64_t reduce_threads() const override {
    return reduce_threads_.load(std::memory_order_relaxed);
  }
  void OnLocalDone(const ExecutionTable::Call& call) override;
  void OnFault(const Operation& op, const Status& cause) override;
  void OnOperationOver(Operation* op) override;

  // EngineSink
  void OnMessage(ProcessId peer, const core::Event& event) override;
  void OnControl(ProcessId peer, const std::string& control) override;
  void OnPeerLost(ProcessId peer, const Status& status) override;

 private:
  struct CommState {
    std::shared_ptr<const Communicator> comm;  // null while only its abort is known
    uint64_t next_seq = 0;
    // Of operations by FIFO, where the first member lives here.
    struct Lane {
      uint64_t next = 0;
      bool busy = false;
    };
    std::vector<Lane> lanes;
    // Whether all other processes share memory with this one, once that is known.
    std::optional<bool> neighbours;
    Status aborted;  // first cause; ok while it works
  };
  using OpPtr = std::shared_ptr<Operation>;
  // Destroyed from the last to the first: the engine's threads call its sink, which calls the
  // proxy.
  struct EngineParts {
    std::unique_ptr<proxy::PutSwitch> puts;
    std::shared_ptr<executor::Executor> executor;
    std::unique_ptr<engine::Engine> engine;
  };

  // `engine`: with whom the call may stay; null where all members are here, or any is far away.
  // `executor`: who carries it out; null for the engine itself.
  Result<OpPtr> Join(const Call& call, const CallSite::Seat& seat,
                     const ExecutionTable::Call& matched, const CallSite::Plan& plan,
                     const std::shared_ptr<executor::Executor>& executor,
                     std::shared_ptr<engine::Engine>* engine);
  // `announce`: tell the other processes of the communicator. With `lost`, operations that need
  // nothing more of that process go on: it may have left because it had done its part.
  void AbortComm(uint64_t comm_id, const Status& cause, bool announce,
                 std::optional<ProcessId> lost = {});
  // Whether operations of the communicator may begin, which is known from then on. Under the mutex.
  Status Usable(const std::shared_ptr<const Communicator>& comm,
                const std::shared_ptr<executor::Executor>& executor);
  // Waits for executions that are under way, until then; fails what is left.
  void CloseStreams(Nanos deadline);
  void DropStreams();
  // What the watchdog does for them. Not under the mutex.
  void LookAtStreams();
  std::vector<std::shared_ptr<StreamCall>> Streams() const;
  // The next place in a lane where nothing is under way. Under the mutex.
  static executor::Place TakePlace(CommState* state);
  OpPtr FindByToken(uint64_t token, uint32_t* index) const;
  std::vector<OpPtr> Operations() const;
  Nanos Now() const;
  void Apply(const Config& config);  // under the mutex
  // That of the epoch, made on first use. Not under the mutex.
  Result<std::shared_ptr<executor::Executor>> ExecutorFor(ProcessId self);

  void Fail(Call& call, const Status& status);
  void CheckRuns(const Operation& op, ProcessId peer, const core::MessageInfo& remote);
  void WatchdogLoop();
  // Fails those that are past their deadline or met a different operation.
  void Inspect(const std::vector<OpPtr>& old,
               const std::vector<engine::UnexpectedMessage>& unexpected);

  InstanceTable instances_;
  ScratchPool scratch_;  // outlives the pool, whose tasks hold operations
  WorkerPool pool_;
  // Programs of ranks, which wait for each other: completions must not queue behind them.
  WorkerPool programs_;
  StayPolicy stay_;
  std::atomic<uint64_t> reduce_threads_;

  std::mutex executor_mutex_;        // whoever makes the executor; taken before the mutex
  std::mutex streams_mutex_;         // whoever opens a stream call; taken before both
  mutable std::mutex mutex_;         // guards all below; see engine() for `engine_`
  std::condition_variable look_;     // the watchdog has a reason to wake
  std::condition_variable drained_;  // by_id_ became empty, or judging_ 0
  int judging_ = 0;                  // losses of peers that are still to be told to operations
  Config config_;
  std::shared_ptr<const PlanPolicy> policy_ = std::make_shared<const PlanPolicy>();
  std::shared_ptr<const DeviceTable> default_devices_ = std::make_shared<const DeviceTable>();
  std::unique_ptr<ExecutionTable> executions_;
  std::unordered_map<OpKey, OpPtr, OpKeyHash> by_key_;
  std::unordered_map<uint64_t, OpPtr> by_id_;
  std::unordered_map<uint64_t, CommState> comms_;
  std::map<int32_t, Status> lost_processes_;
  Status startup_failure_, abort_, last_error_;
  uint64_t next_op_id_ = 1;
  uint64_t started_count_ = 0, failed_count_ = 0;
  std::map<const Algorithm*, uint64_t> algorithm_counts_;
  bool connected_ = false, watchdog_asleep_ = false, stopping_ = false;
  // (launch here, process, launch there) -> difference of RunIds, which must stay constant.
  std::map<std::tuple<uint32_t, int32_t, uint32_t>, uint32_t> run_offsets_;
  std::set<uint64_t>
      suspects_;  // operations with a mismatch seen by the previous look of the watchdog
  std::thread watchdog_;
  // Shared only for the length of a call. It comes with the switch that is its sink where
  // operations go through FIFOs, and with the executor of this epoch then.
  std::shared_ptr<engine::Engine> engine_;
  std::shared_ptr<EngineParts> parts_;            // that hold engine_
  std::shared_ptr<executor::Executor> executor_;  // once an operation has asked for it
  // By lane and device.
  std::map<std::pair<uint64_t, int64_t>, std::shared_ptr<StreamCall>> streams_;
};

// The process's runtime.
Runtime& TheRuntime();

}  // namespace uccl::coll
