// Pieces, slots and credits of pipes.h.
#include "csrc/executor/pipes.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "csrc/base/hash.h"
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
  for (const auto& [name, side] : sides_) {
    side->user.reset();  // it knows the memory
    munmap(side->memory, side->bytes);
  }
  if (memory_ != nullptr) munmap(memory_, layout_.region_bytes());
}

// Memory for a region, registered, and its FIFO. What is set in `opened` after an error is to be
// taken down all the same.
Status Pipes::OpenRegion(uint64_t key, const std::vector<ProcessId>& processes, uint32_t rank,
                         uint64_t bytes, uint32_t counters, SideRegion* opened) {
  // Pages are taken when they are first written: a pipe that is not used costs nothing.
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return Status::Error(StatusCode::kResourceExhausted,
                         "no memory for " + std::to_string(bytes) +
                             " bytes of staging; lower executor_staging_bytes "
                             "(JAX_UCCL_EXECUTOR_STAGING_BYTES), or dispatch fewer tokens at once");
  }
  opened->memory = static_cast<std::byte*>(memory);
  opened->bytes = bytes;
  proxy::RegionOptions options;
  options.key = key;
  options.rank = rank;
  options.processes = processes;
  options.memory = {opened->memory, bytes};
  options.num_counters = counters;
  options.fail_on_lost_peer = false;
  auto region = proxy_->RegisterRegion(std::move(options));
  if (!region.ok()) return region.status();
  opened->region = std::move(region.value());
  const Result<fifo::FifoView> fifo = proxy_->OpenFifo(opened->region, kFifoCapacity);
  if (!fifo.ok()) return fifo.status();
  opened->fifo = fifo.value();
  return Status::Ok();
}

Result<std::unique_ptr<Pipes>> Pipes::Open(proxy::Proxy* proxy, uint64_t key,
                                           const std::vector<ProcessId>& processes, uint32_t rank,
                                           uint64_t staging_bytes) {
  const Result<PipeLayout> layout =
      PipeLayout::Make(static_cast<uint32_t>(processes.size()), staging_bytes);
  if (!layout.ok()) return layout.status();
  std::unique_ptr<Pipes> pipes(new Pipes(proxy, layout.value()));
  SideRegion own;
  Status status = pipes->OpenRegion(key, processes, rank, layout.value().region_bytes(),
                                    layout.value().counters(), &own);
  pipes->memory_ = own.memory;
  pipes->region_ = std::move(own.region);
  pipes->fifo_ = own.fifo;
  if (!status.ok()) return status;
  return pipes;
}

Result<SideRegion*> Pipes::Side(uint64_t name, uint64_t bytes, uint32_t num_counters) {
  std::lock_guard lock(sides_mutex_);
  if (const auto it = sides_.find(name); it != sides_.end()) return it->second.get();
  std::vector<ProcessId> processes;
  for (uint32_t r = 0; r < ranks(); ++r) processes.push_back(region_->ProcessOf(r));
  auto side = std::make_unique<SideRegion>();
  const uint64_t key = HashWords({region_->key(), name});
  const Status status = OpenRegion(key, processes, rank(), std::max<uint64_t>(bytes, 1),
                                   num_counters + 1, side.get());
  if (!status.ok()) {
    if (side->region != nullptr) proxy_->UnregisterRegion(side->region);
    if (side->memory != nullptr) munmap(side->memory, side->bytes);
    return status;
  }
  // Fail takes the mutex after it has failed the pipes: one of the two sees the other.
  if (region_->has_failed()) side->region->Fail(region_->status());
  return sides_.emplace(name, std::move(side)).first->second.get();
}

void Pipes::Fail(const Status& cause) {
  region_->Fail(cause);
  std::lock_guard lock(sides_mutex_);
  for (const auto& [name, side] : sides_) side->region->Fail(cause);
}

void Pipes::Close() {
  if (region_ == nullptr || std::exchange(closed_, true)) return;
  for (const auto& [name, side] : sides_) proxy_->UnregisterRegion(side->region);
  proxy_->UnregisterRegion(region_);
}

Status Pipes::Drain(Nanos timeout) {
  const proxy::Proxy::Use use(proxy_);
  const auto drain = [&](const fifo::FifoView& fifo, proxy::Region* region, uint32_t counter,
                         uint64_t* drains) {
    // To itself: commands of a FIFO are carried out in their order.
    fifo::Command count;
    count.kind = fifo::CommandKind::kCount;
    count.channel = kCreditChannel;
    count.peer = rank();
    count.counter = counter;
    count.amount = 1;
    if (Status status = IssueOnHost(fifo, count); !status.ok()) return status;
    return region->Wait(counter, ++*drains, timeout);
  };
  for (const auto& [name, side] : sides_) {
    const auto last = static_cast<uint32_t>(side->region->counters().size() - 1);
    Status status = drain(side->fifo, side->region.get(), last, &side->drains);
    if (!status.ok()) return status;
  }
  return drain(fifo_, region_.get(), layout_.drained(), &drains_);
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
  if (pipe.beside.load(std::memory_order_relaxed)) return true;
  if (pipe.sent.load(std::memory_order_relaxed) < pipe.send_goal.load(std::memory_order_relaxed))
    return true;
  return !LandedBelow(peer, pipe.receive_goal.load(std::memory_order_relaxed));
}

bool Pipes::Awaits(uint32_t peer) const {
  if (pipes_[peer].beside.load(std::memory_order_relaxed)) return true;
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
