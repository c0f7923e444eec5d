"""How the layers make parameters: initialisers, and the slices of ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.nn.initializers import lecun_normal

from jax_uccl._src import axes
from jax_uccl._src.errors import UcclValueError
from jax_uccl._src.flax.moe_core import Options, check_experts, is_local

Initializer = Callable[..., Any]

# Fans are those of one expert; for a plain kernel it is lecun_normal().
default_kernel_init: Initializer = lecun_normal()
default_expert_init: Initializer = lecun_normal(batch_axis=0)


def check_sizes(**sizes: int) -> None:
    """Raises unless all sizes are positive."""
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise UcclValueError(f"MoE: {name}={size!r} must be an integer of at least 1")


def fields_of(kind: type) -> list[str]:
    """The names of a dataclass's fields."""
    return [field.name for field in dataclasses.fields(kind)]


def of_this_rank(options: Options, init: Initializer) -> Initializer:
    """`init` for an array of all experts, of which this rank's are kept where the expert axis is bound.

    The values are those of the whole array, whatever the number of ranks; every rank makes all of it.
    """
    if not is_local(options):
        return init
    local = check_experts(options, axes.axis_size(options.expert_axes))

    def sliced(key: Any, shape: Any, dtype: Any) -> Any:
        start = lax.axis_index(options.expert_axes) * local
        cut = lambda a: lax.dynamic_slice_in_dim(a, start, local) if a.ndim else a
        return jax.tree.map(cut, init(key, shape, dtype))

    return sliced
