// The kernel of exchange.h, for any group of threads. A group works on its lines in turn, a piece
// at a time, and waits only while none of them can go on.
//
// Groups of one launch may wait for each other by way of the peers, so all of them must run at the
// same time: there are no more of them than a device surely holds.
#pragma once

#include "csrc/cuda/clock.h"
#include "csrc/cuda/exchange.h"
#include "csrc/cuda/memory.h"
#include "csrc/fifo/fifo_device.h"
#include "csrc/fifo/native_memory.h"
#include "csrc/fifo/thread_group.h"

namespace uccl::cuda {
namespace internal {

UCCL_HOST_DEVICE inline bool IsOver(const PipeLine& line) { return line.next == line.count; }

// Whether the next piece of a line that is not over can go or has come.
//
// Acquire, system. Of what has landed: pairs with the release with which the proxy raises the
// counter after the bytes are in place; the group's barrier hands it on. Of a credit: the peer's
// reads of the slot, and so the proxy's of ours, happen before we write either again.
UCCL_HOST_DEVICE inline bool IsReady(const ExchangeParams& p, const PipeLine& line) {
  const fifo::NativeMemory memory;
  const PipeState& pipe = p.state[line.peer];
  if (line.sends != 0) {
    return pipe.sent - memory.LoadAcquireSystem(p.counters + p.layout.credit(line.peer)) <
           p.layout.slots;
  }
  return memory.LoadAcquireSystem(p.counters + p.layout.landed(line.peer, pipe.received)) >=
         p.layout.landed_value(pipe.received);
}

// By the leader, of the first trouble of all; relaxed claims, whoever has the first one writes.
UCCL_HOST_DEVICE inline void NoteTrouble(const ExchangeParams& p, ExchangeTrouble trouble,
                                         uint32_t peer, const PipeHeader& got,
                                         const PipeHeader& wanted) {
  const fifo::NativeMemory memory;
  if (memory.FetchAddDevice(&p.fault->claims, 1) != 0) return;
  p.fault->peer = peer;
  p.fault->got = got;
  p.fault->wanted = wanted;
  memory.StoreReleaseSystem(&p.fault->trouble, static_cast<uint64_t>(trouble));
}

enum class Turn : uint32_t { kWait, kWork, kOver, kTrouble };

// What the lines first, first + step, ... of a group can do now.
UCCL_HOST_DEVICE inline Turn LookAt(const ExchangeParams& p, uint32_t first, uint32_t step) {
  const fifo::NativeMemory memory;
  bool over = true;
  for (uint32_t i = first; i < p.line_count; i += step) {
    if (IsOver(p.lines[i])) continue;
    if (IsReady(p, p.lines[i])) return Turn::kWork;
    over = false;
  }
  if (over) return Turn::kOver;
  const bool stopped =
      memory.LoadAcquireSystem(p.abort) != 0 || memory.LoadAcquireSystem(&p.fault->trouble) != 0;
  return stopped ? Turn::kTrouble : Turn::kWait;
}

struct CanGoOn {
  const ExchangeParams& p;
  uint32_t first, step;
  Turn& turn;

