// System calls of one UDP socket (udp(7), ip(7), ipv6(7), sendmmsg(2), recvmmsg(2)).
#include "csrc/nic/udp/endpoint.h"

#include <errno.h>
#include <linux/errqueue.h>
#include <linux/udp.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>

namespace uccl::nic::udp {
namespace {

// The kernel's int option, clamped: socket_buffer_bytes may be a GiB, which SO_RCVBUF doubles past
// an int.
int ClampedBufferSize(int64_t bytes) {
  return static_cast<int>(std::min<int64_t>(bytes, std::numeric_limits<int>::max() / 2));
}

// Asks for a buffer. The FORCE form ignores net.core.{r,w}mem_max and needs CAP_NET_ADMIN; without
// it the plain form gives up to that limit. Neither is fatal: the granted size is read back and
// respected.
void AskBuffer(int fd, int forced_option, int plain_option, int64_t bytes) {
  const int size = ClampedBufferSize(bytes);
  if (setsockopt(fd, SOL_SOCKET, forced_option, &size, sizeof(size)) == 0) return;
  (void)setsockopt(fd, SOL_SOCKET, plain_option, &size, sizeof(size));
}

Status SetOption(int fd, int level, int option, int value, const char* name) {
  if (setsockopt(fd, level, option, &value, sizeof(value)) == 0) return Status::Ok();
  return SystemError(std::string("setsockopt ") + name, errno);
}

// Errors that an earlier datagram left on the socket: the next call of any kind returns them once,
// having done nothing. They are also in the error queue, with the destination.
bool MayBePending(int error) {
  return error == ECONNREFUSED || error == EHOSTUNREACH || error == ENETUNREACH ||
         error == EHOSTDOWN || error == ENETDOWN || error == EPROTO || error == EACCES ||
         error == ENOPROTOOPT || error == EMSGSIZE || error == EPERM || error == ENONET ||
         error == EOPNOTSUPP;
}

// What is sent, and that what comes is told with each datagram.
Status SetEcn(int fd, bool v6, Ecn ecn) {
  const int bits = static_cast<int>(ecn);
  Status status = v6 ? SetOption(fd, IPPROTO_IPV6, IPV6_TCLASS, bits, "IPV6_TCLASS")
                     : SetOption(fd, IPPROTO_IP, IP_TOS, bits, "IP_TOS");
  if (!status.ok()) return status;
  return v6 ? SetOption(fd, IPPROTO_IPV6, IPV6_RECVTCLASS, 1, "IPV6_RECVTCLASS")
            : SetOption(fd, IPPROTO_IP, IP_RECVTOS, 1, "IP_RECVTOS");
}

bool HasOption(int fd, int option, int value) {
  return setsockopt(fd, IPPROTO_UDP, option, &value, sizeof(value)) == 0;
}

// Room for the control messages that a packet comes with: its ECN bits, a byte (ip(7)) or an int
// (ipv6(7)), and the size of the datagrams that were joined, an int.
struct alignas(cmsghdr) ReceivedControl {
  std::array<std::byte, 2 * CMSG_SPACE(sizeof(int))> bytes;
};
// And the one that asks for segments.
struct alignas(cmsghdr) SentControl {
  std::array<std::byte, CMSG_SPACE(sizeof(uint16_t))> bytes;
};

void ReadControl(msghdr* message, ReceivedDatagram* out) {
  for (cmsghdr* c = CMSG_FIRSTHDR(message); c != nullptr; c = CMSG_NXTHDR(message, c)) {
    int value = 0;
    if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) {
      out->ecn = static_cast<Ecn>(*CMSG_DATA(c) & 3);
    } else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_TCLASS) {
      memcpy(&value, CMSG_DATA(c), sizeof(value));
      out->ecn = static_cast<Ecn>(value & 3);
    } else if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO) {
      memcpy(&value, CMSG_DATA(c), sizeof(value));
      if (value > 0) out->segment_bytes = std::min(out->size, static_cast<size_t>(value));
    }
  }
}

