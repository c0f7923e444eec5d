// What an application and an honest observer of the wire may expect of a connection, whatever its
// peer does. The oracle holds the application's buffers, hands them in, takes every event and every
// datagram, and throws a Finding when a promise of connection.h is broken:
//   - every token is reported once, none after its cancel, all before kFailed, which is the last;
//   - a buffer is neither written beside its bounds nor touched once it was given back;
//   - what was received is what the peer sent under that tag, if it told the truth about that;
//   - every datagram decodes, carries the right key and the bytes of a live buffer, and fits;
//   - a PSN names one content for ever;
//   - credit, where a receiver scheduler gives it, only grows, and giving it comes to an end;
//   - counts of bytes in flight and buffered stay consistent and within the settings;
//   - memory stays within what the settings and the application's own demands account for.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "csrc/core/connection.h"
#include "csrc/core/credit/receiver_scheduler.h"
#include "csrc/wire/packet.h"
#include "tests/fuzz/user_memory.h"

namespace uccl::fuzz {

class Oracle final {
 public:
  // `scheduler` is a row of ReceiverSchedulers.
  Oracle(const core::ConnectionConfig& config, const std::string& scheduler);

  // ---- the application; `tag` is a number of its own for every message ----
  void Send(Nanos now, uint64_t tag, size_t size, uint64_t digest);
  void PostRecv(Nanos now, uint64_t tag, size_t size, uint64_t digest);
  // Of the n-th that is outstanding, if there is any.
  void Cancel(Nanos now, bool is_send, size_t n);
  // A message with this tag will never be handed in.
  void Discard(bool is_send, uint64_t tag);
  void SendControl(Nanos now, size_t size);
  void Fail();

  // ---- the world ----
  void Deliver(Nanos now, PathId path, Bytes datagram, Ecn ecn);
  void OnTimeout(Nanos now);
  // All credits that are due.
  void GiveCredit(Nanos now);
  // Takes at most `most` datagrams; returns how many there were.
  size_t Poll(Nanos now, size_t most);
  Nanos NextTimeout() const;
  void CheckState();
  // The application gives up: everything must be reported. Afterwards nothing moves.
  void Finish(Nanos now);
  bool failed() const { return connection_->failed(); }

  // ---- what an attacker learns who sees every datagram and knows the application ----
  struct Message {
    uint64_t tag = 0;
    core::MessageInfo info;
  };
  struct Granted {
    uint32_t receive_id = 0;
    Message message;
  };
  const std::vector<Message>& sends() const { return sends_made_; }
  const std::vector<Message>& receives() const { return receives_made_; }
  const std::vector<Message>& requests_seen() const { return requests_seen_; }
  const std::vector<Granted>& grants_seen() const { return grants_seen_; }
  uint32_t next_psn() const { return next_psn_; }  // after the newest one sent
  uint32_t newest_timestamp() const { return newest_timestamp_; }
  core::ConnectionStats stats() const { return connection_->stats(); }
  // The attacker sent bytes under a tag or a receive_id that are not that message's contents.
  void NoteLie() { lied_ = true; }

 private:
  struct Operation {
    Message message;
    bool is_send = false;
    UserMemory memory;
  };
  void TakeEvents();
  void Finished(uint64_t token, bool is_send, bool complete);
  void Look(const core::Datagram& datagram);
  void CheckPayload(const wire::Header& header, Bytes body, Bytes payload);

  const core::ConnectionConfig config_;
  std::unique_ptr<core::ReceiverScheduler> scheduler_;  // outlives the connection
  std::unique_ptr<core::Connection> connection_;
  std::map<uint64_t, Operation> operations_;  // outstanding, by token
  uint64_t next_token_ = 1;
  bool any_cancelled_send_ = false, failure_reported_ = false, lied_ = false;
  int64_t granted_bytes_ = 0;
  int64_t handed_in_bytes_ = 0;  // copies that the connection may hold, and per-message records

  std::vector<Message> sends_made_, receives_made_, requests_seen_;
  std::vector<Granted> grants_seen_;
  std::unordered_map<uint32_t, uint32_t> contents_;  // PSN -> checksum of what it carried
  std::set<uint32_t> skipped_;
  uint32_t next_psn_, newest_timestamp_ = 0;
};

}  // namespace uccl::fuzz
