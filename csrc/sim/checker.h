// What must hold in every run, checked apart from the code under test: it sees what was handed in
// and what came out, and works out by itself what should have.
//
//   exactly once    every message handed in arrives once, and none that was not
//   byte equality   with Contents, which depends on the message only
//   liveness        all is done within a deadline after the faults end
//
// Bounded memory and the conservation of packets are in invariants.h, that of credit is in
// credit_checker.h; they report here.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/sim/contents.h"

namespace uccl::sim {

class Checker final {
 public:
  static constexpr size_t kMaxKept = 16;  // later violations are only counted

  explicit Checker(const Contents* contents) : contents_(contents) {}

  void OnHandedIn(Nanos now, MessageId id, uint64_t size);
  void OnSendDone(Nanos now, MessageId id);
  void OnArrived(Nanos now, MessageId id, Bytes bytes);
  // Adds a violation unless `holds`.
  void Require(Nanos now, bool holds, const std::string& what) {
    if (!holds) Violate(now, what);
  }
  void AtMost(Nanos now, int64_t value, int64_t limit, const char* what);
  // Of the end of a run: all that was handed in has arrived.
  void Finish(Nanos now);

  uint64_t violations() const { return count_; }
  const std::vector<std::string>& kept() const { return kept_; }
  uint64_t arrived_messages() const { return arrived_; }

 private:
  struct Message {
    uint64_t size = 0;
    bool arrived = false, send_done = false;
  };
  static uint64_t Key(MessageId id) { return uint64_t{id.flow} << 32 | id.segment; }
  static std::string Name(MessageId id) {
    return "flow " + std::to_string(id.flow) + " segment " + std::to_string(id.segment);
  }
  void Violate(Nanos now, const std::string& what);

  const Contents* const contents_;
  std::unordered_map<uint64_t, Message> messages_;
  uint64_t arrived_ = 0, count_ = 0;
  std::vector<std::string> kept_;
};

}  // namespace uccl::sim
