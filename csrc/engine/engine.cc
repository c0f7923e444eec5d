// The public face: turns calls of any thread into commands, and owns the thread.
#include "csrc/engine/engine.h"

#include <pthread.h>
#include <signal.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "csrc/engine/command.h"
#include "csrc/engine/limits.h"
#include "csrc/engine/loop.h"

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

// Starts `run` on a thread that receives no signal: Python's handlers belong to other threads.
Result<std::thread> StartThread(std::function<void()> run) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::optional<std::thread> thread;
  std::string reason;
  try {
    thread.emplace(std::move(run));
  } catch (const std::system_error& error) {
    reason = error.what();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!thread.has_value()) {
    return Status::Error(StatusCode::kResourceExhausted,
                         "cannot start the engine thread: " + reason);
  }
  return std::move(*thread);
}

}  // namespace

struct Engine::Impl {
  Impl(const Config& config, std::unique_ptr<nic::NicBackend> nic, EngineSink* sink)
      : loop(config, std::move(nic), sink, &queue) {}

  // Queues, and wakes the engine. After its end the command is answered here, on the caller's
  // thread.
  void Push(Command command) {
    if (queue.Push(std::move(command))) {
      // The backend lives as long as this object, also when the loop ends in between.
      loop.nic()->Wake();
    } else {
      loop.RefuseCommand(command);
    }
  }

  CommandQueue queue;
  Loop loop;              // the engine thread's until it is joined
  std::mutex stop_mutex;  // guards the two below: one Shutdown at a time
  std::thread thread;
  Status outcome;  // of Run; written by the engine thread, read after joining it
};

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Engine::~Engine() { (void)Shutdown(Nanos(0)); }  // nobody is left to hear what was not acknowledged

Result<std::unique_ptr<Engine>> Engine::Start(const Config& config, EngineSink* sink) {
  Config nic_config = config;
  nic_config.ecn = UsesEcn(config) ? 1 : 0;
  Result<std::unique_ptr<nic::NicBackend>> nic = nic::OpenBackend(nic_config);
  if (!nic.ok()) return nic.status();
  auto impl = std::make_unique<Impl>(config, std::move(nic.value()), sink);
  Impl* const raw = impl.get();
  Result<std::thread> thread = StartThread([raw] {
    pthread_setname_np(pthread_self(), "uccl-engine");
    raw->outcome = raw->loop.Run();
  });
  if (!thread.ok()) return thread.status();
  impl->thread = std::move(thread.value());
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

std::string Engine::LocalAddress() const { return EncodeHello(impl_->loop.hello()); }

Status Engine::Connect(ProcessId self, const std::vector<std::string>& addresses,
                       uint64_t session) {
  Answer<Status> answer;
  impl_->Push(ConnectCommand{self, addresses, session,
                             [&answer](Status status) { answer.Give(std::move(status)); }});
  return answer.Wait();
}

void Engine::Send(ProcessId peer, const core::MessageInfo& info, Bytes data, uint64_t token) {
  impl_->Push(SendCommand{peer, info, data, token});
}

void Engine::PostRecv(ProcessId peer, const core::MessageInfo& info, MutableBytes buffer,
                      uint64_t token) {
  impl_->Push(RecvCommand{peer, info, buffer, token});
}

void Engine::SendControl(ProcessId peer, std::string control) {
  impl_->Push(ControlCommand{peer, std::move(control)});
}

void Engine::Cancel(std::vector<Posted> posted, std::function<void()> done) {
  impl_->Push(CancelCommand{std::move(posted), std::move(done)});
}

void Engine::Inspect(std::function<void(std::vector<UnexpectedMessage>)> fn) {
  impl_->Push(InspectCommand{std::move(fn)});
}

EngineStats Engine::Stats() {
  Answer<EngineStats> answer;
  impl_->Push(StatsCommand{[&answer](EngineStats stats) { answer.Give(std::move(stats)); }});
  return answer.Wait();
}

Status Engine::Shutdown(Nanos timeout) {
  std::lock_guard lock(impl_->stop_mutex);
  if (impl_->thread.joinable()) {
    impl_->Push(ShutdownCommand{timeout});
    impl_->thread.join();
  }
  return impl_->outcome;
}

}  // namespace uccl::engine
