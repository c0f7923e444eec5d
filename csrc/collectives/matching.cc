// Numbers instances, executions and iterations; the argument why they agree is in docs/matching.md.
#include "csrc/collectives/matching.h"

#include "csrc/base/hash.h"

namespace uccl::coll {
namespace {

// Set apart the two special key spaces from the ordinary one, so that a site can never meet another
// kind.
constexpr uint64_t kExactSpace = 0x65786163742d6b65ull;
constexpr uint64_t kOrderedSpace = 0x6f7264657265642dull;

}  // namespace

size_t OpKeyHash::operator()(const OpKey& key) const {
  return HashWords({key.comm, key.site, key.instance, key.execution, key.iteration});
}

core::MessageTag TagOf(const OpKey& key, uint32_t stage, uint32_t from, uint32_t to) {
  const Hash128 h = Hasher()
                        .Word(key.comm)
                        .Word(key.site)
                        .Word(key.instance)
                        .Word(key.execution)
                        .Word(key.iteration)
                        .Word(stage)
                        .Word((static_cast<uint64_t>(from) << 32) | to)
                        .Finish128();
  return {h.hi, h.lo};
}

InstanceTable::Instance InstanceTable::Add(uint64_t site, const std::string& module,
                                           uint64_t thread) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Group>& group = open_[module][{thread, site}];
  // A group of which an instance already ran belongs to a finished executable: loading a serialized
  // one reports no end of compilation.
  if (group == nullptr || group->executed) group = std::make_shared<Group>();
  return {group->count++, group};
}

void InstanceTable::CloseModule(const std::string& module) {
  std::lock_guard lock(mutex_);
  open_.erase(module);
}

void InstanceTable::MarkExecuted(Group* group) {
  std::lock_guard lock(mutex_);
  group->executed = true;
}

ExecutionTable::CounterKey ExecutionTable::KeyOf(const Call& call) {
  if (call.ordered) return {call.comm, kOrderedSpace, 0, call.device};
  if (call.exact) return {call.comm, kExactSpace, call.launch, call.device};
  return {call.comm, call.site, call.instance, call.device};
}

Result<OpKey> ExecutionTable::Next(const Call& call) {
  std::lock_guard lock(mutex_);
  Counter& c = counters_[KeyOf(call)];
  if (call.ordered) {
    ++c.pending;
    return OpKey{call.comm, kOrderedSpace, 0, 0, c.iteration++};
  }
  const bool same_run = c.started && c.run == call.run && c.launch == call.launch;
  if (!same_run) {
    // One device runs the launches of one thread one after the other, so nothing of an older launch
    // can still be pending here, and one run has one executable.
    if (c.pending > 0 || (c.started && c.run == call.run)) {
      return Status::Error(
          StatusCode::kProtocol,
          "ambiguous call site: two launches of programs that cannot be told apart overlap on "
          "device " +
              std::to_string(call.device) + " (site " + std::to_string(call.site) + ", instance " +
              std::to_string(call.instance) +
              "). Launch multi-process programs from one thread, give the jitted functions "
              "different names, or use jax_uccl.strict_order()");
    }
    if (c.started) ++c.execution;
    c.started = true;
    c.run = call.run;
    c.launch = call.launch;
    c.iteration = 0;
  }
  ++c.pending;
  const uint64_t iteration = c.iteration++;
  if (call.exact) {
    return OpKey{call.comm, kExactSpace, call.launch, static_cast<uint64_t>(call.run), iteration};
  }
  return OpKey{call.comm, call.site, call.instance, c.execution, iteration};
}

void ExecutionTable::Finish(const Call& call) {
  std::lock_guard lock(mutex_);
  // A call of an epoch that has ended meanwhile is not in this table.
  const auto it = counters_.find(KeyOf(call));
  if (it != counters_.end() && it->second.pending > 0) --it->second.pending;
}

}  // namespace uccl::coll
