"""Rows from where they are to where they belong: dispatch and combine as one custom call each.

Throughput; the numbers of rows are known on both ends. In memory (csrc/moe/row_ends.h), or with executor=fifo by
commands and proxies, on the rank's stream (csrc/moe/throughput.h):

    native_exchange_p: x [N, ...], index [M], send_offsets, send_counts, recv_counts [n], places [R, W], vacant [any]
                       -> [rows, ...], waited
        rows x[index[m]] go to rank r for `send_counts[r]` m from `send_offsets[r]` on; what comes, by source rank,
        becomes rows places[i, w] for each w. Empty `index` and `places` mean all rows as they lie. Rows in `vacant`
        are zeros
    native_return_p: x, index, send_offsets, send_counts, recv_counts as above, table [T, K] -> [T, ...], waited
        row t is the sum of what comes in the entries table[t], in the order of the table
    native_relay_p: as native_exchange_p, what is sent being that of the second of two levels, then hosts [n],
                    gateways [n, H] and of the first level index, send_offsets, send_counts, recv_counts
                    -> [rows, ...], waited, relayed; with executor=fifo alone

Low latency (csrc/moe/exchange_program.h), with executor=fifo alone; nothing tells a rank beforehand how much comes,
and copies leave as soon as this rank's own choices are known:

    native_dispatch_p: x [T, ...], peers, places [T, K] -> copies [rows, ...], waited
        the token of each entry goes to rank peers[t, j] as its copy number places[t, j] from this rank; copies lie by
        source rank, then number, and zeros behind them
    native_combine_p: y [N, ...], rows, peers, slots [M], table [T, K] -> [T, ...], waited
        y[rows[m]] goes to slot slots[m] of rank peers[m]; row t is the ordered sum of the slots in table[t]

An entry below 0 means nothing. `waited` [n] holds uint32 nanoseconds: from the start of the wait until the last row of
each source. None has a derivative of its own; `ragged.py` has those of the whole.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_uccl._src import axes, comm, lowering, partitioning
from jax_uccl._src import jax_compat as compat
from jax_uccl._src.collectives import define
from jax_uccl._src.collectives.vary import vary_alike
from jax_uccl._src.moe import exchange
from jax_uccl._src.moe import hosts as hosts_of
from jax_uccl._src.moe.count_before import count_before
from jax_uccl._src.moe.handle import Handle, Spec
from jax_uccl._src.moe.plan import exclusive
from jax_uccl._src.moe.rows import SUMMED
from jax_uccl._src.ordering import is_strict


def serves(spec: Spec, x: Any, *dtypes: Any) -> bool:
    """Whether the rows of `x` go this way; others, which are few, go by the collectives.

    `dtypes` are those that are added up, which in low-latency mode must have a kernel.
    """
    floats = SUMMED | {np.dtype(np.float16)}
    added = spec.mode == "throughput" or {np.dtype(d) for d in dtypes} <= floats
    sizes = (*x.shape, spec.tokens, spec.copy_rows, spec.capacity)
    return spec.implementation == "native" and 0 not in sizes and added


def dispatch(x: Any, handle: Handle, copies: bool, on_cuda: bool = False) -> tuple[Any, Any]:
    """[T, ...] to the result's rows, or `copies`, zeros where nothing comes; and how long each source was waited for

    `on_cuda`: by the calls that have handlers for streams (partitioning.ON_STREAMS).
    """
    spec = handle.spec
    spread = spec.expert_major and not copies
    if spec.mode == "low_latency":
        rows, waited = _dispatch_at_once(x, handle)
        return exchange.spread(rows, handle) if spread else rows, waited
    if spread:
        rows, places, empty = spec.capacity, handle.choice_rows, handle.row_choices < 0
    else:
        rows, places = spec.copy_rows, _all_rows(2)
        empty = handle.recv_sources < 0
    vacant = jnp.where(empty, jnp.arange(rows, dtype=np.int32), -1)
    landing = [handle.recv_counts, places, vacant]
    if not spec.two_level:
        given = [handle.send_tokens, handle.send_offsets, handle.send_counts, *landing]
        return _exchange(native_exchange_p, x, given, handle, rows)
    if on_cuda or comm.setting("executor") != "fifo":
        return _in_two_exchanges(x, handle, places, vacant, rows)
    relay = handle.relay
    given = [relay.onward_sources, relay.onward_offsets, relay.onward_counts, *landing]
    given += [jnp.asarray(spec.hosts, np.int32), jnp.asarray(hosts_of.gateways(spec.hosts))]
    given += [relay.hop_tokens, relay.hop_offsets, relay.hop_counts, relay.relay_counts]
    return _exchange(native_relay_p, x, given, handle, rows)


def _in_two_exchanges(x: Any, handle: Handle, places: Any, vacant: Any, rows: int) -> Any:
    """As native_relay_p, one level after the other; a source is waited for in both."""
    spec, relay = handle.spec, handle.relay
    hop = [relay.hop_tokens, relay.hop_offsets, relay.hop_counts, relay.relay_counts]
    given = [*hop, _all_rows(2), _all_rows(1)]
    relayed, first = _exchange(native_exchange_p, x, given, handle, spec.relay_rows)
    onward = [relay.onward_sources, relay.onward_offsets, relay.onward_counts, relay.land_counts]
    given = [*onward, places, vacant]
    out, second = _exchange(native_exchange_p, relayed, given, handle, rows)
    me = lax.axis_index(spec.axis_name)
    here = jnp.asarray(spec.hosts, np.int32)[me]
    gateway = jnp.asarray(hosts_of.gateways(spec.hosts))[:, here]
    return out, first.max() + second[gateway]


def combine(y: Any, handle: Handle, per_choice: bool, dtype: Any, on_cuda: bool = False) -> Any:
    """Expert-major rows (`per_choice`) or copies to [T, ...] of `dtype`; `on_cuda` as in `dispatch`."""
    spec = handle.spec
    if spec.mode == "low_latency":
        return _combine_at_once(y, handle, per_choice, dtype)
    if per_choice:
        counts = handle.return_counts
        given = [handle.return_sources, exclusive(counts), counts, handle.answer_counts]
        rows, table = spec.tokens * spec.top_k, handle.answer_rows
    else:
        given = [_all_rows(1), handle.recv_offsets, handle.recv_counts, handle.send_counts]
        rows, table = spec.send_rows, handle.send_rows
    if not on_cuda and {np.dtype(y.dtype), np.dtype(dtype)} <= SUMMED:
        params = dict(axis_name=spec.axis_name, ordered=is_strict(), dtype=np.dtype(dtype))
        arrays = vary_alike([y, *given, table], spec.axis_name)
        return native_return_p.bind(*arrays, **params)[0]
    # What nobody answers is not read either.
    given += [_all_rows(2), _all_rows(1)]
    answers, _ = _exchange(native_exchange_p, y, given, handle, rows)
    return exchange.combine_done(answers, handle, per_choice, dtype)


def _all_rows(rank: int) -> Any:
    return jnp.zeros((0,) * rank, np.int32)


def _exchange(primitive: Any, x: Any, given: list[Any], handle: Handle, rows: int) -> Any:
    spec = handle.spec
    params: dict[str, Any] = dict(axis_name=spec.axis_name, ordered=is_strict(), rows=rows)
    if primitive is native_relay_p:
        params |= dict(relay_rows=spec.relay_rows)
    out, waited, *_ = primitive.bind(*vary_alike([x, *given], spec.axis_name), **params)
    return out, waited


def _dispatch_at_once(x: Any, handle: Handle) -> Any:
    """The copies, zeros behind the last."""
    spec = handle.spec
    if spec.never_drops:  # from this rank's choices alone
        peers = jnp.where(handle.slots >= 0, handle.slots // spec.tokens, -1)
    else:
        peers = jnp.where(handle.send_rows >= 0, handle.topk_idx // spec.local_experts, -1)
    places = count_before(peers, spec.ranks, native=True)
    arrays = vary_alike([x, peers, places], spec.axis_name)
    return native_dispatch_p.bind(
        *arrays, axis_name=spec.axis_name, ordered=is_strict(), rows=spec.copy_rows
    )


def _combine_at_once(y: Any, handle: Handle, per_choice: bool, dtype: Any) -> Any:
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


native_exchange_p = compat.Primitive("uccl_moe_native_exchange")
native_return_p = compat.Primitive("uccl_moe_native_return")
native_relay_p = compat.Primitive("uccl_moe_native_relay")
native_dispatch_p = compat.Primitive("uccl_moe_native_dispatch")
native_combine_p = compat.Primitive("uccl_moe_native_combine")


def _abstract_rows(
    x: Any, *indices: Any, axis_name: Any, ordered: bool, rows: int, relay_rows: int | None = None
) -> Any:
    for aval in (x, *indices):
        define.check_operand(aval, axis_name, "moe")
    outs = [_with_rows(x, rows), _waited(x, axis_name)]
    if relay_rows is not None:
        outs.append(_with_rows(x, relay_rows))
    return outs, define.effects(axis_name, ordered)


def _abstract_combine(y: Any, *indices: Any, axis_name: Any, ordered: bool, dtype: Any) -> Any:
    for aval in (y, *indices):
        define.check_operand(aval, axis_name, "moe")
    out = _with_rows(y, indices[-1].shape[0]).update(dtype=dtype)
    return [out, _waited(y, axis_name)], define.effects(axis_name, ordered)


def _with_rows(aval: Any, rows: int) -> Any:
    return aval.update(shape=(rows, *aval.shape[1:]), weak_type=False)


def _waited(aval: Any, names: Any) -> Any:
    return compat.vector_like(aval, axes.axis_size(names), np.uint32)


def _lower(
    kind: str, ctx: Any, x: Any, *indices: Any, axis_name: Any, ordered: bool, **params: Any
) -> Any:
    # Values narrower than a byte travel as bytes.
    source, out = lowering.to_bytes(x, ctx.avals_in[0].dtype), ctx.avals_out[0]
    kinds = [compat.mlir.dtype_to_ir_type(a.dtype) for a in ctx.avals_out]
    results = [
        lowering.tensor_type(
            a.shape, source.type.element_type if lowering.is_packed(a.dtype) else element
        )
        for a, element in zip(ctx.avals_out, kinds, strict=True)
    ]
    values = lowering.emit_collective(
        ctx,
        "ragged_all_to_all",
        [source, *indices],
        results,
        op="moe." + kind,
        names=axis_name,
        axis_index_groups=None,
        ordered=ordered,
        params=(out.shape, out.dtype, *(a.shape for a in ctx.avals_in)),
        handler="moe_" + kind,
    )
    return [
        lowering.from_bytes(value, a.dtype, element)
        for value, a, element in zip(values, ctx.avals_out, kinds, strict=True)
    ]


def _batch(primitive: Any, axis_data: Any, values: Any, dims: Any, **params: Any) -> Any:
    # ragged.py batches the whole, which never holds these when it does.
    raise NotImplementedError(f"jax.vmap of {primitive}")


for _primitive, _kind, _abstract in (
    (native_exchange_p, "exchange", _abstract_rows),
    (native_return_p, "return", _abstract_combine),
    (native_relay_p, "relay", _abstract_rows),
    (native_dispatch_p, "dispatch", _abstract_rows),
    (native_combine_p, "combine", _abstract_combine),
):
    _primitive.multiple_results = True
    define.register(
        _primitive,
        "moe",
        abstract_eval=_abstract,
        lower=partial(_lower, _kind),
        batch=_batch,
        cuda="moe_" + _kind in partitioning.ON_STREAMS,
    )
