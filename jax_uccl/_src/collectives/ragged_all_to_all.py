"""ragged_all_to_all: members exchange slices of rows whose sizes are run-time data.

The sender says where its rows land in the target's output, so the targets first learn these offsets (one
small all_to_all). The primitive then knows both ends of every slice: where rows start in the operand and
how many go to each member, where they start in the output and how many come. In that form its transpose is
itself with the two ends exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_uccl._src import axes, lowering
from jax_uccl._src import jax_compat as compat
from jax_uccl._src.collectives import define
from jax_uccl._src.collectives.all_to_all import all_to_all
from jax_uccl._src.collectives.vary import vary
from jax_uccl._src.ordering import is_strict

VECTORS = ("input_offsets", "send_sizes", "output_offsets", "recv_sizes")


def ragged_all_to_all(
    operand: Any,
    output: Any,
    input_offsets: Any,
    send_sizes: Any,
    output_offsets: Any,
    recv_sizes: Any,
    *,
    axis_name: Any,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
) -> Any:
    """Sends slices of rows of `operand` to all members, into their `output`.

    The same as `jax.lax.ragged_all_to_all`, argument for argument (which XLA does not have on CPU). Rows
    `input_offsets[i] : input_offsets[i] + send_sizes[i]` of `operand` go to member i and land in its output
    from row `output_offsets[i]` on. `ragged_offsets` computes offsets from sizes.

    Args:
      operand: [rows, ...] of any dtype.
      output: [other rows, ...] of the same dtype and row shape: what the result holds where nothing lands.
      input_offsets: integer [n], n members: first row for each target. All four vectors may have k entries for
        each member, one after the other, for k slices.
      send_sizes: integer [n]: rows for each target.
      output_offsets: integer [n]: where this member's rows start in each target's output.
      recv_sizes: integer [n]: rows that come from each member; their `send_sizes` for this one.
      axis_name: a mesh axis, or a tuple of mesh axes (major first).
      axis_index_groups: lists of axis indices that exchange among themselves; all of one size.

    Returns:
      Array like `output`. Gradients reach `operand` and `output`; slices of one operand must not overlap
      where it is differentiated, nor slices of one output.

    Raises:
      ValueError: shapes or dtypes do not fit.
      NameError: `axis_name` is not bound by an enclosing `jax.shard_map` or `jax.vmap`.
      NotImplementedError: `jax.vmap` over one of several axes in `axis_name`.
      UcclError: at run time, see `jax_uccl.errors`; a slice outside its array and sizes that differ between
        the two ends fail the operation on every member.

    Cost: two steps; n offsets and the rows that are sent. k slices are k operations.
      `jax.vmap` with different offsets runs one operation for each element of the batch.

    Example:
      >>> import jax, numpy as np, jax.numpy as jnp, jax_uccl
      >>> from jax.sharding import Mesh, PartitionSpec as P
      >>> mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
      >>> sizes = jnp.array([[1, 2], [0, 1]])  # [source, target]
      >>> def f(rows):
      ...     o = jax_uccl.ragged_offsets(sizes, jax.lax.axis_index("x"))
      ...     return jax_uccl.ragged_all_to_all(rows, jnp.zeros_like(rows), *o, axis_name="x")
      >>> y = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x")))(np.arange(1, 7))
      >>> [int(v) for v in y]
      [1, 0, 0, 2, 3, 4]
    """
    operand, output = jnp.asarray(operand), jnp.asarray(output)
    vectors = [jnp.asarray(v) for v in (input_offsets, send_sizes, output_offsets, recv_sizes)]
    if operand.dtype != output.dtype or operand.ndim == 0 or operand.shape[1:] != output.shape[1:]:
        raise ValueError(
            "ragged_all_to_all operand and output must have the same dtype and row shape, got "
            f"{jax.typeof(operand)} and {jax.typeof(output)}"
        )
    for name, v in zip(VECTORS, vectors, strict=True):
        if not jnp.issubdtype(v.dtype, np.integer):
            raise ValueError(f"ragged_all_to_all {name} must be integer type.")
        if v.ndim != 1 or not v.size:
            raise ValueError(
                f"ragged_all_to_all {name} must be rank 1 with positive dimension size, but got "
                f"shape {v.shape}"
            )
    names = axes.as_names(axis_name)
    axes.check_bound(names, "ragged_all_to_all")
    groups = axes.as_groups(axis_index_groups, names)
    axes.require_equal_groups(groups)
    size = axes.group_size(names, groups)
    slices = vectors[0].size // size
    for name, v in zip(VECTORS, vectors, strict=True):
        if v.size != max(slices, 1) * size:
            raise ValueError(
                f"ragged_all_to_all {name} must have an entry for each of the {size} members of "
                f"{names}, or all four vectors the same multiple of that, got shape {v.shape}"
            )
    starts, sends, lands, receives = (v.astype(np.int32) for v in vectors)
    lands = all_to_all(lands, names, 0, 0, axis_index_groups=groups, tiled=True)
    params = dict(axis_name=names, axis_index_groups=groups, ordered=is_strict())
    params |= dict(rows=None, fill=True)
    every = [v.reshape(size, slices) for v in (starts, sends, lands, receives)]
    for i in range(slices):
        arrays = [vary(a, names) for a in (operand, output, *(v[:, i] for v in every))]
        output = ragged_p.bind(*arrays, **params)
    return output


def ragged_offsets(sizes: Any, index: Any) -> tuple[Any, Any, Any, Any]:
    """The four vectors of `ragged_all_to_all` where slices lie one after the other.

    Rows for member 0 come first in the operand, then those for member 1, and so on; in the output, rows from
    member 0 come first.

    Args:
      sizes: integer [n, n]: rows that each member (axis 0) sends to each other (axis 1).
      index: integer []: the member that the result is for, `jax.lax.axis_index(axis_name)`.

    Returns:
      (input_offsets, send_sizes, output_offsets, recv_sizes), each int32 [n].

    Raises:
      ValueError: `sizes` is not square, or not of integers.

    Example:
      >>> import jax_uccl
      >>> [v.tolist() for v in jax_uccl.ragged_offsets([[1, 2], [4, 3]], 1)]
      [[0, 4], [4, 3], [1, 2], [2, 3]]
    """
    sizes = jnp.asarray(sizes)
    square = sizes.ndim == 2 and sizes.shape[0] == sizes.shape[1]
    if not square or not jnp.issubdtype(sizes.dtype, np.integer):
        raise ValueError(
            f"ragged_offsets: sizes must be integers [n, n], got {sizes.dtype}{list(sizes.shape)}"
        )
    sizes = sizes.astype(np.int32)
    before = jnp.cumsum(sizes, axis=1) - sizes  # in the source's operand
    above = jnp.cumsum(sizes, axis=0) - sizes  # in the target's output
    return before[index], sizes[index], above[index], sizes[:, index]


# With `rows`, the output operand has no rows and the result has `rows` of them, zeros where nothing lands: that
# saves writing zeros which are then overwritten.
ragged_p = compat.Primitive("uccl_ragged_all_to_all")


def exchange(
    operand: Any, rows: int, vectors: Sequence[Any], names: tuple[Any, ...], *, fill: bool = True
) -> Any:
    """The exchange into [rows, ...] zeros; starts, sizes, landing places and sizes, the latter two as they are here.

    Without `fill` rows in which nothing lands hold anything: for callers that do not read them.
    """
    output = jnp.zeros((0, *operand.shape[1:]), operand.dtype)
    arrays = [vary(a, names) for a in (operand, output, *vectors)]
    return ragged_p.bind(
        *arrays, axis_name=names, axis_index_groups=None, ordered=is_strict(), rows=rows, fill=fill
    )


def _abstract_eval(
    operand: Any,
    output: Any,
    *vectors: Any,
    axis_name: Any,
    axis_index_groups: Any,
    ordered: bool,
    rows: int | None,
    fill: bool,
) -> Any:
    for aval in (operand, output, *vectors):
        define.check_operand(aval, axis_name, "ragged_all_to_all")
    shape = output.shape if rows is None else (rows, *output.shape[1:])
    out = output.update(shape=shape, weak_type=False)
    if compat.check_vma():
        varying = compat.varying_axes(operand) | compat.varying_axes(output)
        out = compat.with_varying_axes(out, varying.union(*map(compat.varying_axes, vectors)))
    return out, define.effects(axis_name, ordered)


def _lower(
    ctx: Any,
    operand: Any,
    output: Any,
    *vectors: Any,
    axis_name: Any,
    axis_index_groups: Any,
    ordered: bool,
    rows: int | None,
    fill: bool,
) -> Any:
    aval, out_aval = ctx.avals_in[0], ctx.avals_out[0]
    lowering.check_shape(aval, "ragged_all_to_all", axis_name)
    lowering.check_shape(out_aval, "ragged_all_to_all", axis_name)
    # Behind the dimensions of the arrays are those of a random key's words.
    out_dims = [out_aval.shape[0], *output.type.shape[1:]]
    if 0 in aval.shape or 0 in out_aval.shape:
        if rows is not None:
            output = lowering.zeros(out_dims, output.type.element_type)
        return lowering.pass_through(ctx, output, ordered)
    source = lowering.to_bytes(operand, aval.dtype)
    start = lowering.to_bytes(output, aval.dtype)
    result = lowering.tensor_type(out_dims, start.type.element_type)
    (out,) = lowering.emit_collective(
        ctx,
        "ragged_all_to_all",
        [source, start, *vectors],
        [result],
        op="ragged_all_to_all",
        names=axis_name,
        axis_index_groups=axis_index_groups,
        ordered=ordered,
        params=(out_aval.shape,),
        fill=fill,
        aliases={0: 1} if rows is None else {},
    )
    return [lowering.from_bytes(out, aval.dtype, output.type.element_type)]


def _batch(
    primitive: Any,
    axis_data: Any,
    values: Any,
    dims: Any,
    *,
    axis_name: Any,
    axis_index_groups: Any,
    ordered: bool,
    rows: int | None,
    fill: bool,
) -> Any:
    n = axis_data.size
    params = dict(axis_name=axis_name, axis_index_groups=axis_index_groups, ordered=ordered)
    params |= dict(rows=rows, fill=fill)

    if axis_data.name in axis_name:
        define.no_groups_under_vmap(axis_index_groups, "ragged_all_to_all", axis_data.name)
        if len(axis_name) > 1:
            raise NotImplementedError(
                f"ragged_all_to_all over {axis_name} under vmap over {axis_data.name!r} alone; vmap "
                "over all of the axes, or exchange over them one at a time"
            )
        every = [define.to_front(v, d, n) for v, d in zip(values, dims, strict=True)]
        if rows is not None:
            every[1] = jnp.zeros((n, rows, *every[1].shape[2:]), every[1].dtype)
        return exchange_local(*every), 0
    if any(d is not None for d in dims[2:]):
        every = [define.to_front(v, d, n) for v, d in zip(values, dims, strict=True)]
        return jnp.stack([primitive.bind(*(a[b] for a in every), **params) for b in range(n)]), 0
    # The batch becomes a part of each row.
    operand, output = (
        jnp.moveaxis(define.to_front(v, d, n), 0, 1)
        for v, d in zip(values[:2], dims[:2], strict=True)
    )
    return primitive.bind(operand, output, *values[2:], **params), 1


def exchange_local(
    operand: Any, output: Any, starts: Any, sends: Any, lands: Any, receives: Any
) -> Any:
    """The exchange among members that lie along axis 0 of every array; `lands` as the primitive has it."""
    del sends
    n, rows = operand.shape[:2]
    index = jnp.arange(output.shape[1])
    for source in range(n):
        # [member, row]: the source's row that lands there.
        taken = index[None] - lands[:, source, None] + starts[source, :, None]
        here = (index[None] >= lands[:, source, None]) & (
            index[None] < (lands + receives)[:, source, None]
        )
        part = operand[source][jnp.clip(taken, 0, max(rows - 1, 0))] if rows else output
        here = here.reshape(*here.shape, *[1] * (output.ndim - 2))
        output = jnp.where(here, part, output)
    return output


def _written(rows: int, lands: Any, receives: Any) -> Any:
    """bool [rows]: where something lands."""
    index = jnp.arange(rows, dtype=np.int32)[:, None]
    return ((index >= lands[None]) & (index < (lands + receives)[None])).any(axis=1)


def _transpose(
    ct: Any,
    operand: Any,
    output: Any,
    starts: Any,
    sends: Any,
    lands: Any,
    receives: Any,
    **params: Any,
) -> Any:
    nothing = [None] * 4
    if type(ct) is compat.ad.Zero:
        return [
            compat.ad.Zero(v.aval) if compat.ad.is_undefined_primal(v) else None
            for v in (operand, output)
        ] + nothing
    to_operand: Any = None
    to_output: Any = None
    if compat.ad.is_undefined_primal(operand):
        none = vary(jnp.zeros((0, *ct.shape[1:]), ct.dtype), params["axis_name"])
        back = params | dict(rows=operand.aval.shape[0], fill=True)
        to_operand = ragged_p.bind(ct, none, lands, receives, starts, sends, **back)
    if compat.ad.is_undefined_primal(output) and params["rows"] is not None:
        to_output = compat.ad.Zero(output.aval)
    elif compat.ad.is_undefined_primal(output):
        mask = _written(ct.shape[0], lands, receives)
        mask = mask.reshape(-1, *[1] * (ct.ndim - 1))
        to_output = jnp.where(mask, jnp.zeros_like(ct), ct)
    return [to_operand, to_output, *nothing]


def _jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    operand, output, *vectors = primals
    result = ragged_p.bind(operand, output, *vectors, **params)
    d_operand, d_output = tangents[:2]
    if type(d_operand) is compat.ad.Zero and type(d_output) is compat.ad.Zero:
        return result, compat.ad.Zero(jax.typeof(result).to_tangent_aval())
    names = params["axis_name"]
    d_operand, d_output = (
        vary(compat.ad.instantiate_zeros(t), names) for t in (d_operand, d_output)
    )
    return result, ragged_p.bind(d_operand, d_output, *vectors, **params)


define.register(
    ragged_p, "ragged_all_to_all", abstract_eval=_abstract_eval, lower=_lower, batch=_batch
)
compat.ad.primitive_jvps[ragged_p] = _jvp
compat.ad.primitive_transposes[ragged_p] = _transpose
