"""The mixture-of-experts layer for `flax.linen`. What it computes is in `moe_core.py`."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.core import meta

from jax_uccl._src.flax import init as make
from jax_uccl._src.flax import moe_core
from jax_uccl._src.flax.balance import updated_bias
from jax_uccl._src.flax.experts import Activation, Kernels
from jax_uccl._src.flax.moe_core import MoEDescription, MoEReport
from jax_uccl._src.flax.router import Router

STATE = "router_state"


def _bare(value: Any) -> Any:
    """An array without its box, and without the sharding constraint that Flax would add.

    Inside jax.shard_map there is nothing to constrain, and elsewhere the layer's own one says where kernels belong.
    """
    if isinstance(value, nn.Partitioned):
        return value.unbox(apply_constraint=False)
    return meta.unbox(value)


class _Kernels(nn.Module):
    """Parameters of one part of the layer, by name."""

    shapes: dict[str, tuple[int, ...]]
    names: dict[str, tuple[Any, ...]]
    initializer: make.Initializer
    param_dtype: Any
    local: bool  # inside jax.shard_map, where names of axes would say what is not so

    @nn.compact
    def __call__(self) -> dict[str, Any]:
        def one(name: str) -> Any:
            def boxed(key: Any, shape: Any, dtype: Any) -> Any:
                value = self.initializer(key, shape, dtype)
                if self.local:
                    return _bare(value)
                if isinstance(value, meta.AxisMetadata):  # the initialiser brought its own
                    return value
                return nn.Partitioned(value, names=self.names[name])

            value = self.param(name, boxed, self.shapes[name], self.param_dtype, unbox=False)
            return _bare(value)

        return {name: one(name) for name in self.shapes}


class MoE(nn.Module):
    """Mixture of gated feed-forward experts, spread over the ranks of a mesh axis.

    The same layer as `jax_uccl.flax.nnx.MoE`, whose docstring says what it computes, where it may be called, what it
    costs and what the fields mean. Parameters have the same names and shapes, as nested dicts in "params", boxed in
    `nn.Partitioned`. The width of tokens comes from `x`.

    The balancing bias is a variable of the collection "router_state". As with BatchNorm, a call in which that
    collection is mutable updates it with the call's load, after use:

        (y, report), state = layer.apply(variables, x, mutable=["router_state"])

    While initialising nothing is exchanged, so `init` needs no mesh and no runtime; the output is zeros then. Inside
    `jax.shard_map` it gives each rank its slice of the same values, without boxes.

    Attributes:
      hidden_features: F, the inner width of one expert.
      router: routing; see `jax_uccl.flax.Router`.
      axis_name, shared_hidden_features, mesh, token_axes, capacity, on_overflow, mode, quantize, implementation,
      experts_implementation, activation, dtype, param_dtype, precision, kernel_init, router_init, shared_init,
      partition_names: as for `jax_uccl.flax.nnx.MoE`.

    Example:
      >>> import jax, jax.numpy as jnp, numpy as np
      >>> from jax.sharding import Mesh
      >>> from jax_uccl.flax import qwen3
      >>> from jax_uccl.flax.linen import MoE
      >>> mesh = Mesh(np.array(jax.devices()[:2]), ("expert",))
      >>> layer, x = MoE(32, qwen3(8, 2), mesh=mesh), jnp.ones((4, 10, 16))
      >>> variables = layer.init(jax.random.key(0), x)
      >>> y, report = jax.jit(layer.apply)(variables, x)
      >>> y.shape, int(report.load.sum())
      ((4, 10, 16), 80)
    """

    hidden_features: int
    router: Router
    axis_name: Any = "expert"
    shared_hidden_features: int = 0
    mesh: Any = None
    token_axes: Any = None
    capacity: int | None = None
    on_overflow: str = "drop"
    mode: str = "throughput"
    quantize: str | None = None
    implementation: str | None = None
    experts_implementation: str = "auto"
    activation: Activation = jax.nn.silu
    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Any = None
    kernel_init: make.Initializer = make.default_expert_init
    router_init: make.Initializer = make.default_kernel_init
    shared_init: make.Initializer = make.default_kernel_init
    partition_names: tuple[Any, Any, Any] | None = None

    @property
    def options(self) -> moe_core.Options:
        """The static part of the layer; UcclValueError when its fields contradict each other."""
        return moe_core.Options(
            **{name: getattr(self, name) for name in make.fields_of(moe_core.Options)}
        )

    @nn.compact
    def __call__(self, x: Any, *, valid: Any = None) -> tuple[jax.Array, MoEReport]:
        """Applies the layer; arguments, result and errors as for `jax_uccl.flax.nnx.MoE`."""
        x = jnp.asarray(x)
        make.check_sizes(hidden_features=self.hidden_features)
        options, router = self.options, self.router
        experts, d, f = router.num_experts, x.shape[-1], self.hidden_features
        of_experts, of_width, of_hidden = self.partition_names or (self.axis_name, None, None)
        up, down = (of_experts, of_width, of_hidden), (of_experts, of_hidden, of_width)

        local = moe_core.is_local(options)

        def kernels(name: str, init: make.Initializer, shapes: Any, names: Any) -> Any:
            return _Kernels(shapes, names, init, self.param_dtype, local, name=name)()

        def gated(name: str, init: make.Initializer, lead: tuple[int, ...], width: int) -> Kernels:
            shapes = dict(gate=(*lead, d, width), up=(*lead, d, width), down=(*lead, width, d))
            cut = slice(0, None) if lead else slice(1, None)
            return Kernels(
                **kernels(name, init, shapes, dict(gate=up[cut], up=up[cut], down=down[cut]))
            )

        bias = None
        if router.use_bias:
            bias = self.variable(STATE, "bias", jnp.zeros, (experts,), jnp.float32)
        params = moe_core.Params(
            router=kernels(
                "router", self.router_init, dict(kernel=(d, experts)), dict(kernel=(of_width, None))
            )["kernel"],
            bias=None if bias is None else bias.value,
            experts=gated("experts", make.of_this_rank(options, self.kernel_init), (experts,), f),
            shared=None,
        )
        if self.shared_hidden_features:
            make.check_sizes(shared_hidden_features=self.shared_hidden_features)
            shared = gated("shared", self.shared_init, (), self.shared_hidden_features)
            params = params._replace(shared=shared)
        if self.is_initializing():
            zero = jnp.zeros((), jnp.float32)
            report = MoEReport(**dict.fromkeys(make.fields_of(MoEReport), zero))
            report = dataclasses.replace(report, load=jnp.zeros(experts, jnp.float32))
            return jnp.zeros_like(x, self.dtype or x.dtype), report
        y, report = moe_core.apply(options, params, x, valid=valid, mesh=self.mesh)
        if bias is not None and self.is_mutable_collection(STATE):
            bias.value = updated_bias(router, bias.value, report.load)
        return y, report

    def describe(self, features: int) -> MoEDescription:
        """The resolved axis and sizes for tokens of width `features`, where this is called.

        Raises:
          UcclValueError: no such axis here, or it does not divide the experts.
        """
        return moe_core.describe(
            self.options, self.mesh, features, self.hidden_features, self.shared_hidden_features
        )
