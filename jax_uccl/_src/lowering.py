"""From a primitive to a custom call: who takes part, and under which name the ranks find each other.

Everything written here ends in the program text, which must be the same on every process and in every run:
no pointers, process ids or process-wide counters. A call site is named by its content and by its place in
the module; JAX may lower it once and XLA may copy it, so the native part numbers the copies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_uccl._src import ffi_targets, partitioning
from jax_uccl._src import jax_compat as compat
from jax_uccl._src.axes import AxisGroups
from jax_uccl._src.errors import UnsupportedError
from jax_uccl._src.ordering import comm_effect


def stable_hash(*parts: object) -> np.int64:
    """64 bits that depend only on the text of `parts`: Python's hash() differs between processes."""
    text = "\x00".join(str(part) for part in parts)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return np.int64(int.from_bytes(digest, "little", signed=True))


def describe(op: str, aval: Any, names: Sequence[Any]) -> str:
    """`all_to_all float32[4,128] axis=(x)`: how errors and traces name the operation."""
    shape = ",".join(str(d) for d in aval.shape)
    return f"{op} {aval.dtype}[{shape}] axis=({','.join(str(n) for n in names)})"


def check_shape(aval: Any, op: str, names: Sequence[Any]) -> None:
    """Refuses symbolic dimensions: XLA cannot work out a custom call's shapes inside a manual region."""
    if not compat.is_constant_shape(aval.shape):
        raise UnsupportedError(
            f"{describe(op, aval, names)}: symbolic dimensions are not supported; export once for "
            "each shape"
        )


def _member_groups(
    axis_context: Any, names: Sequence[Any], groups: AxisGroups | None
) -> np.ndarray:
    """[communicators, members] partition ids."""
    whole = compat.axis_groups(axis_context, names)
    if groups is not None:
        whole = tuple(tuple(g[i] for i in sub) for g in whole for sub in groups)
    return np.array(whole, np.int64)


def _partition_id(ctx: Any, axis_context: Any) -> Any:
    """u32[] partition id; only for programs whose devices are unknown while they are lowered."""
    mesh = axis_context.mesh
    if not compat.has_automatic_axes(axis_context):
        return compat.hlo.partition_id()

    # XLA refuses PartitionId while some axes are left to its partitioner; a nested region that is manual
    # in all axes has one.
    rest = set(mesh.axis_names) - set(axis_context.manual_axes)
    index = jax.shard_map(
        lambda: lax.axis_index(tuple(mesh.axis_names)).astype(np.uint32),
        in_specs=(),
        out_specs=jax.sharding.PartitionSpec(),
        axis_names=rest,
        check_vma=False,
    )
    out_aval = jax.core.ShapedArray((), np.uint32)
    sub = ctx.replace(primitive=None, avals_in=[], avals_out=[out_aval])
    (value,) = compat.mlir.lower_fun(lambda: [index()])(sub)
    return value


def _check_partial_auto(label: str, ordered: bool) -> None:
    """Refuses what would make XLA end the process."""
    if ordered:
        raise UnsupportedError(
            f"{label}: jax_uccl.strict_order() inside a shard_map that leaves mesh axes automatic; XLA's "
            "partitioner takes no tokens there. Map all axes (drop axis_names=), or leave strict order"
        )
    if not compat.uses_shardy():
        raise UnsupportedError(
            f"{label}: a shard_map that leaves mesh axes automatic needs the Shardy partitioner "
            "(jax_use_shardy_partitioner=True); the older one cannot divide such a program"
        )


