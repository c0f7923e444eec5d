// Tests of csrc/collectives/matching.h: the numbering of docs/matching.md, seen from two processes
// that differ in everything that may differ between them.
#include "csrc/collectives/matching.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>
#include <vector>

namespace uccl::coll {
namespace {

using Call = ExecutionTable::Call;

std::vector<uint64_t> AddSeveral(InstanceTable* table, int count, uint64_t site,
                                 const std::string& module, uint64_t thread) {
  std::vector<uint64_t> numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(table->Add(site, module, thread).number);
  return numbers;
}

using Numbers = std::vector<uint64_t>;

TEST(InstanceTable, CopiesOfOneSite_AreNumberedPerExecutable) {
  InstanceTable table;
  EXPECT_EQ(AddSeveral(&table, 3, 7, "jit_f", 1), (Numbers{0, 1, 2}));
  table.CloseModule("jit_f");
  EXPECT_EQ(AddSeveral(&table, 3, 7, "jit_f", 1), (Numbers{0, 1, 2}));
}

TEST(InstanceTable, OtherSites_CountForThemselves) {
  InstanceTable table;
  EXPECT_EQ(table.Add(7, "jit_f", 1).number, 0u);
  EXPECT_EQ(table.Add(8, "jit_f", 1).number, 0u);
  EXPECT_EQ(table.Add(7, "jit_f", 1).number, 1u);
}

TEST(InstanceTable, ConcurrentCompilations_DoNotMix) {
  InstanceTable table;
  // Two threads compile modules of the same name; their instances arrive interleaved.
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(table.Add(7, "jit_f", 1).number, i);
    EXPECT_EQ(table.Add(7, "jit_f", 2).number, i);
  }
}

TEST(InstanceTable, EndOfAnotherModule_ClosesNothingHere) {
  InstanceTable table;
  EXPECT_EQ(table.Add(7, "jit_f", 1).number, 0u);
  table.CloseModule("jit_g");
  EXPECT_EQ(table.Add(7, "jit_f", 1).number, 1u);
}

TEST(InstanceTable, SerializedExecutable_StartsAnewOnceTheLastOneRan) {
  InstanceTable table;
  // Loading reports no end of compilation.
  InstanceTable::Instance first = table.Add(7, "jit_f", 1);
  EXPECT_EQ(table.Add(7, "jit_f", 1).number, 1u);
  table.MarkExecuted(first.group.get());
  EXPECT_EQ(AddSeveral(&table, 2, 7, "jit_f", 1), (Numbers{0, 1}));
}

TEST(InstanceTable, GroupThatWasClosed_MayStillBeMarked) {
  InstanceTable table;
  InstanceTable::Instance old = table.Add(7, "jit_f", 1);
  table.CloseModule("jit_f");
  InstanceTable::Instance fresh = table.Add(7, "jit_f", 1);
  table.MarkExecuted(old.group.get());
  EXPECT_NE(old.group, fresh.group);
  EXPECT_EQ(table.Add(7, "jit_f", 1).number, 1u);
}

// A device of a process: makes calls as XLA would and completes each at once, unless told
// otherwise.
class Device {
 public:
  Device(ExecutionTable* table, int64_t id) : table_(table), id_(id) {}

  Call MakeCall(uint64_t site, uint64_t instance, uint64_t launch, int64_t run) const {
    Call c;
    c.comm = 5;
    c.site = site;
    c.instance = instance;
    c.device = id_;
    c.launch = launch;
    c.run = run;
    return c;
  }
  OpKey Do(const Call& call) {
    Result<OpKey> key = table_->Next(call);
    if (!key.ok()) {
      ADD_FAILURE() << key.status().ToString();
      return {};
    }
    table_->Finish(call);
    return key.value();
  }
  OpKey Do(uint64_t site, uint64_t instance, uint64_t launch, int64_t run) {
    return Do(MakeCall(site, instance, launch, run));
  }

