// See moe_arguments.h.
#include "xla_ffi/moe_arguments.h"

namespace uccl::xla_ffi {
namespace {

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

bool ToElement(ffi::DataType type, cuda::Element* element) {
  if (type == ffi::DataType::F32) *element = cuda::Element::kF32;
  if (type == ffi::DataType::BF16) *element = cuda::Element::kBF16;
  if (type == ffi::DataType::F16) *element = cuda::Element::kF16;
  return type == ffi::DataType::F32 || type == ffi::DataType::BF16 || type == ffi::DataType::F16;
}

}  // namespace

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

void SetSent(const ffi::AnyBuffer& x, std::span<const int32_t> index,
             std::span<const int32_t> offsets, std::span<const int32_t> counts,
             moe::RowExchange* e) {
  e->row_bytes = RowBytes(x);
  e->out = {Data(x), Rows(x), nullptr, Rows(x), offsets, counts};
  if (!index.empty()) e->out.index = index.data(), e->out.entries = index.size();
}

Status ReadExchange(const ffi::AnyBuffer& x, ffi::RemainingArgs rest, const ffi::AnyBuffer& y,
                    ffi::RemainingRets, moe::RowExchange* e) {
  if (x.element_type() != y.element_type() || RowBytes(x) != RowBytes(y) || Rows(x) == 0)
    return Invalid("operand and result must have rows, of one type and size");
  std::span<const int32_t> arrays[kExchangeArrays];
  if (Status s = ReadArrays(rest, 0, arrays); !s.ok()) return s;
  const auto& [index, offsets, send_counts, receive_counts, places, vacant] = arrays;
  SetSent(x, index, offsets, send_counts, e);
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

Status ReadWaited(ffi::RemainingRets more, int64_t ranks, uint32_t** waited) {
  auto buffer = more.size() > 0 ? more.get<ffi::AnyBuffer>(0)
                                : ffi::ErrorOr<ffi::Result<ffi::AnyBuffer>>(
                                      ffi::Unexpected(ffi::Error::InvalidArgument("missing")));
  if (!buffer.has_value() || (*buffer)->element_type() != ffi::DataType::U32 ||
      (*buffer)->element_count() != static_cast<size_t>(ranks)) {
    return Invalid("the second result must be uint32[" + std::to_string(ranks) + "]");
  }
  *waited = static_cast<uint32_t*>((*buffer)->untyped_data());
  return Status::Ok();
}

}  // namespace uccl::xla_ffi
