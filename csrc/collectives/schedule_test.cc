// Tests of csrc/collectives/schedule.h: an executor of its own runs the schedules of all processes
// in memory, in a random order, and the results are compared with the meaning of the collectives.
#include "csrc/collectives/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace uccl::coll {
namespace {

using Vector = std::vector<std::byte>;
constexpr std::byte kPoison{0xdb};
constexpr uint64_t kElement = 8;

// Bytes from rank to rank.
PlanRequest Movement(OpKind kind, uint64_t bytes) {
  PlanRequest request;
  request.kind = kind;
  request.dtype = DType::kU8;
  request.elements = bytes;
  return request;
}
PlanRequest Sum(uint64_t count, uint64_t direct_max_bytes) {
  PlanRequest request;
  request.kind = OpKind::kAllReduce;
  request.dtype = DType::kU64;
  request.reduction = ReduceOp::kSum;
  request.elements = count;
  request.direct_max_bytes = direct_max_bytes;
  return request;
}

// Neither commutative nor associative: any other order of the ranks gives another result.
uint64_t Combine(uint64_t a, uint64_t b) { return a * 0x9e3779b97f4a7c15ull + (b ^ (a >> 29)); }

uint64_t ReadElement(const std::byte* at) {
  uint64_t v = 0;
  std::memcpy(&v, at, kElement);
  return v;
}

// (from process, to process, stage, from member, to member)
using MessageName = std::tuple<int, int, size_t, uint32_t, uint32_t>;

struct Process {
  ProcessId id{};
  Schedule schedule;
  std::vector<Vector*> inputs, outputs;  // of the local members, in group order
  Vector scratch;
  size_t stage = 0;
  std::vector<std::function<bool()>> items;  // of the stage; false: not possible yet
};

class Simulator {
 public:
  Simulator(const std::vector<Member>& group, std::vector<Vector>* inputs,
            std::vector<Vector>* outputs, const std::function<Schedule(ProcessId)>& make)
      : group_(group) {
    std::set<int> ids;
    for (const Member& m : group) ids.insert(ToInt(m.process));
    for (int id : ids) {
      Process p;
      p.id = static_cast<ProcessId>(id);
      p.schedule = make(p.id);
      for (size_t m = 0; m < group.size(); ++m) {
        if (group[m].process != p.id) continue;
        p.inputs.push_back(&(*inputs)[m]);
        p.outputs.push_back(&(*outputs)[m]);
      }
      p.scratch.assign(p.schedule.scratch_bytes, kPoison);
      processes_.push_back(std::move(p));
    }
  }

  // Every send meets exactly one receive of the same size, slices lie in their buffers, peers are
  // others.
  void CheckShape() {
    std::map<MessageName, uint64_t> sends, receives;
    for (const Process& p : processes_) {
      for (size_t s = 0; s < p.schedule.stages.size(); ++s) {
        const Stage& stage = p.schedule.stages[s];
        for (const Transfer& t : stage.sends) {
          CheckSlice(p, t.slice);
          ASSERT_NE(t.peer, p.id);
          ASSERT_TRUE(
              sends.emplace(MessageName{ToInt(p.id), ToInt(t.peer), s, t.from, t.to}, t.slice.bytes)
                  .second);
          ASSERT_EQ(group_[t.from].process, p.id);
          ASSERT_EQ(group_[t.to].process, t.peer);
          bytes_sent_ += t.slice.bytes;
        }
        for (const Transfer& t : stage.receives) {
          CheckSlice(p, t.slice);
          ASSERT_TRUE(
              receives
                  .emplace(MessageName{ToInt(t.peer), ToInt(p.id), s, t.from, t.to}, t.slice.bytes)
                  .second);
        }
        for (const Copy& c : stage.copies) {
          if (c.from.kind != BufferKind::kZero) CheckSlice(p, c.from);
          CheckSlice(p, c.to);
          ASSERT_EQ(c.from.bytes, c.to.bytes);
        }
        for (const Reduction& r : stage.reductions) {
          ASSERT_FALSE(r.to.empty());
          for (const Slice& slice : r.from) CheckSlice(p, slice);
          for (const Slice& slice : r.to) CheckSlice(p, slice);
        }
      }
    }
    ASSERT_EQ(sends, receives);
  }

