"""all_to_all: every member gives the r-th part of its array to member r.

The primitive keeps lax's meaning in its tiled form (no dimension comes or goes). Its lowering brings the
parts to the front, [members, ...], which is all that the handler knows; XLA fuses that layout work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_uccl._src import axes, lowering
from jax_uccl._src import jax_compat as compat
from jax_uccl._src.collectives import define
from jax_uccl._src.collectives.vary import vary
from jax_uccl._src.explicit import run_on_local_shards
from jax_uccl._src.ordering import is_strict


def all_to_all(
    x: Any,
    axis_name: Any,
    split_axis: int,
    concat_axis: int,
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    tiled: bool = False,
) -> Any:
    """Splits `split_axis` over the members of `axis_name` and joins what arrives along `concat_axis`.

    The same as `jax.lax.all_to_all`, argument for argument. Before, member i holds one array; after, it
    holds part i of every member's array, in the order of the members.

    Args:
      x: array or pytree of arrays of any dtype. Inside `jax.shard_map` it is the local shard.
      axis_name: a mesh axis, or a tuple of mesh axes (major first).
      split_axis: the axis to split. Its size equals the number of members, or with `tiled` is a multiple.
      concat_axis: where the member axis appears in the result (after `split_axis` is removed), or with
        `tiled` the axis along which parts are joined.
      axis_index_groups: lists of axis indices that exchange among themselves; all of one size, together
        each index once. Default: all members.
      tiled: keep the rank: chunks of `split_axis` are concatenated along `concat_axis`.

    Returns:
      Array(s) of the dtype of `x`. Without `tiled` the shape is that of `x` without `split_axis` and with
      an axis of the group's size at `concat_axis`; with `tiled`, `split_axis` is divided and `concat_axis`
      multiplied by the group's size.

    Raises:
      ValueError: sizes do not fit, an axis is out of bounds, or groups are not equal in size.
      NameError: `axis_name` is not bound by an enclosing `jax.shard_map` or `jax.vmap`.
      UcclError: at run time, see `jax_uccl.errors`.

    Cost: one step; each member sends (n-1)/n of its bytes.

    Example:
      >>> import jax, numpy as np, jax_uccl
      >>> from jax.sharding import Mesh, PartitionSpec as P
      >>> mesh = Mesh(np.array(jax.devices()), ("x",))
      >>> swap = lambda a: jax_uccl.all_to_all(a, "x", split_axis=1, concat_axis=0, tiled=True)
      >>> f = jax.jit(jax.shard_map(swap, mesh=mesh, in_specs=P("x"), out_specs=P(None, "x")))
      >>> f(np.eye(jax.device_count())).sharding.spec
      P(None, 'x')
    """
    names = axes.as_names(axis_name)
    axes.check_bound(names, "all_to_all")
    groups = axes.as_groups(axis_index_groups, names)
    axes.require_equal_groups(groups)
    size = axes.group_size(names, groups)

    def bind(leaf: Any) -> Any:
        leaf = jnp.asarray(leaf)
        split = axes.canonical(split_axis, leaf.ndim)
        concat = axes.canonical(concat_axis, leaf.ndim)
        if tiled:
            if leaf.shape[split] % size != 0:
                raise ValueError(
                    f"The size of all_to_all split_axis ({leaf.shape[split]}) has to be divisible by "
                    f"the size of the named axis {axis_name} ({size})"
                )
        else:
            if leaf.shape[split] != size:
                raise ValueError(
                    "all_to_all requires the size of the mapped axis axis_name to equal "
                    f"x.shape[split_axis], but they are {size} and {leaf.shape[split]} respectively."
                )
            # In tiled form, the parts are joined along a new axis of size 1.
            if split < concat:
                concat += 1
                leaf = lax.expand_dims(leaf, (concat,))
            elif split > concat:
                leaf = lax.expand_dims(leaf, (concat,))
                split += 1
        params = dict(
            axis_name=names,
            split_axis=split,
            concat_axis=concat,
            axis_index_groups=groups,
            ordered=is_strict(),
        )
        out = run_on_local_shards(
            lambda shard: all_to_all_p.bind(vary(shard, names), **params),
            leaf,
            whole_axes=(split, concat),
            api="all_to_all",
        )
        return lax.squeeze(out, (split,)) if not tiled and split != concat else out

    return jax.tree.map(bind, x)


all_to_all_p = compat.Primitive("uccl_all_to_all")


def _abstract_eval(
    aval: Any,
    *,
    axis_name: tuple[Any, ...],
    split_axis: int,
    concat_axis: int,
    axis_index_groups: axes.AxisGroups | None,
    ordered: bool,
) -> Any:
    define.check_operand(aval, axis_name, "all_to_all")
    size = axes.group_size(axis_name, axis_index_groups)
    shape = list(aval.shape)
    if shape[split_axis] % size:
        raise ValueError(f"all_to_all cannot split axis {split_axis} of {aval.shape} {size} ways")
    shape[split_axis] //= size
    shape[concat_axis] *= size
    return aval.update(shape=tuple(shape), weak_type=False), define.effects(axis_name, ordered)


def _lower(
    ctx: Any,
    x: Any,
    *,
    axis_name: tuple[Any, ...],
    split_axis: int,
    concat_axis: int,
    axis_index_groups: axes.AxisGroups | None,
    ordered: bool,
) -> Any:
    size = axes.group_size(axis_name, axis_index_groups)
    (aval,) = ctx.avals_in
    lowering.check_shape(aval, "all_to_all", axis_name)
    if size == 1:
        return lowering.pass_through(ctx, x, ordered)
    rows = lowering.to_bytes(x, aval.dtype)
    rows = lowering.move_axis(lowering.split_dim(rows, split_axis, size), split_axis, 0)
    if 0 in aval.shape:
        (out,) = lowering.pass_through(ctx, rows, ordered)
    else:
        (out,) = lowering.emit_collective(
            ctx,
            "all_to_all",
            [rows],
            [rows.type],
            op="all_to_all",
            names=axis_name,
            axis_index_groups=axis_index_groups,
            ordered=ordered,
            params=(split_axis, concat_axis),
        )
    out = lowering.merge_dims(lowering.move_axis(out, 0, concat_axis), concat_axis)
    return [lowering.from_bytes(out, aval.dtype, x.type.element_type)]


def _batch(
    primitive: Any,
    axis_data: Any,
    values: Any,
    dims: Any,
    *,
    axis_name: tuple[Any, ...],
    split_axis: int,
    concat_axis: int,
    axis_index_groups: axes.AxisGroups | None,
    ordered: bool,
) -> Any:
    (x,), (d,) = values, dims
    rest = dict(axis_index_groups=axis_index_groups, ordered=ordered)
    if axis_data.name not in axis_name:
        if d is not None:
            split_axis, concat_axis = (
                split_axis + (d <= split_axis),
                concat_axis + (d <= concat_axis),
            )
        out = primitive.bind(
            x, axis_name=axis_name, split_axis=split_axis, concat_axis=concat_axis, **rest
        )
        return out, d
    define.no_groups_under_vmap(axis_index_groups, "all_to_all", axis_data.name)

    # The vmap is one of the axes: that share of the exchange is a transpose of local data. The split axis
    # is [major, n, minor, part]; the member axes go to the front, other mesh axes exchange there, and the
    # source axes land before concat_axis, major first.
    n = axis_data.size
    x = define.to_front(x, d, n)
    major, minor = axes.split_at(axis_name, axis_data.name)
    big, small = axes.axis_size(major), axes.axis_size(minor)
    shape = list(x.shape)
    s = split_axis + 1
    parts = [big, n, small, shape[s] // (big * n * small)]
    x = x.reshape(shape[:s] + parts + shape[s + 1 :])
    # [source, ..., major, target, minor, ...] -> [major, minor, source, target, ...]
    x = jnp.moveaxis(x, (s, s + 2, 0, s + 1), (0, 1, 2, 3))
    if major or minor:
        folded = x.reshape((big * small, *x.shape[2:]))
        folded = primitive.bind(
            folded, axis_name=major + minor, split_axis=0, concat_axis=0, **rest
        )
        x = folded.reshape(x.shape)
    # -> [target, ..., major, source, minor, concat axis, ...]
    c = concat_axis + 1
    x = jnp.moveaxis(x, (3, 0, 2, 1), (0, c, c + 1, c + 2))
    shape = list(x.shape)
    joined = int(np.prod(shape[c : c + 4]))
    return x.reshape(shape[:c] + [joined] + shape[c + 4 :]), 0


def _transpose(
    ct: Any,
    x: Any,
    *,
    axis_name: tuple[Any, ...],
    split_axis: int,
    concat_axis: int,
    axis_index_groups: axes.AxisGroups | None,
    ordered: bool,
) -> Any:
    out = all_to_all_p.bind(
        ct,
        axis_name=axis_name,
        split_axis=concat_axis,
        concat_axis=split_axis,
        axis_index_groups=axis_index_groups,
        ordered=ordered,
    )
    return (out,)


define.register(
    all_to_all_p, "all_to_all", abstract_eval=_abstract_eval, lower=_lower, batch=_batch
)
compat.ad.deflinear2(all_to_all_p, _transpose)
