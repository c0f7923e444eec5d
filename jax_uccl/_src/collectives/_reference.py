"""The collectives in plain jax.lax: what each means, the oracle of the tests, and a fallback.

Nothing here uses the native runtime. A program that runs with `jax_uccl` runs with this module as well, as
far as XLA's own collectives go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

AxisIndexGroups = Sequence[Sequence[int]] | None


def all_to_all(
    x: Any,
    axis_name: Any,
    split_axis: int,
    concat_axis: int,
    *,
    axis_index_groups: AxisIndexGroups = None,
    tiled: bool = False,
) -> Any:
    """`jax_uccl.all_to_all` by `lax.all_to_all`."""

    def one(leaf: Any) -> Any:
        leaf = jnp.asarray(leaf)
        return lax.all_to_all(
            leaf,
            tuple(axis_name) if isinstance(axis_name, list) else axis_name,
            split_axis % leaf.ndim,
            concat_axis % leaf.ndim,
            axis_index_groups=axis_index_groups,
            tiled=tiled,
        )

    return jax.tree.map(one, x)


def psum(x: Any, axis_name: Any, *, axis_index_groups: AxisIndexGroups = None) -> Any:
    """`jax_uccl.psum` by `lax.psum`."""
    return lax.psum(x, axis_name, axis_index_groups=axis_index_groups)


def all_reduce(
    x: Any, axis_name: Any, *, op: str = "sum", axis_index_groups: AxisIndexGroups = None
) -> Any:
    """`jax_uccl.all_reduce`: by the lax collective of that name, or by gathering and reducing."""
    axis_name = tuple(axis_name) if isinstance(axis_name, list) else axis_name
    native = {"sum": lax.psum, "mean": lax.pmean, "max": lax.pmax, "min": lax.pmin}
    if op in native:
        return native[op](x, axis_name, axis_index_groups=axis_index_groups)

    def one(leaf: Any) -> Any:
        leaf = jnp.asarray(leaf)
        if op == "prod" and leaf.dtype == jnp.bool_:
            leaf = leaf.astype(jnp.int32)
        rows = lax.all_gather(leaf, axis_name, axis_index_groups=axis_index_groups)
        if op == "prod":
            return jnp.prod(rows, axis=0, dtype=leaf.dtype)
        return lax.reduce_and(rows, (0,)) if op == "and" else lax.reduce_or(rows, (0,))

    return jax.tree.map(one, x)
