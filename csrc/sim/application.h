// Runs a workload over the hosts: cuts flows into messages, posts receives, opens gates, and tells
// the checker what it handed in and what came out.
//
// A flow is a sequence of messages of `segment_bytes`, of which at most `depth` are posted at
// either end, as a collective would do it with a buffer of that size. The receiver knows of a flow
// when the sender does: in a collective both issue the same operation.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/base/types.h"
#include "csrc/sim/checker.h"
#include "csrc/sim/contents.h"
#include "csrc/sim/event_queue.h"
#include "csrc/sim/host_stack.h"
#include "csrc/sim/workload.h"

namespace uccl::sim {

struct ApplicationSpec {
  uint64_t segment_bytes = 256 << 10;
  uint64_t packet_bytes = 1;  // payload of a full datagram
  uint32_t depth = 8;         // messages of a flow posted at once, at either end
  uint32_t concurrency = 16;  // flows that a host sends at once; others wait their turn
  uint32_t lanes = 1;         // segments take them in turn
};

struct FlowRecord {
  Nanos begin{-1}, end{-1};  // from when it could have begun; -1: has not
};

class Application final {
 public:
  // `workload` and the others stay the caller's.
  Application(const ApplicationSpec& spec, const Workload* workload, HostStack* hosts,
              const Contents* contents, Checker* checker, EventQueue* events);

  void Start();
  void OnStartFlow(Nanos now, uint32_t flow);
  void OnEvent(Nanos now, EndId end, core::Event event);

  bool done() const { return finished_ == workload_->flows.size(); }
  size_t finished() const { return finished_; }
  uint64_t received_bytes() const { return received_bytes_; }
  uint64_t posted_bytes() const { return posted_bytes_; }
  uint64_t peak_posted_bytes() const { return peak_posted_bytes_; }
  std::span<const FlowRecord> records() const { return records_; }
  // The first connection that could not be made, which ends the run.
  const Status& status() const { return status_; }

 private:
  struct Progress {
    uint32_t next_send = 0, next_recv = 0;  // segments
    uint32_t sends = 0, recvs = 0;          // posted and not done
    uint32_t received = 0;
    bool all_sent = false;
  };
  struct Posted {
    std::unique_ptr<std::byte[]> buffer;
    uint64_t size = 0;
  };

  // A flow of many messages begins with a ramp: the first `depth` grow from little to
  // segment_bytes. Messages that begin together take turns and would end together, all of them, and
  // the sender would have nothing to send until the receiver posts the next ones.
  bool Ramps(const Flow& flow) const { return flow.bytes > 2 * ramp_bytes_; }
  uint32_t Segments(const Flow& flow) const;
  uint64_t SegmentBytes(const Flow& flow, uint32_t segment) const;
  core::MessageInfo Describe(uint32_t flow, uint32_t segment) const;
  static uint64_t Token(MessageId id) { return uint64_t{id.flow} << 32 | id.segment; }
  void Launch(Nanos now, uint32_t host);
  void PostMore(Nanos now, uint32_t flow);
  void OnRecvDone(Nanos now, MessageId id, const Status& status);
  void OnSendDone(Nanos now, MessageId id, const Status& status);
  void OnFlowArrived(Nanos now, uint32_t flow);

  const ApplicationSpec spec_;
  const Workload* const workload_;
  HostStack* const hosts_;
  const Contents* const contents_;
  Checker* const checker_;
  EventQueue* const events_;

  std::vector<uint64_t> ramp_;  // sizes of the first messages
  uint64_t ramp_bytes_ = 0;

  std::vector<Progress> progress_;
  std::vector<FlowRecord> records_;
  std::vector<uint32_t> gates_;                     // arrivals that are still missing
  std::vector<std::vector<uint32_t>> behind_gate_;  // flows
  std::vector<core::Ring<uint32_t>> waiting_;       // per host: flows that may begin
  std::vector<uint32_t> active_;                    // per host: flows that it sends
  std::unordered_map<uint64_t, Posted> posted_;     // by token
  std::unordered_map<uint64_t, std::vector<std::unique_ptr<std::byte[]>>>
      free_;  // by size, rounded up
  uint64_t posted_bytes_ = 0, peak_posted_bytes_ = 0, received_bytes_ = 0;
  size_t finished_ = 0;
  Status status_;
};

}  // namespace uccl::sim
