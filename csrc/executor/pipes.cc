// Pieces, slots and credits of pipes.h.
#include "csrc/executor/pipes.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "csrc/base/hash.h"
#include "csrc/cuda/exchange_kernel.h"
#include "csrc/executor/device_memory.h"
#include "csrc/executor/host_kernels.h"
#include "csrc/fifo/command.h"
#include "csrc/fifo/thread_group.h"

namespace uccl::executor {
namespace {

constexpr size_t kFifoCapacity = 256;
// Counts of this channel wait for no data.
constexpr uint32_t kDataChannel = 0, kCreditChannel = 1;

std::string Words(const cuda::PipeHeader& header) {
  return std::to_string(header.message_bytes) + " bytes in stage " +
         std::to_string(header.tag.stage) + ", part " + std::to_string(header.tag.part) +
         " of operation " + std::to_string(header.tag.operation);
}

// Relaxed: it only tells how far the exchange is.
uint64_t Look(const uint64_t& word) {
  return std::atomic_ref(const_cast<uint64_t&>(word)).load(std::memory_order_relaxed);
}

uint64_t SharedBytes(const PipeLayout& layout) {
  return sizeof(cuda::ExchangeFault) + layout.ranks * sizeof(cuda::PipeProgress);
}
uint64_t OwnBytes(const PipeLayout& layout) { return layout.ranks * sizeof(cuda::PipeState); }

DeviceMemory Zeros(uint64_t bytes) {
  return DeviceMemory(new std::byte[bytes](), std::default_delete<std::byte[]>());
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

Result<PipeLayout> MakePipeLayout(uint32_t ranks, uint64_t staging_bytes) {
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
  layout.slots = std::min(PipeLayout::kMaxSlots, kMostCounters / std::max(1u, ranks));
  const uint64_t share = staging_bytes / (uint64_t{std::max(1u, ranks)} * layout.slots);
  layout.stride_bytes =
      std::clamp(share / fifo::kGranuleBytes * fifo::kGranuleBytes, kLeastStride, kMostStride);
  layout.piece_bytes = layout.stride_bytes - PipeLayout::kHeaderBytes;
  return layout;
}

Pipes::Pipes(proxy::Proxy* proxy, const PipeLayout& layout, const cuda::Device* device)
    : proxy_(proxy), layout_(layout), device_(device), pipes_(layout.ranks) {}

Pipes::Pipes(const PipeLayout& layout, std::shared_ptr<proxy::Region> region,
             const fifo::FifoView& fifo)
    : Pipes(nullptr, layout, nullptr) {
  own_.memory = region->memory().data();
  own_.region = std::move(region);
  own_.fifo = fifo;
  SetKernelMemory(Zeros(SharedBytes(layout)), Zeros(OwnBytes(layout)));
}

Pipes::~Pipes() {
  if (proxy_ == nullptr) return;
  Close();
  for (const auto& [name, side] : sides_) side->user.reset();  // it knows the memory
}

// Memory for a region, registered, and its FIFO. What is set in `opened` after an error is to be
// taken down all the same.
Status Pipes::OpenRegion(uint64_t key, const std::vector<ProcessId>& processes, uint32_t rank,
                         uint64_t bytes, uint32_t counters, SideRegion* opened) {
  proxy::RegionOptions options;
  options.key = key;
  options.rank = rank;
  options.processes = processes;
  options.num_counters = counters;
  options.fail_on_lost_peer = false;
  if (device_ != nullptr) return OpenOnDevice(std::move(options), bytes, opened);
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
  opened->owned.emplace_back(opened->memory, [bytes](std::byte* m) { munmap(m, bytes); });
  options.memory = {opened->memory, bytes};
  auto region = proxy_->RegisterRegion(std::move(options));
  if (!region.ok()) return region.status();
  opened->region = std::move(region.value());
  const Result<fifo::FifoView> fifo = proxy_->OpenFifo(opened->region, kFifoCapacity);
  if (!fifo.ok()) return fifo.status();
  opened->fifo = fifo.value();
  return Status::Ok();
}

// Likewise, in pinned memory; what only kernels touch in memory of the device.
Status Pipes::OpenOnDevice(proxy::RegionOptions options, uint64_t bytes, SideRegion* opened) {
  constexpr uint64_t kLine = 64;
  const auto lines = [](uint64_t n) { return (n + kLine - 1) / kLine * kLine; };
  const uint64_t counters_at = lines(bytes);
  const uint64_t failed_at = counters_at + lines(options.num_counters * sizeof(uint64_t));
  const uint64_t control_at = failed_at + kLine;
  const uint64_t slots_at = control_at + lines(sizeof(fifo::FifoControl));
  Result<DeviceMemory> pinned =
      AllocatePinned(*device_, slots_at + kFifoCapacity * sizeof(fifo::Slot));
  if (!pinned.ok()) return pinned.status();
  // The two words of producers, apart.
  constexpr uint64_t kWordsApart = 256;
  Result<DeviceMemory> words = AllocateOn(*device_, 2 * kWordsApart);
  if (!words.ok()) return words.status();
  std::byte* const at = pinned.value().get();
  opened->memory = at;
  opened->owned = {pinned.value(), words.value()};
  options.memory = {at, bytes};
  options.counters = {reinterpret_cast<uint64_t*>(at + counters_at), options.num_counters};
  options.failed = reinterpret_cast<uint64_t*>(at + failed_at);
  auto region = proxy_->RegisterRegion(std::move(options));
  if (!region.ok()) return region.status();
  opened->region = std::move(region.value());
  auto* const control = new (at + control_at) fifo::FifoControl();
  auto* const slots = reinterpret_cast<fifo::Slot*>(at + slots_at);
  opened->fifo.slots = slots;
  opened->fifo.tail = &control->tail;
  opened->fifo.stopped = &control->stopped;
  opened->fifo.head = reinterpret_cast<uint64_t*>(words.value().get());
  opened->fifo.cached_tail = reinterpret_cast<uint64_t*>(words.value().get() + kWordsApart);
  opened->fifo.capacity = kFifoCapacity;
  return proxy_->OpenFifo(opened->region, {slots, kFifoCapacity}, control);
}

Result<std::unique_ptr<Pipes>> Pipes::Open(proxy::Proxy* proxy, uint64_t key,
                                           const std::vector<ProcessId>& processes, uint32_t rank,
                                           uint64_t staging_bytes, const cuda::Device* device) {
  const Result<PipeLayout> layout =
      MakePipeLayout(static_cast<uint32_t>(processes.size()), staging_bytes);
  if (!layout.ok()) return layout.status();
  std::unique_ptr<Pipes> pipes(new Pipes(proxy, layout.value(), device));
  if (Status status = pipes->MakeKernelMemory(); !status.ok()) return status;
  const Status status = pipes->OpenRegion(key, processes, rank, layout.value().region_bytes(),
                                          layout.value().counters(), &pipes->own_);
  if (!status.ok()) return status;
  return pipes;
}

// All zeros, as they begin. `shared` is what others look at.
void Pipes::SetKernelMemory(DeviceMemory shared, DeviceMemory own) {
  fault_ = reinterpret_cast<cuda::ExchangeFault*>(shared.get());
  progress_ = reinterpret_cast<cuda::PipeProgress*>(fault_ + 1);
  state_ = reinterpret_cast<cuda::PipeState*>(own.get());
  kernel_memory_ = {std::move(shared), std::move(own)};
}

// What the host looks at in pinned memory, the rest on the device.
Status Pipes::MakeKernelMemory() {
  if (device_ == nullptr) {
    SetKernelMemory(Zeros(SharedBytes(layout_)), Zeros(OwnBytes(layout_)));
    return Status::Ok();
  }
  auto shared = AllocatePinned(*device_, SharedBytes(layout_));
  if (!shared.ok()) return shared.status();
  auto own = AllocateOn(*device_, OwnBytes(layout_));
  if (!own.ok()) return own.status();
  SetKernelMemory(std::move(shared.value()), std::move(own.value()));
  return Status::Ok();
}

Result<SideRegion*> Pipes::Side(uint64_t name, uint64_t bytes, uint32_t num_counters) {
  std::lock_guard lock(sides_mutex_);
  if (const auto it = sides_.find(name); it != sides_.end()) return it->second.get();
  std::vector<ProcessId> processes;
  for (uint32_t r = 0; r < ranks(); ++r) processes.push_back(own_.region->ProcessOf(r));
  auto side = std::make_unique<SideRegion>();
  const uint64_t key = HashWords({own_.region->key(), name});
  const Status status = OpenRegion(key, processes, rank(), std::max<uint64_t>(bytes, 1),
                                   num_counters + 1, side.get());
  if (!status.ok()) {
    if (side->region != nullptr) proxy_->UnregisterRegion(side->region);
    return status;
  }
  // Fail takes the mutex after it has failed the pipes: one of the two sees the other.
  if (own_.region->has_failed()) side->region->Fail(own_.region->status());
  return sides_.emplace(name, std::move(side)).first->second.get();
}

void Pipes::Fail(const Status& cause) {
  own_.region->Fail(cause);
  std::lock_guard lock(sides_mutex_);
  for (const auto& [name, side] : sides_) side->region->Fail(cause);
}

void Pipes::Close() {
  if (own_.region == nullptr || std::exchange(closed_, true)) return;
  for (const auto& [name, side] : sides_) proxy_->UnregisterRegion(side->region);
  proxy_->UnregisterRegion(own_.region);
}

Status Pipes::Drain(Nanos timeout) {
  const proxy::Proxy::Use use(proxy_);
  const auto drain = [&](SideRegion* side) {
    // To itself: commands of a FIFO are carried out in their order.
    fifo::Command count;
    count.kind = fifo::CommandKind::kCount;
    count.channel = kCreditChannel;
    count.peer = rank();
    count.counter = side->last_counter();
    count.amount = 1;
    if (Status status = IssueOnHost(side->fifo, count); !status.ok()) return status;
    return side->region->Wait(count.counter, ++side->drains, timeout);
  };
  for (const auto& [name, side] : sides_) {
    if (Status status = drain(side.get()); !status.ok()) return status;
  }
  return drain(&own_);
}

void Pipes::Announce(std::span<const uint64_t> to_send, std::span<const uint64_t> to_receive) {
  for (uint32_t peer = 0; peer < ranks(); ++peer) {
    Pipe& pipe = pipes_[peer];
    pipe.send_goal.store(state_[peer].sent + to_send[peer], std::memory_order_relaxed);
    pipe.receive_goal.store(state_[peer].received + to_receive[peer], std::memory_order_relaxed);
  }
}

bool Pipes::Needs(uint32_t peer) const {
  const Pipe& pipe = pipes_[peer];
  if (pipe.beside.load(std::memory_order_relaxed)) return true;
  if (Look(progress_[peer].sent) < pipe.send_goal.load(std::memory_order_relaxed)) return true;
  return !LandedBelow(peer, pipe.receive_goal.load(std::memory_order_relaxed));
}

bool Pipes::Awaits(uint32_t peer) const {
  if (pipes_[peer].beside.load(std::memory_order_relaxed)) return true;
  return !LandedBelow(peer, Look(progress_[peer].receive_goal));
}

bool Pipes::Owes(uint32_t peer) const {
  return Look(progress_[peer].sent) < Look(progress_[peer].send_goal);
}

// Whether all pieces below `goal` have.
bool Pipes::LandedBelow(uint32_t peer, uint64_t goal) const {
  // The last lap tells: a slot's counter is there only when its earlier pieces were, too.
  for (uint64_t piece = goal - std::min<uint64_t>(goal, layout_.slots); piece < goal; ++piece) {
    if (own_.region->Read(layout_.landed(peer, piece)) < layout_.landed_value(piece)) return false;
  }
  return true;
}

bool Pipes::HasToReceive(uint32_t peer) const {
  return Look(progress_[peer].received) < Look(progress_[peer].receive_goal);
}

cuda::ExchangeParams Pipes::device_params() const {
  cuda::ExchangeParams p;
  p.layout = layout_;
  p.rank = rank();
  p.region = own_.memory;
  p.fifo = own_.fifo;
  p.counters = own_.region->counters().data();
  p.abort = own_.region->failed_word();
  p.data_channel = kDataChannel;
  p.credit_channel = kCreditChannel;
  p.state = state_;
  p.progress = progress_;
  p.fault = fault_;
  return p;
}

struct Pipes::Tables {
  // By message; one of both.
  std::vector<const Outgoing*> out;
  std::vector<const Incoming*> in;
  std::vector<cuda::PipeMessage> messages;
  std::vector<cuda::PipeLine> lines;
  cuda::ExchangeParams params;

  // Whether the next piece of a line that is not over could be packed; all can be unpacked.
  bool CanPack(const cuda::PipeLine& line) const {
    if (line.sends == 0) return true;
    const Outgoing& message = *out[line.first + line.next];
    const uint64_t piece = std::min(params.layout.piece_bytes, message.bytes - line.offset);
    return !message.ready || message.ready() >= line.offset + piece;
  }
};

void Pipes::MakeTables(std::span<const Outgoing> out, std::span<const Incoming> in,
                       Tables* tables) {
  std::map<uint32_t, std::vector<const Outgoing*>> sending;
  std::map<uint32_t, std::vector<const Incoming*>> receiving;
  for (const Outgoing& message : out) sending[message.peer].push_back(&message);
  for (const Incoming& message : in) receiving[message.peer].push_back(&message);
  const auto add = [&](const Outgoing* to, const Incoming* from) {
    tables->out.push_back(to);
    tables->in.push_back(from);
    const auto [bytes, tag] =
        to != nullptr ? std::pair(to->bytes, to->tag) : std::pair(from->bytes, from->tag);
    tables->messages.push_back({bytes, tag});
  };
  const auto line = [&](uint32_t peer, bool sends, size_t count) {
    const auto first = static_cast<uint32_t>(tables->messages.size());
    tables->lines.push_back({peer, sends ? 1u : 0u, first, static_cast<uint32_t>(count), 0, 0});
  };
  for (const auto& [peer, messages] : sending) {
    line(peer, true, messages.size());
    for (const Outgoing* m : messages) add(m, nullptr);
  }
  for (const auto& [peer, messages] : receiving) {
    line(peer, false, messages.size());
    for (const Incoming* m : messages) add(nullptr, m);
  }
  cuda::ExchangeParams& p = tables->params;
  p = device_params();
  p.messages = tables->messages.data();
  p.lines = tables->lines.data();
  p.line_count = static_cast<uint32_t>(tables->lines.size());
}

// Sleeps until a line can go on.
Status Pipes::WaitForAny(const Tables& tables) {
  std::vector<proxy::Region::Threshold> awaited;
  for (const cuda::PipeLine& line : tables.lines) {
    // What cannot be packed yet waits for what is received.
    if (line.next == line.count || !tables.CanPack(line)) continue;
    const cuda::PipeState& pipe = state_[line.peer];
    if (line.sends != 0) {
      awaited.push_back({layout_.credit(line.peer), pipe.sent - layout_.slots + 1});
    } else {
      awaited.push_back(
          {layout_.landed(line.peer, pipe.received), layout_.landed_value(pipe.received)});
    }
  }
  if (awaited.empty()) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "a message waits for what no other one of its exchange brings");
  }
  // Whoever watches deadlines fails the region.
  return own_.region->WaitAny(awaited, kNever);
}

Status Pipes::Trouble() const {
  if (own_.region->has_failed()) return own_.region->status();
  // Acquire: pairs with the release that follows the words of a mismatch.
  const auto trouble = static_cast<cuda::ExchangeTrouble>(
      std::atomic_ref(fault_->trouble).load(std::memory_order_acquire));
  if (trouble == cuda::ExchangeTrouble::kNone) return Status::Ok();
  if (trouble == cuda::ExchangeTrouble::kAborted)
    return Status::Error(StatusCode::kAborted, "the proxy takes no more commands");
  Status status =
      Status::Error(StatusCode::kProtocol, "rank " + std::to_string(fault_->peer) + " sends " +
                                               Words(fault_->got) + ", this one expects " +
                                               Words(fault_->wanted));
  status.process = ToInt(own_.region->ProcessOf(fault_->peer));
  return status;
}

// The next piece of a line, if it can go or has come.
Status Pipes::MovePiece(const Tables& tables, cuda::PipeLine* line, bool* moved) {
  namespace kernel = cuda::internal;
  if (kernel::IsOver(*line) || !tables.CanPack(*line)) return Status::Ok();
  const kernel::PieceJob job = kernel::BeginPiece(tables.params, *line);
  if (job.turn == kernel::Turn::kTrouble) return Trouble();
  if (job.turn != kernel::Turn::kWork) return Status::Ok();
  *moved = true;
  const MutableBytes payload(job.payload, job.bytes);
  Status done = line->sends != 0 ? tables.out[job.message]->pack(job.offset, payload)
                                 : tables.in[job.message]->unpack(job.offset, payload);
  if (!done.ok()) return done;
  return kernel::EndPiece(tables.params, line, job.bytes) ? Status::Ok() : Trouble();
}

Status Pipes::Exchange(std::span<const Outgoing> out, std::span<const Incoming> in) {
  Tables tables;
  MakeTables(out, in, &tables);
  // While commands may come, or somebody waits for what they bring about.
  std::optional<proxy::Proxy::Use> use;
  if (proxy_ != nullptr) use.emplace(proxy_);
  cuda::RewindLines(fifo::SoloGroup(), tables.params);
  const auto over = [](const cuda::PipeLine& line) { return cuda::internal::IsOver(line); };
  for (;;) {
    if (Status status = Trouble(); !status.ok()) return status;
    bool moved = false;
    for (cuda::PipeLine& line : tables.lines) {
      if (Status status = MovePiece(tables, &line, &moved); !status.ok())
        return own_.region->has_failed() ? own_.region->status() : status;
    }
    if (std::ranges::all_of(tables.lines, over)) return Status::Ok();
    if (moved) continue;
    if (Status status = WaitForAny(tables); !status.ok()) return status;
  }
}

}  // namespace uccl::executor
