// The reductions of a stage: which may run at the same time, and how they are shared among threads.
#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "csrc/collectives/direct_operation.h"
#include "csrc/collectives/share_work.h"
#include "csrc/collectives/wide_reduce.h"

namespace uccl::coll {
namespace {

constexpr uint64_t kPageBytes = 4096;
// Of all messages that are read where they were sent from, at a time: half of a second-level cache
// of today.
constexpr uint64_t kBounceBytes = 256 << 10;

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
void DirectOperation::RunReductions(bool share) {
  if (finishes_) FinishEnds(share);
  const std::vector<Reduction>& all = stage().reductions;
  for (size_t begin = 0; begin < all.size();) {
    const size_t end = EndOfIndependent(all, begin);
    RunIndependent(std::span(all).subspan(begin, end - begin), share);
    begin = end;
  }
  ReturnLent();
}

uint64_t DirectOperation::Width(const Slice& slice) const {
  return slice.wide ? kWideBytes : DTypeBytes(description().dtype);
}

// The message that the slice is a part of, if it is still where it came from.
const DirectOperation::Lent* DirectOperation::FindLent(const Slice& slice) const {
  if (slice.kind != BufferKind::kScratch) return nullptr;
  for (const Lent& l : lent_) {
    if (slice.offset >= l.slice.offset && slice.offset < l.slice.offset + l.slice.bytes) return &l;
  }
  return nullptr;
}

// Lets the senders of the stage's messages have their memory back. A message that was not what was
// read fails the operation, before its next stage begins.
void DirectOperation::ReturnLent() {
  if (lent_.empty()) return;
  std::vector<Lent> lent;
  Status read;
  {
    std::lock_guard lock(mutex_);
    lent = std::exchange(lent_, {});
    read = std::exchange(lent_read_, Status::Ok());
  }
  for (const Lent& l : lent) {
    Status status = host_->engine()->Return(l.peer, TokenOf(l.index),
                                            read.process == ToInt(l.peer) ? read : Status::Ok());
    if (status.ok()) continue;
    status.process = ToInt(l.peer);
    host_->OnFault(*this, status);
  }
}

// Reductions none of which reads what another one writes: cut into parts that any thread may take.
void DirectOperation::RunIndependent(std::span<const Reduction> reductions, bool share) {
  const auto touched = [](const Reduction& r) {
    return r.to[0].bytes * (r.from.size() + r.to.size());
  };
  uint64_t bytes = 0;
  for (const Reduction& r : reductions) bytes += touched(r);
  const uint64_t threads = share ? ThreadsFor(bytes, host_->reduce_threads()) : 1;

  struct Part {
    const Reduction* reduction;
    uint64_t begin, end;  // elements
  };
  std::vector<Part> parts;
  for (const Reduction& r : reductions) {
    const uint64_t count = r.to[0].bytes / Width(r.to[0]);
    const uint64_t pieces =
        threads == 1 ? 1 : std::max<uint64_t>(1, threads * kPartsPerThread * touched(r) / bytes);
    // Whole pages, so that no two threads write the same line.
    const uint64_t unit = kPageBytes / DTypeBytes(description().dtype),
                   units = (count + unit - 1) / unit;
    for (uint64_t i = 0; i < pieces; ++i) {
      parts.push_back({&r, std::min(count, units * i / pieces * unit),
                       std::min(count, units * (i + 1) / pieces * unit)});
    }
  }
  ShareWork(&host_->pool(), threads, parts.size(),
            [&](size_t i) { RunPart(*parts[i].reduction, parts[i].begin, parts[i].end); });
}

// Elements [begin, end) of a reduction. What is lent passes through a buffer that stays in the
// cache.
void DirectOperation::RunPart(const Reduction& reduction, uint64_t begin, uint64_t end) {
  std::vector<const Lent*> lent;
  uint64_t lenders = 0;
  for (const Slice& s : reduction.from) {
    lent.push_back(FindLent(s));
    lenders += lent.back() != nullptr;
  }
  const uint64_t room = lenders == 0 ? 0 : std::max(kBounceBytes / lenders, kPageBytes);
  const uint64_t block =
      lenders == 0 ? end - begin
                   : room / std::max<uint64_t>(DTypeBytes(description().dtype), kWideBytes);
  const ScratchPool::Buffer bounce =
      lenders == 0 ? ScratchPool::Buffer() : host_->scratch().Take(lenders * room);
  std::vector<WideInput> from(reduction.from.size());
  std::vector<WideOutput> to(reduction.to.size());
  for (uint64_t at = begin; at < end; at += block) {
    const uint64_t count = std::min(block, end - at);
    std::byte* free = bounce.data();
    for (size_t i = 0; i < from.size(); ++i) {
      const Slice& s = reduction.from[i];
      const uint64_t width = Width(s);
      if (lent[i] == nullptr) {
        from[i] = {Address(s) + at * width, s.wide};
        continue;
      }
      const uint64_t address = lent[i]->address + (s.offset - lent[i]->slice.offset) + at * width;
      const Status status =
          host_->engine()->ReadLent(lent[i]->peer, MutableBytes(free, count * width), address);
      if (!status.ok()) {
        std::lock_guard lock(mutex_);
        if (lent_read_.ok()) {
          lent_read_ = status;
          lent_read_.process = ToInt(lent[i]->peer);
        }
      }
      from[i] = {free, s.wide};
      free += room;
    }
    for (size_t i = 0; i < to.size(); ++i) {
      const Slice& s = reduction.to[i];
      to[i] = {Address(s) + at * Width(s), s.wide};
    }
    ReduceWide(description().dtype, description().reduction, from, to, count);
  }
}

}  // namespace uccl::coll
