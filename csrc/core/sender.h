// The sending half of a connection: messages to packets, packets in flight, loss and
// retransmission.
//
// Life of a message
//   eager:   queued (copied; kSendDone at once) -> packets -> acknowledged
//   large:   REQUEST queued, message waits -> GRANT pairs it with a posted receive -> packets,
//   taking turns with
//            the other granted messages -> all acknowledged: kSendDone
// Life of a packet: in flight -> acknowledged, or lost -> in flight again under the same PSN on
// another path. A withdrawn message's packets are sent as SKIP when they have to be repeated.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "csrc/core/cc/congestion_controller.h"
#include "csrc/core/connection.h"
#include "csrc/core/message.h"
#include "csrc/core/path/path.h"
#include "csrc/core/path/path_selector.h"
#include "csrc/core/recovery/sent_ledger.h"
#include "csrc/core/ring.h"
#include "csrc/core/rtt_estimator.h"
#include "csrc/core/tag_table.h"
#include "csrc/wire/packet.h"

namespace uccl::core {

// What one eager message costs of the peer's buffer besides its bytes, so that empty ones are
// bounded too.
inline constexpr int64_t kEagerOverheadBytes = 128;

// Something to deliver: a message, or one of the small packets that arrange it.
struct OutMessage {
  wire::PacketType type{};      // kEager, kRequest, kGrant, kData or kControl
  MessageInfo info;             // not of kControl
  uint32_t number = 0;          // message_id (kEager, kRequest) or receive_id (kGrant, kData)
  Bytes data;                   // payload
  std::vector<std::byte> copy;  // backs `data` where the caller's buffer is not used
  uint64_t token = 0;
  uint64_t sent_bytes = 0;  // packetised so far
  uint64_t unacked_packets = 0;
  bool all_sent = false;
  bool withdrawn = false;
  OutMessage* same_tag_next = nullptr;  // of TagTable
};

class Sender final {
 public:
  Sender(const ConnectionConfig& config, std::unique_ptr<CongestionController> controller,
         std::unique_ptr<PathSelector> selector, ConnectionStats* stats, Ring<Event>* events);

  void Send(const MessageInfo& info, Bytes data, uint64_t token);
  void SendControl(std::string control);
  void SendGrant(const MessageInfo& info, uint32_t receive_id);
  void Cancel(uint64_t token);

  void OnGrant(const MessageInfo& theirs, uint32_t receive_id);
  // Returns true when the ACK acknowledged something new.
  bool OnAck(Nanos now, const wire::Ack& ack);
  void OnTimeout(Nanos now);
  Nanos NextTimeout() const;
  // Writes the next packet's head into `head` (wire::kMaxHeadBytes). The payload stays where it is.
  std::optional<Datagram> PollTransmit(Nanos now, std::span<std::byte> head);

  bool WaitingForGrant() const { return !waiting_.empty(); }
  bool Outstanding() const {
    return !ledger_.empty() || !small_.empty() || !eager_.empty() || !bulk_.empty();
  }
  // Reports every unfinished message with `status` and forgets all.
  void Fail(const Status& status);
  PathId NextPath() { return selector_->Select(paths_, std::nullopt); }
  void FillStats(ConnectionStats* stats) const;

 private:
  OutMessage* NewMessage(wire::PacketType type);
  bool MayTransmit() const;
  std::optional<uint64_t> NextNewPacket();
  uint64_t Packetise(OutMessage* message, size_t room);
  Datagram Transmit(Nanos now, uint64_t psn, std::span<std::byte> head);
  size_t EncodePacket(const SentPacket& packet, wire::Header header, std::span<std::byte> head,
                      Bytes payload) const;
  void OnPacketAcked(SentPacket& packet, Nanos now, int64_t* acked_bytes);
  void MarkLost(Nanos now, uint64_t psn);
  // Forgets a message that no packet refers to any more and reports a large one as done.
  void ReleaseIfDone(OutMessage* message);
  void Forget(OutMessage* message);
  Nanos Rto() const;

  const ConnectionConfig& config_;
  std::unique_ptr<CongestionController> controller_;
  std::unique_ptr<PathSelector> selector_;
  ConnectionStats* const stats_;
  Ring<Event>* const events_;

  std::vector<std::unique_ptr<OutMessage>> pool_;  // all that were ever needed at once
  std::vector<OutMessage*> free_;
  std::unordered_map<uint64_t, OutMessage*> by_token_;  // large messages that are not finished
  uint32_t next_number_ = 0;
  Ring<OutMessage*>
      small_;  // requests, grants, control: before all else, not held back by the window
  Ring<OutMessage*> eager_;
  Ring<OutMessage*> bulk_;        // granted, taking turns
  TagTable<OutMessage> waiting_;  // for a grant
  struct Granted {
    MessageInfo info;
    uint32_t receive_id = 0;
  };
  std::unordered_multimap<MessageTag, Granted, MessageTagHash> grants_;  // for a message
  WithdrawnTags withdrawn_;  // of sends cancelled while they waited: their grants are void

  SentLedger ledger_;
  std::vector<PathState> paths_;
  RttEstimator rtt_;                  // of all paths together
  Ring<uint64_t> lost_;               // to send again; entries acknowledged meanwhile are skipped
  std::vector<uint64_t> newly_lost_;  // scratch of OnAck
  int64_t inflight_bytes_ = 0;
  uint32_t backoff_ = 0;
  Nanos timer_start_{
      0};  // the timeout counts from here: last transmission of something or last progress
  int64_t eager_sent_bytes_ = 0, eager_consumed_bytes_ = 0;
};

}  // namespace uccl::core