  // False when no item of any process can go on: a deadlock.
  bool Run(std::mt19937* random) {
    for (Process& p : processes_) Fill(&p);
    for (;;) {
      std::vector<std::pair<Process*, size_t>> choices;
      for (Process& p : processes_) {
        for (size_t i = 0; i < p.items.size(); ++i) choices.emplace_back(&p, i);
      }
      if (choices.empty()) return true;
      std::shuffle(choices.begin(), choices.end(), *random);
      const bool moved = std::any_of(choices.begin(), choices.end(), [&](const auto& choice) {
        auto& [p, i] = choice;
        if (!p->items[i]()) return false;
        p->items.erase(p->items.begin() + static_cast<ptrdiff_t>(i));
        if (p->items.empty()) EndStage(p);
        return true;
      });
      if (!moved) return false;
    }
  }

  uint64_t bytes_sent() const { return bytes_sent_; }

 private:
  static Vector& BufferOf(const Process& p, const Slice& s) {
    switch (s.kind) {
      case BufferKind::kInput:
        return *p.inputs[s.local];
      case BufferKind::kOutput:
        return *p.outputs[s.local];
      case BufferKind::kScratch:
      case BufferKind::kZero:
        break;
    }
    return const_cast<Vector&>(p.scratch);
  }
  void CheckSlice(const Process& p, const Slice& s) {
    ASSERT_LT(s.kind == BufferKind::kScratch ? 0 : s.local, p.inputs.size());
    // Only a barrier's messages are empty; they have no place in any buffer.
    if (s.bytes == 0) {
      ASSERT_EQ(s.kind, BufferKind::kScratch);
      return;
    }
    ASSERT_LE(s.offset + s.bytes, BufferOf(p, s).size());
  }
  static std::byte* At(const Process& p, const Slice& s) {
    return BufferOf(p, s).data() + s.offset;
  }

  void Fill(Process* p) {
    if (p->stage == p->schedule.stages.size()) return;
    const size_t s = p->stage;
    const Stage& stage = p->schedule.stages[s];
    for (const Transfer& t : stage.sends) {
      p->items.push_back([this, p, s, &t] {
        Vector data(At(*p, t.slice), At(*p, t.slice) + t.slice.bytes);
        wire_[{ToInt(p->id), ToInt(t.peer), s, t.from, t.to}] = std::move(data);
        return true;
      });
    }
    for (const Transfer& t : stage.receives) {
      p->items.push_back([this, p, s, &t] {
        const auto it = wire_.find({ToInt(t.peer), ToInt(p->id), s, t.from, t.to});
        if (it == wire_.end()) return false;
        std::copy(it->second.begin(), it->second.end(), At(*p, t.slice));
        wire_.erase(it);
        return true;
      });
    }
    for (const Copy& c : stage.copies) {
      p->items.push_back([p, &c] {
        if (c.from.kind == BufferKind::kZero) {
          std::fill_n(At(*p, c.to), c.to.bytes, std::byte{0});
        } else {
          std::copy_n(At(*p, c.from), c.from.bytes, At(*p, c.to));
        }
        return true;
      });
    }
    if (p->items.empty()) EndStage(p);
  }
  void EndStage(Process* p) {
    for (const Reduction& r : p->schedule.stages[p->stage].reductions) {
      for (uint64_t at = 0; at < r.to[0].bytes; at += kElement) {
        uint64_t value = ReadElement(At(*p, r.from[0]) + at);
        for (size_t k = 1; k < r.from.size(); ++k)
          value = Combine(value, ReadElement(At(*p, r.from[k]) + at));
        for (const Slice& to : r.to) std::memcpy(At(*p, to) + at, &value, kElement);
      }
    }
    ++p->stage;
    Fill(p);
  }

