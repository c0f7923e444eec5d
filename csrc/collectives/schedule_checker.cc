// The symbolic machine of schedule_checker.h. Memory is a cell per byte, so that moves need no
// types; a byte knows its element's term, and which byte of it it is.
#include "csrc/collectives/schedule_checker.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "csrc/collectives/algorithms/reduction_tree.h"
#include "csrc/collectives/dtype.h"

namespace uccl::coll {
namespace {

// Terms, each stored once, so that equal terms have equal numbers.
class Terms final {
 public:
  enum class Kind : uint8_t { kNothing, kZero, kInput, kJoin, kRound };
  struct Term {
    Kind kind{};
    uint64_t a = 0, b = 0;  // rank and element; or two terms; or one
    auto operator<=>(const Term&) const = default;
  };
  static constexpr uint32_t kUnwritten = 0;

  Terms() { terms_.push_back({}); }
  uint32_t Zero() { return Number({Kind::kZero, 0, 0}); }
  uint32_t Input(uint32_t rank, uint64_t element) { return Number({Kind::kInput, rank, element}); }
  uint32_t Join(uint32_t a, uint32_t b) { return Number({Kind::kJoin, a, b}); }
  // What rounding leaves alone is left as it is.
  uint32_t Round(uint32_t a) {
    return terms_[a].kind == Kind::kJoin ? Number({Kind::kRound, a, 0}) : a;
  }
  // The tree of reduce.h over these.
  uint32_t Tree(const std::vector<uint32_t>& leaves, size_t lo, size_t hi) {
    if (hi - lo == 1) return leaves[lo];
    const size_t middle = lo + std::bit_floor(hi - lo - 1);
    const uint32_t left = Tree(leaves, lo, middle);
    return Join(left, Tree(leaves, middle, hi));
  }
  // The inputs in a term in ascending order; a term that rounds inside has none.
  std::vector<std::pair<uint64_t, uint64_t>> Inputs(uint32_t number) const {
    std::vector<std::pair<uint64_t, uint64_t>> inputs;
    if (!Collect(number, &inputs)) inputs.clear();
    std::sort(inputs.begin(), inputs.end());
    return inputs;
  }
  uint32_t Unrounded(uint32_t number) const {
    const Term& t = terms_[number];
    return t.kind == Kind::kRound ? static_cast<uint32_t>(t.a) : number;
  }
  std::string Text(uint32_t number) const {
    const Term& t = terms_[number];
    switch (t.kind) {
      case Kind::kNothing:
        return "nothing";
      case Kind::kZero:
        return "0";
      case Kind::kInput:
        return std::to_string(t.a) + "[" + std::to_string(t.b) + "]";
      case Kind::kJoin:
        return "(" + Text(static_cast<uint32_t>(t.a)) + " " + Text(static_cast<uint32_t>(t.b)) +
               ")";
      case Kind::kRound:
        return "round" + Text(static_cast<uint32_t>(t.a));
    }
    return "";
  }

 private:
  uint32_t Number(const Term& term) {
    const auto [it, added] = numbers_.emplace(term, static_cast<uint32_t>(terms_.size()));
    if (added) terms_.push_back(term);
    return it->second;
  }
  bool Collect(uint32_t number, std::vector<std::pair<uint64_t, uint64_t>>* inputs) const {
    const Term& t = terms_[number];
    if (t.kind == Kind::kInput) inputs->emplace_back(t.a, t.b);
    if (t.kind == Kind::kInput) return true;
    return t.kind == Kind::kJoin && Collect(static_cast<uint32_t>(t.a), inputs) &&
           Collect(static_cast<uint32_t>(t.b), inputs);
  }

