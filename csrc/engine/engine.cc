// The public face: turns calls of any thread into commands for the worker that they concern, and
// makes several workers look like one.
#include "csrc/engine/engine.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "csrc/base/hash.h"
#include "csrc/engine/affinity.h"
#include "csrc/engine/command.h"
#include "csrc/engine/limits.h"
#include "csrc/engine/merge_stats.h"
#include "csrc/engine/worker.h"

namespace uccl::engine {
namespace {

// A value that one thread gives and another waits for. (std::promise would need its own story for a
// caller that is the engine thread itself; none of the users below can be.)
template <class T>
class Answer {
 public:
  void Give(T value) {
    std::lock_guard lock(mutex_);
    value_ = std::move(value);
    given_
        .notify_one();  // under the lock: the waiter may destroy this as soon as it sees the value
  }
  T Wait() {
    std::unique_lock lock(mutex_);
    given_.wait(lock, [&] { return value_.has_value(); });
    return std::move(*value_);
  }

 private:
  std::mutex mutex_;  // guards value_
  std::condition_variable given_;
  std::optional<T> value_;
};

// A callback for each of `count` workers, of which the last to call runs `done`. Zero runs it now.
std::function<void()> OnceAllDid(size_t count, std::function<void()> done) {
  if (count == 0) {
    done();
    return nullptr;
  }
  auto left = std::make_shared<std::atomic<size_t>>(count);
  return [left, done = std::move(done)] {
    // acq_rel: what the other workers did before their call happens before `done`.
    if (left->fetch_sub(1, std::memory_order_acq_rel) == 1) done();
  };
}

// These limits are per peer, and the rate is that of one link, whatever the number of connections.
Config ShareOf(const Config& config) {
  Config share = config;
  share.window_bytes = std::max<int64_t>(config.window_bytes / config.engines, 1);
  share.eager_buffer_bytes = config.eager_buffer_bytes / config.engines;
  share.credit_initial_bytes = config.credit_initial_bytes / config.engines;
  if (config.line_rate_mbps > 0)
    share.line_rate_mbps = std::max<int64_t>(config.line_rate_mbps / config.engines, 1);
  return share;
}

// Engines of one number meet; those of different ones must not take each other's packets.
uint64_t SessionOf(uint64_t session, size_t worker) {
  return worker == 0 ? session : HashWords({session, worker});
}

}  // namespace

// Also the sink of the workers and of shared memory, between them and the user's.
struct Engine::Impl final : EngineSink, shm::Sink {
  Impl(const Config& c, EngineSink* s) : config(c), sink(s), allowed_cpus(AllowedCpus()) {}

  // Equal tags meet at one worker, and the two ends of a message agree.
  Worker& WorkerOf(const core::MessageTag& tag) {
    if (workers.size() == 1) return *workers[0];
    return *workers[HashWords({tag.hi, tag.lo}) % workers.size()];
  }

  // EngineSink, on the threads of the workers.
  void OnMessage(ProcessId peer, const core::Event& event) override {
    sink->OnMessage(peer, event);
  }
  void OnControl(ProcessId peer, const std::string& control) override {
    sink->OnControl(peer, control);
  }
  void OnArrival(ProcessId peer, const core::MessageInfo& info) override {
    sink->OnArrival(peer, info);
  }
  // The other workers fail their connections as well; the user hears of it when all tokens of the
  // peer were reported. The worker that calls this finds its own connection failed already.
  void OnPeerLost(ProcessId peer, const Status& status) override {
    {
      std::lock_guard lock(mutex);
      if (!lost.insert(ToInt(peer)).second) return;  // the answer of another worker to our call
    }
    if (Shares(peer)) {
      shared->FailPeer(peer, status);
      shared->Poll();  // reports its tokens, but for those into which a thread still copies
    } else if (workers.size() == 1) {
      return sink->OnPeerLost(peer, status);
    }
    const std::function<void()> done =
        OnceAllDid(workers.size(), [this, peer, status] { sink->OnPeerLost(peer, status); });
    for (const auto& worker : workers) worker->Push(FailPeerCommand{peer, status, done});
  }

  bool Shares(ProcessId peer) const { return shared != nullptr && shared->Reaches(peer); }

  // Takes back what shared memory carries; `done` runs when none of it can be touched any more.
  void CancelShared(const std::vector<Posted>& posted, const std::function<void()>& done) {
    // One for this call itself, so that it cannot be over too early.
    const std::function<void()> one = OnceAllDid(posted.size() + 1, done);
    for (const Posted& p : posted) {
      bool free = true;
      if (Shares(p.peer)) {
        if (!p.never_posted) {
          free = shared->Cancel(p.peer, p.is_send, p.token, one);
        } else if (!p.is_send) {
          shared->Discard(p.peer, *p.never_posted);
        }
      }
      if (free) one();
    }
    one();
  }

