// An operation whose bytes the engine moves between the buffers of the ranks: joins the calls of
// the local ranks with the messages of the remote ones and walks through the schedule.
//
//   waiting for locals --Arrive--> running stage 0 .. stage k --> done
//            \________________________ Fail ____________________/-> failed, buffers withdrawn ->
//            done
//
// Threads: Arrive runs on XLA's threads, OnTransfer* on the engine thread, reductions on either or
// on the worker pool, Fail anywhere. One mutex guards the whole state; buffers are read and written
// outside it, by whoever counted itself into `active_` under it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "csrc/collectives/operation.h"

namespace uccl::coll {

class DirectOperation final : public Operation {
 public:
  DirectOperation(OperationHost* host, const Identity& identity, const Call& first,
                  const CallSite::Plan& plan);

  // Does the copies that became possible and posts its messages.
  void Arrive(uint32_t local, Call call, const ExecutionTable::Call& matched,
              engine::Engine* engine, StayPolicy* policy) override;
  void OnTransferDone(uint32_t index, uint64_t address) override;
  void Fail(const Status& cause) override;
  Missing GetMissing() const override;
  bool Needs(ProcessId process) const override;

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

  std::shared_ptr<DirectOperation> Self() {
    return std::static_pointer_cast<DirectOperation>(shared_from_this());
  }
  const Stage& stage() const { return schedule_->stages[stage_]; }
  const Transfer& TransferAt(uint32_t index, bool* is_send, uint32_t* stage) const;
  std::byte* Address(const Slice& slice) const;
  void Stay(uint32_t local, engine::Engine* engine, engine::Engine::PollScope* polling,
            StayPolicy* policy);
  void LeaveArrive(uint32_t local);
  Status PlaceRagged(uint32_t local);
  Status CheckEnds(const Call& call) const;
  RaggedEnds* EndsOf(const Slice& slice) const;
  void HoldForFinish(int64_t delta);
  uint64_t FinishBytes() const;
  void FinishEnds(bool share);
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

  std::shared_ptr<const Schedule> schedule_;
  // The same of a ragged exchange, where each arriving rank fills in its own offsets and sizes;
  // those of an item are read once both of its ranks are here.
  std::shared_ptr<Schedule> ragged_;
  // Whether calls bring ends (ragged_ends.h), and whether those have something to finish, for which
  // every rank stays.
  const bool has_ends_, finishes_;
  std::vector<uint32_t>
      transfer_base_;  // per stage: global index of its first send; receives follow

  // Under the mutex of Operation, all below.
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
  uint64_t active_ = 0;  // threads that may touch buffers
  bool reducing_ = false, reduced_ = false, stages_done_ = false;
};

}  // namespace uccl::coll
