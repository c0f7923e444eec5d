// Which operation on one rank belongs to which operation on another: the protocol of
// docs/matching.md.
//
// Two tables. InstanceTable numbers the copies of a call site within one executable, at the FFI
// instantiate stage. ExecutionTable counts, per communicator, call site, instance and device, the
// executions (told apart by XLA's RunId, which is only compared locally) and the iterations within
// one. Together they give every operation a key that is equal on all ranks by construction and that
// no other operation of the communicator has. Both are small maps behind one mutex each; any thread
// may call.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <unordered_map>

#include "csrc/base/status.h"
#include "csrc/core/message.h"

namespace uccl::coll {

// Identity of one operation of a communicator.
struct OpKey {
  uint64_t comm = 0;      // hash of the ordered members
  uint64_t site = 0;      // content fingerprint of the call site
  uint64_t instance = 0;  // among equal sites of one executable
  uint64_t execution = 0;
  uint64_t iteration = 0;
  bool operator==(const OpKey&) const = default;
};
struct OpKeyHash {
  size_t operator()(const OpKey& key) const;
};
// The tag of the message that `from` sends to `to` in stage `stage` of the operation.
core::MessageTag TagOf(const OpKey& key, uint32_t stage, uint32_t from, uint32_t to);

class InstanceTable {
 public:
  // A new instance of `site`, which was lowered in `module`, is created on native thread `thread`.
  // `executed` is set by the caller when any instance of the returned group runs.
  struct Group {
    uint64_t count = 0;
    bool executed = false;  // guarded by the table's mutex
  };
  struct Instance {
    uint64_t number = 0;
    std::shared_ptr<Group> group;
  };
  Instance Add(uint64_t site, const std::string& module, uint64_t thread);
  // An executable of this module is complete: the next instance of its sites starts at 0 again.
  void CloseModule(const std::string& module);
  void MarkExecuted(Group* group);

 private:
  std::mutex mutex_;
  // module -> (thread, site) -> the group that is being filled
  std::map<std::string, std::map<std::pair<uint64_t, uint64_t>, std::shared_ptr<Group>>> open_;
};

class ExecutionTable {
 public:
  struct Call {
    uint64_t comm = 0, site = 0, instance = 0;
    int64_t device = -1;
    uint64_t launch = 0;   // identity of the executable's State in this process
    int64_t run = 0;       // XLA RunId
    bool exact = false;    // all members are in this process: State and RunId are the key
    bool ordered = false;  // strict mode: position in the token order is the key
  };
  // The key of the call that `device` makes now. kProtocol when two executables that share the key
  // run at once ("ambiguous call site"): two threads launch programs that cannot be told apart, or
  // the same one.
  Result<OpKey> Next(const Call& call);
  // The operation that Next numbered is over on this device.
  void Finish(const Call& call);

 private:
  struct Counter {
    uint64_t launch = 0;
    int64_t run = 0;
    bool started = false;
    uint64_t execution = 0, iteration = 0;
    uint64_t pending = 0;
  };
  using CounterKey = std::tuple<uint64_t, uint64_t, uint64_t, int64_t>;
  static CounterKey KeyOf(const Call& call);
  std::mutex mutex_;
  std::map<CounterKey, Counter> counters_;
};

}  // namespace uccl::coll
