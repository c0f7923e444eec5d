"""ppermute, pshuffle and pbroadcast: members take over another member's array.

A broadcast whose source is a run-time value has no plan to follow, since plans are made before values are
known. All members then combine their arrays, bit by bit, those of all but the source being zeros.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_uccl._src import axes, lowering
from jax_uccl._src import jax_compat as compat
from jax_uccl._src.collectives import define
from jax_uccl._src.collectives.all_reduce import reduce_p, sum_p
from jax_uccl._src.collectives.vary import vary
from jax_uccl._src.explicit import run_on_local_shards
from jax_uccl._src.ordering import is_strict


def ppermute(x: Any, axis_name: Any, perm: Sequence[tuple[int, int]]) -> Any:
    """Sends `x` along the pairs of `perm`.

    The same as `jax.lax.ppermute`, argument for argument; also the way to exchange with neighbours.

    Args:
      x: array or pytree of arrays of any dtype. Inside `jax.shard_map` it is the local shard.
      axis_name: a mesh axis, or a tuple of mesh axes, whose members are then counted together, as lax does: up to
        JAX 0.11 in the order of the mesh; later in the order given, which has to be that of the mesh unless
        `jax_raise_on_ppermute_sort_diff` is off.
      perm: (source, target) pairs of axis indices; no source and no target twice. Negative ones count from
        the end.

    Returns:
      Array(s) like `x`: what the source of this member's pair held; zeros on members that are no target.

    Raises:
      ValueError: an index is out of range, or twice a source or a target.
      TypeError: `perm` is an iterator.
      RuntimeError: the axes are in another order than those of the mesh (see `axis_name`).
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
    names = _in_order_of_lax(names)
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


def pbroadcast(x: Any, axis_name: Any, source: Any) -> Any:
    """Every member gets the array of member `source`; the same as `jax.lax.pbroadcast`.

    Args:
      x: array or pytree of arrays of any dtype. Inside `jax.shard_map` it is the local shard.
      axis_name: a mesh axis, or a tuple of mesh axes (major first).
      source: axis index of the member that sends: an integer, or an int32 scalar array with the same value
        on all members (with an index that no member has the result is zeros).

    Returns:
      Array(s) like `x`.

    Raises:
      ValueError: `source` is not an index of the axis, or an array that is not a scalar.
      TypeError: `source` is an array of another dtype than int32.
      NotImplementedError: `jax.vmap` over one of several axes in `axis_name`, or with a different `source` for
        each element of the batch.
      NameError: `axis_name` is not bound by an enclosing `jax.shard_map` or `jax.vmap`.
      UcclError: at run time, see `jax_uccl.errors`.

    Cost: one step; the source sends its bytes to each other process. With an array as `source` that of `psum`.

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
    if isinstance(source, jax.Array):
        if source.dtype != np.int32:
            raise TypeError(f"pbroadcast: an array as source must be int32, got {source.dtype}")
        if source.shape != ():
            raise ValueError(f"pbroadcast: source must be a scalar, got shape {source.shape}")
        how = dict(axis_name=names, ordered=is_strict())
        return _move_tree(
            x, names, "pbroadcast", lambda s: broadcast_any_p.bind(s, vary(source, names), **how)
        )
    size, root = axes.axis_size(names), operator.index(source)
    if not 0 <= root < size:
        raise ValueError(f"pbroadcast: source={root} is not an index of {names}, of size {size}")
    params = dict(axis_name=names, source=root, ordered=is_strict())
    return _move_tree(x, names, "pbroadcast", lambda s: pbroadcast_p.bind(s, **params))


def _in_order_of_lax(names: tuple[Any, ...]) -> tuple[Any, ...]:
    """The axes in the order in which lax counts members over them, where the mesh has another one."""
    order = list(jax.sharding.get_abstract_mesh().axis_names)
    if not all(name in order for name in names):
        return names
    of_mesh = tuple(sorted(names, key=order.index))
    rule = compat.order_of_ppermute()
    if names != of_mesh and rule == "refused":
        raise RuntimeError(
            "Make sure that the axis_name passed to jax.lax.ppermute, or to that of jax_uccl, is in the same order as "
            f"the axis_names declared on the mesh: got {names}, the mesh has {of_mesh}. "
            'jax.config.update("jax_raise_on_ppermute_sort_diff", False) counts members in the order given.'
        )
    return of_mesh if rule == "mesh" else names


def _check_pairs(perm: Any, size: int, names: Any) -> tuple[tuple[int, int], ...]:
    if isinstance(perm, Iterator):
        raise TypeError(
            f"`perm` passed to `jax.lax.ppermute` must be a list or a tuple, got {type(perm)}: an iterator is empty "
            "when the program is traced again"
        )
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
broadcast_any_p = compat.Primitive("uccl_pbroadcast_dynamic")


def _permute_eval(aval: Any, *, axis_name: Any, perm: Any, ordered: bool) -> Any:
    define.check_operand(aval, axis_name, "ppermute")
    return aval.update(weak_type=False), define.effects(axis_name, ordered)


def _broadcast_eval(aval: Any, *, axis_name: Any, source: int, ordered: bool) -> Any:
    define.check_operand(aval, axis_name, "pbroadcast")
    return aval.update(weak_type=False), define.effects(axis_name, ordered)


def _broadcast_any_eval(aval: Any, source: Any, *, axis_name: Any, ordered: bool) -> Any:
    del source
    return _broadcast_eval(aval, axis_name=axis_name, source=0, ordered=ordered)


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


def _as_bits(x: Any) -> Any:
    """Unsigned integers of the same bits; a complex array gets an axis of two."""
    if jnp.iscomplexobj(x):
        return _as_bits(jnp.stack([jnp.real(x), jnp.imag(x)]))
    if x.dtype == np.bool_:
        return x
    bits = (jnp.iinfo if jnp.issubdtype(x.dtype, np.integer) else jnp.finfo)(x.dtype).bits
    return lax.bitcast_convert_type(x, jnp.dtype(f"uint{bits}"))


def _from_bits(bits: Any, dtype: Any) -> Any:
    if jnp.issubdtype(dtype, np.complexfloating):
        part = np.finfo(dtype).dtype
        return lax.complex(*(_from_bits(half, part) for half in bits))
    return bits if dtype == np.bool_ else lax.bitcast_convert_type(bits, dtype)


def _broadcast_by_bits(x: Any, source: Any, *, axis_name: Any, ordered: bool) -> Any:
    """The broadcast as a reduction; untyped, since it runs while the primitive is lowered."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        words = jax.random.key_data(x)
        words = _broadcast_by_bits(words, source, axis_name=axis_name, ordered=ordered)
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(x))
    bits = _as_bits(x)
    mine = jnp.where(lax.axis_index(axis_name) == source, bits, jnp.zeros_like(bits))
    how = dict(invariant=False, pending=False, any_order=False, ordered=ordered)
    bits = reduce_p.bind(mine, axis_name=axis_name, op="or", axis_index_groups=None, **how)
    return _from_bits(bits, x.dtype)


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


