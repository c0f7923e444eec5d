// The note's layout is part of the wire format: 32 bytes, little-endian, pinned by
// description_test.cc.
#include "csrc/collectives/description.h"

#include "csrc/base/hash.h"
#include "csrc/base/little_endian.h"
#include "csrc/collectives/algorithms/registry.h"

namespace uccl::coll {
namespace {

template <class T>
void Put(T value, std::byte*& at) {
  StoreLittleEndian(value, at);
  at += sizeof(T);
}
template <class T>
T Take(const std::byte*& at) {
  const T value = LoadLittleEndian<T>(at);
  at += sizeof(T);
  return value;
}

constexpr unsigned kReductionBits = 3;
static_assert(static_cast<unsigned>(ReduceOp::kOr) < 1u << kReductionBits);

// In the order of OpKind.
constexpr std::array<const char*, 9> kOpKinds = {
    "unknown operation", "all_to_all",        "all_reduce", "all_gather", "reduce_scatter",
    "permute",           "ragged_all_to_all", "broadcast",  "barrier"};

}  // namespace

const char* OpKindName(OpKind kind) {
  const auto i = static_cast<size_t>(kind);
  return i < kOpKinds.size() ? kOpKinds[i] : kOpKinds[0];
}

std::optional<OpKind> ParseOpKind(std::string_view name) {
  for (size_t i = 1; i < kOpKinds.size(); ++i) {
    if (name == kOpKinds[i]) return static_cast<OpKind>(i);
  }
  return std::nullopt;
}

std::vector<OpKind> OpKinds() {
  std::vector<OpKind> kinds;
  for (size_t i = 1; i < kOpKinds.size(); ++i) kinds.push_back(static_cast<OpKind>(i));
  return kinds;
}

std::array<std::byte, 32> OpDescription::Encode() const {
  std::array<std::byte, 32> note{};
  std::byte* at = note.data();
  Put(static_cast<uint8_t>(kind), at);
  Put(static_cast<uint8_t>(dtype), at);
  Put(static_cast<uint8_t>(static_cast<uint8_t>(reduction) | algorithm << kReductionBits), at);
  Put(dims, at);
  Put(group_size, at);
  Put(elements, at);
  Put(position, at);
  Put(run, at);
  Put(launch, at);
  return note;
}

OpDescription OpDescription::Decode(const std::array<std::byte, 32>& note) {
  const std::byte* at = note.data();
  OpDescription d;
  d.kind = static_cast<OpKind>(Take<uint8_t>(at));
  d.dtype = static_cast<DType>(Take<uint8_t>(at));
  const auto how = Take<uint8_t>(at);
  d.reduction = static_cast<ReduceOp>(how & ((1u << kReductionBits) - 1));
  d.algorithm = static_cast<uint8_t>(how >> kReductionBits);
  d.dims = Take<uint8_t>(at);
  d.group_size = Take<uint32_t>(at);
  d.elements = Take<uint64_t>(at);
  d.position = Take<uint64_t>(at);
  d.run = Take<uint32_t>(at);
  d.launch = Take<uint32_t>(at);
  return d;
}

std::string OpDescription::ToString() const {
  std::string s = OpKindName(kind);
  if (reduction != ReduceOp::kNone) s += std::string(" ") + ReduceOpName(reduction);
  s += std::string(" ") + DTypeName(dtype) + ", " + std::to_string(elements) + " elements (" +
       std::to_string(dims) + " dims) per rank, " + std::to_string(group_size) + " ranks";
  if (algorithm != 0) s += ", by " + AlgorithmName(kind, algorithm);
  return s;
}

uint64_t DigestOf(const OpDescription& d, std::span<const int64_t> shape) {
  Hasher h;
  h.Word(static_cast<uint64_t>(d.kind))
      .Word(static_cast<uint64_t>(d.dtype))
      .Word(static_cast<uint64_t>(d.reduction))
      .Word(d.algorithm)
      .Word(d.group_size)
      .Word(d.position);
  h.Word(shape.size());
  for (int64_t dim : shape) h.Word(static_cast<uint64_t>(dim));
  return h.Finish64();
}

}  // namespace uccl::coll
