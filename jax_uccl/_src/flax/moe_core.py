"""The mixture-of-experts layer as one function of its parameters, shared by the nnx and the linen layer.

    route -> dispatch (expert-major) -> gated experts -> combine with the router's weights, plus shared experts

Runs in one of two places. Inside `jax.shard_map`, where the expert axis is bound, arrays are a device's own:
its tokens, its experts. Elsewhere it wraps itself in a `jax.shard_map` over the token axes of a mesh. What the
parameters are called, made from and sharded like is the business of the layers.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from jax_uccl._src import axes
from jax_uccl._src import jax_compat as compat
from jax_uccl._src.collectives.all_reduce import psum as _psum
from jax_uccl._src.collectives.vary import vary
from jax_uccl._src.errors import UcclValueError
from jax_uccl._src.flax.balance import balance
from jax_uccl._src.flax.experts import DEFAULT_TILE, Activation, Kernels, gated_experts, resolve
from jax_uccl._src.flax.router import Router, route
from jax_uccl._src.moe import registry
from jax_uccl._src.moe.combine import combine
from jax_uccl._src.moe.dispatch import dispatch

Names = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Options:
    """What the layers pass on, all static; the layers document the fields."""

    router: Router
    axis_name: Any
    token_axes: Any = None
    capacity: int | None = None
    on_overflow: str = "drop"
    mode: str = "throughput"
    quantize: str | None = None
    implementation: str | None = None
    experts_implementation: str = "auto"
    activation: Activation = jax.nn.silu
    dtype: Any = None
    precision: Any = None

    def __post_init__(self) -> None:
        resolve(self.experts_implementation)
        missing = [name for name in self.expert_axes if name not in self.batch_axes]
        if missing:
            raise UcclValueError(
                f"MoE: token_axes={self.batch_axes} must contain the expert axis {missing}: each rank of it "
                "routes tokens of its own"
            )

    @property
    def expert_axes(self) -> Names:
        """Mesh axes that divide the experts."""
        return axes.as_names(self.axis_name)

    @property
    def batch_axes(self) -> Names:
        """Mesh axes that divide the tokens."""
        return self.expert_axes if self.token_axes is None else axes.as_names(self.token_axes)


class Params(NamedTuple):
    """Arrays of one layer, whole outside of `jax.shard_map` and a device's own inside.

    Attributes:
      router: [D, E], the same on all devices.
      bias: f32 [E] or None, the same on all devices.
      experts: kernels [E, ...], or [E / ranks, ...] inside.
      shared: kernels without the leading axis, the same on all devices; or None.
    """

    router: Any
    bias: Any
    experts: Kernels
    shared: Kernels | None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MoEReport:
    """What a layer says about a batch, beside its output: figures of the global batch, equal on all devices but for
    `loss_share`.

    Attributes:
      loss: f32 scalar to add to the objective: the losses below times the router's coefficients.
      loss_share: f32 scalar to add instead inside `jax.shard_map`, where each device differentiates its share of the
        objective: the parts of all devices add up to `loss`, and the gradient needs no communication. Elsewhere `loss`.
      balance_loss: f32 scalar, 1 when balanced; see `jax_uccl.flax.Balance`.
      sequence_loss: f32 scalar, likewise for each sequence; 0 without `sequence_coefficient`.
      z_loss: f32 scalar.
      load: f32 [E], choices that fell on each expert, before anything is dropped. For `updated_bias`.
      tokens: f32 scalar, tokens that are no padding.
      dropped: f32 scalar, choices for which no capacity was left; always 0 without a `capacity`.
    """

    loss: Any
    loss_share: Any
    balance_loss: Any
    sequence_loss: Any
    z_loss: Any
    load: Any
    tokens: Any
    dropped: Any


@dataclasses.dataclass(frozen=True)
class MoEDescription:
    """How a layer is laid out where `describe` was called. `str()` gives a few lines for people."""

    axis_name: Names
    ranks: int
    num_experts: int
    experts_per_rank: int
    top_k: int
    token_axes: Names
    token_shards: int
    features: int
    hidden_features: int
    shared_hidden_features: int
    capacity: int | None
    mode: str
    implementation: str
    experts_implementation: str
    num_params: int
    num_params_per_rank: int
    active_params_per_token: int

    def __str__(self) -> str:
        capacity = "never drops" if self.capacity is None else f"capacity {self.capacity} rows"
        return "\n".join(
            [
                f"MoE: {self.num_experts} experts, top-{self.top_k}, over axis {self.axis_name} of {self.ranks}: "
                f"{self.experts_per_rank} each",
                f"  width {self.features}, hidden {self.hidden_features}, shared {self.shared_hidden_features}",
                f"  tokens over {self.token_axes}: {self.token_shards} parts, {capacity}",
                f"  parameters {self.num_params}, of a rank {self.num_params_per_rank}, "
                f"of a token {self.active_params_per_token}",
                f"  {self.mode}, {self.implementation}, experts by {self.experts_implementation}",
            ]
        )


# --- where it runs ----------------------------------------------------------------------------------


def is_local(options: Options) -> bool:
    """Whether the expert axis is bound here, so that arrays are a device's own. All or none may be."""
    bound = [compat.axis_exists(name) for name in options.batch_axes]
    if any(bound) and not all(bound):
        state = {
            n: "bound" if b else "not bound" for n, b in zip(options.batch_axes, bound, strict=True)
        }
        raise UcclValueError(
            f"MoE: of the axes {options.batch_axes} only some are bound by jax.shard_map here: {state}. "
            "Make all of them manual, or none"
        )
    return bool(bound) and all(bound)


