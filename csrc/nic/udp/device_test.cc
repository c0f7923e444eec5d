// Tests of what is particular to UDP: both IP families, closed ports, settings, limits of
// datagrams.
#include "csrc/nic/udp/device.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "csrc/nic/udp/address.h"
#include "csrc/nic/udp/endpoint.h"

namespace uccl::nic::udp {
namespace {

using Clock = std::chrono::steady_clock;
constexpr Nanos kPatience = std::chrono::seconds(20);

Config Settings(const std::string& address, int64_t paths = 2) {
  Config config;
  config.address = address;
  config.paths = paths;
  return config;
}

std::unique_ptr<NicBackend> MustOpen(const Config& config) {
  Result<std::unique_ptr<NicBackend>> r = OpenUdp(config);
  if (!r.ok()) {
    ADD_FAILURE() << r.status().ToString();
    return nullptr;
  }
  return std::move(r.value());
}

PeerHandle MustAdd(NicBackend* nic, const std::string& address) {
  Result<PeerHandle> r = nic->AddPeer(address);
  EXPECT_TRUE(r.ok()) << r.status().ToString();
  return r.ok() ? r.value() : PeerHandle{};
}

// One datagram from a to b and its text at b.
std::string SendOne(NicBackend* a, PeerHandle to, PathId path, const std::string& text,
                    NicBackend* b) {
  const Outgoing out{to, path, std::as_bytes(std::span(text)), {}};
  EXPECT_EQ(a->PostSend(std::span(&out, 1)), 1u);
  std::array<Incoming, 4> in;
  const auto deadline = Clock::now() + kPatience;
  while (Clock::now() < deadline) {
    if (b->Poll(in) > 0) {
      return {reinterpret_cast<const char*>(in[0].datagram.data()), in[0].datagram.size()};
    }
    b->Wait(std::chrono::seconds(1), false);
  }
  return "nothing arrived";
}

bool HasIpv6() { return Endpoint::Open(ParseIp("::1").value(), {}).ok(); }

// Two sockets on loopback, and datagrams from one to the other.
struct Sockets {
  explicit Sockets(const EndpointOptions& from, const EndpointOptions& to,
                   const std::string& address = "127.0.0.1")
      : ip(ParseIp(address).value()),
        a(Endpoint::Open(ip, from)),
        b(Endpoint::Open(ip, to)),
        memory(kSlotsPerCall, std::vector<std::byte>(kLargestPacket)) {
    EXPECT_TRUE(a.ok() && b.ok());
    destination = ip;
    destination.set_port(b.value().port());
  }
  void Send(const std::vector<std::vector<std::byte>>& datagrams) {
    std::vector<OutgoingDatagram> batch;
    for (const auto& d : datagrams) {
      const size_t head = std::min<size_t>(d.size(), 20);  // in two pieces, as the engine sends
      batch.push_back({&destination, Bytes(d).first(head), Bytes(d).subspan(head)});
    }
    std::vector<std::pair<size_t, int>> errors;
    ASSERT_EQ(a.value().Send(batch, &errors, &sent).taken, batch.size());
    ASSERT_TRUE(errors.empty());
  }
  // Until `count` datagrams came: each packet as it came, and the datagrams in them.
  std::vector<ReceivedDatagram> Receive(size_t count, std::vector<std::vector<std::byte>>* all) {
    std::vector<MutableBytes> slots(memory.begin(), memory.end());
    std::vector<ReceivedDatagram> packets;
    const auto deadline = Clock::now() + kPatience;
    while (all->size() < count && Clock::now() < deadline) {
      std::array<ReceivedDatagram, kSlotsPerCall> got;
      const size_t n = b.value().Receive(slots, got, &received);
      for (size_t i = 0; i < n; ++i) {
        packets.push_back(got[i]);
        for (size_t at = 0; at < got[i].size; at += got[i].segment_bytes) {
          const size_t size = std::min(got[i].segment_bytes, got[i].size - at);
          all->emplace_back(memory[i].begin() + static_cast<ptrdiff_t>(at),
                            memory[i].begin() + static_cast<ptrdiff_t>(at + size));
        }
      }
    }
    return packets;
  }

