"""The halves of dispatch and combine over this library's collectives: what leaves, and what is made of it.

    dispatch: pack copies by target rank | ragged_all_to_all (or padded all_to_all) | arrange by expert
              or in two levels: pack by host | ragged_all_to_all | pack by rank | ragged_all_to_all | arrange
    combine:  pack rows by owner, or sum those of one copy | ragged_all_to_all | sum in top-k order

The sizes of all slices are in the handle, so a combine needs one step and a dispatch one more, in which the
choices travel. In low-latency mode a dispatch sends fixed slots, `tokens` rows to each rank, which need no
sizes: they leave beside the choices, and the receiver picks the rows afterwards.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jax_uccl._src.collectives.all_to_all import all_to_all
from jax_uccl._src.collectives.ragged_all_to_all import exchange
from jax_uccl._src.moe import rows as rows_of
from jax_uccl._src.moe.handle import Handle
from jax_uccl._src.moe.plan import exclusive, invert


def dispatch_start(x: Any, handle: Handle, fill: bool = True) -> Any:
    """[T, ...] to rows as they arrive: the copies, or the slots of all ranks in low-latency mode.

    Without `fill` rows past the copies hold anything.
    """
    spec = handle.spec
    if spec.mode == "low_latency":
        index = invert(handle.slots, handle.slots >= 0, spec.ranks * spec.tokens)
        index = jnp.where(index >= 0, index // spec.top_k, -1)
        packed = rows_of.take(x, index, handle.slots)
        return all_to_all(packed, spec.axis_name, 0, 0, tiled=True)
    if spec.two_level:
        return _by_gateways(x, handle, fill)
    packed = rows_of.take(x, handle.send_tokens, handle.send_rows, fill=False)
    ends = _sent(handle) + _received(handle)
    return exchange(packed, spec.copy_rows, ends, spec.axis_name, fill=fill)


def _by_gateways(x: Any, handle: Handle, fill: bool) -> Any:
    """The copies, in two levels (relay.py)."""
    spec, relay = handle.spec, handle.relay
    packed = rows_of.take(x, relay.hop_tokens, relay.hop_rows, fill=False)
    ends = [relay.hop_offsets, relay.hop_counts, relay.relay_offsets, relay.relay_counts]
    relayed = exchange(packed, spec.relay_rows, ends, spec.axis_name, fill=False)
    onward = rows_of.take(relayed, relay.onward_sources, relay.onward_rows, fill=False)
    ends = [relay.onward_offsets, relay.onward_counts, relay.land_offsets, relay.land_counts]
    return exchange(onward, spec.copy_rows, ends, spec.axis_name, fill=fill)


def _sent(handle: Handle) -> list[Any]:
    """The slices of the send buffer."""
    return [handle.send_offsets, handle.send_counts]


def _received(handle: Handle) -> list[Any]:
    """The slices of the copies."""
    return [handle.recv_offsets, handle.recv_counts]


def dispatch_done(rows: Any, handle: Handle, copies: bool) -> Any:
    """Rows as they arrive to the result; `copies` stops at one row for each copy."""
    spec = handle.spec
    if spec.mode == "low_latency":  # a slot is a source rank and a token
        table = rows_of.inverse_of_singles(handle.recv_sources, spec.ranks * spec.tokens)
        rows = rows_of.take(rows, handle.recv_sources, table)
    return rows if copies or not spec.expert_major else spread(rows, handle)


def spread(copies: Any, handle: Handle) -> Any:
    """Copies to expert-major rows."""
    index = jnp.where(handle.row_choices >= 0, handle.row_choices // handle.spec.top_k, -1)
    return rows_of.take(copies, index, handle.choice_rows)


def gather_choices(y: Any, handle: Handle) -> Any:
    """Expert-major rows to copies: the sum of each, in top-k order."""
    index = jnp.where(handle.row_choices >= 0, handle.row_choices // handle.spec.top_k, -1)
    return rows_of.fold(y, index, handle.choice_rows, y.dtype)


def combine_start(y: Any, handle: Handle, per_choice: bool, fill: bool = True) -> Any:
    """Expert-major rows (`per_choice`) or copies to rows as they come back to the owners.

    Without `fill` rows in which nothing comes hold anything.
    """
    spec = handle.spec
    if not per_choice:
        ends = _received(handle) + _sent(handle)
        return exchange(y, spec.send_rows, ends, spec.axis_name, fill=fill)
    table = rows_of.inverse_of_singles(handle.return_sources, spec.capacity)
    packed = rows_of.take(y, handle.return_sources, table, fill=False)
    ends = [exclusive(handle.return_counts), handle.return_counts]
    ends += [exclusive(handle.answer_counts), handle.answer_counts]
    return exchange(packed, spec.tokens * spec.top_k, ends, spec.axis_name, fill=fill)


def combine_done(rows: Any, handle: Handle, per_choice: bool, dtype: Any) -> Any:
    """Rows as they come back to [T, ...], of `dtype`."""
    if not per_choice:
        return rows_of.fold(rows, handle.send_tokens, handle.send_rows, dtype)
    table = handle.answer_rows
    index = invert(table, table >= 0, handle.spec.tokens * handle.spec.top_k)
    index = jnp.where(index >= 0, index // handle.spec.top_k, -1)
    return rows_of.fold(rows, index, table, dtype)
