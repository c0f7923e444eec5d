// The sums of cost_model.h.
#include "csrc/collectives/cost_model.h"

#include <algorithm>
#include <unordered_map>

#include "csrc/base/hash.h"

namespace uccl::coll {
namespace {

constexpr uint64_t kPicosPerNano = 1000;

uint64_t Picos(int64_t nanos) { return static_cast<uint64_t>(nanos) * kPicosPerNano; }

// Prices the stages of one group.
class Pricer final {
 public:
  Pricer(const CostParams& params, const GroupView& view) : params_(params) {
    for (const GroupView::Process& process : view.processes) {
      hosts_.emplace(process.id, process.host);
      ++sharers_[process.host];
    }
  }

  // Of `stage` on a process of this host.
  uint64_t Price(const Stage& stage, int32_t my_host) const {
    Load host, network;
    const auto load = [&](const Transfer& t) -> Load& {
      Load& of = hosts_.at(t.peer) == my_host ? host : network;
      ++of.messages;
      return of;
    };
    for (const Transfer& t : stage.sends) load(t).sent += t.slice.bytes;
    for (const Transfer& t : stage.receives) load(t).received += t.slice.bytes;

    uint64_t picos = Picos(params_.stage_ns);
    if (host.messages > 0) {
      picos += Picos(params_.host_latency_ns) + host.messages * Picos(params_.host_message_ns) +
               Bytes(std::max(host.sent, host.received), params_.host_byte_ps);
    }
    if (network.messages > 0) {
      const uint64_t bytes = std::max(network.sent, network.received) * sharers_.at(my_host);
      picos += Picos(params_.network_latency_ns) +
               network.messages * Picos(params_.network_message_ns) +
               Bytes(bytes, params_.network_byte_ps);
    }
    for (const Copy& c : stage.copies)
      picos += Picos(params_.copy_item_ns) + Bytes(c.to.bytes, params_.copy_byte_ps);
    for (const Reduction& r : stage.reductions) {
      uint64_t bytes = 0;
      for (const Slice& from : r.from) bytes += from.bytes;
      picos += Picos(params_.reduce_item_ns) + Bytes(bytes, params_.reduce_byte_ps);
      // All results but the first are copies of it.
      for (size_t k = 1; k < r.to.size(); ++k) picos += Bytes(r.to[k].bytes, params_.copy_byte_ps);
    }
    return picos;
  }

 private:
  // Messages of one class of link; both directions at once.
  struct Load {
    uint64_t messages = 0, sent = 0, received = 0;
  };
  static uint64_t Bytes(uint64_t bytes, int64_t picos) {
    return bytes * static_cast<uint64_t>(picos);
  }

  const CostParams& params_;
  std::unordered_map<ProcessId, int32_t> hosts_;
  std::unordered_map<int32_t, uint64_t> sharers_;  // processes of the group on a host
};

// Of a broadcast the root's process has the most to do, of the others often the first or the last.
std::vector<uint32_t> CostedProcesses(const PlanRequest& request, const GroupView& view) {
  const uint64_t all = view.num_processes();
  const uint64_t count = all <= kExactProcesses ? all : kSampledProcesses;
  std::vector<uint32_t> costed;
  for (uint64_t i = 0; i < count; ++i)
    costed.push_back(static_cast<uint32_t>(count < 2 ? 0 : i * (all - 1) / (count - 1)));
  costed.push_back(view.process_of[request.root]);
  return costed;
}

}  // namespace

const std::vector<CostRow>& CostRows() {
  static const std::vector<CostRow> rows = {
#define UCCL_COST(name, def, help) {#name, help, def, &CostParams::name},
#include "csrc/collectives/cost_params.inc"
#undef UCCL_COST
  };
  return rows;
}

uint64_t DigestOf(const CostParams& params) {
  Hasher hash;
  for (const CostRow& row : CostRows())
    hash.Text(row.name).Word(static_cast<uint64_t>(params.*row.member));
  return hash.Finish64();
}

uint64_t CostOf(const CostParams& params, const Algorithm& algorithm, const PlanRequest& request,
                const std::vector<Member>& group) {
  GroupView view(request, group, group[0].process);
  const Pricer pricer(params, view);
  std::vector<uint64_t> slowest;  // by stage
  for (uint32_t process : CostedProcesses(request, view)) {
    view.self = process;
    const Schedule schedule = algorithm.make(request, view);
    slowest.resize(std::max(slowest.size(), schedule.stages.size()), 0);
    for (size_t s = 0; s < schedule.stages.size(); ++s)
      slowest[s] = std::max(slowest[s], pricer.Price(schedule.stages[s], view.me().host));
  }
  uint64_t total = 0;
  for (uint64_t picos : slowest) total += picos;
  return total;
}

}  // namespace uccl::coll
