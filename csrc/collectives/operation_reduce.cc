// The reductions of a stage: which may run at the same time, and how they are shared among threads.
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "csrc/collectives/operation.h"
#include "csrc/collectives/share_work.h"
#include "csrc/collectives/wide_reduce.h"

namespace uccl::coll {
namespace {

// Above twice this they are shared among threads, in parts of which each thread takes a few: one
// that the system lets wait, on a machine that has other work, then holds up little.
constexpr uint64_t kReduceThreadBytes = 256 << 10;
constexpr uint64_t kPartsPerThread = 4;
constexpr uint64_t kPageBytes = 4096;

// The reductions from `begin` on that may run at the same time: up to the first that reads what one
// of them writes. (Compared by the range of scratch that they write, so sometimes one too few.)
size_t EndOfIndependent(const std::vector<Reduction>& all, size_t begin) {
  uint64_t low = UINT64_MAX, high = 0;
  size_t end = begin;
  for (; end < all.size(); ++end) {
    const bool depends = std::ranges::any_of(all[end].from, [&](const Slice& s) {
      if (s.kind == BufferKind::kOutput) return end > begin;
      return s.kind == BufferKind::kScratch && s.offset < high && s.offset + s.bytes > low;
    });
    if (depends) break;
    for (const Slice& s : all[end].to) {
      if (s.kind != BufferKind::kScratch) continue;
      low = std::min(low, s.offset);
      high = std::max(high, s.offset + s.bytes);
    }
  }
  return end;
}

}  // namespace

// Runs the reductions of the current stage. Called without the mutex, counted in active_.
void Operation::RunReductions(bool share) {
  const std::vector<Reduction>& all = stage().reductions;
  for (size_t begin = 0; begin < all.size();) {
    const size_t end = EndOfIndependent(all, begin);
    RunIndependent(std::span(all).subspan(begin, end - begin), share);
    begin = end;
  }
}

// Reductions none of which reads what another one writes: cut into parts that any thread may take.
void Operation::RunIndependent(std::span<const Reduction> reductions, bool share) {
  const size_t element = DTypeBytes(description_.dtype);
  const auto width = [&](const Slice& s) { return s.wide ? kWideBytes : element; };
  const auto touched = [](const Reduction& r) {
    return r.to[0].bytes * (r.from.size() + r.to.size());
  };
  uint64_t bytes = 0;
  for (const Reduction& r : reductions) bytes += touched(r);
  const uint64_t threads =
      share ? std::clamp<uint64_t>(bytes / kReduceThreadBytes, 1, host_->reduce_threads()) : 1;

  struct Part {
    const Reduction* reduction;
    uint64_t begin, end;  // elements
  };
  std::vector<Part> parts;
  for (const Reduction& r : reductions) {
    const uint64_t count = r.to[0].bytes / width(r.to[0]);
    const uint64_t pieces =
        threads == 1 ? 1 : std::max<uint64_t>(1, threads * kPartsPerThread * touched(r) / bytes);
    // Whole pages, so that no two threads write the same line.
    const uint64_t unit = kPageBytes / element, units = (count + unit - 1) / unit;
    for (uint64_t i = 0; i < pieces; ++i) {
      parts.push_back({&r, std::min(count, units * i / pieces * unit),
                       std::min(count, units * (i + 1) / pieces * unit)});
    }
  }
  ShareWork(&host_->pool(), threads, parts.size(), [&](size_t i) {
    const Part& part = parts[i];
    std::vector<WideInput> from;
    std::vector<WideOutput> to;
    for (const Slice& s : part.reduction->from)
      from.push_back({Address(s) + part.begin * width(s), s.wide});
    for (const Slice& s : part.reduction->to)
      to.push_back({Address(s) + part.begin * width(s), s.wide});
    ReduceWide(description_.dtype, description_.reduction, from, to, part.end - part.begin);
  });
}

}  // namespace uccl::coll