def emit_collective(
    ctx: Any,
    kind: str,
    operands: Sequence[Any],
    result_types: Sequence[Any],
    *,
    op: str,
    names: Sequence[Any],
    axis_index_groups: AxisGroups | None,
    ordered: bool,
    params: Sequence[object] = (),
    reduction: str = "none",
    any_order: bool = False,
    permutation: Sequence[int] = (),
    root: int = 0,
    fill: bool = True,
    aliases: dict[int, int] | None = None,
    handler: str | None = None,
) -> list[Any]:
    """Emits the custom call of one collective.

    Args:
      ctx: lowering context of the primitive.
      kind: the operation, as the native part names it: "all_reduce".
      operands: tensors in the form that the handler wants, row-major.
      result_types: IR types of the results.
      op: name of the operation for people.
      names: mesh axes, major first.
      axis_index_groups: subgroups, or None.
      ordered: whether the call takes and gives a token (strict mode).
      params: further parameters that tell call sites apart.
      reduction: sum, max, min, prod, and, or; for operations that reduce.
      any_order: whether the order of the reduction is left to the runtime.
      permutation: source and target of each pair, one after the other, by position in the group.
      root: position in the group of the member that broadcasts.
      fill: whether a ragged exchange into no operand zeroes what nothing lands in.
      aliases: result -> operand that it may share a buffer with.
      handler: the custom call, where it is another one than that of `kind`; for calls that the native part
        matches as operations of that kind and carries out otherwise.

    Returns:
      The result tensors.
    """
    # Runs the runtime's start-up in the background, so that it is done by the first execution. Imported
    # late: comm may use this module's package.
    from jax_uccl._src import comm

    comm.ensure_started()

    axis_context = ctx.module_context.axis_context
    aval = ctx.avals_in[0]
    label = describe(op, aval, names)
    if not compat.is_mesh_context(axis_context):
        raise UnsupportedError(
            f"{label}: jax_uccl operations run inside jax.shard_map; wrap the function in "
            "jax.shard_map over a mesh that has these axes."
        )
    members = _member_groups(axis_context, names, axis_index_groups)
    mesh = axis_context.mesh
    known = isinstance(mesh, jax.sharding.Mesh) and not compat.lowered_for_export(ctx)
    devices = list(mesh.devices.flat) if known else []

    module, ordinal = compat.module_name(ctx), compat.new_ordinal(ctx)
    contents = (reduction, any_order, list(permutation), root, *params, members.tolist())
    attrs = {
        "site": stable_hash(
            module, ordinal, op, operands[0].type, aval.shape, aval.dtype, *contents
        ),
        "position": stable_hash(module, ordinal),
        "label": label,
        "module": module,
        "kind": kind,
        "group_size": np.int64(members.shape[1]),
        "groups": members.ravel(),
        "devices": np.array([d.id for d in devices], np.int64),
        "processes": np.array([d.process_index for d in devices], np.int64),
        "ordered": np.int64(ordered),
        "reduction": reduction,
        "any_order": np.int64(any_order),
        "permutation": np.array(permutation, np.int64),
        "root": np.int64(root),
        "fill": np.int64(fill),
    }
    operands, results = list(operands), list(result_types)
    layouts = [compat.row_major(len(v.type.shape)) for v in operands]
    result_layouts = [compat.row_major(len(t.shape)) for t in results]
    if not known:
        operands.append(_partition_id(ctx, axis_context))
        layouts.append(())
    if ordered:
        operands.append(ctx.tokens_in.get(comm_effect))
        layouts.append(())
        results.append(compat.hlo.TokenType.get())
        result_layouts.append(())
    target, rule = ffi_targets.target(handler or kind), None
    if compat.has_automatic_axes(axis_context):
        _check_partial_auto(label, ordered)
        if _leaves_axes(ctx):
            target = partitioning.auto_target(handler or kind)
            rule = partitioning.sharding_rule(handler or kind, [v.type for v in operands], results)
    outputs = compat.custom_call(
        target,
        result_types=results,
        operands=operands,
        attributes=attrs,
        sharding_rule=rule,
        operand_layouts=layouts,
        result_layouts=result_layouts,
        # The token is a real edge; the flag keeps the chain when no result is used.
        has_side_effect=ordered,
        aliases=aliases or {},
    )
    if ordered:
        compat.set_token(ctx, comm_effect, outputs[-1])
    return list(outputs[: len(result_types)])


def _leaves_axes(ctx: Any) -> bool:
    """Whether this is inside a shard_map that leaves mesh axes automatic, in a program for known devices."""
    axis_context = ctx.module_context.axis_context
    return (
        compat.has_automatic_axes(axis_context)
        and not compat.lowered_for_export(ctx)
        and isinstance(axis_context.mesh, jax.sharding.Mesh)
    )


def plain(function: Any) -> Any:
    """The lowering of an operation's meaning in plain JAX, a function of one result."""
    return compat.mlir.lower_fun(function, multiple_results=False)


def local_call(
    ctx: Any,
    kind: str,
    operands: Sequence[Any],
    attributes: dict[str, Any] | None = None,
    aliases: dict[int, int] | None = None,
) -> list[Any]:
    """Emits a custom call that works on this rank's data alone; results as the primitive's own."""
    results = [
        tensor_type(aval.shape, compat.mlir.dtype_to_ir_type(aval.dtype)) for aval in ctx.avals_out
    ]
    target, rule = ffi_targets.target(kind), None
    if _leaves_axes(ctx) and compat.uses_shardy() and "cpu" in ctx.module_context.platforms:
        target = partitioning.auto_target(kind)
        rule = partitioning.sharding_rule(kind, [v.type for v in operands], results)
    outputs = compat.custom_call(
        target,
        sharding_rule=rule,
        result_types=results,
        operands=list(operands),
        attributes=attributes or {},
        operand_layouts=[compat.row_major(len(v.type.shape)) for v in operands],
        result_layouts=[compat.row_major(len(aval.shape)) for aval in ctx.avals_out],
        has_side_effect=False,
        aliases=aliases or {},
    )
    return list(outputs)


