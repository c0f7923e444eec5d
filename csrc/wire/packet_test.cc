// Tests of csrc/wire/packet.h: the golden datagrams of docs/wire_format.md, encode then decode,
// encoders that lack room. What the decoder says to damaged datagrams is in
// packet_malformed_test.cc.
#include "csrc/wire/packet.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "csrc/wire/testing/any_packet.h"

namespace uccl::wire {
namespace {

void ExpectDecodesTo(const Datagram& datagram, const Packet& expected) {
  Header header;
  Bytes body, payload;
  ASSERT_EQ(DecodeHeader(datagram, &header, &body, &payload), DecodeError::kNone);
  EXPECT_EQ(PeekKey(datagram), header.key);
  Packet p;
  ASSERT_TRUE(Decode(header, body, payload, &p));
  EXPECT_TRUE(p.header == expected.header);
  EXPECT_TRUE(p.eager == expected.eager);
  EXPECT_TRUE(p.request == expected.request);
  EXPECT_TRUE(p.grant == expected.grant);
  EXPECT_TRUE(p.data == expected.data);
  EXPECT_TRUE(p.credit == expected.credit);
  EXPECT_TRUE(p.demand == expected.demand);
  EXPECT_EQ(p.ack.next, expected.ack.next);
  EXPECT_EQ(p.ack.eager_consumed_bytes, expected.ack.eager_consumed_bytes);
  EXPECT_EQ(p.ack.granted_bytes, expected.ack.granted_bytes);
  EXPECT_EQ(p.ack.num_echoes, expected.ack.num_echoes);
  EXPECT_TRUE(p.ack.echoes == expected.ack.echoes);
  EXPECT_EQ(p.bitmap, expected.bitmap);
  EXPECT_EQ(p.payload, expected.payload);
}

// The golden blocks of the document by name.
std::map<std::string, Datagram> ReadGolden() {
  const char* root = std::getenv("UCCL_SOURCE_ROOT");
  const std::string path = std::string(root != nullptr ? root : ".") + "/docs/wire_format.md";
  std::ifstream file(path);
  EXPECT_TRUE(file.is_open()) << path;
  std::map<std::string, Datagram> golden;
  Datagram* block = nullptr;
  const std::string opening = "```golden ";
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(opening)) {
      block = &golden[line.substr(opening.size())];
      EXPECT_TRUE(block->empty()) << "given twice: " << line;
    } else if (line.starts_with("```")) {
      block = nullptr;
    } else if (block != nullptr) {
      std::istringstream words(line.substr(0, line.find('#')));
      for (std::string word; words >> word;) {
        size_t used = 0;
        block->push_back(static_cast<std::byte>(std::stoul(word, &used, 16)));
        EXPECT_TRUE(used == 2 && word.size() == 2) << "not a byte: " << word;
      }
    }
  }
  return golden;
}

// What the document says in words beside the golden bytes.
std::map<std::string, Packet> GoldenPackets() {
  Description description{0x0123456789abcdef, 0xfedcba9876543210, 0xd16e57d16e57d16e, 1 << 20, {}};
  for (size_t i = 0; i < 32; ++i) description.note[i] = static_cast<std::byte>(i);
  Description small = description;
  small.size_bytes = 5;
  auto make = [](PacketType type, uint32_t psn, std::vector<uint8_t> payload) {
    Packet p;
    p.header = {type, 3, static_cast<uint16_t>(payload.size()), 0x1122334455667788, psn, 1000000};
    for (uint8_t b : payload) p.payload.push_back(static_cast<std::byte>(b));
    return p;
  };
  std::map<std::string, Packet> packets;
  packets["eager"] = make(PacketType::kEager, 0x01020304, {'h', 'e', 'l', 'l', 'o'});
  packets["eager"].eager = {small, 7, 0};
  packets["request"] = make(PacketType::kRequest, 0x01020305, {});
  packets["request"].request = {description, 8};
  packets["grant"] = make(PacketType::kGrant, 0x01020306, {});
  packets["grant"].grant = {description, 9};
  packets["data"] = make(PacketType::kData, 0x01020307, {0xde, 0xad, 0xbe, 0xef});
  packets["data"].data = {9, 0x123456789a};
  packets["control"] = make(PacketType::kControl, 0x01020308, {'b', 'y', 'e'});
  packets["skip"] = make(PacketType::kSkip, 0x01020309, {});
  packets["credit"] = make(PacketType::kCredit, 0, {});
  packets["credit"].credit = {0x123456789a};
  packets["demand"] = make(PacketType::kDemand, 0, {});
  packets["demand"].demand = {0x23456789ab, 1472};
  packets["probe"] = make(PacketType::kProbe, 0, {});
  Packet& ack = packets["ack"] = make(PacketType::kAck, 0, {});
  ack.ack.next = 0x01020304;
  ack.ack.eager_consumed_bytes = 0x100000005;
  ack.ack.granted_bytes = 0x123456789a;
  ack.ack.num_echoes = 2;
  ack.ack.echoes[0] = {3, 5, 1, 1000000};
  ack.ack.echoes[1] = {258, 1, 0xffff, 0xfffffffe};
  ack.bitmap = {std::byte{0x05}, std::byte{0x00}, std::byte{0x80}};
  return packets;
}

