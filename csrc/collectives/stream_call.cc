// Preparation, launches and watch of stream_call.h.
#include "csrc/collectives/stream_call.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "csrc/collectives/failure_text.h"
#include "csrc/cuda/rows.h"
#include "csrc/fifo/command.h"

namespace uccl::coll {
namespace {

// The buffers of an execution.
enum Buffer : uint32_t { kInput, kOutput, kScratch, kBuffers };
static_assert(kBuffers <= cuda::kMaxBuffers);

cuda::Place PlaceOf(const Slice& slice) {
  switch (slice.kind) {
    case BufferKind::kInput:
      return {slice.offset, kInput};
    case BufferKind::kOutput:
      return {slice.offset, kOutput};
    case BufferKind::kScratch:
    case BufferKind::kZero:
      break;
  }
  return {slice.offset, kScratch};
}

std::byte* At(std::byte* const* buffers, const cuda::Place& place) {
  return buffers[place.buffer] + place.offset;
}

// One row of bytes.
cuda::MoveRowsParams OneRow(std::byte* to, uint64_t bytes) {
  cuda::MoveRowsParams p;
  p.from_rows = p.to_rows = p.moves = 1;
  p.from_stride = p.to_stride = p.channels = bytes;
  p.to = to;
  return p;
}

}  // namespace

StreamCall::StreamCall(Options options, const cuda::Device* device, proxy::Proxy* proxy)
    : options_(std::move(options)), device_(device), proxy_(proxy) {}

StreamCall::~StreamCall() { Close(); }

Result<std::shared_ptr<StreamCall>> StreamCall::Open(Options options, const cuda::Device* device,
                                                     proxy::Proxy* proxy) {
  std::shared_ptr<StreamCall> call(new StreamCall(std::move(options), device, proxy));
  Status status = call->Prepare();
  if (!status.ok()) {
    status.op = call->options_.label;
    return status;
  }
  return call;
}

Status StreamCall::Prepare() {
  const Schedule& schedule = *options_.schedule;
  const bool reduces = std::ranges::any_of(
      schedule.stages, [](const Stage& stage) { return !stage.reductions.empty(); });
  types_ = KernelFor(options_.dtype, options_.reduction);
  if (reduces && (!types_ || HasWideResults(schedule))) {
    return Status::Error(StatusCode::kUnsupported,
                         std::string("no kernel for ") + ReduceOpName(options_.reduction) + " of " +
                             DTypeName(options_.dtype) +
                             "; convert the operand, or run this on CPU devices");
  }
  const Result<int> ordinal = device_->current();
  if (!ordinal.ok()) return ordinal.status();
  ordinal_ = ordinal.value();
  std::vector<ProcessId> processes;
  for (const Member& m : options_.comm->members) processes.push_back(m.process);
  // While the call is open, because a graph that repeats it tells the host nothing.
  use_ = std::make_unique<proxy::Proxy::Use>(proxy_);
  auto pipes = executor::Pipes::Open(proxy_, options_.key, processes, options_.rank,
                                     options_.staging_bytes, device_);
  if (!pipes.ok()) return pipes.status();
  pipes_ = std::move(pipes.value());
  if (Status s = MakeWords(); !s.ok()) return s;
  if (options_.program != nullptr) {
    const executor::StreamProgram::Lane lane{pipes_.get(), device_, options_.tag, begun_};
    if (Status s = options_.program->Open(lane); !s.ok()) return s;
  }
  return MakeTables();
}

Status StreamCall::MakeWords() {
  Result<executor::DeviceMemory> words = executor::AllocatePinned(*device_, 2 * sizeof(uint64_t));
  if (!words.ok()) return words.status();
  pinned_ = std::move(words.value());
  begun_ = reinterpret_cast<uint64_t*>(pinned_.get());
  fault_ = begun_ + 1;
  *fault_ = cuda::kNoFault;
  return Status::Ok();
}

Status StreamCall::MakeTables() {
  const Schedule& schedule = *options_.schedule;
  Tables tables;
  if (options_.program != nullptr) return Upload(tables);
  if (options_.ragged) {
    AddRagged(&tables);
  } else {
    for (uint32_t i = 0; i < schedule.stages.size(); ++i) AddStage(i, &tables);
  }
  return Upload(tables);
}

void StreamCall::AddLines(const std::vector<Transfer>& transfers, bool sends, uint32_t stage,
                          Tables* tables) {
  std::map<uint32_t, std::vector<const Transfer*>> by_peer;
  for (const Transfer& t : transfers) by_peer[sends ? t.to : t.from].push_back(&t);
  for (const auto& [peer, list] : by_peer) {
    cuda::PipeLine line;
    line.peer = peer;
    line.sends = sends ? 1 : 0;
    line.first = static_cast<uint32_t>(tables->messages.size());
    line.count = static_cast<uint32_t>(list.size());
    tables->lines.push_back(line);
    for (const Transfer* t : list) {
      tables->messages.push_back({t->slice.bytes, {options_.tag, stage, t->part}});
      tables->places.push_back(PlaceOf(t->slice));
    }
  }
}

void StreamCall::AddStage(uint32_t index, Tables* tables) {
  const Stage& stage = options_.schedule->stages[index];
  Step step;
  for (const coll::Copy& c : stage.copies) {
    if (c.to.bytes == 0) continue;
    step.copies.push_back(
        {PlaceOf(c.from), PlaceOf(c.to), c.to.bytes, c.from.kind == BufferKind::kZero});
  }
  step.first_line = static_cast<uint32_t>(tables->lines.size());
  AddLines(stage.sends, true, index, tables);
  AddLines(stage.receives, false, index, tables);
  step.lines = static_cast<uint32_t>(tables->lines.size()) - step.first_line;
  for (const Reduction& r : stage.reductions) {
    if (r.to[0].bytes == 0) continue;
    Fold fold;
    fold.first = tables->inputs.size();
    fold.inputs = r.from.size();
    for (const Slice& s : r.from) tables->inputs.push_back(PlaceOf(s));
    fold.bytes = r.to[0].bytes;
    for (const Slice& s : r.to) fold.to.push_back(PlaceOf(s));
    step.folds.push_back(std::move(fold));
  }
  steps_.push_back(std::move(step));
}

// A message to each member and one from each, this one too: its sizes are as little known.
void StreamCall::AddRagged(Tables* tables) {
  const auto ranks = static_cast<uint32_t>(options_.comm->members.size());
  for (uint32_t i = 0; i < 2 * ranks; ++i) {
    tables->messages.push_back({0, {options_.tag, 0, 0}});
    tables->places.push_back({0, kInput});  // overwritten when it is known
    tables->lines.push_back({i % ranks, i < ranks ? 1u : 0u, i, 1, 0, 0});
  }
  Step step;
  step.lines = 2 * ranks;
  steps_.push_back(std::move(step));
}

// All tables into one piece of memory.
Status StreamCall::Upload(const Tables& given) {
  std::vector<cuda::Place> places = given.places;
  places.insert(places.end(), given.inputs.begin(), given.inputs.end());
  message_count_ = given.messages.size();
  address_count_ = places.size();
  uint64_t end = 0;
  const auto place = [&](uint64_t bytes) {
    const uint64_t at = end;
    end = (end + bytes + 255) / 256 * 256;
    return at;
  };
  const uint64_t places_at = place(places.size() * sizeof(cuda::Place));
  const uint64_t addresses_at = place(places.size() * sizeof(std::byte*));
  const uint64_t messages_at = place(given.messages.size() * sizeof(cuda::PipeMessage));
  const uint64_t lines_at = place(given.lines.size() * sizeof(cuda::PipeLine));
  const uint64_t command_at = place(sizeof(fifo::Command));
  const uint64_t queue_at = place(sizeof(cuda::IssueQueue));
  const uint64_t missing_at = place(sizeof(int32_t));
  const uint64_t uploaded = end;
  const uint64_t scratch_at = place(options_.schedule->scratch_bytes);
  Result<executor::DeviceMemory> memory = executor::AllocateOn(*device_, end);
  if (!memory.ok()) return memory.status();
  tables_ = std::move(memory.value());
  std::byte* const at = tables_.get();
  places_ = reinterpret_cast<const cuda::Place*>(at + places_at);
  addresses_ = reinterpret_cast<std::byte**>(at + addresses_at);
  messages_ = reinterpret_cast<cuda::PipeMessage*>(at + messages_at);
  lines_ = reinterpret_cast<cuda::PipeLine*>(at + lines_at);
  last_ = reinterpret_cast<const cuda::IssueQueue*>(at + queue_at);
  missing_ = reinterpret_cast<const int32_t*>(at + missing_at);
  scratch_ = at + scratch_at;

  // To itself, behind all else in the FIFO.
  fifo::Command count;
  count.kind = fifo::CommandKind::kCount;
  count.channel = pipes_->device_params().credit_channel;  // of counts that wait for no data
  count.peer = options_.rank;
  count.counter = Last().last_counter();
  count.amount = 1;
  cuda::IssueQueue queue;
  queue.fifo = Last().fifo;
  queue.commands = reinterpret_cast<const fifo::Command*>(at + command_at);
  queue.count = 1;
  constexpr int32_t kMissing = -1;
  std::vector<std::byte> image(uploaded);
  const auto put = [&](uint64_t offset, const void* from, uint64_t bytes) {
    if (bytes > 0) std::memcpy(image.data() + offset, from, bytes);
  };
  put(places_at, places.data(), places.size() * sizeof(cuda::Place));
  put(messages_at, given.messages.data(), given.messages.size() * sizeof(cuda::PipeMessage));
  put(lines_at, given.lines.data(), given.lines.size() * sizeof(cuda::PipeLine));
  put(command_at, &count, sizeof(count));
  put(queue_at, &queue, sizeof(queue));
  put(missing_at, &kMissing, sizeof(kMissing));
  return device_->upload(at, image.data(), image.size());
}

const executor::SideRegion& StreamCall::Last() const {
  return options_.program != nullptr ? options_.program->side() : pipes_->own();
}

Status StreamCall::Enqueue(cuda::Stream stream, const std::byte* input, std::byte* output) {
  if (steps_.empty()) return Status::Ok();  // no bytes, or nobody else
  // Inputs are only read.
  std::byte* const buffers[kBuffers] = {const_cast<std::byte*>(input), output, scratch_};
  if (Status s = Begin(buffers, stream); !s.ok()) return s;
  for (const Step& step : steps_) {
    for (const Copy& copy : step.copies) {
      if (Status s = RunCopy(copy, buffers, stream); !s.ok()) return s;
    }
    if (Status s = RunLines(step, stream); !s.ok()) return s;
    for (const Fold& fold : step.folds) {
      if (Status s = RunFold(fold, buffers, stream); !s.ok()) return s;
    }
  }
  return device_->issue({last_, 1}, stream);
}

Status StreamCall::EnqueueRagged(cuda::Stream stream, const std::byte* input, std::byte* output,
                                 const Ragged& ragged) {
  std::byte* const buffers[kBuffers] = {const_cast<std::byte*>(input), output, scratch_};
  if (Status s = Begin(buffers, stream); !s.ok()) return s;
  const uint64_t bytes = ragged.output_rows * ragged.row_bytes;
  const bool zero = ragged.start == nullptr;
  if (bytes > 0 && (zero ? ragged.fill : ragged.start != output)) {
    std::byte* const sides[kBuffers] = {const_cast<std::byte*>(ragged.start), output, nullptr};
    if (Status s = RunCopy({{0, kInput}, {0, kOutput}, bytes, zero}, sides, stream); !s.ok())
      return s;
  }
  cuda::RaggedParams p;
  p.send_offsets = ragged.input_offsets, p.send_sizes = ragged.send_sizes;
  p.receive_offsets = ragged.output_offsets, p.receive_sizes = ragged.receive_sizes;
  p.ranks = static_cast<uint32_t>(options_.comm->members.size());
  p.row_bytes = ragged.row_bytes, p.from_rows = ragged.input_rows, p.to_rows = ragged.output_rows;
  p.from = buffers[kInput], p.to = output;
  p.messages = messages_, p.addresses = addresses_, p.fault = fault_;
  if (Status s = device_->ragged(p, stream); !s.ok()) return s;
  if (Status s = RunLines(steps_[0], stream); !s.ok()) return s;
  return device_->issue({last_, 1}, stream);
}

Status StreamCall::EnqueueProgram(cuda::Stream stream,
                                  const std::function<Status(executor::StreamProgram*)>& launch) {
  if (Status s = launch(options_.program.get()); !s.ok()) return s;
  return device_->issue({last_, 1}, stream);
}

Status StreamCall::Begin(std::byte* const* buffers, cuda::Stream stream) const {
  cuda::ResolveParams p;
  p.places = places_;
  p.to = addresses_;
  p.count = address_count_;
  std::copy_n(buffers, kBuffers, p.buffers);
  p.mark = begun_;
  return device_->resolve(p, stream);
}

Status StreamCall::RunLines(const Step& step, cuda::Stream stream) const {
  if (step.lines == 0) return Status::Ok();
  cuda::ExchangeParams p = pipes_->device_params();
  p.addresses = addresses_;
  p.messages = messages_;
  p.lines = lines_ + step.first_line;
  p.line_count = step.lines;
  return device_->exchange(p, stream);
}

Status StreamCall::RunCopy(const Copy& copy, std::byte* const* buffers, cuda::Stream stream) const {
  cuda::MoveRowsParams p = OneRow(At(buffers, copy.to), copy.bytes);
  p.from = copy.zero ? p.to : At(buffers, copy.from);
  if (copy.zero) {
    p.from_index = missing_;
    p.fill_missing = true;
  }
  return device_->move_rows(p, stream);
}

Status StreamCall::RunFold(const Fold& fold, std::byte* const* buffers, cuda::Stream stream) const {
  cuda::ReduceParams p;
  p.inputs = addresses_ + message_count_ + fold.first;
  p.input_count = static_cast<uint32_t>(fold.inputs);
  p.to = At(buffers, fold.to[0]);
  p.count = fold.bytes / DTypeBytes(options_.dtype) * types_->parts;
  p.element = types_->element;
  p.op = types_->reduction;
  if (Status s = device_->reduce(p, stream); !s.ok()) return s;
  for (size_t i = 1; i < fold.to.size(); ++i) {
    if (Status s = RunCopy({fold.to[0], fold.to[i], fold.bytes, false}, buffers, stream); !s.ok())
      return s;
  }
  return Status::Ok();
}

uint64_t StreamCall::begun() const {
  // Acquire: what this execution needs is counted with it.
  return std::atomic_ref(*begun_).load(std::memory_order_acquire);
}

uint64_t StreamCall::ended() const { return Last().region->Read(Last().last_counter()); }

bool StreamCall::HasToReceive(uint32_t member) const {
  return pipes_->HasToReceive(member) ||
         (options_.program != nullptr && options_.program->HasToReceive(member));
}

bool StreamCall::Needs(ProcessId process) const {
  for (uint32_t m = 0; m < options_.comm->members.size(); ++m) {
    if (options_.comm->members[m].process == process && (pipes_->Owes(m) || HasToReceive(m)))
      return true;
  }
  return false;
}

Status StreamCall::Look(Nanos now, Nanos timeout, const std::map<int32_t, Status>& lost) {
  // The last data of a process that is gone may be here and not counted yet.
  constexpr Nanos kLastData = std::chrono::milliseconds(500);
  if (!failure().ok()) return Status::Ok();  // told before
  // First, because peers disagree with what this rank made of it. Relaxed: nothing is behind it.
  const uint64_t fault = std::atomic_ref(*fault_).load(std::memory_order_relaxed);
  if (fault != cuda::kNoFault) return OutsideOf(fault);
  Status trouble;
  if (options_.program != nullptr) trouble = options_.program->Trouble();  // first, as above
  if (trouble.ok()) trouble = pipes_->Trouble();
  if (!trouble.ok()) {
    trouble.op = options_.label;
    return trouble;
  }
  const uint64_t ended = this->ended(), begun = this->begun();
  std::lock_guard lock(mutex_);
  if (begun == ended || begun != seen_begun_) {
    seen_begun_ = begun;
    seen_at_ = now;
    return Status::Ok();
  }
  if (now - seen_at_ >= timeout) return TimeoutOf(timeout);
  if (now - seen_at_ < kLastData) return Status::Ok();
  for (const auto& [process, status] : lost) {
    if (Needs(static_cast<ProcessId>(process))) return status;
  }
  return Status::Ok();
}

Status StreamCall::OutsideOf(uint64_t message) const {
  const uint64_t ranks = options_.comm->members.size();
  const bool sends = message < ranks;
  Status s = Status::Error(
      StatusCode::kInvalidArgument,
      std::string(sends ? "input_offsets and send_sizes" : "output_offsets and recv_sizes") +
          " of rank " + std::to_string(message % ranks) + " are not within the rows of the " +
          (sends ? "operand" : "output"));
  s.op = options_.label;
  return s;
}

Status StreamCall::TimeoutOf(Nanos timeout) const {
  Status s = Status::Error(StatusCode::kPeerTimeout, "");
  s.op = options_.label;
  s.comm_id = static_cast<int64_t>(options_.comm->id);
  s.elapsed = timeout;
  s.detail = DeadlineText(timeout);
  std::vector<int64_t> owed;
  const Member* late = nullptr;
  for (uint32_t m = 0; m < options_.comm->members.size(); ++m) {
    const Member& member = options_.comm->members[m];
    if (HasToReceive(m)) {
      if (owed.empty()) late = &member;  // who owes data is to blame first
      owed.push_back(member.device);
    } else if (late == nullptr && pipes_->Owes(m)) {
      late = &member;
    }
  }
  if (late != nullptr) {
    s.peer = late->device;
    s.process = ToInt(late->process);
  }
  if (!owed.empty()) {
    s.detail += "; no data from ranks " + JoinNumbers(owed);
  } else if (late != nullptr) {
    s.detail += "; rank " + std::to_string(s.peer) + " has not taken our data";
  }
  return s;
}

void StreamCall::Fail(const Status& cause) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = cause;
  }
  pipes_->Fail(cause);
}

Status StreamCall::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

void StreamCall::Close() {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true) || pipes_ == nullptr) return;
  }
  Fail(Status::Error(StatusCode::kAborted, "the call was closed"));
  // Kernels that wait have ended when this returns. What goes wrong here has gone wrong on the
  // device before, and was told there.
  (void)device_->settle(ordinal_);
  pipes_->Close();
  use_.reset();
}

}  // namespace uccl::coll
