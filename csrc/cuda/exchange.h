// Messages between ranks through pipes: rings of slots in registered memory, which a proxy copies
// from one rank to the other. What the pipes are is told in executor/pipes.h; this is the kernel
// that packs, pushes commands, waits for counters and unpacks. It is exchange_kernel.h; this header
// needs no CUDA.
//
// Nothing of an exchange is told by the host when it runs: how far each pipe is stands in memory
// that the kernel keeps, so the same launch may be repeated, for instance by a CUDA graph.
#pragma once

#include <cstddef>
#include <cstdint>

#include "csrc/cuda/stream.h"
#include "csrc/fifo/host_device.h"
#include "csrc/fifo/slot.h"

namespace uccl::cuda {

// Where things lie in every rank's region; a function of what is equal on all ranks.
struct PipeLayout {
  uint32_t ranks = 0;
  uint32_t slots = 0;         // of one pipe
  uint64_t piece_bytes = 0;   // most payload of a piece
  uint64_t stride_bytes = 0;  // from one slot to the next

  static constexpr uint32_t kMaxSlots = 8;
  static constexpr uint64_t kHeaderBytes = 32;

  UCCL_HOST_DEVICE constexpr uint64_t pieces(uint64_t bytes) const {  // an empty message is one
    return bytes == 0 ? 1 : (bytes + piece_bytes - 1) / piece_bytes;
  }
  UCCL_HOST_DEVICE constexpr uint64_t pipe_bytes() const { return slots * stride_bytes; }
  UCCL_HOST_DEVICE constexpr uint64_t outbox(uint32_t peer, uint64_t piece) const {
    return peer * pipe_bytes() + piece % slots * stride_bytes;
  }
  UCCL_HOST_DEVICE constexpr uint64_t inbox(uint32_t peer, uint64_t piece) const {
    return ranks * pipe_bytes() + outbox(peer, piece);
  }
  UCCL_HOST_DEVICE constexpr uint64_t region_bytes() const { return 2 * ranks * pipe_bytes(); }
  UCCL_HOST_DEVICE constexpr uint32_t landed(uint32_t peer, uint64_t piece) const {
    return peer * slots + static_cast<uint32_t>(piece % slots);
  }
  UCCL_HOST_DEVICE constexpr uint64_t landed_value(uint64_t piece) const {
    return piece / slots + 1;
  }
  UCCL_HOST_DEVICE constexpr uint32_t credit(uint32_t peer) const { return ranks * slots + peer; }
  UCCL_HOST_DEVICE constexpr uint32_t drained() const { return ranks * (slots + 1); }
  UCCL_HOST_DEVICE constexpr uint32_t counters() const { return drained() + 1; }
};

// What both ends of a message must agree about, besides its size.
struct PipeTag {
  uint64_t operation = 0;  // what they mean by it is theirs
  uint32_t stage = 0, part = 0;
  bool operator==(const PipeTag&) const = default;
};

// Before the payload of each piece.
struct PipeHeader {
  uint64_t message_bytes = 0;
  PipeTag tag;
  uint64_t unused = 0;
};
static_assert(sizeof(PipeHeader) == PipeLayout::kHeaderBytes);

struct PipeMessage {
  uint64_t bytes = 0;
  PipeTag tag;
};

// The messages [first, first + count) of an exchange go to one peer, or come from it, in this
// order. There is at most one such line for each peer and direction.
struct PipeLine {
  uint32_t peer = 0;
  uint32_t sends = 0;  // 0: they come
  uint32_t first = 0, count = 0;
  // How far it is; kept by the kernel, which begins with zeros.
  uint32_t next = 0;    // message
  uint64_t offset = 0;  // within it
};

// In pieces since the pipes were opened, zero at first; kept by the kernel, and nobody else's.
struct PipeState {
  uint64_t sent = 0, received = 0, credited = 0;
};
// For others who look how far it is: what it has done, and what it will have done when the exchange
// is over. The kernel only writes these, each word at once.
struct PipeProgress {
  uint64_t sent = 0, send_goal = 0, received = 0, receive_goal = 0;
};

enum class ExchangeTrouble : uint64_t {
  kNone = 0,
  kAborted,   // the abort word was set, or the FIFO takes no more commands
  kMismatch,  // `got` came from `peer` instead of `wanted`
};
// What ended the first exchange that did not end well; zeroed before, and kept.
struct ExchangeFault {
  uint64_t claims = 0;
  uint64_t trouble = 0;  // ExchangeTrouble; stored last
  uint32_t peer = 0;
  PipeHeader got, wanted;
};

struct ExchangeParams {
  PipeLayout layout;
  uint32_t rank = 0;
  // Of this rank: its region, the FIFO and counters of it, and the word that ends all waits.
  std::byte* region = nullptr;
  fifo::FifoView fifo;
  const uint64_t* counters = nullptr;
  const uint64_t* abort = nullptr;
  uint32_t data_channel = 0, credit_channel = 1;
  PipeState* state = nullptr;        // by peer
  PipeProgress* progress = nullptr;  // likewise; pinned
  ExchangeFault* fault = nullptr;
  // Where each message lies: memory that the kernel reads or writes.
  std::byte* const* addresses = nullptr;
  const PipeMessage* messages = nullptr;
  PipeLine* lines = nullptr;
  uint32_t line_count = 0;
  // [ranks]: nanoseconds from the start of the kernel until all that a peer sends was unpacked; the
  // largest also stands for more. Null: not told. Of peers without such a line nothing.
  uint32_t* waited = nullptr;
};

// kInvalidArgument where a kernel could not run with these; no memory is read.
Status CheckParams(const ExchangeParams& params);
// Puts the kernel on the stream. When it is over, every message was packed or unpacked, or `fault`
// says why not. Peers must be able to run theirs at the same time.
Status LaunchExchange(const ExchangeParams& params, Stream stream);

}  // namespace uccl::cuda
