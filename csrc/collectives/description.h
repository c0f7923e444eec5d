// What an operation is, in a form that travels with every message: ranks that disagree are told so
// in words.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/collectives/dtype.h"

namespace uccl::coll {

// Part of the wire format: append, never renumber.
enum class OpKind : uint8_t {
  kInvalid = 0,
  kAllToAll = 1,
  kAllReduce = 2,
  kAllGather = 3,
  kReduceScatter = 4,
  kPermute = 5,
  kRaggedAllToAll = 6,
  kBroadcast = 7,
  kBarrier = 8,
};
// "all_reduce"; "unknown operation" for an unknown value (it may come from a peer).
const char* OpKindName(OpKind kind);
std::optional<OpKind> ParseOpKind(std::string_view name);
std::vector<OpKind> OpKinds();  // all of them

struct OpDescription {
  OpKind kind{};
  DType dtype{};
  ReduceOp reduction{};
  uint8_t algorithm = 0;  // code of a row of algorithms/registry.h; below 32
  uint8_t dims = 0;       // number of dimensions
  uint32_t group_size = 0;
  uint64_t elements = 0;  // per rank
  uint64_t position = 0;  // hash of the call's place in its program and of the communicator
  uint32_t run = 0;       // low bits of XLA's RunId at the sender
  uint32_t launch = 0;    // which executable of the sending process

  // 32 bytes, little-endian, in the order of the fields; `reduction` and `algorithm` share one,
  // with 3 and 5 bits.
  std::array<std::byte, 32> Encode() const;
  static OpDescription Decode(const std::array<std::byte, 32>& note);
  // "all_reduce sum float32, 1024 elements (2 dims) per rank, 4 ranks,
  // by split"
  std::string ToString() const;
};

// Equal on all ranks of an operation that agree about it; part of every message.
uint64_t DigestOf(const OpDescription& description, std::span<const int64_t> shape);

}  // namespace uccl::coll
