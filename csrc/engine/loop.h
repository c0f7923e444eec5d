// The engine thread: one turn after the other until shutdown is complete.
//
//   turn: commands -> datagrams in -> faults -> timers -> credits -> events to the sink -> what it
//         answered -> datagrams out
//   idle: turns without work while polling pays (spin_policy.h), then sleep until a datagram, a
//         command or the next timer
//
// Owned by a Worker. Run() and everything it calls belong to the engine thread, which is the only
// one to touch the fields below, except that other threads push to the queue and call
// NicBackend::Wake.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "csrc/base/config.h"
#include "csrc/base/core_yield.h"
#include "csrc/base/spin_policy.h"
#include "csrc/base/status.h"
#include "csrc/base/types.h"
#include "csrc/core/credit/receiver_scheduler.h"
#include "csrc/engine/command.h"
#include "csrc/engine/engine.h"
#include "csrc/engine/limits.h"
#include "csrc/engine/peer_link.h"
#include "csrc/engine/timing_wheel.h"
#include "csrc/engine/transmit_batch.h"
#include "csrc/nic/nic_backend.h"

namespace uccl::engine {

class Loop final {
 public:
  Loop(const Config& config, std::unique_ptr<nic::NicBackend> nic, EngineSink* sink,
       CommandQueue* queue);

  // Fixed from the start; any thread may read them.
  nic::NicBackend* nic() { return nic_.get(); }
  const Hello& hello() const { return hello_; }

  // Returns after a ShutdownCommand was carried out, with its outcome. No callback comes
  // afterwards.
  Status Run();

  // What Run does again and again, for a driver with a clock of its own (the simulator); `now`
  // never goes back.
  //
  // One turn. Returns whether anything was done, in which case there may be more to do at once.
  bool Turn(Nanos now);
  // When there is something to do although no datagram and no command comes.
  Nanos NextTimeout() const;
  // The device was full; there is something to do when it takes datagrams again.
  bool stalled() const { return batch_.stalled(); }
  bool stopped() const { return stage_ == Stage::kStopped; }
  // Once stopped: what Run returns.
  const Status& outcome() const { return outcome_; }

  // On the engine thread, or after Run returned.
  EngineStats Stats() const;
  // What becomes of a command that comes after the end. The caller's thread runs the callbacks
  // then.
  void RefuseCommand(Command& command);

 private:
  // Stages of a shutdown, each bounded by its deadline.
  enum class Stage {
    kOpen,      // no shutdown yet
    kDraining,  // waiting until everything is acknowledged
    kParting,   // peers were told; waiting until they need no more answers
    kStopped,
  };

  void Sleep(Nanos now);

  bool RunCommands(Nanos now);
  void Handle(Nanos now, SendCommand& c);
  void Handle(Nanos now, RecvCommand& c);
  void Handle(Nanos now, ControlCommand& c);
  void Handle(Nanos now, CancelCommand& c);
  void Handle(Nanos now, FailPeerCommand& c);
  void Handle(Nanos now, InspectCommand& c);
  void Handle(Nanos now, StatsCommand& c);
  void Handle(Nanos now, ConnectCommand& c);
  void Handle(Nanos now, ShutdownCommand& c);
  Status Connect(Nanos now, const ConnectCommand& c);
  // Whether messages of this peer go through shared memory. Those that were handed in before
  // Connect come through here all the same.
  bool Shares(ProcessId peer) const { return shared_ != nullptr && shared_->Reaches(peer); }
  // The link to an existing other process, or null after reporting the token to the sink.
  PeerLink* LinkOrReport(ProcessId peer, core::EventKind kind, uint64_t token);
  PeerLink* FindLink(ProcessId peer);

  bool Receive(Nanos now);
  bool ReadFaults(Nanos now);
  bool FireTimers(Nanos now);
  bool GrantCredits(Nanos now);
  void DeliverEvents(Nanos now);
  bool Transmit(Nanos now);
  void Touch(PeerLink* link);
  // After whatever may have moved the link's deadline.
  void SetTimer(const PeerLink& link);

  void StepShutdown(Nanos now);
  void FinishShutdown(Nanos now);

  const Config config_;
  const std::unique_ptr<nic::NicBackend> nic_;
  EngineSink* const sink_;
  CommandQueue* const queue_;
  Hello hello_;

  std::unique_ptr<core::ReceiverScheduler> scheduler_;  // outlives the links; null: none
  std::vector<std::unique_ptr<PeerLink>>
      links_;  // by process; null for this one; empty before Connect
  std::unordered_map<uint64_t, PeerLink*> by_key_;
  std::vector<PeerLink*> by_handle_;
  shm::Messenger* shared_ = nullptr;     // from Connect on
  std::unique_ptr<TimingWheel> timers_;  // by process; null before Connect
  std::vector<size_t> expired_;          // scratch of FireTimers
  std::vector<Command> commands_;        // taken from the queue, kept for its memory
  std::vector<Command> before_connect_;  // messages that wait for Connect
  std::vector<PeerLink*> touched_;       // may have events or datagrams; each once
  std::vector<char> is_touched_;         // by process
  size_t round_robin_ = 0;
  std::vector<nic::Incoming> incoming_;
  TransmitBatch batch_;

  Stage stage_ = Stage::kOpen;
  Nanos shutdown_deadline_ = kNever, stage_deadline_ = kNever;
  Status outcome_;
  SpinPolicy spin_;
  CoreYield yield_;
  EngineStats counters_;  // `peers` is filled on request
};

}  // namespace uccl::engine
