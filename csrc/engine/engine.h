// The transport of one process: run-to-completion loops, each a thread that owns a NIC backend, the
// clock and its connections over it. One loop serves most; the setting `engines` asks for more.
//
// Any thread may call the public methods; they hand a command to an engine thread through a queue
// and never block on the network. Callbacks run on engine threads, must not block, and must not
// call XLA.
//
// Processes of one host talk over shared memory (csrc/shm) where the system allows it: their
// messages pass these threads by, and whoever waits for one may look for it itself (Poll).
//
// With several engines, engine i of a process talks to engine i of every other one, over
// connections of its own. Which of them carries a message follows from its tag, alike on both ends,
// so matching is as with one. A peer that one of them loses is lost
// for all.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "csrc/base/config.h"
#include "csrc/base/status.h"
#include "csrc/core/connection.h"
#include "csrc/core/message.h"
#include "csrc/nic/nic_backend.h"
#include "csrc/shm/messenger.h"

namespace uccl::engine {

// Receives what happens; called on an engine thread or in Poll, and by several at once where there
// are several.
class EngineSink {
 public:
  virtual ~EngineSink() = default;
  // kSendDone / kRecvDone / kMismatch of this token.
  virtual void OnMessage(ProcessId peer, const core::Event& event) = 0;
  virtual void OnControl(ProcessId peer, const std::string& control) = 0;
  // A put (core::IsPut) came, or asks to come, for which no receive is posted; once for each. It
  // waits, within the peer's credit, until PostRecv with this very description or a Cancel with its
  // tag, either of which may be called from here. A sink that takes no puts leaves them: they show
  // in Inspect, and their sender notices that nobody takes them.
  virtual void OnArrival(ProcessId peer, const core::MessageInfo& info) {
    (void)peer;
    (void)info;
  }
  // The connection died; tokens outstanding on it were reported (with this status) before. Once per
  // peer.
  virtual void OnPeerLost(ProcessId peer, const Status& status) = 0;
};

struct UnexpectedMessage {
  ProcessId peer{};
  core::MessageInfo info;
};

struct EngineStats {
  std::map<int32_t, core::ConnectionStats> peers;  // by process
  uint64_t turns = 0, sleeps = 0, unknown_key_drops = 0, commands = 0;
  uint64_t engines = 0;
  std::vector<int> cpus;  // that the engines are bound to, in turn; empty when they are not
  nic::NicStats nic;
  std::map<int32_t, shm::LinkStats> shared;  // by process; those reached over shared memory
  std::string not_shared_because;            // where this process has none at all
};

class Engine final {
 public:
  // The 512 of core::Connection less the byte that tells the engine's own messages from the user's.
  static constexpr size_t kMaxControlBytes = 511;

  // Opens the backends and starts the threads. `sink` must outlive the engine.
  static Result<std::unique_ptr<Engine>> Start(const Config& config, EngineSink* sink);
  ~Engine();  // like Shutdown(0)

  // Opaque text to publish; holds the backends' addresses and the limits that both ends must know.
  std::string LocalAddress() const;
  // Makes the connections; waits for the engine thread, so not for use on it. `addresses[i]` is
  // process i's LocalAddress; `session` is equal on all processes and different in every start,
  // packets of other sessions are dropped.
  Status Connect(ProcessId self, const std::vector<std::string>& addresses, uint64_t session);

  // Messages to peers may be handed in before Connect; they wait. Tokens are unique across calls.
  // `data` must stay valid and unchanged until the token comes back, also for small messages. Each
  // token comes back exactly once unless it is cancelled; after a Shutdown (with kAborted) on the
  // calling thread.
  void Send(ProcessId peer, const core::MessageInfo& info, Bytes data, uint64_t token);
  // With `borrow` a message may be lent: its kRecvDone has an `address`, and `buffer` is not
  // written. ReadLent reads any part of it, on any thread, until Return, which is owed once for
  // each token that was lent and not cancelled, and tells whether what was read was the message.
  // `read` is how the reads went.
  void PostRecv(ProcessId peer, const core::MessageInfo& info, MutableBytes buffer, uint64_t token,
                bool borrow = false);
  Status ReadLent(ProcessId peer, MutableBytes to, uint64_t address) const;
  Status Return(ProcessId peer, uint64_t token, const Status& read);
  // A small reliable text; to a peer that is lost or has left it is dropped. At most
  // kMaxControlBytes.
  void SendControl(ProcessId peer, std::string control);
  // Takes what came over shared memory, and copies large messages from there, on this thread. False
  // when there was nothing to do; never waits. While a PollScope lives, its thread promises to call
  // Poll again and again, so that nobody else needs to be woken.
  bool Poll();
  class PollScope final {
   public:
    explicit PollScope(Engine* engine);
    // When there was nothing to do; see shm::Messenger.
    void Yield();

   private:
    std::optional<shm::Messenger::PollScope> scope_;
  };
  // Whether that peer is reached so, and how many processes of this host there are with this one.
  // After Connect.
  bool Shares(ProcessId peer) const;
  int LocalProcesses() const;
  // Withdraws messages; `done` runs on an engine thread once none of their buffers can be touched
  // again. Tokens that already completed are ignored. One that was never handed in has a tag
  // instead of a token: what the peer sent for it, or still sends, is dropped
  // (Connection::Discard).
  struct Posted {
    ProcessId peer{};
    bool is_send = false;
    uint64_t token = 0;
    std::optional<core::MessageTag> never_posted = std::nullopt;
  };
  void Cancel(std::vector<Posted> posted, std::function<void()> done);
  // Runs `fn` on an engine thread with the messages that no receive has met.
  void Inspect(std::function<void(std::vector<UnexpectedMessage>)> fn);
  EngineStats Stats();  // of all engines together; waits for their threads, not for use on one

  // Waits until all that was handed in is acknowledged or `timeout` passed, then stops the
  // threads.
  // Outstanding tokens are reported with kAborted. Returns kPeerTimeout when something was not
  // acknowledged.
  Status Shutdown(Nanos timeout);

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace uccl::engine