  const std::vector<Member>& group_;
  std::vector<Process> processes_;
  std::map<MessageName, Vector> wire_;
  uint64_t bytes_sent_ = 0;
};

std::vector<Vector> RandomVectors(size_t n, uint64_t bytes, std::mt19937* random) {
  std::vector<Vector> all(n, Vector(bytes));
  for (Vector& v : all) {
    for (std::byte& b : v) b = static_cast<std::byte>((*random)());
  }
  return all;
}

// `n` ranks somewhere on at most `processes` processes: uneven, interleaved, process numbers with
// gaps.
std::vector<Member> RandomGroup(size_t n, size_t processes, std::mt19937* random) {
  std::vector<Member> group;
  for (size_t r = 0; r < n; ++r) {
    const auto p = static_cast<int32_t>((*random)() % processes);
    group.push_back({static_cast<int64_t>(100 + r), static_cast<ProcessId>(7 * p + 1)});
  }
  return group;
}

// `per` ranks on each of `processes`, in order.
std::vector<Member> BlockGroup(size_t processes, size_t per) {
  std::vector<Member> group;
  for (size_t r = 0; r < processes * per; ++r) {
    group.push_back(
        {static_cast<int64_t>(r), static_cast<ProcessId>(static_cast<int32_t>(r / per))});
  }
  return group;
}

uint64_t CheckAllToAll(const std::vector<Member>& group, uint64_t chunk, std::mt19937* random) {
  const size_t n = group.size();
  std::vector<Vector> in = RandomVectors(n, n * chunk, random), out(n, Vector(n * chunk, kPoison));
  Simulator sim(group, &in, &out, [&](ProcessId p) {
    return MakeSchedule(Movement(OpKind::kAllToAll, n * chunk), group, p);
  });
  sim.CheckShape();
  if (testing::Test::HasFatalFailure()) return 0;
  EXPECT_TRUE(sim.Run(random)) << "stuck";
  for (size_t to = 0; to < n; ++to) {
    for (size_t from = 0; from < n; ++from) {
      const std::byte* sent = in[from].data() + to * chunk;
      EXPECT_TRUE(std::equal(sent, sent + chunk, out[to].data() + from * chunk))
          << "from " << from << " to " << to;
    }
  }
  return sim.bytes_sent();
}

uint64_t CheckAllReduce(const std::vector<Member>& group, uint64_t count, uint64_t direct_max,
                        std::mt19937* random) {
  const size_t n = group.size();
  std::vector<Vector> in = RandomVectors(n, count * kElement, random),
                      out(n, Vector(count * kElement, kPoison));
  Simulator sim(group, &in, &out,
                [&](ProcessId p) { return MakeSchedule(Sum(count, direct_max), group, p); });
  sim.CheckShape();
  if (testing::Test::HasFatalFailure()) return 0;
  EXPECT_TRUE(sim.Run(random)) << "stuck";
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t want = ReadElement(&in[0][i * kElement]);
    for (size_t r = 1; r < n; ++r) want = Combine(want, ReadElement(&in[r][i * kElement]));
    for (size_t r = 0; r < n; ++r) {
      EXPECT_EQ(ReadElement(&out[r][i * kElement]), want) << "rank " << r << " element " << i;
    }
  }
  return sim.bytes_sent();
}

// What each rank's output must be, by the table of PlanRequest. `c` elements in a row.
std::vector<Vector> Expected(const PlanRequest& request, const std::vector<Vector>& in, size_t c) {
  const size_t n = in.size(), row = c * kElement;
  const auto all_zero = Vector(row, std::byte{0});
  std::vector<Vector> out(n);
  for (size_t r = 0; r < n; ++r) {
    switch (request.kind) {
      case OpKind::kAllGather:
        for (const Vector& v : in) out[r].insert(out[r].end(), v.begin(), v.end());
        break;
      case OpKind::kBroadcast:
        out[r] = in[request.root];
        break;
      case OpKind::kPermute:
        out[r] = all_zero;
        for (size_t k = 0; k < request.permutation.size(); k += 2) {
          if (request.permutation[k + 1] == static_cast<int64_t>(r))
            out[r] = in[static_cast<size_t>(request.permutation[k])];
        }
        break;
      case OpKind::kReduceScatter:
        out[r].resize(row);
        for (size_t i = 0; i < c; ++i) {
          uint64_t value = ReadElement(&in[0][r * row + i * kElement]);
          for (size_t m = 1; m < n; ++m)
            value = Combine(value, ReadElement(&in[m][r * row + i * kElement]));
          std::memcpy(&out[r][i * kElement], &value, kElement);
        }
        break;
      default:
        break;
    }
  }
  return out;
}

