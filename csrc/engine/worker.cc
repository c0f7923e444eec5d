// The thread's beginning and end.
#include "csrc/engine/worker.h"

#include <pthread.h>

#include "csrc/base/quiet_thread.h"
#include "csrc/engine/limits.h"

namespace uccl::engine {
Result<std::unique_ptr<Worker>> Worker::Start(const Config& config, EngineSink* sink) {
  Config nic_config = config;
  nic_config.ecn = UsesEcn(config) ? 1 : 0;
  Result<std::unique_ptr<nic::NicBackend>> nic = nic::OpenBackend(nic_config);
  if (!nic.ok()) return nic.status();
  std::unique_ptr<Worker> worker(new Worker(config, std::move(nic.value()), sink));
  Worker* const raw = worker.get();
  Result<std::thread> thread = StartQuietThread("the engine thread", [raw] {
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

Status Worker::Pin(int cpu) { return BindThread(&thread_, cpu, "engine_cpus", "an engine thread"); }

Status Worker::Join() {
  if (thread_.joinable()) thread_.join();
  return outcome_;
}

}  // namespace uccl::engine
