// The fixed tree of reduce.h as data: which partial results exist in it, and how they are joined.
//
// Over n ranks a node is an interval [lo, hi) of them; its children are [lo, mid) and [mid, hi)
// with mid - lo the largest power of two below hi - lo. A set of ranks owns the maximal nodes that
// lie within it; these are the partial results that it can form without changing a bit of the sum.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "csrc/collectives/algorithms/group_view.h"
#include "csrc/collectives/schedule.h"

namespace uccl::coll {

struct TreeNode {
  uint32_t lo = 0, hi = 0;
  uint32_t size() const { return hi - lo; }
  uint32_t middle() const;  // size() > 1
  auto operator<=>(const TreeNode&) const = default;
};

// The maximal nodes inside these runs, left to right.
std::vector<TreeNode> MaximalNodes(uint32_t n, const std::vector<Run>& runs);

// Whether partial results of more than one rank need a wider type than the elements: 16-bit floats
// accumulate in float32 (reduce.h). Maxima and minima are exact in any type.
bool AccumulatesWide(DType dtype, ReduceOp op);

// Whether every order of adding gives the same bits: integers and booleans. Not so maxima of
// floats, where the order decides between -0 and +0.
bool ExactInAnyOrder(DType dtype);

// Where the value of a node is; all slices of one map hold the same elements.
using NodeValues = std::map<TreeNode, Slice>;

// Computes nodes from others with as few reductions as their shape allows.
class TreeReducer final {
 public:
  // `elements` in each slice. Intermediate results go to scratch.
  TreeReducer(const PlanRequest& request, uint64_t elements, Scratch* scratch,
              std::vector<Reduction>* reductions);
  // Appends what computes `node` from `values`, which must cover it.
  void Reduce(const TreeNode& node, const NodeValues& values, std::vector<Slice> to);
  // The same into scratch.
  Slice Reduce(const TreeNode& node, const NodeValues& values);

 private:
  // The number of values below `node`; 0 when a tree over so many inputs has another shape.
  static uint32_t CanonicalLeaves(const TreeNode& node, const NodeValues& values);
  static void Collect(const TreeNode& node, const NodeValues& values, std::vector<Slice>* leaves);
  Slice ValueOf(const TreeNode& node, const NodeValues& values);

  const bool wide_;
  const uint64_t bytes_;  // of a partial result
  Scratch* const scratch_;
  std::vector<Reduction>* const reductions_;
};

}  // namespace uccl::coll
