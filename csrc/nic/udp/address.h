// The text form of a UDP endpoint set and its socket addresses: `192.0.2.2:40001,40002` or
// `[fd00::2]:40001,40002`, one port per path. Numeric addresses only: a name would need a resolver,
// which blocks and can answer differently on every process.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/base/status.h"

namespace uccl::nic::udp {

// An IPv4 or IPv6 socket address by value.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  int family() const { return storage.ss_family; }
  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage); }
  uint16_t port() const;
  void set_port(uint16_t port);
  // Equal family, address and port; an IPv6 flow label or scope does not count.
  bool SameAs(const SocketAddress& other) const;
};

// "192.0.2.2" or "fd00::2" (no brackets, no port, no zone) to an address with port 0.
Result<SocketAddress> ParseIp(const std::string& ip);
std::string IpText(const SocketAddress& address);

// An IP and the port of each path.
struct EndpointSet {
  SocketAddress ip;
  std::vector<uint16_t> ports;
};
std::string ToText(const EndpointSet& set);
Result<EndpointSet> FromText(const std::string& text);

}  // namespace uccl::nic::udp
