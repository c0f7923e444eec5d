// See moe_handlers.h. As there, a handler hands one rank's call to the runtime and returns a future
// at once. With executor=fifo the rank's stream runs it (csrc/moe/exchange_program.h,
// throughput.h), else an exchange of rows is an operation in memory (row_ends.h).
#include "xla_ffi/moe_handlers.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/huge_pages.h"
#include "csrc/collectives/runtime.h"
#include "csrc/moe/exchange_program.h"
#include "csrc/moe/row_ends.h"
#include "csrc/moe/throughput.h"
#include "xla_ffi/moe_arguments.h"
#include "xla_ffi/site_state.h"
#include "xla_ffi/status.h"

namespace uccl::xla_ffi {
namespace {

// x [rows, ...], index [entries], offsets and counts of what is sent, counts of what comes [ranks],
// table [tokens, width] -> the sums of what comes, [tokens, ...].
Status ReadReturn(const ffi::AnyBuffer& x, ffi::RemainingArgs rest, const ffi::AnyBuffer& y,
                  moe::RowExchange* e, moe::RowSum* sum) {
  const auto from = ToRowType(x.element_type()), to = ToRowType(y.element_type());
  if (!from || !to) return Invalid("operand and result must be float32 or bfloat16");
  sum->from = *from, sum->to = *to;
  if (Rows(x) == 0 || Rows(y) == 0 || x.element_count() / Rows(x) * Rows(y) != y.element_count()) {
    return Invalid("operand and result must have rows of one size");
  }
  std::span<const int32_t> arrays[5];
  if (Status s = ReadArrays(rest, 0, arrays); !s.ok()) return s;
  const auto& [index, offsets, send_counts, receive_counts, table] = arrays;
  if (table.empty() || table.size() % Rows(y) != 0)
    return Invalid("the table must have a row for each of the result");
  SetSent(x, index, offsets, send_counts, e);
  uint64_t come = 0;
  for (const int32_t count : receive_counts) come += count < 0 ? 0 : static_cast<uint64_t>(count);
  e->in = {nullptr, come, nullptr, come, 1, receive_counts};
  sum->table = table, sum->width = static_cast<uint32_t>(table.size() / Rows(y));
  sum->rows = Data(y);
  return Status::Ok();
}

// As ReadExchange, with x and `index` those of the second leg, then hosts [ranks], gateways [ranks,
// hosts], and of the first leg index [entries], offsets and counts of what is sent, counts of what
// comes [ranks] -> the relayed rows as the third result.
Status ReadRelay(const ffi::AnyBuffer& x, ffi::RemainingArgs rest, const ffi::AnyBuffer& y,
                 ffi::RemainingRets more, moe::RowExchange* e) {
  if (Status s = ReadExchange(x, rest, y, more, e); !s.ok()) return s;
  std::span<const int32_t> arrays[6];
  if (Status s = ReadArrays(rest, kExchangeArrays, arrays); !s.ok()) return s;
  const auto& [hosts, gateways, index, offsets, send_counts, receive_counts] = arrays;
  if (more.size() < 2) return Invalid("needs a result for the relayed rows");
  auto relayed = more.get<ffi::AnyBuffer>(1);
  if (!relayed.has_value() || (*relayed)->element_type() != x.element_type() ||
      RowBytes(**relayed) != e->row_bytes || hosts.empty()) {
    return Invalid("relayed rows must be as the operand's");
  }
  moe::RelayRows relay;
  relay.hosts = hosts, relay.gateways = gateways;
  relay.num_hosts = static_cast<uint32_t>(gateways.size() / hosts.size());
  relay.out = {Data(x), Rows(x), index.data(), index.size(), offsets, send_counts};
  relay.in = {Data(**relayed), Rows(**relayed), nullptr, Rows(**relayed), 1, receive_counts};
  e->out.rows = relay.in.rows, e->out.num_rows = relay.in.num_rows;
  e->relay = relay;
  return Status::Ok();
}

// What a program measures, and the result that it goes to: uint32 nanoseconds for each rank, of
// which the largest also stands for more.
struct Waited {
  std::vector<uint64_t> ns;
  uint32_t* result = nullptr;

