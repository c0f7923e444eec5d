"""Dispatch and combine in plain jax.lax: gathers everything from all ranks and picks rows.

The oracle of the tests, also for derivatives, which are JAX's own here; and the fallback where no runtime is
wanted: it needs no custom call and runs on any backend. It moves `ranks` times what it needs.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_uccl._src.moe.handle import Handle
from jax_uccl._src.moe.plan import owners, take_rows


def gather(x: Any, names: Any) -> Any:
    """[n, ...]: the arrays of all ranks."""
    return lax.all_gather(x, names)


def dispatch(x: Any, handle: Handle, *, copies: bool = False, reduction: str = "ordered") -> Any:
    """As `ragged.dispatch`; the derivative adds in whatever order XLA likes."""
    del reduction
    spec = handle.spec
    everything = gather(x, spec.axis_name).reshape(spec.ranks * spec.tokens, *x.shape[1:])
    rows = take_rows(everything, handle.recv_sources)
    if copies or not spec.expert_major:
        return rows
    index = jnp.where(handle.row_choices >= 0, handle.row_choices // spec.top_k, -1)
    return take_rows(rows, index)


def combine(
    y: Any,
    handle: Handle,
    *,
    copies: bool = False,
    reduction: str = "ordered",
    dtype: Any = None,
) -> Any:
    """As `ragged.combine`."""
    per_choice = handle.spec.expert_major and not copies
    if per_choice and reduction == "per_rank":
        y, per_choice = add(_pick(y, handle.choice_rows), y.dtype), False
    return add(combine_start(y, handle, per_choice), dtype or y.dtype)


def combine_start(y: Any, handle: Handle, per_choice: bool) -> Any:
    """[T, K, ...]: what is added for each choice; zeros where nothing is."""
    spec = handle.spec
    # Where each choice's row is at its rank.
    target = jnp.maximum(owners(handle.topk_idx, spec), 0)
    copy = handle.land_offsets[target] + handle.send_rows - handle.send_offsets[target]
    copy = jnp.where(handle.send_rows >= 0, copy, -1)
    if per_choice:
        copy = _copy_of_each_choice(copy, target, handle)
        rows = gather(handle.choice_rows, spec.axis_name)  # [n, copy, K]
        choice = jnp.arange(spec.top_k)
        copy = jnp.where(copy >= 0, rows[target, jnp.maximum(copy, 0), choice], -1)
    flat = gather(y, spec.axis_name).reshape(spec.ranks * y.shape[0], *y.shape[1:])
    return _pick(flat, jnp.where(copy >= 0, target * y.shape[0] + copy, -1))


def add(parts: Any, dtype: Any) -> Any:
    """The sum of [T, K, ...] over K in order, in f32."""
    wide = jnp.promote_types(parts.dtype, np.float32)
    total = jnp.zeros((parts.shape[0], *parts.shape[2:]), wide)
    for j in range(parts.shape[1]):
        total += parts[:, j].astype(wide)
    return total.astype(dtype)


def _pick(y: Any, table: Any) -> Any:
    """[T, J, ...]: the rows of `y` in `table` [T, J]."""
    return jnp.stack([take_rows(y, table[:, j]) for j in range(table.shape[1])], axis=1)


def _copy_of_each_choice(copy: Any, target: Any, handle: Handle) -> Any:
    """[T, K]: `copy`, which only the first choice on a rank has, for the others as well."""
    same = (target[:, :, None] == target[:, None, :]) & (handle.topk_idx >= 0)[:, None, :]
    found = jnp.where(same, copy[:, None, :], -1).max(-1)
    return jnp.where(handle.topk_idx >= 0, found, -1)
