// One UDP socket, which is one path: the network hashes on its port. Knows how to be opened with
// the wanted buffers, to send and receive batches of datagrams and to read its error queue. Which
// datagram goes to which peer and when is the device's business. Used on the engine thread only.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/base/types.h"
#include "csrc/nic/udp/address.h"

namespace uccl::nic::udp {

// A file descriptor closed on destruction.
class FileDescriptor final {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

// Status of a failed system call: kResourceExhausted for lack of descriptors or memory, else
// kNicError.
Status SystemError(const std::string& what, int error);

struct OutgoingDatagram {
  const SocketAddress* to = nullptr;
  Bytes header, payload;
};

struct ReceivedDatagram {
  size_t size = 0;
  bool truncated = false;  // it was longer than its slot
  Ecn ecn = Ecn::kNotCapable;
};

// What the error queue said about a destination.
struct DestinationError {
  SocketAddress to;
  int error = 0;  // errno value
};

// Most datagrams one system call carries. More gains nothing (the copy dominates from about 16 on)
// and keeps the reader of the other end waiting.
inline constexpr size_t kSyscallBatch = 32;

class Endpoint final {
 public:
  // Binds to `ip` on a port the kernel chooses. Datagrams are sent with `ecn`.
  static Result<Endpoint> Open(const SocketAddress& ip, int64_t buffer_bytes,
                               Ecn ecn = Ecn::kNotCapable);

  int fd() const { return fd_.get(); }
  uint16_t port() const { return port_; }
  // SO_RCVBUF as granted, in the kernel's accounting.
  int64_t granted_receive_buffer() const { return granted_receive_buffer_; }

  struct SendResult {
    size_t taken = 0;
    bool full = false;  // the socket can take no more now
  };
  // Sends up to kSyscallBatch datagrams. One that fails for a reason of its own counts as taken;
  // its place and errno go to `errors`.
  SendResult Send(std::span<const OutgoingDatagram> batch,
                  std::vector<std::pair<size_t, int>>* errors);
  // Receives into slots[i], up to kSyscallBatch; returns how many arrived.
  size_t Receive(std::span<const MutableBytes> slots, std::span<ReceivedDatagram> out);
  // Empties the error queue into `out`.
  void ReadErrors(std::vector<DestinationError>* out);

 private:
  explicit Endpoint(FileDescriptor fd) : fd_(std::move(fd)) {}
  FileDescriptor fd_;
  uint16_t port_ = 0;
  int64_t granted_receive_buffer_ = 0;
};

// Largest UDP payload that one IP packet carries on the route from `from` to `to`, from the route's
// MTU (and what the kernel has learned of the path's).
Result<size_t> RoutePayloadBytes(const SocketAddress& from, const SocketAddress& to);

}  // namespace uccl::nic::udp
