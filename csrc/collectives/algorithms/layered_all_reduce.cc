// The ranges of every process on every level, and the stages that follow from them.
#include "csrc/collectives/algorithms/layered_all_reduce.h"

#include <algorithm>
#include <utility>

#include "csrc/collectives/algorithms/reduction_tree.h"
#include "csrc/collectives/dtype.h"

namespace uccl::coll {
namespace {

// Elements [begin, end).
struct Range {
  uint64_t begin = 0, end = 0;
  uint64_t size() const { return end - begin; }
  bool empty() const { return begin >= end; }
  bool Holds(const Range& other) const { return begin <= other.begin && other.end <= end; }
};
Range Common(const Range& a, const Range& b) {
  const Range r{std::max(a.begin, b.begin), std::min(a.end, b.end)};
  return r.empty() ? Range{} : r;
}

class Planner final {
 public:
  Planner(const PlanRequest& request, const GroupView& view, const BlockLevels& levels,
          Division division)
      : request_(request),
        view_(view),
        levels_(levels),
        replicate_(division == Division::kReplicate),
        wide_(AccumulatesWide(request.dtype, request.reduction)),
        element_(DTypeBytes(request.dtype)),
        scratch_(&schedule_),
        spread_(view.num_locals()) {
    for (size_t l = 0; l < levels.size(); ++l) AddLevel(l);
  }

  Schedule Make() {
    ReduceLocals();
    for (size_t l = 1; l < levels_.size(); ++l) Up(l);
    if (!replicate_) {
      for (size_t l = levels_.size() - 1; l-- > 0;) Down(l);
      spread_.Finish(&schedule_);
    }
    return std::move(schedule_);
  }

 private:
  void AddLevel(size_t l) {
    block_of_.emplace_back(view_.num_processes());
    ranges_.emplace_back(view_.num_processes());
    orders_.emplace_back();
    for (uint32_t b = 0; b < levels_[l].size(); ++b) {
      const Block& block = levels_[l][b];
      for (uint32_t p : block) block_of_[l][p] = b;
      orders_[l].push_back(OrderOf(l, block));
      const uint64_t count = request_.elements, parts = block.size();
      for (uint64_t i = 0; i < parts; ++i) {
        ranges_[l][orders_[l][b][i]] =
            replicate_ ? Range{0, count} : Range{count * i / parts, count * (i + 1) / parts};
      }
    }
  }

  // The blocks inside, as they appear in `block`.
  std::vector<uint32_t> ChildrenOf(size_t l, const Block& block) const {
    std::vector<uint32_t> children;
    std::vector<bool> seen(levels_[l - 1].size(), false);
    for (uint32_t p : block) {
      const uint32_t c = block_of_[l - 1][p];
      if (!seen[c]) children.push_back(c);
      seen[c] = true;
    }
    return children;
  }

  // Who has which part of the vector, in the order of the parts: interleaves the orders of the
  // blocks inside, so that the part a process gets lies in the one it has, as far as numbers allow.
  Block OrderOf(size_t l, const Block& block) const {
    if (l == 0) return block;
    struct Place {
      uint64_t index, size;
      uint32_t process;
    };
    std::vector<Place> places;
    for (uint32_t c : ChildrenOf(l, block)) {
      const Block& inside = orders_[l - 1][c];
      for (uint64_t i = 0; i < inside.size(); ++i) places.push_back({i, inside.size(), inside[i]});
    }
    // By the middle of the part: (index + 1/2) / size.
    std::stable_sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
      return (2 * a.index + 1) * b.size < (2 * b.index + 1) * a.size;
    });
    Block order;
    for (const Place& place : places) order.push_back(place.process);
    return order;
  }

  std::vector<TreeNode> NodesOf(const Block& block) const {
    std::vector<uint32_t> members;
    for (uint32_t p : block) {
      members.insert(members.end(), view_.processes[p].members.begin(),
                     view_.processes[p].members.end());
    }
    std::sort(members.begin(), members.end());
    return MaximalNodes(view_.num_members(), RunsOf(members));
  }

  const Block& MyBlock(size_t l) const { return levels_[l][block_of_[l][view_.self]]; }
  // The others of a block, beginning behind this process, so that not all send to the same one
  // first.
  std::vector<uint32_t> Others(const Block& block) const {
    std::vector<uint32_t> others(block);
    const auto me = std::find(others.begin(), others.end(), view_.self);
    std::rotate(others.begin(), me, others.end());
    others.erase(others.begin());
    return others;
  }

  bool IsWide(const TreeNode& node) const { return wide_ && node.size() > 1; }
  uint64_t Width(const Slice& slice) const { return slice.wide ? kWideBytes : element_; }
  // `part` of a slice that holds `whole`.
  Slice Cut(const Slice& slice, const Range& whole, const Range& part) const {
    const uint64_t width = Width(slice);
    return Part(slice, (part.begin - whole.begin) * width, part.size() * width);
  }
  Slice Place(uint32_t local, const Range& part) const {
    return Output(local, part.begin * element_, part.size() * element_);
  }

  // The partial results of this process. Stages are counted alike everywhere, so there is a stage
  // for this on all processes or on none.
  void ReduceLocals() {
    const Block all = levels_.back()[0];
    bool anybody = false;
    for (uint32_t p : all) {
      for (const TreeNode& node : NodesOf({p})) anybody |= node.size() > 1;
    }
    const uint64_t count = request_.elements;
    NodeValues inputs;
    for (uint32_t i = 0; i < view_.num_locals(); ++i) {
      const uint32_t m = view_.me().members[i];
      inputs[{m, m + 1}] = Input(i, 0, count * element_);
    }
    Stage stage;
    TreeReducer reducer(request_, count, &scratch_, &stage.reductions);
    for (const TreeNode& node : NodesOf({view_.self})) {
      held_[node] = node.size() == 1 ? inputs[node] : reducer.Reduce(node, inputs);
    }
    if (anybody) schedule_.stages.push_back(std::move(stage));
  }

