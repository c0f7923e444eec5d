"""psum_scatter and reduce_scatter: every member gets its part of the combination of all arrays.

Two primitives, as for all_reduce: the sum is linear, the other reductions have no derivative. Both keep the
rank (the tiled form); the other form is the same with the axis of size 1 removed.
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
from jax_uccl._src.collectives.all_gather import all_gather_p
from jax_uccl._src.collectives.all_reduce import (
    OPS,
    check_dtype,
    check_pending,
    is_any_order,
    reduce_local,
    to_inexact,
)
from jax_uccl._src.collectives.vary import cast_to_varying, vary
from jax_uccl._src.errors import UcclValueError
from jax_uccl._src.explicit import run_on_local_shards
from jax_uccl._src.ordering import is_strict


def psum_scatter(
    x: Any,
    axis_name: Any,
    *,
    scatter_dimension: int = 0,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    tiled: bool = False,
    reduction: str = "ordered",
) -> Any:
    """Sums `x` over the members of `axis_name`; each keeps its part of the sum.

    The same as `jax.lax.psum_scatter`, argument for argument, but for `reduction`.

    Args:
      x: array or pytree of arrays: floating, complex or integer; or pending sums over `axis_name`. Inside
        `jax.shard_map` it is the local shard.
      axis_name: a mesh axis, or a tuple of mesh axes (major first).
      scatter_dimension: the axis to divide among the members. Its size equals their number, or with `tiled`
        is a multiple.
      axis_index_groups: lists of axis indices that reduce among themselves; all of one size, together each
        index once. Default: all members.
      tiled: keep the rank; otherwise `scatter_dimension` is removed.
      reduction: as for `psum`.

    Returns:
      Array(s) of the dtype of `x`: part i of the sum on member i. float16 and bfloat16 accumulate in
      float32.

    Raises:
      ValueError: sizes do not fit, an axis is out of bounds, or groups are not equal in size.
      NameError: `axis_name` is not bound by an enclosing `jax.shard_map` or `jax.vmap`.
      UnsupportedError: an 8-bit or smaller floating dtype.
      UcclError: at run time, see `jax_uccl.errors`.

    Cost: one step; each member sends (n-1)/n of its bytes.

    Example:
      >>> import jax, numpy as np, jax_uccl
      >>> from jax.sharding import Mesh, PartitionSpec as P
      >>> mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
      >>> f = lambda a: jax_uccl.psum_scatter(a, "x", tiled=True)
      >>> y = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P(), out_specs=P("x")))(np.arange(4))
      >>> [int(v) for v in y]
      [0, 2, 4, 6]
    """
    return _scatter_tree(
        x, axis_name, "sum", scatter_dimension, axis_index_groups, tiled, "psum_scatter", reduction
    )


def reduce_scatter(
    x: Any,
    axis_name: Any,
    *,
    op: str = "sum",
    scatter_dimension: int = 0,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    tiled: bool = False,
    reduction: str = "ordered",
) -> Any:
    """Combines `x` over the members of `axis_name` with `op`; each keeps its part.

    `op="sum"` is `psum_scatter`; the others have no equal in lax.

    Args:
      x: array or pytree of arrays, of the dtypes that `all_reduce` takes for `op`.
      axis_name: as for `psum_scatter`.
      op: "sum", "mean", "max", "min", "prod", "and" or "or".
      scatter_dimension: as for `psum_scatter`.
      axis_index_groups: as for `psum_scatter`.
      tiled: as for `psum_scatter`.
      reduction: as for `psum`.

    Returns:
      Array(s) of the dtype of `x`, except that "mean" of integers is floating.

    Raises:
      UcclValueError: `op` is not one of the names above.
      UnsupportedError: a dtype that `op` does not take.
      NotImplementedError: a derivative of an `op` other than "sum" and "mean".
      And as for `psum_scatter`.

    Cost: as for `psum_scatter`.

    Example:
      >>> import jax, numpy as np, jax_uccl
      >>> from jax.sharding import Mesh, PartitionSpec as P
      >>> mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
      >>> f = lambda a: jax_uccl.reduce_scatter(a, "x", op="max", tiled=True)
      >>> y = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x")))(np.arange(4))
      >>> [int(v) for v in y]
      [2, 3]
    """
    if op not in OPS:
        raise UcclValueError(f"reduce_scatter: op={op!r} is not one of {', '.join(OPS)}")
    args = (scatter_dimension, axis_index_groups, tiled, "reduce_scatter", reduction)
    if op != "mean":
        return _scatter_tree(x, axis_name, op, *args)
    names = axes.as_names(axis_name)
    total = _scatter_tree(x, axis_name, "sum", *args)
    count = axes.group_size(names, axes.as_groups(axis_index_groups, names))
    return jax.tree.map(lambda leaf: to_inexact(leaf) / count, total)


def _scatter_tree(
    x: Any,
    axis_name: Any,
    op: str,
    dimension: int,
    groups: Any,
    tiled: bool,
    api: str,
    reduction: str,
) -> Any:
    any_order = is_any_order(reduction, api)
    names = axes.as_names(axis_name)
    axes.check_bound(names, api)
    groups = axes.as_groups(groups, names)
    axes.require_equal_groups(groups)
    size = axes.group_size(names, groups)

    def bind(leaf: Any) -> Any:
        leaf = jnp.asarray(leaf)
        if leaf.dtype == np.bool_ and op in ("sum", "prod"):
            leaf = leaf.astype(np.int32)
        check_dtype(leaf.dtype, op)
        at = axes.canonical(dimension, leaf.ndim)
        if tiled and leaf.shape[at] % size != 0:
            raise ValueError(
                f"tiled reduce_scatter operand scatter dimension size {leaf.shape[at]} must be "
                f"divisible by shard_count {size} (scatter_dimension={at} of shape {leaf.shape})"
            )
        if not tiled and leaf.shape[at] != size:
            raise ValueError(
                f"reduce_scatter operand scatter dimension size {leaf.shape[at]} must match shard "
                f"count {size} (scatter_dimension={at} of shape {leaf.shape}); pass tiled=True to "
                "divide a larger axis"
            )
        primitive = sum_scatter_p if op == "sum" else reduce_scatter_p
        pending = check_pending(leaf, op, names, groups, api)
        out = run_on_local_shards(
            lambda shard: primitive.bind(
                shard if pending else vary(shard, names, any_order=any_order),
                axis_name=names,
                op=op,
                axis=at,
                axis_index_groups=groups,
                any_order=any_order,
                ordered=is_strict(),
                pending=pending,
            ),
            leaf,
            whole_axes=(at,),
            api=api,
        )
        return out if tiled else lax.squeeze(out, (at,))

    return jax.tree.map(bind, x)


sum_scatter_p = compat.Primitive("uccl_psum_scatter")
reduce_scatter_p = compat.Primitive("uccl_reduce_scatter")


def _abstract_eval(
    aval: Any,
    *,
    axis_name: Any,
    op: str,
    axis: int,
    axis_index_groups: Any,
    any_order: bool,
    ordered: bool,
    pending: bool,
) -> Any:
    if not pending:
        define.check_operand(aval, axis_name, "psum_scatter" if op == "sum" else "reduce_scatter")
    shape = list(aval.shape)
    shape[axis] //= axes.group_size(axis_name, axis_index_groups)
    out = aval.update(shape=tuple(shape), weak_type=False)
    if pending:
        out = compat.reduce_pending(out, axis_name, varying=True)
    return out, define.effects(axis_name, ordered)


def _lower(
    ctx: Any,
    x: Any,
    *,
    axis_name: Any,
    op: str,
    axis: int,
    axis_index_groups: Any,
    any_order: bool,
    ordered: bool,
    pending: bool,
) -> Any:
    (aval,) = ctx.avals_in
    name = "psum_scatter" if op == "sum" else f"reduce_scatter_{op}"
    lowering.check_shape(aval, name, axis_name)
    size = axes.group_size(axis_name, axis_index_groups)
    if size == 1:
        return lowering.pass_through(ctx, x, ordered)
    operand = lowering.to_bytes(x, aval.dtype)
    if 0 in aval.shape:
        (operand,) = lowering.pass_through(ctx, operand, ordered)
        out = lowering.zeros(ctx.avals_out[0].shape, operand.type.element_type)
    else:
        rows = lowering.move_axis(lowering.split_dim(operand, axis, size), axis, 0)
        (out,) = lowering.emit_collective(
            ctx,
            "reduce_scatter",
            [rows],
            [lowering.tensor_type(rows.type.shape[1:], operand.type.element_type)],
            op=name,
            names=axis_name,
            axis_index_groups=axis_index_groups,
            ordered=ordered,
            params=(axis,),
            reduction=op,
            any_order=any_order,
        )
    return [lowering.from_bytes(out, aval.dtype, x.type.element_type)]


def _batch(
    primitive: Any,
    axis_data: Any,
    values: Any,
    dims: Any,
    *,
    axis_name: Any,
    op: str,
    axis: int,
    axis_index_groups: Any,
    **rest: Any,
) -> Any:
    (x,), (d,) = values, dims
    if axis_data.name not in axis_name:
        at = axis + (d is not None and d <= axis)
        params = dict(axis_name=axis_name, op=op, axis=at, axis_index_groups=axis_index_groups)
        return primitive.bind(x, **params, **rest), d
    define.no_groups_under_vmap(axis_index_groups, "reduce_scatter", axis_data.name)
    # [own, ..., (major, n, minor, part), ...]: reduce over the vmapped axis here, then each of its members
    # scatters over the others.
    n = axis_data.size
    x = define.to_front(x, d, n)
    x = reduce_local(x, op, (0,))
    major, minor = axes.split_at(axis_name, axis_data.name)
    big, small = axes.axis_size(major), axes.axis_size(minor)
    shape = list(x.shape)
    part = shape[axis] // (big * n * small)
    x = x.reshape([*shape[:axis], big, n, small, part, *shape[axis + 1 :]])
    x = jnp.moveaxis(x, (axis + 1, axis, axis + 2), (0, 1, 2))
    x = x.reshape(n, big * small, *x.shape[3:])
    if major or minor:
        params = dict(axis_name=major + minor, op=op, axis=1, axis_index_groups=None)
        x = primitive.bind(x, **params, **rest)
    return x.reshape(n, *x.shape[2:]), 0


def _sum_transpose(ct: Any, x: Any, *, op: str, pending: bool, **params: Any) -> Any:
    return (all_gather_p.bind(ct, to="reduced" if pending else "varying", **params),)


def _gather_transpose(
    ct: Any,
    x: Any,
    *,
    axis_name: Any,
    axis: int,
    to: str,
    any_order: bool,
    ordered: bool,
    **params: Any,
) -> Any:
    how = dict(any_order=any_order, ordered=ordered)
    if to != "invarying":
        rest = dict(axis_name=axis_name, axis=axis, **how, **params)
        return (sum_scatter_p.bind(ct, op="sum", pending=to == "reduced", **rest),)
    part = x.aval.shape[axis]
    ct = cast_to_varying(ct, axis_name, **how)
    start = lax.axis_index(axis_name) * part
    return (lax.dynamic_slice_in_dim(ct, start, part, axis),)


def _no_derivative(primals: Any, tangents: Any, *, op: str, **params: Any) -> Any:
    raise NotImplementedError(
        f"jax_uccl.reduce_scatter with op={op!r} has no derivative. Use op='sum' or 'mean', apply "
        "jax.lax.stop_gradient to its operand, or give a rule with jax.custom_jvp"
    )


for _p in (sum_scatter_p, reduce_scatter_p):
    define.register(_p, "reduce_scatter", abstract_eval=_abstract_eval, lower=_lower, batch=_batch)
compat.ad.deflinear2(sum_scatter_p, _sum_transpose)
compat.ad.deflinear2(all_gather_p, _gather_transpose)
compat.ad.primitive_jvps[reduce_scatter_p] = _no_derivative
