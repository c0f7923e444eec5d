// Pieces, slots and credits of pipes.h.
#include "csrc/executor/pipes.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "csrc/executor/host_kernels.h"
#include "csrc/fifo/command.h"

namespace uccl::executor {
namespace {

constexpr size_t kFifoCapacity = 256;
// Counts of this channel wait for no data.
constexpr uint32_t kDataChannel = 0, kCreditChannel = 1;

struct Header {
  uint64_t message_bytes = 0;
  Tag tag;
  uint64_t unused = 0;
};
static_assert(sizeof(Header) == PipeLayout::kHeaderBytes);

std::string Words(uint64_t bytes, const Tag& tag) {
  return std::to_string(bytes) + " bytes in stage " + std::to_string(tag.stage) + ", part " +
         std::to_string(tag.part) + " of operation " + std::to_string(tag.operation);
}

}  // namespace

Outgoing Send(uint32_t peer, const Tag& tag, Bytes data) {
  return {peer, tag, data.size(), [data](uint64_t offset, MutableBytes to) {
            return CopyOnHost(to, data.subspan(offset, to.size()));
          }};
}

Incoming Receive(uint32_t peer, const Tag& tag, MutableBytes buffer) {
  return {peer, tag, buffer.size(), [buffer](uint64_t offset, Bytes from) {
            return CopyOnHost(buffer.subspan(offset, from.size()), from);
          }};
}

Result<PipeLayout> PipeLayout::Make(uint32_t ranks, uint64_t staging_bytes) {
  // What a write_count can say.
  constexpr uint32_t kMostCounters = fifo::kMaxWriteCountCounter + 1;
  constexpr uint64_t kMostStride = fifo::kMaxWriteCountBytes, kLeastStride = 4096;
  if (ranks > kMostCounters) {
    return Status::Error(StatusCode::kUnsupported,
                         "executor=fifo takes groups of at most " + std::to_string(kMostCounters) +
                             " ranks, this one has " + std::to_string(ranks) +
                             "; use executor=direct (JAX_UCCL_EXECUTOR)");
  }
  PipeLayout layout;
  layout.ranks = ranks;
  layout.slots = std::min(kMaxSlots, kMostCounters / std::max(1u, ranks));
  const uint64_t share = staging_bytes / (uint64_t{std::max(1u, ranks)} * layout.slots);
  layout.stride_bytes =
      std::clamp(share / fifo::kGranuleBytes * fifo::kGranuleBytes, kLeastStride, kMostStride);
  layout.piece_bytes = layout.stride_bytes - kHeaderBytes;
  return layout;
}

Pipes::Pipes(proxy::Proxy* proxy, const PipeLayout& layout)
    : proxy_(proxy), layout_(layout), pipes_(layout.ranks) {}

Pipes::~Pipes() {
  Close();
  if (memory_ != nullptr) munmap(memory_, layout_.region_bytes());
}

Result<std::unique_ptr<Pipes>> Pipes::Open(proxy::Proxy* proxy, uint64_t key,
                                           const std::vector<ProcessId>& processes, uint32_t rank,
                                           uint64_t staging_bytes) {
  const Result<PipeLayout> layout =
      PipeLayout::Make(static_cast<uint32_t>(processes.size()), staging_bytes);
  if (!layout.ok()) return layout.status();
  std::unique_ptr<Pipes> pipes(new Pipes(proxy, layout.value()));
  // Pages are taken when they are first written: a pipe that is not used costs nothing.
  const uint64_t bytes = layout.value().region_bytes();
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return Status::Error(StatusCode::kResourceExhausted,
                         "no memory for " + std::to_string(bytes) +
                             " bytes of staging; lower executor_staging_bytes "
                             "(JAX_UCCL_EXECUTOR_STAGING_BYTES)");
  }
  pipes->memory_ = static_cast<std::byte*>(memory);
  proxy::RegionOptions options;
  options.key = key;
  options.rank = rank;
  options.processes = processes;
  options.memory = {pipes->memory_, bytes};
  options.num_counters = layout.value().counters();
  options.fail_on_lost_peer = false;
  auto region = proxy->RegisterRegion(std::move(options));
  if (!region.ok()) return region.status();
  pipes->region_ = std::move(region.value());
  const Result<fifo::FifoView> fifo = proxy->OpenFifo(pipes->region_, kFifoCapacity);
  if (!fifo.ok()) return fifo.status();
  pipes->fifo_ = fifo.value();
  return pipes;
}

