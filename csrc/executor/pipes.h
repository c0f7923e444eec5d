// The way from each rank of a communicator to each other one, as a GPU would go it: a kernel packs
// a piece of a message into memory that the proxies may send from, pushes a command, and the
// receiver's kernel waits for a counter and unpacks.
//
//   outbox of the sender, slot c % K --write_count--> inbox of the receiver, slot c % K
//   receiver has unpacked half a pipe   --count-->    credit of the sender
//
// A pipe carries the messages of one pair of ranks in the order in which both list them, cut into
// pieces that are numbered from 0 on, c. Nothing but that order has to agree: no rank knows where
// others keep their buffers, so sizes that only the two know (ragged exchanges, routed tokens) are
// as good as any. Messages larger than a pipe flow through it.
//
// Counters. One for each slot of the inbox, which grows by one with each piece that has landed
// there, since pieces may land in any order; and one credit for each peer, the pieces that it has
// unpacked. A slot is written again only when its last piece was unpacked, so the outbox slot is
// free as well by then. Credits come for half a pipe at once.
//
// Each piece begins with a header (size and tag of its message): ranks that disagree about a
// message get an error and no data.
//
// No deadlock, if all ranks walk through the same sequence of exchanges (what is listed in one
// Exchange is worked on at once): those who are in the earliest one of all have their peers there
// or behind it, and whoever is behind it has sent them everything; among themselves they send and
// unpack in turn, and nobody waits with a full inbox.
//
// Threads: one at a time calls Announce and Exchange; Fail and Needs anybody.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/base/types.h"
#include "csrc/fifo/slot.h"
#include "csrc/proxy/proxy.h"
#include "csrc/proxy/region.h"

namespace uccl::executor {

// What both ends of a message must agree about, besides its size.
struct Tag {
  uint64_t operation = 0;  // its number in the communicator
  uint32_t stage = 0, part = 0;
  bool operator==(const Tag&) const = default;
};

// `pack` fills the bytes [offset, offset + to.size()) of the message, in ascending order.
struct Outgoing {
  uint32_t peer = 0;
  Tag tag;
  uint64_t bytes = 0;
  std::function<Status(uint64_t offset, MutableBytes to)> pack;
};
// `unpack` takes them.
struct Incoming {
  uint32_t peer = 0;
  Tag tag;
  uint64_t bytes = 0;
  std::function<Status(uint64_t offset, Bytes from)> unpack;
};
// Of and to memory, by the kernels of rows.h.
Outgoing Send(uint32_t peer, const Tag& tag, Bytes data);
Incoming Receive(uint32_t peer, const Tag& tag, MutableBytes buffer);

// Where things lie in every rank's region; a function of what is equal on all ranks.
struct PipeLayout {
  uint32_t ranks = 0;
  uint32_t slots = 0;         // of one pipe
  uint64_t piece_bytes = 0;   // most payload of a piece
  uint64_t stride_bytes = 0;  // from one slot to the next

  static constexpr uint32_t kMaxSlots = 8;
  static constexpr uint64_t kHeaderBytes = 32;
  // `staging_bytes`: for the pieces that come in. kUnsupported for too many ranks.
  static Result<PipeLayout> Make(uint32_t ranks, uint64_t staging_bytes);

  uint64_t pieces(uint64_t bytes) const {  // an empty message is one
    return bytes == 0 ? 1 : (bytes + piece_bytes - 1) / piece_bytes;
  }
  uint64_t pipe_bytes() const { return slots * stride_bytes; }
  uint64_t outbox(uint32_t peer, uint64_t piece) const {
    return peer * pipe_bytes() + piece % slots * stride_bytes;
  }
  uint64_t inbox(uint32_t peer, uint64_t piece) const {
    return ranks * pipe_bytes() + outbox(peer, piece);
  }
  uint64_t region_bytes() const { return 2 * ranks * pipe_bytes(); }
  uint32_t landed(uint32_t peer, uint64_t piece) const {
    return peer * slots + static_cast<uint32_t>(piece % slots);
  }
  uint64_t landed_value(uint64_t piece) const { return piece / slots + 1; }
  uint32_t credit(uint32_t peer) const { return ranks * slots + peer; }
  uint32_t drained() const { return ranks * (slots + 1); }
  uint32_t counters() const { return drained() + 1; }
};

// A region with a FIFO of its own, for programs that place rows where their peers know them instead
// of sending messages (moe/exchange_program.h). Zeroed at first, as its counters.
struct SideRegion {
  std::shared_ptr<proxy::Region> region;
  fifo::FifoView fifo;
  std::byte* memory = nullptr;
  uint64_t bytes = 0;
  std::shared_ptr<void> user;  // what the programs that share it keep there
  uint64_t drains = 0;
};

class Pipes final {
 public:
  // Registers the region of `rank` under `key` and opens its FIFO. `processes` by rank.
  static Result<std::unique_ptr<Pipes>> Open(proxy::Proxy* proxy, uint64_t key,
                                             const std::vector<ProcessId>& processes, uint32_t rank,
                                             uint64_t staging_bytes);
  ~Pipes();  // Close, and the memory goes
  Pipes(const Pipes&) = delete;
  Pipes& operator=(const Pipes&) = delete;

