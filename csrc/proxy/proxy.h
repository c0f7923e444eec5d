// The proxies of one process: threads that take commands out of FIFOs and carry them out, and what
// happens to the puts that come from peers.
//
//   FIFO --commands--> proxy thread --put--> engine ~~~> engine --arrival, landed--> Inbound -->
//   counters
//
// A FIFO belongs to a region (one rank in one communicator) and to one proxy thread; a thread
// serves several. Puts to ranks of the own process are copied by the thread at once; others go
// through the engine as messages of the put namespace, described by put_note.h. What comes is
// handled where it is noticed: on the engine's threads or in Engine::Poll.
//
// In flight. A put counts from its Send until the peer's acknowledgement that it has landed and was
// counted. At most proxy_fifo_inflight per FIFO, and proxy_peer_inflight to one process over all
// FIFOs; beyond it the FIFO waits, which in the end fills it and holds its producers. Quiet and
// barrier wait until the FIFO's count is zero, and ask for the acknowledgements that are missing.
//
// Sleep. Commands come from GPUs, which ring no bell. So whoever lets producers run, or waits for a
// counter, holds a Use: meanwhile the threads poll as long as that pays (spin_policy.h), then look
// after naps of proxy_nap_us that grow, and peers are watched for signs of life. Without a Use they
// sleep until one begins.
//
// Failure. A lost peer, a malformed command, a put that no honest peer sends: the region fails with
// that status, its waiters get it, its FIFOs stop, and producers that find them full go on.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "csrc/base/config.h"
#include "csrc/base/status.h"
#include "csrc/base/types.h"
#include "csrc/core/message.h"
#include "csrc/engine/engine.h"
#include "csrc/fifo/host_fifo.h"
#include "csrc/fifo/slot.h"
#include "csrc/proxy/region.h"

namespace uccl::proxy {

struct ProxyStats {
  uint64_t commands = 0, puts = 0, put_bytes = 0, local_puts = 0;
  uint64_t stalls = 0;  // times that a command had to wait for a cap
  uint64_t sleeps = 0, naps = 0;
  uint64_t ack_requests = 0, duplicates = 0, malformed = 0;
};

class Proxy final {
 public:
  // Starts the threads. `engine` is connected or will be, as process `self`, and outlives this (but
  // for its destructor); its sink hands over what OwnsToken and core::IsPut name (PutSwitch does).
  // Null where there are no other processes.
  static Result<std::unique_ptr<Proxy>> Start(const Config& config, engine::Engine* engine,
                                              ProcessId self);
  ~Proxy();  // Shutdown

  // The region of one rank of this process. What peers put before is kept until then.
  Result<std::shared_ptr<Region>> RegisterRegion(RegionOptions options);
  // Its FIFOs stop, its waiters get kAborted, and when this returns nothing of it is read or
  // written any more. Not on an engine thread.
  void UnregisterRegion(const std::shared_ptr<Region>& region);

  // A FIFO of the region's rank, in memory of this process, or over memory of the caller's (zeroed,
  // valid until the region is unregistered).
  Result<fifo::FifoView> OpenFifo(const std::shared_ptr<Region>& region, size_t capacity);
  Status OpenFifo(const std::shared_ptr<Region>& region, std::span<const fifo::Slot> slots,
                  fifo::FifoControl* control);

  // Producers may run, or somebody waits for a counter.
  class Use final {
   public:
    explicit Use(Proxy* proxy);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    Proxy* const proxy_;
  };

  // Peers are not watched any more, now and not some time after the last Use; there is none.
  void StopWatching();

  // From the engine's sink.
  static bool OwnsToken(uint64_t token) { return token >> 63 != 0; }
  void OnMessage(ProcessId peer, const core::Event& event);
  void OnArrival(ProcessId peer, const core::MessageInfo& info);
  void OnPeerLost(ProcessId peer, const Status& status);

  ProxyStats Stats() const;
  // All regions are unregistered, the threads end.
  void Shutdown();

  struct Impl;

 private:
  explicit Proxy(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace uccl::proxy
