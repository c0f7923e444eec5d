"""What all primitives here share: how they are registered, and the types of their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp

from jax_uccl._src import axes, cuda_module, lowering
from jax_uccl._src import jax_compat as compat
from jax_uccl._src.ordering import comm_effect


def register(
    primitive: Any,
    api: str,
    *,
    abstract_eval: Callable[..., Any],
    lower: Callable[..., Any],
    batch: Callable[..., Any],
    cuda: bool = True,
    lower_on_cuda: Callable[..., Any] | None = None,
) -> None:
    """Installs the rules of a primitive that communicates; derivatives are the caller's.

    `cuda`: whether its custom call has a handler for streams. `lower_on_cuda`: where it is lowered otherwise there.
    """

    def impl(*args: Any, **params: Any) -> Any:
        # abstract_eval has raised for unbound names; nothing else evaluates the primitive op by op.
        raise RuntimeError(
            f"jax_uccl.{api} runs inside jax.shard_map or jax.vmap over a named axis"
        )

    primitive.def_effectful_abstract_eval(abstract_eval)
    primitive.def_impl(impl)
    compat.mlir.register_lowering(primitive, lowering.no_handler(api))
    # Not cacheable: a cached rule would emit one call site, with one ordinal, for several equations.
    compat.mlir.register_lowering(primitive, lower, platform="cpu", cacheable=False)
    if cuda:
        rule = cuda_module.only_there(lower_on_cuda or lower, api)
        compat.mlir.register_lowering(primitive, rule, platform="cuda", cacheable=False)
    compat.define_batching(primitive, partial(batch, primitive))


def check_operand(aval: Any, names: Sequence[Any], api: str) -> None:
    """Raises for unbound names and for operands that do not vary over them."""
    axes.check_bound(names, api)
    compat.check_unreduced(aval, names, api)
    axes.require_varying(aval, names, api)


def effects(names: Sequence[Any], ordered: bool) -> set[Any]:
    """The effects of an operation over `names`."""
    return compat.named_axis_effects(names) | ({comm_effect} if ordered else set())


def to_front(x: Any, dim: int | None, size: int) -> Any:
    """A vmapped operand with its `size` elements along axis 0; repeated where it is not mapped."""
    return jnp.broadcast_to(x[None], (size, *x.shape)) if dim is None else jnp.moveaxis(x, dim, 0)


def no_groups_under_vmap(groups: axes.AxisGroups | None, api: str, name: Any) -> None:
    """Raises as lax does for groups where the vmapped axis is the one that communicates."""
    if groups is not None:
        raise NotImplementedError(
            f"axis_index_groups not supported in {api} under vmap over the named axis {name!r}"
        )