void Pipes::Close() {
  if (region_ == nullptr || std::exchange(closed_, true)) return;
  proxy_->UnregisterRegion(region_);
}

Status Pipes::Drain(Nanos timeout) {
  const proxy::Proxy::Use use(proxy_);
  // To itself: commands of a FIFO are carried out in their order.
  fifo::Command count;
  count.kind = fifo::CommandKind::kCount;
  count.channel = kCreditChannel;
  count.peer = rank();
  count.counter = layout_.drained();
  count.amount = 1;
  if (Status status = IssueOnHost(fifo_, count); !status.ok()) return status;
  return region_->Wait(layout_.drained(), ++drains_, timeout);
}

void Pipes::Announce(std::span<const uint64_t> to_send, std::span<const uint64_t> to_receive) {
  for (uint32_t peer = 0; peer < ranks(); ++peer) {
    Pipe& pipe = pipes_[peer];
    pipe.send_goal.store(pipe.sent.load(std::memory_order_relaxed) + to_send[peer],
                         std::memory_order_relaxed);
    pipe.receive_goal.store(pipe.received + to_receive[peer], std::memory_order_relaxed);
  }
}

bool Pipes::Needs(uint32_t peer) const {
  const Pipe& pipe = pipes_[peer];
  if (pipe.sent.load(std::memory_order_relaxed) < pipe.send_goal.load(std::memory_order_relaxed))
    return true;
  return !LandedBelow(peer, pipe.receive_goal.load(std::memory_order_relaxed));
}

bool Pipes::Awaits(uint32_t peer) const {
  return !LandedBelow(peer, pipes_[peer].awaited.load(std::memory_order_relaxed));
}

bool Pipes::Owes(uint32_t peer) const {
  return pipes_[peer].sent.load(std::memory_order_relaxed) <
         pipes_[peer].owed.load(std::memory_order_relaxed);
}

// Whether all pieces below `goal` have.
bool Pipes::LandedBelow(uint32_t peer, uint64_t goal) const {
  // The last lap tells: a slot's counter is there only when its earlier pieces were, too.
  for (uint64_t piece = goal - std::min<uint64_t>(goal, layout_.slots); piece < goal; ++piece) {
    if (region_->Read(layout_.landed(peer, piece)) < layout_.landed_value(piece)) return false;
  }
  return true;
}

bool Pipes::CanSend(uint32_t peer) const {
  return pipes_[peer].sent.load(std::memory_order_relaxed) - region_->Read(layout_.credit(peer)) <
         layout_.slots;
}

bool Pipes::HasLanded(uint32_t peer) const {
  const uint64_t piece = pipes_[peer].received;
  return region_->Read(layout_.landed(peer, piece)) >= layout_.landed_value(piece);
}

Status Pipes::SendPiece(const Outgoing& message, uint64_t offset, uint64_t bytes) {
  const uint64_t piece = pipes_[message.peer].sent.load(std::memory_order_relaxed);
  fifo::Command write;
  write.kind = fifo::CommandKind::kWriteCount;
  write.channel = kDataChannel;
  write.peer = message.peer;
  write.bytes = PipeLayout::kHeaderBytes + bytes;
  write.source_offset = layout_.outbox(message.peer, piece);
  write.destination_offset = layout_.inbox(rank(), piece);
  write.counter = layout_.landed(rank(), piece);
  write.amount = 1;
  std::byte* const slot = memory_ + write.source_offset;
  const Header header{message.bytes, message.tag};
  std::memcpy(slot, &header, sizeof(header));
  Status packed = message.pack(offset, MutableBytes(slot + sizeof(header), bytes));
  if (!packed.ok()) return packed;
  Status issued = IssueOnHost(fifo_, write);
  if (issued.ok()) pipes_[message.peer].sent.store(piece + 1, std::memory_order_relaxed);
  return issued;
}

