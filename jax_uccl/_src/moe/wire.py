"""Tokens as 8-bit floats on the wire: rows of bytes from floats and back, natively on CPU (csrc/moe/fp8.h).

    encode_p: [T, hidden] -> uint8 [T, hidden + 4 * blocks]      to_wire(*quantize(x))
    decode_p: uint8 [C, ...] -> [C, hidden]                      dequantize(*from_wire(rows))

XLA:CPU converts such floats one at a time. Neither has a derivative: dispatch passes gradients around them.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_uccl._src import jax_compat as compat
from jax_uccl._src import lowering
from jax_uccl._src.collectives import define
from jax_uccl._src.moe import quantize as fp8


def encode(x: Any, *, power_of_two: bool, native: bool) -> Any:
    """uint8 [T, hidden + 4 * blocks] of floats [T, hidden]; `native`: whether a custom call may be used."""
    x = lax.stop_gradient(x)
    if not native:
        return _encode(x, power_of_two=power_of_two)
    return encode_p.bind(x, power_of_two=power_of_two)


def decode(rows: Any, hidden: int, dtype: Any, *, native: bool) -> Any:
    """The inverse, [C, hidden] of `dtype`."""
    dtype = np.dtype(dtype)
    if not native:
        return _decode(rows, hidden=hidden, dtype=dtype)
    return decode_p.bind(rows, hidden=hidden, dtype=dtype)


def _encode(x: Any, *, power_of_two: bool) -> Any:
    return fp8.to_wire(*fp8.quantize(x, power_of_two_scales=power_of_two))


def _decode(rows: Any, *, hidden: int, dtype: Any) -> Any:
    return fp8.dequantize(*fp8.from_wire(rows, hidden), dtype)


encode_p = compat.Primitive("uccl_moe_encode_fp8")
decode_p = compat.Primitive("uccl_moe_decode_fp8")


def _abstract_encode(x: Any, *, power_of_two: bool) -> Any:
    del power_of_two
    tokens, hidden = x.shape
    width = hidden + 4 * fp8.blocks_of(hidden)
    return x.update(shape=(tokens, width), dtype=np.dtype(np.uint8), weak_type=False)


def _abstract_decode(rows: Any, *, hidden: int, dtype: Any) -> Any:
    return rows.update(shape=(rows.shape[0], hidden), dtype=dtype, weak_type=False)


def _is_native(dtype: Any, *shapes: Any) -> bool:
    fits = dtype in (np.dtype(np.float32), np.dtype(jnp.bfloat16))
    return fits and not any(0 in shape for shape in shapes)


def _lower_encode(ctx: Any, x: Any, *, power_of_two: bool) -> Any:
    aval = ctx.avals_in[0]
    if not _is_native(aval.dtype, aval.shape):
        return lowering.plain(_encode)(ctx, x, power_of_two=power_of_two)
    return lowering.local_call(ctx, "encode_fp8", [x], dict(power_of_two=np.int64(power_of_two)))


def _lower_decode(ctx: Any, rows: Any, *, hidden: int, dtype: Any) -> Any:
    if not _is_native(dtype, ctx.avals_in[0].shape, ctx.avals_out[0].shape):
        return lowering.plain(_decode)(ctx, rows, hidden=hidden, dtype=dtype)
    return lowering.local_call(ctx, "decode_fp8", [rows])


def _register(primitive: Any, function: Any, abstract_eval: Any, lower_on_cpu: Any) -> None:
    def batch(axis_data: Any, operands: Any, dims: Any, **params: Any) -> Any:
        x = define.to_front(operands[0], dims[0], axis_data.size)
        out = primitive.bind(x.reshape(x.shape[0] * x.shape[1], x.shape[2]), **params)
        return out.reshape(*x.shape[:-1], out.shape[-1]), 0

    static = ("power_of_two",) if primitive is encode_p else ("hidden", "dtype")
    primitive.def_impl(jax.jit(function, static_argnames=static))
    primitive.def_abstract_eval(abstract_eval)
    compat.mlir.register_lowering(primitive, lowering.plain(function))
    compat.mlir.register_lowering(primitive, lower_on_cpu, platform="cpu")
    compat.define_batching(primitive, batch)


_register(encode_p, _encode, _abstract_encode, _lower_encode)
_register(decode_p, _decode, _abstract_decode, _lower_decode)
