// What comes back from the kernel besides datagrams: readiness, and errors about destinations.
#pragma once

#include <sys/epoll.h>

#include <map>
#include <span>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/nic/nic_backend.h"
#include "csrc/nic/udp/address.h"

namespace uccl::nic::udp {

// epoll_wait with nanoseconds where the kernel has it (epoll_pwait2, Linux 5.11), else rounded up
// to milliseconds. kNever waits without limit. Returns the number of events; 0 also when a signal
// interrupted.
int EpollWait(int epoll_fd, std::span<epoll_event> events, Nanos timeout);

// The newest error of each peer since the last Take. Bounded by the number of peers, however many
// errors a closed port produces.
class FaultLog final {
 public:
  void Add(PeerHandle peer, const SocketAddress& to, int error);
  bool empty() const { return by_peer_.empty(); }
  std::vector<Fault> Take();

 private:
  std::map<PeerHandle, Status> by_peer_;
};

}  // namespace uccl::nic::udp
