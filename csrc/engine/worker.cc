// The thread's beginning and end.
#include "csrc/engine/worker.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <functional>
#include <optional>
#include <string>
#include <system_error>

#include "csrc/engine/limits.h"

namespace uccl::engine {
namespace {

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

Result<std::unique_ptr<Worker>> Worker::Start(const Config& config, EngineSink* sink) {
  Config nic_config = config;
  nic_config.ecn = UsesEcn(config) ? 1 : 0;
  Result<std::unique_ptr<nic::NicBackend>> nic = nic::OpenBackend(nic_config);
  if (!nic.ok()) return nic.status();
  std::unique_ptr<Worker> worker(new Worker(config, std::move(nic.value()), sink));
  Worker* const raw = worker.get();
  Result<std::thread> thread = StartThread([raw] {
    pthread_setname_np(pthread_self(), "uccl-engine");
    raw->outcome_ = raw->loop_.Run();
  });
  if (!thread.ok()) return thread.status();
  worker->thread_ = std::move(thread.value());
  return worker;
}

Worker::~Worker() = default;

void Worker::Push(Command command) {
  if (queue_.Push(std::move(command))) {
    // The backend lives as long as this object, also when the loop ends in between.
    loop_.nic()->Wake();
  } else {
    loop_.RefuseCommand(command);
  }
}

Status Worker::Pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  const int error = pthread_setaffinity_np(thread_.native_handle(), sizeof(set), &set);
  if (error == 0) return Status::Ok();
  return Status::Error(StatusCode::kInvalidArgument,
                       "setting engine_cpus: the system refuses to bind an engine thread to CPU " +
                           std::to_string(cpu) + ": " + std::generic_category().message(error));
}

Status Worker::Join() {
  if (thread_.joinable()) thread_.join();
  return outcome_;
}

}  // namespace uccl::engine
