// Walks over the tree of reduce.h.
#include "csrc/collectives/algorithms/reduction_tree.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "csrc/collectives/dtype.h"

namespace uccl::coll {
namespace {

// Nodes of the subtree `node` that lie in [begin, end).
void AddNodes(const TreeNode& node, const Run& run, std::vector<TreeNode>* nodes) {
  if (node.hi <= run.begin || node.lo >= run.end) return;
  if (run.begin <= node.lo && node.hi <= run.end) {
    nodes->push_back(node);
    return;
  }
  const uint32_t middle = node.middle();
  AddNodes({node.lo, middle}, run, nodes);
  AddNodes({middle, node.hi}, run, nodes);
}

}  // namespace

uint32_t TreeNode::middle() const { return lo + std::bit_floor(size() - 1); }

std::vector<TreeNode> MaximalNodes(uint32_t n, const std::vector<Run>& runs) {
  std::vector<TreeNode> nodes;
  for (const Run& run : runs) AddNodes({0, n}, run, &nodes);
  return nodes;
}

bool AccumulatesWide(DType dtype, ReduceOp op) {
  const bool narrow = dtype == DType::kF16 || dtype == DType::kBF16;
  return narrow && (op == ReduceOp::kSum || op == ReduceOp::kProd);
}

bool ExactInAnyOrder(DType dtype) {
  switch (dtype) {
    case DType::kPred:
    case DType::kS8:
    case DType::kS16:
    case DType::kS32:
    case DType::kS64:
    case DType::kU8:
    case DType::kU16:
    case DType::kU32:
    case DType::kU64:
      return true;
    default:
      return false;
  }
}

TreeReducer::TreeReducer(const PlanRequest& request, uint64_t elements, Scratch* scratch,
                         std::vector<Reduction>* reductions)
    : wide_(AccumulatesWide(request.dtype, request.reduction)),
      bytes_(elements * (wide_ ? kWideBytes : DTypeBytes(request.dtype))),
      scratch_(scratch),
      reductions_(reductions) {}

uint32_t TreeReducer::CanonicalLeaves(const TreeNode& node, const NodeValues& values) {
  if (values.contains(node)) return 1;
  const uint32_t middle = node.middle();
  const uint32_t left = CanonicalLeaves({node.lo, middle}, values);
  const uint32_t right = CanonicalLeaves({middle, node.hi}, values);
  if (left == 0 || right == 0 || left != std::bit_floor(left + right - 1)) return 0;
  return left + right;
}

void TreeReducer::Collect(const TreeNode& node, const NodeValues& values,
                          std::vector<Slice>* leaves) {
  if (const auto it = values.find(node); it != values.end()) {
    leaves->push_back(it->second);
    return;
  }
  const uint32_t middle = node.middle();
  Collect({node.lo, middle}, values, leaves);
  Collect({middle, node.hi}, values, leaves);
}

Slice TreeReducer::ValueOf(const TreeNode& node, const NodeValues& values) {
  const auto it = values.find(node);
  return it != values.end() ? it->second : Reduce(node, values);
}

Slice TreeReducer::Reduce(const TreeNode& node, const NodeValues& values) {
  const Slice to = scratch_->Take(bytes_, wide_);
  Reduce(node, values, {to});
  return to;
}

void TreeReducer::Reduce(const TreeNode& node, const NodeValues& values, std::vector<Slice> to) {
  Reduction reduction;
  if (CanonicalLeaves(node, values) > 0) {
    Collect(node, values, &reduction.from);
  } else {
    const uint32_t middle = node.middle();
    // The order of these two is the order of their reductions.
    const Slice left = ValueOf({node.lo, middle}, values);
    reduction.from = {left, ValueOf({middle, node.hi}, values)};
  }
  reduction.to = std::move(to);
  reductions_->push_back(std::move(reduction));
}

}  // namespace uccl::coll
