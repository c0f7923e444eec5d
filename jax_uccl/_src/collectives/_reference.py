"""The collectives in plain jax.lax: what each means, the oracle of the tests, and a fallback.

Nothing here uses the native runtime. A program that runs with `jax_uccl` runs with this module as well, as
far as XLA's own collectives go.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
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


def pmean(x: Any, axis_name: Any, *, axis_index_groups: AxisIndexGroups = None) -> Any:
    """`jax_uccl.pmean` by `lax.pmean`."""
    return lax.pmean(x, axis_name, axis_index_groups=axis_index_groups)


def pmax(x: Any, axis_name: Any, *, axis_index_groups: AxisIndexGroups = None) -> Any:
    """`jax_uccl.pmax` by `lax.pmax`."""
    return lax.pmax(x, axis_name, axis_index_groups=axis_index_groups)


def pmin(x: Any, axis_name: Any, *, axis_index_groups: AxisIndexGroups = None) -> Any:
    """`jax_uccl.pmin` by `lax.pmin`."""
    return lax.pmin(x, axis_name, axis_index_groups=axis_index_groups)


def all_gather(
    x: Any,
    axis_name: Any,
    *,
    axis_index_groups: AxisIndexGroups = None,
    axis: int = 0,
    tiled: bool = False,
    to: str = "varying",
) -> Any:
    """`jax_uccl.all_gather` by `lax.all_gather`."""
    return lax.all_gather(
        x, axis_name, axis_index_groups=axis_index_groups, axis=axis, tiled=tiled, to=to
    )


def psum_scatter(
    x: Any,
    axis_name: Any,
    *,
    scatter_dimension: int = 0,
    axis_index_groups: AxisIndexGroups = None,
    tiled: bool = False,
) -> Any:
    """`jax_uccl.psum_scatter` by `lax.psum_scatter`."""
    return lax.psum_scatter(
        x,
        axis_name,
        scatter_dimension=scatter_dimension,
        axis_index_groups=axis_index_groups,
        tiled=tiled,
    )


def _index_in_group(axis_name: Any, axis_index_groups: AxisIndexGroups) -> Any:
    """This member's place in its group; its axis index without groups."""
    index = lax.axis_index(axis_name)
    if not axis_index_groups:
        return index
    place = jnp.zeros(lax.axis_size(axis_name), jnp.int32)
    for group in axis_index_groups:
        place = place.at[jnp.array(group)].set(jnp.arange(len(group)))
    return place[index]


def reduce_scatter(
    x: Any,
    axis_name: Any,
    *,
    op: str = "sum",
    scatter_dimension: int = 0,
    axis_index_groups: AxisIndexGroups = None,
    tiled: bool = False,
) -> Any:
    """`jax_uccl.reduce_scatter`: this member's part of `all_reduce`."""

    def one(leaf: Any) -> Any:
        leaf = jnp.asarray(leaf)
        total = all_reduce(leaf, axis_name, op=op, axis_index_groups=axis_index_groups)
        names = tuple(axis_name) if isinstance(axis_name, list | tuple) else (axis_name,)
        size = len(axis_index_groups[0]) if axis_index_groups else lax.axis_size(names)
        index = _index_in_group(names, axis_index_groups)
        part = total.shape[scatter_dimension] // size
        out = lax.dynamic_slice_in_dim(total, index * part, part, scatter_dimension)
        return out if tiled else lax.squeeze(out, (scatter_dimension % leaf.ndim,))

    return jax.tree.map(one, x)


def ppermute(x: Any, axis_name: Any, perm: Sequence[tuple[int, int]]) -> Any:
    """`jax_uccl.ppermute` by `lax.ppermute`."""
    return lax.ppermute(x, axis_name, perm)


def pshuffle(x: Any, axis_name: Any, perm: Sequence[int]) -> Any:
    """`jax_uccl.pshuffle` by `lax.pshuffle`."""
    return lax.pshuffle(x, axis_name, perm)


def pbroadcast(x: Any, axis_name: Any, source: int) -> Any:
    """`jax_uccl.pbroadcast`: the source's row of a gather (XLA:CPU has no broadcast)."""
    return jax.tree.map(
        lambda leaf: lax.all_gather(jnp.asarray(leaf), axis_name, axis=0)[source], x
    )


def ragged_all_to_all(
    operand: Any,
    output: Any,
    input_offsets: Any,
    send_sizes: Any,
    output_offsets: Any,
    recv_sizes: Any,
    *,
    axis_name: Any,
    axis_index_groups: AxisIndexGroups = None,
) -> Any:
    """`jax_uccl.ragged_all_to_all`: gathers everything and picks rows (XLA:CPU has no such operation)."""
    del recv_sizes
    gather = partial(lax.all_gather, axis_name=axis_name, axis_index_groups=axis_index_groups)
    rows, starts, sizes, lands = map(gather, (operand, input_offsets, send_sizes, output_offsets))
    me = _index_in_group(axis_name, axis_index_groups)
    index = jnp.arange(output.shape[0])
    for source in range(rows.shape[0]):
        start, size, land = (v[source][me] for v in (starts, sizes, lands))
        here = (index >= land) & (index < land + size)
        part = rows[source][jnp.clip(index - land + start, 0, operand.shape[0] - 1)]
        output = jnp.where(here.reshape(-1, *[1] * (output.ndim - 1)), part, output)
    return output


def barrier(x: Any, axis_name: Any) -> Any:
    """`jax_uccl.barrier`: nobody can see the difference in values."""
    del axis_name
    return x
