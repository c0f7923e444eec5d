// The 128-bit command that a kernel writes into a FIFO and a proxy carries out: its meaning, its
// bits, and the range-checked way between the two. docs/fifo_and_proxy.md argues the widths.
//
// Two words of 64 bits, each with a phase bit of its own at the top (slot.h), so that the consumer
// can tell of each word whether it is fresh and nobody relies on 16 bytes becoming visible at once.
//
//   word 0   63 phase | 62..60 kind | 59..54 channel | 53..34 peer | 33 destination bit 31 | 32..0
//   by
//            kind
//   word 1   63 phase | 62..32 destination bits 30..0 | 31..0 source       (write, write_count)
//            63 phase | 62..32 zero                   | 31..0 amount       (count, quiet, barrier)
//
//   bits 32..0 of word 0
//     write                  32 zero | 31..0 bytes
//     write_count            32..29 amount - 1 | 28..16 counter | 15..0 bytes - 1
//     count, quiet, barrier  32..24 zero | 23..0 counter
//
// Offsets count granules of 16 bytes from the start of the symmetric region: 2^32 of them, 64 GiB.
// Bytes are exact. A kind of 0 is no command, so zeroed memory never decodes.
//
// Pure, host and device; what makes a Status of a fault is for the host.
#pragma once

#include <cstdint>

#include "csrc/base/status.h"
#include "csrc/fifo/host_device.h"

namespace uccl::fifo {

// Completion is always a counter: one at the peer for data, one here for quiet and barrier.
enum class CommandKind : uint8_t {
  kWrite = 1,       // bytes from source (here) to destination (at the peer)
  kWriteCount = 2,  // the same; when exactly these bytes have landed, the peer's counter grows
  kCount = 3,       // the peer's counter grows when every earlier write of this channel has landed
  kQuiet = 4,       // this rank's counter grows when all that was pushed to this FIFO before has
                    // landed and was counted at the peers
  kBarrier = 5,     // likewise, and every rank has pushed its barrier of this channel
};

struct Command {
  CommandKind kind = CommandKind::kWrite;
  uint32_t peer = 0;     // rank within the communicator; not of quiet and barrier
  uint32_t channel = 0;  // commands of different channels do not wait for each other
  uint64_t bytes = 0;
  uint64_t source_offset = 0, destination_offset = 0;  // bytes, multiples of kGranuleBytes
  uint32_t counter = 0;                                // index, of all kinds but write
  uint32_t amount = 0;                                 // at least 1 where there is a counter

  friend UCCL_HOST_DEVICE constexpr bool operator==(const Command& a, const Command& b) {
    return a.kind == b.kind && a.peer == b.peer && a.channel == b.channel && a.bytes == b.bytes &&
           a.source_offset == b.source_offset && a.destination_offset == b.destination_offset &&
           a.counter == b.counter && a.amount == b.amount;
  }
};

// Bit 63 of both is left clear by the encoder; whoever writes the slot sets the phase there.
struct CommandWords {
  uint64_t word0 = 0, word1 = 0;

