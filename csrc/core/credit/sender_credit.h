// The sender's side of receiver-driven credit (receiver_scheduler.h): what it wants, what it was
// granted, and when it asks. Without credit everything is allowed and nothing is asked.
//
// A request to send goes out when the wish outgrew the grant, when packets were lost, and again
// after a timeout with backoff while something waits for credit: the request or the credit may have
// been lost.
#pragma once

#include <algorithm>
#include <cstdint>

#include "csrc/base/types.h"
#include "csrc/wire/packet.h"

namespace uccl::core {

class SenderCredit final {
 public:
  SenderCredit(bool enabled, int64_t initial_bytes)
      : enabled_(enabled), initial_(initial_bytes), granted_(initial_bytes) {}

  // ---- what is wanted ----

  void OnWanted(int64_t bytes) {
    const int64_t owed = std::min(bytes, surplus_);
    surplus_ -= owed;
    wanted_ += bytes - owed;
  }
  // Bytes that were wanted will not be sent. The wish cannot be taken back, so it serves the next
  // one.
  void OnWithdrawn(int64_t bytes) { surplus_ += bytes; }
  // Sent bytes are given up for lost.
  void OnSettled(int64_t bytes) { settled_ += bytes; }

  // ---- what is granted ----

  void OnCredit(const wire::Credit& credit) {
    constexpr uint64_t kMost = uint64_t{1} << 62;
    const auto granted = static_cast<int64_t>(std::min(credit.granted_bytes, kMost));
    if (granted <= granted_) return;
    granted_ = granted;
    backoff_ = 0;
    repeat_at_ = kNever;
  }

  // To be called before each round of PollTransmit.
  void BeginPoll() { blocked_ = false; }
  // Whether a packet may go. After a refusal nothing may in this round: a smaller packet behind
  // would keep a larger one waiting for ever.
  bool Allows(Nanos now, int64_t bytes, Nanos rto) {
    if (!enabled_) return true;
    if (!blocked_ && used_ + void_ + bytes <= granted_) return true;
    blocked_ = true;
    if (repeat_at_ == kNever) {
      Nanos wait = rto;
      for (uint32_t i = 0; i < backoff_ && wait < kMaxWait; ++i) wait *= 2;
      repeat_at_ = now + std::min(wait, std::max(rto, kMaxWait));
    }
    return false;
  }
  void OnSent(int64_t bytes) { used_ += bytes; }
  // Wanted bytes need not be sent after all, and the receiver waits for no others in their place:
  // their credit is void, also if it has yet to come.
  void OnVoid(int64_t bytes) { void_ += bytes; }

  // ---- requests to send ----

  // What is left of the unasked-for credit covers small wishes without a packet for each.
  bool RequestDue() const {
    if (!enabled_) return false;
    const int64_t unsaid = wanted_ - said_.wanted;
    return repeat_ || settled_ != said_.settled || (unsaid > 0 && wanted_ > granted_) ||
           unsaid > initial_ / 2;
  }
  wire::Demand TakeRequest() {
    said_ = {wanted_, settled_};
    repeat_ = false;
    return {static_cast<uint64_t>(wanted_), static_cast<uint64_t>(settled_)};
  }
  Nanos NextTimeout() const { return blocked_ ? repeat_at_ : kNever; }
  void OnTimeout(Nanos now) {
    if (NextTimeout() > now) return;
    repeat_ = true;
    repeat_at_ = kNever;
    backoff_ = std::min(backoff_ + 1, kMaxBackoff);
  }

  int64_t wanted() const { return wanted_; }
  int64_t granted() const { return granted_; }
  int64_t used() const { return used_; }
  int64_t voided() const { return void_; }

 private:
  static constexpr uint32_t kMaxBackoff = 16;
  static constexpr Nanos kMaxWait = FromMillis(1000);

  struct Said {
    int64_t wanted = 0, settled = 0;
  };
  bool enabled_;
  int64_t initial_;
  int64_t wanted_ = 0, surplus_ = 0, settled_ = 0;
  int64_t granted_, used_ = 0, void_ = 0;
  Said said_;
  bool blocked_ = false, repeat_ = false;
  Nanos repeat_at_ = kNever;  // while blocked_
  uint32_t backoff_ = 0;
};

}  // namespace uccl::core
