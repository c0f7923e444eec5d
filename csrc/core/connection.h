// One reliable, multipath, message-oriented connection between two processes, as a sans-I/O state
// machine.
//
// The connection only routes; the work is in sender, receiver, recovery/, path/ and cc/. It reads
// no clock, owns no socket and takes no lock: whoever owns it (one engine thread, or a test) passes
// the time in.
//
// Life of a message. Sizes up to eager_max_bytes go at once, each packet self-describing, and are
// copied on Send (kSendDone is immediate); the receiver keeps early ones in a buffer bounded by
// eager_buffer_bytes, which is enforced by credit: a sender without credit falls back to the large
// protocol. Larger messages: the sender sends REQUEST (describes the message), the receiver sends
// GRANT as soon as the receive is posted (before or after the REQUEST), and the sender then writes
// straight into the posted buffer. Both control packets are reliable like data.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/base/types.h"
#include "csrc/core/message.h"
#include "csrc/core/path/path.h"

namespace uccl::core {

class ReceiverScheduler;

struct ConnectionConfig {
  uint64_t send_key = 0;  // in every packet sent; the peer's recv_key
  uint64_t recv_key = 0;  // packets with another key are dropped and counted
  uint32_t initial_send_psn = 0;
  uint32_t initial_recv_psn = 0;
  uint16_t num_paths = 1;
  size_t max_datagram_bytes = 1200;       // header included, the smaller of both ends
  int64_t eager_max_bytes = 16384;        // equal on both ends
  int64_t eager_buffer_bytes = 16 << 20;  // what the peer keeps of ours
  int64_t window_bytes = 4 << 20;
  Nanos min_rto{10'000'000};
  Nanos max_rto{1'000'000'000};
  Nanos peer_silence{10'000'000'000};
  std::string congestion_control = "none";
  std::string cc_scope = "connection";  // or "path": a controller for each
  // What controllers are told of the network; 0: unknown (cc/congestion_controller.h).
  int64_t line_rate_bytes_per_s = 0;
  Nanos base_rtt{}, queue_budget{};
  // Losses up to this part of what is acknowledged are repaired without telling the controller
  // (loss_tolerance.h); 0: all are told.
  int64_t loss_tolerance_permille = 0;
  // Largest window of one path with a controller of its own; 0: window_bytes.
  int64_t path_window_bytes = 0;
  std::string path_policy = "round_robin";
  // A message of at most so many packets keeps the path of its first one; 0 or 1: none does.
  int64_t sticky_packets = 4;
  // A packet sent oftener without any acknowledgement fails the connection.
  int64_t max_retries = 50;
  // With receiver-driven credit: what may be sent before the receiver has said anything, and again
  // whenever it has credit to spare. Equal on both ends.
  int64_t credit_initial_bytes = 65536;
  uint32_t first_number = 0;  // of messages and of receives; they wrap around
  uint64_t seed = 1;
};

// Who decides when the peer may send. The scheduler outlives the connection, and is driven by the
// connection's owner: after a credit for `owner` the connection has a datagram to send.
struct CreditSource {
  ReceiverScheduler* scheduler = nullptr;  // null on both ends or on none
  uint64_t owner = 0;
};

// A datagram to transmit: header and payload are separate so that payload is sent from the user's
// buffer. Both stay valid until the next call into the connection.
struct Datagram {
  PathId path{};
  Bytes header;
  Bytes payload;
};

struct PathStats {
  PathHealth state = PathHealth::kUp;
  int64_t srtt_ns = 0, min_rtt_ns = 0, inflight_bytes = 0;
  int64_t window_bytes = 0;  // its own; 0 when all paths share one
  uint64_t packets_sent = 0, packets_lost = 0, packets_marked = 0;
  uint64_t failures = 0, probes = 0;
};

struct ConnectionStats {
  uint64_t packets_sent = 0, packets_received = 0, bytes_sent = 0, bytes_received = 0;
  uint64_t payload_bytes_sent = 0, payload_bytes_received = 0;
  uint64_t retransmits_fast = 0, retransmits_timeout = 0, spurious_retransmits = 0;
  uint64_t duplicates = 0, out_of_window = 0, wrong_key = 0, malformed = 0, bad_checksum = 0;
  uint64_t timeouts = 0, tail_probes = 0, probes = 0, path_probes = 0, acks_sent = 0,
           acks_received = 0;
  uint64_t credits_sent = 0, requests_to_send = 0;  // packets of their own
  // Receiver-driven credit, in bytes since the connection began (receiver_scheduler.h): of this end
  // as a sender, and what it granted as a receiver.
  int64_t credit_wanted_bytes = 0, credit_received_bytes = 0, credit_used_bytes = 0,
          credit_void_bytes = 0;
  int64_t credit_granted_bytes = 0, credit_outstanding_bytes = 0;
  uint64_t eager_bytes_buffered = 0, unexpected_messages = 0;
  int64_t srtt_ns = 0, rttvar_ns = 0, inflight_bytes = 0, window_bytes = 0;
  std::vector<PathStats> paths;
};

class Connection final {
 public:
  // Fails with kInvalidArgument for an unknown policy or a datagram too small for the headers.
  static Result<std::unique_ptr<Connection>> Make(const ConnectionConfig& config,
                                                  const CreditSource& credit = {});
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // `data` must stay valid and unchanged until kSendDone, unless the message is eager (then it is
  // copied). `token` comes back in the event; no two unfinished sends and receives may have the
  // same. Any size, also 0. Refused with kResourceExhausted when kMaxOpenMessages are outstanding.
  void Send(Nanos now, const MessageInfo& info, Bytes data, uint64_t token);
  // `buffer` (info.size_bytes long) is written until kRecvDone or CancelRecv.
  void PostRecv(Nanos now, const MessageInfo& info, MutableBytes buffer, uint64_t token);
  // After these return the buffer is not touched again and no event with `token` follows. Packets
  // of a cancelled send that are still owed to the peer travel without payload.
  void CancelSend(Nanos now, uint64_t token);
  void CancelRecv(Nanos now, uint64_t token);
  // Nothing with this tag will be sent (or received) here, although the peer may believe so,
  // because the operation failed before its Send (or PostRecv). What came of the peer's is dropped,
  // and so is what comes. As after a cancel, the tag must not be used again.
  void Discard(bool is_send, const MessageTag& tag);
  // A small reliable message (what is longer than 512 bytes is cut) delivered as kControl, at once
  // and exactly once.
  void SendControl(Nanos now, std::string control);

  void OnDatagram(Nanos now, PathId path, Bytes datagram, Ecn ecn = Ecn::kNotCapable);
  void OnTimeout(Nanos now);
  // The next datagram to send, or nothing: window full, or all sent.
  std::optional<Datagram> PollTransmit(Nanos now);
  // The earliest time at which OnTimeout has work; kNever when idle.
  Nanos NextTimeout() const;
  std::optional<Event> PollEvent();

  // While set, the peer is probed when silent, so that a dead peer is noticed although this side
  // owes it nothing (it waits for the peer's data). Posted receives set it by themselves.
  bool WaitingForPeer() const;
  // True when every byte and control message handed in has been acknowledged, and so has what came.
  bool Drained() const;
  bool failed() const;
  // Fails the connection at once (for example: the network reported the peer's port unreachable).
  void Fail(const Status& status);

  // Messages that arrived or were requested and met no posted receive; oldest first.
  std::vector<MessageInfo> Unexpected() const;
  ConnectionStats stats() const;

 private:
  Connection();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace uccl::core
