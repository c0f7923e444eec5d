// GB/s of the copies of csrc/base/copy.h and of the reductions of csrc/collectives/reduce.h, for
// each level of vector instructions beside libc.
//
//   uccl_memory copy            sizes in and out of the caches, and unlucky distances
//   uccl_memory reduce [N]      every type, N inputs (2, 4 and 8 without it), in and out of the
//   cache
//
// Bytes count once when read and once when written. Medians; repetitions of all rows take turns.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "csrc/base/copy.h"
#include "csrc/collectives/reduce.h"

namespace uccl {
namespace {

struct Candidate {
  std::string name;
  std::function<void()> run;
  std::vector<double> seconds{};
};

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Prints GB/s of each candidate for `bytes` moved by one run of it.
void Measure(const std::string& title, size_t bytes, std::vector<Candidate>* candidates) {
  const size_t runs = std::max<size_t>(1, (size_t{8} << 20) / bytes);
  constexpr int kRounds = 15;
  for (int round = -1; round < kRounds; ++round) {
    for (Candidate& c : *candidates) {
      const double start = Now();
      for (size_t i = 0; i < runs; ++i) c.run();
      if (round >= 0) c.seconds.push_back((Now() - start) / static_cast<double>(runs));
    }
  }
  std::printf("%-28s", title.c_str());
  for (Candidate& c : *candidates) {
    std::sort(c.seconds.begin(), c.seconds.end());
    std::printf("  %s %.2f", c.name.c_str(),
                static_cast<double>(bytes) / c.seconds[c.seconds.size() / 2] / 1e9);
  }
  std::printf("\n");
  std::fflush(stdout);
}

// Page-aligned and touched.
struct Buffer {
  explicit Buffer(size_t bytes)
      : data(static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 8191) / 4096 * 4096))) {
    std::memset(data, 1, bytes + 4096);
  }
  ~Buffer() { std::free(data); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::byte* data;
};

void Copies() {
  for (size_t bytes : {64, 256, 1024, 2048, 4096, 8192, 16384, 65536, 262144, 1 << 20, 2 << 20,
                       4 << 20, 8 << 20, 16 << 20, 64 << 20}) {
    for (size_t shift : {0, 16, 2048}) {
      Buffer from(bytes), to(bytes);
      std::vector<Candidate> candidates;
      candidates.push_back({"libc", [&] { std::memcpy(to.data + shift, from.data, bytes); }});
      for (VectorLevel level : VectorLevels()) {
        const std::string name = VectorLevelName(level);
        candidates.push_back(
            {name, [&, copy = CopyBytesAt(level)] { copy(to.data + shift, from.data, bytes); }});
        candidates.push_back({name + "-stream", [&, stream = StreamBytesAt(level)] {
                                stream(to.data + shift, from.data, bytes);
                                StreamFence();
                              }});
      }
      Measure("copy " + std::to_string(bytes) + " +" + std::to_string(shift), 2 * bytes,
              &candidates);
    }
  }
}

void Reductions(size_t n, size_t outputs, size_t bytes) {
  using coll::DType;
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::vector<const std::byte*> from;
  std::vector<std::byte*> to;
  for (size_t i = 0; i < n + outputs; ++i) {
    buffers.push_back(std::make_unique<Buffer>(bytes));
    if (i < n) {
      from.push_back(buffers.back()->data);
    } else {
      to.push_back(buffers.back()->data);
    }
  }
  const auto row = [&](DType dtype, coll::ReduceOp op) {
    std::vector<Candidate> candidates;
    const size_t count = bytes / coll::DTypeBytes(dtype);
    for (VectorLevel level : VectorLevels()) {
      candidates.push_back({VectorLevelName(level), [&, level, dtype, op, count] {
                              coll::ReduceElementsAt(level, dtype, op, from, to, count);
                            }});
    }
    Measure(std::string(coll::ReduceOpName(op)) + " " + coll::DTypeName(dtype) + " " +
                std::to_string(n) + "->" + std::to_string(outputs) + " x " + std::to_string(bytes),
            (n + outputs) * bytes, &candidates);
  };
  for (DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16, DType::kS8, DType::kS32,
                      DType::kS64, DType::kC64}) {
    row(dtype, coll::ReduceOp::kSum);
  }
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kS8, DType::kS64})
    row(dtype, coll::ReduceOp::kMax);
  row(DType::kS64, coll::ReduceOp::kProd);
}

int Run(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "copy") {
    Copies();
    return 0;
  }
  const size_t n = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0;
  if (what != "reduce" || (argc > 2 && n < 1)) {
    std::fprintf(stderr, "usage: uccl_memory copy | reduce [inputs]\n");
    return 1;
  }
  for (size_t inputs : n > 0 ? std::vector<size_t>{n} : std::vector<size_t>{2, 4, 8}) {
    Reductions(inputs, 1, 16 << 10);
    Reductions(inputs, 1, 16 << 20);
    Reductions(inputs, inputs, 16 << 20);
  }
  return 0;
}

}  // namespace
}  // namespace uccl

int main(int argc, char** argv) { return uccl::Run(argc, argv); }