  // What `from`, in block `child` of level l - 1, sends to `to` on the way up to level l.
  Range Sent(size_t l, uint32_t child, uint32_t from, uint32_t to) const {
    if (!replicate_) return Common(ranges_[l - 1][from], ranges_[l][to]);
    // Everybody in the block has the same; a partner each divides the work.
    const uint32_t target = block_of_[l - 1][to];
    if (target == child) return {};
    const Block& senders = levels_[l - 1][child];
    const Block& receivers = levels_[l - 1][target];
    const auto at = std::find(receivers.begin(), receivers.end(), to) - receivers.begin();
    return senders[static_cast<size_t>(at) % senders.size()] == from ? ranges_[l][to] : Range{};
  }

  // From the partial results of level l - 1 to those of level l.
  void Up(size_t l) {
    const Block& block = MyBlock(l);
    const uint32_t child = block_of_[l - 1][view_.self];
    const Range had = ranges_[l - 1][view_.self], mine = ranges_[l][view_.self];
    Stage stage;
    for (uint32_t q : Others(block)) {
      const Range part = Sent(l, child, view_.self, q);
      if (part.empty()) continue;
      uint32_t k = 0;
      for (const auto& [node, slice] : held_)
        stage.sends.push_back(view_.Sending(q, Cut(slice, had, part), k++));
    }
    NodeValues values;
    if (!mine.empty()) {
      for (uint32_t c : ChildrenOf(l, block)) ReceiveFrom(l, c, &stage, &values);
    }
    held_.clear();
    if (!mine.empty()) ReduceTo(l, values, &stage);
    schedule_.stages.push_back(std::move(stage));
  }

  // This process's part of the partial results of block `child`.
  void ReceiveFrom(size_t l, uint32_t child, Stage* stage, NodeValues* values) {
    const Range had = ranges_[l - 1][view_.self], mine = ranges_[l][view_.self];
    if (child == block_of_[l - 1][view_.self] && had.Holds(mine)) {
      for (const auto& [node, slice] : held_) (*values)[node] = Cut(slice, had, mine);
      return;
    }
    const std::vector<TreeNode> nodes = NodesOf(levels_[l - 1][child]);
    for (const TreeNode& node : nodes) {
      const bool wide = IsWide(node);
      (*values)[node] = scratch_.Take(mine.size() * (wide ? kWideBytes : element_), wide);
    }
    for (uint32_t p : levels_[l - 1][child]) {
      const Range part = Sent(l, child, p, view_.self);
      if (part.empty()) continue;
      uint32_t k = 0;
      for (const TreeNode& node : nodes) {
        const Slice to = Cut((*values)[node], mine, part);
        if (p == view_.self) {
          stage->copies.push_back({Cut(held_[node], had, part), to});
        } else {
          stage->receives.push_back(view_.Receiving(p, to, k));
        }
        ++k;
      }
    }
  }

  void ReduceTo(size_t l, const NodeValues& values, Stage* stage) {
    const Range mine = ranges_[l][view_.self];
    TreeReducer reducer(request_, mine.size(), &scratch_, &stage->reductions);
    if (l + 1 == levels_.size()) {
      std::vector<Slice> to;
      for (uint32_t i = 0; i < view_.num_locals(); ++i) to.push_back(Place(i, mine));
      reducer.Reduce({0, view_.num_members()}, values, std::move(to));
      return;
    }
    for (const TreeNode& node : NodesOf(MyBlock(l))) {
      const auto it = values.find(node);
      held_[node] = it != values.end() ? it->second : reducer.Reduce(node, values);
    }
  }

  // Results of level l + 1's ranges to level l's.
  void Down(size_t l) {
    Stage stage;
    spread_.AddCopies(&stage);
    for (uint32_t q : Others(MyBlock(l + 1))) {
      if (const Range part = Common(ranges_[l + 1][view_.self], ranges_[l][q]); !part.empty())
        stage.sends.push_back(view_.Sending(q, Place(0, part)));
      if (const Range part = Common(ranges_[l + 1][q], ranges_[l][view_.self]); !part.empty()) {
        stage.receives.push_back(view_.Receiving(q, Place(0, part)));
        spread_.Received(Place(0, part));
      }
    }
    schedule_.stages.push_back(std::move(stage));
  }

  const PlanRequest& request_;
  const GroupView& view_;
  const BlockLevels& levels_;
  const bool replicate_, wide_;
  const uint64_t element_;
  Schedule schedule_;
  Scratch scratch_;
  LocalSpread spread_;
  std::vector<std::vector<uint32_t>> block_of_;  // level, process -> block
  std::vector<std::vector<Range>> ranges_;       // level, process -> what it answers for
  std::vector<std::vector<Block>> orders_;       // level, block -> processes in order of ranges
  NodeValues held_;  // this process's partial results, of its range on the level reached
};

}  // namespace

Schedule LayeredAllReduce(const PlanRequest& request, const GroupView& view,
                          const BlockLevels& levels, Division division) {
  return Planner(request, view, levels, division).Make();
}

}  // namespace uccl::coll
