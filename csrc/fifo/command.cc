// The words of a fault. See command.h.
#include "csrc/fifo/command.h"

#include <array>
#include <charconv>
#include <string>

namespace uccl::fifo {
namespace {

std::string Hex(uint64_t value) {
  std::array<char, 16> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value, 16).ptr;
  return "0x" + std::string(digits.data(), end);
}

Status Refuse(const Command& c, const std::string& what) {
  return Status::Error(StatusCode::kInvalidArgument,
                       std::string("FIFO command ") + CommandKindName(c.kind) + ": " + what);
}

Status NotUsed(const Command& c, const char* field, uint64_t value) {
  return Refuse(c, std::string(field) + " is " + std::to_string(value) +
                       ", but this kind has none; leave it 0");
}

Status Beyond(const Command& c, const char* field, uint64_t value, uint64_t least, uint64_t most) {
  return Refuse(c, std::string(field) + " is " + std::to_string(value) + "; it must be " +
                       std::to_string(least) + " to " + std::to_string(most));
}

Status BadOffset(const Command& c, const char* field, uint64_t value) {
  return Refuse(c, std::string(field) + " is " + std::to_string(value) +
                       "; it must be a multiple of " + std::to_string(kGranuleBytes) +
                       " and at most " + std::to_string(kMaxOffset));
}

Status BadBytes(const Command& c) {
  if (!HasData(c.kind)) return NotUsed(c, "bytes", c.bytes);
  if (c.kind == CommandKind::kWrite) return Beyond(c, "bytes", c.bytes, 0, kMaxWriteBytes);
  Status status = Beyond(c, "bytes", c.bytes, 1, kMaxWriteCountBytes);
  status.detail += " (push a write and then a count instead)";
  return status;
}

}  // namespace

const char* CommandKindName(CommandKind kind) {
  switch (kind) {
    case CommandKind::kWrite:
      return "write";
    case CommandKind::kWriteCount:
      return "write_count";
    case CommandKind::kCount:
      return "count";
    case CommandKind::kQuiet:
      return "quiet";
    case CommandKind::kBarrier:
      return "barrier";
  }
  return "unknown";
}

Status FaultStatus(CommandFault fault, const Command& c) {
  const bool counts = c.kind == CommandKind::kWriteCount;
  switch (fault) {
    case CommandFault::kNone:
      return Status::Ok();
    case CommandFault::kKind:
      return Refuse(c, "kind " + std::to_string(static_cast<int>(c.kind)) +
                           " is none; those of command.h are 1 to 5");
    case CommandFault::kPeer:
      if (!HasPeer(c.kind)) return NotUsed(c, "peer", c.peer);
      return Beyond(c, "peer", c.peer, 0, kMaxPeer);
    case CommandFault::kChannel:
      return Beyond(c, "channel", c.channel, 0, kMaxChannel);
    case CommandFault::kBytes:
      return BadBytes(c);
    case CommandFault::kSource:
      if (!HasData(c.kind)) return NotUsed(c, "source_offset", c.source_offset);
      return BadOffset(c, "source_offset", c.source_offset);
    case CommandFault::kDestination:
      if (!HasData(c.kind)) return NotUsed(c, "destination_offset", c.destination_offset);
      return BadOffset(c, "destination_offset", c.destination_offset);
    case CommandFault::kCounter:
      if (!HasCounter(c.kind)) return NotUsed(c, "counter", c.counter);
      return Beyond(c, "counter", c.counter, 0, counts ? kMaxWriteCountCounter : kMaxCounter);
    case CommandFault::kAmount:
      if (!HasCounter(c.kind)) return NotUsed(c, "amount", c.amount);
      return Beyond(c, "amount", c.amount, 1, counts ? kMaxWriteCountAmount : kMaxAmount);
    case CommandFault::kReserved:
      return Refuse(c, "bits are set that this kind does not use");
  }
  return Refuse(c, "unknown fault");
}

Result<CommandWords> EncodeChecked(const Command& command) {
  CommandWords words;
  const CommandFault fault = EncodeCommand(command, &words);
  if (fault != CommandFault::kNone) return FaultStatus(fault, command);
  return words;
}

Result<Command> DecodeChecked(const CommandWords& words) {
  Command command;
  const CommandFault fault = DecodeCommand(words, &command);
  if (fault == CommandFault::kNone) return command;
  if (fault == CommandFault::kReserved || fault == CommandFault::kKind) {
    // The kind of the words, since `command` may not have been filled.
    command = Command{};
    command.kind = static_cast<CommandKind>(words.word0 >> 60 & 7);
  }
  Status status = FaultStatus(fault, command);
  status.detail += " (words " + Hex(words.word0) + " " + Hex(words.word1) + ")";
  return status;
}

}  // namespace uccl::fifo
