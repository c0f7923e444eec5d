"""count_before: numbers the entries of each group, the step of a plan that plain JAX has no fast form of.

A cumulative sum for each group costs groups times the entries, and sorting is slow on CPU; one pass over the
entries does it natively (csrc/moe/rows.h).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_uccl._src import jax_compat as compat
from jax_uccl._src import lowering
from jax_uccl._src.collectives import define


def count_before(keys: Any, size: int, *, native: bool) -> Any:
    """int32 like `keys`: how many entries before (in row-major order) are equal; -1 where a key is negative.

    Args:
      keys: int32 of any shape, below `size`.
      size: number of groups.
      native: whether a custom call may be used; it is on CPU.
    """
    if not native:
        return _count(keys, size=size)
    return count_before_p.bind(keys, size=size)


def _count(keys: Any, *, size: int) -> Any:
    """The meaning in plain JAX."""
    flat = keys.reshape(-1)
    before = jnp.full(flat.shape, -1, np.int32)
    for key in range(size):
        here = flat == key
        before = jnp.where(here, jnp.cumsum(here, dtype=np.int32) - 1, before)
    return before.reshape(keys.shape)


count_before_p = compat.Primitive("uccl_moe_count_before")


def _abstract_eval(keys: Any, *, size: int) -> Any:
    del size
    return keys.update(weak_type=False)


def _lower(ctx: Any, keys: Any, *, size: int) -> Any:
    if 0 in ctx.avals_in[0].shape:
        return [keys]
    return lowering.local_call(ctx, "count_before", [keys], dict(size=np.int64(size)))


def _batch(axis_data: Any, operands: Any, dims: Any, *, size: int) -> Any:
    rows = define.to_front(operands[0], dims[0], axis_data.size)
    each = [count_before_p.bind(rows[b], size=size) for b in range(axis_data.size)]
    return jnp.stack(each), 0


count_before_p.def_impl(jax.jit(_count, static_argnames=("size",)))
count_before_p.def_abstract_eval(_abstract_eval)
compat.mlir.register_lowering(count_before_p, lowering.plain(_count))
compat.mlir.register_lowering(count_before_p, _lower, platform="cpu")
compat.define_batching(count_before_p, _batch)
