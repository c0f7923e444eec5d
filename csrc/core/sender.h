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

#include "csrc/core/congestion.h"
#include "csrc/core/connection.h"
#include "csrc/core/credit/sender_credit.h"
#include "csrc/core/message.h"
#include "csrc/core/path/path.h"
#include "csrc/core/path/path_health.h"
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

// A peer whose thread waits for a core answers late by about a scheduler's tick; probing it sooner
// would send packets for nothing.
inline constexpr Nanos kMinTailProbeDelay = FromMillis(1);

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
  std::optional<PathId> path;           // that all its packets take, if it is small
  OutMessage* same_tag_next = nullptr;  // of TagTable
};

class Sender final {
 public:
  Sender(const ConnectionConfig& config, Controllers controllers,
         std::unique_ptr<PathSelector> selector, bool credit, ConnectionStats* stats,
         Ring<Event>* events);

  void Send(const MessageInfo& info, Bytes data, uint64_t token);
  void SendControl(std::string control);
  void SendGrant(const MessageInfo& info, uint32_t receive_id);
  void Cancel(uint64_t token);

  // Of a message that will not be sent: its grant is void.
  void Discard(const MessageTag& tag);
  bool Full() const { return by_token_.size() >= kMaxOpenMessages; }

  // An error when the peer grants more than it may.
  Status OnGrant(const MessageInfo& theirs, uint32_t receive_id);
  void OnCredit(const wire::Credit& credit);
  // Returns true when the ACK acknowledged something new.
  bool OnAck(Nanos now, const wire::Header& header, const wire::Ack& ack);
  // An error when a packet was sent too often for nothing.
  Status OnTimeout(Nanos now);
  Nanos NextTimeout() const;
  // Writes the next packet's head into `head` (wire::kMaxHeadBytes). The payload stays where it is.
  std::optional<Datagram> PollTransmit(Nanos now, std::span<std::byte> head);
  // Only what is to be sent again.
  std::optional<Datagram> PollRepetition(Nanos now, std::span<std::byte> head);

  bool WaitingForGrant() const { return !waiting_.empty(); }
  bool Outstanding() const {
    return !ledger_.empty() || !small_.empty() || !eager_.empty() || !bulk_.empty();
  }
  // Reports every unfinished message with `status` and forgets all.
  void Fail(const Status& status);
  // Whether a request to send is due; its contents are what TakeRequest says.
  bool RequestDue() const { return credit_.RequestDue(); }
  wire::Demand TakeRequest() { return credit_.TakeRequest(); }
  // For a probe of the peer or a request: the paths in turn.
  PathId NextPath();
  // A path that wants a probe.
  std::optional<PathId> TakePathProbe() { return monitor_.TakeProbe(); }
  void FillStats(ConnectionStats* stats) const;

 private:
  OutMessage* NewMessage(wire::PacketType type);
  // Whether window and pace of the connection let a packet go; notes when the pace will.
  bool MayTransmit(Nanos now);
  std::optional<PathId> ChoosePath(Nanos now, std::optional<PathId> avoid, bool urgent);
  std::optional<PathId> PathFor(Nanos now, OutMessage* message, size_t room, bool urgent);
  std::optional<Datagram> PollLost(Nanos now, std::span<std::byte> head);
  std::optional<Datagram> PollNew(Nanos now, std::span<std::byte> head);
  std::optional<Datagram> PollTailProbe(Nanos now, std::span<std::byte> head);
  // What the rest of a message takes of window and credit.
  int64_t WireBytesLeft(const OutMessage& message) const;
  uint64_t Packetise(OutMessage* message, size_t room);
  Datagram Transmit(Nanos now, uint64_t psn, PathId path, std::span<std::byte> head);
  size_t EncodePacket(const SentPacket& packet, wire::Header header, std::span<std::byte> head,
                      Bytes payload) const;
  void WantAgain(SentPacket* packet);
  // `waited`: how long the ACK did on its way back, which no controller is to answer.
  void OnEchoes(Nanos now, Nanos waited, const wire::Ack& ack, AckSample* sample);
  void OnPacketAcked(SentPacket& packet, Nanos now, int64_t* acked_bytes);
  void MarkLost(Nanos now, uint64_t psn);
  void JudgePaths(Nanos now);
  void LeaveFlight(const SentPacket& packet);
  Status OnRetransmissionTimeout(Nanos now);
  // Forgets a message that no packet refers to any more and reports a large one as done.
  void ReleaseIfDone(OutMessage* message);
  void Forget(OutMessage* message);
  Nanos Rto() const;
  // Of the tail-loss probe; kNever when none is to be sent.
  Nanos TailProbeDelay() const;
  // Both delays follow the slowest path: raised as packets leave, worked out anew by an ACK, so
  // that NextTimeout need not look at every path.
  void NoteDelays(const PathState& path);
  void RefreshDelays();
  Nanos LossTimer() const;

  const ConnectionConfig& config_;
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
  Congestion congestion_;
  SenderCredit credit_;
  PathMonitor monitor_;
  uint16_t next_path_ = 0;            // of NextPath
  Nanos urgent_sent_{-1};             // when the last request, grant or control message left
  PathId urgent_path_{};              // and on which path
  RttEstimator rtt_;                  // of all paths together
  Ring<uint64_t> lost_;               // to send again; entries acknowledged meanwhile are skipped
  std::vector<uint64_t> newly_lost_;  // scratch of OnAck
  std::vector<PathId> newly_acked_;   // paths; likewise
  int64_t inflight_bytes_ = 0;
  uint32_t backoff_ = 0;
  Nanos slowest_rto_{}, tail_delay_{};
  bool tail_probed_ = false;            // since the last progress
  std::optional<uint64_t> tail_probe_;  // PSN to send once more although it is in flight
  Nanos paced_until_ = kNever;          // something waits for the pace alone
  Nanos timer_start_{
      0};  // the timeout counts from here: last transmission of something or last progress
  int64_t eager_sent_bytes_ = 0, eager_consumed_bytes_ = 0;
};

}  // namespace uccl::core
