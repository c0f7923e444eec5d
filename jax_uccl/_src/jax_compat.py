"""The only module that imports private or version-dependent names of JAX.

Works on jax 0.10.2 and 0.12.0; everything here was checked against both. A new JAX release that moves a
name is mended in this file and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src import config as _config
from jax._src import core as _core
from jax._src import custom_partitioning_sharding_rule as _partitioning_rules
from jax._src import distributed as _distributed
from jax._src import effects as _effects
from jax._src import mesh as _mesh
from jax._src import xla_bridge as _xla_bridge
from jax._src.interpreters import mlir as _mlir
from jax._src.interpreters import pxla as _pxla
from jax._src.lax import parallel as _parallel
from jax._src.lib import xla_client as xla_client
from jax._src.lib.mlir import ir as ir
from jax._src.lib.mlir.dialects import func as func
from jax._src.lib.mlir.dialects import hlo as hlo
from jax.extend.core import Primitive as Primitive
from jax.interpreters import ad as ad
from jax.interpreters import batching as batching
from jax.interpreters import mlir as mlir

Effect = _effects.Effect
partitioning_rules = _partitioning_rules
make_ir_context = _mlir.make_ir_context
module_to_bytecode = _mlir.module_to_bytecode
BACKEND_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


# --- axes and types ---------------------------------------------------------------------------------


def axis_exists(name: Any) -> bool:
    """Whether `name` is an axis of an enclosing shard_map or vmap."""
    return bool(_core.get_axis_env().axis_exists(name))


def forbidden_axes() -> frozenset[Any]:
    """Axes on which `jax.no_collectives` (0.12 on) forbids collectives."""
    state = getattr(_config, "no_collectives", None)
    return frozenset() if state is None else frozenset(state.value)


def forbidden_error() -> type[Exception]:
    """What lax raises for a collective over a forbidden axis."""
    return getattr(_core, "ForbiddenCollectiveError", RuntimeError)


def named_axis_effects(names: Sequence[Any]) -> set[Any]:
    """The effect that ties an equation to its axis names; it can be dropped when the result is unused."""
    return {_core.NamedAxisEffect(name) for name in names}


def check_vma() -> bool:
    """Whether the enclosing shard_map checks varying-manual-axes types."""
    return bool(_config._check_vma.value)


def inserts_casts() -> bool:
    """Whether collectives may cast an invariant operand to a varying one by themselves."""
    return bool(_config.auto_pcast.value)


def manual_axes() -> tuple[Any, ...]:
    """Mesh axes (never vmap axes) that are manual here."""
    return tuple(jax.sharding.get_abstract_mesh().manual_axes)


def varying_axes(aval: Any) -> frozenset[Any]:
    """Axes over which a value of this type may differ."""
    return frozenset(aval.mat.varying)


def with_varying_axes(aval: Any, varying: frozenset[Any]) -> Any:
    """The type `aval` with another set of varying axes."""
    # A constant knows no mesh yet; a varying type needs one.
    sharding = aval.sharding.update(mesh=jax.sharding.get_abstract_mesh())
    return aval.update(sharding=sharding, manual_axis_type=aval.mat.update(varying=varying))


def vector_like(aval: Any, size: int, dtype: Any) -> Any:
    """A vector that varies as `aval` does, and that no explicit axis divides."""
    sharding = aval.sharding.update(spec=jax.sharding.PartitionSpec(None))
    return aval.update(shape=(size,), dtype=np.dtype(dtype), weak_type=False, sharding=sharding)


def pending_op(aval: Any, names: Sequence[Any]) -> str | None:
    """ "sum", "max" or "min" for a value that still waits for that reduction over one of `names`."""
    if not aval.mat.unreduced & set(names):
        return None
    kind = getattr(aval.mat, "unreduced_kind", None)  # 0.12 on; before, all are sums
    return "sum" if kind is None else str(kind.name)


def reduce_pending(aval: Any, names: Sequence[Any], *, varying: bool) -> Any:
    """The type of `aval` once reduced over `names`: varying over them, or equal on all members."""
    mat, left = aval.mat, aval.mat.unreduced - set(names)
    if not left and hasattr(mat, "unreduced_kind"):
        mat = mat.update(unreduced=left, unreduced_kind=None)
    now = mat.varying | set(names) if varying else mat.varying
    return aval.update(manual_axis_type=mat.update(unreduced=left, varying=now))


def with_reduced_axes(aval: Any, names: Sequence[Any]) -> Any:
    """The type of a value that is equal over `names` and whose cotangents wait for their sum there."""
    mat = aval.mat
    return aval.update(
        manual_axis_type=mat.update(
            varying=mat.varying - set(names), reduced=mat.reduced | set(names)
        )
    )


def cast_to_reduced(x: Any, names: Sequence[Any]) -> Any:
    """The cast from equal over `names` to that type."""
    return jax.lax.pcast(x, tuple(names), to="reduced")


def order_of_ppermute() -> str:
    """How lax.ppermute counts members over axes that the mesh has in another order.

    "mesh": in that of the mesh (before 0.12). Since: "refused", or "given" where the check is switched off.
    """
    check = getattr(_config, "raise_on_ppermute_sort_diff", None)
    if check is None:
        return "mesh"
    return "refused" if check.value else "given"


def check_unreduced(aval: Any, names: Sequence[Any], api: str) -> None:
    """Raises as lax does for operands that are unreduced or reduced over `names`."""
    _core.check_unreduced_args([aval], tuple(names), api)


# --- rules ------------------------------------------------------------------------------------------


def define_batching(prim: Primitive, rule: Callable[..., Any]) -> None:
    """Registers `rule(axis_data, values, dims, **params)`, which also sees vmaps over the named axis."""
    batching.fancy_primitive_batchers[prim] = rule


def register_ordered_effect(effect_type: type) -> None:
    """Makes an effect ordered (XLA tokens) on many devices and allowed under every transformation."""
    for kind in (
        _effects.ordered_effects,
        _effects.shardable_ordered_effects,
        _effects.lowerable_effects,
        _effects.control_flow_allowed_effects,
        _effects.custom_derivatives_allowed_effects,
        _effects.remat_allowed_effects,
    ):
        kind.add_type(effect_type)


def new_context_flag(name: str, doc: str) -> Any:
    """A thread-local boolean that takes part in the cache keys of tracing and of jit.

    Returns an object with `.value`, callable as a context manager with the new value. A plain
    thread-local would not do: a function traced without the flag would be reused under it.
    """
    return _config.State(
        name, False, doc, parser=bool, include_in_jit_key=True, include_in_trace_context=True
    )


# --- lowering ---------------------------------------------------------------------------------------


def is_mesh_context(axis_context: Any) -> bool:
    """True inside shard_map, where partition ids have a meaning."""
    return hasattr(axis_context, "manual_axes")


def has_automatic_axes(axis_context: Any) -> bool:
    """True inside a shard_map that leaves some mesh axes to XLA's partitioner."""
    if not is_mesh_context(axis_context):
        return False
    return frozenset(axis_context.manual_axes) != frozenset(axis_context.mesh.axis_names)


