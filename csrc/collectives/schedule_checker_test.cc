// Tests of csrc/collectives/schedule_checker.h: schedules that were right until one thing was
// changed are found out, each for what is wrong with it.
#include "csrc/collectives/schedule_checker.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/collectives/algorithms/registry.h"
#include "csrc/collectives/testing/layouts.h"

namespace uccl::coll {
namespace {

using testing::GroupOf;

struct Case {
  OpKind kind{};
  const char* algorithm = nullptr;
  DType dtype = DType::kF32;
  uint64_t elements = 12;
  std::vector<int> devices = {2, 2};
};

// The checker's answer when process 0's schedule is changed.
std::string Changed(const Case& c, const std::function<void(Schedule*)>& change) {
  const std::vector<Member> group = GroupOf(c.devices);
  PlanRequest request;
  request.kind = c.kind;
  request.dtype = c.dtype;
  request.reduction = ReduceOp::kSum;
  request.elements = c.elements;
  return CheckSchedules(request, group, [&](ProcessId p) {
    Schedule s = MakeSchedule(*FindAlgorithm(c.kind, c.algorithm), request, group, p);
    if (p == ProcessId{0}) change(&s);
    return s;
  });
}
std::string Unchanged(const Case& c) {
  return Changed(c, [](Schedule*) {});
}
bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

const Case kReduce{OpKind::kAllReduce, "split"};
const Case kGather{OpKind::kAllGather, "direct"};

TEST(ScheduleChecker, RightOnesPass) {
  EXPECT_EQ(Unchanged(kReduce), "");
  EXPECT_EQ(Unchanged(kGather), "");
}

TEST(ScheduleChecker, AReductionOverWhatIsSent) {
  // The sum goes into the part of the output that is on its way.
  const auto change = [](Schedule* s) {
    Stage& gather = s->stages[1];
    gather.reductions.push_back({{s->stages[0].reductions[0].from[0]}, {gather.sends[0].slice}});
  };
  EXPECT_TRUE(Contains(Changed(kReduce, change), "a reduction writes what is sent in its stage"));
}

TEST(ScheduleChecker, MissingAndExtraMessages) {
  EXPECT_TRUE(Contains(Changed(kGather, [](Schedule* s) { s->stages[0].sends.pop_back(); }),
                       "does not send"));
  EXPECT_TRUE(Contains(Changed(kGather, [](Schedule* s) { s->stages[0].receives.pop_back(); }),
                       "does not receive"));
  EXPECT_TRUE(Contains(
      Changed(kGather, [](Schedule* s) { s->stages[0].sends.push_back(s->stages[0].sends[0]); }),
      "two messages of one name"));
  EXPECT_TRUE(Contains(Changed(kGather, [](Schedule* s) { s->stages[0].sends[0].to = 1; }),
                       "members of other processes"));
  EXPECT_TRUE(Contains(
      Changed(kGather, [](Schedule* s) { s->stages[0].sends[0].peer = ProcessId{0}; }), "itself"));
  // One stage late.
  EXPECT_TRUE(
      Contains(Changed(kGather, [](Schedule* s) { s->stages.insert(s->stages.begin(), Stage()); }),
               "does not send"));
}

TEST(ScheduleChecker, Slices) {
  EXPECT_TRUE(
      Contains(Changed(kGather, [](Schedule* s) { s->stages[0].sends[0].slice.bytes += 4; }),
               "of a buffer of"));
  EXPECT_TRUE(
      Contains(Changed(kGather, [](Schedule* s) { s->stages[0].sends[0].slice.bytes -= 4; }),
               "to a slice of"));
  EXPECT_TRUE(Contains(Changed(kGather, [](Schedule* s) { s->stages[0].sends[0].slice.local = 2; }),
                       "no buffer"));
  EXPECT_TRUE(Contains(Changed(kGather, [](Schedule* s) { s->stages[0].copies[0].to.offset += 1; }),
                       "cuts an element"));
  EXPECT_TRUE(Contains(
      Changed(kGather,
              [](Schedule* s) { s->stages[0].receives[0].slice.kind = BufferKind::kInput; }),
      "writes to an input"));
}

TEST(ScheduleChecker, WrongContents) {
  EXPECT_TRUE(Contains(Changed(kGather,
                               [](Schedule* s) {
                                 std::swap(s->stages[0].receives[0].slice,
                                           s->stages[0].receives[1].slice);
                               }),
                       "has 3[0], not 2[0]"));
  EXPECT_TRUE(Contains(Changed(kGather, [](Schedule* s) { s->stages[0].copies.pop_back(); }),
                       "has nothing"));
}

TEST(ScheduleChecker, OrderOfReduction) {
  const auto swap = [](Schedule* s) {
    std::swap(s->stages[0].reductions[0].from[1], s->stages[0].reductions[0].from[2]);
  };
  EXPECT_TRUE(Contains(Changed(kReduce, swap), "has ((0[0] 2[0]) (1[0] 3[0])), not"));
  // Any order of integers is right, but not one rank twice.
  Case integers = kReduce;
  integers.dtype = DType::kS32;
  EXPECT_EQ(Changed(integers, swap), "");
  EXPECT_TRUE(Contains(Changed(integers,
                               [](Schedule* s) {
                                 s->stages[0].reductions[0].from[1] =
                                     s->stages[0].reductions[0].from[0];
                               }),
                       "has ((0[0] 0[0])"));
}

TEST(ScheduleChecker, PartialResultsThatRound) {
  const Case half{OpKind::kAllReduce, "partials", DType::kBF16};
  EXPECT_EQ(Unchanged(half), "");
  // The result is rounded once more than it should be, or not at all.
  EXPECT_TRUE(Contains(Changed(half,
                               [](Schedule* s) {
                                 for (Stage& stage : s->stages) {
                                   for (Reduction& r : stage.reductions) {
                                     for (Slice* slice : {&r.from[0], &r.to[0]}) {
                                       if (slice->wide) slice->bytes /= 2;
                                       slice->wide = false;
                                     }
                                   }
                                   for (Transfer& t : stage.sends) {
                                     t.slice.wide = false;
                                     t.slice.bytes /= 2;
                                   }
                                 }
                               }),
                       "receives another width"));
}

TEST(ScheduleChecker, ReadsAndWritesOfOneStage) {
  EXPECT_TRUE(Contains(Changed(kReduce,
                               [](Schedule* s) {
                                 // Sends in the first stage what its reduction has still to write.
                                 s->stages[0].sends[0].slice = s->stages[1].sends[0].slice;
                               }),
                       "not written"));
  EXPECT_TRUE(Contains(
      Changed(kGather,
              [](Schedule* s) { s->stages[0].receives[1].slice = s->stages[0].receives[0].slice; }),
      "writes the same bytes twice"));
  EXPECT_TRUE(Contains(
      Changed(kReduce,
              [](Schedule* s) { s->stages[1].receives[0].slice = s->stages[1].sends[0].slice; }),
      "writes what the stage reads"));
  EXPECT_TRUE(Contains(Changed(kReduce,
                               [](Schedule* s) {
                                 Reduction& r = s->stages[0].reductions[0];
                                 r.to[0] = r.from[2];
                               }),
                       "into its own input"));
}

TEST(ScheduleChecker, BarrierThatDoesNotWait) {
  const Case barrier{OpKind::kBarrier, "dissemination", DType::kF32, 0, {1, 2, 1}};
  EXPECT_EQ(Unchanged(barrier), "");
  const std::vector<Member> group = GroupOf(barrier.devices);
  PlanRequest request;
  request.kind = OpKind::kBarrier;
  const auto all = [&](const std::function<void(Schedule*)>& change) {
    return CheckSchedules(request, group, [&](ProcessId p) {
      Schedule s = MakeSchedule(*FindAlgorithm(request.kind, "dissemination"), request, group, p);
      change(&s);
      return s;
    });
  };
  EXPECT_TRUE(Contains(all([](Schedule* s) { s->stages.pop_back(); }), "leaves the barrier"));
  // Messages of the first stage may leave before the other ranks of the process are here.
  EXPECT_TRUE(
      Contains(all([](Schedule* s) { s->stages.erase(s->stages.begin()); }), "leaves the barrier"));
}

TEST(ScheduleChecker, RaggedPairs) {
  const Case ragged{OpKind::kRaggedAllToAll, "direct", DType::kF32, 0};
  EXPECT_EQ(Unchanged(ragged), "");
  EXPECT_TRUE(Contains(Changed(ragged, [](Schedule* s) { s->stages[0].copies.pop_back(); }),
                       "exchange 0 times"));
}

}  // namespace
}  // namespace uccl::coll
