// One operation in flight, as seen by one process: joins the calls of the local ranks with the
// messages of the remote ones and walks through the schedule.
//
//   waiting for locals --Arrive--> running stage 0 .. stage k --> done
//            \________________________ Fail ____________________/-> failed, buffers withdrawn ->
//            done
//
// Threads: Arrive runs on XLA's threads, OnTransfer* on the engine thread, reductions on either or
// on the worker pool, Fail anywhere. One mutex guards the whole state; buffers are read and written
// outside it, by whoever counted itself into `active_` under it. A local rank is completed exactly
// once: when nothing that names its buffers is left (its future may then free them), or after a
// failure when no thread and no message can touch any buffer of the operation any more.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/collectives/call_site.h"
#include "csrc/collectives/description.h"
#include "csrc/collectives/matching.h"
#include "csrc/collectives/scratch_pool.h"
#include "csrc/collectives/stay_policy.h"
#include "csrc/collectives/worker_pool.h"
#include "csrc/engine/engine.h"

namespace uccl::coll {

// One rank's call, as the FFI handler hands it over.
struct Call {
  std::shared_ptr<CallSite> site;
  int64_t device = -1;
  int64_t partition = -1;  // only for modules without devices
  int64_t run = 0;         // XLA RunId
  DType dtype{};
  std::vector<int64_t> shape;
  uint64_t elements = 0;
  const std::byte* input = nullptr;  // both valid until `done`
  std::byte* output = nullptr;
  // Called once: on the calling thread before Submit returns, or later on a worker thread.
  std::function<void(const Status&)> done;
  // Of a ragged exchange: what goes to and comes from each member, in bytes.
  struct RaggedPart {
    uint64_t send_offset = 0, send_bytes = 0, receive_offset = 0, receive_bytes = 0;
  };
  std::vector<RaggedPart> ragged;
};

class Operation;

// What an operation needs from the runtime around it.
class OperationHost {
 public:
  virtual ~OperationHost() = default;
  virtual engine::Engine* engine() = 0;  // not null when a member is remote
  virtual WorkerPool& pool() = 0;
  virtual ScratchPool& scratch() = 0;
  // That may share a large reduction: this process's part of the cores.
  virtual uint64_t reduce_threads() const = 0;
  // The rank's call is over (before its `done` runs).
  virtual void OnLocalDone(const ExecutionTable::Call& call) = 0;
  // Ranks of this process called with arguments that do not fit together, or a peer's data could
  // not be read.
  virtual void OnFault(const Operation& op, const Status& cause) = 0;
  // No more callbacks will come for this operation.
  virtual void OnOperationOver(Operation* op) = 0;
};

class Operation final : public std::enable_shared_from_this<Operation> {
 public:
  Operation(OperationHost* host, uint64_t id, const OpKey& key, uint64_t seq, Nanos started,
            std::shared_ptr<const Communicator> comm, const Call& first,
            const CallSite::Plan& plan);

  // A local rank takes part. Does the copies that became possible and posts its messages. The last
  // rank to come may stay with `engine` for a moment (null: not), see stay_policy.h; else it never
  // waits.
  void Arrive(uint32_t local, Call call, const ExecutionTable::Call& matched,
              engine::Engine* engine, StayPolicy* policy);

  // Engine thread. `index` is the low part of the token; `address` is not 0 where the message was
  // lent.
  void OnTransferDone(uint32_t index, uint64_t address);

  // First failure wins; later ones are ignored. Completes every arrived rank with it, once that is
  // safe.
  void Fail(const Status& cause);

  // What is missing, for error texts and for `status()`.
  struct Missing {
    std::vector<int64_t> local_devices;  // have not called yet
    std::vector<Member> remote;          // still owe data, or have not acknowledged ours
    std::vector<uint32_t> owed_by;       // indices of the members that owe data
  };
  Missing GetMissing() const;
  // This operation's fields (op, comm, seq, elapsed) over the cause's code, peer and detail.
  Status Describe(const Status& cause, Nanos now) const;

  uint64_t id() const { return id_; }
  const OpKey& key() const { return key_; }
  const Communicator& comm() const { return *comm_; }
  const OpDescription& description() const { return description_; }
  uint64_t digest() const { return digest_; }
  const std::string& label() const { return label_; }
  uint64_t seq() const { return seq_; }
  Nanos started() const { return started_; }
  bool completed() const;  // every local member has its result
  bool over() const;
  bool failed() const;
  // Whether anything is still to be sent to that process or received from it. Once false, it stays
  // so.
  bool Needs(ProcessId process) const;

