// Widens block by block, lets reduce.h add, rounds at the end.
#include "csrc/collectives/wide_reduce.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "csrc/base/bfloat16.h"
#include "csrc/collectives/reduce.h"

namespace uccl::coll {
namespace {

constexpr size_t kBlock = 1024;

// As those of bfloat16.h: integer operations, and additions whose results are normal.
float FromHalf(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu, mantissa = bits & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent > 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

uint16_t ToHalf(float f) {
  const auto u = std::bit_cast<uint32_t>(f);
  const auto sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);   // NaN
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // infinity
  if (magnitude < 0x38800000u) {
    // Subnormal result: adding 0.5 puts the rounded mantissa into the low bits of the sum.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  // To nearest, ties to even.
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

}  // namespace

void ReduceWide(DType dtype, ReduceOp op, std::span<const WideInput> inputs,
                std::span<const WideOutput> outputs, size_t count) {
  std::vector<const std::byte*> from;
  std::vector<std::byte*> to;
  const bool any_wide = std::any_of(inputs.begin(), inputs.end(), [](auto& i) { return i.wide; }) ||
                        std::any_of(outputs.begin(), outputs.end(), [](auto& o) { return o.wide; });
  if (!any_wide) {
    for (const WideInput& in : inputs) from.push_back(in.data);
    for (const WideOutput& out : outputs) to.push_back(out.data);
    ReduceElements(dtype, op, from, to, count);
    return;
  }
  const auto widen = dtype == DType::kF16 ? &FromHalf : &FromBFloat16;
  const auto narrow = dtype == DType::kF16 ? &ToHalf : &ToBFloat16;
  std::vector<float> widened(kBlock * inputs.size()), sums(kBlock);
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t length = std::min(kBlock, count - begin);
    from.clear();
    for (size_t k = 0; k < inputs.size(); ++k) {
      if (inputs[k].wide) {
        from.push_back(inputs[k].data + begin * sizeof(float));
        continue;
      }
      const auto* in = reinterpret_cast<const uint16_t*>(inputs[k].data) + begin;
      float* block = widened.data() + k * kBlock;
      for (size_t i = 0; i < length; ++i) block[i] = widen(in[i]);
      from.push_back(reinterpret_cast<const std::byte*>(block));
    }
    std::byte* const sum = reinterpret_cast<std::byte*>(sums.data());
    ReduceElements(DType::kF32, op, from, std::span(&sum, 1), length);
    for (const WideOutput& out : outputs) {
      if (out.wide) {
        std::memcpy(out.data + begin * sizeof(float), sum, length * sizeof(float));
        continue;
      }
      auto* at = reinterpret_cast<uint16_t*>(out.data) + begin;
      for (size_t i = 0; i < length; ++i) at[i] = narrow(sums[i]);
    }
  }
}

}  // namespace uccl::coll
