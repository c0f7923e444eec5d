// A peer by hand: datagrams with the right key and checksum and whatever else a test wants in them.
#pragma once

#include <cstdint>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/core/message.h"
#include "csrc/wire/packet.h"

namespace uccl::core::testing {

class Crafter final {
 public:
  using Packet = std::vector<std::byte>;

  // The key and first PSN that the connection under test expects.
  Crafter(uint64_t key, uint32_t psn) : psn_(psn) { header_.key = key; }

  // The next packet takes this PSN, later ones count on.
  void set_psn(uint32_t psn) { psn_ = psn; }
  void set_path(uint16_t path) { header_.path = path; }
  void set_timestamp(uint32_t timestamp) { header_.timestamp = timestamp; }

  Packet Eager(const MessageInfo& info, uint32_t message_id, uint32_t offset, Bytes payload) {
    return Join(payload, [&](auto header, auto head) {
      return wire::EncodeEager(header, {ToWire(info), message_id, offset}, payload, head);
    });
  }
  Packet Request(const MessageInfo& info, uint32_t message_id) {
    return Join({}, [&](auto header, auto head) {
      return wire::EncodeRequest(header, {ToWire(info), message_id}, head);
    });
  }
  Packet Grant(const MessageInfo& info, uint32_t receive_id) {
    return Join({}, [&](auto header, auto head) {
      return wire::EncodeGrant(header, {ToWire(info), receive_id}, head);
    });
  }
  Packet Data(uint32_t receive_id, uint64_t offset, Bytes payload) {
    return Join(payload, [&](auto header, auto head) {
      return wire::EncodeData(header, {receive_id, offset}, payload, head);
    });
  }
  Packet Control(Bytes payload) {
    return Join(payload,
                [&](auto header, auto head) { return wire::EncodeControl(header, payload, head); });
  }
  Packet Skip() {
    return Join({}, [&](auto header, auto head) { return wire::EncodeSkip(header, head); });
  }
  Packet Probe() {
    --psn_;  // takes none
    return Join({}, [&](auto header, auto head) { return wire::EncodeProbe(header, head); });
  }
  Packet Ack(const wire::Ack& ack) {
    --psn_;
    return Join({}, [&](auto header, auto head) { return wire::EncodeAck(header, ack, head); });
  }
  Packet Credit(const wire::Credit& credit) {
    --psn_;
    return Join({},
                [&](auto header, auto head) { return wire::EncodeCredit(header, credit, head); });
  }
  Packet Demand(const wire::Demand& demand) {
    --psn_;
    return Join({},
                [&](auto header, auto head) { return wire::EncodeDemand(header, demand, head); });
  }

 private:
  static wire::Description ToWire(const MessageInfo& info) {
    return {info.tag.hi, info.tag.lo, info.digest, info.size_bytes, info.note};
  }
  template <class Encode>
  Packet Join(Bytes payload, Encode encode) {
    header_.psn = psn_++;
    Packet packet(wire::kMaxAckBytes);
    packet.resize(encode(header_, std::span<std::byte>(packet)));
    packet.insert(packet.end(), payload.begin(), payload.end());
    return packet;
  }

  wire::Header header_;
  uint32_t psn_;
};

}  // namespace uccl::core::testing
