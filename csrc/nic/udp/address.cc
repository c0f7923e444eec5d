// Parsing and printing of UDP addresses. Peers' texts come over the network, so nothing in them is
// trusted.
#include "csrc/nic/udp/address.h"

#include <arpa/inet.h>

#include <array>
#include <charconv>
#include <cstring>
#include <string_view>
#include <system_error>

namespace uccl::nic::udp {
namespace {

constexpr size_t kMaxPorts = 256;  // the upper limit of the setting `paths`

const sockaddr_in* V4(const SocketAddress& a) {
  return reinterpret_cast<const sockaddr_in*>(&a.storage);
}
const sockaddr_in6* V6(const SocketAddress& a) {
  return reinterpret_cast<const sockaddr_in6*>(&a.storage);
}

Status Malformed(const std::string& text, const char* what) {
  return Status::Error(StatusCode::kInvalidArgument,
                       "udp address \"" + text + "\" " + what + "; expected ip:port,port,...");
}

}  // namespace

uint16_t SocketAddress::port() const {
  return ntohs(family() == AF_INET6 ? V6(*this)->sin6_port : V4(*this)->sin_port);
}

void SocketAddress::set_port(uint16_t port) {
  if (family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(port);
  }
}

bool SocketAddress::SameAs(const SocketAddress& other) const {
  if (family() != other.family() || port() != other.port()) return false;
  if (family() == AF_INET6) {
    return std::memcmp(&V6(*this)->sin6_addr, &V6(other)->sin6_addr, sizeof(in6_addr)) == 0;
  }
  return V4(*this)->sin_addr.s_addr == V4(other)->sin_addr.s_addr;
}

Result<SocketAddress> ParseIp(const std::string& ip) {
  SocketAddress address;
  in_addr v4{};
  in6_addr v6{};
  if (inet_pton(AF_INET, ip.c_str(), &v4) == 1) {
    auto* raw = reinterpret_cast<sockaddr_in*>(&address.storage);
    raw->sin_family = AF_INET;
    raw->sin_addr = v4;
    address.size = sizeof(sockaddr_in);
    return address;
  }
  if (inet_pton(AF_INET6, ip.c_str(), &v6) == 1) {
    auto* raw = reinterpret_cast<sockaddr_in6*>(&address.storage);
    raw->sin6_family = AF_INET6;
    raw->sin6_addr = v6;
    address.size = sizeof(sockaddr_in6);
    return address;
  }
  return Status::Error(
      StatusCode::kInvalidArgument,
      "\"" + ip + "\" is not a numeric IPv4 or IPv6 address (give 192.0.2.2 or fd00::2)");
}

std::string IpText(const SocketAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* raw = address.family() == AF_INET6 ? static_cast<const void*>(&V6(address)->sin6_addr)
                                                 : static_cast<const void*>(&V4(address)->sin_addr);
  // Cannot fail: the family is one of two and the buffer holds the longest form.
  return inet_ntop(address.family(), raw, text.data(), text.size()) == nullptr ? "?" : text.data();
}

std::string ToText(const EndpointSet& set) {
  const std::string ip = IpText(set.ip);
  std::string text = set.ip.family() == AF_INET6 ? "[" + ip + "]:" : ip + ":";
  for (size_t i = 0; i < set.ports.size(); ++i) {
    if (i > 0) text += ",";
    text += std::to_string(set.ports[i]);
  }
  return text;
}

Result<EndpointSet> FromText(const std::string& text) {
  size_t ip_end = 0;  // one past the last character of the address
  size_t ip_begin = 0;
  size_t colon = 0;
  if (!text.empty() && text[0] == '[') {
    ip_begin = 1;
    ip_end = text.find(']');
    if (ip_end == std::string::npos) return Malformed(text, "has no closing bracket");
    colon = ip_end + 1;
  } else {
    ip_end = colon = text.find(':');
  }
  if (colon == std::string::npos || colon >= text.size() || text[colon] != ':') {
    return Malformed(text, "has no ports");
  }
  Result<SocketAddress> ip = ParseIp(text.substr(ip_begin, ip_end - ip_begin));
  if (!ip.ok()) return ip.status();
  if ((ip.value().family() == AF_INET6) != (ip_begin == 1)) {
    return Malformed(text, "needs brackets around IPv6 only");
  }
  EndpointSet set{ip.value(), {}};
  std::string_view rest = std::string_view(text).substr(colon + 1);
  while (true) {
    uint16_t port = 0;
    const auto [stop, error] = std::from_chars(rest.data(), rest.data() + rest.size(), port);
    if (error != std::errc() || port == 0) return Malformed(text, "has a port outside 1 .. 65535");
    set.ports.push_back(port);
    if (set.ports.size() > kMaxPorts) return Malformed(text, "has more than 256 ports");
    rest.remove_prefix(static_cast<size_t>(stop - rest.data()));
    if (rest.empty()) return set;
    if (rest[0] != ',') return Malformed(text, "has text after a port");
    rest.remove_prefix(1);
  }
}

}  // namespace uccl::nic::udp
