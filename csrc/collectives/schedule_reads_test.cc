// Tests of csrc/collectives/schedule_reads.h.
#include "csrc/collectives/schedule_reads.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "csrc/collectives/algorithms/registry.h"
#include "csrc/collectives/testing/layouts.h"

namespace uccl::coll {
namespace {

using testing::GroupOf;

Slice InScratch(uint64_t offset, uint64_t bytes) {
  return {BufferKind::kScratch, 0, offset, bytes};
}
Slice InOutput(uint64_t offset, uint64_t bytes) { return {BufferKind::kOutput, 0, offset, bytes}; }

// One receive into bytes 100 to 200 of the scratch buffer, reduced in two halves.
Schedule TwoHalves() {
  Schedule s;
  Stage stage;
  stage.receives.push_back({ProcessId{1}, 1, 0, InScratch(100, 100)});
  stage.reductions.push_back({{InScratch(100, 50)}, {InOutput(0, 50)}});
  stage.reductions.push_back({{InScratch(150, 50)}, {InOutput(50, 50)}});
  s.stages.push_back(stage);
  s.stages.emplace_back();
  return s;
}

bool ReadOnce(const std::function<void(Schedule*)>& change) {
  Schedule s = TwoHalves();
  change(&s);
  MarkReadOnce(&s);
  return s.stages[0].receives[0].read_once;
}

TEST(MarkReadOnce, OnlyWhatReductionsOfTheStageReadAndReadOnce) {
  EXPECT_TRUE(ReadOnce([](Schedule*) {}));
  // A part that nobody reads need not be there.
  EXPECT_TRUE(ReadOnce([](Schedule* s) { s->stages[0].reductions.pop_back(); }));
  // Neighbours do not count.
  EXPECT_TRUE(ReadOnce([](Schedule* s) {
    s->stages[1].copies.push_back({InScratch(0, 100), InOutput(0, 100)});
    s->stages[1].copies.push_back({InScratch(200, 100), InOutput(0, 100)});
  }));

  EXPECT_FALSE(ReadOnce([](Schedule* s) { s->stages[0].reductions[1].from[0].offset = 149; }))
      << "a byte is read twice";
  EXPECT_FALSE(ReadOnce([](Schedule* s) {
    s->stages[0].reductions[0].from[0] = InScratch(99, 50);
  })) << "some of it is another's";
  EXPECT_FALSE(ReadOnce([](Schedule* s) { s->stages[0].reductions[0].to[0] = InScratch(120, 50); }))
      << "written over";
  EXPECT_FALSE(ReadOnce([](Schedule* s) {
    s->stages[1].copies.push_back({InScratch(199, 1), InOutput(0, 1)});
  })) << "read later";
  EXPECT_FALSE(ReadOnce([](Schedule* s) {
    s->stages[1].sends.push_back({ProcessId{1}, 0, 1, InScratch(100, 10)});
  })) << "sent on";
  EXPECT_FALSE(ReadOnce([](Schedule* s) {
    s->stages[1].reductions.push_back({{InScratch(100, 10)}, {InOutput(0, 10)}});
  })) << "read in another stage";
  EXPECT_FALSE(ReadOnce([](Schedule* s) { s->stages[0].receives[0].slice = InOutput(100, 100); }))
      << "a result";
}

TEST(MarkReadOnce, TheFirstStepOfASplitReduction) {
  PlanRequest request;
  request.kind = OpKind::kAllReduce;
  request.dtype = DType::kF32;
  request.reduction = ReduceOp::kSum;
  request.elements = 12;
  Schedule s = MakeSchedule(*FindAlgorithm(OpKind::kAllReduce, "split"), request,
                            GroupOf({1, 1, 1}), ProcessId{0});
  MarkReadOnce(&s);
  ASSERT_EQ(s.stages[0].receives.size(), 2u);
  for (const Transfer& t : s.stages[0].receives) EXPECT_TRUE(t.read_once);
  for (const Transfer& t : s.stages[1].receives) EXPECT_FALSE(t.read_once);
}

}  // namespace
}  // namespace uccl::coll