  void Store() const {
    constexpr uint64_t kMost = std::numeric_limits<uint32_t>::max();
    for (size_t i = 0; i < ns.size(); ++i)
      result[i] = static_cast<uint32_t>(std::min(ns[i], kMost));
  }
};

// `prepare(waited, &call)` reads the arguments and says what the call does.
template <class Prepare>
ffi::Future Execute(SiteState* state, int32_t device, ffi::RunId run, const ffi::AnyBuffer& x,
                    ffi::RemainingArgs rest, const ffi::AnyBuffer& y, ffi::RemainingRets more,
                    const Prepare& prepare) {
  ffi::Promise promise;
  ffi::Future future(promise);
  coll::Call call;
  call.site = state->site;
  call.device = device;
  call.run = run.run_id;
  call.dtype = ToDType(x.element_type());
  const auto waited = std::make_shared<Waited>();
  call.done = [promise, waited](const Status& status) mutable {
    if (status.ok()) {
      waited->Store();
      promise.SetAvailable();
    } else {
      promise.SetError(ToError(status));
    }
  };
  AdviseHugePages(y.untyped_data(), y.size_bytes());
  const int64_t ranks = state->site->spec().group_size;
  Status status = ReadWaited(more, ranks, &waited->result);
  waited->ns.resize(static_cast<size_t>(ranks));
  if (status.ok()) status = prepare(waited, &call);
  if (!status.ok()) {
    status.op = state->site->spec().label;
    coll::TheRuntime().Reject(std::move(call), status);  // the other members wait for this rank
    return future;
  }
  if (ffi::Error error = ReadPartition(rest, &call); !error.success()) {
    promise.SetError(std::move(error));
    return future;
  }
  for (const int64_t d : x.dimensions()) call.shape.push_back(d);
  call.elements = x.element_count();
  call.input = Data(x);
  call.output = Data(y);
  coll::TheRuntime().Submit(std::move(call));
  return future;
}

// With executor=fifo.
template <class Program, class... Params>
void SetProgram(const std::shared_ptr<Waited>& waited, coll::Call* call, const Params&... params) {
  call->program = [params..., waited]() -> std::unique_ptr<executor::Program> {
    return std::make_unique<Program>(params..., waited->ns.data());
  };
}

// By commands alone.
template <class Program, class Params, class Read>
Status ByProgram(const Read& read, const ffi::AnyBuffer& x, ffi::RemainingArgs rest,
                 const ffi::AnyBuffer& y, ffi::RemainingRets more,
                 const std::shared_ptr<Waited>& waited, coll::Call* call) {
  Params params;
  if (Status s = read(x, rest, y, more, &params); !s.ok()) return s;
  SetProgram<Program>(waited, call, params);
  return Status::Ok();
}

// In memory as well.
Status AddEnds(const moe::RowExchange& exchange, const std::optional<moe::RowSum>& sum,
               const std::shared_ptr<Waited>& waited, coll::Call* call) {
  const auto ranks = static_cast<uint32_t>(waited->ns.size());
  auto ends = moe::RowEnds::Make(exchange, sum, ranks, waited->ns.data());
  if (!ends.ok()) return ends.status();
  call->ragged = ends.value()->Sizes();
  call->ends = std::move(ends.value());
  return Status::Ok();
}

ffi::Future DispatchRows(SiteState* state, int32_t device, ffi::RunId run, ffi::AnyBuffer x,
                         ffi::RemainingArgs rest, ffi::Result<ffi::AnyBuffer> y,
                         ffi::RemainingRets more) {
  return Execute(state, device, run, x, rest, *y, more, [&](const auto& waited, coll::Call* call) {
    return ByProgram<moe::DispatchProgram, moe::Dispatch>(ReadDispatch, x, rest, *y, more, waited,
                                                          call);
  });
}
ffi::Future CombineRows(SiteState* state, int32_t device, ffi::RunId run, ffi::AnyBuffer x,
                        ffi::RemainingArgs rest, ffi::Result<ffi::AnyBuffer> y,
                        ffi::RemainingRets more) {
  return Execute(state, device, run, x, rest, *y, more, [&](const auto& waited, coll::Call* call) {
    return ByProgram<moe::CombineProgram, moe::Combine>(ReadCombine, x, rest, *y, more, waited,
                                                        call);
  });
}
ffi::Future RelayRows(SiteState* state, int32_t device, ffi::RunId run, ffi::AnyBuffer x,
                      ffi::RemainingArgs rest, ffi::Result<ffi::AnyBuffer> y,
                      ffi::RemainingRets more) {
  return Execute(state, device, run, x, rest, *y, more, [&](const auto& waited, coll::Call* call) {
    return ByProgram<moe::ThroughputProgram, moe::RowExchange>(ReadRelay, x, rest, *y, more, waited,
                                                               call);
  });
}

ffi::Future ExchangeRows(SiteState* state, int32_t device, ffi::RunId run, ffi::AnyBuffer x,
                         ffi::RemainingArgs rest, ffi::Result<ffi::AnyBuffer> y,
                         ffi::RemainingRets more) {
  return Execute(state, device, run, x, rest, *y, more, [&](const auto& waited, coll::Call* call) {
    moe::RowExchange exchange;
    if (Status s = ReadExchange(x, rest, *y, more, &exchange); !s.ok()) return s;
    SetProgram<moe::ThroughputProgram>(waited, call, exchange);
    return AddEnds(exchange, std::nullopt, waited, call);
  });
}
ffi::Future ReturnRows(SiteState* state, int32_t device, ffi::RunId run, ffi::AnyBuffer x,
                       ffi::RemainingArgs rest, ffi::Result<ffi::AnyBuffer> y,
                       ffi::RemainingRets more) {
  return Execute(state, device, run, x, rest, *y, more, [&](const auto& waited, coll::Call* call) {
    moe::RowExchange exchange;
    moe::RowSum sum;
    if (Status s = ReadReturn(x, rest, *y, &exchange, &sum); !s.ok()) return s;
    SetProgram<moe::SumProgram>(waited, call, exchange, sum);
    return AddEnds(exchange, sum, waited, call);
  });
}

XLA_FFI_DEFINE_HANDLER(kDispatch, DispatchRows, BindOperation());
XLA_FFI_DEFINE_HANDLER(kCombine, CombineRows, BindOperation());
XLA_FFI_DEFINE_HANDLER(kExchange, ExchangeRows, BindOperation());
XLA_FFI_DEFINE_HANDLER(kReturn, ReturnRows, BindOperation());
XLA_FFI_DEFINE_HANDLER(kRelay, RelayRows, BindOperation());

}  // namespace
}  // namespace uccl::xla_ffi

extern "C" {
XLA_FFI_Error* UcclMoeDispatch(XLA_FFI_CallFrame* frame) { return uccl::xla_ffi::kDispatch(frame); }
XLA_FFI_Error* UcclMoeCombine(XLA_FFI_CallFrame* frame) { return uccl::xla_ffi::kCombine(frame); }
XLA_FFI_Error* UcclMoeExchange(XLA_FFI_CallFrame* frame) { return uccl::xla_ffi::kExchange(frame); }
XLA_FFI_Error* UcclMoeReturn(XLA_FFI_CallFrame* frame) { return uccl::xla_ffi::kReturn(frame); }
XLA_FFI_Error* UcclMoeRelay(XLA_FFI_CallFrame* frame) { return uccl::xla_ffi::kRelay(frame); }
}