  SocketAddress ip, destination;
  Result<Endpoint> a, b;
  NicStats sent, received;
  std::vector<std::vector<std::byte>> memory;
};

std::vector<std::byte> Numbered(size_t size, int number) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>(i * 7 + number * 31 + i / 256);
  return bytes;
}

TEST(UdpDevice, LocalAddress_HoldsIpAndAPortPerPath) {
  auto nic = MustOpen(Settings("", 5));
  ASSERT_NE(nic, nullptr);
  Result<EndpointSet> set = FromText(nic->LocalAddress());
  ASSERT_TRUE(set.ok());
  EXPECT_EQ(IpText(set.value().ip), "127.0.0.1");
  EXPECT_EQ(set.value().ports.size(), 5u);
  EXPECT_EQ(nic->capabilities().num_paths, 5);
}

TEST(UdpDevice, Ipv6_Works) {
  if (!HasIpv6()) GTEST_SKIP() << "this machine has no IPv6 loopback";
  auto a = MustOpen(Settings("::1")), b = MustOpen(Settings("::1"));
  ASSERT_TRUE(a && b);
  const PeerHandle to_b = MustAdd(a.get(), b->LocalAddress());
  EXPECT_EQ(SendOne(a.get(), to_b, PathId{1}, "over six", b.get()), "over six");
  EXPECT_GE(a->MaxDatagramBytes(to_b), 1232u);
}

// Both families, and that not setting it is told as well.
TEST(UdpDevice, Ecn_TravelsInTheIpHeader) {
  for (const char* address : {"127.0.0.1", "::1"}) {
    SCOPED_TRACE(address);
    if (ParseIp(address).value().family() == AF_INET6 && !HasIpv6()) continue;
    for (const Ecn ecn : {Ecn::kNotCapable, Ecn::kCapable, Ecn::kCongested}) {
      const SocketAddress ip = ParseIp(address).value();
      Result<Endpoint> a = Endpoint::Open(ip, {.ecn = ecn}), b = Endpoint::Open(ip, {});
      NicStats stats;
      ASSERT_TRUE(a.ok() && b.ok());
      SocketAddress to = ip;
      to.set_port(b.value().port());
      const std::array<std::byte, 5> text{};
      const OutgoingDatagram out{&to, text, {}};
      std::vector<std::pair<size_t, int>> errors;
      ASSERT_EQ(a.value().Send(std::span(&out, 1), &errors, &stats).taken, 1u);
      std::array<std::byte, 100> memory;
      const MutableBytes slot(memory);
      ReceivedDatagram got;
      const auto deadline = Clock::now() + kPatience;
      size_t received = 0;
      while (received == 0 && Clock::now() < deadline)
        received = b.value().Receive(std::span(&slot, 1), std::span(&got, 1), &stats);
      ASSERT_EQ(received, 1u);
      EXPECT_EQ(got.size, text.size());
      EXPECT_EQ(got.ecn, ecn);
    }
  }
}

TEST(UdpDevice, Ecn_IsASetting) {
  for (const int64_t on : {0, 1}) {
    Config config = Settings("");
    config.ecn = on;
    auto a = MustOpen(config), b = MustOpen(Settings(""));
    ASSERT_TRUE(a && b);
    const PeerHandle to_b = MustAdd(a.get(), b->LocalAddress());
    const std::string text = "marked?";
    const Outgoing out{to_b, PathId{0}, std::as_bytes(std::span(text)), {}};
    ASSERT_EQ(a->PostSend(std::span(&out, 1)), 1u);
    std::array<Incoming, 4> in;
    const auto deadline = Clock::now() + kPatience;
    size_t count = 0;
    while (count == 0 && Clock::now() < deadline) {
      b->Wait(std::chrono::seconds(1), false);
      count = b->Poll(in);
    }
    ASSERT_EQ(count, 1u);
    EXPECT_EQ(in[0].ecn, on == 1 ? Ecn::kCapable : Ecn::kNotCapable);
  }
}

TEST(UdpSegmentation, EqualDatagramsLeaveAsOnePacketAndArriveApart) {
  for (const bool joined : {false, true}) {
    Sockets s({.max_segments = 16}, {.receive_offload = joined});
    if (!s.a.value().segmentation()) GTEST_SKIP() << "this kernel has no UDP_SEGMENT";
    // 16 and 4 of one size, a shorter one that ends its packet, then another size.
    std::vector<std::vector<std::byte>> datagrams;
    for (int i = 0; i < 20; ++i) datagrams.push_back(Numbered(1400, i));
    datagrams.push_back(Numbered(900, 20));
    for (int i = 21; i < 24; ++i) datagrams.push_back(Numbered(600, i));
    s.Send(datagrams);
    EXPECT_EQ(s.sent.datagrams_sent, 24u);
    EXPECT_EQ(s.sent.segmented_packets, 3u);
    EXPECT_EQ(s.sent.segmented_datagrams, 24u);
    EXPECT_EQ(s.sent.send_calls, 1u);
    std::vector<std::vector<std::byte>> got;
    const std::vector<ReceivedDatagram> packets = s.Receive(24, &got);
    EXPECT_EQ(got, datagrams);
    EXPECT_EQ(s.received.datagrams_received, 24u);
    if (!joined) {
      EXPECT_EQ(packets.size(), 24u);
      EXPECT_EQ(s.received.joined_packets, 0u);
    } else if (s.b.value().receive_offload()) {
      EXPECT_EQ(packets.size(), 3u);
      EXPECT_EQ(s.received.joined_datagrams, 24u);
    }
  }
}

TEST(UdpSegmentation, MarksHoldForEveryDatagramOfAPacket) {
  for (const char* address : {"127.0.0.1", "::1"}) {
    SCOPED_TRACE(address);
    if (ParseIp(address).value().family() == AF_INET6 && !HasIpv6()) continue;
    Sockets s({.ecn = Ecn::kCongested, .max_segments = 8}, {.receive_offload = true}, address);
    s.Send({Numbered(1000, 0), Numbered(1000, 1), Numbered(1000, 2)});
    std::vector<std::vector<std::byte>> got;
    for (const ReceivedDatagram& packet : s.Receive(3, &got)) {
      EXPECT_EQ(packet.ecn, Ecn::kCongested);
    }
    EXPECT_EQ(got.size(), 3u);
  }
}

// The kernel refuses segments of a socket that leaves out checksums, with the error that a device
// without checksum offload or an older kernel's route gives.
TEST(UdpSegmentation, RefusedPacketsLeaveOneByOneAndAreCounted) {
  Sockets s({.max_segments = 16}, {});
  if (!s.a.value().segmentation()) GTEST_SKIP() << "this kernel has no UDP_SEGMENT";
  const int on = 1;
  ASSERT_EQ(setsockopt(s.a.value().fd(), SOL_SOCKET, SO_NO_CHECK, &on, sizeof(on)), 0);
  std::vector<std::vector<std::byte>> datagrams;
  for (int i = 0; i < 20; ++i) datagrams.push_back(Numbered(500, i));
  s.Send(datagrams);
  EXPECT_EQ(s.sent.segmentation_refused, 1u);
  EXPECT_EQ(s.sent.segmented_packets, 0u);
  EXPECT_EQ(s.sent.datagrams_sent, 20u);
  EXPECT_FALSE(s.a.value().segmentation());
  std::vector<std::vector<std::byte>> got;
  s.Receive(20, &got);
  EXPECT_EQ(got, datagrams);
}

TEST(UdpSegmentation, IsASetting) {
  for (const int64_t segments : {1, 16}) {
    Config config = Settings("", 1);
    config.udp_segments = segments;
    config.udp_receive_offload = segments > 1 ? 1 : 0;
    auto a = MustOpen(config), b = MustOpen(config);
    ASSERT_TRUE(a && b);
    const PeerHandle to_b = MustAdd(a.get(), b->LocalAddress());
    const std::vector<std::byte> data = Numbered(1000, 1);
    const std::vector<Outgoing> batch(40, Outgoing{to_b, PathId{0}, data, {}});
    ASSERT_EQ(a->PostSend(batch), batch.size());
    // A few at a time: the rest of a joined packet waits for the next Poll, and no Wait sleeps on
    // it.
    std::array<Incoming, 7> in;
    size_t got = 0;
    const auto deadline = Clock::now() + kPatience;
    while (got < batch.size() && Clock::now() < deadline) {
      b->Wait(kPatience, false);
      const size_t n = b->Poll(in);
      for (size_t i = 0; i < n; ++i) {
        EXPECT_TRUE(
            std::equal(in[i].datagram.begin(), in[i].datagram.end(), data.begin(), data.end()));
      }
      got += n;
    }
    EXPECT_EQ(got, batch.size());
    EXPECT_EQ(b->stats().datagrams_received, batch.size());
    EXPECT_EQ(a->stats().segmentation, segments > 1 && a->stats().segmented_packets > 0);
    EXPECT_EQ(a->stats().segmented_packets > 0, a->stats().segmentation);
    EXPECT_EQ(b->stats().joined_packets > 0, b->stats().receive_offload && segments > 1);
  }
}

// Random sizes, peers and paths: whatever is joined, each peer gets each datagram once, on its
// path.
TEST(UdpSegmentation, AnyMixOfDatagramsArrivesOnceEach) {
  Config config = Settings("", 3);
  config.udp_segments = 8;
  auto a = MustOpen(config), b = MustOpen(config), c = MustOpen(config);
  ASSERT_TRUE(a && b && c);
  const std::array<PeerHandle, 2> peers = {MustAdd(a.get(), b->LocalAddress()),
                                           MustAdd(a.get(), c->LocalAddress())};
  const std::array<NicBackend*, 2> nics = {b.get(), c.get()};
  uint64_t random = 12345;
  const auto draw = [&random](uint64_t n) {
    random = random * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<size_t>((random >> 33) % n);
  };
  constexpr std::array<size_t, 5> kSizes = {60, 600, 600, 1400, 1400};
  for (int round = 0; round < 30; ++round) {
    std::vector<std::vector<std::byte>> datagrams;
    std::vector<Outgoing> batch;
    std::array<size_t, 2> expected{};
    for (int i = 0; i < 100; ++i) {
      datagrams.push_back(Numbered(kSizes[draw(kSizes.size())], i));
      datagrams.back()[0] = std::byte(i);
    }
    for (const auto& d : datagrams) {
      const size_t to = draw(2);
      ++expected[to];
      batch.push_back({peers[to], PathId{static_cast<uint16_t>(draw(3))}, d, {}});
    }
    ASSERT_EQ(a->PostSend(batch), batch.size());
    std::vector<bool> seen(100, false);
    for (size_t to = 0; to < 2; ++to) {
      std::array<Incoming, 64> in;
      const auto deadline = Clock::now() + kPatience;
      for (size_t got = 0; got < expected[to] && Clock::now() < deadline;) {
        nics[to]->Wait(std::chrono::seconds(1), false);
        const size_t n = nics[to]->Poll(in);
        for (size_t i = 0; i < n; ++i) {
          const auto number = static_cast<size_t>(in[i].datagram[0]);
          ASSERT_LT(number, 100u);
          EXPECT_FALSE(seen[number]);
          seen[number] = true;
          EXPECT_EQ(ToInt(in[i].path), ToInt(batch[number].path));
          const auto& sent = datagrams[number];
          EXPECT_TRUE(
              std::equal(in[i].datagram.begin(), in[i].datagram.end(), sent.begin(), sent.end()));
        }
        got += n;
      }
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), true), 100) << "round " << round;
  }
}

