// Processes with the production engine each, over a simulated fabric, in virtual time and on one
// thread: what is not here is threads, sockets and clocks. Equal seeds give equal runs.
//
// A process's engine takes turns whenever a datagram, a command or a deadline comes, until it has
// nothing more to do at that instant. Turns take no time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "csrc/base/config.h"
#include "csrc/base/status.h"
#include "csrc/engine/command.h"
#include "csrc/engine/engine.h"
#include "csrc/engine/loop.h"
#include "csrc/sim/event_queue.h"
#include "csrc/sim/fabric.h"
#include "csrc/sim/network.h"
#include "csrc/sim/sim_nic.h"

namespace uccl::sim {

class EngineWorld final {
 public:
  // One process per host. `sinks` hear of everything, one for each process, and outlive the world.
  EngineWorld(const Config& config, const Fabric* fabric, const LinkSpec& host_link,
              const LinkSpec& core_link, const std::vector<engine::EngineSink*>& sinks,
              uint64_t seed);

  size_t num_processes() const { return processes_.size(); }
  Nanos now() const { return now_; }
  Network& network() { return network_; }
  // Hands a command to a process's engine, as any of its threads would. After the engine's end it
  // is answered at once.
  void Push(size_t process, engine::Command command);
  // Connects all processes; the error of the first that cannot.
  Status ConnectAll(uint64_t session);
  void At(Nanos time, std::function<void()> action) {
    actions_.emplace(std::max(time, now_), std::move(action));
  }
  // From now on the process neither takes turns nor hears nor sends anything.
  void Kill(size_t process);
  bool killed(size_t process) const { return processes_[process].killed; }
  const engine::Loop& loop(size_t process) const { return *processes_[process].loop; }
  uint64_t ring_drops() const;

  // True when `done` holds, false when `deadline` passes or nothing is left to happen before.
  bool RunUntil(const std::function<bool()>& done, Nanos deadline);

 private:
  struct Process {
    engine::CommandQueue queue;
    std::unique_ptr<engine::Loop> loop;
    SimNic* nic = nullptr;    // the loop's
    Nanos timer_at = kNever;  // the earliest kTimer event that is scheduled
    bool runnable = false, killed = false;
  };

  void Instant(Nanos time);
  void MarkRunnable(size_t process) { processes_[process].runnable = true; }
  void RunRunnable();
  void TakeTurns(size_t process);
  Nanos NextInstant() const;

  EventQueue events_;
  Network network_;
  std::vector<Process> processes_;
  std::multimap<Nanos, std::function<void()>> actions_;  // equal times in the order of scheduling
  Nanos now_ = FromMillis(1);
};

}  // namespace uccl::sim
