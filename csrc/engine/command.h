// The channel from any thread to the engine thread.
//
// A mutex and a vector that is swapped out whole: pushing is a few tens of nanoseconds, commands of
// one thread keep their order, and one lock per engine turn takes any number of them. A lock-free
// queue would save nothing that shows next to a datagram's microseconds.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/base/types.h"
#include "csrc/core/message.h"
#include "csrc/engine/engine.h"
#include "csrc/shm/messenger.h"

namespace uccl::engine {

struct SendCommand {
  ProcessId peer;
  core::MessageInfo info;
  Bytes data;
  uint64_t token;
};
struct RecvCommand {
  ProcessId peer;
  core::MessageInfo info;
  MutableBytes buffer;
  uint64_t token;
};
struct ControlCommand {
  ProcessId peer;
  std::string text;
};
struct CancelCommand {
  std::vector<Engine::Posted> posted;
  std::function<void()> done;
};
// Another engine of this process has lost the peer.
struct FailPeerCommand {
  ProcessId peer;
  Status status;
  std::function<void()> done;  // once its tokens here were reported
};
struct InspectCommand {
  std::function<void(std::vector<UnexpectedMessage>)> fn;
};
struct StatsCommand {
  std::function<void(EngineStats)> fn;
};
struct ConnectCommand {
  ProcessId self;
  std::vector<std::string> addresses;
  uint64_t session;
  shm::Messenger* shared;  // carries the messages of the peers that it reaches; null: none
  std::function<void(Status)> done;
};
struct ShutdownCommand {
  Nanos timeout;
};

using Command =
    std::variant<SendCommand, RecvCommand, ControlCommand, CancelCommand, FailPeerCommand,
                 InspectCommand, StatsCommand, ConnectCommand, ShutdownCommand>;

class CommandQueue final {
 public:
  // False, with `command` untouched, once the queue is closed.
  bool Push(Command&& command) {
    std::lock_guard lock(mutex_);
    if (closed_) return false;
    commands_.push_back(std::move(command));
    return true;
  }
  // Moves all commands into `out`, which must be empty; its memory is used for the next ones.
  void TakeAll(std::vector<Command>* out) {
    std::lock_guard lock(mutex_);
    commands_.swap(*out);
  }
  // No Push succeeds from now on; what was pushed before can still be taken.
  void Close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }

 private:
  std::mutex mutex_;  // guards both below
  std::vector<Command> commands_;
  bool closed_ = false;
};

}  // namespace uccl::engine
