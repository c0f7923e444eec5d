"""The functions of jax_uccl.sharded.

XLA knows nothing about a custom call, so its partitioner would gather an operand whose sharding it chose
itself. These functions leave it no choice: they are one `jax.shard_map` over all axes of the mesh, with the
array's own sharding as the specification.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jax_uccl._src import axes
from jax_uccl._src.collectives import all_gather as _all_gather
from jax_uccl._src.collectives import all_reduce as _all_reduce
from jax_uccl._src.collectives import all_to_all as _all_to_all
from jax_uccl._src.collectives import ppermute as _ppermute
from jax_uccl._src.collectives import ragged_all_to_all as _ragged
from jax_uccl._src.collectives import reduce_scatter as _reduce_scatter
from jax_uccl._src.errors import UcclValueError

# For each axis of the array the mesh axes that divide it, major first.
Parts = list[tuple[Any, ...]]


def psum(
    x: Any, axis_name: Any, *, reduction: str = "ordered", spec: Any = None, mesh: Any = None
) -> Any:
    """Sums the blocks of `x` along `axis_name`; every device of the axis gets the sum.

    Args:
      x: global array. It is divided along `axis_name` on one axis or more.
      axis_name: a mesh axis, or a tuple of mesh axes.
      reduction: as for `jax_uccl.psum`.
      spec: PartitionSpec of `x`. Default: that of its type (explicit mesh axes) or of the concrete array.
      mesh: default: that of `jax.set_mesh`, or of the concrete array.

    Returns:
      Array of the shape of `x`, with every axis that `axis_name` divided smaller by that factor; sharded like
      `x` without `axis_name`.

    Raises:
      UcclValueError: `spec` or `mesh` is missing, does not name `axis_name`, or the call is inside a
        `jax.shard_map`.
      And as for `jax_uccl.psum`.

    Cost: as for `jax_uccl.psum`, with blocks as the members' arrays.

    Example:
      >>> import jax, numpy as np
      >>> from jax.sharding import Mesh, PartitionSpec as P
      >>> from jax_uccl import sharded
      >>> mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
      >>> f = jax.jit(lambda a: sharded.psum(a, "x", spec=P("x"), mesh=mesh))
      >>> [int(v) for v in f(np.arange(4))]
      [2, 4]
    """
    local = partial(_all_reduce.psum, reduction=reduction)
    return _reduce(local, x, axis_name, spec, mesh, "psum")


def pmean(
    x: Any, axis_name: Any, *, reduction: str = "ordered", spec: Any = None, mesh: Any = None
) -> Any:
    """Mean of the blocks of `x` along `axis_name`; arguments, result and errors as for `psum`."""
    local = partial(_all_reduce.pmean, reduction=reduction)
    return _reduce(local, x, axis_name, spec, mesh, "pmean")


def pmax(
    x: Any, axis_name: Any, *, reduction: str = "ordered", spec: Any = None, mesh: Any = None
) -> Any:
    """Maximum of the blocks of `x` along `axis_name`; arguments, result and errors as for `psum`."""
    local = partial(_all_reduce.pmax, reduction=reduction)
    return _reduce(local, x, axis_name, spec, mesh, "pmax")


def pmin(
    x: Any, axis_name: Any, *, reduction: str = "ordered", spec: Any = None, mesh: Any = None
) -> Any:
    """Minimum of the blocks of `x` along `axis_name`; arguments, result and errors as for `psum`."""
    local = partial(_all_reduce.pmin, reduction=reduction)
    return _reduce(local, x, axis_name, spec, mesh, "pmin")


def all_reduce(
    x: Any,
    axis_name: Any,
    *,
    op: str = "sum",
    reduction: str = "ordered",
    spec: Any = None,
    mesh: Any = None,
) -> Any:
    """Combines the blocks of `x` along `axis_name` with `op` (see `jax_uccl.all_reduce`); else as `psum`."""
    local = partial(_all_reduce.all_reduce, op=op, reduction=reduction)
    return _reduce(local, x, axis_name, spec, mesh, "all_reduce")


def all_gather(x: Any, axis_name: Any, *, axis: int = 0, spec: Any = None, mesh: Any = None) -> Any:
    """Gives every device of `axis_name` all blocks of `x` along `axis`; values stay where they are in `x`.

    Args:
      x: global array of any dtype, of which `axis_name` divides `axis`, as its most major mesh axes.
      axis_name: as for `psum`.
      axis: the axis of the array.
      spec: as for `psum`.
      mesh: as for `psum`.

    Returns:
      `x`, with `axis` not divided along `axis_name` any more.

    Raises:
      As for `psum`; UcclValueError when `axis_name` does not divide `axis`.

    Cost: as for `jax_uccl.all_gather`.

    Example:
      >>> import jax, numpy as np
      >>> from jax.sharding import Mesh, PartitionSpec as P
      >>> from jax_uccl import sharded
      >>> mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
      >>> f = jax.jit(lambda a: sharded.all_gather(a, "x", spec=P("x"), mesh=mesh))
      >>> f(np.arange(4)).sharding.spec
      P()
    """
    x, names, parts, mesh = prepare(x, axis_name, spec, mesh, "all_gather")
    at = axes.canonical(axis, x.ndim)
    out = _take_away(parts, at, names, "all_gather")

    def local(block: Any) -> Any:
        return _all_gather.all_gather(block, names, axis=at, tiled=True, to="invarying")

    return _run(local, x, mesh, parts, out)


def psum_scatter(
    x: Any,
    axis_name: Any,
    *,
    scatter_dimension: int = 0,
    reduction: str = "ordered",
    spec: Any = None,
    mesh: Any = None,
) -> Any:
    """Sums the blocks of `x` along `axis_name` and divides the sum along `scatter_dimension`.

    Args:
      x: as for `psum`.
      axis_name: as for `psum`.
      scatter_dimension: the axis of the result that is divided along `axis_name`.
      reduction: as for `jax_uccl.psum`.
      spec: as for `psum`.
      mesh: as for `psum`.

    Returns:
      The array of `psum`, with `scatter_dimension` divided along `axis_name` (as its most minor mesh axes).

    Raises:
      As for `psum`; ValueError when the axis cannot be divided.

    Cost: as for `jax_uccl.psum_scatter`.

    Example:
      >>> import jax, numpy as np
      >>> from jax.sharding import Mesh, PartitionSpec as P
      >>> from jax_uccl import sharded
      >>> mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
      >>> f = jax.jit(lambda a: sharded.psum_scatter(a, "x", spec=P("x"), mesh=mesh))
      >>> [int(v) for v in f(np.arange(4))]
      [2, 4]
    """
    how = ("sum", scatter_dimension, reduction)
    return _scatter(x, axis_name, *how, spec, mesh, "psum_scatter")


def reduce_scatter(
    x: Any,
    axis_name: Any,
    *,
    op: str = "sum",
    scatter_dimension: int = 0,
    reduction: str = "ordered",
    spec: Any = None,
    mesh: Any = None,
) -> Any:
    """`psum_scatter` with another reduction; see `jax_uccl.reduce_scatter`."""
    how = (op, scatter_dimension, reduction)
    return _scatter(x, axis_name, *how, spec, mesh, "reduce_scatter")


def all_to_all(
    x: Any,
    axis_name: Any,
    split_axis: int,
    concat_axis: int,
    *,
    spec: Any = None,
    mesh: Any = None,
) -> Any:
    """Divides `split_axis` along `axis_name` instead of `concat_axis`; values stay where they are in `x`.

    Args:
      x: global array of any dtype, of which `axis_name` divides `concat_axis`, as its most major mesh axes.
      axis_name: as for `psum`.
      split_axis: the axis of the array that is divided afterwards.
      concat_axis: the axis of the array that is divided before.
      spec: as for `psum`.
      mesh: as for `psum`.

    Returns:
      `x`, sharded anew.

    Raises:
      As for `psum`; UcclValueError when `axis_name` does not divide `concat_axis`, or another mesh axis
      divides `split_axis`; ValueError when the axis cannot be divided.

    Cost: as for `jax_uccl.all_to_all`.

    Example:
      >>> import jax, numpy as np
      >>> from jax.sharding import Mesh, PartitionSpec as P
      >>> from jax_uccl import sharded
      >>> mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
      >>> f = jax.jit(lambda a: sharded.all_to_all(a, "x", 1, 0, spec=P("x"), mesh=mesh))
      >>> f(np.eye(4)).sharding.spec
      P(None, 'x')
    """
    x, names, parts, mesh = prepare(x, axis_name, spec, mesh, "all_to_all")
    split, concat = axes.canonical(split_axis, x.ndim), axes.canonical(concat_axis, x.ndim)
    out = _take_away(parts, concat, names, "all_to_all")
    if out[split]:
        raise UcclValueError(
            f"sharded.all_to_all: split_axis={split_axis} is divided along {out[split]} already"
        )
    out[split] = names

    def local(block: Any) -> Any:
        return _all_to_all.all_to_all(block, names, split, concat, tiled=True)

    return _run(local, x, mesh, parts, out)


def ppermute(
    x: Any, axis_name: Any, perm: Sequence[tuple[int, int]], *, spec: Any = None, mesh: Any = None
) -> Any:
    """Moves the blocks of `x` along `axis_name`: that of each source to its target, zeros elsewhere.

    Args:
      x: as for `psum`, of any dtype.
      axis_name: as for `psum`.
      perm: (source, target) pairs, as for `jax_uccl.ppermute`.
      spec: as for `psum`.
      mesh: as for `psum`.

    Returns:
      Array like `x`, sharded like it.

    Raises:
      As for `psum` and `jax_uccl.ppermute`.

    Cost: as for `jax_uccl.ppermute`.

    Example:
      >>> import jax, numpy as np
      >>> from jax.sharding import Mesh, PartitionSpec as P
      >>> from jax_uccl import sharded
      >>> mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
      >>> f = jax.jit(lambda a: sharded.ppermute(a, "x", [(0, 1)], spec=P("x"), mesh=mesh))
      >>> [int(v) for v in f(np.arange(1, 5))]
      [0, 0, 1, 2]
    """
    x, names, parts, mesh = prepare(x, axis_name, spec, mesh, "ppermute")
    return _run(lambda block: _ppermute.ppermute(block, names, perm), x, mesh, parts, parts)


def pbroadcast(x: Any, axis_name: Any, source: Any, *, spec: Any = None, mesh: Any = None) -> Any:
    """Overwrites all blocks of `x` along `axis_name` with that of the member `source`.

    Args:
      x: as for `psum`, of any dtype.
      axis_name: as for `psum`.
      source: index along the axis, as for `jax_uccl.pbroadcast`: an integer or an int32 scalar array.
      spec: as for `psum`.
      mesh: as for `psum`.

    Returns:
      Array like `x`, sharded like it.

    Raises:
      As for `psum` and `jax_uccl.pbroadcast`.

    Cost: as for `jax_uccl.pbroadcast`.

    Example:
      >>> import jax, numpy as np
      >>> from jax.sharding import Mesh, PartitionSpec as P
      >>> from jax_uccl import sharded
      >>> mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
      >>> f = jax.jit(lambda a: sharded.pbroadcast(a, "x", 1, spec=P("x"), mesh=mesh))
      >>> [int(v) for v in f(np.arange(4))]
      [2, 3, 2, 3]
    """
    x, names, parts, mesh = prepare(x, axis_name, spec, mesh, "pbroadcast")
    if not isinstance(source, jax.Array):
        local = partial(_ppermute.pbroadcast, axis_name=names, source=source)
        return _run(local, x, mesh, parts, parts)

    def local_from(block: Any, index: Any) -> Any:
        return _ppermute.pbroadcast(block, names, index)

    return _run(local_from, (x, source), mesh, (parts, []), parts)


def ragged_all_to_all(
    operand: Any,
    output: Any,
    input_offsets: Any,
    send_sizes: Any,
    output_offsets: Any,
    recv_sizes: Any,
    *,
    axis_name: Any,
    spec: Any = None,
    mesh: Any = None,
) -> Any:
    """Sends slices of rows from every block of `operand` into all blocks of `output` along `axis_name`.

    Args:
      operand: [rows, ...] of any dtype, of which `axis_name` divides the rows. Other mesh axes may divide it too;
        every device along them does the same with its part.
      output: [other rows, ...] of the same dtype and row shape, sharded like `operand`.
      input_offsets: integer [n, n], n members along `axis_name`, on every device: row i is what member i gives
        to `jax_uccl.ragged_all_to_all`; offsets count within its block.
      send_sizes: as `input_offsets`; `send_sizes[i, j]` rows go from i to j.
      output_offsets: as `input_offsets`.
      recv_sizes: as `input_offsets`; the transpose of `send_sizes`.
      axis_name: as for `psum`.
      spec: PartitionSpec of `operand` and `output`; default as for `psum`, from `operand`.
      mesh: as for `psum`.

    Returns:
      Array like `output`, sharded like it.

    Raises:
      As for `psum` and `jax_uccl.ragged_all_to_all`; UcclValueError when `axis_name` does not divide the rows,
      or a vector is not [n, n].

    Cost: as for `jax_uccl.ragged_all_to_all`.

    Example:
      >>> import jax, numpy as np
      >>> from jax.sharding import Mesh, PartitionSpec as P
      >>> from jax_uccl import sharded
      >>> mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
      >>> sizes = np.array([[1, 2], [0, 1]])  # [source, target]
      >>> starts, lands = np.cumsum(sizes, 1) - sizes, np.cumsum(sizes, 0) - sizes
      >>> vectors = (starts, sizes, lands, sizes.T)
      >>> f = lambda a: sharded.ragged_all_to_all(
      ...     a, a * 0, *vectors, axis_name="x", spec=P("x"), mesh=mesh)
      >>> [int(v) for v in jax.jit(f)(np.arange(1, 7))]
      [1, 0, 0, 2, 3, 4]
    """
    api = "ragged_all_to_all"
    operand, names, parts, mesh = prepare(operand, axis_name, spec, mesh, api)
    missing = [name for name in names if not parts or name not in parts[0]]
    if missing:
        raise UcclValueError(
            f"sharded.{api}: the rows (axis 0) must be divided along {missing}, but the mesh axes of "
            f"the operand are {parts}"
        )
    size = math.prod(mesh.shape[name] for name in names)
    vectors = [jnp.asarray(v) for v in (input_offsets, send_sizes, output_offsets, recv_sizes)]
    for name, v in zip(_ragged.VECTORS, vectors, strict=True):
        if v.shape != (size, size):
            raise UcclValueError(
                f"sharded.{api}: {name} must be [{size}, {size}], one row for each member along "
                f"{names}, got shape {v.shape}"
            )

    def local(block: Any, out: Any, *rows: Any) -> Any:
        me = lax.axis_index(names)
        mine = (row[me] for row in rows)
        return _ragged.ragged_all_to_all(block, out, *mine, axis_name=names)

    arrays = (operand, jnp.asarray(output), *vectors)
    return _run(local, arrays, mesh, (parts, parts, *[[(), ()]] * 4), parts)


def _reduce(
    local: Callable[..., Any], x: Any, axis_name: Any, spec: Any, mesh: Any, api: str
) -> Any:
    x, names, parts, mesh = prepare(x, axis_name, spec, mesh, api)
    out: Parts = [tuple(n for n in part if n not in names) for part in parts]
    return _run(lambda block: local(block, names), x, mesh, parts, out)


def _scatter(
    x: Any,
    axis_name: Any,
    op: str,
    dimension: int,
    reduction: str,
    spec: Any,
    mesh: Any,
    api: str,
) -> Any:
    x, names, parts, mesh = prepare(x, axis_name, spec, mesh, api)
    at = axes.canonical(dimension, x.ndim)
    out: Parts = [tuple(n for n in part if n not in names) for part in parts]
    out[at] = (*out[at], *names)

    def local(block: Any) -> Any:
        return _reduce_scatter.reduce_scatter(
            block, names, op=op, scatter_dimension=at, tiled=True, reduction=reduction
        )

    return _run(local, x, mesh, parts, out)


def _take_away(parts: Parts, axis: int, names: tuple[Any, ...], api: str) -> Parts:
    """`parts` without `names`, which must be the most major mesh axes on `axis`."""
    if parts[axis][: len(names)] != names:
        raise UcclValueError(
            f"sharded.{api}: axis {axis} must be divided along {names} first, but its mesh axes are "
            f"{parts[axis]}"
        )
    out = list(parts)
    out[axis] = parts[axis][len(names) :]
    return out


def prepare(
    x: Any, axis_name: Any, spec: Any, mesh: Any, api: str
) -> tuple[Any, tuple[Any, ...], Parts, Any]:
    """(array, names of `axis_name`, mesh axes that divide each axis of the array, mesh), checked."""
    if not jax.tree_util.all_leaves([x]):
        raise UcclValueError(
            f"sharded.{api} takes one array, got {type(x).__name__}; jax.tree.map runs it on each of several"
        )
    x = jnp.asarray(x)
    names = axes.as_names(axis_name)
    context = jax.sharding.get_abstract_mesh()
    if context.manual_axes:
        raise UcclValueError(
            f"sharded.{api} inside jax.shard_map, where arrays are local already: call jax_uccl.{api}"
        )
    concrete = None if isinstance(x, jax.core.Tracer) else x.sharding
    if not isinstance(concrete, NamedSharding):
        concrete = None
    if mesh is None:
        mesh = concrete.mesh if context.empty and concrete is not None else context
    if mesh.empty:
        raise UcclValueError(
            f"sharded.{api} needs a mesh: pass mesh=, or call it under jax.set_mesh(mesh)"
        )
    if spec is None:
        explicit = jax.typeof(x).sharding
        known = explicit.spec if not explicit.mesh.empty and explicit.mesh.explicit_axes else None
        spec = known if known is not None else concrete.spec if concrete is not None else None
    if spec is None:
        raise UcclValueError(
            f"sharded.{api} needs spec=, the PartitionSpec of its operand: automatic mesh axes do not "
            "show it under jax.jit"
        )
    if isinstance(spec, str):
        raise UcclValueError(
            f"sharded.{api}: spec={spec!r} is not a PartitionSpec; write P({spec!r})"
        )
    given = [() if part is None else axes.as_names(part) for part in spec]
    if len(given) > x.ndim:
        raise UcclValueError(f"sharded.{api}: spec={spec} has more axes than {jax.typeof(x)}")
    every = [*names, *(name for part in given for name in part)]
    missing = sorted({str(name) for name in every if name not in mesh.axis_names})
    if missing:
        raise UcclValueError(f"sharded.{api}: {missing} are not axes of the mesh {mesh.axis_names}")
    parts: Parts = [*given, *[()] * (x.ndim - len(given))]
    unused = [name for name in names if not any(name in part for part in parts)]
    if unused:
        raise UcclValueError(
            f"sharded.{api}: spec={spec} does not divide the operand along {unused}; every device "
            "there holds the same values"
        )
    for axis, part in enumerate(parts):
        count = math.prod(mesh.shape[name] for name in part)
        if x.shape[axis] % count:
            raise UcclValueError(
                f"sharded.{api}: axis {axis} of {jax.typeof(x)} has size {x.shape[axis]}, which the {count} parts of "
                f"spec={spec} along {tuple(part)} do not divide; pad it to a multiple of {count}"
            )
    return x, names, parts, mesh


def _run(local: Callable[..., Any], x: Any, mesh: Any, parts: Any, out: Parts) -> Any:
    """`local` on the blocks of an array divided as `parts`, or of a tuple of arrays and a tuple of those."""
    spec_of = lambda p: PartitionSpec(*(part or None for part in p))  # noqa: E731
    several = isinstance(x, tuple)
    in_specs = tuple(map(spec_of, parts)) if several else spec_of(parts)
    mapped = jax.shard_map(local, mesh=mesh, in_specs=in_specs, out_specs=spec_of(out))
    return mapped(*x) if several else mapped(x)