  std::vector<Term> terms_;
  std::map<Term, uint32_t> numbers_;
};

struct Cell {
  uint32_t term = Terms::kUnwritten;
  uint8_t byte = 0, width = 0;
  // The stage in which it was last read or written, counted from 1.
  size_t read = 0, written = 0;
};
using Memory = std::vector<Cell>;

struct Machine {
  ProcessId id{};
  Schedule schedule;
  std::vector<uint32_t> members;
  std::vector<Memory> inputs, outputs;
  Memory scratch;
  std::set<uint32_t> known;  // members of whose arrival this process has proof
};

// (from process, to process, from member, to member, part) within a stage
using MessageName = std::tuple<int, int, uint32_t, uint32_t, uint32_t>;
struct Message {
  std::vector<Cell> cells;
  bool wide = false;
  std::set<uint32_t> known;
};

class Checker final {
 public:
  Checker(const PlanRequest& request, const std::vector<Member>& group)
      : request_(request), group_(group), element_(DTypeBytes(request.dtype)) {}

  std::string Run(const std::function<Schedule(ProcessId)>& make) {
    size_t stages = 0;
    Build(make, &stages);
    if (stages > kMaxStages) Fault("", std::to_string(stages) + " stages");
    for (size_t s = 0; s < stages && fault_.empty(); ++s) RunStage(s);
    for (const Machine& m : machines_) {
      if (!fault_.empty()) break;
      request_.kind == OpKind::kBarrier ? CheckKnown(m) : CheckOutputs(m);
    }
    if (fault_.empty() && request_.kind == OpKind::kRaggedAllToAll) CheckPairs();
    return fault_;
  }

 private:
  void Fault(const std::string& where, const std::string& what) {
    if (fault_.empty()) fault_ = where + (where.empty() ? "" : ": ") + what;
  }
  std::string Where(const Machine& m) const {
    return "process " + std::to_string(ToInt(m.id)) + " stage " + std::to_string(now_ - 1);
  }

  // Elements of one rank's output.
  uint64_t OutputElements() const {
    const uint64_t n = group_.size();
    switch (request_.kind) {
      case OpKind::kAllGather:
        return request_.elements * n;
      case OpKind::kReduceScatter:
        return request_.elements / n;
      case OpKind::kBarrier:
      case OpKind::kRaggedAllToAll:
        return 0;
      default:
        return request_.elements;
    }
  }

  void Build(const std::function<Schedule(ProcessId)>& make, size_t* stages) {
    std::map<ProcessId, size_t> index;
    const bool has_input = OutputElements() > 0 || request_.kind == OpKind::kReduceScatter;
    for (uint32_t m = 0; m < group_.size(); ++m) {
      const auto [it, added] = index.emplace(group_[m].process, machines_.size());
      if (added) {
        Machine machine;
        machine.id = group_[m].process;
        machine.schedule = make(machine.id);
        machine.scratch.resize(machine.schedule.scratch_bytes);
        *stages = std::max(*stages, machine.schedule.stages.size());
        machines_.push_back(std::move(machine));
      }
      Machine& machine = machines_[it->second];
      machine.members.push_back(m);
      Memory input;
      for (uint64_t e = 0; e < (has_input ? request_.elements : 0); ++e)
        Append(terms_.Input(m, e), element_, &input);
      machine.inputs.push_back(std::move(input));
      machine.outputs.emplace_back(OutputElements() * element_);
    }
  }
  static void Append(uint32_t term, uint64_t width, Memory* memory) {
    for (uint64_t b = 0; b < width; ++b)
      memory->push_back({term, static_cast<uint8_t>(b), static_cast<uint8_t>(width), 0, 0});
  }

  uint64_t Width(const Slice& s) const { return s.wide ? kWideBytes : element_; }

