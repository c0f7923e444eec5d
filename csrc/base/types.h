// Strong types shared by every room: time, identities and spans of bytes.
//
// Time is std::chrono::nanoseconds counted from an epoch the engine chooses; the core never reads a
// clock, so the epoch cancels out everywhere.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

namespace uccl {

using Nanos = std::chrono::nanoseconds;
inline constexpr Nanos kNever = Nanos::max();

// Index of a process of the job (jax.process_index()); a connection joins two processes.
enum class ProcessId : int32_t {};
// Index of a path of one connection: one value of the entropy the network hashes on.
enum class PathId : uint16_t {};

// The two ECN bits of an IP packet (RFC 3168 section 5). A sender that reacts to marks sends
// kCapable; a congested switch turns it into kCongested.
enum class Ecn : uint8_t { kNotCapable = 0, kCapable1 = 1, kCapable = 2, kCongested = 3 };

constexpr int32_t ToInt(ProcessId p) { return static_cast<int32_t>(p); }
constexpr uint16_t ToInt(PathId p) { return static_cast<uint16_t>(p); }

// Units of time by name, so that rooms without a clock need nothing of std::chrono either.
constexpr Nanos FromMicros(int64_t us) { return std::chrono::microseconds(us); }
constexpr Nanos FromMillis(int64_t ms) { return std::chrono::milliseconds(ms); }
constexpr int64_t ToMicros(Nanos t) { return t.count() / 1'000; }
constexpr int64_t ToMillis(Nanos t) { return t.count() / 1'000'000; }

using Bytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

}  // namespace uccl
