// The extension module jax_uccl._uccl: the handlers as capsules, and the runtime's calls for
// jax_uccl/_src/comm.py.
//
// A Status crosses as text: its one-line form, or None. jax_uccl/_src/errors.py makes the exception
// of it, so that the classes live in one place. Functions that also give a value return (line or
// None, value).
//
// The GIL is released around every call that takes a lock of the runtime or waits: handlers never
// need it, but compilations on other Python threads do.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/config.h"
#include "csrc/base/status.h"
#include "csrc/collectives/runtime.h"
#include "xla_ffi/handlers.h"
#include "xla_ffi/local_handlers.h"
#include "xla_ffi/moe_handlers.h"
#include "xla_ffi/moe_stream_handlers.h"
#include "xla_ffi/plan_bindings.h"
#include "xla_ffi/sim_bindings.h"
#include "xla_ffi/stream_handlers.h"

namespace nb = nanobind;

namespace uccl::xla_ffi {
namespace {

using Settings = std::map<std::string, std::string>;
using Line = std::optional<std::string>;

Line ToLine(const Status& status) {
  if (status.ok()) return std::nullopt;
  return status.ToString();
}

double ToSeconds(Nanos nanos) { return std::chrono::duration<double>(nanos).count(); }

// Saturates, so that any deadline a person may write is one.
Nanos FromSeconds(double seconds) {
  constexpr double kYear = 365.0 * 24 * 3600;
  const double bounded = std::clamp(seconds, 0.0, kYear);
  return std::chrono::duration_cast<Nanos>(std::chrono::duration<double>(bounded));
}

// --- devices ---

// `device` is the address that UcclCudaDevice gave.
Line AttachDeviceTable(uint64_t device, std::vector<int64_t> ids) {
  return ToLine(AttachDevice(reinterpret_cast<const cuda::Device*>(device), std::move(ids)));
}

nb::dict StreamRegistrations() {
  const auto capsule = [](auto* fn) { return nb::capsule(reinterpret_cast<void*>(fn)); };
  nb::dict all;
  const auto add = [&](const std::string& name, auto* initialize, auto* execute) {
    nb::dict stages;
    stages["instantiate"] = capsule(&UcclStreamInstantiate);
    stages["initialize"] = capsule(initialize);
    stages["execute"] = capsule(execute);
    all[nb::str(("jax_uccl_" + name).c_str())] = stages;
  };
  for (coll::OpKind kind : coll::OpKinds())
    add(coll::OpKindName(kind), &UcclStreamInitialize, &UcclStreamExecute);
  add("moe_dispatch", &UcclMoeStreamDispatchInitialize, &UcclMoeStreamDispatchExecute);
  add("moe_combine", &UcclMoeStreamCombineInitialize, &UcclMoeStreamCombineExecute);
  add("moe_exchange", &UcclMoeStreamExchangeInitialize, &UcclMoeStreamExchangeExecute);
  return all;
}

// --- tables ---

nb::dict Registrations() {
  const auto capsule = [](auto* fn) { return nb::capsule(reinterpret_cast<void*>(fn)); };
  // One target for each operation, so that compiled programs and profiles name it.
  nb::dict all;
  for (coll::OpKind kind : coll::OpKinds()) {
    nb::dict stages;
    stages["instantiate"] = capsule(&UcclCollectiveInstantiate);
    stages["execute"] = capsule(&UcclCollectiveExecute);
    all[nb::str(("jax_uccl_" + std::string(coll::OpKindName(kind))).c_str())] = stages;
  }
  const auto moe = [&](const char* target, auto* fn) {
    nb::dict stages;
    stages["instantiate"] = capsule(&UcclCollectiveInstantiate);
    stages["execute"] = capsule(fn);
    all[target] = stages;
  };
  moe("jax_uccl_moe_dispatch", &UcclMoeDispatch);
  moe("jax_uccl_moe_combine", &UcclMoeCombine);
  moe("jax_uccl_moe_exchange", &UcclMoeExchange);
  moe("jax_uccl_moe_return", &UcclMoeReturn);
  moe("jax_uccl_moe_relay", &UcclMoeRelay);
  const auto local = [&](const char* target, auto* fn) {
    nb::dict stages;
    stages["execute"] = capsule(fn);
    all[target] = stages;
  };
  local("jax_uccl_require", &UcclRequire);
  local("jax_uccl_count_before", &UcclCountBefore);
  local("jax_uccl_encode_fp8", &UcclEncodeFp8);
  local("jax_uccl_decode_fp8", &UcclDecodeFp8);
  local("jax_uccl_take_rows", &UcclTakeRows);
  local("jax_uccl_fold_rows", &UcclFoldRows);
  return all;
}

nb::list ConfigRowList() {
  nb::list rows;
  for (const ConfigRow& row : ConfigRows()) {
    nb::dict d;
    d["name"] = row.name;
    d["env"] = row.env;
    d["default"] = row.default_value;
    d["unit"] = row.unit;
    d["help"] = row.help;
    d["is_int"] = row.is_int;
    d["min"] = row.min;
    d["max"] = row.max;
    rows.append(d);
  }
  return rows;
}

nb::list StatusCodeList() {
  nb::list codes;
#define UCCL_STATUS(enumerator, name, ffi_code, python, meaning) \
  codes.append(nb::make_tuple(#enumerator, name, python, meaning));
#include "csrc/base/status_codes.inc"
#undef UCCL_STATUS
  return codes;
}

// --- settings ---

nb::dict ToDict(const Config& config) {
  nb::dict d;
#define UCCL_CONFIG_INT(name, env, def, min, max, unit, help) d[#name] = config.name;
#define UCCL_CONFIG_STR(name, env, def, help) d[#name] = config.name;
#include "csrc/base/config_table.inc"
#undef UCCL_CONFIG_INT
#undef UCCL_CONFIG_STR
  return d;
}

nb::tuple MakeConfigDict(const Settings& settings, const Settings& environment) {
  const Result<Config> config = MakeConfig(settings, environment);
  if (!config.ok()) return nb::make_tuple(config.status().ToString(), nb::none());
  return nb::make_tuple(nb::none(), ToDict(config.value()));
}

Line SetConfig(const Settings& settings) {
  const Result<Config> config = MakeConfig(settings, {});
  if (!config.ok()) return ToLine(config.status());
  nb::gil_scoped_release release;
  return ToLine(coll::TheRuntime().SetConfig(config.value()));
}

// --- epochs ---

std::pair<Line, std::string> StartEngine(const Settings& settings) {
  const Result<Config> config = MakeConfig(settings, {});
  if (!config.ok()) return {ToLine(config.status()), ""};
  const Result<std::string> address = coll::TheRuntime().Start(config.value());
  if (!address.ok()) return {ToLine(address.status()), ""};
  return {std::nullopt, address.value()};
}

nb::tuple Start(const Settings& settings) {
  std::pair<Line, std::string> result;
  {
    nb::gil_scoped_release release;
    result = StartEngine(settings);
  }
  return nb::make_tuple(result.first, result.second);
}

Line Connect(int32_t process, const std::vector<std::string>& addresses, uint64_t session) {
  nb::gil_scoped_release release;
  return ToLine(coll::TheRuntime().Connect(static_cast<ProcessId>(process), addresses, session));
}

// `name` is the wire name of a row of the status table.
void FailStartup(const std::string& name, const std::string& detail, int64_t process) {
  static const std::map<std::string, StatusCode> codes = {
#define UCCL_STATUS(enumerator, wire_name, ffi_code, python, meaning) \
  {wire_name, StatusCode::enumerator},
#include "csrc/base/status_codes.inc"
#undef UCCL_STATUS
  };
  const auto code = codes.find(name);
  if (code == codes.end()) throw nb::value_error(("no status code is named " + name).c_str());
  Status cause = Status::Error(code->second, detail);
  cause.process = process;
  nb::gil_scoped_release release;
  coll::TheRuntime().FailStartup(cause);
}

Line Shutdown(double timeout_s) {
  nb::gil_scoped_release release;
  return ToLine(coll::TheRuntime().Shutdown(FromSeconds(timeout_s)));
}

void Abort(const std::string& reason) {
  nb::gil_scoped_release release;
  coll::TheRuntime().Abort(reason);
}

// --- seen by people ---

nb::list InFlight() {
  std::vector<coll::OperationStatus> operations;
  {
    nb::gil_scoped_release release;
    operations = coll::TheRuntime().InFlight();
  }
  nb::list list;
  for (const coll::OperationStatus& operation : operations) {
    nb::list remote;
    for (const coll::Member& member : operation.waiting_for_remote) {
      remote.append(nb::make_tuple(member.device, ToInt(member.process)));
    }
    nb::dict d;
    d["op"] = operation.op;
    d["comm"] = operation.comm_id;
    d["seq"] = operation.seq;
    d["elapsed_s"] = ToSeconds(operation.elapsed);
    d["waiting_for_local"] = operation.waiting_for_local;
    d["waiting_for_remote"] = remote;
    list.append(d);
  }
  return list;
}

nb::dict PathDict(const core::PathStats& s) {
  nb::dict d;
  d["state"] = s.state == core::PathHealth::kUp ? "up" : "failed";
#define UCCL_FIELD(name) d[#name] = s.name
  UCCL_FIELD(srtt_ns);
  UCCL_FIELD(min_rtt_ns);
  UCCL_FIELD(inflight_bytes);
  UCCL_FIELD(window_bytes);
  UCCL_FIELD(packets_sent);
  UCCL_FIELD(packets_lost);
  UCCL_FIELD(packets_marked);
  UCCL_FIELD(failures);
  UCCL_FIELD(probes);
#undef UCCL_FIELD
  return d;
}

nb::dict PeerDict(const core::ConnectionStats& s) {
  nb::dict d;
  nb::list paths;
  for (const core::PathStats& path : s.paths) paths.append(PathDict(path));
  d["paths"] = paths;
#define UCCL_FIELD(name) d[#name] = s.name
  UCCL_FIELD(packets_sent);
  UCCL_FIELD(packets_received);
  UCCL_FIELD(bytes_sent);
  UCCL_FIELD(bytes_received);
  UCCL_FIELD(payload_bytes_sent);
  UCCL_FIELD(payload_bytes_received);
  UCCL_FIELD(retransmits_fast);
  UCCL_FIELD(retransmits_timeout);
  UCCL_FIELD(spurious_retransmits);
  UCCL_FIELD(duplicates);
  UCCL_FIELD(out_of_window);
  UCCL_FIELD(wrong_key);
  UCCL_FIELD(malformed);
  UCCL_FIELD(bad_checksum);
  UCCL_FIELD(timeouts);
  UCCL_FIELD(tail_probes);
  UCCL_FIELD(probes);
  UCCL_FIELD(path_probes);
  UCCL_FIELD(acks_sent);
  UCCL_FIELD(credits_sent);
  UCCL_FIELD(requests_to_send);
  UCCL_FIELD(credit_wanted_bytes);
  UCCL_FIELD(credit_received_bytes);
  UCCL_FIELD(credit_used_bytes);
  UCCL_FIELD(credit_granted_bytes);
  UCCL_FIELD(credit_outstanding_bytes);
  UCCL_FIELD(acks_received);
  UCCL_FIELD(eager_bytes_buffered);
  UCCL_FIELD(unexpected_messages);
  UCCL_FIELD(srtt_ns);
  UCCL_FIELD(rttvar_ns);
  UCCL_FIELD(inflight_bytes);
  UCCL_FIELD(window_bytes);
#undef UCCL_FIELD
  return d;
}

nb::dict NicDict(const nic::NicStats& nic) {
  nb::dict d;
#define UCCL_FIELD(name) d[#name] = nic.name
  UCCL_FIELD(send_calls);
  UCCL_FIELD(receive_calls);
  UCCL_FIELD(datagrams_sent);
  UCCL_FIELD(datagrams_received);
  UCCL_FIELD(segmented_packets);
  UCCL_FIELD(segmented_datagrams);
  UCCL_FIELD(joined_packets);
  UCCL_FIELD(joined_datagrams);
  UCCL_FIELD(segmentation_refused);
  UCCL_FIELD(segmentation);
  UCCL_FIELD(receive_offload);
#undef UCCL_FIELD
  return d;
}

nb::dict SharedDict(const shm::LinkStats& link) {
  nb::dict d;
#define UCCL_FIELD(name) d[#name] = link.name
  UCCL_FIELD(messages_sent);
  UCCL_FIELD(messages_received);
  UCCL_FIELD(bytes_sent);
  UCCL_FIELD(bytes_received);
  UCCL_FIELD(fetched_bytes);
  UCCL_FIELD(lent_messages);
  UCCL_FIELD(fragment_bytes);
  UCCL_FIELD(ring_full);
  UCCL_FIELD(unexpected_messages);
  UCCL_FIELD(kept_bytes);
  UCCL_FIELD(one_copy);
#undef UCCL_FIELD
  return d;
}

nb::dict Stats() {
  coll::RuntimeStats stats;
  {
    nb::gil_scoped_release release;
    stats = coll::TheRuntime().Stats();
  }
  nb::dict engine;
  engine["turns"] = stats.engine.turns;
  engine["sleeps"] = stats.engine.sleeps;
  engine["commands"] = stats.engine.commands;
  engine["unknown_key_drops"] = stats.engine.unknown_key_drops;
  engine["engines"] = stats.engine.engines;
  engine["cpus"] = stats.engine.cpus;
  engine["nic"] = NicDict(stats.engine.nic);
  nb::dict peers;
  for (const auto& [process, peer] : stats.engine.peers) peers[nb::int_(process)] = PeerDict(peer);
  nb::dict shared;
  for (const auto& [process, link] : stats.engine.shared)
    shared[nb::int_(process)] = SharedDict(link);
  nb::dict d;
  d["operations_started"] = stats.operations_started;
  d["operations_failed"] = stats.operations_failed;
  d["operations_in_flight"] = stats.operations_in_flight;
  d["worker_threads"] = stats.worker_threads;
  nb::dict algorithms;
  for (const auto& [name, count] : stats.algorithms) algorithms[name.c_str()] = count;
  d["algorithms"] = algorithms;
  d["engine"] = engine;
  d["peers"] = peers;
  d["shared_memory"] = shared;
  d["not_shared_because"] = stats.engine.not_shared_because;
  return d;
}

Line LastError() {
  nb::gil_scoped_release release;
  return ToLine(coll::TheRuntime().last_error());
}

void CompileBoundary(const std::string& module_name) {
  nb::gil_scoped_release release;
  coll::TheRuntime().instances().CloseModule(module_name);
}

void SetDefaultDevices(std::vector<int64_t> ids, std::vector<int64_t> processes) {
  if (ids.size() != processes.size()) throw nb::value_error("ids and processes differ in length");
  nb::gil_scoped_release release;
  coll::TheRuntime().SetDefaultDevices({std::move(ids), std::move(processes)});
}

}  // namespace

NB_MODULE(_uccl, m) {
  m.doc() = "Native part of jax_uccl; use the functions of the package instead.";
  m.def("registrations", &Registrations,
        "{target: {stage: capsule}} for jax.ffi.register_ffi_target.");
  m.def("stream_registrations", &StreamRegistrations,
        "Likewise, of the operations on a stream of a device, which must be attached before.");
  m.def("attach_device", &AttachDeviceTable, nb::arg("device"), nb::arg("ids"),
        "Status line or None. The table of cuda/device.h, and jax.Device.ids by ordinal.");
  m.def("config_rows", &ConfigRowList, "The table of settings, one dict a row.");
  m.def("status_codes", &StatusCodeList, "[(enumerator, wire name, Python class, meaning)].");
  m.def("make_config", &MakeConfigDict, nb::arg("settings"), nb::arg("environment"),
        "(status line or None, {name: value}): settings over environment over defaults.");
  m.def("set_config", &SetConfig, nb::arg("settings"),
        "For processes that never start the engine.");
  m.def("start", &Start, nb::arg("settings"), "(status line or None, address to publish).");
  m.def("connect", &Connect, nb::arg("process"), nb::arg("addresses"), nb::arg("session"));
  m.def("fail_startup", &FailStartup, nb::arg("name"), nb::arg("detail"), nb::arg("process") = -1,
        "Operations with other processes fail with this status, now and later.");
  m.def("shutdown", &Shutdown, nb::arg("timeout_s"), "Ends the epoch in bounded time.");
  m.def("abort", &Abort, nb::arg("reason"));
  m.def("in_flight", &InFlight);
  m.def("stats", &Stats);
  m.def("last_error", &LastError);
  m.def("compile_boundary", &CompileBoundary, nb::arg("module_name"));
  m.def("set_default_devices", &SetDefaultDevices, nb::arg("ids"), nb::arg("processes"));
  DefinePlans(m);
  DefineSim(m);
}

}  // namespace uccl::xla_ffi