  // Null after a fault.
  Memory* MemoryOf(Machine* m, const Slice& s) {
    if (s.kind == BufferKind::kScratch) return &m->scratch;
    std::vector<Memory>& all = s.kind == BufferKind::kInput ? m->inputs : m->outputs;
    if (s.kind == BufferKind::kZero || s.local >= all.size()) {
      Fault(Where(*m), "a slice of no buffer, local " + std::to_string(s.local));
      return nullptr;
    }
    return &all[s.local];
  }
  // The cells of a slice; empty after a fault.
  std::span<Cell> CellsOf(Machine* m, const Slice& s) {
    Memory* memory = MemoryOf(m, s);
    if (memory == nullptr || s.bytes == 0) return {};
    if (s.offset > memory->size() || s.bytes > memory->size() - s.offset) {
      Fault(Where(*m), "bytes " + std::to_string(s.offset) + " to " +
                           std::to_string(s.offset + s.bytes) + " of a buffer of " +
                           std::to_string(memory->size()));
      return {};
    }
    if (s.offset % Width(s) != 0 || s.bytes % Width(s) != 0) {
      Fault(Where(*m), "a slice that cuts an element");
      return {};
    }
    return std::span(*memory).subspan(s.offset, s.bytes);
  }

  std::vector<Cell> Read(Machine* m, const Slice& s) {
    if (s.kind == BufferKind::kZero) {
      Memory zeros;
      for (uint64_t at = 0; at < s.bytes; at += element_) Append(terms_.Zero(), element_, &zeros);
      return zeros;
    }
    std::vector<Cell> cells;
    for (Cell& cell : CellsOf(m, s)) {
      if (cell.term == Terms::kUnwritten) Fault(Where(*m), "reads what was not written");
      cell.read = now_;
      cells.push_back(cell);
    }
    return cells;
  }
  // `alone`: nothing else in this stage may touch it.
  void Write(Machine* m, const Slice& s, const std::vector<Cell>& cells, bool alone) {
    if (s.kind == BufferKind::kInput) Fault(Where(*m), "writes to an input");
    if (cells.size() != s.bytes) {
      Fault(Where(*m), "writes " + std::to_string(cells.size()) + " bytes to a slice of " +
                           std::to_string(s.bytes));
      return;
    }
    size_t i = 0;
    for (Cell& cell : CellsOf(m, s)) {
      if (alone && cell.read == now_) Fault(Where(*m), "writes what the stage reads");
      if (alone && cell.written == now_) Fault(Where(*m), "writes the same bytes twice");
      const size_t read = cell.read;
      cell = cells[i++];
      cell.read = read;
      cell.written = now_;
    }
  }
  // The terms of whole elements.
  std::vector<uint32_t> Elements(const Machine& m, const std::vector<Cell>& cells, uint64_t width) {
    std::vector<uint32_t> terms;
    for (size_t at = 0; at + width <= cells.size(); at += width) {
      for (size_t b = 0; b < width; ++b) {
        const Cell& cell = cells[at + b];
        if (cell.term == Terms::kUnwritten && cells[at].term == cell.term) continue;
        if (cell.term != cells[at].term || cell.byte != b || cell.width != width)
          Fault(Where(m), "reads an element that is put together of others");
      }
      terms.push_back(cells[at].term);
    }
    return terms;
  }

  void RunStage(size_t s) {
    now_ = s + 1;
    std::map<MessageName, Message> wire;
    for (Machine& m : machines_) {
      if (s < m.schedule.stages.size()) SendAll(&m, s, &wire);
    }
    // Copies read before anything is written; they write afterwards.
    std::vector<std::vector<std::vector<Cell>>> copied(machines_.size());
    for (size_t i = 0; i < machines_.size(); ++i) {
      if (s >= machines_[i].schedule.stages.size()) continue;
      for (const Copy& c : machines_[i].schedule.stages[s].copies) {
        if (c.from.bytes != c.to.bytes || (c.from.wide != c.to.wide))
          Fault(Where(machines_[i]), "a copy between slices that differ");
        copied[i].push_back(Read(&machines_[i], c.from));
      }
    }
    for (size_t i = 0; i < machines_.size(); ++i) {
      Machine& m = machines_[i];
      if (s >= m.schedule.stages.size()) continue;
      const Stage& stage = m.schedule.stages[s];
      for (size_t k = 0; k < stage.copies.size(); ++k)
        Write(&m, stage.copies[k].to, copied[i][k], /*alone=*/true);
      for (const Transfer& t : stage.receives) ReceiveOne(&m, t, &wire);
    }
    for (const auto& [name, message] : wire) {
      Fault("stage " + std::to_string(s),
            "process " + std::to_string(std::get<0>(name)) + " sends to process " +
                std::to_string(std::get<1>(name)) + ", which does not receive it");
    }
    for (Machine& m : machines_) {
      if (s == 0) m.known.insert(m.members.begin(), m.members.end());
      if (s >= m.schedule.stages.size()) continue;
      for (const Reduction& r : m.schedule.stages[s].reductions) {
        ReduceOne(&m, r);
        for (const Slice& to : r.to) {
          for (const Transfer& t : m.schedule.stages[s].sends) {
            if (Overlap(to, t.slice))
              Fault(Where(m), "a reduction writes what is sent in its stage");
          }
        }
      }
    }
  }

