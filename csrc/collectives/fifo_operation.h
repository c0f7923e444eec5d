// An operation that is executed as on a GPU (csrc/executor): each local rank runs a program on its
// stream, and nothing but the order of the programs passes through the engine's messages.
//
//   Arrive --(place known?)--> program enqueued on the rank's stream --> done
//
// The order. Streams of one communicator must run the same operations in the same order, but XLA
// issues them in one that differs between ranks. The process of the first member decides: when an
// operation comes up there it gets the next number in a lane in which nothing is under way, so that
// operations do not wait for each other, and a message with the operation's tag and digest tells it
// to the other processes, who find it as they find any message (docs/matching.md). So a difference
// between ranks shows there, before a byte is sent.
//
// Threads: any; one mutex, which is not held while a stream, the engine or the host is called.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "csrc/collectives/operation.h"
#include "csrc/collectives/rank_program.h"
#include "csrc/executor/executor.h"

namespace uccl::coll {

class FifoOperation final : public Operation {
 public:
  // `place` where this process is the one that decides.
  FifoOperation(OperationHost* host, const Identity& identity, const Call& first,
                const CallSite::Plan& plan, std::shared_ptr<executor::Executor> executor,
                std::optional<executor::Place> place);

  void Arrive(uint32_t local, Call call, const ExecutionTable::Call& matched,
              engine::Engine* engine, StayPolicy* policy) override;
  void OnTransferDone(uint32_t index, uint64_t address) override;
  void Fail(const Status& cause) override;
  Missing GetMissing() const override;
  bool Needs(ProcessId process) const override;
  std::optional<executor::Place> place() const override;

 private:
  struct Local {
    Call call;
    ExecutionTable::Call matched;
    bool arrived = false, enqueued = false, completed = false;
    bool busy = false;                             // its program may run
    bool ran = false;                              // and has, well
    std::shared_ptr<executor::RankStream> stream;  // once enqueued
    StartedFlag started = std::make_shared<std::atomic<bool>>(false);
  };
  // The messages about the place, one for each other process of the communicator, or the one that
  // comes.
  struct Notice {
    ProcessId peer{};
    uint32_t to = 0;  // first member of the process that it is for
    bool done = false;
  };
  // Every process has its notice.
  bool told() const {
    return std::ranges::all_of(notices_, [](const Notice& n) { return n.done; });
  }
  bool decides() const { return comm_->members[0].process == comm_->self; }
  core::MessageTag TagOfNotice(const Notice& notice) const;
  void PostNotices();
  void EnqueueReady();
  void Enqueue(uint32_t local, const executor::Place& place);
  Status CheckRagged(uint32_t local) const;
  void OnProgramOver(uint32_t local, const Status& status);
  void CompleteLocals(std::unique_lock<std::mutex>& lock);
  std::shared_ptr<FifoOperation> Self() {
    return std::static_pointer_cast<FifoOperation>(shared_from_this());
  }

  const std::vector<std::shared_ptr<const Schedule>> schedules_;  // by local
  const std::shared_ptr<executor::Executor> executor_;

  // Under the mutex of Operation, all below.
  std::vector<Local> locals_;
  std::vector<Notice> notices_;
  std::optional<executor::Place> place_;
  std::array<std::byte, 8> place_bytes_{};  // on their way while notices are
  bool posted_ = false, posting_ = false;
};

}  // namespace uccl::coll
