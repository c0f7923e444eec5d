// The receiving half of a connection: packets to messages.
//
// A posted receive meets its message in one of three ways.
//   eager, receive first:  packets are copied straight into the posted buffer
//   eager, message first:  packets gather in a buffer of our own (bounded by the credit that the
//   peer has), which is
//                          copied when the receive is posted and the message is whole
//   large:                 GRANT goes out when the receive is posted (if it is large) or when its
//   REQUEST arrives;
//                          DATA names the grant, so it is copied straight into the posted buffer.
//                          The receive is done when all bytes and the REQUEST are here, so that no
//                          REQUEST is left over.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "csrc/core/connection.h"
#include "csrc/core/credit/receiver_scheduler.h"
#include "csrc/core/message.h"
#include "csrc/core/recovery/receive_window.h"
#include "csrc/core/ring.h"
#include "csrc/core/sender.h"
#include "csrc/core/tag_table.h"
#include "csrc/wire/packet.h"

namespace uccl::core {

class Receiver final {
 public:
  // Grants are sent through `sender`. `scheduler` says when the peer may send; null: whenever it
  // likes.
  Receiver(const ConnectionConfig& config, Sender* sender, const CreditSource& credit,
           ConnectionStats* stats, Ring<Event>* events);
  ~Receiver();
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;

  void PostRecv(const MessageInfo& info, MutableBytes buffer, uint64_t token);
  void Cancel(uint64_t token);
  // Of a message that will not be received.
  void Discard(const MessageTag& tag);
  bool Full() const { return posted_.size() >= kMaxOpenMessages; }

  // A sequenced packet whose header and checksum are right. Returns an error when the peer breaks
  // the protocol, which is fatal for the connection.
  Status OnPacket(const wire::Header& header, Bytes body, Bytes payload, Ecn ecn);
  // A packet that wants an ACK although it is not sequenced.
  void RequestAck(const wire::Header& header, Ecn ecn) { NoteArrival(header, ecn); }
  // What the peer wants to send. False when it cannot be meant.
  bool OnDemand(const wire::Demand& demand);
  bool CreditDue() const { return flow_.credit_due; }
  wire::Credit TakeCredit();
  // Of the newest packet: a path that works, so ACKs take it as well.
  PathId newest_path() const { return newest_path_; }

  bool AckDue() const { return ack_due_; }
  // Encodes the ACK into `out` (wire::kMaxAckBytes long).
  size_t FillAck(wire::Header header, std::span<std::byte> out);

  bool WaitingForData() const { return !posted_.empty(); }
  std::vector<MessageInfo> Unexpected() const;
  void Fail(const Status& status);
  void FillStats(ConnectionStats* stats) const;

 private:
  struct Early;
  struct Posted {
    MessageInfo info;
    MutableBytes buffer;
    uint64_t token = 0;
    bool granted = false, requested = false, any_data = false;
    uint32_t receive_id = 0;  // when granted
    uint64_t received_bytes = 0;
    Early* early = nullptr;  // the eager message it is bound to
    MessageInfo remote;      // as the sender describes it, once known
    Posted* same_tag_next = nullptr;
  };
  // An eager message that is not finished, or a request without a receive.
  struct Early {
    MessageInfo info;
    uint32_t message_id = 0;
    bool is_request = false;
    std::vector<std::byte> buffer;  // empty while bound directly to a posted buffer
    uint64_t received_bytes = 0;
    bool any_received = false;
    Posted* posted = nullptr;
    Early* same_tag_next = nullptr;
    std::list<Early>::iterator self;
    bool buffered = false;  // counted in buffered_bytes_
    bool dropped =
        false;  // its receive was withdrawn or did not match: bytes are counted, not kept
  };

  void NoteArrival(const wire::Header& header, Ecn ecn);
  Status OnEager(const wire::Eager& eager, Bytes payload);
  Status OnData(const wire::Data& data, Bytes payload);
  Status OnRequest(const wire::Request& request);
  Early* NewEarly(const MessageInfo& info, uint32_t message_id);
  // Compares both descriptions. A mismatch ends the receive.
  bool Matches(Posted* posted, const MessageInfo& theirs);
  // Of a request. The sender learns of a mismatch by comparing the grant.
  bool MatchesRequest(Posted* posted, const MessageInfo& theirs);
  void Grant(Posted* posted);
  void FinishEager(Early* early);
  void ForgetRequest(Early* early);
  void Announce(const MessageInfo& info);
  void FinishPosted(Posted* posted, const Status& status);
  void Forget(Posted* posted);
  void FinishIfWhole(Posted* posted);

  const ConnectionConfig& config_;
  Sender* const sender_;
  ConnectionStats* const stats_;
  Ring<Event>* const events_;

  ReceiverScheduler* const scheduler_;  // or null
  CreditFlow flow_;                     // of the peer as a sender
  ReceiveWindow window_;
  bool ack_due_ = false;
  std::vector<wire::Echo>
      echoes_;  // per path: since the last ACK that carried it; `marked` since ever
  std::vector<uint16_t> echo_paths_;  // those with packets > 0
  PathId newest_path_{};

  std::unordered_map<uint64_t, std::unique_ptr<Posted>> posted_;  // by token
  TagTable<Posted> by_tag_;                                       // not bound to a message yet
  std::unordered_map<uint32_t, Posted*> by_receive_id_;
  uint32_t next_receive_id_;

  std::list<Early> early_;                              // in order of arrival
  std::unordered_map<uint32_t, Early*> by_message_id_;  // eager ones that are not whole
  TagTable<Early> unexpected_;
  WithdrawnTags withdrawn_;     // of receives cancelled before anything came
  int64_t consumed_bytes_ = 0;  // reported in ACKs
  int64_t buffered_bytes_ = 0;
  size_t early_requests_ = 0;  // of early_
};

}  // namespace uccl::core
