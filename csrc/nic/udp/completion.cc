// Readiness through epoll, and the words for errors about destinations.
#include "csrc/nic/udp/completion.h"

#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <string>
#include <utility>

#include "csrc/nic/udp/endpoint.h"

namespace uccl::nic::udp {
namespace {

// Set once the kernel has refused epoll_pwait2. Relaxed: it is a hint that guards nothing; a thread
// that does not see it yet merely asks the kernel once more.
std::atomic<bool> g_no_pwait2{false};

int MillisecondsUp(Nanos timeout) {
  if (timeout == kNever) return -1;
  const int64_t ms = std::chrono::ceil<std::chrono::milliseconds>(timeout).count();
  return static_cast<int>(std::clamp<int64_t>(ms, 0, std::numeric_limits<int>::max()));
}

Status FaultStatus(const SocketAddress& to, int error) {
  const std::string where = IpText(to) + " port " + std::to_string(to.port());
  Status status = SystemError("sending to " + where, error);
  if (error == EMSGSIZE) {
    status.detail +=
        "; the path's MTU is smaller than the datagrams: set max_datagram_bytes "
        "(JAX_UCCL_MAX_DATAGRAM_BYTES) below it";
  } else if (error == ECONNREFUSED) {
    status.code = StatusCode::kPeerLost;  // the host is up and says that nobody listens there
  } else {
    status.code =
        StatusCode::kAllPathsFailed;  // no route, no neighbour, interface down, firewall: may pass
  }
  return status;
}

}  // namespace

int EpollWait(int epoll_fd, std::span<epoll_event> events, Nanos timeout) {
  const int capacity = static_cast<int>(events.size());
#ifdef SYS_epoll_pwait2
  const bool whole_ms = timeout == kNever || timeout.count() == 0;
  if (!whole_ms && !g_no_pwait2.load(std::memory_order_relaxed)) {
    struct {  // the kernel's timespec, 64 bits wide on every architecture
      int64_t tv_sec, tv_nsec;
    } limit = {timeout.count() / 1'000'000'000, timeout.count() % 1'000'000'000};
    const long n =
        ::syscall(SYS_epoll_pwait2, epoll_fd, events.data(), capacity, &limit, nullptr, size_t{8});
    if (n >= 0) return static_cast<int>(n);
    if (errno == EINTR) return 0;
    // ENOSYS on old kernels; sandboxes answer EPERM.
    g_no_pwait2.store(true, std::memory_order_relaxed);
  }
#endif
  const int n = ::epoll_wait(epoll_fd, events.data(), capacity, MillisecondsUp(timeout));
  return std::max(n, 0);  // EINTR is the only failure of a valid set
}

void FaultLog::Add(PeerHandle peer, const SocketAddress& to, int error) {
  by_peer_[peer] = FaultStatus(to, error);
}

std::vector<Fault> FaultLog::Take() {
  std::vector<Fault> faults;
  if (by_peer_.empty()) return faults;
  for (auto& [peer, status] : by_peer_) faults.push_back({peer, std::move(status)});
  by_peer_.clear();
  return faults;
}

}  // namespace uccl::nic::udp