TEST(UdpDevice, AddPeer_OfTheOtherFamilyIsRefused) {
  if (!HasIpv6()) GTEST_SKIP() << "this machine has no IPv6 loopback";
  auto a = MustOpen(Settings("127.0.0.1")), b = MustOpen(Settings("::1"));
  ASSERT_TRUE(a && b);
  Result<PeerHandle> r = a->AddPeer(b->LocalAddress());
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.status().code, StatusCode::kInvalidArgument);
  EXPECT_NE(r.status().detail.find("JAX_UCCL_ADDRESS"), std::string::npos);
}

TEST(UdpDevice, Paths_OfUnequalCountsWrapAround) {
  auto a = MustOpen(Settings("", 4)), b = MustOpen(Settings("", 3));
  ASSERT_TRUE(a && b);
  const PeerHandle to_b = MustAdd(a.get(), b->LocalAddress());
  const PeerHandle to_a = MustAdd(b.get(), a->LocalAddress());
  for (uint16_t path = 0; path < 4; ++path) {
    EXPECT_EQ(SendOne(a.get(), to_b, PathId{path}, "x" + std::to_string(path), b.get()),
              "x" + std::to_string(path));
  }
  EXPECT_EQ(SendOne(b.get(), to_a, PathId{2}, "back", a.get()), "back");
}

