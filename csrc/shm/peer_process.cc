// pidfd and process_vm_readv.
#include "csrc/shm/peer_process.h"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace uccl::shm {
namespace {

// The kernel moves at most this in one call (MAX_RW_COUNT, less a page).
constexpr size_t kMostPerCall = size_t{1} << 30;

}  // namespace

Result<std::unique_ptr<PeerProcess>> PeerProcess::Open(int64_t pid) {
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0));
  if (fd < 0) {
    const int error = errno;
    return Status::Error(error == ESRCH ? StatusCode::kPeerLost : StatusCode::kUnsupported,
                         "pidfd_open of process id " + std::to_string(pid) + ": " +
                             std::generic_category().message(error));
  }
  return std::unique_ptr<PeerProcess>(new PeerProcess(pid, fd));
}

PeerProcess::~PeerProcess() { close(pidfd_); }

bool PeerProcess::Alive() const {
  pollfd look{pidfd_, POLLIN, 0};
  return poll(&look, 1, 0) == 0;  // readable once it has ended
}

Status PeerProcess::Read(MutableBytes to, uint64_t address) const {
  while (!to.empty()) {
    const iovec local{to.data(), std::min(to.size(), kMostPerCall)};
    const iovec remote{reinterpret_cast<void*>(address), local.iov_len};
    const ssize_t got = process_vm_readv(static_cast<pid_t>(pid_), &local, 1, &remote, 1, 0);
    if (got < 0) {
      const int error = errno;
      if (error == EINTR) continue;
      return Status::Error(error == ESRCH ? StatusCode::kPeerLost : StatusCode::kUnsupported,
                           "reading memory of process id " + std::to_string(pid_) + ": " +
                               std::generic_category().message(error));
    }
    if (got == 0) {
      return Status::Error(StatusCode::kPeerLost, "reading memory of process id " +
                                                      std::to_string(pid_) + ": nothing came");
    }
    to = to.subspan(static_cast<size_t>(got));
    address += static_cast<uint64_t>(got);
  }
  return Status::Ok();
}

}  // namespace uccl::shm