def axis_groups(axis_context: Any, names: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    """Partition ids of each communicator over `names`, members in the order of `names`."""
    return _pxla.axis_groups(axis_context, tuple(names))


def uses_shardy() -> bool:
    """Whether programs are divided by Shardy rather than by the older GSPMD."""
    return bool(_config.use_shardy_partitioner.value)


def lowered_for_export(ctx: Any) -> bool:
    """True under jax.export: the result must not name devices of this process."""
    return bool(ctx.module_context.lowering_parameters.for_export)


def module_name(ctx: Any) -> str:
    """Symbol name of the module that is being lowered, `jit_f` for a jitted f."""
    return str(ir.StringAttr(ctx.module_context.module.operation.attributes["sym_name"]).value)


def module_name_of_event(fun_name: str) -> str:
    """`jit(f)`, as monitoring events carry it, in the form that `module_name` sees."""
    return str(_mlir.sanitize_name(fun_name)).rstrip("_")


def new_ordinal(ctx: Any) -> int:
    """A number counted within the module that is being lowered, the same wherever it is lowered."""
    return int(ctx.module_context.new_channel())


def is_constant_shape(shape: Sequence[Any]) -> bool:
    """False when jax.export left dimensions symbolic."""
    return bool(_core.is_constant_shape(tuple(shape)))


def row_major(rank: int) -> tuple[int, ...]:
    """The layout XLA calls descending: minor to major, last axis minor."""
    return tuple(range(rank - 1, -1, -1))


def custom_call(
    target: str,
    *,
    result_types: Sequence[Any],
    operands: Sequence[Any],
    attributes: dict[str, Any],
    operand_layouts: Sequence[Sequence[int]],
    result_layouts: Sequence[Sequence[int]],
    has_side_effect: bool,
    aliases: dict[int, int],
    sharding_rule: Any = None,
) -> Sequence[Any]:
    """Emits a typed-FFI custom call and returns its results.

    `aliases` says for a result which operand it may share its buffer with, `sharding_rule` which shardings
    pass through the call.
    """
    op = _mlir.custom_call(
        target,
        result_types=list(result_types),
        operands=list(operands),
        backend_config={
            key: value if isinstance(value, ir.Attribute) else mlir.ir_attribute(value)
            for key, value in attributes.items()
        },
        api_version=4,
        operand_layouts=list(operand_layouts),
        result_layouts=list(result_layouts),
        has_side_effect=has_side_effect,
        operand_output_aliases={operand: result for result, operand in aliases.items()},
    )
    if sharding_rule is not None:
        op.attributes["sdy.sharding_rule"] = sharding_rule
    return op.results


def zero_attribute(kind: Any) -> Any:
    """The splat of zeros of a tensor type of integers or floats."""
    element = kind.element_type
    integral = isinstance(element, ir.IntegerType)
    zero = ir.IntegerAttr.get(element, 0) if integral else ir.FloatAttr.get(element, 0.0)
    return ir.DenseElementsAttr.get_splat(kind, zero)


def set_token(ctx: Any, effect: Any, token: Any) -> None:
    """Makes `token` the one that the next operation with `effect` waits for."""
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(_mlir.TokenSet({effect: token})))


