"""barrier: values that are there only once every member has got to this point.

The operands pass through the custom call, in place where XLA can, so that nothing computed from the result
runs earlier on any device. That needs no side effect, and no order among operations.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jax_uccl._src import axes, lowering
from jax_uccl._src import jax_compat as compat
from jax_uccl._src.collectives import define
from jax_uccl._src.ordering import is_strict


def barrier(x: Any, axis_name: Any) -> Any:
    """Gives `x` back once every member of `axis_name` has its own `x`.

    Only the result is held back: use it, or what follows may run before.

    Args:
      x: array or pytree of arrays of any dtype; with no array in it there is nothing to hold back, and
        nothing happens.
      axis_name: a mesh axis, or a tuple of mesh axes.

    Returns:
      `x`, unchanged.

    Raises:
      NameError: `axis_name` is not bound by an enclosing `jax.shard_map` or `jax.vmap`.
      UcclError: at run time, see `jax_uccl.errors`.

    Cost: one step of empty messages.

    Example:
      >>> import jax, numpy as np, jax_uccl
      >>> from jax.sharding import Mesh, PartitionSpec as P
      >>> mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
      >>> f = lambda a: jax_uccl.barrier(a, "x") + 1
      >>> y = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x")))(np.arange(2))
      >>> [int(v) for v in y]
      [1, 2]
    """
    names = axes.as_names(axis_name)
    axes.check_bound(names, "barrier")
    leaves, tree = jax.tree.flatten(x)
    if not leaves:
        return x
    arrays = [jnp.asarray(leaf) for leaf in leaves]
    out = barrier_p.bind(*arrays, axis_name=names, ordered=is_strict())
    return jax.tree.unflatten(tree, out)


barrier_p = compat.Primitive("uccl_barrier")
barrier_p.multiple_results = True


def _abstract_eval(*avals: Any, axis_name: Any, ordered: bool) -> Any:
    axes.check_bound(axis_name, "barrier")
    return list(avals), define.effects(axis_name, ordered)


def _lower(ctx: Any, *operands: Any, axis_name: Any, ordered: bool) -> Any:
    lowering.check_shape(ctx.avals_in[0], "barrier", axis_name)
    if axes.axis_size(axis_name) == 1:
        lowering.pass_through(ctx, operands[0], ordered)
        return list(operands)
    dtypes = [aval.dtype for aval in ctx.avals_in]
    inside = [lowering.to_bytes(v, t) for v, t in zip(operands, dtypes, strict=True)]
    outputs = lowering.emit_collective(
        ctx,
        "barrier",
        inside,
        [v.type for v in inside],
        op="barrier",
        names=axis_name,
        axis_index_groups=None,
        ordered=ordered,
        params=[(aval.shape, aval.dtype) for aval in ctx.avals_in],
        aliases={i: i for i in range(len(inside))},
    )
    return [
        lowering.from_bytes(out, t, v.type.element_type)
        for out, t, v in zip(outputs, dtypes, operands, strict=True)
    ]


def _batch(
    primitive: Any, axis_data: Any, values: Any, dims: Any, *, axis_name: Any, ordered: bool
) -> Any:
    names = tuple(n for n in axis_name if n != axis_data.name)
    if not names:
        return list(values), list(dims)  # all members are here already
    return primitive.bind(*values, axis_name=names, ordered=ordered), list(dims)


def _jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    # Derivatives have a barrier of their own: they are values that are waited for as well.
    out = barrier_p.bind(*primals, **params)
    kept = [i for i, t in enumerate(tangents) if type(t) is not compat.ad.Zero]
    result = list(tangents)
    floating = [i for i in kept if jax.typeof(tangents[i]).dtype != jax.dtypes.float0]
    if floating:
        held = barrier_p.bind(*(tangents[i] for i in floating), **params)
        for i, t in zip(floating, held, strict=True):
            result[i] = t
    return out, result


def _transpose(cts: Any, *operands: Any, **params: Any) -> Any:
    del operands
    there = [i for i, ct in enumerate(cts) if type(ct) is not compat.ad.Zero]
    result = list(cts)
    if there:
        held = barrier_p.bind(*(cts[i] for i in there), **params)
        for i, ct in zip(there, held, strict=True):
            result[i] = ct
    return result


define.register(barrier_p, "barrier", abstract_eval=_abstract_eval, lower=_lower, batch=_batch)
compat.ad.primitive_jvps[barrier_p] = _jvp
compat.ad.primitive_transposes[barrier_p] = _transpose
