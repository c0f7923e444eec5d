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
#include "csrc/nic/nic_backend.h"
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
  size_t size() const { return header.size() + payload.size(); }
};

// What one slot holds: a datagram, or several of `segment_bytes` each (the last may be shorter)
// that the kernel joined (UDP_GRO).
struct ReceivedDatagram {
  size_t size = 0;
  size_t segment_bytes = 0;  // equal to `size` for a single one
  bool truncated = false;    // it was longer than its slot
  Ecn ecn = Ecn::kNotCapable;
  size_t count() const { return size == 0 ? 1 : (size + segment_bytes - 1) / segment_bytes; }
};

// What the error queue said about a destination.
struct DestinationError {
  SocketAddress to;
  int error = 0;  // errno value
};

// Most datagrams one call of Send takes: several packets of segments. Most packets one system call
// receives: more gains nothing (the copy dominates from about 16 on).
inline constexpr size_t kSyscallBatch = 128;
inline constexpr size_t kSlotsPerCall = 32;

// UDP carries 16-bit lengths, so this bounds a packet, also one that is cut into segments later.
inline constexpr size_t kLargestPacket = 65507;

struct EndpointOptions {
  int64_t buffer_bytes = 65536;
  Ecn ecn = Ecn::kNotCapable;  // of what is sent
  // Most datagrams that leave as one packet for the kernel to cut (UDP_SEGMENT); 1: none.
  size_t max_segments = 1;
  // Packets may arrive joined (UDP_GRO); slots then need kLargestPacket bytes.
  bool receive_offload = false;
};

class Endpoint final {
 public:
  // Binds to `ip` on a port the kernel chooses. Offloads that the kernel does not know stay off.
  static Result<Endpoint> Open(const SocketAddress& ip, const EndpointOptions& options);

  int fd() const { return fd_.get(); }
  uint16_t port() const { return port_; }
  // SO_RCVBUF as granted, in the kernel's accounting.
  int64_t granted_receive_buffer() const { return granted_receive_buffer_; }
  bool segmentation() const { return max_segments_ > 1; }
  bool receive_offload() const { return receive_offload_; }

  struct SendResult {
    size_t taken = 0;
    bool full = false;  // the socket can take no more now
  };
  // Sends up to kSyscallBatch datagrams. One that fails for a reason of its own counts as taken;
  // its place and errno go to `errors`. Neighbours to one destination (the same SocketAddress
  // object) leave as one packet if all but the last have the size of the first and the last is not
  // longer. `stats` counts.
  SendResult Send(std::span<const OutgoingDatagram> batch,
                  std::vector<std::pair<size_t, int>>* errors, NicStats* stats);
  // Receives into slots[i], up to kSlotsPerCall; returns how many packets arrived.
  size_t Receive(std::span<const MutableBytes> slots, std::span<ReceivedDatagram> out,
                 NicStats* stats);
  // Empties the error queue into `out`.
  void ReadErrors(std::vector<DestinationError>* out);

 private:
  explicit Endpoint(FileDescriptor fd) : fd_(std::move(fd)) {}
  // Datagrams of `batch`, from the front, that may leave as one packet.
  size_t RunLength(std::span<const OutgoingDatagram> batch) const;

  FileDescriptor fd_;
  size_t max_segments_ = 1;
  bool receive_offload_ = false;
  uint16_t port_ = 0;
  int64_t granted_receive_buffer_ = 0;
};

// Largest UDP payload that one IP packet carries on the route from `from` to `to`, from the route's
// MTU (and what the kernel has learned of the path's).
Result<size_t> RoutePayloadBytes(const SocketAddress& from, const SocketAddress& to);

}  // namespace uccl::nic::udp
