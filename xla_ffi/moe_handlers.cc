// See moe_handlers.h. As there, a handler hands one rank's call to the runtime and returns a future
// at once; the rank's stream runs it (csrc/moe/exchange_program.h, throughput.h).
#include "xla_ffi/moe_handlers.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/huge_pages.h"
#include "csrc/collectives/runtime.h"
#include "csrc/moe/exchange_program.h"
#include "csrc/moe/throughput.h"
#include "xla_ffi/site_state.h"
#include "xla_ffi/status.h"

namespace uccl::xla_ffi {
namespace {

Status Invalid(const std::string& detail) {
  return Status::Error(StatusCode::kInvalidArgument, detail);
}

uint64_t Rows(const ffi::AnyBuffer& buffer) {
  return buffer.dimensions().size() == 0 ? 0 : static_cast<uint64_t>(buffer.dimensions()[0]);
}
uint64_t RowBytes(const ffi::AnyBuffer& buffer) {
  return Rows(buffer) == 0 ? 0 : buffer.size_bytes() / Rows(buffer);
}
std::byte* Data(const ffi::AnyBuffer& buffer) {
  return static_cast<std::byte*>(buffer.untyped_data());
}

// int32 arguments number `first` and after it, of one size.
template <size_t kCount>
Status ReadIndices(ffi::RemainingArgs rest, size_t first, uint64_t size,
                   const int32_t* (&indices)[kCount]) {
  for (size_t i = 0; i < kCount; ++i) {
    const auto buffer =
        rest.size() > first + i
            ? rest.get<ffi::AnyBuffer>(first + i)
            : ffi::ErrorOr<ffi::AnyBuffer>(ffi::Unexpected(ffi::Error::InvalidArgument("missing")));
    if (!buffer.has_value() || buffer->element_type() != ffi::DataType::S32 ||
        buffer->element_count() != size) {
      return Invalid("argument " + std::to_string(first + i + 1) + " must be int32 with " +
                     std::to_string(size) + " entries");
    }
    indices[i] = static_cast<const int32_t*>(buffer->untyped_data());
  }
  return Status::Ok();
}

// x [tokens, ...], peers and places [tokens, width] -> [rows, ...].
Status ReadDispatch(const ffi::AnyBuffer& x, ffi::RemainingArgs rest, const ffi::AnyBuffer& y,
                    ffi::RemainingRets, moe::Dispatch* d) {
  if (x.element_type() != y.element_type() || RowBytes(x) != RowBytes(y) || Rows(x) == 0) {
    return Invalid("operand and result must have rows, of one type and size");
  }
  if (rest.size() < 2) return Invalid("needs peers and places");
  const auto peers = rest.get<ffi::AnyBuffer>(0);
  if (!peers.has_value() || peers->element_count() % Rows(x) != 0)
    return Invalid("peers must have a row for each token");
  const uint64_t entries = peers->element_count();
  const int32_t* indices[2] = {};
  if (Status s = ReadIndices(rest, 0, entries, indices); !s.ok()) return s;
  d->x = Data(x), d->x_stride = d->out_stride = d->channels = RowBytes(x);
  d->tokens = Rows(x);
  d->peers = indices[0], d->slots = indices[1];
  d->width = static_cast<uint32_t>(entries / Rows(x));
  d->out = Data(y), d->out_rows = Rows(y);
  return Status::Ok();
}

bool ToElement(ffi::DataType type, cuda::Element* element) {
  if (type == ffi::DataType::F32) *element = cuda::Element::kF32;
  if (type == ffi::DataType::BF16) *element = cuda::Element::kBF16;
  if (type == ffi::DataType::F16) *element = cuda::Element::kF16;
  return type == ffi::DataType::F32 || type == ffi::DataType::BF16 || type == ffi::DataType::F16;
}

// y [rows, ...], rows, peers and slots [entries], table [tokens, width] -> [tokens, ...].
Status ReadCombine(const ffi::AnyBuffer& y, ffi::RemainingArgs rest, const ffi::AnyBuffer& out,
                   ffi::RemainingRets, moe::Combine* c) {
  if (!ToElement(y.element_type(), &c->element) || !ToElement(out.element_type(), &c->out_element))
    return Invalid("rows must be float32, bfloat16 or float16");
  if (Rows(y) == 0 || Rows(out) == 0) return Invalid("operand and result must have rows");
  c->channels = y.element_count() / Rows(y);
  if (c->channels * Rows(out) != out.element_count())
    return Invalid("operand and result must have rows of one size");
  if (rest.size() < 4) return Invalid("needs rows, peers, slots and a table");
  const auto entries = rest.get<ffi::AnyBuffer>(0), table = rest.get<ffi::AnyBuffer>(3);
  if (!entries.has_value() || !table.has_value() || table->element_count() % Rows(out) != 0)
    return Invalid("the table must have a row for each token");
  const int32_t* indices[3] = {};
  const int32_t* places[1] = {};
  if (Status s = ReadIndices(rest, 0, entries->element_count(), indices); !s.ok()) return s;
  if (Status s = ReadIndices(rest, 3, table->element_count(), places); !s.ok()) return s;
  c->y = Data(y), c->y_stride = RowBytes(y), c->y_rows = Rows(y);
  c->rows = indices[0], c->peers = indices[1], c->slots = indices[2];
  c->entries = entries->element_count();
  c->table = places[0], c->tokens = Rows(out);
  c->width = static_cast<uint32_t>(table->element_count() / Rows(out));
  c->out = Data(out), c->out_stride = RowBytes(out);
  return Status::Ok();
}

// int32 arguments from number `first` on, each of any size.
template <size_t kCount>
Status ReadArrays(ffi::RemainingArgs rest, size_t first,
                  std::span<const int32_t> (&arrays)[kCount]) {
  for (size_t i = 0; i < kCount; ++i) {
    if (rest.size() <= first + i) return Invalid("too few arguments");
    const auto buffer = rest.get<ffi::AnyBuffer>(first + i);
    if (!buffer.has_value() || buffer->element_type() != ffi::DataType::S32)
      return Invalid("argument " + std::to_string(first + i + 1) + " must be int32");
    arrays[i] = {static_cast<const int32_t*>(buffer->untyped_data()), buffer->element_count()};
  }
  return Status::Ok();
}

constexpr size_t kExchangeArrays = 6;

// x [rows, ...], index [entries], offsets and counts of what is sent, counts of what comes [ranks],
// places [entries, width], vacant [any] -> [rows, ...]. Without entries index and places mean all
// rows as they lie.
Status ReadExchange(const ffi::AnyBuffer& x, ffi::RemainingArgs rest, const ffi::AnyBuffer& y,
                    ffi::RemainingRets, moe::RowExchange* e) {
  if (x.element_type() != y.element_type() || RowBytes(x) != RowBytes(y) || Rows(x) == 0)
    return Invalid("operand and result must have rows, of one type and size");
  std::span<const int32_t> arrays[kExchangeArrays];
  if (Status s = ReadArrays(rest, 0, arrays); !s.ok()) return s;
  const auto& [index, offsets, send_counts, receive_counts, places, vacant] = arrays;
  e->row_bytes = RowBytes(x);
  e->out = {Data(x), Rows(x), nullptr, Rows(x), offsets, send_counts};
  if (!index.empty()) e->out.index = index.data(), e->out.entries = index.size();
  e->in = {Data(y), Rows(y), nullptr, Rows(y), 1, receive_counts};
  if (!places.empty()) {
    const auto dims = rest.get<ffi::AnyBuffer>(4)->dimensions();
    if (dims.size() != 2) return Invalid("places must be a table");
    e->in.places = places.data();
    e->in.entries = static_cast<uint64_t>(dims[0]), e->in.width = static_cast<uint32_t>(dims[1]);
  }
  e->vacant = vacant.data(), e->num_vacant = vacant.size();
  return Status::Ok();
}

// Likewise with x and `index` those of the second leg, then hosts [ranks], gateways [ranks, hosts],
// and of the first leg index [entries], offsets and counts of what is sent, counts of what comes
// [ranks] -> the relayed rows as the third result.
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

Status ReadWaited(ffi::RemainingRets more, int64_t ranks, Waited* waited) {
  auto buffer = more.size() > 0 ? more.get<ffi::AnyBuffer>(0)
                                : ffi::ErrorOr<ffi::Result<ffi::AnyBuffer>>(
                                      ffi::Unexpected(ffi::Error::InvalidArgument("missing")));
  if (!buffer.has_value() || (*buffer)->element_type() != ffi::DataType::U32 ||
      (*buffer)->element_count() != static_cast<size_t>(ranks)) {
    return Invalid("the second result must be uint32[" + std::to_string(ranks) + "]");
  }
  waited->ns.resize(static_cast<size_t>(ranks));
  waited->result = static_cast<uint32_t*>((*buffer)->untyped_data());
  return Status::Ok();
}

template <class Params, class Program, class Read>
ffi::Future Execute(const Read& read, SiteState* state, int32_t device, ffi::RunId run,
                    const ffi::AnyBuffer& x, ffi::RemainingArgs rest, const ffi::AnyBuffer& y,
                    ffi::RemainingRets more) {
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
  Params params;
  Status status = read(x, rest, y, more, &params);
  if (status.ok()) status = ReadWaited(more, state->site->spec().group_size, waited.get());
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
  call.program = [params, waited]() -> std::unique_ptr<executor::Program> {
    return std::make_unique<Program>(params, waited->ns.data());
  };
  coll::TheRuntime().Submit(std::move(call));
  return future;
}

ffi::Future DispatchRows(SiteState* state, int32_t device, ffi::RunId run, ffi::AnyBuffer x,
                         ffi::RemainingArgs rest, ffi::Result<ffi::AnyBuffer> y,
                         ffi::RemainingRets more) {
  return Execute<moe::Dispatch, moe::DispatchProgram>(ReadDispatch, state, device, run, x, rest, *y,
                                                      more);
}
ffi::Future CombineRows(SiteState* state, int32_t device, ffi::RunId run, ffi::AnyBuffer x,
                        ffi::RemainingArgs rest, ffi::Result<ffi::AnyBuffer> y,
                        ffi::RemainingRets more) {
  return Execute<moe::Combine, moe::CombineProgram>(ReadCombine, state, device, run, x, rest, *y,
                                                    more);
}

ffi::Future ExchangeRows(SiteState* state, int32_t device, ffi::RunId run, ffi::AnyBuffer x,
                         ffi::RemainingArgs rest, ffi::Result<ffi::AnyBuffer> y,
                         ffi::RemainingRets more) {
  return Execute<moe::RowExchange, moe::ThroughputProgram>(ReadExchange, state, device, run, x,
                                                           rest, *y, more);
}
ffi::Future RelayRows(SiteState* state, int32_t device, ffi::RunId run, ffi::AnyBuffer x,
                      ffi::RemainingArgs rest, ffi::Result<ffi::AnyBuffer> y,
                      ffi::RemainingRets more) {
  return Execute<moe::RowExchange, moe::ThroughputProgram>(ReadRelay, state, device, run, x, rest,
                                                           *y, more);
}

XLA_FFI_DEFINE_HANDLER(kDispatch, DispatchRows, BindOperation());
XLA_FFI_DEFINE_HANDLER(kCombine, CombineRows, BindOperation());
XLA_FFI_DEFINE_HANDLER(kExchange, ExchangeRows, BindOperation());
XLA_FFI_DEFINE_HANDLER(kRelay, RelayRows, BindOperation());

}  // namespace
}  // namespace uccl::xla_ffi

extern "C" {
XLA_FFI_Error* UcclMoeDispatch(XLA_FFI_CallFrame* frame) { return uccl::xla_ffi::kDispatch(frame); }
XLA_FFI_Error* UcclMoeCombine(XLA_FFI_CallFrame* frame) { return uccl::xla_ffi::kCombine(frame); }
XLA_FFI_Error* UcclMoeExchange(XLA_FFI_CallFrame* frame) { return uccl::xla_ffi::kExchange(frame); }
XLA_FFI_Error* UcclMoeRelay(XLA_FFI_CallFrame* frame) { return uccl::xla_ffi::kRelay(frame); }
}
