// One proxy thread: takes commands from its FIFOs in turn and carries them out.
//
//   turn: what others brought (acknowledgements, passed barriers, new FIFOs) -> each FIFO, up to a
//         batch
//   idle: turns while polling pays, then sleep (proxy.h)
//
// Everything but Push, Join and the statistics belongs to the thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "csrc/base/core_yield.h"
#include "csrc/base/spin_policy.h"
#include "csrc/base/status.h"
#include "csrc/base/types.h"
#include "csrc/fifo/command.h"
#include "csrc/proxy/fifo_queue.h"

namespace uccl::proxy {

// What the threads need of the proxy around them. Any thread may call.
class Carrier {
 public:
  virtual ~Carrier() = default;
  // Sends a put of this process's rank note.source to a rank of another process.
  virtual void SendPut(Entry* entry, const PutNote& note, Bytes data) = 0;
  // The entry of a rank of this process; null while it is not registered.
  virtual std::shared_ptr<Entry> LocalEntry(uint64_t key, uint32_t rank) = 0;
  virtual bool IsLocal(ProcessId process) const = 0;
  virtual void EnterBarrier(Entry* entry, uint8_t channel) = 0;
  // Never moves, nor ends before the threads.
  virtual PeerLoad& LoadOf(ProcessId process) = 0;
  virtual bool in_use() const = 0;
  // No use for a while: called by the first thread before it sleeps for good.
  virtual void OnQuietTime() = 0;
};

struct ThreadLimits {
  int64_t fifo_inflight = 0, peer_inflight = 0;
  Nanos spin{}, nap{};
};

struct ThreadStats {
  // Relaxed counts: written by the thread, read by whoever asks.
  std::atomic<uint64_t> commands{0}, puts{0}, put_bytes{0}, local_puts{0}, stalls{0}, sleeps{0},
      naps{0}, ack_requests{0};
};

class ProxyThread final {
 public:
  ProxyThread(Carrier* carrier, const ThreadLimits& limits, bool first);
  Status Start(int cpu);  // -1: not bound
  void Stop();            // and waits for its end

  struct Event {
    enum class Kind : uint8_t {
      kWake,
      kAdd,
      kRemove,
      kAck,
      kBarrierPassed,
      kLost
    } kind = Kind::kWake;
    std::shared_ptr<Fifo> fifo;
    PutNote note;                // of kAck
    std::function<void()> done;  // of kRemove: the FIFO is not touched again
    PeerLoad* load = nullptr;    // of kLost: no acknowledgement comes from there any more
  };
  void Push(Event event);
  const ThreadStats& stats() const { return stats_; }

 private:
  void Run();
  bool TakeEvents();
  void OnAck(Fifo* fifo, const PutNote& note);
  static void OnLost(Fifo* fifo, PeerLoad* load);
  bool Step(Fifo* fifo);
  enum class Outcome : uint8_t { kDone, kWait, kFailed };
  Outcome Carry(Fifo* fifo, const fifo::Command& command);
  Outcome CarryPut(Fifo* fifo, const fifo::Command& command);
  Outcome CarryLocally(Fifo* fifo, const fifo::Command& command);
  Outcome CarryBarrier(Fifo* fifo, const fifo::Command& command);
  bool RequestAcks(Fifo* fifo);
  void StopFifo(Fifo* fifo);
  // `in_use`: whether somebody did before this turn's look into the FIFOs.
  void Sleep(bool in_use);

  Carrier* const carrier_;
  const ThreadLimits limits_;
  const bool first_;
  std::vector<std::shared_ptr<Fifo>> fifos_;
  std::vector<Event> taken_;
  SpinPolicy spin_;
  Nanos nap_;
  CoreYield yield_;
  ThreadStats stats_;
  std::thread thread_;

  std::atomic<bool> any_events_{false};  // a hint, so that a turn without events takes no lock
  std::mutex mutex_;                     // guards all below
  std::condition_variable changed_;
  std::vector<Event> events_;
  bool stopping_ = false;
};

}  // namespace uccl::proxy
