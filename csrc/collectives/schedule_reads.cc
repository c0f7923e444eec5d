// Looks at every item that names a byte of the scratch buffer that a receive fills.
#include "csrc/collectives/schedule_reads.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace uccl::coll {
namespace {

bool Within(const Slice& inner, const Slice& outer) {
  return inner.offset >= outer.offset && inner.offset + inner.bytes <= outer.offset + outer.bytes;
}

// Whether anything but the receive itself and what reductions of `at` read names these bytes.
bool NamedElsewhere(const Schedule& schedule, const Stage& at, const Transfer& receive) {
  const auto named = [&](const Slice& slice) { return Overlap(slice, receive.slice); };
  for (const Stage& stage : schedule.stages) {
    for (const Transfer& t : stage.sends) {
      if (named(t.slice)) return true;
    }
    for (const Transfer& t : stage.receives) {
      if (&t != &receive && named(t.slice)) return true;
    }
    for (const Copy& c : stage.copies) {
      if (named(c.from) || named(c.to)) return true;
    }
    for (const Reduction& r : stage.reductions) {
      if (std::ranges::any_of(r.to, named)) return true;
      if (&stage != &at && std::ranges::any_of(r.from, named)) return true;
    }
  }
  return false;
}

}  // namespace

void MarkReadOnce(Schedule* schedule) {
  for (Stage& stage : schedule->stages) {
    for (Transfer& receive : stage.receives) {
      if (receive.slice.kind != BufferKind::kScratch) continue;
      std::vector<Slice> reads;
      for (const Reduction& r : stage.reductions) {
        for (const Slice& s : r.from) {
          if (Overlap(s, receive.slice)) reads.push_back(s);
        }
      }
      bool once = !NamedElsewhere(*schedule, stage, receive);
      for (size_t i = 0; i < reads.size() && once; ++i) {
        once = Within(reads[i], receive.slice);
        for (size_t j = 0; j < i && once; ++j) once = !Overlap(reads[i], reads[j]);
      }
      receive.read_once = once;
    }
  }
}

}  // namespace uccl::coll
