// One FIFO as its proxy thread sees it: commands taken but not carried out, and what of it is in
// flight.
//
// Owned by the entry of its region and touched by its proxy thread alone, but for the fields that
// say otherwise.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>

#include "csrc/fifo/host_fifo.h"
#include "csrc/proxy/entry.h"

namespace uccl::proxy {

class ProxyThread;

// What all FIFOs have under way to one process. Relaxed: a limit, and a hint.
struct PeerLoad {
  std::atomic<int64_t> in_flight{0};  // puts without acknowledgement
  std::atomic<bool> lost{false};
};

class Fifo final {
 public:
  Fifo(std::shared_ptr<Entry> entry_in, uint16_t number_in, ProxyThread* thread_in,
       std::span<const fifo::Slot> slots, fifo::FifoControl* control)
      : entry(std::move(entry_in)),
        number(number_in),
        thread(thread_in),
        consumer(slots, control) {}

  // Puts of one channel to one rank. Numbers wrap around.
  struct Stream {
    uint32_t next = 0;         // number of the next put
    uint32_t acked = 0;        // all below are acknowledged
    uint32_t requested = 0;    // an acknowledgement up to here was asked for
    PeerLoad* load = nullptr;  // Carrier::LoadOf
  };
  static uint32_t StreamKey(uint32_t peer, uint32_t channel) { return peer << 6 | channel; }

  // Fixed from the start.
  const std::shared_ptr<Entry> entry;
  const uint16_t number;
  ProxyThread* const thread;

  fifo::FifoConsumer consumer;
  std::array<fifo::CommandWords, 64> batch;
  size_t batch_size = 0, batch_next = 0;

  std::unordered_map<uint32_t, Stream> streams;  // by StreamKey
  int64_t in_flight = 0;                         // puts of all streams without acknowledgement
  enum class Barrier : uint8_t { kNone, kUnderWay, kPassed };
  Barrier barrier = Barrier::kNone;
  bool stalled = false;  // the command at batch_next waits
  bool stopped = false;
};

}  // namespace uccl::proxy