  UCCL_HOST_DEVICE bool operator()() const {
    turn = LookAt(p, first, step);
    return turn != Turn::kWait;
  }
};

// The bytes [offset, offset + bytes) of a message, and their place in a slot: what is to be packed
// there or unpacked from there.
struct PieceJob {
  uint32_t message = 0;
  uint64_t offset = 0, bytes = 0;
  std::byte* payload = nullptr;
  Turn turn = Turn::kWait;
};

// The leader's part before the bytes are moved.
UCCL_HOST_DEVICE inline PieceJob BeginPiece(const ExchangeParams& p, const PipeLine& line) {
  PieceJob job;
  if (IsOver(line) || !IsReady(p, line)) return job;
  const uint32_t index = line.first + line.next;
  const PipeMessage& message = p.messages[index];
  const PipeState& pipe = p.state[line.peer];
  const uint64_t left = message.bytes - line.offset;
  job.message = index;
  job.offset = line.offset;
  job.bytes = left < p.layout.piece_bytes ? left : p.layout.piece_bytes;
  job.turn = Turn::kWork;
  const PipeHeader wanted{message.bytes, message.tag, 0};
  if (line.sends != 0) {
    std::byte* const slot = p.region + p.layout.outbox(line.peer, pipe.sent);
    *reinterpret_cast<PipeHeader*>(slot) = wanted;
    job.payload = slot + PipeLayout::kHeaderBytes;
    return job;
  }
  std::byte* const slot = p.region + p.layout.inbox(line.peer, pipe.received);
  const PipeHeader got = *reinterpret_cast<const PipeHeader*>(slot);
  if (got.message_bytes != wanted.message_bytes || got.tag.operation != wanted.tag.operation ||
      got.tag.stage != wanted.tag.stage || got.tag.part != wanted.tag.part) {
    NoteTrouble(p, ExchangeTrouble::kMismatch, line.peer, got, wanted);
    job.turn = Turn::kTrouble;
    return job;
  }
  job.payload = slot + PipeLayout::kHeaderBytes;
  return job;
}

// The leader's part after it; false where the FIFO takes no more commands. The release of the push
// covers what other threads of the group have packed or read: they came to its barrier before.
UCCL_HOST_DEVICE inline bool EndPiece(const ExchangeParams& p, PipeLine* line, uint64_t bytes) {
  const fifo::NativeMemory memory;
  PipeState& pipe = p.state[line->peer];
  fifo::Command command;
  command.peer = line->peer;
  bool push = true;
  if (line->sends != 0) {
    command.kind = fifo::CommandKind::kWriteCount;
    command.channel = p.data_channel;
    command.bytes = PipeLayout::kHeaderBytes + bytes;
    command.source_offset = p.layout.outbox(line->peer, pipe.sent);
    command.destination_offset = p.layout.inbox(p.rank, pipe.sent);
    command.counter = p.layout.landed(p.rank, pipe.sent);
    command.amount = 1;
  } else {
    // Release, system: whoever looks how far this is sees no more than is true.
    memory.StoreReleaseSystem(&p.progress[line->peer].received, ++pipe.received);
    const uint64_t owed = pipe.received - pipe.credited;
    push = owed >= (p.layout.slots + 1) / 2;
    if (push) pipe.credited = pipe.received;
    command.kind = fifo::CommandKind::kCount;
    command.channel = p.credit_channel;
    command.counter = p.layout.credit(p.rank);
    command.amount = static_cast<uint32_t>(owed);
  }
  if (push && fifo::Push(p.fifo, command) != fifo::PushOutcome::kPushed) {
    NoteTrouble(p, ExchangeTrouble::kAborted, line->peer, {}, {});
    return false;
  }
  if (line->sends != 0) memory.StoreReleaseSystem(&p.progress[line->peer].sent, ++pipe.sent);
  line->offset += bytes;
  if (line->offset >= p.messages[line->first + line->next].bytes) {
    line->offset = 0;
    ++line->next;
  }
  return true;
}

// A piece of each line of the group that can go on; false when the exchange is to end.
template <class Group>
UCCL_HOST_DEVICE bool TakeTurn(Group& group, const ExchangeParams& p, uint64_t started) {
  for (uint32_t i = group.index(); i < p.line_count; i += group.count()) {
    PieceJob job;
    if (group.IsLeader()) job = BeginPiece(p, p.lines[i]);
    job = group.Broadcast(job);
    if (job.turn == Turn::kTrouble) return false;
    if (job.turn != Turn::kWork) continue;
    std::byte* const data = p.addresses[job.message] + job.offset;
    const bool packs = p.lines[i].sends != 0;
    CopyBytes(group, packs ? data : job.payload, packs ? job.payload : data, job.bytes);
    group.Sync();
    uint32_t go_on = 1;
    if (group.IsLeader()) {
      if (!EndPiece(p, &p.lines[i], job.bytes)) go_on = 0;
      if (p.waited != nullptr && !packs && IsOver(p.lines[i]))
        p.waited[p.lines[i].peer] = Ns32(ClockNs() - started);
    }
    if (group.Broadcast(go_on) == 0) return false;
  }
  return true;
}

}  // namespace internal

// Lines of the group back to their beginnings, and what they will have done at their ends; by its
// leader.
template <class Group>
UCCL_HOST_DEVICE void RewindLines(const Group& group, const ExchangeParams& p) {
  const fifo::NativeMemory memory;
  for (uint32_t i = group.index(); i < p.line_count; i += group.count()) {
    PipeLine& line = p.lines[i];
    line.next = 0;
    line.offset = 0;
    uint64_t pieces = 0;
    for (uint32_t m = line.first; m < line.first + line.count; ++m)
      pieces += p.layout.pieces(p.messages[m].bytes);
    PipeProgress& progress = p.progress[line.peer];
    const PipeState& pipe = p.state[line.peer];
    if (line.sends != 0) {
      memory.StoreReleaseSystem(&progress.send_goal, pipe.sent + pieces);
    } else {
      memory.StoreReleaseSystem(&progress.receive_goal, pipe.received + pieces);
    }
  }
}

template <class Group>
UCCL_HOST_DEVICE void Exchange(Group& group, const ExchangeParams& p) {
  using internal::Turn;
  const fifo::NativeMemory memory;
  const uint64_t started = p.waited == nullptr ? 0 : ClockNs();
  if (group.IsLeader()) RewindLines(group, p);
  for (;;) {
    Turn turn = Turn::kWait;
    if (group.IsLeader()) {
      memory.WaitUntil(internal::CanGoOn{p, group.index(), group.count(), turn});
    }
    turn = group.Broadcast(turn);
    if (turn == Turn::kOver) return;
    if (turn == Turn::kTrouble) {
      if (group.IsLeader()) internal::NoteTrouble(p, ExchangeTrouble::kAborted, 0, {}, {});
      return;
    }
    if (!internal::TakeTurn(group, p, started)) return;
  }
}

}  // namespace uccl::cuda
