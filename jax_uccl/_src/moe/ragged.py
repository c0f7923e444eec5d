"""Dispatch and combine of rows as two primitives, each the other's transpose, natively (native.py) or over
this library's collectives.

They are whole primitives, although each is made of steps that have transposes, because the transpose of the
steps is not the best transpose: that of a combine of single choices is a dispatch, which sends one copy to
each rank instead of one for each choice; that of a dispatch adds in top-k order whatever the layout.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_uccl._src import jax_compat as compat
from jax_uccl._src.collectives import define
from jax_uccl._src.collectives.vary import vary_alike
from jax_uccl._src.moe import exchange, native
from jax_uccl._src.moe.handle import Handle
from jax_uccl._src.ordering import is_strict

dispatch_p = compat.Primitive("uccl_moe_dispatch")
combine_p = compat.Primitive("uccl_moe_combine")


def dispatch(x: Any, handle: Handle, *, copies: bool = False, reduction: str = "ordered") -> Any:
    """[T, ...] to the result's rows, or with `copies` to one row for each copy.

    `reduction` is that of the transpose.
    """
    return _bind(dispatch_p, x, handle, copies, reduction, x.dtype)


def combine(
    y: Any,
    handle: Handle,
    *,
    copies: bool = False,
    reduction: str = "ordered",
    dtype: Any = None,
) -> Any:
    """The result's rows, or with `copies` one row for each copy, to [T, ...], of `dtype` (that of `y`)."""
    return _bind(combine_p, y, handle, copies, reduction, np.dtype(dtype or y.dtype))


def _bind(primitive: Any, x: Any, handle: Handle, copies: bool, reduction: str, dtype: Any) -> Any:
    names = handle.spec.axis_name
    leaves, tree = jax.tree.flatten(handle)
    return primitive.bind(
        *vary_alike([jnp.asarray(a) for a in (x, *leaves)], names),
        tree=tree,
        spec=handle.spec,
        copies=copies,
        reduction=reduction,
        dtype=dtype,
        ordered=is_strict(),
    )


def _dispatch(
    x: Any,
    *leaves: Any,
    tree: Any,
    copies: bool,
    at_once: bool = True,
    on_cuda: bool = False,
    **params: Any,
) -> Any:
    handle = jax.tree.unflatten(tree, leaves)
    if at_once and native.serves(handle.spec, x):
        return native.dispatch(x, handle, copies, on_cuda)[0]
    # Copies that are spread over the groups are read by index alone.
    rows = exchange.dispatch_start(x, handle, fill=copies or not handle.spec.expert_major)
    return exchange.dispatch_done(rows, handle, copies)


def _combine(
    y: Any,
    *leaves: Any,
    tree: Any,
    copies: bool,
    reduction: str,
    dtype: Any,
    at_once: bool = True,
    on_cuda: bool = False,
    **params: Any,
) -> Any:
    handle = jax.tree.unflatten(tree, leaves)
    per_choice = handle.spec.expert_major and not copies
    if per_choice and reduction == "per_rank":
        y, per_choice = exchange.gather_choices(y, handle), False
    if at_once and native.serves(handle.spec, y, y.dtype, dtype):
        return native.combine(y, handle, per_choice, dtype, on_cuda)
    rows = exchange.combine_start(y, handle, per_choice, fill=False)
    return exchange.combine_done(rows, handle, per_choice, dtype)


def _abstract_eval(
    primitive: Any,
    x: Any,
    *leaves: Any,
    spec: Any,
    copies: bool,
    dtype: Any,
    ordered: bool,
    **params: Any,
) -> Any:
    for aval in (x, *leaves):
        define.check_operand(aval, spec.axis_name, "moe")
    rows = spec.tokens
    if primitive is dispatch_p:
        rows = spec.copy_rows if copies else spec.capacity
    out = x.update(shape=(rows, *x.shape[1:]), dtype=dtype, weak_type=False)
    return out, define.effects(spec.axis_name, ordered)


def _batch(primitive: Any, axis_data: Any, values: Any, dims: Any, **params: Any) -> Any:
    n = axis_data.size
    if axis_data.name in params["spec"].axis_name:
        mapped: Callable[..., Any] = jax.vmap(
            partial(_FUNCTIONS[primitive], at_once=False, **params),
            in_axes=tuple(dims),
            axis_name=axis_data.name,
            axis_size=n,
        )
        return mapped(*values), 0
    if all(d is None for d in dims[1:]):  # the batch becomes a part of each row
        x = jnp.moveaxis(define.to_front(values[0], dims[0], n), 0, 1)
        return primitive.bind(x, *values[1:], **params), 1
    rows = [define.to_front(v, d, n) for v, d in zip(values, dims, strict=True)]
    return jnp.stack([primitive.bind(*(r[b] for r in rows), **params) for b in range(n)]), 0


def _jvp(primitive: Any, primals: Any, tangents: Any, **params: Any) -> Any:
    out = primitive.bind(*primals, **params)
    d = tangents[0]
    if type(d) is compat.ad.Zero:
        return out, compat.ad.Zero(jax.typeof(out).to_tangent_aval())
    arrays = vary_alike([d, *primals[1:]])
    return out, primitive.bind(*arrays, **params)


def _transpose(other: Any, ct: Any, x: Any, *leaves: Any, **params: Any) -> Any:
    nothing = [None] * len(leaves)
    if type(ct) is compat.ad.Zero:
        return [compat.ad.Zero(x.aval), *nothing]
    # Rows travel in the dtype that they have in the other direction.
    ct = ct.astype(x.aval.dtype)
    arrays = vary_alike([ct, *leaves])
    return [other.bind(*arrays, **(params | dict(dtype=ct.dtype))), *nothing]


_FUNCTIONS: dict[Any, Callable[..., Any]] = {dispatch_p: _dispatch, combine_p: _combine}
for _primitive, _other in ((dispatch_p, combine_p), (combine_p, dispatch_p)):
    define.register(
        _primitive,
        "moe",
        abstract_eval=partial(_abstract_eval, _primitive),
        lower=compat.mlir.lower_fun(_FUNCTIONS[_primitive], multiple_results=False),
        lower_on_cuda=compat.mlir.lower_fun(
            partial(_FUNCTIONS[_primitive], on_cuda=True), multiple_results=False
        ),
        batch=_batch,
    )
    compat.ad.primitive_jvps[_primitive] = partial(_jvp, _primitive)
    compat.ad.primitive_transposes[_primitive] = partial(_transpose, _other)
