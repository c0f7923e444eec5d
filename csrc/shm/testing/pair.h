// Two ends of a link in one process, driven by hand: no thread, no clock.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/shm/link.h"

namespace uccl::shm::testing {

struct PairOptions {
  size_t ring_bytes = 16384;
  size_t eager_max_bytes = 1024;
  int64_t eager_buffer_bytes = 1 << 20;
  bool one_copy = true;
  Nanos peer_silence = FromMillis(1000);
};

// Equal on both ends: `name` picks the tag.
inline core::MessageInfo Info(uint64_t name, size_t size) {
  core::MessageInfo info;
  info.tag = {name * 0x9e3779b97f4a7c15ull, name};
  info.digest = name + 1;
  info.size_bytes = size;
  info.note[0] = static_cast<std::byte>(name);
  return info;
}

inline std::vector<std::byte> Pattern(size_t size, uint64_t seed) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>((i * 131 + seed * 17) >> 3);
  return bytes;
}

class Pair final {
 public:
  explicit Pair(const PairOptions& options = {}) {
    for (uint32_t i = 0; i < 2; ++i) {
      segments_.push_back(
          std::move(Segment::Make(options.ring_bytes, options.eager_buffer_bytes, 7 + i).value()));
    }
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t other = 1 - i;
      LinkOptions link;
      link.peer = ProcessId{static_cast<int32_t>(other)};
      link.session = 5;
      link.eager_max_bytes = options.eager_max_bytes;
      link.eager_buffer_bytes = options.eager_buffer_bytes;
      link.one_copy = options.one_copy;
      link.peer_silence = options.peer_silence;
      auto theirs = Segment::Open(getpid(), segments_[other]->fd(), 7 + other, i);
      EXPECT_TRUE(theirs.ok()) << theirs.status().ToString();
      links_.push_back(std::make_unique<Link>(
          link, std::move(theirs.value()), std::move(PeerProcess::Open(getpid()).value()),
          RingReader(segments_[i]->ring(other), segments_[i]->data(other),
                     segments_[i]->ring_bytes())));
    }
    got_.resize(2);
  }

  Link& operator[](size_t i) { return *links_[i]; }
  Segment& segment(size_t i) { return *segments_[i]; }
  // Everything delivered to end i so far.
  std::vector<core::Event>& events(size_t i) { return got_[i]; }
  std::optional<core::Event> EventOf(size_t i, uint64_t token) const {
    for (const core::Event& event : got_[i]) {
      if (event.token == token && event.kind != core::EventKind::kFailed) return event;
    }
    return std::nullopt;
  }
  size_t CountOf(size_t i, uint64_t token) const {
    size_t count = 0;
    for (const core::Event& event : got_[i]) {
      count += event.token == token && event.kind != core::EventKind::kFailed;
    }
    return count;
  }

  // One turn of end i, as a thread that polls does it.
  bool Turn(size_t i, bool copy = true) {
    Deliveries d;
    bool worked = links_[i]->Drain(&d);
    if (copy) {
      if (const auto piece = links_[i]->Claim()) {
        links_[i]->Finish(*piece, links_[i]->Copy(*piece), &d);
        worked = true;
      }
    }
    Take(i, &d);
    return worked;
  }
  void Take(size_t i, Deliveries* d) {
    for (core::Event& event : d->events) got_[i].push_back(std::move(event));
    for (const auto& freed : d->freed) freed();
  }
  void Run() {
    while (Turn(0) | Turn(1)) {
    }
  }
  void Check(size_t i, Nanos now) {
    Deliveries d;
    links_[i]->Check(now, &d);
    Take(i, &d);
  }

 private:
  std::vector<std::unique_ptr<Segment>> segments_;
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<std::vector<core::Event>> got_;
};

}  // namespace uccl::shm::testing
