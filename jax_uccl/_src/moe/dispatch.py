"""dispatch: tokens travel to the ranks of their experts."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_uccl._src import axes
from jax_uccl._src.errors import UcclValueError
from jax_uccl._src.moe import hosts as hosts_of
from jax_uccl._src.moe import native, plan, registry, relay, routing, wire
from jax_uccl._src.moe import quantize as fp8
from jax_uccl._src.moe.handle import Dispatched, Handle, PendingDispatch, Spec
from jax_uccl._src.moe.require import require

_SCALE_FORMATS = ("float32", "power_of_two")


class _Quantize(NamedTuple):
    """How tokens are rounded for the wire."""

    power_of_two: bool
    dequantize: bool


def dispatch(
    x: Any,
    topk_idx: Any = None,
    topk_weights: Any = None,
    *,
    num_experts: int | None = None,
    axis_name: Any = None,
    capacity: int | None = None,
    mode: str | None = None,
    layout: str | None = None,
    expert_alignment: int | None = None,
    quantize: str | None = None,
    scale_format: str = "float32",
    dequantize: bool = True,
    on_overflow: str = "drop",
    handle: Handle | None = None,
    logical_to_physical: Any = None,
    rank_mask: Any = None,
    stats: bool = False,
    wait_times: bool = False,
    reduction: str = "ordered",
    hosts: Any = None,
    implementation: str | None = None,
) -> Dispatched:
    """Sends each token to the ranks that hold its experts, once to each rank.

    Runs inside `jax.shard_map` (or `jax.vmap` over a named axis). Expert e lives on rank
    e // (num_experts / ranks), its local id is e % (num_experts / ranks). Every rank passes the same shapes; a
    rank with fewer tokens marks the rest with -1. docs/moe.md has the meaning of every row.

    Args:
      x: [T, ...] the tokens of this rank, of any dtype; [T, hidden] with `quantize`.
      topk_idx: integer [T, K] expert of each choice, in 0..num_experts-1 and distinct in a token, or -1 for no
        expert. None with `handle`.
      topk_weights: floating [T, K] or None: travels with the tokens.
      num_experts: experts over all ranks, a multiple of the number of ranks. With `logical_to_physical` the
        number of physical ones.
      axis_name: a mesh axis, or a tuple of mesh axes (major first); all of its ranks take part.
      capacity: rows of the result. Default: the worst case, which never drops: T * ranks in rank-major layout,
        T * ranks * min(K, local experts) + local experts * (expert_alignment - 1) in expert-major layout.
      mode: "throughput" (default): choices travel first, then as many rows as there are. "low_latency": fixed
        slots of T rows for each pair of ranks travel beside the choices: one step instead of two and T * ranks
        rows sent by each rank. The results are equal.
      layout: "rank_major" (default): one row for each token and rank, by source rank, then token.
        "expert_major": one row for each choice, by local expert, then source rank, then token.
      expert_alignment: in expert-major layout every expert's group begins at a multiple of it (default 1).
      quantize: None, or "fp8": tokens travel as float8_e4m3fn with an f32 scale for each 128 channels.
        Gradients pass as if they had not been rounded, and are not rounded themselves.
      scale_format: "float32", or "power_of_two" for scales rounded up to powers of two.
      dequantize: False gives the 8-bit tokens and their `scales` as they arrived; no gradient then.
      on_overflow: what happens to choices beyond the capacity. "drop": those last in the order of token index,
        then source rank, are dropped; `demand` tells. "error": every rank fails with an error that names the
        capacity needed.
      handle: of an earlier dispatch, to use its routing again; options are the handle's.
      logical_to_physical: integer [logical experts, replicas] or [logical experts], -1 for no replica, an
        array that may change from step to step: `topk_idx` then names logical experts. Replicas take turns
        by token index plus rank.
      rank_mask: bool [ranks], an array: ranks that are False neither send nor get rows. They still take part.
      stats: return `Stats`.
      wait_times: return how long each source was waited for, as `wait_ns`. Needs implementation="native", the
        default in throughput mode: collectives do not see when each source's rows arrive.
      reduction: how gradients of `x` are added, see `combine`.
      hosts: which ranks share a host, for a dispatch in two levels: a token travels once to each host, and is
        forwarded there to its ranks. A number divides the ranks into so many equal blocks, a list names the host
        of each rank, 1 means one level. Default: as the setting `processes_per_host` has it, in throughput mode
        with top_k > 1. Results are the same to the bit.
      implementation: "native" (default in throughput mode): each way is one operation that takes rows from where
        they are to where they belong. In low-latency mode it needs executor="fifo" on all processes. "ragged"
        (default in low-latency mode): this library's collectives between buffers. "reference": plain jax.lax, any
        backend. Values are the same.

    Returns:
      `Dispatched`. Gradients reach `x` and `topk_weights`.

    Raises:
      UcclValueError: shapes, dtypes or options do not fit. At run time, on every rank alike: a choice that is
        neither -1 nor an expert, or with on_overflow="error" a capacity that does not hold.
        implementation="reference" has no run-time errors: it takes such a choice as -1, and refuses
        on_overflow="error".
      UnsupportedError: an option that this implementation lacks.
      NameError: `axis_name` is not bound.

    Cost: two steps, three in two levels, or one in low-latency mode. Each rank gets (ranks - 1) * T * K * 8
      bytes of choices and one row for each token and remote rank that holds one of its experts. `jax.vmap` with
      one routing runs one operation, with a batch of routings one for each.

    Source: DeepEP's dispatch; UCCL-EP, arXiv 2512.19849.

    Example:
      >>> import jax, numpy as np
      >>> from jax.sharding import Mesh, PartitionSpec as P
      >>> from jax_uccl import moe
      >>> mesh = Mesh(np.array(jax.devices()[:2]), ("expert",))
      >>> def layer(x, idx, w):
      ...     d = moe.dispatch(x, idx, w, num_experts=4, axis_name="expert")
      ...     y = d.tokens * d.weights.sum(-1, keepdims=True)  # experts that change nothing
      ...     return moe.combine(y, d.handle)
      >>> f = jax.jit(jax.shard_map(layer, mesh=mesh, in_specs=P("expert"), out_specs=P("expert")))
      >>> x, idx = np.ones((4, 3), np.float32), np.array([[0, 3], [1, 2], [2, 3], [0, -1]])
      >>> f(x, idx, np.full((4, 2), 0.5, np.float32))[:, 0].tolist()
      [1.0, 1.0, 1.0, 0.5]
    """
    x, result, how = _prepare(**locals())
    handle, spec = result.handle, result.handle.spec
    if how is None and not wait_times:
        move = registry.find(spec.implementation).dispatch
        return _with(result, tokens=move(x, handle, reduction=reduction))
    rows = x if how is None else _to_wire(x, how, spec)
    rows, waited = _move(rows, handle, wait_times)
    result = _with(result, wait_ns=waited)
    if how is not None and not how.dequantize:
        tokens, scales = fp8.from_wire(rows, x.shape[1])
        return _with(result, tokens=tokens, scales=scales)
    if how is not None:
        rows = wire.decode(rows, x.shape[1], x.dtype, native=spec.custom_calls)
    # Added to nothing, as in routing.gather_choices.
    return _with(result, tokens=_other_derivative(x + 0, rows, handle, reduction))


def dispatch_start(
    x: Any, topk_idx: Any = None, topk_weights: Any = None, **options: Any
) -> PendingDispatch:
    """The first half of `dispatch`, with the same arguments: everything up to the arrival of rows.

    What does not need the tokens may stand between the halves, and XLA runs it while rows travel.
    `dispatch_done(dispatch_start(...))` has the values of `dispatch(...)`. Its gradient of `x` first adds the
    choices of one rank there and rounds, which in expert-major layout may differ in the last bits.

    Args:
      x: as for `dispatch`.
      topk_idx: as for `dispatch`.
      topk_weights: as for `dispatch`.
      **options: the keyword arguments of `dispatch`.

    Returns:
      `PendingDispatch`, a pytree.

    Raises:
      As for `dispatch`; UnsupportedError for `quantize` with `dequantize=True` (dequantize at the end).
    """
    routing.refuse(
        bool(options.get("wait_times")),
        "wait_times are those of dispatch, which waits; not of dispatch_start",
    )
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise TypeError(f"moe.dispatch_start got unknown options {unknown}")
    given = dict(_OPTIONS) | options
    x, result, how = _prepare(x=x, topk_idx=topk_idx, topk_weights=topk_weights, **given)
    routing.refuse(
        how is not None and how.dequantize and "dequantize" in options,
        "dispatch_start leaves tokens as they travel; with quantize, leave dequantize out and call "
        "moe.dequantize on the result",
    )
    wire_rows = x if how is None else _to_wire(x, how, result.handle.spec)
    rows = registry.find(result.handle.spec.implementation).dispatch_start(wire_rows, result.handle)
    return PendingDispatch(
        rows=rows, result=result, hidden=x.shape[1:], dtype=x.dtype, quantize=how
    )


def dispatch_done(pending: PendingDispatch) -> Dispatched:
    """The second half of `dispatch`: arranges what `dispatch_start` brought.

    Args:
      pending: of `dispatch_start`.

    Returns:
      `Dispatched`, as `dispatch` returns it.

    Raises:
      UcclValueError: `pending` is not what `dispatch_start` returned.
    """
    if not isinstance(pending, PendingDispatch):
        raise UcclValueError(
            f"moe.dispatch_done takes the result of dispatch_start, got {type(pending)}"
        )
    handle = pending.result.handle
    rows = registry.find(handle.spec.implementation).dispatch_done(pending.rows, handle, False)
    if pending.quantize is None:
        return _with(pending.result, tokens=rows)
    tokens, scales = fp8.from_wire(rows, pending.hidden[0])
    return _with(pending.result, tokens=tokens, scales=scales)


_OPTIONS = {k: v for k, v in (dispatch.__kwdefaults__ or {}).items()}


def _with(result: Dispatched, **fields: Any) -> Dispatched:
    values = {f: getattr(result, f) for f in Dispatched.__dataclass_fields__}
    return Dispatched(**(values | fields))


def _prepare(
    *,
    x: Any,
    topk_idx: Any,
    topk_weights: Any,
    num_experts: Any,
    axis_name: Any,
    capacity: Any,
    mode: Any,
    layout: Any,
    expert_alignment: Any,
    quantize: Any,
    scale_format: str,
    dequantize: bool,
    on_overflow: str,
    handle: Any,
    logical_to_physical: Any,
    rank_mask: Any,
    stats: bool,
    wait_times: bool,
    reduction: str,
    hosts: Any,
    implementation: Any,
) -> tuple[Any, Dispatched, _Quantize | None]:
    """Checks arguments and does all but move tokens."""
    x = jnp.asarray(x)
    if x.ndim == 0:
        raise UcclValueError("moe.dispatch: x must be [tokens, ...], got a scalar")
    how = _check_quantize(x, quantize, scale_format, dequantize)
    if on_overflow not in ("drop", "error"):
        raise UcclValueError(f"moe.dispatch: on_overflow={on_overflow!r} is not 'drop' or 'error'")
    check_reduction(reduction, "dispatch")
    given = dict(
        num_experts=num_experts,
        axis_name=None if axis_name is None else axes.as_names(axis_name),
        capacity=capacity,
        mode=mode,
        layout=layout,
        expert_alignment=expert_alignment,
        implementation=implementation,
    )
    if handle is not None:
        arrays = (topk_idx, logical_to_physical, rank_mask)
        if stats or any(a is not None for a in arrays):
            raise UcclValueError(
                "moe.dispatch: the handle is a routing; topk_idx, logical_to_physical, rank_mask and "
                "stats belong to the dispatch that made it"
            )
        if hosts is not None and isinstance(handle, Handle):
            given["hosts"] = hosts_of.given(hosts, handle.spec.ranks)
        handle = routing.check_handle(handle, x, given)
        _check_wait_times(wait_times, x, handle.spec)
        return x, _again(handle, topk_weights), how
    if topk_idx is None or axis_name is None:
        raise UcclValueError("moe.dispatch: needs topk_idx and axis_name, or a handle")
    axes.check_bound(axes.as_names(axis_name), "moe.dispatch")
    idx = routing.check_choices(topk_idx, "dispatch")
    if idx.shape[0] != x.shape[0]:
        raise UcclValueError(
            f"moe.dispatch: x has {x.shape[0]} tokens, topk_idx is for {idx.shape[0]}"
        )
    weights = _check_weights(topk_weights, idx.shape)
    spec = _make_spec(idx.shape, given, hosts)
    _check_wait_times(wait_times, x, spec)
    routing.refuse(
        on_overflow == "error" and not registry.find(spec.implementation).run_time_errors,
        f"implementation={spec.implementation!r} has no run-time errors; use on_overflow='drop' and "
        "look at .demand",
    )
    return (
        x,
        _route(idx, weights, spec, logical_to_physical, rank_mask, on_overflow, stats),
        how,
    )


def _check_wait_times(wait_times: bool, x: Any, spec: Spec) -> None:
    routing.refuse(
        wait_times and not native.serves(spec, x),
        "wait_times need the native implementation, which sees when each source's rows arrive: "
        "implementation='native' and at least one token; stats=True gives the load",
    )


def _make_spec(shape: tuple[int, int], given: dict[str, Any], hosts: Any) -> Spec:
    """The options with their defaults, checked."""
    names = given["axis_name"]
    alignment = given["expert_alignment"]
    mode = given["mode"] or "throughput"
    # Of a mode that is none make_spec tells.
    default = registry.DEFAULTS.get(mode, "ragged")
    implementation = given["implementation"] or default
    two_levels = mode == "throughput" and registry.find(implementation).two_levels
    if hosts is not None:
        chosen = hosts_of.given(hosts, axes.axis_size(names))
        routing.refuse(
            bool(chosen) and not two_levels,
            f"mode={mode!r} with implementation={implementation!r} sends rows straight to their ranks; leave "
            "hosts out",
        )
    else:
        chosen = hosts_of.found(names, shape[1]) if two_levels else ()
    return routing.make_spec(
        names=names,
        num_experts=routing.check_experts(given["num_experts"], names, "dispatch"),
        tokens=shape[0],
        top_k=shape[1],
        layout=given["layout"] or "rank_major",
        capacity=given["capacity"],
        expert_alignment=routing.integer(
            1 if alignment is None else alignment, "expert_alignment", "dispatch"
        ),
        mode=mode,
        implementation=implementation,
        hosts=chosen,
    )


def _again(handle: Handle, topk_weights: Any) -> Dispatched:
    """The result for a routing that is known."""
    spec = handle.spec
    weights = _check_weights(topk_weights, (spec.tokens, spec.top_k))
    gather = registry.find(spec.implementation).gather
    return _result(handle, None if weights is None else gather(weights, spec.axis_name))


def _route(
    idx: Any,
    weights: Any,
    spec: Spec,
    logical_to_physical: Any,
    rank_mask: Any,
    on_overflow: str,
    stats: bool,
) -> Dispatched:
    """Exchanges the choices and works out the handle."""
    names, chosen = spec.axis_name, registry.find(spec.implementation)
    me = lax.axis_index(names)
    idx = routing.to_physical(idx, logical_to_physical, me)
    idx = routing.apply_rank_mask(idx, rank_mask, me, spec)
    idx_all, weights_all = routing.gather_choices(idx, weights, names, spec.implementation)
    if chosen.run_time_errors:
        idx_all = require(
            idx_all,
            routing.outside(idx_all, spec.num_experts),
            limit=0,
            op="moe.dispatch",
            text="rank {i} has {value} choices that are neither -1 nor an expert below "
            f"{_experts_named(spec, logical_to_physical)}; use -1 for no expert",
        )
    idx, idx_all = routing.only_experts(idx, spec), routing.only_experts(idx_all, spec)
    demand = plan.demand(idx_all, spec)
    if on_overflow == "error" and not spec.never_drops:
        idx_all = require(
            idx_all,
            demand,
            limit=spec.capacity,
            op="moe.dispatch",
            text=f"rank {{i}} needs capacity={{value}} for its rows, got capacity={spec.capacity}; "
            f"{spec.worst_case} always holds"
            + (" if no token names an expert twice" if spec.top_k > spec.local_experts else ""),
        )
    served = plan.drop(idx_all, spec)
    made = plan.make_handle(idx, served, me, demand[me], spec)
    if spec.two_level:
        made = relay.add_relay(made, served, me)
    result = _result(made, weights_all)
    if stats:
        result = _with(result, stats=routing.make_stats(idx_all, served, me, spec))
    return result


def _result(handle: Handle, weights_all: Any) -> Dispatched:
    """All of the result but tokens."""
    spec = handle.spec
    counts, group_sizes = plan.expert_counts(handle.recv_experts, spec)
    experts, weights = handle.recv_experts, None
    if weights_all is not None:
        flat = weights_all.reshape(spec.ranks * spec.tokens, spec.top_k)
        weights = plan.take_rows(flat, handle.recv_sources)
        weights = jnp.where(experts >= 0, weights, jnp.zeros((), weights.dtype))
    if spec.expert_major:
        experts = plan.take_rows(experts.reshape(-1), handle.row_choices, -1)
        if weights is not None:
            weights = plan.take_rows(weights.reshape(-1), handle.row_choices)
        num_rows = counts.sum(dtype=np.int32)
    else:
        num_rows = handle.recv_counts.sum(dtype=np.int32)
    return Dispatched(
        tokens=None,
        experts=experts,
        weights=weights,
        counts=counts,
        group_sizes=group_sizes,
        num_rows=num_rows,
        demand=handle.demand,
        scales=None,
        stats=None,
        wait_ns=None,
        handle=handle,
    )


def _experts_named(spec: Any, logical_to_physical: Any) -> int:
    """How many experts `topk_idx` may name."""
    return spec.num_experts if logical_to_physical is None else jnp.shape(logical_to_physical)[0]


def check_reduction(reduction: str, api: str) -> None:
    """Raises for an unknown order of additions."""
    if reduction not in ("ordered", "per_rank"):
        raise UcclValueError(f"moe.{api}: reduction={reduction!r} is not 'ordered' or 'per_rank'")


def _check_weights(weights: Any, shape: tuple[int, ...]) -> Any:
    if weights is None:
        return None
    weights = jnp.asarray(weights)
    if weights.shape != shape or not jnp.issubdtype(weights.dtype, np.floating):
        raise UcclValueError(
            f"moe.dispatch: topk_weights must be floats {list(shape)}, got {weights.dtype}"
            f"{list(weights.shape)}"
        )
    return weights


def _check_quantize(x: Any, quantize: Any, scale_format: str, dequantize: bool) -> Any:
    if quantize is None:
        return None
    if quantize != "fp8":
        raise UcclValueError(f"moe.dispatch: quantize={quantize!r} is not None or 'fp8'")
    if scale_format not in _SCALE_FORMATS:
        raise UcclValueError(
            f"moe.dispatch: scale_format={scale_format!r} is not one of {_SCALE_FORMATS}"
        )
    if x.ndim != 2 or not jnp.issubdtype(x.dtype, np.floating):
        raise UcclValueError(
            f"moe.dispatch: quantize='fp8' takes floats [tokens, hidden], got {x.dtype}{list(x.shape)}"
        )
    return _Quantize(scale_format == "power_of_two", dequantize)


def _to_wire(x: Any, how: _Quantize, spec: Spec) -> Any:
    """Tokens as they travel; natively where the implementation has custom calls."""
    return wire.encode(x, power_of_two=how.power_of_two, native=spec.custom_calls)


def _move(rows: Any, handle: Handle, wait_times: bool) -> tuple[Any, Any]:
    """The result's rows, without a derivative, and how long each source was waited for (None if not wanted)."""
    if not wait_times:
        return registry.find(handle.spec.implementation).dispatch(rows, handle), None
    return native.dispatch(lax.stop_gradient(rows), handle, False)


@partial(jax.custom_jvp, nondiff_argnums=(3,))
def _other_derivative(x: Any, values: Any, handle: Handle, reduction: str) -> Any:
    """`values`, with the derivative of a dispatch of `x`."""
    del x, handle, reduction
    return values


@_other_derivative.defjvp
def _other_jvp(reduction: str, primals: Any, tangents: Any) -> Any:
    _, values, handle = primals
    move = registry.find(handle.spec.implementation).dispatch
    return values, move(tangents[0], handle, reduction=reduction)