  Status Pin(int process) {
    Result<std::vector<int>> plan =
        PlanCpus(config.engine_cpus, allowed_cpus, static_cast<int>(config.engines), process);
    if (!plan.ok()) return plan.status();
    for (size_t i = 0; i < plan.value().size(); ++i) {
      Status status = workers[i]->Pin(plan.value()[i]);
      if (!status.ok()) return status;
    }
    std::lock_guard lock(mutex);
    cpus = std::move(plan.value());
    return Status::Ok();
  }

  const Config config;
  EngineSink* const sink;
  const std::vector<int> allowed_cpus;           // of the thread that started the engine
  std::vector<std::unique_ptr<Worker>> workers;  // fixed once started
  std::unique_ptr<shm::Messenger> shared;        // likewise; null where there is none
  std::string not_shared_because;
  std::mutex mutex;        // guards the two below
  std::set<int32_t> lost;  // processes
  std::vector<int> cpus;
  std::mutex stop_mutex;  // one Shutdown at a time
};

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Engine::~Engine() { (void)Shutdown(Nanos(0)); }  // nobody is left to hear what was not acknowledged

Result<std::unique_ptr<Engine>> Engine::Start(const Config& config, EngineSink* sink) {
  auto impl = std::make_unique<Impl>(config, sink);
  // "auto" needs the number of the process, which Connect brings; a list is checked and used now.
  Result<std::vector<int>> plan =
      PlanCpus(config.engine_cpus, impl->allowed_cpus, static_cast<int>(config.engines), 0);
  if (!plan.ok()) return plan.status();
  if (config.shared_memory != "off") {
    if (config.shared_memory != "auto" && config.shared_memory != "on") {
      return Status::Error(StatusCode::kInvalidArgument,
                           "setting shared_memory (JAX_UCCL_SHARED_MEMORY) is \"" +
                               config.shared_memory + "\"; use auto, on or off");
    }
    Result<std::unique_ptr<shm::Messenger>> shared = shm::Messenger::Start(config, impl.get());
    if (shared.ok()) {
      impl->shared = std::move(shared.value());
    } else if (config.shared_memory == "on") {
      return shared.status();
    } else {
      impl->not_shared_because = shared.status().detail;
    }
  } else {
    impl->not_shared_because = "shared_memory=off";
  }
  // From here on its destructor ends the workers that were started.
  std::unique_ptr<Engine> engine(new Engine(std::move(impl)));
  const Config share = ShareOf(config);
  for (int64_t i = 0; i < config.engines; ++i) {
    Result<std::unique_ptr<Worker>> worker = Worker::Start(share, engine->impl_.get());
    if (!worker.ok()) return worker.status();
    engine->impl_->workers.push_back(std::move(worker.value()));
  }
  if (config.engine_cpus != "auto") {
    Status status = engine->impl_->Pin(0);
    if (!status.ok()) return status;
  }
  return engine;
}

std::string Engine::LocalAddress() const {
  std::vector<std::string> addresses;
  for (const auto& worker : impl_->workers) addresses.push_back(EncodeHello(worker->hello()));
  std::string text = JoinAddresses(addresses);
  if (impl_->shared != nullptr) AddSharedAddress(impl_->shared->LocalAddress(), &text);
  return text;
}

Status Engine::Connect(ProcessId self, const std::vector<std::string>& addresses,
                       uint64_t session) {
  std::vector<std::vector<std::string>> by_worker(impl_->workers.size());
  std::vector<std::string> shared;
  for (size_t process = 0; process < addresses.size(); ++process) {
    std::string text = addresses[process];
    shared.push_back(TakeSharedAddress(&text));
    Result<std::vector<std::string>> split =
        SplitAddresses(text, impl_->config.engines, ProcessId{static_cast<int32_t>(process)});
    if (!split.ok()) return split.status();
    for (size_t i = 0; i < by_worker.size(); ++i) {
      by_worker[i].push_back(std::move(split.value()[i]));
    }
  }
  if (impl_->config.engine_cpus == "auto" && ToInt(self) >= 0) {
    Status status = impl_->Pin(ToInt(self));
    if (!status.ok()) return status;
  }
  if (impl_->shared != nullptr) {
    Status status = impl_->shared->Connect(self, shared, session);
    if (!status.ok()) return status;
  }
  for (size_t i = 0; i < by_worker.size(); ++i) {
    Answer<Status> answer;
    impl_->workers[i]->Push(
        ConnectCommand{self, std::move(by_worker[i]), SessionOf(session, i), impl_->shared.get(),
                       [&answer](Status status) { answer.Give(std::move(status)); }});
    Status status = answer.Wait();
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

void Engine::Send(ProcessId peer, const core::MessageInfo& info, Bytes data, uint64_t token) {
  if (impl_->Shares(peer)) return impl_->shared->Send(peer, info, data, token);
  impl_->WorkerOf(info.tag).Push(SendCommand{peer, info, data, token});
}

void Engine::PostRecv(ProcessId peer, const core::MessageInfo& info, MutableBytes buffer,
                      uint64_t token, bool borrow) {
  if (impl_->Shares(peer)) return impl_->shared->PostRecv(peer, info, buffer, token, borrow);
  impl_->WorkerOf(info.tag).Push(RecvCommand{peer, info, buffer, token});
}

Status Engine::ReadLent(ProcessId peer, MutableBytes to, uint64_t address) const {
  return impl_->shared->Read(peer, to, address);
}

Status Engine::Return(ProcessId peer, uint64_t token, const Status& read) {
  return impl_->shared->Return(peer, token, read);
}

void Engine::SendControl(ProcessId peer, std::string control) {
  // By the way that its messages and its goodbye take, which must not overtake it.
  if (impl_->Shares(peer)) return impl_->shared->SendControl(peer, std::move(control));
  impl_->workers[0]->Push(ControlCommand{peer, std::move(control)});
}

bool Engine::Poll() { return impl_->shared != nullptr && impl_->shared->Poll(); }

Engine::PollScope::PollScope(Engine* engine) {
  if (engine->LocalProcesses() > 1) scope_.emplace(engine->impl_->shared.get());
}

void Engine::PollScope::Yield() {
  if (scope_.has_value()) return scope_->Yield();
  std::this_thread::yield();
}

int Engine::LocalProcesses() const {
  return 1 + (impl_->shared == nullptr ? 0 : impl_->shared->peers());
}

bool Engine::Shares(ProcessId peer) const { return impl_->Shares(peer); }

void Engine::Cancel(std::vector<Posted> posted, std::function<void()> done) {
  // Messages that were handed in before Connect pass through the workers' queues, so shared memory
  // comes last.
  if (impl_->shared != nullptr) {
    done = [impl = impl_.get(), posted, done = std::move(done)] {
      impl->CancelShared(posted, done);
    };
  }
  // A token does not tell its worker; those that do not know it pass it over.
  const std::function<void()> each = OnceAllDid(impl_->workers.size(), std::move(done));
  for (const auto& worker : impl_->workers) worker->Push(CancelCommand{posted, each});
}

void Engine::Inspect(std::function<void(std::vector<UnexpectedMessage>)> fn) {
  struct Gathered {
    std::mutex mutex;  // guards `messages`
    std::vector<UnexpectedMessage> messages;
  };
  auto gathered = std::make_shared<Gathered>();
  if (impl_->shared != nullptr) {
    for (const auto& [peer, info] : impl_->shared->Inspect())
      gathered->messages.push_back({peer, info});
  }
  const std::function<void()> each = OnceAllDid(
      impl_->workers.size(), [gathered, fn = std::move(fn)] { fn(std::move(gathered->messages)); });
  for (const auto& worker : impl_->workers) {
    worker->Push(InspectCommand{[gathered, each](std::vector<UnexpectedMessage> messages) {
      {
        std::lock_guard lock(gathered->mutex);
        gathered->messages.insert(gathered->messages.end(), messages.begin(), messages.end());
      }
      each();
    }});
  }
}

EngineStats Engine::Stats() {
  EngineStats all;
  for (const auto& worker : impl_->workers) {
    Answer<EngineStats> answer;
    worker->Push(StatsCommand{[&answer](EngineStats stats) { answer.Give(std::move(stats)); }});
    MergeStats(answer.Wait(), &all);
  }
  if (impl_->shared != nullptr) all.shared = impl_->shared->Stats();
  all.not_shared_because = impl_->not_shared_because;
  std::lock_guard lock(impl_->mutex);
  all.cpus = impl_->cpus;
  return all;
}

Status Engine::Shutdown(Nanos timeout) {
  std::lock_guard lock(impl_->stop_mutex);
  // All at once, so that one deadline holds for all.
  for (const auto& worker : impl_->workers) worker->Push(ShutdownCommand{timeout});
  Status outcome;
  if (impl_->shared != nullptr) outcome = impl_->shared->Shutdown(timeout);
  for (const auto& worker : impl_->workers) {
    const Status status = worker->Join();
    if (outcome.ok()) outcome = status;
  }
  return outcome;
}

}  // namespace uccl::engine
