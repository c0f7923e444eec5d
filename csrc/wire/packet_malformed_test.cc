// What the decoders of csrc/wire/packet.h say to datagrams that are damaged, cut or made up.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "csrc/base/little_endian.h"
#include "csrc/wire/crc32c.h"
#include "csrc/wire/packet.h"
#include "csrc/wire/testing/any_packet.h"

namespace uccl::wire {
namespace {

DecodeError DecodeErrorOf(Bytes datagram) {
  Header header;
  header.key = 0x5a5a;
  Bytes body, payload;
  const DecodeError error = DecodeHeader(datagram, &header, &body, &payload);
  if (error != DecodeError::kNone) {
    EXPECT_EQ(header.key, 0x5a5au) << "a rejected datagram was written out";
    EXPECT_TRUE(body.empty() && payload.empty());
  }
  return error;
}

// Gives a made-up datagram the CRC it needs to get past that check.
void FixCrc(Datagram* datagram) {
  ASSERT_GE(datagram->size(), kHeaderBytes);
  const Bytes bytes = *datagram;
  const uint32_t crc = ExtendCrc32c(ExtendCrc32c(0, bytes.first(24)), bytes.subspan(kHeaderBytes));
  StoreLittleEndian(crc, datagram->data() + 24);
}

TEST(PacketMalformed, Decode_RejectsEveryTruncationAndExtension) {
  std::mt19937_64 rng(5);
  for (PacketType type : kTypes) {
    for (int round = 0; round < 5; ++round) {
      Datagram datagram = Encode(RandomPacket(rng, type, 300));
      for (size_t size = 0; size < datagram.size(); ++size) {
        const Datagram cut(datagram.begin(), datagram.begin() + size);
        ASSERT_NE(DecodeErrorOf(cut), DecodeError::kNone)
            << "type " << int(type) << " size " << size;
      }
      for (int more = 0; more < 20; ++more) {
        datagram.push_back(Random<std::byte>(rng));
        ASSERT_NE(DecodeErrorOf(datagram), DecodeError::kNone) << "type " << int(type);
      }
    }
  }
}

TEST(PacketMalformed, Decode_RejectsEverySingleBitFlip) {
  std::mt19937_64 rng(6);
  for (PacketType type : kTypes) {
    for (size_t max_payload_bytes : {0, 40, 1000}) {
      Datagram datagram = Encode(RandomPacket(rng, type, max_payload_bytes));
      ASSERT_EQ(DecodeErrorOf(datagram), DecodeError::kNone);
      for (size_t bit = 0; bit < 8 * datagram.size(); ++bit) {
        datagram[bit / 8] ^= std::byte{1} << (bit % 8);
        const DecodeError error = DecodeErrorOf(datagram);
        ASSERT_NE(error, DecodeError::kNone) << "type " << int(type) << " bit " << bit;
        // Nothing from byte 8 on decides the form, but the PSN of packets that have none.
        if (bit >= 64 && (bit < 128 || bit >= 160)) {
          ASSERT_EQ(error, DecodeError::kBadChecksum) << "type " << int(type) << " bit " << bit;
        }
        datagram[bit / 8] ^= std::byte{1} << (bit % 8);
      }
    }
  }
}

TEST(PacketMalformed, Decode_RejectsRandomBytes) {
  std::mt19937_64 rng(7);
  for (int round = 0; round < 100000; ++round) {
    Datagram datagram = RandomBytes(rng, rng() % 400);
    // Half of them get further than the first byte.
    if (round % 2 == 0 && datagram.size() >= 8) {
      datagram[0] = std::byte{kVersion};
      datagram[1] = static_cast<std::byte>(kTypes[rng() % std::size(kTypes)]);
      std::fill_n(datagram.begin() + 4, 4, std::byte{0});
    }
    ASSERT_NE(DecodeErrorOf(datagram), DecodeError::kNone) << "round " << round;
  }
}

// Random bodies behind a right CRC reach the body decoders. What they accept has one form only:
// encoding it again gives the same bytes.
TEST(PacketMalformed, Decode_AcceptedRandomBodiesEncodeToTheSameBytes) {
  std::mt19937_64 rng(8);
  std::map<PacketType, int> accepted;
  for (int round = 0; round < 100000; ++round) {
    const PacketType type = kTypes[rng() % std::size(kTypes)];
    Datagram datagram = Encode(RandomPacket(rng, type, 60));
    for (size_t i = kHeaderBytes; i < datagram.size(); ++i) {
      if (rng() % 8 == 0) datagram[i] = Random<std::byte>(rng);
    }
    if (rng() % 4 == 0) datagram.resize(kHeaderBytes + rng() % 200);
    if (rng() % 8 == 0) datagram[rng() % 8] = Random<std::byte>(rng);
    FixCrc(&datagram);
    Header header;
    Bytes body, payload;
    const DecodeError error = DecodeHeader(datagram, &header, &body, &payload);
    ASSERT_NE(error, DecodeError::kBadChecksum);
    Packet packet;
    if (error != DecodeError::kNone || !Decode(header, body, payload, &packet)) continue;
    ASSERT_EQ(Encode(packet), datagram) << "round " << round;
    ++accepted[header.type];
  }
  for (PacketType type : kTypes) EXPECT_GT(accepted[type], 100) << "type " << int(type);
}

// Each rule alone, behind a right CRC.
TEST(PacketMalformed, Decode_RejectsEachFaultOfForm) {
  std::mt19937_64 rng(9);
  auto expect_malformed = [](Datagram datagram, const char* fault, PacketType type) {
    FixCrc(&datagram);
    EXPECT_EQ(DecodeErrorOf(datagram), DecodeError::kMalformed) << fault << ", type " << int(type);
  };
  for (PacketType type : kTypes) {
    const Datagram valid = Encode(RandomPacket(rng, type, 50));
    for (int version : {0, kVersion - 1, kVersion + 1, 255}) {
      Datagram datagram = valid;
      datagram[0] = std::byte(version);
      expect_malformed(datagram, "version", type);
    }
    for (int unknown : {0, 11, 255}) {
      Datagram datagram = valid;
      datagram[1] = std::byte(unknown);
      expect_malformed(datagram, "unknown type", type);
    }
    for (size_t reserved : {6, 7}) {
      Datagram datagram = valid;
      datagram[reserved] = std::byte{1};
      expect_malformed(datagram, "reserved byte", type);
    }
    if (!IsSequenced(type)) {
      Datagram datagram = valid;
      datagram[19] = std::byte{1};
      expect_malformed(datagram, "PSN", type);
    }
    Datagram datagram = valid;
    StoreLittleEndian(static_cast<uint16_t>(valid.size() - kHeaderBytes + 1), datagram.data() + 4);
    expect_malformed(datagram, "payload longer than the rest", type);

    const bool carries_payload =
        type == PacketType::kEager || type == PacketType::kData || type == PacketType::kControl;
    datagram = valid;
    datagram.push_back(std::byte{0});
    const auto payload_bytes = LoadLittleEndian<uint16_t>(valid.data() + 4);
    if (!carries_payload) {
      StoreLittleEndian<uint16_t>(1, datagram.data() + 4);
      expect_malformed(datagram, "payload on a type without", type);
    } else {
      expect_malformed(datagram, "body too long", type);
      StoreLittleEndian(static_cast<uint16_t>(payload_bytes + 2), datagram.data() + 4);
      expect_malformed(datagram, "body too short", type);
    }
  }
  for (PacketType type : {PacketType::kRequest, PacketType::kGrant, PacketType::kProbe,
                          PacketType::kSkip, PacketType::kCredit, PacketType::kDemand}) {
    Datagram datagram = Encode(RandomPacket(rng, type, 0));
    datagram.push_back(std::byte{0});
    expect_malformed(datagram, "body too long", type);
    if (datagram.size() > kHeaderBytes + 1) {
      datagram.resize(datagram.size() - 2);
      expect_malformed(datagram, "body too short", type);
    }
  }
  Datagram ack = Encode(RandomPacket(rng, PacketType::kAck, 0));
  ack.resize(kHeaderBytes + kAckFixedBytes - 1);
  expect_malformed(ack, "body too short", PacketType::kAck);
  ack.resize(kMaxAckBytes + 1);
  expect_malformed(ack, "body too long", PacketType::kAck);
}

TEST(PacketMalformed, DecodeAck_RejectsInnerContradictions) {
  auto body_with = [](size_t size, int echoes, int reserved, int bitmap_bytes) {
    std::vector<std::byte> body(size);
    if (size < kAckFixedBytes) return body;
    body[20] = std::byte(echoes);
    body[21] = std::byte(reserved);
    StoreLittleEndian(static_cast<uint16_t>(bitmap_bytes), body.data() + 22);
    return body;
  };
  auto accepts = [](const std::vector<std::byte>& body) {
    Ack ack;
    ack.next = 0x5a5a;
    const bool accepted = DecodeAck(body, &ack);
    EXPECT_EQ(ack.next == 0x5a5a, !accepted) << "a rejected body was written out";
    return accepted;
  };
  EXPECT_TRUE(accepts(body_with(kAckFixedBytes, 0, 0, 0)));
  EXPECT_TRUE(accepts(body_with(kAckFixedBytes + kEchoBytes + 3, 1, 0, 3)));
  EXPECT_TRUE(accepts(body_with(kAckFixedBytes + kEchoBytes * 16 + 1024, 16, 0, 1024)));
  EXPECT_FALSE(accepts(body_with(0, 0, 0, 0)));
  EXPECT_FALSE(accepts(body_with(kAckFixedBytes - 1, 0, 0, 0)));
  EXPECT_FALSE(accepts(body_with(kAckFixedBytes, 0, 1, 0)));
  EXPECT_FALSE(accepts(body_with(kAckFixedBytes + 1, 0, 0, 0)));
  EXPECT_FALSE(accepts(body_with(kAckFixedBytes, 1, 0, 0)));
  EXPECT_FALSE(accepts(body_with(kAckFixedBytes, 0, 0, 1)));
  EXPECT_FALSE(accepts(body_with(kAckFixedBytes + kEchoBytes * 17, 17, 0, 0)));
  EXPECT_FALSE(accepts(body_with(kAckFixedBytes + 1025, 0, 0, 1025)));
  EXPECT_FALSE(accepts(body_with(kAckFixedBytes + kEchoBytes * 16 + 1024, 0, 0, 65535)));
}

}  // namespace
}  // namespace uccl::wire
