// What identifies one message of a connection, and the events a connection reports about it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "csrc/base/status.h"
#include "csrc/base/types.h"

namespace uccl::core {

// 128-bit name of a message, equal on both ends: a hash of the operation's matching key and of the
// part of the operation. Messages with distinct tags never wait for each other. A tag names one
// message per direction at a time: it may be used again when both ends are done with it, and never
// after a Cancel. (Were two messages with one tag under way, packets that overtake each other could
// pair them either way.)
struct MessageTag {
  uint64_t hi = 0, lo = 0;
  bool operator==(const MessageTag&) const = default;
};
// One-sided puts: messages whose receiver posts nothing until it hears that they have come
// (kArrived). They have half of the tag to themselves; the tags of other messages are hashes, of
// which one in 2^64 falls into it.
inline constexpr uint64_t kPutTagHi = 0x7075740000000001ull;
constexpr bool IsPut(const MessageTag& tag) { return tag.hi == kPutTagHi; }

struct MessageTagHash {
  // Mixes well (SplitMix64's finalizer), because a tag need not be a good hash itself.
  size_t operator()(const MessageTag& t) const {
    uint64_t z = t.hi * 0xbf58476d1ce4e5b9ull + t.lo;
    z = (z ^ (z >> 31)) * 0x94d049bb133111ebull;
    return z ^ (z >> 29);
  }
};

// Travels with the message. `digest` and the size must be equal on both ends, else the operation
// fails with both sides shown and no byte is placed. `note` is opaque here (the collectives layer
// puts words in it).
struct MessageInfo {
  MessageTag tag;
  uint64_t digest = 0;
  uint64_t size_bytes = 0;
  std::array<std::byte, 32> note{};
};

enum class EventKind : uint8_t {
  kSendDone,  // the buffer of a send may be reused: every byte is acknowledged (or was copied)
  kRecvDone,  // every byte is in place
  kMismatch,  // token's receive (or send) met a message with another digest or size; `remote` is
              // the other side
  kControl,   // a control message arrived, `control` holds it
  kArrived,   // a put (IsPut) that no receive was posted for began to come, or asks to; `remote`
              // describes it. Once for each. It is kept as any early message until a receive with
              // its tag, digest and size is posted or the tag is discarded
  kFailed,  // the connection is dead, `status` says why; every outstanding token was reported first
};

// Most large messages that may be outstanding in either direction of a connection. What a peer
// announces beyond is a violation, so that it cannot fill this end's memory with announcements.
inline constexpr size_t kMaxOpenMessages = 65'536;

struct Event {
  EventKind kind{};
  uint64_t token = 0;
  Status status;        // of kSendDone / kRecvDone / kFailed
  MessageInfo remote;   // of kMismatch, kRecvDone and kArrived: as the sender describes it
  std::string control;  // of kControl
  uint64_t address =
      0;  // of kRecvDone, where the message was lent instead of received (shm/link.h)
};

}  // namespace uccl::core
