// A call site of one rank whose operations are kernels on a stream of a device: everything is
// prepared when it is opened, and an execution launches kernels and does nothing else. So an
// execution may be recorded into a graph and repeated by it
// (docs/decisions/0010-lane-for-each-call-site.md).
//
//   resolve  addresses of this execution into the tables; it has begun
//   stages of the schedule: rows (copies), exchange (cuda/exchange.h), reduce
//   issue    a count to itself, behind all its messages: it has ended
//
// Instead of a schedule there may be a program (executor/stream_program.h), which launches its own
// kernels between the first and the last.
//
// The lane. Each call site of a communicator has pipes of its own (executor/pipes.h), so executions
// of different sites may overlap on several streams, and those of one site run in the order of the
// stream, which is equal on all ranks as their programs are. How far the pipes are is kept by the
// kernels. Both ends compare the tag of each message, a digest of the operation: ranks that
// disagree get no data.
//
// Who watches. Nobody is called back by a stream. The runtime's watchdog looks at the two counts:
// an execution that has begun and does not end within the deadline fails, which ends its kernels;
// the next call of its communicator is refused with the cause. Results of executions that failed
// are not to be used, and nothing on the stream can say so: docs/gpu.md.
//
// Threads: Enqueue by one at a time for each stream; the rest by any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/base/types.h"
#include "csrc/collectives/call_site.h"
#include "csrc/collectives/dtype.h"
#include "csrc/collectives/kernel_types.h"
#include "csrc/collectives/schedule.h"
#include "csrc/cuda/device.h"
#include "csrc/executor/device_memory.h"
#include "csrc/executor/pipes.h"
#include "csrc/executor/stream_program.h"
#include "csrc/proxy/proxy.h"

namespace uccl::coll {

class StreamCall final {
 public:
  struct Options {
    std::shared_ptr<const Communicator> comm;
    uint32_t rank = 0;  // among the members
    std::string label;  // for errors
    uint64_t key = 0;   // of the lane; equal on all ranks, and on no other lane
    uint64_t tag = 0;   // of the operation, likewise
    std::shared_ptr<const Schedule> schedule;  // as if each rank were a process of its own
    DType dtype{};
    ReduceOp reduction{};
    uint64_t staging_bytes = 0;  // at most, for pieces that come in
    bool ragged = false;         // sizes are data: the schedule is not looked at
    std::shared_ptr<executor::StreamProgram> program;  // instead of the schedule, where not null
  };
  // On a thread whose current device is the rank's. kUnsupported for what has no kernel.
  static Result<std::shared_ptr<StreamCall>> Open(Options options, const cuda::Device* device,
                                                  proxy::Proxy* proxy);
  ~StreamCall();  // Close
  StreamCall(const StreamCall&) = delete;
  StreamCall& operator=(const StreamCall&) = delete;

  // The launches of one execution. Buffers stay until the stream has got past them.
  Status Enqueue(cuda::Stream stream, const std::byte* input, std::byte* output);
  // Of a ragged exchange; vectors are memory of the device, with an entry for each member.
  struct Ragged {
    const int32_t* input_offsets = nullptr;
    const int32_t* send_sizes = nullptr;
    const int32_t* output_offsets = nullptr;
    const int32_t* receive_sizes = nullptr;
    uint64_t row_bytes = 0, input_rows = 0, output_rows = 0;
    const std::byte* start = nullptr;  // what the result begins with; null: zeros if `fill`
    bool fill = false;
  };
  Status EnqueueRagged(cuda::Stream stream, const std::byte* input, std::byte* output,
                       const Ragged& ragged);

  // Of a program: `launch` enqueues its kernels, the first of which counts the execution as begun.
  Status EnqueueProgram(cuda::Stream stream,
                        const std::function<Status(executor::StreamProgram*)>& launch);