TEST(UdpDevice, ClosedPort_BecomesAFaultOfThatPeerOnly) {
  auto a = MustOpen(Settings("")), gone = MustOpen(Settings("")), alive = MustOpen(Settings(""));
  ASSERT_TRUE(a && gone && alive);
  const PeerHandle to_gone = MustAdd(a.get(), gone->LocalAddress());
  const PeerHandle to_alive = MustAdd(a.get(), alive->LocalAddress());
  EXPECT_EQ(SendOne(a.get(), to_gone, PathId{0}, "hello", gone.get()), "hello");
  EXPECT_TRUE(a->PollFaults().empty());
  gone.reset();
  const std::string text = "anybody?";
  const Outgoing out{to_gone, PathId{1}, std::as_bytes(std::span(text)), {}};
  EXPECT_EQ(a->PostSend(std::span(&out, 1)), 1u);
  std::vector<Fault> faults;
  std::array<Incoming, 4> in;
  const auto deadline = Clock::now() + kPatience;
  while (faults.empty() && Clock::now() < deadline) {
    EXPECT_EQ(a->Poll(in), 0u);
    faults = a->PollFaults();
    if (faults.empty()) a->Wait(std::chrono::seconds(1), false);
  }
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].peer, to_gone);
  EXPECT_EQ(faults[0].status.code, StatusCode::kPeerLost);
  EXPECT_NE(faults[0].status.detail.find("127.0.0.1"), std::string::npos);
  // The error must not stick to the socket: the other peer is still reached over the same path,
  // also when the batch mixes both.
  const std::string other = "you there?";
  const std::array<Outgoing, 3> mixed = {
      Outgoing{to_gone, PathId{1}, std::as_bytes(std::span(text)), {}},
      Outgoing{to_gone, PathId{1}, std::as_bytes(std::span(text)), {}},
      Outgoing{to_alive, PathId{1}, std::as_bytes(std::span(other)), {}}};
  for (int round = 0; round < 50; ++round) {
    ASSERT_EQ(a->PostSend(mixed), mixed.size());
    size_t got = 0;
    const auto limit = Clock::now() + kPatience;
    while (got == 0 && Clock::now() < limit) {
      got = alive->Poll(in);
      if (got == 0) alive->Wait(std::chrono::seconds(1), false);
    }
    ASSERT_EQ(got, 1u) << "round " << round;
  }
}

