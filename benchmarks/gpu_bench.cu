// Kernels of csrc/cuda and FIFOs of csrc/fifo on the first GPU: bandwidth against a copy on the
// device, commands per second through 1, 8 and 32 FIFOs, and the time from a push to the counter
// that answers it. Prints one JSON object; `./dev gpu-check` runs it.
//
// Everything is measured in rounds that go through all cases in turn, so that a change of clocks
// hits all alike; medians over rounds, with the smallest and the largest.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "csrc/cuda/fold.h"
#include "csrc/cuda/issue.h"
#include "csrc/cuda/launch.cuh"
#include "csrc/cuda/pinned.h"
#include "csrc/cuda/reduce.h"
#include "csrc/cuda/rows.h"
#include "csrc/fifo/fifo_device.h"
#include "csrc/fifo/host_fifo.h"
#include "csrc/fifo/native_memory.h"

namespace uccl::cuda {
namespace {

void Need(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "gpu_bench: %s\n", status.ToString().c_str());
  std::exit(1);
}
void Need(cudaError_t error, const char* what) { Need(FromCuda(error, what)); }

template <class T>
T* OnDevice(size_t count) {
  void* memory = nullptr;
  Need(cudaMalloc(&memory, count * sizeof(T) + 1), "cudaMalloc");
  Need(cudaMemset(memory, 0, count * sizeof(T)), "cudaMemset");
  return static_cast<T*>(memory);  // until the program ends
}
template <class T>
T* OnDevice(const std::vector<T>& values) {
  T* memory = OnDevice<T>(values.size());
  Need(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyDefault),
       "cudaMemcpy");
  return memory;
}
std::byte* Pinned(size_t bytes) {
  auto memory = AllocatePinned(bytes);
  if (!memory.ok()) Need(memory.status());
  return memory.value();
}

struct Spread {
  double median, low, high;
};
Spread SpreadOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}
void Print(const char* name, Spread s, const char* unit, bool last = false) {
  std::printf("  \"%s\": {\"median\": %.4g, \"low\": %.4g, \"high\": %.4g, \"unit\": \"%s\"}%s\n",
              name, s.median, s.low, s.high, unit, last ? "" : ",");
}

// --- bandwidth ---

struct Case {
  std::string name;
  double bytes;  // read and written
  std::function<void()> run;
  std::vector<double> gigabytes_per_s;
};