  friend UCCL_HOST_DEVICE constexpr bool operator==(const CommandWords& a, const CommandWords& b) {
    return a.word0 == b.word0 && a.word1 == b.word1;
  }
};

inline constexpr uint64_t kGranuleBytes = 16;
inline constexpr uint64_t kPhaseBit = uint64_t{1} << 63;

// Limits, all inclusive.
inline constexpr uint32_t kMaxPeer = (1u << 20) - 1;
inline constexpr uint32_t kMaxChannel = (1u << 6) - 1;
inline constexpr uint64_t kMaxOffset = ((uint64_t{1} << 32) - 1) * kGranuleBytes;
inline constexpr uint64_t kMaxWriteBytes = (uint64_t{1} << 32) - 1;
inline constexpr uint64_t kMaxWriteCountBytes = uint64_t{1} << 16;
inline constexpr uint32_t kMaxWriteCountCounter = (1u << 13) - 1;
inline constexpr uint32_t kMaxWriteCountAmount = 1u << 4;
inline constexpr uint32_t kMaxCounter = (1u << 24) - 1;
inline constexpr uint32_t kMaxAmount = 0xffffffffu;

// What does not fit, or cannot be.
enum class CommandFault : uint8_t {
  kNone = 0,
  kKind,
  kPeer,
  kChannel,
  kBytes,
  kSource,
  kDestination,
  kCounter,
  kAmount,
  kReserved,  // decoding: bits set that this kind does not use
};

UCCL_HOST_DEVICE constexpr bool HasData(CommandKind kind) {
  return kind == CommandKind::kWrite || kind == CommandKind::kWriteCount;
}
UCCL_HOST_DEVICE constexpr bool HasPeer(CommandKind kind) {
  return HasData(kind) || kind == CommandKind::kCount;
}
UCCL_HOST_DEVICE constexpr bool HasCounter(CommandKind kind) { return kind != CommandKind::kWrite; }

UCCL_HOST_DEVICE constexpr bool FitsOffset(uint64_t offset) {
  return offset <= kMaxOffset && offset % kGranuleBytes == 0;
}

// The first field that is out of range. Fields that the kind does not use must be 0: a command that
// carries more than it will do is a bug of its writer.
UCCL_HOST_DEVICE constexpr CommandFault CheckCommand(const Command& c) {
  if (c.kind < CommandKind::kWrite || c.kind > CommandKind::kBarrier) return CommandFault::kKind;
  if (c.peer > (HasPeer(c.kind) ? kMaxPeer : 0)) return CommandFault::kPeer;
  if (c.channel > kMaxChannel) return CommandFault::kChannel;
  if (HasData(c.kind)) {
    const bool counts = c.kind == CommandKind::kWriteCount;
    if (counts ? c.bytes - 1 >= kMaxWriteCountBytes : c.bytes > kMaxWriteBytes) {
      return CommandFault::kBytes;
    }
    if (!FitsOffset(c.source_offset)) return CommandFault::kSource;
    if (!FitsOffset(c.destination_offset)) return CommandFault::kDestination;
    if (c.counter > (counts ? kMaxWriteCountCounter : 0)) return CommandFault::kCounter;
    if (counts ? c.amount - 1 >= kMaxWriteCountAmount : c.amount != 0) return CommandFault::kAmount;
    return CommandFault::kNone;
  }
  if (c.bytes != 0) return CommandFault::kBytes;
  if (c.source_offset != 0) return CommandFault::kSource;
  if (c.destination_offset != 0) return CommandFault::kDestination;
  if (c.counter > kMaxCounter) return CommandFault::kCounter;
  return c.amount == 0 ? CommandFault::kAmount : CommandFault::kNone;
}

// `words` is untouched after a fault.
[[nodiscard]] UCCL_HOST_DEVICE constexpr CommandFault EncodeCommand(const Command& c,
                                                                    CommandWords* words) {
  const CommandFault fault = CheckCommand(c);
  if (fault != CommandFault::kNone) return fault;
  uint64_t word0 = static_cast<uint64_t>(c.kind) << 60 | static_cast<uint64_t>(c.channel) << 54 |
                   static_cast<uint64_t>(c.peer) << 34;
  uint64_t word1 = 0;
  if (HasData(c.kind)) {
    const uint64_t destination = c.destination_offset / kGranuleBytes;
    word0 |= (destination >> 31) << 33;
    word1 = (destination & 0x7fffffffu) << 32 | c.source_offset / kGranuleBytes;
    word0 |= c.kind == CommandKind::kWrite
                 ? c.bytes
                 : static_cast<uint64_t>(c.amount - 1) << 29 |
                       static_cast<uint64_t>(c.counter) << 16 | (c.bytes - 1);
  } else {
    word0 |= c.counter;
    word1 = c.amount;
  }
  words->word0 = word0;
  words->word1 = word1;
  return CommandFault::kNone;
}

// The inverse; the phase bits are ignored. Words that no encoder wrote are a fault, and `command`
// is then unspecified.
[[nodiscard]] UCCL_HOST_DEVICE constexpr CommandFault DecodeCommand(const CommandWords& words,
                                                                    Command* command) {
  const uint64_t word0 = words.word0 & ~kPhaseBit, word1 = words.word1 & ~kPhaseBit;
  Command c;
  c.kind = static_cast<CommandKind>(word0 >> 60);
  c.channel = static_cast<uint32_t>(word0 >> 54 & kMaxChannel);
  c.peer = static_cast<uint32_t>(word0 >> 34 & kMaxPeer);
  const uint64_t top = word0 >> 33 & 1, low = word0 & 0x1ffffffffu;
  if (HasData(c.kind)) {
    c.destination_offset = (top << 31 | word1 >> 32) * kGranuleBytes;
    c.source_offset = (word1 & 0xffffffffu) * kGranuleBytes;
    if (c.kind == CommandKind::kWrite) {
      if (low >> 32 != 0) return CommandFault::kReserved;
      c.bytes = low;
    } else {
      c.bytes = (low & 0xffff) + 1;
      c.counter = static_cast<uint32_t>(low >> 16 & kMaxWriteCountCounter);
      c.amount = static_cast<uint32_t>(low >> 29) + 1;
    }
  } else {
    c.counter = static_cast<uint32_t>(low & kMaxCounter);
    c.amount = static_cast<uint32_t>(word1 & 0xffffffffu);
    // An unknown kind is reported as such, not by its bits.
    if (c.kind >= CommandKind::kCount && c.kind <= CommandKind::kBarrier &&
        (top != 0 || low >> 24 != 0 || word1 >> 32 != 0)) {
      return CommandFault::kReserved;
    }
  }
  *command = c;
  return CheckCommand(c);
}

const char* CommandKindName(CommandKind kind);  // "write_count"; "unknown" for another number
// kInvalidArgument that names the field, its value and the limit.
Status FaultStatus(CommandFault fault, const Command& command);
Result<CommandWords> EncodeChecked(const Command& command);
Result<Command> DecodeChecked(const CommandWords& words);

}  // namespace uccl::fifo