 private:
  ExecutionTable* table_;
  int64_t id_;
};

TEST(ExecutionTable, TwoProcesses_AgreeWhateverRunIdsAndLaunches) {
  ExecutionTable here, there;
  Device a(&here, 0), b(&there, 2048);
  std::set<std::tuple<uint64_t, uint64_t>> seen;
  for (int execution = 0; execution < 5; ++execution) {
    for (int iteration = 0; iteration < 3; ++iteration) {
      const OpKey x = a.Do(7, 0, /*launch=*/1, /*run=*/-1833485889 + execution);
      const OpKey y = b.Do(7, 0, /*launch=*/40, /*run=*/1683309397 + 2 * execution);
      EXPECT_EQ(x, y);
      EXPECT_EQ(x.execution, static_cast<uint64_t>(execution));
      EXPECT_EQ(x.iteration, static_cast<uint64_t>(iteration));
      EXPECT_TRUE(seen.insert({x.execution, x.iteration}).second);
    }
  }
}

TEST(ExecutionTable, CopiesOfOneSite_InAnyOrder) {
  ExecutionTable here, there;
  Device a(&here, 0), b(&there, 1);
  for (int run = 0; run < 3; ++run) {
    std::vector<OpKey> x(4), y(4);
    for (uint64_t i : {0, 1, 2, 3}) x[i] = a.Do(7, i, 10 + i, run);
    for (uint64_t i : {2, 0, 3, 1}) y[i] = b.Do(7, i, 20 + i, run);
    EXPECT_EQ(x, y);
  }
}

TEST(ExecutionTable, AlternatingPrograms_WithEqualSites) {
  // Two executables that share a site and a communicator: the launches interleave, executions count
  // through.
  ExecutionTable here, there;
  Device a(&here, 0), b(&there, 1);
  std::set<uint64_t> executions;
  for (int i = 0; i < 6; ++i) {
    const uint64_t program = static_cast<uint64_t>(i % 2);
    const OpKey x = a.Do(7, 0, 1 + program, 1000 * static_cast<int64_t>(program) + i);
    // The other process recompiled one of them: another launch and other RunIds.
    const OpKey y = b.Do(7, 0, 5 + program + (i > 2 ? 10 : 0), 77 + 3 * i);
    EXPECT_EQ(x, y);
    EXPECT_TRUE(executions.insert(x.execution).second);
  }
}

TEST(ExecutionTable, ExecutionThatDiedInALoop_NextOneIsAligned) {
  ExecutionTable here, there;
  Device a(&here, 0), b(&there, 1);
  for (int i = 0; i < 2; ++i) a.Do(7, 0, 1, 10);
  for (int i = 0; i < 5; ++i) b.Do(7, 0, 1, 10);
  EXPECT_EQ(a.Do(7, 0, 1, 11), b.Do(7, 0, 1, 11));
}

TEST(ExecutionTable, Devices_CountForThemselves) {
  ExecutionTable table;
  Device fast(&table, 0), slow(&table, 1);
  std::vector<OpKey> ahead;
  for (int run = 0; run < 3; ++run) ahead.push_back(fast.Do(7, 0, 1, run));
  for (int run = 0; run < 3; ++run)
    EXPECT_EQ(slow.Do(7, 0, 1, run), ahead[static_cast<size_t>(run)]);
}

TEST(ExecutionTable, OverlappingLaunches_AreAmbiguous) {
  ExecutionTable table;
  Device d(&table, 3);
  const Call first = d.MakeCall(7, 0, 1, 10);
  ASSERT_TRUE(table.Next(first).ok());
  // Another launch reaches the same place while the first is not complete.
  const Result<OpKey> second = table.Next(d.MakeCall(7, 0, 1, 11));
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code, StatusCode::kProtocol);
  EXPECT_NE(second.status().detail.find("ambiguous call site"), std::string::npos);
  EXPECT_NE(second.status().detail.find("device 3"), std::string::npos);
  table.Finish(first);
  EXPECT_TRUE(table.Next(d.MakeCall(7, 0, 1, 11)).ok());
}