  // --- the watchdog ---
  // Executions that the stream has begun and ended.
  uint64_t begun() const;
  uint64_t ended() const;
  bool idle() const { return begun() == ended(); }
  // Ok, or why an execution that is under way will not end: ranks that disagree, a failure of the
  // region, no end for `timeout` since it was first seen by this, or one of the lost processes is
  // needed and has nothing more under way to here, which takes it a moment to show.
  Status Look(Nanos now, Nanos timeout, const std::map<int32_t, Status>& lost);
  // Its kernels end soon, and so do later ones; the first cause stays.
  void Fail(const Status& cause);
  Status failure() const;
  // Fails, and returns when no kernel and no proxy touches the memory any more. Nothing may be
  // enqueued afterwards.
  void Close();

  const Communicator& comm() const { return *options_.comm; }

 private:
  // Of a stage.
  struct Copy {
    cuda::Place from, to;
    uint64_t bytes = 0;
    bool zero = false;
  };
  struct Fold {
    uint64_t first = 0, inputs = 0;  // among the addresses of inputs
    std::vector<cuda::Place> to;     // the first is reduced into, the others are copies
    uint64_t bytes = 0;
  };
  struct Step {
    std::vector<Copy> copies;
    uint32_t first_line = 0, lines = 0;
    std::vector<Fold> folds;
  };
  // What is made on the host and uploaded.
  struct Tables {
    std::vector<cuda::PipeMessage> messages;
    std::vector<cuda::Place> places;  // of each message
    std::vector<cuda::Place> inputs;  // of reductions
    std::vector<cuda::PipeLine> lines;
  };

  StreamCall(Options options, const cuda::Device* device, proxy::Proxy* proxy);
  Status Prepare();
  Status MakeWords();
  Status MakeTables();
  void AddStage(uint32_t index, Tables* tables);
  void AddRagged(Tables* tables);
  void AddLines(const std::vector<Transfer>& transfers, bool sends, uint32_t stage, Tables* tables);
  Status Upload(const Tables& tables);
  // Whose FIFO takes the last command of an execution.
  const executor::SideRegion& Last() const;
  Status Begin(std::byte* const* buffers, cuda::Stream stream) const;
  Status RunLines(const Step& step, cuda::Stream stream) const;
  Status RunCopy(const Copy& copy, std::byte* const* buffers, cuda::Stream stream) const;
  Status RunFold(const Fold& fold, std::byte* const* buffers, cuda::Stream stream) const;
  // Whether the kernel that runs waits for data of that process, or to send to it.
  bool Needs(ProcessId process) const;
  bool HasToReceive(uint32_t member) const;
  Status OutsideOf(uint64_t message) const;
  Status TimeoutOf(Nanos timeout) const;

  const Options options_;
  const cuda::Device* const device_;
  proxy::Proxy* const proxy_;
  int ordinal_ = 0;  // of the device
  std::unique_ptr<executor::Pipes> pipes_;
  std::unique_ptr<proxy::Proxy::Use> use_;
  std::optional<KernelTypes> types_;  // of reductions
  std::vector<Step> steps_;
  // On the device: tables, addresses, the last command, scratch.
  executor::DeviceMemory tables_, pinned_;
  const cuda::Place* places_ = nullptr;
  std::byte** addresses_ = nullptr;  // of messages, then of inputs
  uint64_t message_count_ = 0, address_count_ = 0;
  cuda::PipeMessage* messages_ = nullptr;
  cuda::PipeLine* lines_ = nullptr;
  const cuda::IssueQueue* last_ = nullptr;
  const int32_t* missing_ = nullptr;  // an index of no row
  std::byte* scratch_ = nullptr;
  // Pinned.
  uint64_t* begun_ = nullptr;
  uint64_t* fault_ = nullptr;  // of ragged exchanges

  mutable std::mutex mutex_;  // guards all below
  uint64_t seen_begun_ = 0;
  Nanos seen_at_{};
  Status failure_;
  bool closed_ = false;
};

}  // namespace uccl::coll
