// Rows of tokens as 8-bit floats (e4m3fn: 4 bits of exponent, 3 of mantissa, no infinity) with a
// float scale for each 128 channels, as they travel: the values of a row, then its scales.
//
// The meaning is jax_uccl/_src/moe/quantize.py, to the bit; XLA converts such floats one at a time.
// Pure: no thread, no allocation.
#pragma once

#include <cstddef>
#include <cstdint>

#include "csrc/moe/rows.h"

namespace uccl::moe {

inline constexpr size_t kFp8Block = 128;  // channels that share a scale

// hidden values and the scales of a row.
size_t Fp8WireBytes(size_t hidden);

// to: rows of Fp8WireBytes(hidden). A scale is the largest magnitude of its block, at least 1e-4,
// divided by 448, or with `power_of_two` the next power of two. The buffers must not overlap.
void EncodeFp8(RowType type, const std::byte* from, size_t rows, size_t hidden, bool power_of_two,
               std::byte* to);

// to: rows of `hidden` elements, value times scale.
void DecodeFp8(const std::byte* from, size_t rows, size_t hidden, RowType type, std::byte* to);

// One value: the nearest e4m3fn of a number whose magnitude is at most 448 (ties to even), and
// back.
uint8_t ToFp8(float value);
float FromFp8(uint8_t bits);

}  // namespace uccl::moe