// One packet for the kernel, and the datagrams of the batch that are in it.
void FillMessage(std::span<const OutgoingDatagram> run, iovec* pieces, SentControl* control,
                 msghdr* message) {
  size_t count = 0;
  for (const OutgoingDatagram& d : run) {
    // The socket API takes non-const pointers for both directions; sending does not write.
    pieces[count++] = {const_cast<std::byte*>(d.header.data()), d.header.size()};
    if (d.payload.empty()) continue;
    pieces[count++] = {const_cast<std::byte*>(d.payload.data()), d.payload.size()};
  }
  *message = {};
  message->msg_name = const_cast<sockaddr*>(run.front().to->raw());
  message->msg_namelen = run.front().to->size;
  message->msg_iov = pieces;
  message->msg_iovlen = count;
  if (run.size() == 1) return;
  message->msg_control = control->bytes.data();
  message->msg_controllen = control->bytes.size();
  cmsghdr* c = CMSG_FIRSTHDR(message);
  c->cmsg_level = IPPROTO_UDP;
  c->cmsg_type = UDP_SEGMENT;
  c->cmsg_len = CMSG_LEN(sizeof(uint16_t));
  const auto segment = static_cast<uint16_t>(run.front().size());
  memcpy(CMSG_DATA(c), &segment, sizeof(segment));
}

