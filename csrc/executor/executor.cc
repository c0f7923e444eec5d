// See executor.h.
#include "csrc/executor/executor.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "csrc/base/hash.h"

namespace uccl::executor {

Executor::Executor(const Config& config, ProcessId self, Spawn spawn)
    : config_(config), self_(self), spawn_(std::move(spawn)) {}

Executor::~Executor() { Stop(); }

Result<std::shared_ptr<Executor>> Executor::Start(const Config& config, engine::Engine* engine,
                                                  ProcessId self, Spawn spawn) {
  std::shared_ptr<Executor> executor(new Executor(config, self, std::move(spawn)));
  auto proxy = proxy::Proxy::Start(config, engine, self);
  if (!proxy.ok()) return proxy.status();
  executor->proxy_ = std::move(proxy.value());
  return executor;
}

Result<std::shared_ptr<RankStream>> Executor::StreamOf(uint64_t comm, uint32_t lane,
                                                       const std::vector<ProcessId>& processes,
                                                       uint32_t rank) {
  // A region's name is one for each lane.
  const uint64_t key = HashWords({comm, lane});
  std::lock_guard lock(mutex_);
  if (stopped_) return Status::Error(StatusCode::kAborted, "the executor has stopped");
  if (const auto it = streams_.find({key, rank}); it != streams_.end()) return it->second;
  if (rank >= processes.size() || processes[rank] != self_) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "rank " + std::to_string(rank) + " of a group of " +
                             std::to_string(processes.size()) + " is not of this process");
  }
  for (uint32_t r = 0; r < processes.size(); ++r) {
    if (processes[r] != self_ || streams_.contains({key, r})) continue;
    auto pipes = Pipes::Open(proxy_.get(), key, processes, r,
                             static_cast<uint64_t>(config_.executor_staging_bytes));
    if (!pipes.ok()) return pipes.status();
    streams_[{key, r}] = std::make_shared<RankStream>(std::move(pipes.value()), spawn_);
  }
  return streams_.at({key, rank});
}

void Executor::Drain(Nanos timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::vector<std::shared_ptr<RankStream>> streams;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [name, stream] : streams_) streams.push_back(stream);
  }
  for (const auto& stream : streams) {
    if (!stream->pipes().status().ok()) continue;
    const Nanos left = deadline - std::chrono::steady_clock::now();
    if (left <= Nanos(0)) break;
    // Whoever misses what could not be sent in time says so.
    (void)stream->pipes().Drain(left);
  }
  // Peers that leave at the same time would wait for what is posted to watch them.
  proxy_->StopWatching();
}

void Executor::Stop() {
  std::map<std::pair<uint64_t, uint32_t>, std::shared_ptr<RankStream>> streams;
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(stopped_, true)) return;
    streams.swap(streams_);
  }
  const Status cause = Status::Error(StatusCode::kAborted, "the executor was stopped");
  for (const auto& [name, stream] : streams) stream->FailFrom(0, cause);
  for (const auto& [name, stream] : streams) stream->pipes().Close();
  if (proxy_ != nullptr) proxy_->Shutdown();
}

}  // namespace uccl::executor
