// One operation in flight, as seen by one process: what it is, which of the ranks here have joined
// it, and what is missing. How its bytes move is up to the executor: direct_operation.h and
// fifo_operation.h.
//
// A local rank is completed exactly once: when nothing that names its buffers is left (its future
// may then free them), or after a failure when no thread and no message can touch any buffer of the
// operation any more.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/collectives/call_site.h"
#include "csrc/collectives/description.h"
#include "csrc/collectives/matching.h"
#include "csrc/collectives/ragged_ends.h"
#include "csrc/collectives/scratch_pool.h"
#include "csrc/collectives/stay_policy.h"
#include "csrc/collectives/worker_pool.h"
#include "csrc/engine/engine.h"
#include "csrc/executor/rank_stream.h"
#include "csrc/executor/stream_program.h"

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
  // Of a ragged exchange: who moves its bytes, where they are no slices; then `ragged` has only
  // sizes.
  std::shared_ptr<RaggedEnds> ends;
  // Where executor=fifo, instead of a schedule: what the rank does on its stream. Elsewhere a call
  // that has one needs `ends`.
  std::function<std::unique_ptr<executor::Program>()> program;
  // Likewise on a stream of a device.
  std::function<std::shared_ptr<executor::StreamProgram>()> stream_program;
};

// What the call asks for, as it travels in messages.
OpDescription DescriptionOf(const Call& call, const Communicator& comm, const Algorithm& algorithm);

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

class Operation : public std::enable_shared_from_this<Operation> {
 public:
  virtual ~Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // A local rank takes part; any thread. The last rank to come may stay with `engine` for a moment
  // (null: not), see stay_policy.h; else it never waits.
  virtual void Arrive(uint32_t local, Call call, const ExecutionTable::Call& matched,
                      engine::Engine* engine, StayPolicy* policy) = 0;

  // Engine thread. `index` is the low part of the token; `address` is not 0 where the message was
  // lent.
  virtual void OnTransferDone(uint32_t index, uint64_t address) = 0;

  // First failure wins; later ones are ignored. Completes every arrived rank with it, once that is
  // safe.
  virtual void Fail(const Status& cause) = 0;

  // What is missing, for error texts and for `status()`.
  struct Missing {
    std::vector<int64_t> local_devices;  // have not called yet
    std::vector<Member> remote;          // still owe data, or have not acknowledged ours
    std::vector<uint32_t> owed_by;       // indices of the members that owe data
  };
  virtual Missing GetMissing() const = 0;
  bool completed() const;  // every local member has its result
  bool over() const;
  bool failed() const;
  // Whether anything is still to be sent to that process or received from it. Once false, it stays
  // so.
  virtual bool Needs(ProcessId process) const = 0;
  // Among the operations of its communicator, where they have an order.
  virtual std::optional<executor::Place> place() const { return std::nullopt; }

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

  static constexpr uint32_t kIndexBits = 24;
  uint64_t TokenOf(uint32_t index) const { return (id_ << kIndexBits) | index; }

  // What all kinds of operations are made of.
  struct Identity {
    uint64_t id = 0;
    OpKey key;
    uint64_t seq = 0;  // of the communicator in this process
    Nanos started{};
    std::shared_ptr<const Communicator> comm;
  };

 protected:
  Operation(OperationHost* host, const Identity& identity, const Call& first,
            const CallSite::Plan& plan);
  // Of a message of this operation.
  core::MessageInfo InfoOf(const core::MessageTag& tag, uint64_t size_bytes) const;
  // The call of a rank that has one under way.
  Status JoinedTwice(const Call& call) const;
  // Two ranks disagree about what one sends to the other.
  Status SizesDiffer(uint32_t source, uint64_t sends, uint32_t target, uint64_t expects) const;

  OperationHost* const host_;
  const std::shared_ptr<const Communicator> comm_;

  mutable std::mutex mutex_;              // guards all below, and the state that a kind adds
  uint64_t arrived_ = 0, completed_ = 0;  // local members
  bool failed_ = false, over_ = false;
  // After a failure: the messages are being taken back, and were.
  bool withdrawing_ = false, withdrawn_ = false;
  Status failure_;

 private:
  const uint64_t id_;
  const OpKey key_;
  const uint64_t seq_;
  const Nanos started_;
  const std::string label_;
  const OpDescription description_;
  const uint64_t digest_;
};

}  // namespace uccl::coll
