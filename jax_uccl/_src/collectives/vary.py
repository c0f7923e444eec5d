"""The cast from invariant to varying, with a transpose that stays in this library.

`jax.lax.pcast` transposes to XLA's own all-reduce. Collectives here cast their operands with this primitive,
so that the backward pass of a program communicates through the same runtime as the forward pass. It moves no
data. Casts that JAX inserts by itself, where a varying and an invariant value meet, stay JAX's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from jax_uccl._src import jax_compat as compat
from jax_uccl._src.ordering import is_strict

vary_p = compat.Primitive("uccl_vary")


def vary(x: Any, names: Sequence[Any], *, any_order: bool = False) -> Any:
    """`x` with a type that varies over all manual axes in `names`; nothing where types are unchecked.

    `any_order` leaves the order of the transpose's sum open.
    """
    if not compat.check_vma() or not compat.inserts_casts():
        return x
    return cast_to_varying(x, names, any_order=any_order, ordered=is_strict())


def vary_alike(arrays: Sequence[Any], names: Sequence[Any] = ()) -> list[Any]:
    """The arrays with one type of varying axes, all of theirs and `names`, as a primitive wants them."""
    if not compat.check_vma():
        return list(arrays)
    every = set(names).union(*(compat.varying_axes(jax.typeof(a)) for a in arrays))
    return [vary(a, tuple(every)) for a in arrays]


def cast_to_varying(x: Any, names: Sequence[Any], *, any_order: bool, ordered: bool) -> Any:
    """The cast itself, for rules; the flags say how the sum of the transpose runs."""
    manual, varying = compat.manual_axes(), compat.varying_axes(jax.typeof(x))
    # vmap axes carry no type.
    missing = tuple(n for n in manual if n in names and n not in varying)
    if not missing:
        return x
    return vary_p.bind(x, axis_name=missing, any_order=any_order, ordered=ordered)


def _abstract_eval(aval: Any, *, axis_name: tuple[Any, ...], any_order: bool, ordered: bool) -> Any:
    compat.check_unreduced(aval, axis_name, "jax_uccl cast to varying")
    return compat.with_varying_axes(aval, compat.varying_axes(aval) | set(axis_name))


def _impl(x: Any, **params: Any) -> Any:
    return x


def _batch(axis_data: Any, values: Any, dims: Any, **params: Any) -> Any:
    return vary_p.bind(values[0], **params), dims[0]


vary_p.def_abstract_eval(_abstract_eval)
vary_p.def_impl(_impl)
compat.mlir.register_lowering(vary_p, lambda ctx, x, **params: [x])
compat.define_batching(vary_p, _batch)
# all_reduce.py registers jvp and transpose: the transpose is its sum.
