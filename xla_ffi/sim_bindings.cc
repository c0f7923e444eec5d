// The simulator for jax_uccl/_src/sim/: settings as text in, the report as JSON text out.
//
// The GIL is released while it runs and taken now and then for the progress function, which is also
// where a KeyboardInterrupt ends the run.
#include "xla_ffi/sim_bindings.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <exception>
#include <map>
#include <optional>
#include <string>

#include "csrc/base/status.h"
#include "csrc/sim/chaos.h"
#include "csrc/sim/json.h"
#include "csrc/sim/settings.h"
#include "csrc/sim/simulator.h"
#include "csrc/sim/workload.h"

namespace nb = nanobind;

namespace uccl::xla_ffi {
namespace {

nb::list SimSettings() {
  nb::list rows;
  for (const sim::SettingRow& row : sim::SettingRows()) {
    nb::dict d;
    d["name"] = row.name;
    d["default"] = row.default_value;
    d["unit"] = row.unit;
    d["help"] = row.help;
    rows.append(d);
  }
  return rows;
}

nb::list SimWorkloads() {
  nb::list rows;
  for (const sim::WorkloadRow& row : sim::Workloads()) {
    rows.append(nb::make_tuple(row.name, row.summary));
  }
  return rows;
}

nb::dict ProgressDict(const sim::Progress& p) {
  nb::dict d;
  d["now_ns"] = p.now.count();
  d["events"] = p.events;
  d["flows_done"] = p.flows_done;
  d["flows"] = p.flows;
  d["bytes_done"] = p.bytes_done;
  d["bytes"] = p.bytes;
  return d;
}

// (status line or None, JSON). What `progress` raises ends the run and is raised here.
nb::tuple RunSimulation(const std::map<std::string, std::string>& values, nb::object progress) {
  const Result<sim::Settings> settings = sim::MakeSettings(values);
  if (!settings.ok()) return nb::make_tuple(settings.status().ToString(), "");
  std::exception_ptr raised;
  const auto report_progress = [&](const sim::Progress& p) {
    nb::gil_scoped_acquire acquire;
    try {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (!progress.is_none()) progress(ProgressDict(p));
    } catch (...) {
      raised = std::current_exception();
      return false;
    }
    return true;
  };
  Status status;
  std::string json;
  {
    nb::gil_scoped_release release;
    const Result<sim::Report> report = sim::Simulate(settings.value(), report_progress);
    if (report.ok()) {
      json = sim::ToJson(settings.value(), report.value());
    } else {
      status = report.status();
    }
  }
  if (raised) std::rethrow_exception(raised);
  if (!status.ok()) return nb::make_tuple(status.ToString(), "");
  return nb::make_tuple(nb::none(), json);
}

// Settings of schedule `seed` as text, as `simulate` takes them.
std::map<std::string, std::string> ChaosSettingsText(uint64_t seed) {
  return sim::ToText(sim::ChaosSettings(seed));
}

nb::dict RunChaosSchedules(uint64_t first, uint64_t count) {
  sim::ChaosSummary summary;
  {
    nb::gil_scoped_release release;
    summary = sim::RunChaos(first, count);
  }
  nb::dict d;
#define UCCL_FIELD(name) d[#name] = summary.name
  UCCL_FIELD(schedules);
  UCCL_FIELD(violations);
  UCCL_FIELD(packets);
  UCCL_FIELD(drops);
  UCCL_FIELD(corrupted);
  UCCL_FIELD(duplicated);
  UCCL_FIELD(marked);
  UCCL_FIELD(retransmits);
  UCCL_FIELD(timeouts);
  UCCL_FIELD(spurious_retransmits);
  UCCL_FIELD(trace_hash);
#undef UCCL_FIELD
  nb::list failures;
  for (const sim::ChaosFailure& failure : summary.failures) {
    failures.append(nb::make_tuple(failure.seed, failure.text));
  }
  d["failures"] = failures;
  return d;
}

}  // namespace

void DefineSim(nb::module_& m) {
  m.def("sim_settings", &SimSettings, "The table of a simulation's settings, one dict a row.");
  m.def("sim_workloads", &SimWorkloads, "[(name, summary)].");
  m.def("simulate", &RunSimulation, nb::arg("settings"), nb::arg("progress") = nb::none(),
        "(status line or None, report as JSON). `progress` is called now and then with a dict.");
  m.def("sim_chaos", &RunChaosSchedules, nb::arg("first"), nb::arg("count"),
        "Runs fault schedules; a summary. Threads may run several at once.");
  m.def("sim_chaos_settings", &ChaosSettingsText, nb::arg("seed"),
        "The settings of a fault schedule, for `simulate`.");
}

}  // namespace uccl::xla_ffi