double SecondsOf(const std::function<void()>& run) {
  constexpr int kRepeats = 10;
  cudaEvent_t begin, end;
  Need(cudaEventCreate(&begin), "cudaEventCreate");
  Need(cudaEventCreate(&end), "cudaEventCreate");
  run();
  Need(cudaEventRecord(begin), "cudaEventRecord");
  for (int i = 0; i < kRepeats; ++i) run();
  Need(cudaEventRecord(end), "cudaEventRecord");
  Need(cudaEventSynchronize(end), "cudaEventSynchronize");
  float ms = 0;
  Need(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
  Need(cudaEventDestroy(begin), "cudaEventDestroy");
  Need(cudaEventDestroy(end), "cudaEventDestroy");
  return static_cast<double>(ms) / 1e3 / kRepeats;
}

void Bandwidth() {
  // Large enough that no cache holds it.
  constexpr uint64_t kTokens = 32768, kHidden = 7168, kChoices = 8;
  constexpr uint64_t kWide = kHidden * 2, kNarrow = Fp8RowBytes(kHidden);
  auto* from = OnDevice<std::byte>(kTokens * kWide);
  auto* to = OnDevice<std::byte>(kTokens * kWide);
  auto* narrow = OnDevice<std::byte>(kTokens * kNarrow);
  std::byte* pinned = Pinned(4096 * kWide);
  std::vector<int32_t> shuffled(kTokens), table(kTokens / kChoices * kChoices);
  for (uint64_t i = 0; i < kTokens; ++i) {
    shuffled[i] = static_cast<int32_t>(i * 12347 % kTokens);  // an odd factor: a permutation
    table[i] = shuffled[i];
  }
  const int32_t* index = OnDevice(shuffled);
  const int32_t* fold_table = OnDevice(table);

  std::vector<Case> cases;
  const auto add = [&](std::string name, double bytes, std::function<void()> run) {
    cases.push_back({std::move(name), bytes, std::move(run), {}});
  };
  add("device_copy", 2.0 * kTokens * kWide, [=] {
    Need(cudaMemcpyAsync(to, from, kTokens * kWide, cudaMemcpyDeviceToDevice), "cudaMemcpyAsync");
  });
  const auto rows = [=](Element element, RowCast cast, std::byte* source, uint64_t source_stride,
                        std::byte* target, uint64_t target_stride, uint64_t count, bool gather) {
    MoveRowsParams p;
    p.from = source, p.from_rows = kTokens, p.from_stride = source_stride;
    p.to = target, p.to_rows = count, p.to_stride = target_stride;
    (gather ? p.from_index : p.to_index) = index;
    if (!gather) p.to_rows = kTokens;
    p.moves = count, p.channels = kHidden, p.element = element, p.cast = cast;
    return [p] { Need(LaunchMoveRows(p, nullptr)); };
  };
  add("pack_bf16", 2.0 * kTokens * kWide,
      rows(Element::kBF16, RowCast::kNone, from, kWide, to, kWide, kTokens, true));
  add("unpack_bf16", 2.0 * kTokens * kWide,
      rows(Element::kBF16, RowCast::kNone, from, kWide, to, kWide, kTokens, false));
  add("pack_bf16_to_fp8", 1.0 * kTokens * (kWide + kNarrow),
      rows(Element::kBF16, RowCast::kToFp8, from, kWide, narrow, kNarrow, kTokens, true));
  add("unpack_fp8_to_bf16", 1.0 * kTokens * (kWide + kNarrow),
      rows(Element::kBF16, RowCast::kFromFp8, narrow, kNarrow, to, kWide, kTokens, false));
  add("pack_bf16_to_pinned", 1.0 * 4096 * kWide,  // what crosses the bus
      rows(Element::kBF16, RowCast::kNone, from, kWide, pinned, kWide, 4096, true));

  FoldRowsParams fold;
  fold.from = from, fold.from_rows = kTokens, fold.from_stride = kWide, fold.table = fold_table;
  fold.rows = kTokens / kChoices, fold.width = kChoices, fold.to = to, fold.to_stride = kWide;
  fold.channels = kHidden, fold.from_element = fold.to_element = Element::kBF16;
  add("fold_8_bf16", 1.0 * (kTokens + kTokens / kChoices) * kWide,
      [fold] { Need(LaunchFoldRows(fold, nullptr)); });

  for (uint32_t inputs : {2u, 4u, 8u}) {
    for (Element element : {Element::kF32, Element::kBF16}) {
      const uint64_t part = kTokens * kWide / 8;
      std::vector<const std::byte*> pointers;
      for (uint32_t i = 0; i < inputs; ++i) pointers.push_back(from + i * part);
      ReduceParams p;
      p.inputs = OnDevice(pointers), p.input_count = inputs, p.to = to;
      p.count = part / ElementBytes(element), p.element = element;
      add("reduce_" + std::to_string(inputs) + (element == Element::kF32 ? "_f32" : "_bf16"),
          static_cast<double>((inputs + 1) * part), [p] { Need(LaunchReduce(p, nullptr)); });
    }
  }

  constexpr int kRounds = 7;
  for (int round = 0; round < kRounds; ++round) {
    for (Case& c : cases) c.gigabytes_per_s.push_back(c.bytes / SecondsOf(c.run) / 1e9);
  }
  for (const Case& c : cases) Print(c.name.c_str(), SpreadOf(c.gigabytes_per_s), "GB/s");
}

// --- FIFOs ---

struct Fifo {
  explicit Fifo(size_t capacity) {
    std::byte* memory = Pinned(capacity * sizeof(fifo::Slot) + sizeof(fifo::FifoControl) + 64);
    view.slots = reinterpret_cast<fifo::Slot*>(memory);
    control = new (memory + capacity * sizeof(fifo::Slot)) fifo::FifoControl();
    view.tail = &control->tail;
    view.stopped = &control->stopped;
    auto* words = OnDevice<uint64_t>(32);
    view.head = words, view.cached_tail = words + 16;
    view.capacity = capacity;
    consumer = std::make_unique<fifo::FifoConsumer>(
        std::span<const fifo::Slot>(view.slots, capacity), control);
  }
  fifo::FifoView view;
  fifo::FifoControl* control;
  std::unique_ptr<fifo::FifoConsumer> consumer;
};

// A block for each FIFO; all its threads push.
__global__ void PushKernel(const fifo::FifoView* fifos, uint32_t pushes) {
  const fifo::FifoView view = fifos[blockIdx.x];
  fifo::Command c;
  c.kind = fifo::CommandKind::kWrite;
  c.bytes = 7168;
  c.peer = threadIdx.x;
  for (uint32_t i = threadIdx.x; i < pushes; i += blockDim.x) (void)fifo::Push(view, c);
}

double CommandsPerSecond(const std::vector<Fifo*>& fifos, uint32_t pushes) {
  std::vector<fifo::FifoView> views;
  for (const Fifo* f : fifos) views.push_back(f->view);
  const fifo::FifoView* table = OnDevice(views);
  const auto begin = std::chrono::steady_clock::now();
  PushKernel<<<static_cast<unsigned>(fifos.size()), 32>>>(table, pushes);
  Need(Launched("push"));
  std::vector<fifo::CommandWords> batch(256);
  for (uint64_t left = uint64_t{pushes} * fifos.size(); left > 0;) {
    for (Fifo* f : fifos) left -= f->consumer->Poll(batch);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  Need(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  return static_cast<double>(pushes) * static_cast<double>(fifos.size()) / took.count();
}

// One thread pushes and waits for the counter that a host thread raises in answer.
__global__ void RoundTripKernel(fifo::FifoView view, const uint64_t* counter, uint64_t first,
                                uint32_t trips, uint32_t* nanos) {
  fifo::NativeMemory memory;
  fifo::Command c;
  c.kind = fifo::CommandKind::kWrite;
  c.bytes = 7168;
  for (uint32_t i = 0; i < trips; ++i) {
    uint64_t begin, end;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin)::"memory");
    (void)fifo::Push(view, c);
    while (memory.LoadAcquireSystem(counter) <= first + i) {
    }
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(end)::"memory");
    nanos[i] = static_cast<uint32_t>(end - begin);
  }
}

