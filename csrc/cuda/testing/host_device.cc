// The queue and the table of host_device.h.
#include "csrc/cuda/testing/host_device.h"

#include <cstring>
#include <new>
#include <utility>

namespace uccl::cuda {

HostStream::HostStream(Launcher* launcher) : launcher_(launcher), thread_([this] { Run(); }) {}

HostStream::~HostStream() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void HostStream::Enqueue(std::function<Status()> launch) {
  std::lock_guard lock(mutex_);
  if (capturing_) {
    captured_.push_back(std::move(launch));
  } else {
    queue_.push(std::move(launch));
    changed_.notify_all();
  }
}

Status HostStream::Wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.empty() && !running_; });
  return failure_;
}

void HostStream::BeginCapture() {
  std::lock_guard lock(mutex_);
  capturing_ = true;
}

HostGraph HostStream::EndCapture() {
  std::lock_guard lock(mutex_);
  capturing_ = false;
  return std::exchange(captured_, {});
}

void HostStream::Replay(const HostGraph& graph) {
  for (const auto& launch : graph) Enqueue(launch);
}

void HostStream::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const std::function<Status()> launch = std::move(queue_.front());
    queue_.pop();
    running_ = true;
    lock.unlock();
    const Status status = launch();
    lock.lock();
    running_ = false;
    if (failure_.ok()) failure_ = status;
    changed_.notify_all();
  }
}

namespace {

constexpr std::align_val_t kAlignment{4096};

// As a launch of CUDA: refused at once, or enqueued by value.
template <class Params>
Status Launch(const Params& params, Stream stream) {
  if (Status s = CheckParams(params); !s.ok()) return s;
  HostStream* const queue = HostStream::From(stream);
  queue->Enqueue([queue, params] { return queue->launcher()->Run(params); });
  return Status::Ok();
}

Result<std::byte*> Allocate(size_t bytes) {
  auto* memory = static_cast<std::byte*>(::operator new(bytes + 1, kAlignment));
  std::memset(memory, 0, bytes);
  return memory;
}
void Free(std::byte* memory) { ::operator delete(memory, kAlignment); }

Status Upload(std::byte* to, const std::byte* from, size_t bytes) {
  std::memcpy(to, from, bytes);
  return Status::Ok();
}

}  // namespace

const Device& HostDevice() {
  static const Device device = [] {
    Device d;
    d.move_rows = &Launch<MoveRowsParams>;
    d.fold_rows = &Launch<FoldRowsParams>;
    d.reduce = &Launch<ReduceParams>;
    d.resolve = &Launch<ResolveParams>;
    d.ragged = &Launch<RaggedParams>;
    d.exchange = &Launch<ExchangeParams>;
    d.issue = &Launch<IssueParams>;
    d.send_rows = &Launch<SendRowsParams>;
    d.await_rows = &Launch<AwaitRowsParams>;
    d.allocate = d.allocate_pinned = &Allocate;
    d.free = d.free_pinned = &Free;
    d.upload = &Upload;
    // Streams are waited for by those who own them.
    d.current = []() -> Result<int> { return 0; };
    d.settle = [](int) { return Status::Ok(); };
    return d;
  }();
  return device;
}

}  // namespace uccl::cuda