// Runs the operation with `c` elements in a row on every rank; returns the bytes sent.
uint64_t CheckOther(OpKind kind, const std::vector<Member>& group, size_t c, std::mt19937* random) {
  const size_t n = group.size();
  PlanRequest request;
  request.kind = kind;
  request.dtype = DType::kU64;
  request.reduction = kind == OpKind::kReduceScatter ? ReduceOp::kSum : ReduceOp::kNone;
  request.elements = kind == OpKind::kReduceScatter ? n * c : c;
  request.root = static_cast<uint32_t>((*random)() % n);
  if (kind == OpKind::kPermute) {
    // A random part of a random permutation.
    std::vector<int64_t> targets(n);
    for (size_t i = 0; i < n; ++i) targets[i] = static_cast<int64_t>(i);
    std::shuffle(targets.begin(), targets.end(), *random);
    for (size_t i = 0; i < n; ++i) {
      if ((*random)() % 4 == 0) continue;
      request.permutation.push_back(static_cast<int64_t>(i));
      request.permutation.push_back(targets[i]);
    }
  }
  std::vector<Vector> in = RandomVectors(n, request.elements * kElement, random);
  std::vector<Vector> want = Expected(request, in, c), out;
  for (const Vector& v : want) out.emplace_back(v.size(), kPoison);
  Simulator sim(group, &in, &out, [&](ProcessId p) { return MakeSchedule(request, group, p); });
  sim.CheckShape();
  if (testing::Test::HasFatalFailure()) return 0;
  EXPECT_TRUE(sim.Run(random)) << "stuck";
  for (size_t r = 0; r < n; ++r) EXPECT_TRUE(out[r] == want[r]) << "rank " << r;
  return sim.bytes_sent();
}

std::string Text(const std::vector<Member>& group) {
  std::string s = "processes";
  for (const Member& m : group) s += " " + std::to_string(ToInt(m.process));
  return s;
}

