// Another process of this host, as the kernel shows it: whether it lives, and its memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "csrc/base/status.h"
#include "csrc/base/types.h"

namespace uccl::shm {

class PeerProcess final {
 public:
  // kPeerLost when there is no such process.
  static Result<std::unique_ptr<PeerProcess>> Open(int64_t pid);
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  // Any thread. False once it has ended; its number may name another process then.
  bool Alive() const;
  // Any thread. Copies [address, address + to.size()) of its memory (cross-memory attach); what was
  // read is its own only if it is alive afterwards. The error says what the kernel refused.
  Status Read(MutableBytes to, uint64_t address) const;

 private:
  PeerProcess(int64_t pid, int pidfd) : pid_(pid), pidfd_(pidfd) {}
  const int64_t pid_;
  const int pidfd_;
};

}  // namespace uccl::shm