def find_mesh(options: Options, mesh: Any) -> Any:
    """The mesh for use outside of `jax.shard_map`; None where there is none."""
    context = jax.sharding.get_abstract_mesh()
    if not context.empty and context.manual_axes:
        raise UcclValueError(
            f"MoE: inside a jax.shard_map over {tuple(context.manual_axes)} that does not bind the layer's axes "
            f"{options.batch_axes}; add them to its axis_names, or name the axes it has"
        )
    if mesh is None:
        mesh = None if context.empty else context
    if mesh is None:
        return None
    missing = [name for name in options.batch_axes if name not in mesh.axis_names]
    if missing:
        raise UcclValueError(
            f"MoE: {missing} are not axes of the mesh {tuple(mesh.axis_names)}; set axis_name and token_axes to "
            "axes that it has"
        )
    return mesh


def axis_sizes(options: Options, mesh: Any) -> tuple[int, int]:
    """(ranks of the expert axis, parts into which tokens are divided), from the bound axes or the mesh."""
    if is_local(options):
        return axes.axis_size(options.expert_axes), axes.axis_size(options.batch_axes)
    found = find_mesh(options, mesh)
    if found is None:
        raise UcclValueError(
            f"MoE: no axis {options.axis_name!r} here. Call the layer inside jax.shard_map over a mesh with that "
            "axis, or give it a mesh (mesh=..., or `with jax.set_mesh(mesh)`)"
        )
    size = lambda names: math.prod(int(found.shape[name]) for name in names)
    return size(options.expert_axes), size(options.batch_axes)


def check_experts(options: Options, ranks: int) -> int:
    """Experts of one rank; UcclValueError unless they divide evenly."""
    experts = options.router.num_experts
    if experts % ranks:
        raise UcclValueError(
            f"MoE: num_experts={experts} is not a multiple of the {ranks} ranks of axis {options.axis_name!r}; "
            f"use {math.ceil(experts / ranks) * ranks} experts, or an axis whose size divides {experts}"
        )
    return experts // ranks