  static constexpr uint32_t kIndexBits = 24;
  uint64_t TokenOf(uint32_t index) const { return (id_ << kIndexBits) | index; }

 private:
  enum class ItemState : uint8_t { kIdle, kPosted, kDone };
  struct Local {
    Call call;
    ExecutionTable::Call matched;
    bool arrived = false, completed = false;
    // Its Arrive runs still, and is the one to complete it: XLA attaches its continuation later.
    // All other completions run XLA code and go to the pool.
    bool arriving = false;
    bool ready = false;  // completed meanwhile, but for its `done`
    uint64_t left = 0;   // items that name its buffers and are not finished
  };
  // A received message that is still in the memory of its sender. The reductions of the stage read
  // it there, block by block, which saves a passage through this process's memory.
  struct Lent {
    uint32_t index = 0;  // of the transfer
    ProcessId peer{};
    Slice slice;  // where it would be
    uint64_t address = 0;
  };
  // Things to do once the mutex is released.
  struct Work {
    std::vector<uint32_t> transfers;  // global indices to post
    std::vector<uint32_t> copies;     // of the current stage
  };

  const Stage& stage() const { return schedule_->stages[stage_]; }
  const Transfer& TransferAt(uint32_t index, bool* is_send, uint32_t* stage) const;
  std::byte* Address(const Slice& slice) const;
  void Stay(uint32_t local, engine::Engine* engine, StayPolicy* policy);
  void LeaveArrive(uint32_t local);
  Status PlaceRagged(uint32_t local);
  void Touch(const Slice& slice, int64_t delta);
  bool Ready(const Slice& slice) const;
  void CollectReady(int64_t local, Work* work);
  void Perform(const Work& work);
  void FinishItems(std::unique_lock<std::mutex>& lock, uint64_t items, bool heavy);
  void Advance(std::unique_lock<std::mutex>& lock, bool heavy);
  void FinishReductions();
  void EnterNextStage(std::unique_lock<std::mutex>& lock);
  void RunReductions(bool share);
  void RunIndependent(std::span<const Reduction> reductions, bool share);
  void RunPart(const Reduction& reduction, uint64_t begin, uint64_t end);
  uint64_t Width(const Slice& slice) const;  // bytes of an element
  const Lent* FindLent(const Slice& slice) const;
  void ReturnLent();
  void CompleteLocals(std::unique_lock<std::mutex>& lock);
  void WithdrawIfQuiet(std::unique_lock<std::mutex>& lock);

  OperationHost* const host_;
  const uint64_t id_;
  const OpKey key_;
  const uint64_t seq_;
  const Nanos started_;
  const std::shared_ptr<const Communicator> comm_;
  const std::string label_;
  std::shared_ptr<const Schedule> schedule_;
  // The same of a ragged exchange, where each arriving rank fills in its own offsets and sizes;
  // those of an item are read once both of its ranks are here.
  std::shared_ptr<Schedule> ragged_;
  OpDescription description_;
  uint64_t digest_ = 0;
  std::vector<uint32_t>
      transfer_base_;  // per stage: global index of its first send; receives follow

  mutable std::mutex mutex_;  // guards all below
  std::vector<Local> locals_;
  std::vector<ItemState> transfers_;
  std::vector<bool> copied_;  // of the current stage
  ScratchPool::Buffer scratch_;
  // Of the current stage. Read without the mutex while its reductions run: nothing is received
  // then.
  std::vector<Lent> lent_;
  Status lent_read_;  // the first of them that could not be read
  size_t stage_ = 0;
  // Of this stage, what is not finished: arrivals (stage 0), receives and copies, for which its
  // reductions wait; and sends, for which only the next stage does.
  uint64_t stage_left_ = 0, sends_left_ = 0;
  uint64_t arrived_ = 0, completed_ = 0;
  uint64_t active_ = 0;  // threads that may touch buffers
  bool reducing_ = false, reduced_ = false, stages_done_ = false;
  bool failed_ = false, withdrawn_ = false, withdrawing_ = false, over_ = false;
  Status failure_;
};

}  // namespace uccl::coll
