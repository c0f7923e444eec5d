// The tables of algorithms and cost parameters, and what an operation costs: pure functions, for
// `jax-uccl bench --tune`, the comparison of settings at start-up and the documentation.
#include "xla_ffi/plan_bindings.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/collectives/algorithms/registry.h"
#include "csrc/collectives/cost_model.h"
#include "csrc/collectives/planner.h"
#include "csrc/collectives/tuning_file.h"

namespace nb = nanobind;

namespace uccl::xla_ffi {
namespace {

using Parameters = std::map<std::string, int64_t>;

nb::list CostRowList() {
  nb::list rows;
  for (const coll::CostRow& row : coll::CostRows()) {
    nb::dict d;
    d["name"] = row.name;
    d["default"] = row.default_value;
    d["help"] = row.help;
    rows.append(d);
  }
  return rows;
}

nb::list AlgorithmList() {
  nb::list rows;
  for (const coll::Algorithm& algorithm : coll::Algorithms()) {
    nb::dict d;
    d["collective"] = coll::OpKindName(algorithm.kind);
    d["name"] = algorithm.name;
    d["free_order"] = algorithm.free_order;
    d["summary"] = algorithm.summary;
    rows.append(d);
  }
  return rows;
}

nb::tuple ReadTuning(const std::string& path) {
  Result<coll::CostParams> params = coll::CostParams();
  if (!path.empty()) params = coll::ReadTuningFile(path);
  if (!params.ok()) return nb::make_tuple(params.status().ToString(), nb::dict(), 0);
  nb::dict values;
  for (const coll::CostRow& row : coll::CostRows())
    values[row.name.c_str()] = params.value().*row.member;
  return nb::make_tuple(nb::none(), values, coll::DigestOf(params.value()));
}

std::vector<int32_t> ProcessHosts(const std::string& hosts) {
  const Result<std::vector<int32_t>> parsed = coll::ParseHosts(hosts);
  if (!parsed.ok()) throw nb::value_error(parsed.status().detail.c_str());
  return parsed.value();
}

// An operation as Python names it. Throws ValueError for what does not exist: these functions are
// called with names from the tables above.
struct Operation {
  coll::PlanRequest request;
  std::vector<coll::Member> group;
};
Operation MakeOperation(const std::string& collective, const std::string& dtype, uint64_t elements,
                        const std::vector<int32_t>& processes, const std::string& hosts) {
  Operation op;
  const std::optional<coll::OpKind> kind = coll::ParseOpKind(collective);
  if (!kind.has_value()) throw nb::value_error(("no collective is named " + collective).c_str());
  op.request.kind = *kind;
  op.request.reduction = coll::ReduceOp::kSum;
  for (int code = 1; code <= static_cast<int>(coll::DType::kU4); ++code) {
    if (dtype == coll::DTypeName(static_cast<coll::DType>(code)))
      op.request.dtype = static_cast<coll::DType>(code);
  }
  if (op.request.dtype == coll::DType::kInvalid)
    throw nb::value_error(("no element type is named " + dtype).c_str());
  op.request.elements = elements;
  op.request.hosts = ProcessHosts(hosts);
  if (processes.empty()) throw nb::value_error("a group needs a rank");
  for (int32_t process : processes) {
    op.group.push_back({static_cast<int64_t>(op.group.size()), static_cast<ProcessId>(process)});
  }
  return op;
}
coll::CostParams MakeParams(const Parameters& values) {
  coll::CostParams params;
  for (const coll::CostRow& row : coll::CostRows()) {
    if (const auto it = values.find(row.name); it != values.end()) params.*row.member = it->second;
  }
  return params;
}

uint64_t ScheduleCost(const std::string& collective, const std::string& algorithm,
                      const std::string& dtype, uint64_t elements,
                      const std::vector<int32_t>& processes, const std::string& hosts,
                      const Parameters& params) {
  const Operation op = MakeOperation(collective, dtype, elements, processes, hosts);
  const coll::Algorithm* row = coll::FindAlgorithm(op.request.kind, algorithm);
  if (row == nullptr) throw nb::value_error(("no algorithm is named " + algorithm).c_str());
  return coll::CostOf(MakeParams(params), *row, op.request, op.group);
}

std::string CheapestAlgorithm(const std::string& collective, const std::string& dtype,
                              uint64_t elements, const std::vector<int32_t>& processes,
                              const std::string& hosts, const Parameters& params) {
  const Operation op = MakeOperation(collective, dtype, elements, processes, hosts);
  coll::PlanPolicy policy;
  policy.costs = MakeParams(params);
  return coll::ChooseAlgorithm(op.request, op.group, policy).value()->name;
}

}  // namespace

void DefinePlans(nb::module_& m) {
  m.def("cost_rows", &CostRowList, "Parameters of the cost model, one dict a row.");
  m.def("algorithms", &AlgorithmList, "The algorithms of all collectives, one dict a row.");
  m.def("read_tuning", &ReadTuning, nb::arg("path"),
        "(status line or None, {parameter: value}, digest) of a tuning file; of the defaults for "
        "an empty path.");
  m.def("schedule_cost", &ScheduleCost, nb::arg("collective"), nb::arg("algorithm"),
        nb::arg("dtype"), nb::arg("elements"), nb::arg("processes"), nb::arg("hosts"),
        nb::arg("params"),
        "Picoseconds of a sum or movement of `elements` per rank; `processes` by rank, `hosts` as "
        "the setting processes_per_host; parameters that are not given have their defaults.");
  m.def("cheapest_algorithm", &CheapestAlgorithm, nb::arg("collective"), nb::arg("dtype"),
        nb::arg("elements"), nb::arg("processes"), nb::arg("hosts"), nb::arg("params"),
        "The name of the one that would be chosen.");
  m.def("process_hosts", &ProcessHosts, nb::arg("hosts"),
        "The host of each process, as the setting processes_per_host has them; empty for \"\".");
}

}  // namespace uccl::xla_ffi