  void CheckName(const Machine& m, const Transfer& t, uint32_t mine, uint32_t theirs) {
    if (t.peer == m.id) Fault(Where(m), "a message to itself");
    if (t.from >= group_.size() || t.to >= group_.size()) {
      Fault(Where(m), "a message that names no member");
      return;
    }
    if (group_[mine].process != m.id || group_[theirs].process != t.peer)
      Fault(Where(m), "a message that names members of other processes");
    if (t.part >= kMaxParts) Fault(Where(m), "part " + std::to_string(t.part));
  }

  void SendAll(Machine* m, size_t s, std::map<MessageName, Message>* wire) {
    for (const Transfer& t : m->schedule.stages[s].sends) {
      CheckName(*m, t, t.from, t.to);
      Message message{Read(m, t.slice), t.slice.wide, {}};
      // In the first stage it may leave before any other rank has come.
      if (s > 0) message.known = m->known;
      const MessageName name{ToInt(m->id), ToInt(t.peer), t.from, t.to, t.part};
      if (!wire->emplace(name, std::move(message)).second)
        Fault(Where(*m), "two messages of one name");
    }
  }
  void ReceiveOne(Machine* m, const Transfer& t, std::map<MessageName, Message>* wire) {
    CheckName(*m, t, t.to, t.from);
    const auto it = wire->find({ToInt(t.peer), ToInt(m->id), t.from, t.to, t.part});
    if (it == wire->end()) {
      Fault(Where(*m), "receives what process " + std::to_string(ToInt(t.peer)) + " does not send");
      return;
    }
    if (it->second.wide != t.slice.wide) Fault(Where(*m), "receives another width");
    Write(m, t.slice, it->second.cells, /*alone=*/true);
    m->known.insert(it->second.known.begin(), it->second.known.end());
    wire->erase(it);
  }

  void ReduceOne(Machine* m, const Reduction& r) {
    if (r.from.empty() || r.to.empty()) {
      Fault(Where(*m), "a reduction of nothing");
      return;
    }
    const uint64_t count = r.to[0].bytes / Width(r.to[0]);
    std::vector<std::vector<uint32_t>> inputs;
    std::vector<std::pair<const Slice*, uint64_t>> used;
    for (const Slice& from : r.from) {
      inputs.push_back(Elements(*m, Read(m, from), Width(from)));
      if (inputs.back().size() != count) {
        Fault(Where(*m), "a reduction of vectors of different lengths");
        return;
      }
      for (const Slice& to : r.to) {
        if (Overlap(from, to)) Fault(Where(*m), "a reduction into its own input");
      }
    }
    for (const Slice& to : r.to) {
      Memory cells;
      for (uint64_t e = 0; e < count; ++e) {
        std::vector<uint32_t> leaves;
        for (const auto& input : inputs) leaves.push_back(input[e]);
        const uint32_t sum = terms_.Tree(leaves, 0, leaves.size());
        const bool rounds = !to.wide && AccumulatesWide(request_.dtype, request_.reduction);
        Append(rounds ? terms_.Round(sum) : sum, Width(to), &cells);
      }
      Write(m, to, cells, /*alone=*/false);
    }
  }

