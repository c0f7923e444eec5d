"""Axis names, groups and their checks, shared by all collectives.

Messages follow jax.lax, so that a program that moves between the two meets the same errors.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from jax import lax

from jax_uccl._src import jax_compat as compat

AxisGroups = tuple[tuple[int, ...], ...]


def as_names(axis_name: Any) -> tuple[Any, ...]:
    """One name, or a list or tuple of names (major first), as a tuple."""
    return tuple(axis_name) if isinstance(axis_name, list | tuple) else (axis_name,)


def check_bound(names: Sequence[Any], api: str) -> None:
    """Raises NameError, as lax does, for a name that no enclosing shard_map or vmap binds."""
    forbidden = compat.forbidden_axes()
    for name in names:
        if not compat.axis_exists(name):
            raise NameError(
                f"Found an unbound axis name: {name}. To fix this, please call {api} under "
                f"`jax.shard_map` over a mesh that has the axis {name!r} (or under "
                f"`jax.vmap(..., axis_name={name!r})`). jax_uccl.{api} works on each rank's shard; "
                "jax_uccl.sharded has what works on whole arrays, without a jax.shard_map."
            )
        if name in forbidden:
            raise compat.forbidden_error()(
                f"Collective across axis '{name}' is forbidden by `no_collectives`, but "
                f"`{api}` acts on axis '{name}'."
            )


def as_groups(axis_index_groups: Any, names: Sequence[Any]) -> AxisGroups | None:
    """`axis_index_groups` as tuples; they must hold every index of the axis exactly once."""
    if axis_index_groups is None:
        return None
    given = [list(group) for group in axis_index_groups]
    try:
        groups = tuple(tuple(operator.index(i) for i in group) for group in given)
    except TypeError:
        raise ValueError(
            "axis_index_groups must cover all indices exactly once, as whole numbers: got "
            f"{given} for axis {tuple(names)}"
        ) from None
    size = axis_size(names)
    if sorted(i for group in groups for i in group) != list(range(size)) or not all(groups):
        raise ValueError(
            "axis_index_groups must cover all indices exactly once: got "
            f"{[list(g) for g in groups]} for axis {tuple(names)} of size {size}"
        )
    return groups


def require_equal_groups(groups: AxisGroups | None) -> None:
    """Raises as lax does for groups of different sizes."""
    if groups is not None and len({len(group) for group in groups}) > 1:
        raise ValueError(
            f"Replica groups must be equally sized, but axis_index_groups have sizes "
            f"{[len(group) for group in groups]}"
        )


def axis_size(names: Sequence[Any]) -> int:
    """Product of the sizes of the named axes; 1 for none."""
    return math.prod(int(lax.axis_size(name)) for name in names)


def group_size(names: Sequence[Any], groups: AxisGroups | None) -> int:
    """Members of one communicator over equally sized groups."""
    return len(groups[0]) if groups is not None else axis_size(names)


def canonical(axis: int, ndim: int) -> int:
    """An axis of an array as a number from 0 on."""
    axis = operator.index(axis)
    if not -ndim <= axis < ndim:
        raise ValueError(f"axis {axis} is out of bounds for array of dimension {ndim}")
    return axis % ndim


def split_at(names: tuple[Any, ...], name: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The names before (major) and after (minor) `name`."""
    at = names.index(name)
    return names[:at], names[at + 1 :]


def require_varying(aval: Any, names: Sequence[Any], api: str) -> None:
    """Raises unless, where types are checked, the value varies over all manual axes in `names`."""
    if not compat.check_vma():
        return
    manual = set(compat.manual_axes())
    varying = compat.varying_axes(aval)
    if any(name in manual and name not in varying for name in names):
        raise ValueError(
            f"Collective {api} must be applied to a device-varying type, but got {set(varying)} "
            f"for collective acting over axis name {tuple(names)}. Cast the operand with "
            f"jax.lax.pcast(x, {tuple(names)}, to='varying')."
        )