Spread RoundTripMicroseconds(Fifo* f) {
  constexpr uint32_t kTrips = 2000;
  auto* counter = reinterpret_cast<uint64_t*>(Pinned(64));
  auto* nanos = OnDevice<uint32_t>(kTrips);
  fifo::NativeMemory memory;
  RoundTripKernel<<<1, 1>>>(f->view, counter, 0, kTrips, nanos);
  Need(Launched("round_trip"));
  fifo::CommandWords one[1];
  for (uint64_t answered = 0; answered < kTrips;) {
    if (f->consumer->Poll(one) == 0) continue;
    memory.StoreReleaseSystem(counter, ++answered);
  }
  std::vector<uint32_t> host(kTrips);
  Need(cudaMemcpy(host.data(), nanos, kTrips * sizeof(uint32_t), cudaMemcpyDefault), "cudaMemcpy");
  std::vector<double> us;
  for (size_t i = kTrips / 10; i < kTrips; ++i) us.push_back(host[i] / 1e3);
  return SpreadOf(us);
}

void Fifos() {
  std::vector<std::unique_ptr<Fifo>> owned;
  for (int i = 0; i < 32; ++i) owned.push_back(std::make_unique<Fifo>(1024));
  for (size_t count : {1, 8, 32}) {
    std::vector<Fifo*> some;
    for (size_t i = 0; i < count; ++i) some.push_back(owned[i].get());
    std::vector<double> millions;
    for (int round = 0; round < 7; ++round) {
      millions.push_back(CommandsPerSecond(some, 200000) / 1e6);
    }
    Print(("fifo_" + std::to_string(count)).c_str(), SpreadOf(millions), "million commands/s");
  }
  Print("fifo_round_trip", RoundTripMicroseconds(owned[0].get()), "us", true);
}

int Main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "gpu_bench: no CUDA device\n");
    return 2;
  }
  cudaDeviceProp properties;
  Need(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  std::printf("{\n  \"device\": \"%s\",\n", properties.name);
  Bandwidth();
  Fifos();
  std::printf("}\n");
  return 0;
}

}  // namespace
}  // namespace uccl::cuda

int main() { return uccl::cuda::Main(); }
