// Tests of csrc/nic/udp/address.h: both families round-trip, damaged texts are refused.
#include "csrc/nic/udp/address.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace uccl::nic::udp {
namespace {

TEST(UdpAddress, FromText_RoundTrips) {
  for (const char* text :
       {"127.0.0.1:1", "192.0.2.255:65535,1,40000", "[::1]:7", "[fd00::2]:1,2,3"}) {
    Result<EndpointSet> set = FromText(text);
    ASSERT_TRUE(set.ok()) << set.status().ToString();
    EXPECT_EQ(ToText(set.value()), text);
  }
}

TEST(UdpAddress, FromText_RefusesWhatIsNotAnAddress) {
  for (const char* text :
       {"", ":", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:1,",
        "127.0.0.1:,1", "127.0.0.1:1 ", "127.0.0.1:-1", "127.0.0.1:1;2", "localhost:1", "[::1]",
        "[::1", "[::1]1", "::1:1", "[127.0.0.1]:1", "[fe80::1%eth0]:1", "300.0.0.1:1"}) {
    Result<EndpointSet> set = FromText(text);
    ASSERT_FALSE(set.ok()) << text;
    EXPECT_EQ(set.status().code, StatusCode::kInvalidArgument) << text;
  }
}

TEST(UdpAddress, FromText_BoundsTheNumberOfPorts) {
  std::string text = "127.0.0.1:1";
  for (int i = 1; i < 256; ++i) text += ",1";
  ASSERT_TRUE(FromText(text).ok());
  EXPECT_EQ(FromText(text).value().ports.size(), 256u);
  EXPECT_FALSE(FromText(text + ",1").ok());
}

TEST(UdpAddress, FromText_RandomBytesNeverCrash) {
  std::mt19937 random(1);
  const std::string alphabet = "0123456789.:,[]af ";
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (size_t i = random() % 24; i > 0; --i) text += alphabet[random() % alphabet.size()];
    Result<EndpointSet> set = FromText(text);
    if (!set.ok()) continue;
    ++accepted;
    EXPECT_TRUE(FromText(ToText(set.value())).ok()) << text;
  }
  EXPECT_LT(accepted, 20000);
}

TEST(UdpAddress, SameAs_ComparesFamilyAddressAndPort) {
  SocketAddress a = ParseIp("127.0.0.1").value();
  SocketAddress b = a;
  EXPECT_TRUE(a.SameAs(b));
  b.set_port(9);
  EXPECT_EQ(b.port(), 9);
  EXPECT_FALSE(a.SameAs(b));
  EXPECT_FALSE(a.SameAs(ParseIp("127.0.0.2").value()));
  SocketAddress v6 = ParseIp("fd00::2").value();
  EXPECT_FALSE(a.SameAs(v6));
  EXPECT_TRUE(v6.SameAs(ParseIp("fd00:0::2").value()));
  v6.set_port(80);
  EXPECT_EQ(v6.port(), 80);
  EXPECT_EQ(IpText(v6), "fd00::2");
}

}  // namespace
}  // namespace uccl::nic::udp