Status OpenSocket(const SocketAddress& ip, FileDescriptor* out) {
  FileDescriptor fd(::socket(ip.family(), SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) return SystemError("cannot open a UDP socket", errno);
  const bool v6 = ip.family() == AF_INET6;
  Status status = Status::Ok();
  if (v6) status = SetOption(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1, "IPV6_V6ONLY");
  // Don't-fragment: a lost fragment loses the whole datagram, and reassembly buffers are small.
  if (status.ok() && v6) {
    status =
        SetOption(fd.get(), IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO, "IPV6_MTU_DISCOVER");
  } else if (status.ok()) {
    status = SetOption(fd.get(), IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO, "IP_MTU_DISCOVER");
  }
  // ICMP errors of an unconnected socket are reported only with the error queue on.
  if (status.ok() && v6) {
    status = SetOption(fd.get(), IPPROTO_IPV6, IPV6_RECVERR, 1, "IPV6_RECVERR");
  } else if (status.ok()) {
    status = SetOption(fd.get(), IPPROTO_IP, IP_RECVERR, 1, "IP_RECVERR");
  }
  if (!status.ok()) return status;
  if (::bind(fd.get(), ip.raw(), ip.size) != 0) {
    Status error = SystemError("cannot bind a UDP socket to " + IpText(ip), errno);
    error.detail += "; set address (JAX_UCCL_ADDRESS) to an address of this machine";
    return error;
  }
  *out = std::move(fd);
  return Status::Ok();
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

Status SystemError(const std::string& what, int error) {
  const bool exhausted = error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
  std::array<char, 128> text{};
  // The GNU form of strerror_r, which returns the text and is safe on any thread.
  std::string detail = what + ": " + strerror_r(error, text.data(), text.size());
  if (error == EMFILE) detail += "; raise the limit of open files (ulimit -n) or lower paths";
  return Status::Error(exhausted ? StatusCode::kResourceExhausted : StatusCode::kNicError,
                       std::move(detail));
}

Result<Endpoint> Endpoint::Open(const SocketAddress& ip, const EndpointOptions& options) {
  FileDescriptor fd;
  Status status = OpenSocket(ip, &fd);
  if (status.ok()) status = SetEcn(fd.get(), ip.family() == AF_INET6, options.ecn);
  if (!status.ok()) return status;
  AskBuffer(fd.get(), SO_RCVBUFFORCE, SO_RCVBUF, options.buffer_bytes);
  AskBuffer(fd.get(), SO_SNDBUFFORCE, SO_SNDBUF, options.buffer_bytes);
  Endpoint endpoint(std::move(fd));
  // A kernel that knows the option takes it (0: nothing is cut unless a send asks for it); whether
  // the route can do it shows when the first packet is sent.
  if (options.max_segments > 1 && HasOption(endpoint.fd(), UDP_SEGMENT, 0)) {
    endpoint.max_segments_ = options.max_segments;
  }
  endpoint.receive_offload_ = options.receive_offload && HasOption(endpoint.fd(), UDP_GRO, 1);
  int granted = 0;
  socklen_t size = sizeof(granted);
  if (getsockopt(endpoint.fd(), SOL_SOCKET, SO_RCVBUF, &granted, &size) != 0) {
    return SystemError("getsockopt SO_RCVBUF", errno);
  }
  endpoint.granted_receive_buffer_ = granted;
  SocketAddress bound;
  bound.size = sizeof(bound.storage);
  if (getsockname(endpoint.fd(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.size) != 0) {
    return SystemError("getsockname", errno);
  }
  endpoint.port_ = bound.port();
  return endpoint;
}

size_t Endpoint::RunLength(std::span<const OutgoingDatagram> batch) const {
  const size_t segment = batch.front().size();
  size_t total = segment, length = 1;
  while (length < batch.size() && length < max_segments_) {
    const OutgoingDatagram& next = batch[length];
    total += next.size();
    if (next.to != batch.front().to || next.size() > segment || total > kLargestPacket) break;
    ++length;
    if (next.size() < segment) break;  // only the last may be shorter
  }
  return length;
}

Endpoint::SendResult Endpoint::Send(std::span<const OutgoingDatagram> batch,
                                    std::vector<std::pair<size_t, int>>* errors, NicStats* stats) {
  // Left unset on purpose: only the first entries are filled and read, once per system call.
  std::array<mmsghdr, kSyscallBatch> messages;
  std::array<SentControl, kSyscallBatch> control;
  std::array<size_t, kSyscallBatch> lengths;  // datagrams of each message
  std::array<iovec, 2 * kSyscallBatch> pieces;
  const size_t count = std::min(batch.size(), kSyscallBatch);
  size_t done = 0, one_by_one = 0;  // datagrams before `one_by_one` are not joined
  bool retried = false;
  while (done < count) {
    size_t packets = 0;
    for (size_t at = done; at < count; ++packets) {
      const size_t length = at < one_by_one ? 1 : RunLength(batch.subspan(at, count - at));
      FillMessage(batch.subspan(at, length), &pieces[2 * at], &control[packets],
                  &messages[packets].msg_hdr);
      lengths[packets] = length;
      at += length;
    }
    const int sent = ::sendmmsg(fd(), messages.data(), static_cast<unsigned>(packets), 0);
    if (sent > 0) {
      ++stats->send_calls;
      for (int i = 0; i < sent; ++i) {
        done += lengths[i];
        stats->datagrams_sent += lengths[i];
        if (lengths[i] == 1) continue;
        ++stats->segmented_packets;
        stats->segmented_datagrams += lengths[i];
      }
      retried = false;
      continue;
    }
    const int error = errno;
    if (error == EINTR) continue;
    if (error == EAGAIN || error == EWOULDBLOCK) return {done, true};
    if (MayBePending(error) && !retried) {
      retried = true;  // that was perhaps an older datagram's error: this one has its own chance
      continue;
    }
    retried = false;
    if (lengths[0] > 1) {
      // Refused as a whole; one by one each gets an answer of its own. EIO: the device cannot
      // checksum; EINVAL: some older kernels' word for a route whose MTU is smaller. Both will not
      // change for this socket's packets, so no more are offered.
      ++stats->segmentation_refused;
      one_by_one = done + lengths[0];
      if (error == EIO || error == EINVAL || error == EOPNOTSUPP) max_segments_ = 1;
      continue;
    }
    // Port unreachable is never about the datagram at hand: it is an earlier one's, in the error
    // queue too. ENOBUFS: a full queue of this host dropped it, which is congestion like any other
    // loss. Offering it again until there is room would spin (the socket stays writable) and hide
    // from congestion control what it is there for.
    if (error != ECONNREFUSED && error != ENOBUFS) errors->emplace_back(done, error);
    ++done;
  }
  return {done, false};
}

size_t Endpoint::Receive(std::span<const MutableBytes> slots, std::span<ReceivedDatagram> out,
                         NicStats* stats) {
  std::array<mmsghdr, kSlotsPerCall> messages;  // as in Send
  std::array<iovec, kSlotsPerCall> pieces;
  std::array<ReceivedControl, kSlotsPerCall> control;
  const size_t count = std::min({slots.size(), out.size(), kSlotsPerCall});
  for (size_t i = 0; i < count; ++i) {
    pieces[i] = {slots[i].data(), slots[i].size()};
    messages[i] = {};
    messages[i].msg_hdr.msg_iov = &pieces[i];
    messages[i].msg_hdr.msg_iovlen = 1;
    messages[i].msg_hdr.msg_control = control[i].bytes.data();
    messages[i].msg_hdr.msg_controllen = control[i].bytes.size();
  }
  // An error left by an earlier send is returned (and cleared) before any datagram. A few in a row
  // happen while a peer's ports are closed; giving up after that only delays the read to the next
  // Poll.
  for (int attempt = 0; attempt < 4; ++attempt) {
    const int received =
        ::recvmmsg(fd(), messages.data(), static_cast<unsigned>(count), MSG_DONTWAIT, nullptr);
    if (received >= 0) {
      stats->receive_calls += received > 0 ? 1 : 0;
      for (int i = 0; i < received; ++i) {
        out[i] = {messages[i].msg_len, messages[i].msg_len,
                  (messages[i].msg_hdr.msg_flags & MSG_TRUNC) != 0};
        ReadControl(&messages[i].msg_hdr, &out[i]);
        const size_t datagrams = out[i].count();
        stats->datagrams_received += datagrams;
        if (datagrams == 1) continue;
        ++stats->joined_packets;
        stats->joined_datagrams += datagrams;
      }
      return static_cast<size_t>(received);
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
  }
  return 0;
}

void Endpoint::ReadErrors(std::vector<DestinationError>* out) {
  while (true) {
    SocketAddress to;
    // Room for the extended error and the address of the router that reported it.
    alignas(cmsghdr) std::array<std::byte, 512> control;
    msghdr message{};
    message.msg_name = &to.storage;
    message.msg_namelen = sizeof(to.storage);
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    if (::recvmsg(fd(), &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
      if (errno == EINTR) continue;
      return;
    }
    to.size = message.msg_namelen;
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
      const bool v4 = c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_RECVERR;
      const bool v6 = c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_RECVERR;
      if (!v4 && !v6) continue;
      sock_extended_err extended;
      memcpy(&extended, CMSG_DATA(c), sizeof(extended));
      out->push_back({to, static_cast<int>(extended.ee_errno)});
    }
  }
}

Result<size_t> RoutePayloadBytes(const SocketAddress& from, const SocketAddress& to) {
  FileDescriptor fd;
  Status status = OpenSocket(from, &fd);
  if (!status.ok()) return status;
  if (::connect(fd.get(), to.raw(), to.size) != 0) {
    return SystemError("no route from " + IpText(from) + " to " + IpText(to), errno);
  }
  const bool v6 = to.family() == AF_INET6;
  int mtu = 0;
  socklen_t size = sizeof(mtu);
  if (getsockopt(fd.get(), v6 ? IPPROTO_IPV6 : IPPROTO_IP, v6 ? IPV6_MTU : IP_MTU, &mtu, &size) !=
      0) {
    return SystemError("getsockopt IP_MTU", errno);
  }
  // IP header (20, or 40 for IPv6) and UDP header (8); both carry 16-bit lengths, so 64 KiB bounds
  // the whole even where the MTU is larger (loopback: 65536).
  const int headers = v6 ? 48 : 28;
  const int packet = std::min(mtu, 65535);
  if (packet <= headers) {
    return Status::Error(StatusCode::kNicError, "the route to " + IpText(to) + " has the MTU " +
                                                    std::to_string(mtu) + ", too small for UDP");
  }
  return static_cast<size_t>(packet - headers);
}

}  // namespace uccl::nic::udp
