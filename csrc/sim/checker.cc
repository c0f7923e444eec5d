// See checker.h.
#include "csrc/sim/checker.h"

#include <cstring>

namespace uccl::sim {

void Checker::Violate(Nanos now, const std::string& what) {
  ++count_;
  if (kept_.size() < kMaxKept)
    kept_.push_back("at " + std::to_string(now.count()) + " ns: " + what);
}

void Checker::OnHandedIn(Nanos now, MessageId id, uint64_t size) {
  const bool fresh = messages_.try_emplace(Key(id), Message{.size = size}).second;
  Require(now, fresh, Name(id) + " was handed in twice");
}

void Checker::OnSendDone(Nanos now, MessageId id) {
  const auto it = messages_.find(Key(id));
  if (it == messages_.end()) return Violate(now, Name(id) + " is sent, but was never handed in");
  Require(now, !it->second.send_done, Name(id) + " was reported as sent twice");
  it->second.send_done = true;
}

void Checker::OnArrived(Nanos now, MessageId id, Bytes bytes) {
  const auto it = messages_.find(Key(id));
  if (it == messages_.end()) return Violate(now, Name(id) + " arrived, but was never handed in");
  Message& message = it->second;
  Require(now, !message.arrived, Name(id) + " arrived twice");
  message.arrived = true;
  ++arrived_;
  if (bytes.size() != message.size) {
    return Violate(now, Name(id) + " arrived with " + std::to_string(bytes.size()) +
                            " bytes instead of " + std::to_string(message.size));
  }
  const Bytes expected = contents_->Of(id, message.size);
  Require(now, bytes.empty() || std::memcmp(bytes.data(), expected.data(), bytes.size()) == 0,
          Name(id) + " arrived with other bytes than were sent");
}

void Checker::AtMost(Nanos now, int64_t value, int64_t limit, const char* what) {
  if (value > limit) {
    Violate(now, std::string(what) + " is " + std::to_string(value) + ", limit " +
                     std::to_string(limit));
  }
}

void Checker::Finish(Nanos now) {
  uint64_t missing = 0, unsent = 0;
  for (const auto& [key, message] : messages_) {
    missing += message.arrived ? 0 : 1;
    unsent += message.send_done ? 0 : 1;
  }
  Require(now, missing == 0,
          "liveness: " + std::to_string(missing) + " of " + std::to_string(messages_.size()) +
              " messages did not arrive");
  Require(now, unsent == 0,
          "liveness: " + std::to_string(unsent) + " sends were not reported as done");
}

}  // namespace uccl::sim
