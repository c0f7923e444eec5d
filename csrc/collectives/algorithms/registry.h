// The algorithms of every collective. To add one: a function in one of the files of this folder, a
// declaration and a row here. Checker, costs, tests, settings and documentation follow the table.
//
// All are pure functions of the request and of who lives where, and every process derives its own
// part of the same whole from them. In comments: n ranks on P processes, L of them on one, s bytes
// per rank.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/collectives/algorithms/group_view.h"
#include "csrc/collectives/schedule.h"

namespace uccl::coll {

struct Algorithm {
  OpKind kind{};
  const char* name = nullptr;
  // Travels in messages: append within a collective, never renumber; below 32.
  uint8_t code = 0;
  // Adds in an order of its own: only where every order gives the same bits, or was allowed.
  bool free_order = false;
  Schedule (*make)(const PlanRequest& request, const GroupView& view) = nullptr;
  const char* summary = nullptr;  // for docs/collectives.md
};

std::span<const Algorithm> Algorithms();
// Null when there is none.
const Algorithm* FindAlgorithm(OpKind kind, std::string_view name);
// "direct, ring" of one collective.
std::string AlgorithmNames(OpKind kind);
// "direct", or "algorithm 9" for a code of a peer that is not known here.
std::string AlgorithmName(OpKind kind, uint8_t code);

// Whether the result has the bits that the request demands.
bool IsEligible(const Algorithm& algorithm, const PlanRequest& request);

// Whether there is anything to do between ranks: barriers always wait, and only the calls of a
// ragged exchange know its sizes.
bool Moves(const PlanRequest& request);

// What process `self` does. No stages when there are no bytes to move.
Schedule MakeSchedule(const Algorithm& algorithm, const PlanRequest& request,
                      const std::vector<Member>& group, ProcessId self);

// all_reduce.cc
Schedule AllReduceDirect(const PlanRequest& request, const GroupView& view);
Schedule AllReduceSplit(const PlanRequest& request, const GroupView& view);
Schedule AllReducePartials(const PlanRequest& request, const GroupView& view);
Schedule AllReduceDoubling(const PlanRequest& request, const GroupView& view);
Schedule AllReduceHalving(const PlanRequest& request, const GroupView& view);
Schedule AllReduceTwoLevel(const PlanRequest& request, const GroupView& view);
// reduce_scatter.cc
Schedule ReduceScatterDirect(const PlanRequest& request, const GroupView& view);
Schedule ReduceScatterPartials(const PlanRequest& request, const GroupView& view);
// all_gather.cc
Schedule AllGatherDirect(const PlanRequest& request, const GroupView& view);
Schedule AllGatherPacked(const PlanRequest& request, const GroupView& view);
Schedule AllGatherBruck(const PlanRequest& request, const GroupView& view);
Schedule AllGatherRing(const PlanRequest& request, const GroupView& view);
// ring.cc
Schedule AllReduceRing(const PlanRequest& request, const GroupView& view);
Schedule ReduceScatterRing(const PlanRequest& request, const GroupView& view);
// all_to_all.cc
Schedule AllToAllDirect(const PlanRequest& request, const GroupView& view);
Schedule AllToAllPacked(const PlanRequest& request, const GroupView& view);
Schedule AllToAllBruck(const PlanRequest& request, const GroupView& view);
Schedule RaggedAllToAllDirect(const PlanRequest& request, const GroupView& view);
// broadcast.cc
Schedule BroadcastDirect(const PlanRequest& request, const GroupView& view);
Schedule BroadcastBinomial(const PlanRequest& request, const GroupView& view);
// permute.cc
Schedule PermuteDirect(const PlanRequest& request, const GroupView& view);
// barrier.cc
Schedule BarrierDirect(const PlanRequest& request, const GroupView& view);
Schedule BarrierDissemination(const PlanRequest& request, const GroupView& view);

}  // namespace uccl::coll