  // Sends and receives all of these; messages with one peer go in the order in which they are
  // listed. Returns when every message to send is packed and every one to receive unpacked, or
  // with the failure of the region; then nothing is touched any more.
  Status Exchange(std::span<const Outgoing> out, std::span<const Incoming> in);

  // Before the first Exchange of an operation: how many pieces it will send to and receive from
  // each peer in all. Needs then says whether any of them is still to be sent to a peer or to land
  // here; once false, it stays so until the next operation.
  void Announce(std::span<const uint64_t> to_send, std::span<const uint64_t> to_receive);
  bool Needs(uint32_t peer) const;
  // Whether the Exchange that runs waits for pieces of that peer, or to send to it.
  bool Awaits(uint32_t peer) const;
  bool Owes(uint32_t peer) const;

  // That of `name`, of `bytes` and `num_counters` (and one more, the last, for Drain), which all
  // ranks open alike before they use it; made by the first call. It fails, drains and closes with
  // the pipes.
  Result<SideRegion*> Side(uint64_t name, uint64_t bytes, uint32_t num_counters);
  // Whether a program waits for that peer by other means than an Exchange: Needs and Awaits say so.
  void SetAwaits(uint32_t peer, bool awaits) {
    pipes_[peer].beside.store(awaits, std::memory_order_relaxed);
  }
  proxy::Proxy* proxy() const { return proxy_; }

  // Ends an Exchange that waits and every later one; the first cause stays. Likewise for waits in
  // regions beside.
  void Fail(const Status& cause);
  Status status() const { return region_->status(); }

  // Until the proxy has handed all that was ever sent to the engine, or `timeout`. Not beside an
  // Exchange.
  Status Drain(Nanos timeout);
  // The proxy lets go of the memory; puts that it has not sent are lost. Not beside an Exchange.
  void Close();

  const PipeLayout& layout() const { return layout_; }
  uint32_t rank() const { return region_->rank(); }
  uint32_t ranks() const { return region_->ranks(); }

 private:
  // In pieces. The atomics are written by the thread that exchanges, and read relaxed by others,
  // who only want to know how far it is.
  struct Pipe {
    std::atomic<uint64_t> sent{0}, send_goal{0}, receive_goal{0}, awaited{0}, owed{0};
    std::atomic<bool> beside{false};
    uint64_t received = 0, credited = 0;
  };
  template <class Message>
  struct Line;  // the messages of an exchange with one peer
  Pipes(proxy::Proxy* proxy, const PipeLayout& layout);
  Status OpenRegion(uint64_t key, const std::vector<ProcessId>& processes, uint32_t rank,
                    uint64_t bytes, uint32_t counters, SideRegion* opened);
  bool LandedBelow(uint32_t peer, uint64_t goal) const;
  bool CanSend(uint32_t peer) const;
  bool HasLanded(uint32_t peer) const;
  Status SendPiece(const Outgoing& message, uint64_t offset, uint64_t bytes);
  Status ReceivePiece(const Incoming& message, uint64_t offset, uint64_t bytes);

  proxy::Proxy* const proxy_;
  const PipeLayout layout_;
  std::byte* memory_ = nullptr;  // mapped for it
  std::shared_ptr<proxy::Region> region_;
  fifo::FifoView fifo_;
  std::vector<Pipe> pipes_;  // by peer
  uint64_t drains_ = 0;
  bool closed_ = false;
  std::mutex sides_mutex_;  // guards the map; what it holds belongs to the thread that exchanges
  std::map<uint64_t, std::unique_ptr<SideRegion>> sides_;
};

}  // namespace uccl::executor