Status Pipes::ReceivePiece(const Incoming& message, uint64_t offset, uint64_t bytes) {
  Pipe& pipe = pipes_[message.peer];
  const uint64_t piece = pipe.received++;
  const std::byte* const slot = memory_ + layout_.inbox(message.peer, piece);
  Header header;
  std::memcpy(&header, slot, sizeof(header));
  if (header.message_bytes != message.bytes || header.tag != message.tag) {
    Status status = Status::Error(
        StatusCode::kProtocol, "rank " + std::to_string(message.peer) + " sends " +
                                   Words(header.message_bytes, header.tag) + ", this one expects " +
                                   Words(message.bytes, message.tag));
    status.process = ToInt(region_->ProcessOf(message.peer));
    return status;
  }
  Status unpacked = message.unpack(offset, Bytes(slot + sizeof(header), bytes));
  if (!unpacked.ok()) return unpacked;
  const uint64_t owed = pipe.received - pipe.credited;
  if (owed < (layout_.slots + 1) / 2) return Status::Ok();
  pipe.credited = pipe.received;
  fifo::Command credit;
  credit.kind = fifo::CommandKind::kCount;
  credit.channel = kCreditChannel;
  credit.peer = message.peer;
  credit.counter = layout_.credit(rank());
  credit.amount = static_cast<uint32_t>(owed);
  return IssueOnHost(fifo_, credit);
}

template <class Message>
struct Pipes::Line {
  std::vector<const Message*> messages;
  size_t next = 0;
  uint64_t offset = 0;  // within the message

  bool over() const { return next == messages.size(); }
  const Message& front() const { return *messages[next]; }
  uint64_t Pieces(const PipeLayout& layout) const {
    uint64_t pieces = 0;
    for (const Message* message : messages) pieces += layout.pieces(message->bytes);
    return pieces;
  }
  uint64_t PieceBytes(const PipeLayout& layout) const {
    return std::min(layout.piece_bytes, front().bytes - offset);
  }
  void Advance(uint64_t bytes) {
    offset += bytes;
    if (offset < front().bytes) return;
    offset = 0;
    ++next;
  }
};

Status Pipes::Exchange(std::span<const Outgoing> out, std::span<const Incoming> in) {
  std::map<uint32_t, Line<Outgoing>> sending;
  std::map<uint32_t, Line<Incoming>> receiving;
  for (const Outgoing& message : out) sending[message.peer].messages.push_back(&message);
  for (const Incoming& message : in) receiving[message.peer].messages.push_back(&message);
  for (const auto& [peer, line] : sending) {
    pipes_[peer].owed.store(
        pipes_[peer].sent.load(std::memory_order_relaxed) + line.Pieces(layout_),
        std::memory_order_relaxed);
  }
  for (const auto& [peer, line] : receiving) {
    pipes_[peer].awaited.store(pipes_[peer].received + line.Pieces(layout_),
                               std::memory_order_relaxed);
  }
  // While commands may come, or somebody waits for what they bring about.
  const proxy::Proxy::Use use(proxy_);
  const auto over = [](const auto& item) { return item.second.over(); };
  std::vector<proxy::Region::Threshold> awaited;
  for (;;) {
    bool worked = false;
    if (region_->has_failed()) return region_->status();
    for (auto& [peer, line] : sending) {
      while (!line.over() && CanSend(peer)) {
        const uint64_t bytes = line.PieceBytes(layout_);
        if (Status status = SendPiece(line.front(), line.offset, bytes); !status.ok())
          return region_->has_failed() ? region_->status() : status;
        line.Advance(bytes);
        worked = true;
      }
    }
    for (auto& [peer, line] : receiving) {
      while (!line.over() && HasLanded(peer)) {
        const uint64_t bytes = line.PieceBytes(layout_);
        if (Status status = ReceivePiece(line.front(), line.offset, bytes); !status.ok())
          return region_->has_failed() ? region_->status() : status;
        line.Advance(bytes);
        worked = true;
      }
    }
    if (std::ranges::all_of(sending, over) && std::ranges::all_of(receiving, over))
      return Status::Ok();
    if (worked) continue;
    awaited.clear();
    for (const auto& [peer, line] : sending) {
      if (line.over()) continue;
      awaited.push_back({layout_.credit(peer),
                         pipes_[peer].sent.load(std::memory_order_relaxed) - layout_.slots + 1});
    }
    for (const auto& [peer, line] : receiving) {
      const uint64_t piece = pipes_[peer].received;
      if (line.over()) continue;
      awaited.push_back({layout_.landed(peer, piece), layout_.landed_value(piece)});
    }
    // Whoever watches deadlines fails the region.
    if (Status status = region_->WaitAny(awaited, kNever); !status.ok()) return status;
  }
}

}  // namespace uccl::executor