def describe(
    options: Options, mesh: Any, features: int, hidden: int, shared_hidden: int
) -> MoEDescription:
    """The layout of a layer with these sizes, here."""
    ranks, shards = axis_sizes(options, mesh)
    local = check_experts(options, ranks)
    router = options.router
    expert = 3 * features * hidden
    common = features * router.num_experts + 3 * features * shared_hidden
    return MoEDescription(
        axis_name=options.expert_axes,
        ranks=ranks,
        num_experts=router.num_experts,
        experts_per_rank=local,
        top_k=router.top_k,
        token_axes=options.batch_axes,
        token_shards=shards,
        features=features,
        hidden_features=hidden,
        shared_hidden_features=shared_hidden,
        capacity=options.capacity,
        mode=options.mode,
        implementation=options.implementation or registry.DEFAULTS[options.mode],
        experts_implementation=resolve(options.experts_implementation),
        num_params=common + router.num_experts * expert,
        num_params_per_rank=common + local * expert,
        active_params_per_token=common + router.top_k * expert,
    )


# --- the layer --------------------------------------------------------------------------------------


def apply(
    options: Options, params: Params, x: Any, *, valid: Any = None, mesh: Any = None
) -> tuple[jax.Array, MoEReport]:
    """The layer on `x` [..., D]; see the nnx layer's docstring for everything."""
    x = jnp.asarray(x)
    features = params.router.shape[0]
    if x.ndim < 2 or x.shape[-1] != features:
        raise UcclValueError(
            f"MoE: x has shape {list(x.shape)}, but must be [..., {features}] with at least one axis of tokens"
        )
    if options.router.sequence_coefficient and x.ndim < 3:
        raise UcclValueError(
            f"MoE: x has shape {list(x.shape)}, but sequence_coefficient={options.router.sequence_coefficient} of "
            "the router needs [..., sequence, width]; set it to 0 for tokens without sequences"
        )
    if valid is not None and jnp.shape(valid) != x.shape[:-1]:
        raise UcclValueError(
            f"MoE: valid has shape {list(jnp.shape(valid))}, but must be {list(x.shape[:-1])}: one flag per token"
        )
    ranks, shards = axis_sizes(options, mesh)
    local_experts = check_experts(options, ranks)
    if is_local(options):
        _check_kernels(options, params, local_experts, ranks)
        return _apply_local(options, params, x, valid)
    _check_kernels(options, params, options.router.num_experts, 1)
    if x.shape[0] % shards:
        raise UcclValueError(
            f"MoE: the leading axis of x, {x.shape[0]}, is not a multiple of the {shards} devices of "
            f"{options.batch_axes}; pad it, and mark padding tokens with valid=False"
        )
    return _apply_global(options, params, x, valid, find_mesh(options, mesh))


def _check_kernels(options: Options, params: Params, experts: int, ranks: int) -> None:
    """Raises unless the kernels hold that many experts."""
    for name, kernel in zip(Kernels._fields, params.experts, strict=True):
        if kernel.shape[0] != experts:
            where = (
                f"{options.router.num_experts} experts over {ranks} ranks; inside jax.shard_map pass the kernels "
                f"with in_specs P({options.axis_name!r})"
                if is_local(options)
                else "all experts, as the mesh divides them by itself"
            )
            raise UcclValueError(
                f"MoE: kernel experts.{name} has shape {list(kernel.shape)}, but must hold {experts} experts here: "
                f"{where}"
            )


def _apply_global(
    options: Options, params: Params, x: Any, valid: Any, mesh: Any
) -> tuple[jax.Array, MoEReport]:
    tokens, experts = P(options.batch_axes), P(options.expert_axes)
    specs = Params(
        router=P(),
        bias=None if params.bias is None else P(),
        experts=Kernels(experts, experts, experts),
        shared=None if params.shared is None else Kernels(P(), P(), P()),
    )
    in_specs = (specs, tokens, None if valid is None else tokens)
    arguments = (params, x, valid)
    explicit = {
        n
        for n, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
        if kind == jax.sharding.AxisType.Explicit
    }
    if explicit & set(options.batch_axes):
        # shard_map does not reshard what is typed otherwise.
        arguments = jax.tree.map(
            lambda a, spec: jax.sharding.reshard(a, jax.sharding.NamedSharding(mesh, spec)),
            arguments,
            in_specs,
        )

    def local(params: Params, x: Any, valid: Any) -> tuple[jax.Array, MoEReport]:
        y, report = _apply_local(options, params, x, valid)
        return y, dataclasses.replace(report, loss_share=report.loss)  # outside there are no shares

    mapped = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=in_specs,
        out_specs=(tokens, P()),
        axis_names=set(options.batch_axes),
    )
    return mapped(*arguments)


