// Signal masks are inherited, so the starting thread's is changed around the start.
#include "csrc/base/quiet_thread.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <optional>
#include <system_error>
#include <utility>

namespace uccl {

Result<std::thread> StartQuietThread(const std::string& what, std::function<void()> run) {
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
    return Status::Error(StatusCode::kResourceExhausted, "cannot start " + what + ": " + reason);
  }
  return std::move(*thread);
}

Status BindThread(std::thread* thread, int cpu, const std::string& setting,
                  const std::string& what) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  const int error = pthread_setaffinity_np(thread->native_handle(), sizeof(set), &set);
  if (error == 0) return Status::Ok();
  return Status::Error(StatusCode::kInvalidArgument,
                       "setting " + setting + ": the system refuses to bind " + what + " to CPU " +
                           std::to_string(cpu) + ": " + std::generic_category().message(error));
}

}  // namespace uccl
