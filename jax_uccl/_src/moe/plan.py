"""From everybody's choices to a handle: pure integer arithmetic.

Every rank holds the choices of all ranks, so both ends of each slice work out its size alike, also where
capacity runs out, and no further exchange is needed. Positions come from cumulative sums and from
`count_before`, since sorting is slow on CPU.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_uccl._src.moe.count_before import count_before
from jax_uccl._src.moe.handle import Handle, Spec


def exclusive(counts: Any, axis: int = -1) -> Any:
    """Sum of what comes before each entry."""
    return jnp.cumsum(counts, axis=axis, dtype=np.int32) - counts


def owners(idx: Any, spec: Spec) -> Any:
    """The rank that serves each choice; -1 for none."""
    return jnp.where(idx >= 0, idx // spec.local_experts, -1)


def demand(idx_all: Any, spec: Spec) -> Any:
    """int32 [ranks]: the smallest capacity with which each rank drops nothing. `idx_all` is [n, T, K]."""
    target = owners(idx_all, spec)
    if spec.expert_major:
        rows = [(target == d).sum(dtype=np.int32) for d in range(spec.ranks)]
    else:
        rows = [(target == d).any(-1).sum(dtype=np.int32) for d in range(spec.ranks)]
    return jnp.stack(rows) + spec.reserved


def drop(idx_all: Any, spec: Spec) -> Any:
    """`idx_all` without the choices that find no room at their rank.

    Rows are given out in the order of token index, then source rank (then choice, where each takes a row), so
    that all sources lose alike.
    """
    if spec.never_drops:
        return idx_all
    target = owners(idx_all, spec)
    if spec.expert_major:  # a row for each choice
        in_order = jnp.swapaxes(target, 0, 1)
        place = count_before(in_order, spec.ranks, native=spec.custom_calls)
        return jnp.where(jnp.swapaxes(place, 0, 1) < spec.usable, idx_all, -1)
    kept = target < 0
    for d in range(spec.ranks):
        wanted = (target == d).astype(np.int32).max(-1, keepdims=True)  # [n, T, 1]
        in_order = jnp.swapaxes(wanted, 0, 1)
        place = jnp.cumsum(in_order.ravel(), dtype=np.int32).reshape(in_order.shape)
        fits = jnp.swapaxes(place, 0, 1) <= spec.usable
        kept |= (target == d) & fits
    return jnp.where(kept, idx_all, -1)


def invert(places: Any, valid: Any, size: int) -> Any:
    """int32 [size]: the flat position i with `places[i]` equal to the index; -1 where there is none."""
    places, valid = places.ravel(), valid.ravel()
    index = jnp.arange(places.size, dtype=np.int32)
    start = jnp.full((size,), -1, np.int32)
    # Out of range, and each its own place so that uniqueness holds.
    places = jnp.where(valid, places, size + index)
    return start.at[places].set(index, mode="drop", unique_indices=True)


def goes_to(idx_all: Any, spec: Spec) -> Any:
    """int32 [n, T, d]: 1 where a copy of the token goes to rank d."""
    ranks = jnp.arange(spec.ranks, dtype=np.int32)
    return (owners(idx_all, spec)[..., None] == ranks).any(2).astype(np.int32)


def make_handle(idx: Any, idx_all: Any, me: Any, demand: Any, spec: Spec) -> Handle:
    """The handle of rank `me` for its choices [T, K] and those [n, T, K] of all ranks that are served."""
    target = owners(idx_all, spec)
    goes = goes_to(idx_all, spec)
    counts = goes.sum(1, dtype=np.int32)  # [source, target]
    lands = exclusive(counts, axis=0)

    my_target = target[me]
    send_counts, recv_counts = counts[me], counts[:, me]
    send_offsets, recv_offsets = exclusive(send_counts), exclusive(recv_counts)
    mine = goes[me]  # [T, d]
    send_place = exclusive(mine, axis=0) + send_offsets  # [T, d]
    send_tokens = invert(send_place.T, mine.T > 0, spec.send_rows)
    send_tokens = jnp.where(send_tokens >= 0, send_tokens % max(spec.tokens, 1), -1)
    place_of_choice = jnp.take_along_axis(send_place, jnp.maximum(my_target, 0), axis=1)
    slots = None
    if spec.mode == "low_latency":
        # From this rank's choices alone, so that rows can leave before the others' choices are here.
        wanted = owners(idx, spec)
        token = jnp.arange(spec.tokens, dtype=np.int32)[:, None]
        slots = jnp.where(_first_on_rank(wanted), wanted * spec.tokens + token, -1)

    comes = goes[:, :, me]  # [n, T]
    recv_place = exclusive(comes, axis=1) + recv_offsets[:, None]
    recv_sources = invert(recv_place, comes > 0, spec.copy_rows)
    local = jnp.where(target == me, idx_all - me * spec.local_experts, -1)
    recv_experts = take_rows(local.reshape(-1, spec.top_k), recv_sources, -1)
    return Handle(
        topk_idx=idx_all[me],
        send_offsets=send_offsets,
        send_counts=send_counts,
        land_offsets=lands[me],
        recv_offsets=recv_offsets,
        recv_counts=recv_counts,
        send_tokens=send_tokens,
        send_rows=jnp.where(_first_on_rank(my_target), place_of_choice, -1),
        slots=slots,
        recv_sources=recv_sources,
        recv_experts=recv_experts,
        **_expert_rows(target, my_target, me, recv_experts, spec),
        relay=None,
        demand=demand,
        spec=spec,
    )


def _first_on_rank(target: Any) -> Any:
    """bool [T, K]: whether the choice is its token's first one on that rank."""
    k = target.shape[1]
    earlier = jnp.tril(jnp.ones((k, k), bool), -1)
    repeated = ((target[:, :, None] == target[:, None, :]) & earlier).any(-1)
    return (target >= 0) & ~repeated