TEST(UdpDevice, OversizedDatagram_IsTakenAndReportedAsAFault) {
  auto a = MustOpen(Settings("")), b = MustOpen(Settings(""));
  ASSERT_TRUE(a && b);
  const PeerHandle to_b = MustAdd(a.get(), b->LocalAddress());
  const std::vector<std::byte> huge(70000);
  const std::string small = "small";
  const std::array<Outgoing, 2> batch = {
      Outgoing{to_b, PathId{0}, huge, {}},
      Outgoing{to_b, PathId{0}, std::as_bytes(std::span(small)), {}}};
  EXPECT_EQ(a->PostSend(batch), 2u);
  const std::vector<Fault> faults = a->PollFaults();
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].status.code, StatusCode::kNicError);
  EXPECT_NE(faults[0].status.detail.find("max_datagram_bytes"), std::string::npos);
  std::array<Incoming, 4> in;
  b->Wait(kPatience, false);
  ASSERT_EQ(b->Poll(in), 1u);
  EXPECT_EQ(in[0].datagram.size(), small.size());
}

TEST(UdpDevice, MaxDatagramBytes_IsCappedBySetting) {
  Config config = Settings("");
  config.max_datagram_bytes = 1400;
  auto a = MustOpen(config), b = MustOpen(Settings(""));
  ASSERT_TRUE(a && b);
  EXPECT_EQ(a->MaxDatagramBytes(MustAdd(a.get(), b->LocalAddress())), 1400u);
  EXPECT_GT(b->MaxDatagramBytes(MustAdd(b.get(), a->LocalAddress())), 1400u);
  // A datagram that is longer than anything a peer may send to `a` is dropped, not cut.
  const PeerHandle to_a = MustAdd(b.get(), a->LocalAddress());
  const std::vector<std::byte> large(3000);
  const Outgoing out{to_a, PathId{0}, large, {}};
  EXPECT_EQ(b->PostSend(std::span(&out, 1)), 1u);
  EXPECT_EQ(SendOne(b.get(), to_a, PathId{0}, "fits", a.get()), "fits");
}

