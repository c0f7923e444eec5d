// The table of registry.h.
#include "csrc/collectives/algorithms/registry.h"

#include <array>

#include "csrc/collectives/algorithms/reduction_tree.h"

namespace uccl::coll {
namespace {

// Of one collective the simplest first: where two cost the same, the first is taken.
constexpr std::array kAlgorithms = {
    Algorithm{OpKind::kAllReduce, "direct", 1, false, &AllReduceDirect,
              "every rank's vector goes to every process, which reduces all; one step"},
    Algorithm{OpKind::kAllReduce, "partials", 3, false, &AllReducePartials,
              "every process sends the partial results of its ranks to every other; one step"},
    Algorithm{OpKind::kAllReduce, "doubling", 4, false, &AllReduceDoubling,
              "partial results of twice as many processes in every step; log2(P) steps"},
    Algorithm{OpKind::kAllReduce, "split", 2, false, &AllReduceSplit,
              "every process reduces one part of every rank's vector and sends it around; two "
              "steps"},
    Algorithm{OpKind::kAllReduce, "two_level", 6, false, &AllReduceTwoLevel,
              "ranks of a process, processes of a host, hosts: each level reduces before the next "
              "sends, and back; two steps, four with several hosts"},
    Algorithm{OpKind::kAllReduce, "halving", 5, false, &AllReduceHalving,
              "parts of half the size and of twice as many processes in every step, and back; "
              "2*log2(P) steps"},
    Algorithm{OpKind::kAllReduce, "ring", 7, true, &AllReduceRing,
              "parts travel around a ring and grow, then once more; 2*(P-1) steps"},

    Algorithm{OpKind::kReduceScatter, "direct", 1, false, &ReduceScatterDirect,
              "every rank sends each rank its row; one step"},
    Algorithm{OpKind::kReduceScatter, "partials", 2, false, &ReduceScatterPartials,
              "every process sends each other one the partial results of its ranks; one step"},
    Algorithm{OpKind::kReduceScatter, "ring", 3, true, &ReduceScatterRing,
              "rows travel around a ring and grow; P-1 steps"},

    Algorithm{OpKind::kAllGather, "direct", 1, false, &AllGatherDirect,
              "every rank's input goes to every process; one step"},
    Algorithm{OpKind::kAllGather, "packed", 2, false, &AllGatherPacked,
              "the inputs of a process go to every other one in one message; one step"},
    Algorithm{OpKind::kAllGather, "bruck", 3, false, &AllGatherBruck,
              "twice as many inputs in every step; log2(P) steps"},
    Algorithm{OpKind::kAllGather, "ring", 4, false, &AllGatherRing,
              "inputs travel around a ring; P-1 steps"},

    Algorithm{OpKind::kAllToAll, "direct", 1, false, &AllToAllDirect,
              "one message for each pair of ranks; one step"},
    Algorithm{OpKind::kAllToAll, "packed", 2, false, &AllToAllPacked,
              "one message for each pair of processes; one step, two copies"},
    Algorithm{OpKind::kAllToAll, "bruck", 3, false, &AllToAllBruck,
              "half of everything moves on in every step; log2(P) steps"},

    Algorithm{OpKind::kBroadcast, "direct", 1, false, &BroadcastDirect,
              "the root's process sends to every other one; one step"},
    Algorithm{OpKind::kBroadcast, "binomial", 2, false, &BroadcastBinomial,
              "whoever has the data sends it on; log2(P) steps"},

    Algorithm{OpKind::kBarrier, "direct", 1, false, &BarrierDirect,
              "an empty message from every process to every other one; one step"},
    Algorithm{OpKind::kBarrier, "dissemination", 2, false, &BarrierDissemination,
              "one empty message from every process in every step; log2(P) steps"},

    Algorithm{OpKind::kPermute, "direct", 1, false, &PermuteDirect,
              "one message for each pair; one step"},
    Algorithm{OpKind::kRaggedAllToAll, "direct", 1, false, &RaggedAllToAllDirect,
              "one message for each pair of ranks; one step"},
};

}  // namespace

std::span<const Algorithm> Algorithms() { return kAlgorithms; }

const Algorithm* FindAlgorithm(OpKind kind, std::string_view name) {
  for (const Algorithm& algorithm : kAlgorithms) {
    if (algorithm.kind == kind && algorithm.name == name) return &algorithm;
  }
  return nullptr;
}

std::string AlgorithmNames(OpKind kind) {
  std::string names;
  for (const Algorithm& algorithm : kAlgorithms) {
    if (algorithm.kind == kind) names += (names.empty() ? "" : ", ") + std::string(algorithm.name);
  }
  return names;
}

std::string AlgorithmName(OpKind kind, uint8_t code) {
  for (const Algorithm& algorithm : kAlgorithms) {
    if (algorithm.kind == kind && algorithm.code == code) return algorithm.name;
  }
  return "algorithm " + std::to_string(code);
}

bool IsEligible(const Algorithm& algorithm, const PlanRequest& request) {
  if (algorithm.kind != request.kind) return false;
  return !algorithm.free_order || request.any_order || ExactInAnyOrder(request.dtype);
}

bool Moves(const PlanRequest& request) {
  return request.elements > 0 || request.kind == OpKind::kBarrier ||
         request.kind == OpKind::kRaggedAllToAll;
}

Schedule MakeSchedule(const Algorithm& algorithm, const PlanRequest& request,
                      const std::vector<Member>& group, ProcessId self) {
  if (!Moves(request)) return {};
  return algorithm.make(request, GroupView(request, group, self));
}

}  // namespace uccl::coll
