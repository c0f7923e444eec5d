// Operations executed as a GPU would execute them (docs/fifo_and_proxy.md): kernels pack and push
// commands, proxies carry them out, kernels wait for counters and unpack.
//
//   Executor       of one process and epoch: the proxy, and a RankStream for each rank here and
//   lane of each
//                  communicator
//   RankStream     the programs of one rank, in the order of the communicator (rank_stream.h)
//   Pipes          its region, FIFO and counters: messages to the other ranks (pipes.h)
//
// Programs run on threads of the host here. Where a device has a stream of its own, an operation is
// a list of launches over pipes in memory that the device reaches (collectives/stream_call.h).
//
// Threads: any.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "csrc/base/config.h"
#include "csrc/base/status.h"
#include "csrc/base/types.h"
#include "csrc/engine/engine.h"
#include "csrc/executor/rank_stream.h"
#include "csrc/proxy/proxy.h"

namespace uccl::executor {

class Executor final {
 public:
  // `engine` as in Proxy::Start.
  static Result<std::shared_ptr<Executor>> Start(const Config& config, engine::Engine* engine,
                                                 ProcessId self, Spawn spawn);
  ~Executor();  // Stop

  // The stream of a lane of `rank` of the communicator `comm`, whose ranks live in `processes`. The
  // first call opens those of all its ranks here, since they send to each other.
  Result<std::shared_ptr<RankStream>> StreamOf(uint64_t comm, uint32_t lane,
                                               const std::vector<ProcessId>& processes,
                                               uint32_t rank);

  // Until what was sent is in the hands of the engine, whose own shutdown waits for the peers, or
  // `timeout`; streams that failed are left out. No program may be enqueued any more.
  void Drain(Nanos timeout);
  // Programs end with kAborted, and when this returns no memory is read or written any more. All
  // programs must have been over or about to be.
  void Stop();

  proxy::Proxy* proxy() { return proxy_.get(); }

 private:
  Executor(const Config& config, ProcessId self, Spawn spawn);

  const Config config_;
  const ProcessId self_;
  const Spawn spawn_;
  std::unique_ptr<proxy::Proxy> proxy_;
  std::mutex mutex_;  // guards all below
  std::map<std::pair<uint64_t, uint32_t>, std::shared_ptr<RankStream>> streams_;
  bool stopped_ = false;
};

}  // namespace uccl::executor
