"""Collectives on arrays that explicit mesh axes shard besides the manual ones.

XLA knows nothing about a custom call, so it would gather such an operand first. The sharding is part of the
type under explicit axes, so the call can run on the shards instead: a collective acts on each alike, as long
as the axes of the array that it splits or joins are whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from jax_uccl._src import jax_compat as compat
from jax_uccl._src.axes import as_names


def run_on_local_shards(
    f: Callable[[Any], Any], x: Any, *, whole_axes: Sequence[int], api: str
) -> Any:
    """`f(x)`, inside a shard_map over the explicit axes that shard `x`; `f` keeps the rank.

    Args:
      f: binds the collective.
      x: its operand.
      whole_axes: axes of `x` that must not be sharded.
      api: name of the public function, for the error.

    Raises:
      ValueError: one of `whole_axes` is sharded over an explicit mesh axis.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or not mesh.explicit_axes:
        return f(x)
    spec = jax.typeof(x).sharding.spec
    used = [[n for n in as_names(part) if n in mesh.explicit_axes] for part in spec]
    over = {name for part in used for name in part}
    if not over:
        return f(x)
    for axis in whole_axes:
        if axis < len(used) and used[axis]:
            raise ValueError(
                f"jax_uccl.{api} works on axis {axis} of {jax.typeof(x)}, which is sharded over the "
                f"explicit mesh axes {tuple(used[axis])}. Reshard the operand first, for example with "
                f"jax.sharding.reshard(x, P(...)), or map those axes with jax.shard_map too."
            )
    local = PartitionSpec(*(tuple(part) if part else None for part in used))
    return jax.shard_map(
        f, in_specs=local, out_specs=local, axis_names=over, check_vma=compat.check_vma()
    )(x)
