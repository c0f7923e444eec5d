"""all_gather: every member gets the arrays of all, joined along an axis.

The primitive is the tiled form (no dimension comes); the other one is the same of an array with a new axis.
With to="invarying" the result is typed as equal on all members, and its transpose takes the member's own
part; with to="reduced" its cotangents are pending sums, and its transpose scatters them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_uccl._src import axes, lowering
from jax_uccl._src import jax_compat as compat
from jax_uccl._src.collectives import define
from jax_uccl._src.collectives.vary import vary
from jax_uccl._src.explicit import run_on_local_shards
from jax_uccl._src.ordering import is_strict

TYPES = ("varying", "invarying", "reduced")


def all_gather(
    x: Any,
    axis_name: Any,
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    axis: int = 0,
    tiled: bool = False,
    to: str = "varying",
) -> Any:
    """Joins the arrays of all members of `axis_name`.

    The same as `jax.lax.all_gather`, argument for argument. Before, each member holds one array; after, each
    holds all of them, in the order of the members.

    Args:
      x: array or pytree of arrays of any dtype. Inside `jax.shard_map` it is the local shard.
      axis_name: a mesh axis, or a tuple of mesh axes (major first).
      axis_index_groups: lists of axis indices that gather among themselves; all of one size, together each
        index once. Default: all members.
      axis: where the member axis appears in the result, or with `tiled` the axis along which arrays are
        joined.
      tiled: keep the rank: arrays are concatenated along `axis`.
      to: type of the result under `check_vma=True`: "varying"; "invarying" where the result is to count as
        equal on all members (its transpose then needs no communication); "reduced" where moreover its
        cotangents are pending sums over `axis_name` (its transpose is then a `psum_scatter` of those).

    Returns:
      Array(s) of the dtype of `x`; of its shape with a new axis of the group's size, or with `tiled` with
      `axis` multiplied by it.

    Raises:
      ValueError: `axis` is out of bounds, groups are not equal in size, or `to` is unknown.
      NotImplementedError: `axis_index_groups` with another `to` than "varying" under `check_vma=True`.
      NameError: `axis_name` is not bound by an enclosing `jax.shard_map` or `jax.vmap`.
      UcclError: at run time, see `jax_uccl.errors`.

    Cost: one step; each member sends its bytes to n-1 others.

    Example:
      >>> import jax, numpy as np, jax_uccl
      >>> from jax.sharding import Mesh, PartitionSpec as P
      >>> mesh = Mesh(np.array(jax.devices()), ("x",))
      >>> f = lambda a: jax_uccl.all_gather(a, "x", tiled=True, to="invarying")
      >>> y = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P()))(np.arange(8))
      >>> y.shape
      (8,)
    """
    names = axes.as_names(axis_name)
    axes.check_bound(names, "all_gather")
    groups = axes.as_groups(axis_index_groups, names)
    axes.require_equal_groups(groups)
    if to not in TYPES:
        raise ValueError(
            f"Got unexpected `to` value {to!r} for `jax_uccl.all_gather`; use one of {TYPES}"
        )
    to = to if compat.check_vma() else "varying"
    if to != "varying" and groups is not None:
        raise NotImplementedError(
            f"jax_uccl.all_gather: axis_index_groups with to={to!r}, where the result differs between "
            "groups; use to='varying'"
        )

    def bind(leaf: Any) -> Any:
        leaf = jnp.asarray(leaf)
        at = axes.canonical(axis, leaf.ndim + (not tiled))
        if not tiled:
            leaf = lax.expand_dims(leaf, (at,))
        return run_on_local_shards(
            lambda shard: all_gather_p.bind(
                vary(shard, names),
                axis_name=names,
                axis=at,
                axis_index_groups=groups,
                to=to,
                any_order=False,
                ordered=is_strict(),
            ),
            leaf,
            whole_axes=(at,),
            api="all_gather",
        )

    return jax.tree.map(bind, x)


all_gather_p = compat.Primitive("uccl_all_gather")


def _abstract_eval(
    aval: Any,
    *,
    axis_name: Any,
    axis: int,
    axis_index_groups: Any,
    to: str,
    any_order: bool,
    ordered: bool,
) -> Any:
    # any_order is for the sum of the transpose; nothing is added here.
    define.check_operand(aval, axis_name, "all_gather")
    shape = list(aval.shape)
    shape[axis] *= axes.group_size(axis_name, axis_index_groups)
    out = aval.update(shape=tuple(shape), weak_type=False)
    if to == "invarying":
        out = compat.with_varying_axes(out, compat.varying_axes(aval) - set(axis_name))
    elif to == "reduced":
        out = compat.with_reduced_axes(out, axis_name)
    return out, define.effects(axis_name, ordered)


def _lower(
    ctx: Any,
    x: Any,
    *,
    axis_name: Any,
    axis: int,
    axis_index_groups: Any,
    to: str,
    any_order: bool,
    ordered: bool,
) -> Any:
    (aval,) = ctx.avals_in
    lowering.check_shape(aval, "all_gather", axis_name)
    size = axes.group_size(axis_name, axis_index_groups)
    if size == 1:
        return lowering.pass_through(ctx, x, ordered)
    operand = lowering.to_bytes(x, aval.dtype)
    dims = list(operand.type.shape)  # behind those of the type come those of a random key's words
    if 0 in aval.shape:
        (operand,) = lowering.pass_through(ctx, operand, ordered)
        dims[axis] *= size
        out = lowering.zeros(dims, operand.type.element_type)
    else:
        (out,) = lowering.emit_collective(
            ctx,
            "all_gather",
            [operand],
            [lowering.tensor_type([size, *dims], operand.type.element_type)],
            op="all_gather",
            names=axis_name,
            axis_index_groups=axis_index_groups,
            ordered=ordered,
            params=(axis,),
        )
        out = lowering.merge_dims(lowering.move_axis(out, 0, axis), axis)
    return [lowering.from_bytes(out, aval.dtype, x.type.element_type)]


def _batch(
    primitive: Any,
    axis_data: Any,
    values: Any,
    dims: Any,
    *,
    axis_name: Any,
    axis: int,
    axis_index_groups: Any,
    **rest: Any,
) -> Any:
    (x,), (d,) = values, dims
    if axis_data.name not in axis_name:
        at = axis + (d is not None and d <= axis)
        params = dict(axis_name=axis_name, axis=at, axis_index_groups=axis_index_groups)
        return primitive.bind(x, **params, **rest), d
    define.no_groups_under_vmap(axis_index_groups, "all_gather", axis_data.name)
    # [own, ...]: the vmapped axis is gathered already; other mesh axes gather in front of it.
    n = axis_data.size
    x = define.to_front(x, d, n)
    major, minor = axes.split_at(axis_name, axis_data.name)
    if major or minor:
        big, small = axes.axis_size(major), axes.axis_size(minor)
        params = dict(axis_name=major + minor, axis=0, axis_index_groups=None)
        x = primitive.bind(x[None], **params, **rest)
        x = jnp.moveaxis(x.reshape(big, small, *x.shape[1:]), 1, 2)
        x = x.reshape(big * n * small, *x.shape[3:])
    x = jnp.moveaxis(x, 0, axis)
    shape = list(x.shape)
    return x.reshape([*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]]), None


define.register(
    all_gather_p, "all_gather", abstract_eval=_abstract_eval, lower=_lower, batch=_batch
)
# reduce_scatter.py registers jvp and transpose: the transpose is its sum.