def pass_through(ctx: Any, operand: Any, ordered: bool) -> list[Any]:
    """The lowering of an operation that has nothing to communicate."""
    if ordered:
        compat.set_token(ctx, comm_effect, ctx.tokens_in.get(comm_effect))
    return [operand]


def tensor_type(shape: Sequence[int], element_type: Any) -> Any:
    """The IR type of a tensor."""
    return compat.ir.RankedTensorType.get(list(shape), element_type)


def zeros(shape: Sequence[int], element_type: Any) -> Any:
    """A tensor of zeros, for operations on arrays without elements."""
    kind = tensor_type(shape, element_type)
    if isinstance(element_type, compat.ir.ComplexType):
        part = tensor_type(shape, element_type.element_type)
        half = compat.hlo.constant(compat.zero_attribute(part))
        return compat.hlo.complex(half, half)
    return compat.hlo.constant(compat.zero_attribute(kind))


def split_dim(value: Any, axis: int, count: int) -> Any:
    """[..., d, ...] -> [..., count, d / count, ...]."""
    dims = list(value.type.shape)
    return _reshape(value, [*dims[:axis], count, dims[axis] // count, *dims[axis + 1 :]])


def merge_dims(value: Any, axis: int) -> Any:
    """[..., d, e, ...] -> [..., d * e, ...] for an axis and the next."""
    dims = list(value.type.shape)
    return _reshape(value, [*dims[:axis], dims[axis] * dims[axis + 1], *dims[axis + 2 :]])


def _reshape(value: Any, dims: Sequence[int]) -> Any:
    kind = compat.ir.RankedTensorType.get(list(dims), value.type.element_type)
    return compat.hlo.reshape(kind, value)


def move_axis(value: Any, source: int, destination: int) -> Any:
    """stablehlo.transpose that moves one axis and keeps the order of the others."""
    order = [i for i in range(len(value.type.shape)) if i != source]
    order.insert(destination, source)
    if order == sorted(order):
        return value
    return compat.hlo.transpose(value, compat.mlir.dense_int_array(order))


def to_bytes(value: Any, dtype: Any) -> Any:
    """A value of a dtype narrower than a byte, one element to a byte; any other value as it is.

    XLA:CPU keeps such elements packed or not as its passes see fit, and a handler is not told which. int8
    arithmetic wraps to the same low bits, so reductions of integers may work on the result.
    """
    if _bits(dtype) >= 8:
        return value
    shape, ir, hlo = value.type.shape, compat.ir, compat.hlo
    if jnp.issubdtype(dtype, np.floating):
        bits = ir.IntegerType.get_unsigned(_bits(dtype))
        value = hlo.bitcast_convert(ir.RankedTensorType.get(shape, bits), value)
    signed = jnp.issubdtype(dtype, np.signedinteger)
    byte = ir.IntegerType.get_signless(8) if signed else ir.IntegerType.get_unsigned(8)
    return hlo.convert(ir.RankedTensorType.get(shape, byte), value)


def from_bytes(value: Any, dtype: Any, element_type: Any) -> Any:
    """The inverse of `to_bytes`; `element_type` is the IR type of `dtype`."""
    if _bits(dtype) >= 8:
        return value
    shape, ir, hlo = value.type.shape, compat.ir, compat.hlo
    result = ir.RankedTensorType.get(shape, element_type)
    if not jnp.issubdtype(dtype, np.floating):
        return hlo.convert(result, value)
    bits = ir.IntegerType.get_unsigned(_bits(dtype))
    return hlo.bitcast_convert(result, hlo.convert(ir.RankedTensorType.get(shape, bits), value))


def is_packed(dtype: Any) -> bool:
    """Whether XLA may keep several elements of this dtype in a byte."""
    return _bits(dtype) < 8


def _bits(dtype: Any) -> int:
    if jnp.issubdtype(dtype, np.integer):
        return int(jnp.iinfo(dtype).bits)
    return int(jnp.finfo(dtype).bits) if jnp.issubdtype(dtype, np.floating) else 8


def no_handler(name: str) -> Any:
    """The lowering for platforms that have no handler."""

    def rule(ctx: Any, *operands: Any, **params: Any) -> Any:
        platforms = ", ".join(ctx.module_context.platforms)
        raise UnsupportedError(f"jax_uccl.{name} has no handler for {platforms}; it runs on cpu")

    return rule
