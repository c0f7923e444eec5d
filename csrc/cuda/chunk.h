// Eight neighbouring elements of a row as float32 registers of one thread: one access of 16 bytes
// for the 16-bit floats, two for float32, one of 8 for bytes. Little-endian, as all machines here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "csrc/cuda/element.h"
#include "csrc/cuda/float_formats.h"
#include "csrc/cuda/memory.h"

namespace uccl::cuda {

inline constexpr uint32_t kChunk = 8;

// Elements of the chunk at `at` that lie before `last`.
UCCL_HOST_DEVICE inline uint32_t ChunkCount(uint64_t at, uint64_t last) {
  if (at >= last) return 0;
  return last - at < kChunk ? static_cast<uint32_t>(last - at) : kChunk;
}

struct HalfCodec {
  static constexpr bool kIsFloat = true;
  using Bits = uint16_t;
  static constexpr uint32_t kBytes = 2;
  UCCL_HOST_DEVICE static float Decode(Bits bits) { return HalfToFloat(bits); }
  UCCL_HOST_DEVICE static Bits Encode(float f) { return FloatToHalf(f); }
};
struct BFloat16Codec {
  static constexpr bool kIsFloat = true;
  using Bits = uint16_t;
  static constexpr uint32_t kBytes = 2;
  UCCL_HOST_DEVICE static float Decode(Bits bits) { return BFloat16ToFloat(bits); }
  UCCL_HOST_DEVICE static Bits Encode(float f) { return FloatToBFloat16(f); }
};
struct FloatCodec {
  static constexpr bool kIsFloat = true;
  using Bits = uint32_t;
  static constexpr uint32_t kBytes = 4;
  UCCL_HOST_DEVICE static float Decode(Bits bits) { return BitsAs<float>(bits); }
  UCCL_HOST_DEVICE static Bits Encode(float f) { return BitsAs<uint32_t>(OneNan(f)); }
};
// Calls visit.template operator()<Codec>() with that of a float of at most 4 bytes; false for other
// elements.
template <class Visit>
bool WithFloatCodec(Element element, const Visit& visit) {
  switch (element) {
    case Element::kF16:
      return visit.template operator()<HalfCodec>(), true;
    case Element::kBF16:
      return visit.template operator()<BFloat16Codec>(), true;
    case Element::kF32:
      return visit.template operator()<FloatCodec>(), true;
    default:
      return false;
  }
}
// Bytes that nobody looks into.
struct ByteCodec {
  static constexpr bool kIsFloat = false;
  static constexpr uint32_t kBytes = 1;
};

// The first `count` elements from memory, zeros for the rest. Addresses are aligned to elements.
template <class Codec>
UCCL_HOST_DEVICE inline void LoadChunk(const std::byte* from, uint32_t count, float* values) {
  using Bits = typename Codec::Bits;
  Bits bits[kChunk];
  if (count == kChunk && IsAligned(from, 16)) {
    Vector16 vectors[kChunk * sizeof(Bits) / 16];
    const auto* source = reinterpret_cast<const Vector16*>(from);
    for (uint32_t i = 0; i < sizeof(vectors) / 16; ++i) vectors[i] = source[i];
    memcpy(bits, vectors, sizeof(bits));
  } else {
    for (uint32_t k = 0; k < kChunk; ++k)
      bits[k] = k < count ? LoadAny<Bits>(from + k * sizeof(Bits)) : Bits{0};
  }
  for (uint32_t k = 0; k < kChunk; ++k) values[k] = Codec::Decode(bits[k]);
}

template <class Codec>
UCCL_HOST_DEVICE inline void StoreChunk(const float* values, uint32_t count, std::byte* to) {
  using Bits = typename Codec::Bits;
  Bits bits[kChunk];
  for (uint32_t k = 0; k < kChunk; ++k) bits[k] = Codec::Encode(values[k]);
  if (count == kChunk && IsAligned(to, 16)) {
    Vector16 vectors[kChunk * sizeof(Bits) / 16];
    memcpy(vectors, bits, sizeof(bits));
    auto* target = reinterpret_cast<Vector16*>(to);
    for (uint32_t i = 0; i < sizeof(vectors) / 16; ++i) target[i] = vectors[i];
  } else {
    for (uint32_t k = 0; k < count; ++k) StoreAny(to + k * sizeof(Bits), bits[k]);
  }
}

// Bytes of one chunk, the first in the lowest bits; zeros behind `count`.
UCCL_HOST_DEVICE inline uint64_t LoadByteChunk(const std::byte* from, uint32_t count) {
  if (count == kChunk && IsAligned(from, kChunk)) return *reinterpret_cast<const uint64_t*>(from);
  uint64_t chunk = 0;
  for (uint32_t k = 0; k < count; ++k) chunk |= static_cast<uint64_t>(from[k]) << (8 * k);
  return chunk;
}
UCCL_HOST_DEVICE inline void StoreByteChunk(uint64_t chunk, uint32_t count, std::byte* to) {
  if (count == kChunk && IsAligned(to, kChunk)) {
    *reinterpret_cast<uint64_t*>(to) = chunk;
  } else {
    for (uint32_t k = 0; k < count; ++k) to[k] = static_cast<std::byte>(chunk >> (8 * k));
  }
}

}  // namespace uccl::cuda
