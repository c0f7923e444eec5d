"""From a router's answer to a handle: checks, replicas, masked ranks, and the exchange of choices."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_uccl._src import axes
from jax_uccl._src.errors import UcclValueError, UnsupportedError
from jax_uccl._src.moe import plan, registry
from jax_uccl._src.moe.handle import LAYOUTS, MODES, Handle, Spec, Stats


def integer(value: Any, name: str, api: str) -> int:
    """`value` as a Python integer; a float is refused, since rounding it would be a guess."""
    try:
        return operator.index(value)
    except TypeError:
        raise UcclValueError(
            f"moe.{api}: {name}={value!r} is not an integer that is known while tracing"
        ) from None


def check_choices(topk_idx: Any, api: str) -> Any:
    """`topk_idx` as int32 [T, K]."""
    idx = jnp.asarray(topk_idx)
    if not jnp.issubdtype(idx.dtype, np.integer):
        raise UcclValueError(f"moe.{api}: topk_idx must be integers, got {idx.dtype}")
    if idx.ndim != 2 or idx.shape[1] == 0:
        raise UcclValueError(
            f"moe.{api}: topk_idx must be [tokens, top_k] with top_k > 0, got {idx.shape}"
        )
    wide = jnp.iinfo(idx.dtype)
    if wide.max > np.iinfo(np.int32).max:  # what is no expert must not wrap around to one
        idx = jnp.clip(idx, max(wide.min, -2), np.iinfo(np.int32).max)
    return idx.astype(np.int32)


def check_experts(num_experts: Any, names: Any, api: str) -> int:
    """`num_experts`, divisible by the number of ranks."""
    if num_experts is None:
        raise UcclValueError(f"moe.{api}: num_experts is needed")
    count, ranks = integer(num_experts, "num_experts", api), axes.axis_size(names)
    if count <= 0 or count % ranks:
        more = max(-(-count // ranks), 1) * ranks
        raise UcclValueError(
            f"moe.{api}: num_experts={count} is not a multiple of the {ranks} ranks of {names}; use "
            f"num_experts={more}: experts that nobody chooses cost nothing"
        )
    return count


def make_spec(
    *,
    names: tuple[Any, ...],
    num_experts: int,
    tokens: int,
    top_k: int,
    layout: str,
    capacity: int | None,
    expert_alignment: int,
    mode: str,
    implementation: str,
    hosts: tuple[int, ...],
) -> Spec:
    """The static part of a routing, or an error that says what does not fit."""
    for name, value, allowed in (("layout", layout, LAYOUTS), ("mode", mode, MODES)):
        if value not in allowed:
            raise UcclValueError(f"moe.dispatch: {name}={value!r} is not one of {allowed}")
    if expert_alignment < 1:
        raise UcclValueError(f"moe.dispatch: expert_alignment={expert_alignment} is less than 1")
    spec = Spec(
        axis_name=names,
        ranks=axes.axis_size(names),
        num_experts=num_experts,
        tokens=tokens,
        top_k=top_k,
        layout=layout,
        capacity=0,
        expert_alignment=expert_alignment,
        mode=mode,
        implementation=implementation,
        hosts=hosts,
    )
    wanted = spec.worst_case if capacity is None else integer(capacity, "capacity", "dispatch")
    if wanted < spec.reserved or wanted < 0:
        raise UcclValueError(
            f"moe.dispatch: capacity={wanted} is less than the {spec.reserved} rows that the padding of "
            f"{spec.local_experts} experts to multiples of {expert_alignment} may take; "
            f"{spec.worst_case} never drops"
        )
    fields = {f: getattr(spec, f) for f in Spec.__dataclass_fields__}
    return Spec(**{**fields, "capacity": wanted})


def to_physical(idx: Any, logical_to_physical: Any, me: Any) -> Any:
    """Choices of logical experts as choices of their replicas, which take turns."""
    if logical_to_physical is None:
        return idx
    table = jnp.asarray(logical_to_physical)
    table = table[:, None] if table.ndim == 1 else table
    if not jnp.issubdtype(table.dtype, np.integer) or table.ndim != 2 or 0 in table.shape:
        raise UcclValueError(
            "moe.dispatch: logical_to_physical must be integers [logical experts] or [logical experts, "
            f"replicas], got {table.dtype}{list(table.shape)}"
        )
    table = table.astype(np.int32)
    replicas = (table >= 0).sum(1, dtype=np.int32)
    # The entries that are used may stand anywhere in a row.
    order = jnp.argsort(table < 0, axis=1, stable=True)
    packed = jnp.take_along_axis(table, order, axis=1)
    logical = jnp.clip(idx, 0, table.shape[0] - 1)
    turn = jnp.arange(idx.shape[0], dtype=np.int32)[:, None] + me.astype(np.int32)
    found = packed[logical, turn % jnp.maximum(replicas[logical], 1)]
    # A choice outside the map stays outside, so that it is reported.
    outside = (idx < -1) | (idx >= table.shape[0])
    return jnp.where(idx == -1, -1, jnp.where(outside, np.iinfo(np.int32).max, found))


def apply_rank_mask(idx: Any, rank_mask: Any, me: Any, spec: Spec) -> Any:
    """[T, K] choices without those of and for masked ranks; what is no expert stays, to be reported."""
    if rank_mask is None:
        return idx
    mask = jnp.asarray(rank_mask)
    if mask.shape != (spec.ranks,):
        raise UcclValueError(
            f"moe.dispatch: rank_mask must have one entry for each of the {spec.ranks} ranks, got "
            f"shape {mask.shape}"
        )
    mask = mask.astype(bool)
    target = plan.owners(idx, spec)
    known = (target >= 0) & (target < spec.ranks)
    masked = known & ~(mask[jnp.clip(target, 0, spec.ranks - 1)] & mask[me])
    return jnp.where(masked, -1, idx)


def only_experts(idx: Any, spec: Spec) -> Any:
    """-1 for what is no expert."""
    return jnp.where((idx < 0) | (idx >= spec.num_experts), -1, idx)


def gather_choices(idx: Any, weights: Any, names: Any, implementation: str) -> Any:
    """([n, T, K] choices, [n, T, K] weights) of all ranks; f32 weights in one exchange with the choices."""
    gather = registry.find(implementation).gather
    if weights is None:
        return gather(idx, names), None
    if weights.dtype != np.float32:
        return gather(idx, names), gather(weights, names)
    bits = lax.bitcast_convert_type(lax.stop_gradient(weights), np.int32)
    both = gather(jnp.concatenate([idx, bits], axis=1), names)
    k = idx.shape[1]
    values = lax.bitcast_convert_type(both[..., k:], np.float32)
    # Added to nothing: custom_jvp does not take a NumPy constant under vmap. Only derivatives read it.
    return both[..., :k], _gathered(weights + 0, values, names, implementation)


@partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def _gathered(weights: Any, values: Any, names: Any, implementation: str) -> Any:
    """`values`, which are the gathered `weights`, and have their derivative."""
    del weights, names, implementation
    return values


@_gathered.defjvp
def _gathered_jvp(names: Any, implementation: str, primals: Any, tangents: Any) -> Any:
    return primals[1], registry.find(implementation).gather(tangents[0], names)


def make_stats(idx_all: Any, served: Any, me: Any, spec: Spec) -> Stats:
    """Load before dropping; `served` are the choices that are left."""
    experts = jnp.arange(spec.num_experts, dtype=np.int32)
    load = (idx_all.reshape(-1, 1) == experts).sum(0, dtype=np.int32)
    target = plan.owners(idx_all, spec)
    return Stats(
        expert_load=load,
        source_rows=(target == me).any(-1).sum(1, dtype=np.int32),
        dropped=((idx_all[me] >= 0) & (served[me] < 0)).sum(dtype=np.int32),
    )


def outside(idx_all: Any, num_experts: int) -> Any:
    """int32 [n]: how many choices of each rank name no expert and are not -1."""
    return ((idx_all < -1) | (idx_all >= num_experts)).sum((1, 2), dtype=np.int32)


def check_handle(handle: Any, x: Any, given: dict[str, Any]) -> Handle:
    """A handle that fits `x`; options beside it must repeat what it was made with."""
    if not isinstance(handle, Handle):
        raise UcclValueError(f"moe.dispatch: handle must be a moe.Handle, got {type(handle)}")
    spec = handle.spec
    if x.shape[0] != spec.tokens:
        raise UcclValueError(
            f"moe.dispatch: x has {x.shape[0]} tokens, but the handle was made for {spec.tokens}; "
            "dispatch with topk_idx makes a new handle"
        )
    for name, value in given.items():
        if value is not None and value != getattr(spec, name):
            raise UcclValueError(
                f"moe.dispatch: {name}={value!r} differs from {getattr(spec, name)!r}, with which the "
                "handle was made; leave it out"
            )
    return handle


def refuse(condition: bool, text: str) -> None:
    """Raises UnsupportedError where the condition holds."""
    if condition:
        raise UnsupportedError(f"moe.dispatch: {text}")