TEST(Schedule, AllToAll_AnyPlacement) {
  std::mt19937 random(11);
  for (size_t n = 1; n <= 24; ++n) {
    for (size_t processes = 1; processes <= 6; ++processes) {
      const std::vector<Member> group = RandomGroup(n, processes, &random);
      for (uint64_t chunk : {0, 1, 5}) {
        SCOPED_TRACE(Text(group) + " chunk " + std::to_string(chunk));
        CheckAllToAll(group, chunk, &random);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(Schedule, AllReduce_AnyPlacementAnySize) {
  std::mt19937 random(12);
  for (size_t n = 1; n <= 24; ++n) {
    for (size_t processes = 1; processes <= 6; ++processes) {
      const std::vector<Member> group = RandomGroup(n, processes, &random);
      // Fewer elements than processes leave some without a part.
      for (uint64_t count : {0, 1, 2, 3, 4, 5, 6, 7, 29}) {
        for (uint64_t direct_max : {uint64_t{0}, 3 * kElement, uint64_t{1} << 20}) {
          SCOPED_TRACE(Text(group) + " count " + std::to_string(count) + " direct " +
                       std::to_string(direct_max));
          CheckAllReduce(group, count, direct_max, &random);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(Schedule, OtherKinds_AnyPlacementAnySize) {
  std::mt19937 random(15);
  for (OpKind kind : {OpKind::kAllGather, OpKind::kReduceScatter, OpKind::kPermute,
                      OpKind::kBroadcast, OpKind::kBarrier}) {
    for (size_t n = 1; n <= 24; ++n) {
      for (size_t processes = 1; processes <= 6; ++processes) {
        const std::vector<Member> group = RandomGroup(n, processes, &random);
        for (size_t c : {0, 1, 3}) {
          SCOPED_TRACE(std::string(OpKindName(kind)) + " " + Text(group) + " row " +
                       std::to_string(c));
          CheckOther(kind, group, c, &random);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(Schedule, OtherKinds_BytesSent) {
  std::mt19937 random(16);
  const uint64_t c = 6, s = c * kElement;
  for (const auto& [processes, per] :
       {std::pair<uint64_t, uint64_t>{1, 8}, {2, 4}, {4, 1}, {3, 2}}) {
    const std::vector<Member> group = BlockGroup(processes, per);
    const uint64_t n = processes * per, others = processes - 1;
    SCOPED_TRACE(Text(group));
    // Each input goes to each other process once.
    EXPECT_EQ(CheckOther(OpKind::kAllGather, group, c, &random), n * others * s);
    EXPECT_EQ(CheckOther(OpKind::kBroadcast, group, c, &random), others * s);
    // Each rank sends a row to each rank elsewhere.
    EXPECT_EQ(CheckOther(OpKind::kReduceScatter, group, c, &random), n * (n - per) * s);
    EXPECT_EQ(CheckOther(OpKind::kBarrier, group, c, &random), 0u);
  }
}

// Messages of the first stage may leave when one of the process's ranks is here.
TEST(Schedule, Barrier_SendsNothingBeforeAllLocalRanksAreHere) {
  const std::vector<Member> group = BlockGroup(3, 2);
  PlanRequest request;
  request.kind = OpKind::kBarrier;
  const Schedule s = MakeSchedule(request, group, ProcessId{1});
  ASSERT_EQ(s.stages.size(), 2u);
  EXPECT_TRUE(s.stages[0].sends.empty());
  EXPECT_EQ(s.stages[1].sends.size(), 2u);
}

// A ragged exchange has one item for each pair of ranks; sizes come with the calls.
TEST(Schedule, RaggedAllToAll_PairsEveryRankWithEveryOther) {
  std::mt19937 random(17);
  for (size_t n : {1u, 2u, 3u, 7u, 12u}) {
    const std::vector<Member> group = RandomGroup(n, 3, &random);
    PlanRequest request;
    request.kind = OpKind::kRaggedAllToAll;
    request.dtype = DType::kF32;
    std::multiset<std::pair<uint32_t, uint32_t>> sent, received, copied;
    std::set<ProcessId> processes;
    for (const Member& m : group) processes.insert(m.process);
    for (ProcessId p : processes) {
      const Schedule s = MakeSchedule(request, group, p);
      ASSERT_EQ(s.stages.size(), 1u);
      for (const Transfer& t : s.stages[0].sends) sent.emplace(t.from, t.to);
      for (const Transfer& t : s.stages[0].receives) received.emplace(t.from, t.to);
      for (const Copy& c : s.stages[0].copies) copied.emplace(c.source, c.target);
    }
    EXPECT_EQ(sent, received);
    EXPECT_EQ(sent.size() + copied.size(), n * n);
    for (uint32_t a = 0; a < n; ++a) {
      for (uint32_t b = 0; b < n; ++b) EXPECT_EQ(sent.count({a, b}) + copied.count({a, b}), 1u);
    }
  }
}

TEST(Schedule, AllReduce_ManyOrdersOfOnePlacement) {
  std::mt19937 random(13);
  const std::vector<Member> group = RandomGroup(7, 3, &random);
  for (int i = 0; i < 200 && !HasFailure(); ++i) CheckAllReduce(group, 10, 0, &random);
}

TEST(Schedule, BytesSent_AreThoseOfTheHeader) {
  std::mt19937 random(14);
  for (const auto& [processes, per] :
       {std::pair<uint64_t, uint64_t>{1, 8}, {2, 4}, {4, 1}, {3, 2}}) {
    const std::vector<Member> group = BlockGroup(processes, per);
    const uint64_t count = 12, s = count * kElement, n = processes * per, others = processes - 1;
    SCOPED_TRACE(Text(group));
    // Each rank sends s/n to each rank elsewhere.
    EXPECT_EQ(CheckAllToAll(group, s / n, &random), n * (n - per) * (s / n));
    // Direct: each rank sends s to each other process.
    EXPECT_EQ(CheckAllReduce(group, count, s, &random), n * others * s);
    // Split: L*s*(P-1)/P + s*(P-1)/P leave each process.
    EXPECT_EQ(CheckAllReduce(group, count, s - 1, &random), (per + 1) * s * others);
  }
}

TEST(Schedule, OneProcess_SendsNothingAndNeedsNoScratch) {
  const std::vector<Member> group = BlockGroup(1, 8);
  for (const Schedule& s : {MakeSchedule(Movement(OpKind::kAllToAll, 64), group, ProcessId{0}),
                            MakeSchedule(Sum(1 << 20, 0), group, ProcessId{0})}) {
    ASSERT_EQ(s.stages.size(), 1u);
    EXPECT_TRUE(s.stages[0].sends.empty() && s.stages[0].receives.empty());
    EXPECT_EQ(s.scratch_bytes, 0u);
  }
}

TEST(Schedule, NoBytes_NoStages) {
  const std::vector<Member> group = BlockGroup(2, 2);
  EXPECT_TRUE(MakeSchedule(Movement(OpKind::kAllToAll, 0), group, ProcessId{1}).stages.empty());
  EXPECT_TRUE(MakeSchedule(Sum(0, 0), group, ProcessId{1}).stages.empty());
}

}  // namespace
}  // namespace uccl::coll