def _batch_broadcast_any(
    primitive: Any, axis_data: Any, values: Any, dims: Any, *, axis_name: Any, **rest: Any
) -> Any:
    (x, source), (d, d_source) = values, dims
    if d_source is not None:
        raise NotImplementedError(
            "pbroadcast with a different source for each element of a batch; the source must be the "
            "same for all"
        )
    if axis_data.name not in axis_name:
        return primitive.bind(x, source, axis_name=axis_name, **rest), d
    if len(axis_name) > 1:
        raise NotImplementedError(
            f"pbroadcast over {axis_name} from an array as source under vmap over {axis_data.name!r} "
            "alone; vmap over all of the axes"
        )
    return (x if d is None else lax.dynamic_index_in_dim(x, source, d, keepdims=False)), None


def _permute_transpose(ct: Any, x: Any, *, perm: Any, **params: Any) -> Any:
    return (ppermute_p.bind(ct, perm=tuple((t, s) for s, t in perm), **params),)


def _broadcast_transpose(ct: Any, x: Any, *, axis_name: Any, source: int, ordered: bool) -> Any:
    total = sum_p.bind(
        ct,
        axis_name=axis_name,
        op="sum",
        axis_index_groups=None,
        invariant=False,
        any_order=False,
        ordered=ordered,
        pending=False,
    )
    return (jnp.where(lax.axis_index(axis_name) == source, total, jnp.zeros_like(total)),)


def _broadcast_any_jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    (x, source), (dx, _) = primals, tangents
    out = broadcast_any_p.bind(x, source, **params)
    if type(dx) is compat.ad.Zero:
        return out, compat.ad.Zero(jax.typeof(out).to_tangent_aval())
    return out, broadcast_any_p.bind(dx, source, **params)


def _broadcast_any_transpose(ct: Any, x: Any, source: Any, **params: Any) -> Any:
    if type(ct) is compat.ad.Zero:
        return compat.ad.Zero(x.aval), None
    return *_broadcast_transpose(ct, x, source=source, **params), None


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
define.register(
    broadcast_any_p,
    "pbroadcast",
    abstract_eval=_broadcast_any_eval,
    lower=lowering.plain(_broadcast_by_bits),
    batch=_batch_broadcast_any,
)
compat.ad.primitive_jvps[broadcast_any_p] = _broadcast_any_jvp
compat.ad.primitive_transposes[broadcast_any_p] = _broadcast_any_transpose
compat.ad.deflinear2(ppermute_p, _permute_transpose)
compat.ad.deflinear2(pbroadcast_p, _broadcast_transpose)
