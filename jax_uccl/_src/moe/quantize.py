"""float8_e4m3fn with one f32 scale for each 128 channels, as DeepEP sends it, and its form on the wire.

A row travels as bytes: the fp8 values, then the scales. The largest magnitude of a block is clamped from below
at 1e-4, so that a block of zeros has a scale; 448 is the largest finite e4m3fn value.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

BLOCK = 128
SMALLEST_AMAX = 1e-4
LARGEST = 448.0
FP8 = jnp.float8_e4m3fn


def blocks_of(hidden: int) -> int:
    """Scales of a row."""
    return -(-hidden // BLOCK)


def quantize(x: Any, *, power_of_two_scales: bool = False) -> tuple[Any, Any]:
    """Rounds rows to 8-bit floats with a scale for each 128 channels.

    Args:
      x: [..., hidden] of a floating dtype; hidden need not be a multiple of 128.
      power_of_two_scales: rounds each scale up to a power of two, so that scaling is exact.

    Returns:
      (values, scales): float8_e4m3fn [..., hidden] and f32 [..., ceil(hidden / 128)], with
      `x ~ values * scales`. Not differentiable.

    Cost: one pass. Source: DeepEP, tests/utils.py per_token_cast_to_fp8.

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_uccl import moe
      >>> values, scales = moe.quantize(jnp.full((1, 2), 896.0))
      >>> values.dtype, scales.tolist()
      (dtype(float8_e4m3fn), [[2.0]])
    """
    wide = lax.stop_gradient(jnp.asarray(x)).astype(np.float32)
    hidden = wide.shape[-1]
    padding = [(0, 0)] * (wide.ndim - 1) + [(0, blocks_of(hidden) * BLOCK - hidden)]
    parts = jnp.pad(wide, padding).reshape(*wide.shape[:-1], blocks_of(hidden), BLOCK)
    amax = jnp.maximum(jnp.abs(parts).max(-1), np.float32(SMALLEST_AMAX))
    # Not a division: XLA would replace one by a constant, and other compilers would not.
    scales = _next_power_of_two(amax) if power_of_two_scales else amax * np.float32(1 / LARGEST)
    values = (parts / scales[..., None]).reshape(*wide.shape[:-1], blocks_of(hidden) * BLOCK)
    return jnp.clip(values[..., :hidden], -LARGEST, LARGEST).astype(FP8), scales


def _next_power_of_two(amax: Any) -> Any:
    """The smallest power of two that is at least `amax / 448`; 448 is 1.75 * 2^8, so the bits tell."""
    bits = lax.bitcast_convert_type(amax, np.int32)
    more = (bits & 0x7FFFFF) > 0x600000
    return lax.bitcast_convert_type(((bits >> 23) - 8 + more) << 23, np.float32)


def dequantize(values: Any, scales: Any, dtype: Any = np.float32) -> Any:
    """`values * scales` in `dtype`; the inverse of `quantize` up to rounding.

    Args:
      values: float8_e4m3fn [..., hidden].
      scales: f32 [..., ceil(hidden / 128)].
      dtype: of the result.

    Returns:
      [..., hidden].
    """
    hidden = values.shape[-1]
    each = jnp.repeat(scales, BLOCK, axis=-1)[..., :hidden]
    return (values.astype(np.float32) * each).astype(dtype)


def to_wire(values: Any, scales: Any) -> Any:
    """uint8 [T, hidden + 4 * blocks]."""
    raw = lax.bitcast_convert_type(values, np.uint8)
    tail = lax.bitcast_convert_type(scales, np.uint8)
    tail = tail.reshape(*scales.shape[:-1], 4 * scales.shape[-1])
    return jnp.concatenate([raw, tail], axis=-1)


def from_wire(rows: Any, hidden: int) -> tuple[Any, Any]:
    """The inverse of `to_wire`."""
    values = lax.bitcast_convert_type(rows[..., :hidden], FP8)
    tail = rows[..., hidden:].reshape(*rows.shape[:-1], blocks_of(hidden), 4)
    return values, lax.bitcast_convert_type(tail, np.float32)