TEST(ExecutionTable, TwoExecutablesInOneRun_AreAmbiguous) {
  ExecutionTable table;
  Device d(&table, 3);
  d.Do(7, 0, 1, 10);
  const Result<OpKey> second = table.Next(d.MakeCall(7, 0, 2, 10));
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code, StatusCode::kProtocol);
}

TEST(ExecutionTable, CallsOfOneRunInFlight_AreIterations) {
  ExecutionTable table;
  Device d(&table, 0);
  const Call c = d.MakeCall(7, 0, 1, 10);
  EXPECT_EQ(table.Next(c).value().iteration, 0u);
  EXPECT_EQ(table.Next(c).value().iteration, 1u);
}

TEST(ExecutionTable, Exact_TwoExecutablesAtOnceAreTwoOperations) {
  // All members in this process: two threads launch programs that share a site.
  ExecutionTable table;
  Device d(&table, 0), e(&table, 1);
  Call first = d.MakeCall(7, 0, 1, 10), second = d.MakeCall(7, 0, 2, 10);
  first.exact = second.exact = true;
  const Result<OpKey> x = table.Next(first), y = table.Next(second);
  ASSERT_TRUE(x.ok() && y.ok());
  EXPECT_FALSE(x.value() == y.value());
  // The other device meets them in the other order.
  Call first_there = first, second_there = second;
  first_there.device = second_there.device = 1;
  EXPECT_EQ(e.Do(second_there), y.value());
  EXPECT_EQ(e.Do(first_there), x.value());
}

TEST(ExecutionTable, Ordered_PositionIsTheKeyWhateverTheProgram) {
  ExecutionTable here, there;
  Device a(&here, 0), b(&there, 1);
  for (int i = 0; i < 4; ++i) {
    Call x = a.MakeCall(7, 0, 1, i), y = b.MakeCall(8, 3, 9, 1000 - i);
    x.ordered = y.ordered = true;
    EXPECT_EQ(a.Do(x), b.Do(y));
  }
}

TEST(ExecutionTable, FinishOfAnUnknownCall_IsIgnored) {
  ExecutionTable table;
  Device d(&table, 0);
  table.Finish(d.MakeCall(7, 0, 1, 10));  // of an epoch that is over
  EXPECT_EQ(d.Do(7, 0, 1, 10).execution, 0u);
}

TEST(TagOf, EveryPartCounts) {
  const OpKey key{1, 2, 3, 4, 5};
  std::set<std::pair<uint64_t, uint64_t>> tags;
  const auto add = [&](const core::MessageTag& t) { return tags.insert({t.hi, t.lo}).second; };
  EXPECT_TRUE(add(TagOf(key, 0, 1, 2)));
  EXPECT_FALSE(add(TagOf(key, 0, 1, 2)));
  EXPECT_TRUE(add(TagOf(key, 1, 1, 2)));
  EXPECT_TRUE(add(TagOf(key, 0, 2, 1)));
  EXPECT_TRUE(add(TagOf(key, 0, 1, 1)));
  for (uint64_t OpKey::* part :
       {&OpKey::comm, &OpKey::site, &OpKey::instance, &OpKey::execution, &OpKey::iteration}) {
    OpKey other = key;
    other.*part += 1;
    EXPECT_TRUE(add(TagOf(other, 0, 1, 2)));
    EXPECT_FALSE(other == key);
    EXPECT_NE(OpKeyHash()(other), OpKeyHash()(key));
  }
}

TEST(ExecutionTable, ManyThreads_EachDeviceGetsItsOwnSequence) {
  ExecutionTable table;
  std::vector<std::thread> threads;
  std::vector<std::vector<OpKey>> keys(8);
  for (size_t t = 0; t < keys.size(); ++t) {
    threads.emplace_back([&table, &keys, t] {
      Device d(&table, static_cast<int64_t>(t));
      for (int run = 0; run < 200; ++run) keys[t].push_back(d.Do(7, 0, 1, run));
    });
  }
  for (std::thread& t : threads) t.join();
  for (const auto& k : keys) EXPECT_EQ(k, keys[0]);
}

}  // namespace
}  // namespace uccl::coll
