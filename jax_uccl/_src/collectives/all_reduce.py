"""psum and all_reduce: every member gets the combination of all members' arrays.

Two primitives: the sum is linear and has derivatives; the other reductions have none, as in lax. Under
check_vma=True the result is invariant over the reduced axes, as for lax.psum: the transpose of such a sum is
a cast, and the transpose of the cast is the sum. Without checked types lax's older rule holds: the sum is
its own transpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_uccl._src import axes, lowering
from jax_uccl._src import jax_compat as compat
from jax_uccl._src.collectives import define
from jax_uccl._src.collectives.vary import cast_to_varying, vary, vary_p
from jax_uccl._src.errors import UcclValueError, UnsupportedError
from jax_uccl._src.explicit import run_on_local_shards
from jax_uccl._src.ordering import is_strict

OPS = ("sum", "mean", "max", "min", "prod", "and", "or")
REDUCTIONS = ("ordered", "any")


def psum(
    x: Any,
    axis_name: Any,
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    reduction: str = "ordered",
) -> Any:
    """Sums `x` over the members of `axis_name`.

    The same as `jax.lax.psum`, argument for argument, but for `reduction`. Before, each member holds one
    array; after, each holds the sum. Values that are not traced (Python numbers, constants) are multiplied
    by the number of members without communication, so `psum(1, axis_name)` is that number.

    Args:
      x: array or pytree of arrays: floating, complex, integer, or bool (summed as int32); or pending sums
        over `axis_name`. Inside `jax.shard_map` it is the local shard.
      axis_name: a mesh axis, or a tuple of mesh axes. Integers in it name axes of the array itself.
      axis_index_groups: lists of axis indices that sum among themselves, together each index once; they
        may differ in size. Default: all members.
      reduction: "ordered": additions in one order that depends on the positions in the group only, so the
        result has the same bits in every process layout and with every algorithm. "any": in whatever order
        the cheapest algorithm takes; the bits may then differ between layouts and settings, but not between
        members or runs. Derivatives keep the choice.

    Returns:
      Array(s) of the shape and dtype of `x`. float16 and bfloat16 accumulate in float32.

    Raises:
      UcclValueError: `reduction` is not one of the two.
      NameError: `axis_name` is not bound by an enclosing `jax.shard_map` or `jax.vmap`.
      ValueError: the groups do not hold every index once.
      NotImplementedError: `axis_index_groups` under `check_vma=True`, as in lax.
      UnsupportedError: an 8-bit or smaller floating dtype.
      UcclError: at run time, see `jax_uccl.errors`.

    Cost: at most two steps; each member sends about twice its bytes.

    Example:
      >>> import jax, numpy as np, jax_uccl
      >>> from jax.sharding import Mesh, PartitionSpec as P
      >>> mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
      >>> f = lambda a: jax_uccl.psum(a, "x")
      >>> y = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P()))(np.arange(2))
      >>> int(y[0])
      1
    """
    return _reduce_tree(x, axis_name, "sum", axis_index_groups, "psum", reduction)


def pmean(
    x: Any,
    axis_name: Any,
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    reduction: str = "ordered",
) -> Any:
    """Mean of `x` over the members of `axis_name`; the same as `jax.lax.pmean`.

    Args:
      x: as for `psum`.
      axis_name: as for `psum`.
      axis_index_groups: as for `psum`.
      reduction: as for `psum`.

    Returns:
      Array(s) of the shape of `x`; integers become floating.

    Raises:
      As for `psum`.

    Cost: as for `psum`.

    Example:
      >>> import jax, numpy as np, jax_uccl
      >>> from jax.sharding import Mesh, PartitionSpec as P
      >>> mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
      >>> f = lambda a: jax_uccl.pmean(a, "x")
      >>> y = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P()))(np.arange(2.0))
      >>> float(y[0])
      0.5
    """
    return _mean_tree(x, axis_name, axis_index_groups, "pmean", reduction)


def pmax(
    x: Any,
    axis_name: Any,
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    reduction: str = "ordered",
) -> Any:
    """Maximum of `x` over the members of `axis_name`; the same as `jax.lax.pmax`.

    Args:
      x: array or pytree of arrays: floating, integer or bool.
      axis_name: as for `psum`.
      axis_index_groups: as for `psum`.
      reduction: as for `psum`.

    Returns:
      Array(s) of the shape and dtype of `x`; NaN where any member has NaN. With `axis_index_groups` the type
      varies over `axis_name`, as the values do; lax calls it invariant.

    Raises:
      NotImplementedError: a derivative, as in lax. And as for `psum`, but for groups under `check_vma=True`.

    Cost: as for `psum`.

    Example:
      >>> import jax, numpy as np, jax_uccl
      >>> from jax.sharding import Mesh, PartitionSpec as P
      >>> mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
      >>> f = lambda a: jax_uccl.pmax(a, "x")
      >>> y = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P()))(np.arange(2))
      >>> int(y[0])
      1
    """
    return _reduce_tree(x, axis_name, "max", axis_index_groups, "pmax", reduction)


def pmin(
    x: Any,
    axis_name: Any,
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    reduction: str = "ordered",
) -> Any:
    """Minimum of `x` over the members of `axis_name`; the same as `jax.lax.pmin`.

    Args:
      x: as for `pmax`.
      axis_name: as for `psum`.
      axis_index_groups: as for `psum`.
      reduction: as for `psum`.

    Returns:
      As for `pmax`.

    Raises:
      As for `pmax`.

    Cost: as for `psum`.

    Example:
      >>> import jax, numpy as np, jax_uccl
      >>> from jax.sharding import Mesh, PartitionSpec as P
      >>> mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
      >>> f = lambda a: jax_uccl.pmin(a, "x")
      >>> y = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P()))(np.arange(2))
      >>> int(y[0])
      0
    """
    return _reduce_tree(x, axis_name, "min", axis_index_groups, "pmin", reduction)


def all_reduce(
    x: Any,
    axis_name: Any,
    *,
    op: str = "sum",
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    reduction: str = "ordered",
) -> Any:
    """Combines `x` over the members of `axis_name` with `op`.

    `op="sum"`, "mean", "max" and "min" are `jax.lax.psum`, `pmean`, `pmax` and `pmin`; the others have no
    equal in lax. Before, each member holds one array; after, each holds the combination.

    Args:
      x: array or pytree of arrays. "sum", "mean" and "prod" take floating, complex and integer dtypes, and
        bool as int32; "max" and "min" floating, integer and bool; "and" and "or" (bitwise) integer and bool.
      axis_name: as for `psum`.
      op: the reduction.
      axis_index_groups: as for `psum`.
      reduction: as for `psum`.

    Returns:
      Array(s) of the shape of `x`; of its dtype, except that "mean" of integers is floating.

    Raises:
      UcclValueError: `op` is not one of the names above.
      UnsupportedError: a dtype that `op` does not take.
      NotImplementedError: a derivative of an `op` other than "sum" and "mean"; with these two,
        `axis_index_groups` under `check_vma=True`.
      And as for `psum`.

    Cost: as for `psum`.

    Example:
      >>> import jax, numpy as np, jax_uccl
      >>> from jax.sharding import Mesh, PartitionSpec as P
      >>> mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
      >>> f = lambda a: jax_uccl.all_reduce(a, "x", op="max")
      >>> y = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P()))(np.arange(2))
      >>> int(y[0])
      1
    """
    if op not in OPS:
        raise UcclValueError(f"all_reduce: op={op!r} is not one of {', '.join(OPS)}")
    if op != "mean":
        return _reduce_tree(x, axis_name, op, axis_index_groups, "all_reduce", reduction)
    return _mean_tree(x, axis_name, axis_index_groups, "all_reduce", reduction)


def _mean_tree(x: Any, axis_name: Any, axis_index_groups: Any, api: str, reduction: str) -> Any:
    total = _reduce_tree(x, axis_name, "sum", axis_index_groups, api, reduction)
    ones = _reduce_tree(1, axis_name, "sum", axis_index_groups, api, reduction)
    return jax.tree.map(lambda leaf: to_inexact(leaf) / ones, total)


def to_inexact(x: Any) -> Any:
    """Integers as the float dtype that division gives; a narrow one could not hold the divisor."""
    x = jnp.asarray(x)
    return x.astype(jnp.result_type(float)) if jnp.issubdtype(x.dtype, np.integer) else x


def is_any_order(reduction: str, api: str) -> bool:
    """What the argument `reduction` says."""
    if reduction not in REDUCTIONS:
        raise UcclValueError(
            f"{api}: reduction={reduction!r} is not one of {', '.join(REDUCTIONS)}"
        )
    return reduction == "any"


def _reduce_tree(
    x: Any, axis_name: Any, op: str, axis_index_groups: Any, api: str, reduction: str
) -> Any:
    any_order = is_any_order(reduction, api)
    names = axes.as_names(axis_name)
    positional = [n for n in names if isinstance(n, int)]
    names = tuple(n for n in names if not isinstance(n, int))
    if positional and axis_index_groups is not None:
        raise ValueError("axis_index_groups only supported for sums over just named axes")
    axes.check_bound(names, api)
    groups = axes.as_groups(axis_index_groups, names)

    def reduce_leaf(leaf: Any) -> Any:
        if op == "sum" and not isinstance(leaf, jax.core.Tracer):
            return _sum_constant(leaf, names, tuple(positional), groups)
        leaf = jnp.asarray(leaf)
        if leaf.dtype == np.bool_ and op in ("sum", "prod"):
            leaf = leaf.astype(np.int32)
        if positional:
            leaf = reduce_local(leaf, op, tuple(p % leaf.ndim for p in positional))
        return _reduce_named(leaf, names, op, groups, api, any_order) if names else leaf

    return jax.tree.map(reduce_leaf, x)


def _sum_constant(
    leaf: Any, names: tuple[Any, ...], positional: tuple[int, ...], groups: axes.AxisGroups | None
) -> Any:
    """A sum of equal values; lax has the exact rules for Python numbers and emits no communication."""
    if np.result_type(leaf) == np.bool_:
        leaf = np.asarray(leaf, np.int32)  # lax would trace the conversion, and then communicate
    if groups is not None and len({len(g) for g in groups}) > 1:
        # lax takes the first group's size for all of them.
        return jnp.asarray(leaf) * _table_at_index([len(g) for g in groups], names, groups)
    return lax.psum(leaf, names + positional, axis_index_groups=groups)


def _reduce_named(
    x: Any,
    names: tuple[Any, ...],
    op: str,
    groups: axes.AxisGroups | None,
    api: str,
    any_order: bool,
) -> Any:
    check_dtype(x.dtype, op)
    aval = jax.typeof(x)
    if check_pending(x, op, names, groups, api):
        how = dict(invariant=True, pending=True, any_order=any_order, ordered=is_strict())
        return run_on_local_shards(
            lambda shard: _bind(shard, op, names, groups, **how), x, whole_axes=(), api=api
        )
    checked = compat.check_vma()
    mesh_names = tuple(n for n in names if n in compat.manual_axes()) if checked else names
    if checked and 0 < len(compat.varying_axes(aval) & set(mesh_names)) < len(mesh_names):
        raise ValueError(
            f"jax_uccl.{api} can only accept axis_name which corresponds to one of varying or "
            f"invarying state of the input (as jax.lax.psum does). Got input type: {aval}, axes: "
            f"{mesh_names}. Reduce over the varying axes only, or cast with jax.lax.pcast first"
        )
    if checked and groups is not None and mesh_names and op == "sum":
        raise NotImplementedError(
            f"jax_uccl.{api}: axis_index_groups under check_vma=True, where a sum that differs between "
            "groups has no transpose (jax.lax.psum refuses it too); use check_vma=False"
        )
    if groups is not None and len({len(g) for g in groups}) > 1:
        return _reduce_uneven(x, names, op, groups, api, any_order)
    bind = partial(_bind, any_order=any_order, ordered=is_strict())
    # Types know nothing of vmap axes, so those keep the rule of unchecked sums.
    local_names = tuple(n for n in names if n not in mesh_names)
    if local_names:
        x = bind(x, op, local_names, groups, invariant=False)
    if not mesh_names:
        return x
    return run_on_local_shards(
        lambda shard: bind(
            vary(shard, mesh_names, any_order=any_order),
            op,
            mesh_names,
            groups,
            invariant=checked and groups is None,
        ),
        x,
        whole_axes=(),
        api=api,
    )


def check_pending(
    x: Any, op: str, names: tuple[Any, ...], groups: axes.AxisGroups | None, api: str
) -> bool:
    """Whether `x` is pending: typed as waiting for its reduction over `names`, which must then be `op`."""
    aval = jax.typeof(x)
    pending = compat.pending_op(aval, names)
    if pending is None:
        return False
    if pending != op:
        raise ValueError(
            f"jax_uccl.{api} with op={op!r} cannot accept {aval}, which waits for a {pending} over "
            f"{names}; reduce it with op={pending!r}"
        )
    if groups is not None:
        raise NotImplementedError(f"jax_uccl.{api}: axis_index_groups with a pending {pending}")
    if not set(names) <= aval.mat.unreduced:
        raise ValueError(
            f"jax_uccl.{api}: {aval} waits for its {pending} over {set(aval.mat.unreduced)} only, not "
            f"over all of {names}; reduce over those axes first"
        )
    return True


def _bind(
    x: Any,
    op: str,
    names: Any,
    groups: Any,
    *,
    invariant: bool,
    any_order: bool,
    ordered: bool,
    pending: bool = False,
) -> Any:
    primitive = sum_p if op == "sum" else reduce_p
    return primitive.bind(
        x,
        axis_name=names,
        op=op,
        axis_index_groups=groups,
        invariant=invariant,
        any_order=any_order,
        ordered=ordered,
        pending=pending,
    )


def _table_at_index(table: Sequence[int], names: tuple[Any, ...], groups: axes.AxisGroups) -> Any:
    """`table[g]` for the group g that this member is in."""
    row = np.zeros(sum(len(g) for g in groups), np.int32)
    for value, group in zip(table, groups, strict=True):
        row[list(group)] = value
    return jnp.asarray(row)[lax.axis_index(names)]


def _reduce_uneven(
    x: Any,
    names: tuple[Any, ...],
    op: str,
    groups: axes.AxisGroups,
    api: str,
    any_order: bool,
) -> Any:
    """Groups of different sizes: one reduction over everybody, with a row for each group.

    It sends as many times the bytes as there are groups. XLA runs one call with one group size on every
    device, so separate communicators would not save a step.
    """
    mine = _table_at_index(range(len(groups)), names, groups)
    rows = jnp.full((len(groups), *x.shape), _identity(x.dtype, op), x.dtype)
    rows = lax.dynamic_update_index_in_dim(rows, x, mine, 0)
    return lax.dynamic_index_in_dim(
        _reduce_named(rows, names, op, None, api, any_order), mine, 0, keepdims=False
    )


def _identity(dtype: Any, op: str) -> Any:
    """e with op(e, v) == v."""
    if op in ("sum", "or"):
        return np.zeros((), dtype)
    if op == "prod":
        return np.ones((), dtype)
    if dtype == np.bool_:
        return np.bool_(op in ("min", "and"))
    if jnp.issubdtype(dtype, np.integer):
        if op == "and":
            return np.array(-1 if jnp.iinfo(dtype).min < 0 else jnp.iinfo(dtype).max, dtype)
        return np.array(jnp.iinfo(dtype).min if op == "max" else jnp.iinfo(dtype).max, dtype)
    return np.array(-np.inf if op == "max" else np.inf, dtype)


def check_dtype(dtype: Any, op: str) -> None:
    """Raises for what the native reductions do not take."""
    integral = dtype == np.bool_ or jnp.issubdtype(dtype, np.integer)
    if jnp.issubdtype(dtype, np.floating):
        if jnp.finfo(dtype).bits < 16:
            raise UnsupportedError(
                f"a reduction of {dtype} would lose its few bits at every step; reduce in a wider "
                f"dtype, for example x.astype(jnp.bfloat16), and cast the result"
            )
        fits = op not in ("and", "or")
    elif jnp.issubdtype(dtype, np.complexfloating):
        fits = op in ("sum", "prod")
    else:
        fits = integral
    if not fits:
        raise UnsupportedError(f"all_reduce with op={op!r} does not take {dtype}")


sum_p = compat.Primitive("uccl_psum")
reduce_p = compat.Primitive("uccl_all_reduce")


def _abstract_eval(
    aval: Any,
    *,
    axis_name: tuple[Any, ...],
    op: str,
    axis_index_groups: axes.AxisGroups | None,
    invariant: bool,
    any_order: bool,
    ordered: bool,
    pending: bool,
) -> Any:
    api = "psum" if op == "sum" else "all_reduce"
    axes.check_bound(axis_name, api)
    effects = define.effects(axis_name, ordered)
    if pending:
        return compat.reduce_pending(aval, axis_name, varying=False), effects
    compat.check_unreduced(aval, axis_name, api)
    if invariant:
        axes.require_varying(aval, axis_name, api)
        out = compat.with_varying_axes(aval, compat.varying_axes(aval) - set(axis_name))
    else:
        out = aval
    return out.update(weak_type=False) if not invariant else out, effects


def _lower(
    ctx: Any,
    x: Any,
    *,
    axis_name: tuple[Any, ...],
    op: str,
    axis_index_groups: axes.AxisGroups | None,
    invariant: bool,
    any_order: bool,
    ordered: bool,
    pending: bool,
) -> Any:
    (aval,) = ctx.avals_in
    name = "psum" if op == "sum" else f"all_reduce_{op}"
    lowering.check_shape(aval, name, axis_name)
    if axes.group_size(axis_name, axis_index_groups) == 1 or 0 in aval.shape:
        return lowering.pass_through(ctx, x, ordered)
    operand = lowering.to_bytes(x, aval.dtype)
    (out,) = lowering.emit_collective(
        ctx,
        "all_reduce",
        [operand],
        [operand.type],
        op=name,
        names=axis_name,
        axis_index_groups=axis_index_groups,
        ordered=ordered,
        reduction=op,
        any_order=any_order,
    )
    return [lowering.from_bytes(out, aval.dtype, x.type.element_type)]


def reduce_local(x: Any, op: str, over: tuple[int, ...]) -> Any:
    """The reduction over axes of the array itself."""
    if op in ("and", "or"):
        return (lax.reduce_and if op == "and" else lax.reduce_or)(x, over)
    if op in ("max", "min"):
        return (lax.reduce_max if op == "max" else lax.reduce_min)(x, over)
    # As the native part does: halves accumulate in float32.
    half = jnp.issubdtype(x.dtype, np.floating) and jnp.finfo(x.dtype).bits < 32
    y = x.astype(np.float32) if half else x
    y = lax.reduce_sum(y, over) if op == "sum" else lax.reduce_prod(y, over)
    return y.astype(x.dtype)


def _reduce_same(x: Any, op: str, count: int) -> Any:
    """The reduction of `count` equal values."""
    if op == "sum":
        return x * jnp.asarray(count).astype(x.dtype)  # wraps where the count does not fit
    return lax.integer_pow(x, count) if op == "prod" else x


def _batch(
    primitive: Any,
    axis_data: Any,
    values: Any,
    dims: Any,
    *,
    axis_name: tuple[Any, ...],
    op: str,
    axis_index_groups: axes.AxisGroups | None,
    **rest: Any,
) -> Any:
    (x,), (d,) = values, dims
    params = dict(op=op, axis_index_groups=axis_index_groups, **rest)
    if axis_data.name not in axis_name:
        return primitive.bind(x, axis_name=axis_name, **params), d
    if axis_index_groups is not None:
        raise NotImplementedError(
            "axis_index_groups not supported in vmap collectives over the named axis "
            f"{axis_data.name!r}"
        )
    x = _reduce_same(x, op, axis_data.size) if d is None else reduce_local(x, op, (d,))
    others = tuple(n for n in axis_name if n != axis_data.name)
    return (primitive.bind(x, axis_name=others, **params) if others else x), None


def _sum_transpose(
    ct: Any, x: Any, *, axis_name: Any, invariant: bool, pending: bool, **params: Any
) -> Any:
    if pending:
        return (compat.cast_to_reduced(ct, axis_name),)
    if invariant:
        how = dict(any_order=params["any_order"], ordered=params["ordered"])
        return (cast_to_varying(ct, axis_name, **how),)
    return (sum_p.bind(ct, axis_name=axis_name, invariant=False, pending=False, **params),)


def _vary_transpose(ct: Any, x: Any, *, axis_name: Any, **how: bool) -> Any:
    return (_bind(ct, "sum", axis_name, None, invariant=True, **how),)


def _no_derivative(primals: Any, tangents: Any, *, op: str, **params: Any) -> Any:
    raise NotImplementedError(
        f"jax_uccl.all_reduce with op={op!r} has no derivative (nor has jax.lax.pmax). Use op='sum' or "
        "'mean', apply jax.lax.stop_gradient to its operand, or give a rule with jax.custom_jvp"
    )


for _p in (sum_p, reduce_p):
    define.register(_p, "all_reduce", abstract_eval=_abstract_eval, lower=_lower, batch=_batch)
compat.ad.deflinear2(sum_p, _sum_transpose)
compat.ad.deflinear2(vary_p, _vary_transpose)
compat.ad.primitive_jvps[reduce_p] = _no_derivative
