"""Rows through commands and proxies: dispatch and combine as one custom call each (csrc/moe/exchange_program.h).

    native_dispatch_p: x [T, ...], peers, places [T, K] -> copies [rows, ...], waited
        the token of each entry goes to rank peers[t, j] as its copy number places[t, j] from this rank; copies lie by
        source rank, then number, and zeros behind them
    native_combine_p: y [N, ...], rows, peers, slots [M], table [T, K] -> [T, ...], waited
        y[rows[m]] goes to slot slots[m] of rank peers[m]; row t is the ordered sum of the slots in table[t]

An entry below 0 means nothing. `waited` [n] holds uint32 nanoseconds: from the start of the wait until the last row of
each source. In low-latency mode nothing tells a rank beforehand how much comes: copies leave as soon
as this rank's own choices are known. Neither has a derivative of its own; `ragged.py` has those of the whole. The
process must run with executor=fifo.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_uccl._src import axes, lowering
from jax_uccl._src import jax_compat as compat
from jax_uccl._src.collectives import define
from jax_uccl._src.collectives.vary import vary_alike
from jax_uccl._src.errors import UnsupportedError
from jax_uccl._src.moe.count_before import count_before
from jax_uccl._src.moe.handle import Handle, Spec
from jax_uccl._src.ordering import is_strict


def serves(spec: Spec, x: Any, *dtypes: Any) -> bool:
    """Whether the rows of `x` go this way; others, and those of throughput mode, by the collectives.

    `dtypes` are those that are added up, which must have a kernel.
    """
    floats = {np.dtype(np.float32), np.dtype(jnp.bfloat16)}
    return (
        spec.implementation == "native"
        and spec.mode == "low_latency"
        and 0 not in (*x.shape, spec.tokens, spec.copy_rows, spec.capacity)
        and not lowering.is_packed(x.dtype)
        and {np.dtype(d) for d in dtypes} <= floats
    )


def dispatch(x: Any, handle: Handle) -> tuple[Any, Any]:
    """[T, ...] to [copy_rows, ...]: the copies, zeros behind the last; and how long each source was waited for."""
    spec = handle.spec
    if spec.never_drops:  # from this rank's choices alone
        peers = jnp.where(handle.slots >= 0, handle.slots // spec.tokens, -1)
    else:
        peers = jnp.where(handle.send_rows >= 0, handle.topk_idx // spec.local_experts, -1)
    places = count_before(peers, spec.ranks, native=True)
    arrays = vary_alike([x, peers, places], spec.axis_name)
    rows, waited = native_dispatch_p.bind(
        *arrays, axis_name=spec.axis_name, ordered=is_strict(), rows=spec.copy_rows
    )
    return rows, waited


def combine(y: Any, handle: Handle, per_choice: bool, dtype: Any) -> Any:
    """Expert-major rows (`per_choice`) or copies to [T, ...] of `dtype`."""
    spec = handle.spec
    there = handle.recv_sources[:, None] >= 0
    source = jnp.where(there, handle.recv_sources[:, None], 0)
    owner, token = source // spec.tokens, source % spec.tokens
    choice = jnp.arange(spec.top_k, dtype=np.int32)[None]
    here = there & (handle.recv_experts >= 0)
    if per_choice:
        rows, served = handle.choice_rows, handle.answer_rows
    else:  # at the place of the first choice
        first = jnp.argmax(here, axis=1).astype(np.int32)[:, None]
        here &= choice == first
        rows = jnp.arange(spec.copy_rows, dtype=np.int32)[:, None]
        served = handle.send_rows
    rows = jnp.where(here, rows, -1)
    peers = jnp.where(here, owner, -1)
    slots = jnp.where(here, token * spec.top_k + choice, -1)
    if not per_choice:  # one entry for each copy
        rows, peers, slots = (a.max(1) for a in (rows, peers, slots))
    place = jnp.arange(spec.tokens * spec.top_k, dtype=np.int32).reshape(spec.tokens, spec.top_k)
    table = jnp.where(served >= 0, place, -1)
    flat = [a.reshape(-1).astype(np.int32) for a in (rows, peers, slots)]
    arrays = vary_alike([y, *flat, table], spec.axis_name)
    out, _ = native_combine_p.bind(
        *arrays, axis_name=spec.axis_name, ordered=is_strict(), dtype=np.dtype(dtype)
    )
    return out


native_dispatch_p = compat.Primitive("uccl_moe_native_dispatch")
native_combine_p = compat.Primitive("uccl_moe_native_combine")
native_dispatch_p.multiple_results = native_combine_p.multiple_results = True


def _abstract_dispatch(x: Any, *indices: Any, axis_name: Any, ordered: bool, rows: int) -> Any:
    for aval in (x, *indices):
        define.check_operand(aval, axis_name, "moe")
    out = x.update(shape=(rows, *x.shape[1:]), weak_type=False)
    return [out, _waited(x, axis_name)], define.effects(axis_name, ordered)


def _abstract_combine(y: Any, *indices: Any, axis_name: Any, ordered: bool, dtype: Any) -> Any:
    for aval in (y, *indices):
        define.check_operand(aval, axis_name, "moe")
    out = y.update(shape=(indices[-1].shape[0], *y.shape[1:]), dtype=dtype, weak_type=False)
    return [out, _waited(y, axis_name)], define.effects(axis_name, ordered)


def _waited(aval: Any, names: Any) -> Any:
    return aval.update(shape=(axes.axis_size(names),), dtype=np.dtype(np.uint32), weak_type=False)


def _lower(
    kind: str, ctx: Any, *operands: Any, axis_name: Any, ordered: bool, **params: Any
) -> Any:
    out = ctx.avals_out[0]
    if compat.has_automatic_axes(ctx.module_context.axis_context):
        raise UnsupportedError(
            "moe: implementation='native' inside a shard_map that leaves mesh axes automatic; map all axes "
            "(drop axis_names=), or use implementation='ragged'"
        )
    results = [
        lowering.tensor_type(a.shape, compat.mlir.dtype_to_ir_type(a.dtype)) for a in ctx.avals_out
    ]
    return lowering.emit_collective(
        ctx,
        "ragged_all_to_all",
        operands,
        results,
        op="moe." + kind,
        names=axis_name,
        axis_index_groups=None,
        ordered=ordered,
        params=(out.shape, out.dtype, *(a.shape for a in ctx.avals_in)),
        handler="moe_" + kind,
    )


def _batch(primitive: Any, axis_data: Any, values: Any, dims: Any, **params: Any) -> Any:
    # ragged.py batches the whole, which never holds these when it does.
    raise NotImplementedError(f"jax.vmap of {primitive}")


for _primitive, _kind, _abstract in (
    (native_dispatch_p, "dispatch", _abstract_dispatch),
    (native_combine_p, "combine", _abstract_combine),
):
    define.register(
        _primitive,
        "moe",
        abstract_eval=_abstract,
        lower=partial(_lower, _kind),
        batch=_batch,
        cuda=False,
    )