def expert_counts(recv_experts: Any, spec: Spec) -> tuple[Any, Any]:
    """int32 [L] choices of each local expert among the copies, and the same padded to the alignment."""
    local = jnp.arange(spec.local_experts, dtype=np.int32)
    counts = (recv_experts[..., None] == local).sum((0, 1), dtype=np.int32)
    align = spec.expert_alignment
    return counts, (counts + align - 1) // align * align


def _expert_rows(
    target: Any, my_target: Any, me: Any, recv_experts: Any, spec: Spec
) -> dict[str, Any]:
    """The fields of the handle that only expert-major layout has."""
    if not spec.expert_major:
        names = "choice_rows row_choices return_sources return_counts answer_counts answer_rows"
        return dict.fromkeys(names.split())
    _, group_sizes = expert_counts(recv_experts, spec)
    starts = exclusive(group_sizes)
    flat = recv_experts.reshape(-1)
    valid = flat >= 0
    before = count_before(flat, spec.local_experts, native=spec.custom_calls)
    rows = jnp.where(valid, before + starts[jnp.maximum(flat, 0)], -1)
    return_place = count_before(jnp.where(valid, 0, -1), 1, native=spec.custom_calls)
    packed = invert(return_place, valid, spec.return_rows)

    answer_counts = (my_target.reshape(-1, 1) == jnp.arange(spec.ranks)).sum(0, dtype=np.int32)
    answer_offsets = exclusive(answer_counts)
    place = count_before(my_target, spec.ranks, native=spec.custom_calls)
    answers = jnp.where(my_target >= 0, place + answer_offsets[jnp.maximum(my_target, 0)], -1)
    return dict(
        choice_rows=rows.reshape(recv_experts.shape),
        row_choices=invert(rows, valid, spec.capacity),
        return_sources=take_rows(rows, packed, -1),
        return_counts=(target == me).sum((1, 2), dtype=np.int32),
        answer_counts=answer_counts,
        answer_rows=answers,
    )


def take_rows(x: Any, index: Any, fill: Any = 0) -> Any:
    """`x[index]`, with rows of `fill` where the index is negative."""
    if x.shape[0] == 0:
        return jnp.full((*index.shape, *x.shape[1:]), fill, x.dtype)
    taken = x.at[jnp.maximum(index, 0)].get(mode="promise_in_bounds")
    there = (index >= 0).reshape(*index.shape, *[1] * (x.ndim - 1))
    return jnp.where(there, taken, jnp.asarray(fill, x.dtype))


def fold_rows(y: Any, table: Any, dtype: Any) -> Any:
    """`sum over j of y[table[:, j]]`, added in the order of j in (at least) f32; -1 adds nothing."""
    wide = jnp.promote_types(y.dtype, np.float32)
    total = jnp.zeros((table.shape[0], *y.shape[1:]), wide)
    for j in range(table.shape[1]):
        total = total + take_rows(y, table[:, j]).astype(wide)
    return total.astype(dtype)
