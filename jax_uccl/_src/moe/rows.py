"""Two local, linear operations on rows that are each other's transpose: take, and the ordered fold.

    take_p: [T, ...] -> [N, ...]    row n is x[index[n]], zeros where the index is -1
    fold_p: [N, ...] -> [T, ...]    row t is the sum over j of y[table[t, j]], in the order of j, in f32

`table[t]` lists the n with `index[n] == t`, so that either can run the other's derivative. JAX would make a
scatter-add of the first, in the dtype of the rows and in no particular order. On CPU both are native
(csrc/moe/rows.h): XLA's loops over gathered rows are several times slower. On CUDA too (csrc/cuda/rows.h), where
the build has the handlers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_uccl._src import cuda_module, lowering
from jax_uccl._src import jax_compat as compat
from jax_uccl._src.collectives import define
from jax_uccl._src.collectives.vary import vary_alike
from jax_uccl._src.moe.plan import fold_rows, invert, take_rows


def take(x: Any, index: Any, table: Any, *, fill: bool = True) -> Any:
    """Rows of `x` by `index` [N]; `table` [T, J] says for each row of `x` where it goes.

    Without `fill` rows of an index below 0 hold anything: for callers that do not read them.
    """
    return take_p.bind(*vary_alike([x, index, table]), dtype=x.dtype, fill=fill)


def fold(y: Any, index: Any, table: Any, dtype: Any) -> Any:
    """For each row of `table` [T, J] the ordered sum of those rows of `y`; `index` [N] is the inverse."""
    return fold_p.bind(*vary_alike([y, index, table]), dtype=np.dtype(dtype), fill=True)


# What native loops add up.
SUMMED = frozenset({np.dtype(np.float32), np.dtype(jnp.bfloat16)})

take_p = compat.Primitive("uccl_moe_take")
fold_p = compat.Primitive("uccl_moe_fold")


def _take(x: Any, index: Any, table: Any, *, dtype: Any, fill: bool) -> Any:
    del table, dtype, fill
    return take_rows(x, index)


def _fold(y: Any, index: Any, table: Any, *, dtype: Any, fill: bool) -> Any:
    del index, fill
    return fold_rows(y, table, dtype)


def _abstract_eval(
    x: Any, index: Any, table: Any, *, size_from: str, dtype: Any, fill: bool
) -> Any:
    rows = index.shape[0] if size_from == "index" else table.shape[0]
    return x.update(shape=(rows, *x.shape[1:]), dtype=dtype, weak_type=False)


def _batch(primitive: Any, axis_data: Any, values: Any, dims: Any, **params: Any) -> Any:
    n = axis_data.size
    if dims[1] is None and dims[2] is None:  # the batch becomes a part of each row
        x = jnp.moveaxis(define.to_front(values[0], dims[0], n), 0, 1)
        return primitive.bind(x, *values[1:], **params), 1
    rows = [define.to_front(v, d, n) for v, d in zip(values, dims, strict=True)]
    return jnp.stack([primitive.bind(*(r[b] for r in rows), **params) for b in range(n)]), 0


def _jvp(primitive: Any, primals: Any, tangents: Any, **params: Any) -> Any:
    out = primitive.bind(*primals, **params)
    d = tangents[0]
    if type(d) is compat.ad.Zero:
        return out, compat.ad.Zero(jax.typeof(out).to_tangent_aval())
    return out, primitive.bind(*vary_alike([d, *primals[1:]]), **params)


def _transpose(
    other: Any, ct: Any, x: Any, index: Any, table: Any, *, dtype: Any, fill: bool
) -> Any:
    del dtype, fill
    if type(ct) is compat.ad.Zero:
        return [compat.ad.Zero(x.aval), None, None]
    ct = ct.astype(x.aval.dtype)
    arrays = vary_alike([ct, index, table])
    return [other.bind(*arrays, dtype=ct.dtype, fill=True), None, None]


def _lower_take(ctx: Any, x: Any, index: Any, table: Any, **params: Any) -> Any:
    aval = ctx.avals_in[0]
    if 0 in aval.shape or 0 in ctx.avals_out[0].shape or lowering.is_packed(aval.dtype):
        return lowering.plain(_take)(ctx, x, index, table, **params)
    attributes = dict(fill=np.int64(params["fill"]))
    return lowering.local_call(ctx, "take_rows", [x, index], attributes)


def _lower_fold(ctx: Any, y: Any, index: Any, table: Any, **params: Any) -> Any:
    (aval, *_), (out,) = ctx.avals_in, ctx.avals_out
    native = {aval.dtype, out.dtype} <= SUMMED
    if not native or 0 in aval.shape or 0 in out.shape:
        return lowering.plain(_fold)(ctx, y, index, table, **params)
    return lowering.local_call(ctx, "fold_rows", [y, table])


def _where_built(native: Any, function: Any) -> Any:
    """The rule for CUDA: native handlers if this process has them, else plain JAX."""

    def lower(ctx: Any, *operands: Any, **params: Any) -> Any:
        rule = native if cuda_module.available() else lowering.plain(function)
        return rule(ctx, *operands, **params)

    return lower


def _register(primitive: Any, other: Any, function: Any, size_from: str, native: Any) -> None:
    primitive.def_impl(jax.jit(function, static_argnames=("dtype", "fill")))
    primitive.def_abstract_eval(partial(_abstract_eval, size_from=size_from))
    compat.mlir.register_lowering(primitive, lowering.plain(function))
    compat.mlir.register_lowering(primitive, native, platform="cpu")
    compat.mlir.register_lowering(primitive, _where_built(native, function), platform="cuda")
    compat.define_batching(primitive, partial(_batch, primitive))
    compat.ad.primitive_jvps[primitive] = partial(_jvp, primitive)
    compat.ad.primitive_transposes[primitive] = partial(_transpose, other)


_register(take_p, fold_p, _take, "index", _lower_take)
_register(fold_p, take_p, _fold, "table", _lower_fold)


def inverse_of_singles(index: Any, size: int) -> Any:
    """The table [size, 1] for an `index` in which each row occurs once at most."""
    return invert(index, index >= 0, size)[:, None]