TEST(UdpDevice, RoutePayloadBytes_LeavesRoomForHeaders) {
  const SocketAddress loopback = ParseIp("127.0.0.1").value();
  SocketAddress to = loopback;
  to.set_port(9);
  Result<size_t> bytes = RoutePayloadBytes(loopback, to);
  ASSERT_TRUE(bytes.ok()) << bytes.status().ToString();
  EXPECT_GE(bytes.value(), 1472u);
  EXPECT_LE(bytes.value(), 65507u);
}

TEST(UdpDevice, Open_ErrorsNameTheSetting) {
  Result<std::unique_ptr<NicBackend>> name = OpenUdp(Settings("no.such.host"));
  ASSERT_FALSE(name.ok());
  EXPECT_EQ(name.status().code, StatusCode::kInvalidArgument);
  EXPECT_NE(name.status().detail.find("no.such.host"), std::string::npos);
  // 203.0.113.0/24 is set aside for documentation (RFC 5737): no machine has it.
  Result<std::unique_ptr<NicBackend>> foreign = OpenUdp(Settings("203.0.113.7"));
  ASSERT_FALSE(foreign.ok());
  EXPECT_EQ(foreign.status().code, StatusCode::kNicError);
  EXPECT_NE(foreign.status().detail.find("JAX_UCCL_ADDRESS"), std::string::npos);
}

TEST(UdpDevice, ReceiveBuffer_FollowsTheSetting) {
  Config small = Settings("", 1), large = Settings("", 1);
  small.socket_buffer_bytes = 65536;
  large.socket_buffer_bytes = 131072;
  auto a = MustOpen(small), b = MustOpen(large);
  ASSERT_TRUE(a && b);
  EXPECT_GT(a->capabilities().receive_buffer_bytes, 0);
  EXPECT_GT(b->capabilities().receive_buffer_bytes, a->capabilities().receive_buffer_bytes);
  // Never more than the kernel was asked for: what it doubles is its own book-keeping.
  EXPECT_LE(a->capabilities().receive_buffer_bytes, small.socket_buffer_bytes);
}

}  // namespace
}  // namespace uccl::nic::udp
