// A network in memory between two ends, in virtual time: every direction of every path delays,
// jitters, drops, duplicates, corrupts or goes dark on its own. All chance comes from one seed.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/core/testing/random.h"

namespace uccl::core::testing {

// What one direction of one path does to datagrams. Jitter makes them overtake each other.
struct Link {
  Nanos delay = FromMicros(50);
  Nanos jitter{0};  // added, uniform in [0, jitter]
  double drop = 0, duplicate = 0, corrupt = 0;
  double mark = 0;  // ECN
  bool down = false;
};

struct Arrival {
  Nanos time{};
  uint64_t order = 0;  // of datagrams that arrive at the same time: as they were sent
  int to = 0;          // end 0 or 1
  PathId path{};
  std::vector<std::byte> bytes;
  Ecn ecn = Ecn::kCapable;
};

struct NetworkStats {
  uint64_t sent = 0, dropped = 0, duplicated = 0, corrupted = 0;
};

class Network final {
 public:
  Network(uint16_t num_paths, uint64_t seed) : random_(seed) {
    for (auto& direction : links_) direction.resize(num_paths);
  }

  // Of what end `from` sends.
  Link& link(int from, size_t path) { return links_[from][path]; }
  uint16_t num_paths() const { return static_cast<uint16_t>(links_[0].size()); }
  template <class Change>
  void ForEachLink(Change change) {
    for (auto& direction : links_) {
      for (Link& link : direction) change(link);
    }
  }
  // From now on nothing is lost, repeated or changed. Delays stay as they are.
  void Heal() {
    ForEachLink([](Link& link) {
      link.drop = link.duplicate = link.corrupt = link.mark = 0;
      link.down = false;
    });
  }
  // Sees every datagram before chance does, and swallows it by returning false.
  using Filter = std::function<bool(int from, PathId path, Bytes header, Bytes payload)>;
  void set_filter(Filter filter) { filter_ = std::move(filter); }

  void Send(Nanos now, int from, PathId path, Bytes header, Bytes payload) {
    ++stats_.sent;
    if (filter_ && !filter_(from, path, header, payload)) return;
    const Link& link = links_[from][ToInt(path)];
    const int copies = link.duplicate > 0 && random_.Chance(link.duplicate) ? 2 : 1;
    stats_.duplicated += static_cast<uint64_t>(copies - 1);
    for (int i = 0; i < copies; ++i) {
      if (link.down || (link.drop > 0 && random_.Chance(link.drop))) {
        ++stats_.dropped;
        continue;
      }
      Arrival arrival;
      arrival.bytes = FreeBuffer();
      arrival.bytes.insert(arrival.bytes.end(), header.begin(), header.end());
      arrival.bytes.insert(arrival.bytes.end(), payload.begin(), payload.end());
      if (link.corrupt > 0 && random_.Chance(link.corrupt)) Corrupt(&arrival.bytes);
      Nanos delay = link.delay;
      if (link.jitter > Nanos(0))
        delay += Nanos(random_.Below(static_cast<uint64_t>(link.jitter.count()) + 1));
      if (link.mark > 0 && random_.Chance(link.mark)) arrival.ecn = Ecn::kCongested;
      arrival.time = now + delay;
      arrival.to = 1 - from;
      arrival.path = path;
      Push(std::move(arrival));
    }
  }
  // A datagram out of nowhere (an attacker's, or one seen before).
  void Inject(Nanos time, int to, PathId path, Bytes bytes) {
    Arrival arrival;
    arrival.time = time;
    arrival.to = to;
    arrival.path = path;
    arrival.bytes.assign(bytes.begin(), bytes.end());
    Push(std::move(arrival));
  }

  Nanos NextArrival() const { return queue_.empty() ? kNever : queue_.front().time; }
  // Requires NextArrival() != kNever. Hand the result back with Recycle.
  Arrival Pop() {
    std::pop_heap(queue_.begin(), queue_.end(), Later);
    Arrival arrival = std::move(queue_.back());
    queue_.pop_back();
    return arrival;
  }
  void Recycle(Arrival arrival) { free_.push_back(std::move(arrival.bytes)); }
  const NetworkStats& stats() const { return stats_; }

 private:
  static bool Later(const Arrival& a, const Arrival& b) {
    return a.time != b.time ? a.time > b.time : a.order > b.order;
  }
  void Push(Arrival arrival) {
    arrival.order = next_order_++;
    queue_.push_back(std::move(arrival));
    std::push_heap(queue_.begin(), queue_.end(), Later);
  }
  std::vector<std::byte> FreeBuffer() {
    if (free_.empty()) return {};
    std::vector<std::byte> buffer = std::move(free_.back());
    free_.pop_back();
    buffer.clear();
    return buffer;
  }
  // What networks do: flip a bit, overwrite a run, cut the end off.
  void Corrupt(std::vector<std::byte>* bytes) {
    ++stats_.corrupted;
    if (bytes->empty()) return;
    switch (random_.Below(3)) {
      case 0:
        (*bytes)[random_.Below(bytes->size())] ^= static_cast<std::byte>(1u << random_.Below(8));
        break;
      case 1: {
        const size_t begin = random_.Below(bytes->size());
        const size_t end = std::min(bytes->size(), begin + 1 + random_.Below(64));
        for (size_t i = begin; i < end; ++i) (*bytes)[i] = static_cast<std::byte>(random_.Next());
        break;
      }
      default:
        bytes->resize(random_.Below(bytes->size()));
    }
  }

  Random random_;
  std::array<std::vector<Link>, 2> links_;
  Filter filter_;
  std::vector<Arrival> queue_;  // a heap
  uint64_t next_order_ = 0;
  std::vector<std::vector<std::byte>> free_;
  NetworkStats stats_;
};

}  // namespace uccl::core::testing