  // What rank `rank` must have in element e of its output. For a reduction the tree over all ranks.
  uint32_t Wanted(uint32_t rank, uint64_t e) {
    const auto n = static_cast<uint32_t>(group_.size());
    const uint64_t row = request_.elements / n;
    switch (request_.kind) {
      case OpKind::kAllToAll:
        return terms_.Input(static_cast<uint32_t>(e / row), rank * row + e % row);
      case OpKind::kAllGather:
        return terms_.Input(static_cast<uint32_t>(e / request_.elements), e % request_.elements);
      case OpKind::kBroadcast:
        return terms_.Input(request_.root, e);
      case OpKind::kPermute:
        for (size_t k = 0; k + 1 < request_.permutation.size(); k += 2) {
          if (request_.permutation[k + 1] == static_cast<int64_t>(rank))
            return terms_.Input(static_cast<uint32_t>(request_.permutation[k]), e);
        }
        return terms_.Zero();
      default:
        break;
    }
    std::vector<uint32_t> leaves;
    const uint64_t at = request_.kind == OpKind::kReduceScatter ? rank * row + e : e;
    for (uint32_t r = 0; r < n; ++r) leaves.push_back(terms_.Input(r, at));
    const uint32_t sum = terms_.Tree(leaves, 0, n);
    return AccumulatesWide(request_.dtype, request_.reduction) ? terms_.Round(sum) : sum;
  }

  bool Equal(uint32_t have, uint32_t want) {
    if (have == want) return true;
    if (!request_.any_order && !ExactInAnyOrder(request_.dtype)) return false;
    // Of a free order: the same inputs, rounded as often.
    const uint32_t a = terms_.Unrounded(have), b = terms_.Unrounded(want);
    const auto inputs = terms_.Inputs(a);
    return (a == have) == (b == want) && !inputs.empty() && inputs == terms_.Inputs(b);
  }

  void CheckOutputs(const Machine& m) {
    for (size_t i = 0; i < m.members.size(); ++i) {
      const std::vector<uint32_t> have = Elements(m, m.outputs[i], element_);
      for (uint64_t e = 0; e < have.size(); ++e) {
        const uint32_t want = Wanted(m.members[i], e);
        if (Equal(have[e], want)) continue;
        Fault("rank " + std::to_string(m.members[i]) + " element " + std::to_string(e),
              "has " + terms_.Text(have[e]) + ", not " + terms_.Text(want));
        return;
      }
    }
  }
  void CheckKnown(const Machine& m) {
    for (uint32_t r = 0; r < group_.size(); ++r) {
      if (!m.known.contains(r))
        Fault("process " + std::to_string(ToInt(m.id)),
              "leaves the barrier without rank " + std::to_string(r));
    }
  }
  // Every ordered pair of ranks once: messages were matched above.
  void CheckPairs() {
    std::map<std::pair<uint32_t, uint32_t>, int> pairs;
    for (const Machine& m : machines_) {
      for (const Stage& stage : m.schedule.stages) {
        for (const Transfer& t : stage.sends) ++pairs[{t.from, t.to}];
        for (const Copy& c : stage.copies) ++pairs[{c.source, c.target}];
      }
    }
    for (uint32_t a = 0; a < group_.size(); ++a) {
      for (uint32_t b = 0; b < group_.size(); ++b) {
        if (pairs[{a, b}] != 1)
          Fault("", "ranks " + std::to_string(a) + " and " + std::to_string(b) + " exchange " +
                        std::to_string(pairs[{a, b}]) + " times");
      }
    }
  }

  const PlanRequest& request_;
  const std::vector<Member>& group_;
  const uint64_t element_;
  Terms terms_;
  std::vector<Machine> machines_;
  size_t now_ = 0;  // the stage, counted from 1
  std::string fault_;
};

}  // namespace

std::string CheckSchedules(const PlanRequest& request, const std::vector<Member>& group,
                           const std::function<Schedule(ProcessId)>& make) {
  return Checker(request, group).Run(make);
}

}  // namespace uccl::coll
