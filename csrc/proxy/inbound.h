// The receiving side of one region: what to do with each put that arrives and each that has landed.
//
// Decides and counts, but sends and receives nothing itself: the proxy does what the answers say.
// So every hostile note can be tried without an engine.
//
// Threads: any; one mutex.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/base/types.h"
#include "csrc/proxy/barrier.h"
#include "csrc/proxy/ordering.h"
#include "csrc/proxy/put_note.h"
#include "csrc/proxy/region.h"

namespace uccl::proxy {

class Inbound final {
 public:
  // `window` as in Ordering.
  Inbound(std::shared_ptr<Region> region, uint32_t window);

  // To be done outside of the mutex, in this order.
  struct Answer {
    bool raised = false;             // counters: their waiters are to be woken
    std::vector<PutNote> notes;      // to send, without data; source and destination are set
    std::optional<PutNote> our_ack;  // an acknowledgement for a FIFO of this rank
    std::optional<uint8_t> passed;   // the barrier of this channel is over
  };
  struct Verdict {
    enum class What : uint8_t {
      kReceive,  // into `buffer`; OnLanded follows (at once for a put without data)
      kDrop,     // a duplicate: its bytes must go nowhere
      kDone,     // it had no data and is dealt with
    };
    What what = What::kDone;
    MutableBytes buffer;
    Answer answer;
  };
  // A put for this rank came from `process`. kProtocol when no honest peer sends it.
  Result<Verdict> OnArrival(ProcessId process, const PutNote& note, uint64_t size_bytes);
  // The bytes of a put for which OnArrival said kReceive are in place.
  Answer OnLanded(const PutNote& note);

  // This rank has come to the barrier of a channel.
  Answer EnterBarrier(uint8_t channel);

  uint64_t duplicates() const;

 private:
  struct StreamKey {
    uint32_t source;
    uint16_t fifo;
    uint8_t channel;
    bool operator==(const StreamKey&) const = default;
  };
  struct HashKey {
    size_t operator()(const StreamKey& k) const {
      return (uint64_t{k.source} << 24 | uint64_t{k.fifo} << 8 | k.channel) * 0x9e3779b97f4a7c15ull;
    }
  };
  void Land(const PutNote& note, Ordering* stream, Answer* answer);
  void Acknowledge(const PutNote& note, Ordering* stream, Answer* answer) const;
  void Tell(uint8_t channel, const std::vector<Barrier::Note>& said, Answer* answer) const;

  const std::shared_ptr<Region> region_;
  const uint32_t window_;
  mutable std::mutex mutex_;  // guards all below
  std::unordered_map<StreamKey, Ordering, HashKey> streams_;
  std::unordered_map<uint8_t, Barrier> barriers_;
  uint64_t duplicates_ = 0;
};

}  // namespace uccl::proxy