TEST(Packet, Golden_DocumentShowsEveryType) {
  const std::map<std::string, Datagram> golden = ReadGolden();
  const std::map<std::string, Packet> packets = GoldenPackets();
  EXPECT_EQ(golden.size(), std::size(kTypes));
  ASSERT_EQ(packets.size(), std::size(kTypes));
  for (const auto& [name, packet] : packets) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(golden.contains(name));
    EXPECT_EQ(Encode(packet), golden.at(name));
    ExpectDecodesTo(golden.at(name), packet);
  }
}

TEST(Packet, EncodeThenDecode_IsIdentity) {
  std::mt19937_64 rng(1);
  for (PacketType type : kTypes) {
    for (int round = 0; round < 2000; ++round) {
      SCOPED_TRACE(testing::Message() << "type " << int(type) << " round " << round);
      const Packet packet = RandomPacket(rng, type, round % 10 == 0 ? 65535 : 1500);
      ExpectDecodesTo(Encode(packet), packet);
      if (HasFailure()) return;
    }
  }
}

TEST(Packet, Encode_LargestFitsItsConstant) {
  std::mt19937_64 rng(2);
  Packet ack = RandomPacket(rng, PacketType::kAck, 0);
  ack.ack.num_echoes = kMaxEchoes;
  ack.bitmap = RandomBytes(rng, kMaxBitmapBytes);
  EXPECT_EQ(Encode(ack).size(), kMaxAckBytes);
  ExpectDecodesTo(Encode(ack), ack);
  for (PacketType type : kTypes) {
    if (type != PacketType::kAck) {
      EXPECT_LE(HeadBytes(RandomPacket(rng, type, 0)), kMaxHeadBytes);
    }
  }
  Packet data = RandomPacket(rng, PacketType::kData, 0);
  data.payload = RandomBytes(rng, 65535);
  data.header.payload_bytes = 65535;
  ExpectDecodesTo(Encode(data), data);
}

TEST(Packet, Encode_SetsTypePayloadAndNoPsnByItself) {
  Header header{PacketType::kData, 1, 999, 2, 77, 3};
  Datagram out(kHeaderBytes);
  ASSERT_EQ(EncodeProbe(header, out), kHeaderBytes);
  Packet probe;
  probe.header = {PacketType::kProbe, 1, 0, 2, 0, 3};
  ExpectDecodesTo(out, probe);
  ASSERT_EQ(EncodeSkip(header, out), kHeaderBytes);
  Packet skip;
  skip.header = {PacketType::kSkip, 1, 0, 2, 77, 3};
  ExpectDecodesTo(out, skip);
}

TEST(Packet, Encode_WritesNothingWhereItDoesNotFit) {
  std::mt19937_64 rng(3);
  for (PacketType type : kTypes) {
    const Packet packet = RandomPacket(rng, type, 100);
    for (size_t size = 0; size < HeadBytes(packet); ++size) {
      Datagram out(size, std::byte{0xa5});
      ASSERT_EQ(EncodeHead(packet, out), 0u) << "type " << int(type) << " size " << size;
      ASSERT_EQ(out, Datagram(size, std::byte{0xa5}));
    }
  }
  Datagram out(2 * kMaxAckBytes, std::byte{0xa5});
  const Datagram before = out;
  const std::vector<std::byte> large(65536);
  EXPECT_EQ(EncodeData({}, {}, large, out), 0u);
  EXPECT_EQ(EncodeEager({}, {}, large, out), 0u);
  EXPECT_EQ(EncodeControl({}, large, out), 0u);
  Ack ack;
  ack.num_echoes = kMaxEchoes + 1;
  EXPECT_EQ(EncodeAck({}, ack, out), 0u);
  ack.num_echoes = 0;
  ack.bitmap = large.data();
  ack.bitmap_bytes = kMaxBitmapBytes + 1;
  EXPECT_EQ(EncodeAck({}, ack, out), 0u);
  EXPECT_EQ(out, before);
}

TEST(Packet, PeekKey_NeedsLengthAndVersion) {
  std::mt19937_64 rng(4);
  Packet packet = RandomPacket(rng, PacketType::kSkip, 0);
  Datagram datagram = Encode(packet);
  EXPECT_EQ(PeekKey(datagram), packet.header.key);
  for (size_t size = 0; size < kHeaderBytes; ++size) {
    EXPECT_EQ(PeekKey(Datagram(datagram.begin(), datagram.begin() + size)), std::nullopt);
  }
  datagram[0] = std::byte{kVersion + 1};
  EXPECT_EQ(PeekKey(datagram), std::nullopt);
}

}  // namespace
}  // namespace uccl::wire
