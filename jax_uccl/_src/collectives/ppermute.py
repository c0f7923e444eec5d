"""ppermute, pshuffle and pbroadcast: members take over another member's array."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_uccl._src import axes, lowering
from jax_uccl._src import jax_compat as compat
from jax_uccl._src.collectives import define
from jax_uccl._src.collectives.all_reduce import sum_p
from jax_uccl._src.collectives.vary import vary
from jax_uccl._src.explicit import run_on_local_shards
from jax_uccl._src.ordering import is_strict


def ppermute(x: Any, axis_name: Any, perm: Sequence[tuple[int, int]]) -> Any:
    """Sends `x` along the pairs of `perm`.

    The same as `jax.lax.ppermute`, argument for argument; also the way to exchange with neighbours.

    Args:
      x: array or pytree of arrays of any dtype. Inside `jax.shard_map` it is the local shard.
      axis_name: a mesh axis, or a tuple of mesh axes, whose members are then counted together, in the order
        of the mesh (as in lax).
      perm: (source, target) pairs of axis indices; no source and no target twice. Negative ones count from
        the end.

    Returns:
      Array(s) like `x`: what the source of this member's pair held; zeros on members that are no target.

    Raises:
      ValueError: an index is out of range, or twice a source or a target.
      NameError: `axis_name` is not bound by an enclosing `jax.shard_map` or `jax.vmap`.
      NotImplementedError: `jax.vmap` over one of several axes in `axis_name`.
      UcclError: at run time, see `jax_uccl.errors`.

    Cost: one step; each source sends its bytes once.

    Example:
      >>> import jax, numpy as np, jax_uccl
      >>> from jax.sharding import Mesh, PartitionSpec as P
      >>> mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
      >>> f = lambda a: jax_uccl.ppermute(a, "x", [(0, 1)])
      >>> y = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x")))(np.arange(1, 3))
      >>> [int(v) for v in y]
      [0, 1]
    """
    names = axes.as_names(axis_name)
    axes.check_bound(names, "ppermute")
    pairs = _check_pairs(perm, axes.axis_size(names), names)
    # lax counts members in the order of the mesh here, whatever the order of the names.
    order = list(jax.sharding.get_abstract_mesh().axis_names)
    if all(name in order for name in names):
        names = tuple(sorted(names, key=order.index))
    return _move_tree(x, names, "ppermute", lambda s: _bind_permute(s, names, pairs))


def pshuffle(x: Any, axis_name: Any, perm: Sequence[int]) -> Any:
    """Member i gets the array of member `perm[i]`; the same as `jax.lax.pshuffle`.

    Args:
      x: as for `ppermute`.
      axis_name: as for `ppermute`.
      perm: the source for each member: each index once.

    Returns:
      Array(s) like `x`.

    Raises:
      ValueError: `perm` is not a permutation of the axis indices. And as for `ppermute`.

    Cost: as for `ppermute`.

    Example:
      >>> import jax, numpy as np, jax_uccl
      >>> from jax.sharding import Mesh, PartitionSpec as P
      >>> mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
      >>> f = lambda a: jax_uccl.pshuffle(a, "x", [1, 0])
      >>> y = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x")))(np.arange(2))
      >>> [int(v) for v in y]
      [1, 0]
    """
    if set(perm) != set(range(len(perm))):
        raise ValueError(f"`perm` does not represent a permutation: {perm}")
    return ppermute(x, axis_name, list(zip(perm, range(len(perm)), strict=True)))


def pbroadcast(x: Any, axis_name: Any, source: int) -> Any:
    """Every member gets the array of member `source`; the same as `jax.lax.pbroadcast`.

    Args:
      x: array or pytree of arrays of any dtype. Inside `jax.shard_map` it is the local shard.
      axis_name: a mesh axis, or a tuple of mesh axes (major first).
      source: axis index of the member that sends.

    Returns:
      Array(s) like `x`.

    Raises:
      ValueError: `source` is not an index of the axis.
      NameError: `axis_name` is not bound by an enclosing `jax.shard_map` or `jax.vmap`.
      UcclError: at run time, see `jax_uccl.errors`.

    Cost: one step; the source sends its bytes to each other process.

    Example:
      >>> import jax, numpy as np, jax_uccl
      >>> from jax.sharding import Mesh, PartitionSpec as P
      >>> mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
      >>> f = lambda a: jax_uccl.pbroadcast(a, "x", 1)
      >>> y = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x")))(np.arange(2))
      >>> [int(v) for v in y]
      [1, 1]
    """
    names = axes.as_names(axis_name)
    axes.check_bound(names, "pbroadcast")
    size, root = axes.axis_size(names), operator.index(source)
    if not 0 <= root < size:
        raise ValueError(f"pbroadcast: source={root} is not an index of {names}, of size {size}")
    params = dict(axis_name=names, source=root, ordered=is_strict())
    return _move_tree(x, names, "pbroadcast", lambda s: pbroadcast_p.bind(s, **params))


def _check_pairs(perm: Any, size: int, names: Any) -> tuple[tuple[int, int], ...]:
    given = tuple((operator.index(s), operator.index(t)) for s, t in perm)
    pairs = tuple((s + size * (s < 0), t + size * (t < 0)) for s, t in given)
    for side, kind in enumerate(("source", "destination")):
        ends = [pair[side] for pair in pairs]
        if any(not 0 <= end < size for end in ends):
            raise ValueError(
                f"ppermute {kind} indices must be in 0..{size - 1} for axis {names}, got perm={given}"
            )
        if len(set(ends)) < len(ends):
            raise ValueError(f"ppermute sources and destinations must be unique, got {given}.")
    return pairs


def _move_tree(x: Any, names: Any, api: str, bind: Any) -> Any:
    return jax.tree.map(
        lambda leaf: run_on_local_shards(
            lambda shard: bind(vary(shard, names)), jnp.asarray(leaf), whole_axes=(), api=api
        ),
        x,
    )


def _bind_permute(x: Any, names: Any, pairs: Any) -> Any:
    return ppermute_p.bind(x, axis_name=names, perm=pairs, ordered=is_strict())


ppermute_p = compat.Primitive("uccl_ppermute")
pbroadcast_p = compat.Primitive("uccl_pbroadcast")


def _permute_eval(aval: Any, *, axis_name: Any, perm: Any, ordered: bool) -> Any:
    define.check_operand(aval, axis_name, "ppermute")
    return aval.update(weak_type=False), define.effects(axis_name, ordered)


def _broadcast_eval(aval: Any, *, axis_name: Any, source: int, ordered: bool) -> Any:
    define.check_operand(aval, axis_name, "pbroadcast")
    return aval.update(weak_type=False), define.effects(axis_name, ordered)


def _lower_move(ctx: Any, x: Any, kind: str, op: str, names: Any, ordered: bool, **how: Any) -> Any:
    (aval,) = ctx.avals_in
    lowering.check_shape(aval, op, names)
    if 0 in aval.shape:
        return lowering.pass_through(ctx, x, ordered)
    operand = lowering.to_bytes(x, aval.dtype)
    (out,) = lowering.emit_collective(
        ctx,
        kind,
        [operand],
        [operand.type],
        op=op,
        names=names,
        axis_index_groups=None,
        ordered=ordered,
        **how,
    )
    return [lowering.from_bytes(out, aval.dtype, x.type.element_type)]


def _lower_permute(ctx: Any, x: Any, *, axis_name: Any, perm: Any, ordered: bool) -> Any:
    if axes.axis_size(axis_name) == 1 and perm:
        return lowering.pass_through(ctx, x, ordered)
    flat = [index for pair in perm for index in pair]
    return _lower_move(ctx, x, "permute", "ppermute", axis_name, ordered, permutation=flat)


def _lower_broadcast(ctx: Any, x: Any, *, axis_name: Any, source: int, ordered: bool) -> Any:
    if axes.axis_size(axis_name) == 1:
        return lowering.pass_through(ctx, x, ordered)
    return _lower_move(ctx, x, "broadcast", "pbroadcast", axis_name, ordered, root=source)


def _batch_permute(
    primitive: Any,
    axis_data: Any,
    values: Any,
    dims: Any,
    *,
    axis_name: Any,
    perm: Any,
    **rest: Any,
) -> Any:
    (x,), (d,) = values, dims
    if axis_data.name not in axis_name:
        return primitive.bind(x, axis_name=axis_name, perm=perm, **rest), d
    if len(axis_name) > 1:
        raise NotImplementedError(
            f"ppermute over {axis_name} under vmap over {axis_data.name!r} alone; vmap over all of "
            "the axes, or permute over them one at a time"
        )
    n = axis_data.size
    x = define.to_front(x, d, n)
    source, is_target = np.zeros(n, np.int32), np.zeros(n, np.bool_)
    for s, t in perm:
        source[t], is_target[t] = s, True
    mask = is_target.reshape(n, *[1] * (x.ndim - 1))
    return jnp.where(mask, x[source], jnp.zeros_like(x)), 0


def _batch_broadcast(
    primitive: Any,
    axis_data: Any,
    values: Any,
    dims: Any,
    *,
    axis_name: Any,
    source: int,
    **rest: Any,
) -> Any:
    (x,), (d,) = values, dims
    if axis_data.name not in axis_name:
        return primitive.bind(x, axis_name=axis_name, source=source, **rest), d
    # The source's index on the vmapped axis, and on the others together.
    major, minor = axes.split_at(axis_name, axis_data.name)
    small = axes.axis_size(minor)
    rest_of, low = divmod(source, small)
    high, own = divmod(rest_of, axis_data.size)
    x = x if d is None else lax.index_in_dim(x, own, d, keepdims=False)
    if major or minor:
        x = primitive.bind(x, axis_name=major + minor, source=high * small + low, **rest)
    return x, None


def _permute_transpose(ct: Any, x: Any, *, perm: Any, **params: Any) -> Any:
    return (ppermute_p.bind(ct, perm=tuple((t, s) for s, t in perm), **params),)


def _broadcast_transpose(ct: Any, x: Any, *, axis_name: Any, source: int, ordered: bool) -> Any:
    total = sum_p.bind(
        ct,
        axis_name=axis_name,
        op="sum",
        axis_index_groups=None,
        invariant=False,
        ordered=ordered,
    )
    return (jnp.where(lax.axis_index(axis_name) == source, total, jnp.zeros_like(total)),)


define.register(
    ppermute_p, "ppermute", abstract_eval=_permute_eval, lower=_lower_permute, batch=_batch_permute
)
define.register(
    pbroadcast_p,
    "pbroadcast",
    abstract_eval=_broadcast_eval,
    lower=_lower_broadcast,
    batch=_batch_broadcast,
)
compat.ad.deflinear2(ppermute_p, _permute_transpose)
compat.ad.deflinear2(pbroadcast_p, _broadcast_transpose)
