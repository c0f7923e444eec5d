// The way from each rank of a communicator to each other one, as a GPU would go it: a kernel packs
// a piece of a message into memory that the proxies may send from, pushes a command, and the
// receiver's kernel waits for a counter and unpacks.
//
// The kernel is cuda/exchange.h, which copies messages that lie in memory. Here the thread that
// calls does the same, step by step, of messages that are packed and unpacked as they say, and
// where the kernel would have to wait the thread sleeps.
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
// unpack in turn, and nobody waits with a full inbox. A message that is made of others of the same
// Exchange (`Outgoing::ready`) holds back those behind it to the same peer, so all ranks list what
// such messages are made of before them.
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
#include "csrc/cuda/device.h"
#include "csrc/cuda/exchange.h"
#include "csrc/fifo/slot.h"
#include "csrc/proxy/proxy.h"
#include "csrc/proxy/region.h"

namespace uccl::executor {

using PipeLayout = cuda::PipeLayout;
// The operation of a tag is its number in the communicator.
using Tag = cuda::PipeTag;

// `pack` fills the bytes [offset, offset + to.size()) of the message, in ascending order. `ready`
// says how many it could fill by now, where they come with other messages of the same Exchange;
// null: all. It must reach `bytes` once all messages that the Exchange receives are unpacked.
struct Outgoing {
  uint32_t peer = 0;
  Tag tag;
  uint64_t bytes = 0;
  std::function<Status(uint64_t offset, MutableBytes to)> pack;
  std::function<uint64_t()> ready = nullptr;
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

// `staging_bytes`: for the pieces that come in. kUnsupported for too many ranks.
Result<PipeLayout> MakePipeLayout(uint32_t ranks, uint64_t staging_bytes);

// A region with a FIFO of its own, zeroed at first, as its counters. That of the pipes is one;
// others are for programs that place rows where their peers know them instead of sending messages
// (moe/exchange_program.h).
struct SideRegion {
  std::shared_ptr<proxy::Region> region;
  fifo::FifoView fifo;
  std::byte* memory = nullptr;
  std::vector<std::shared_ptr<std::byte>> owned;  // the memory, and what else the region lies in
  std::shared_ptr<void> user;                     // what the programs that share it keep there
  uint64_t drains = 0;

  // The counter that counts commands to this rank itself, behind all others of the FIFO.
  uint32_t last_counter() const { return static_cast<uint32_t>(region->counters().size() - 1); }
};

class Pipes final {
 public:
  // Registers the region of `rank` under `key` and opens its FIFO. `processes` by rank. With a
  // `device` all of it lies where its kernels and the host reach it, and the exchanges are launched
  // by others (device_params); only Fail, Close and what tells of progress may be called then.
  static Result<std::unique_ptr<Pipes>> Open(proxy::Proxy* proxy, uint64_t key,
                                             const std::vector<ProcessId>& processes, uint32_t rank,
                                             uint64_t staging_bytes,
                                             const cuda::Device* device = nullptr);
  // Over a region of at least the layout's bytes and counters and a FIFO that others serve, and
  // that outlive this.
  Pipes(const PipeLayout& layout, std::shared_ptr<proxy::Region> region,
        const fifo::FifoView& fifo);
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
  Status status() const { return own_.region->status(); }

  // Until the proxy has handed all that was ever sent to the engine, or `timeout`. Not beside an
  // Exchange.
  Status Drain(Nanos timeout);
  // The proxy lets go of the memory; puts that it has not sent are lost. Not beside an Exchange.
  void Close();

  // For the kernel of cuda/exchange.h, but for what is to be sent and received.
  cuda::ExchangeParams device_params() const;
  // Why an exchange ended before its time; Ok where none did.
  Status Trouble() const;
  // Whether the kernel that runs has still to receive from that peer; Owes, whether to send to it.
  bool HasToReceive(uint32_t peer) const;

  const SideRegion& own() const { return own_; }

  const PipeLayout& layout() const { return layout_; }
  uint32_t rank() const { return own_.region->rank(); }
  uint32_t ranks() const { return own_.region->ranks(); }

 private:
  // In pieces. Written by the thread that exchanges, and read relaxed by others, who only want to
  // know how far it is.
  struct Pipe {
    std::atomic<uint64_t> send_goal{0}, receive_goal{0};
    std::atomic<bool> beside{false};
  };
  Pipes(proxy::Proxy* proxy, const PipeLayout& layout, const cuda::Device* device);
  Status OpenRegion(uint64_t key, const std::vector<ProcessId>& processes, uint32_t rank,
                    uint64_t bytes, uint32_t counters, SideRegion* opened);
  void SetKernelMemory(std::shared_ptr<std::byte> shared, std::shared_ptr<std::byte> own);
  Status MakeKernelMemory();
  Status OpenOnDevice(proxy::RegionOptions options, uint64_t bytes, SideRegion* opened);
  bool LandedBelow(uint32_t peer, uint64_t goal) const;
  // What an exchange of these tables gets.
  struct Tables;
  void MakeTables(std::span<const Outgoing> out, std::span<const Incoming> in, Tables* tables);
  Status MovePiece(const Tables& tables, cuda::PipeLine* line, bool* moved);
  Status WaitForAny(const Tables& tables);

  proxy::Proxy* const proxy_;  // null where others serve the FIFO
  const PipeLayout layout_;
  const cuda::Device* const device_;
  SideRegion own_;
  std::vector<Pipe> pipes_;  // by peer
  // Of the kernel.
  std::vector<std::shared_ptr<std::byte>> kernel_memory_;
  cuda::PipeState* state_ = nullptr;        // by peer
  cuda::PipeProgress* progress_ = nullptr;  // likewise
  cuda::ExchangeFault* fault_ = nullptr;
  bool closed_ = false;
  std::mutex sides_mutex_;  // guards the map; what it holds belongs to the thread that exchanges
  std::map<uint64_t, std::unique_ptr<SideRegion>> sides_;
};

}  // namespace uccl::executor