def _apply_local(
    options: Options, params: Params, x: Any, valid: Any
) -> tuple[jax.Array, MoEReport]:
    router, names = options.router, options.batch_axes
    in_jax = options.implementation == "reference"
    psum = lax.psum if in_jax else _psum
    dtype = x.dtype if options.dtype is None else jnp.dtype(options.dtype)

    # Gradients of what is the same on several devices have to be summed. These casts do that in the backward pass,
    # in the dtype of the parameters, and over this library. A caller who has cast already sums himself.
    varying = {*names, *compat.varying_axes(jax.typeof(x))}
    cast = lambda a: _cast(a, varying) if in_jax else vary(a, tuple(varying))
    params, x = jax.tree.map(cast, params), cast(x)

    shape = x.shape
    x = x.reshape(-1, shape[-1])
    if valid is not None:
        valid = cast(jnp.asarray(valid)).reshape(-1)
        x = jnp.where(valid[:, None], x, 0)  # a NaN there would reach gradients of the router
    logits = jnp.dot(
        x.astype(jnp.float32), params.router.astype(jnp.float32), precision=options.precision
    )
    routing = route(router, logits, bias=params.bias, valid=valid)
    aux = balance(
        router,
        logits.reshape(*shape[:-1], router.num_experts),
        routing,
        valid=None if valid is None else valid.reshape(shape[:-1]),
        axis_names=names,
        psum=psum,
    )

    tile = _tile(x.shape[0] * axes.axis_size(options.expert_axes), router)
    sent = dispatch(
        x.astype(dtype),
        routing.topk_idx,
        routing.topk_weights,
        num_experts=router.num_experts,
        axis_name=options.axis_name,
        capacity=options.capacity,
        mode=options.mode,
        layout="expert_major",
        quantize=options.quantize,
        on_overflow=options.on_overflow,
        implementation=options.implementation,
        stats=options.capacity is not None,
    )
    rows = gated_experts(
        sent.tokens,
        params.experts,
        sent.group_sizes,
        sent.weights,
        dtype=dtype,
        activation=options.activation,
        precision=options.precision,
        implementation=options.experts_implementation,
        tile=tile,
    )
    y = combine(rows, sent.handle)
    if params.shared is not None:
        y = y + _shared(options, params.shared, x.astype(dtype))
    dropped = jnp.zeros((), jnp.float32)
    if options.capacity is not None:
        dropped = psum(sent.stats.dropped.astype(jnp.float32), names)
    report = MoEReport(dropped=dropped, **aux._asdict())
    return y.astype(dtype).reshape(shape), report


def _cast(x: Any, names: set[Any]) -> Any:
    """`x` varying over the manual axes in `names`, by JAX itself."""
    if not compat.check_vma():
        return x
    missing = tuple(
        n
        for n in compat.manual_axes()
        if n in names and n not in compat.varying_axes(jax.typeof(x))
    )
    return lax.pcast(x, missing, to="varying") if missing else x


def _tile(tokens: int, router: Router) -> int:
    """Rows of a tile, for experts that get about the mean load: few padded rows, few tiles."""
    mean = math.ceil(tokens * router.top_k / router.num_experts)
    return min(DEFAULT_TILE, max(8, mean))


def _shared(options: Options, kernels: Kernels, x: Any) -> jax.Array:
    """The expert that every token visits: one dense gated feed-forward layer."""
    dot = lambda a, b: jnp.dot(
        a, b.astype(x.dtype), precision=options.precision, preferred_element_type=jnp.float32
    )
    hidden = options.activation(dot(x, kernels.gate)) * dot(x, kernels.up)
    return dot(hidden.astype(x.dtype), kernels.down).astype(x.dtype)