def replace_lowerings(
    names: Iterable[str],
    make: Callable[[str, Callable[..., Any] | None], Callable[..., Any]],
    platform: str,
) -> Callable[[], None]:
    """Puts other lowering rules in front of those of lax's collectives.

    Args:
      names: of the primitives in lax. One that this JAX lacks is left out.
      make: makes the new rule, given the name and the rule that JAX would use on `platform` (None without
        one).
      platform: where the new rules count.

    Returns:
      A function that puts the table back as it was.
    """
    table = _mlir._platform_specific_lowerings[platform]
    before: list[tuple[Any, Any, bool]] = []
    for name in names:
        primitive = getattr(_parallel, name, None)
        if primitive is None:
            continue
        own = table.get(primitive)
        cacheable = primitive not in _mlir._uncacheable_primitives
        before.append((primitive, own, cacheable))
        entry = own if own is not None else _mlir._lowerings.get(primitive)
        mlir.register_lowering(
            primitive,
            make(name, None if entry is None else entry.rule),
            platform=platform,
            cacheable=False,
        )

    def restore() -> None:
        for primitive, own, cacheable in before:
            if own is None:
                del table[primitive]
            else:
                table[primitive] = own
            if cacheable:
                _mlir._uncacheable_primitives.discard(primitive)

    return restore


# --- backends ---------------------------------------------------------------------------------------


def backend_devices(platform: str) -> tuple[Any, list[Any]] | None:
    """(client, its devices) of a platform whose client exists; None otherwise. Creates nothing."""
    if not _xla_bridge.backends_are_initialized():
        return None
    client = _xla_bridge.backends().get(platform)
    return None if client is None else (client, list(client.devices()))


def mesh_processes() -> tuple[tuple[Any, ...], Any] | None:
    """(axis names, the process of each device of the mesh) that is traced under; None where devices are unknown.

    Known are those that jax.set_mesh gave, and for a mesh of all devices their default order.
    """
    shape = jax.sharding.get_abstract_mesh().shape
    concrete = _mesh.get_concrete_mesh()
    if concrete is not None and not concrete.empty and dict(concrete.shape) == dict(shape):
        devices = concrete.devices
    elif _xla_bridge.backends_are_initialized() and jax.device_count() == np.prod(
        [*shape.values()]
    ):
        devices = np.array(jax.devices()).reshape([*shape.values()])
    else:
        return None
    return tuple(shape), np.vectorize(lambda d: d.process_index, otypes=[np.int64])(devices)


# --- processes --------------------------------------------------------------------------------------


class DistributedJob(NamedTuple):
    """What jax.distributed.initialize() left behind."""

    client: Any  # of the coordination service; holds the key-value store
    process: int
    processes: int
    coordinator: str


def distributed_job() -> DistributedJob | None:
    """The job of several processes that this one belongs to; None without one. Creates nothing."""
    state = _distributed.global_state
    if state.client is None or state.num_processes < 2:
        return None
    return DistributedJob(
        state.client, state.process_id, state.num_processes, str(state.coordinator_address or "")
    )


def dispatch_marker(platform: str) -> Any | None:
    """An array that becomes ready after all programs that this thread has dispatched so far.

    Only if the platform's client exists already; None otherwise. JAX runs the programs of one thread in
    order, those on several devices one at a time, but has no way to wait for them without their results.
    """
    found = backend_devices(platform)
    if found is None:
        return None
    client, devices = found
    local = [d for d in devices if d.process_index == client.process_index()]
    mesh = jax.sharding.Mesh(np.array(local), ("d",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    zeros = jax.device_put(np.zeros(len(local), np.float32), sharding)
    return jax.jit(lambda x: x + 1, out_shardings=sharding)(zeros)
