"""The mixture-of-experts layer for `flax.nnx`. What it computes is in `moe_core.py`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.core import meta

from jax_uccl._src.flax import init as make
from jax_uccl._src.flax import moe_core
from jax_uccl._src.flax.balance import updated_bias
from jax_uccl._src.flax.experts import Activation, Kernels
from jax_uccl._src.flax.moe_core import MoEDescription, MoEReport
from jax_uccl._src.flax.router import Router


class RouterState(nnx.Variable):
    """What a router keeps beside its parameters: the balancing bias. Optimisers do not touch it."""


class _Router(nnx.Module):
    def __init__(self, kernel: nnx.Param, bias: RouterState | None):
        self.kernel = kernel
        self.bias = bias


class _Gated(nnx.Module):
    """Kernels of gated feed-forward layers, with or without a leading expert axis."""

    def __init__(self, gate: nnx.Param, up: nnx.Param, down: nnx.Param):
        self.gate, self.up, self.down = gate, up, down

    def kernels(self) -> Kernels:
        return Kernels(self.gate[...], self.up[...], self.down[...])


class MoE(nnx.Module):
    """Mixture of gated feed-forward experts, spread over the ranks of a mesh axis.

    Takes the place of a feed-forward layer. It may be called in two places:

    - Inside `jax.shard_map` with `axis_name` bound: `x` are this device's tokens, and the expert kernels are its
      slice (in_specs from `nnx.get_partition_spec`). Gradients of parameters that are the same on several devices
      are summed as `shard_map` does for any of its inputs.
    - Under plain `jax.jit`: `x` is the global array, its leading axis divided over `token_axes`; kernels are whole
      logical arrays, divided over `axis_name`. Needs `mesh`, or `jax.set_mesh`.

    Parameters (`nnx.Param`), E experts of D x F, S the shared width:
      router.kernel [D, E]; experts.gate, experts.up [E, D, F]; experts.down [E, F, D];
      shared.gate, shared.up [D, S]; shared.down [S, D]; and router.bias [E], a `RouterState`.
    Expert kernels carry `(axis_name, None, None)` as sharding metadata. Without a mesh at construction they are not
    placed; `nnx.get_partition_spec` and `nnx.get_named_sharding` tell where they belong.

    Args:
      features: D, the width of tokens.
      hidden_features: F, the inner width of one expert.
      router: E, K and everything else about routing; `mixtral()`, `qwen3()`, `deepseek_v3()` or a `Router`.
      axis_name: mesh axis (or tuple, major first) whose ranks share the experts; its size must divide E.
      shared_hidden_features: S, for an expert that every token visits; 0 for none. For n shared experts n * F.
      mesh: for use under plain jit; by default that of `jax.set_mesh`.
      token_axes: mesh axes that divide the tokens, `axis_name` among them (default: only it). Losses and load are
        summed over them.
      capacity: rows that a rank takes at most, one for each choice of a token. By default enough for the worst
        case, so that nothing is ever dropped.
      on_overflow: "drop" or "error", see `jax_uccl.moe.dispatch`.
      mode: "throughput" or "low_latency", see there.
      quantize: None or "fp8": how tokens travel to their experts, see there.
      implementation: of dispatch and combine: None for the default, or "reference" for plain `jax.lax`, which needs
        no runtime.
      experts_implementation: "ragged_dot", "tiles" or "auto": tiles on CPU; see docs/flax.md.
      activation: of the gate.
      dtype: of computation and result; by default that of `x`. The router computes in f32 always.
      param_dtype: of parameters.
      precision: of matrix products, as for `jax.lax.dot`.
      kernel_init: of the expert kernels; fans must not count the leading axis (batch_axis=0).
      router_init: of the router's kernel.
      shared_init: of the shared kernels.
      partition_names: names of the axes (E, D, F) in sharding metadata, of expert and other kernels: mesh axes, or
        logical ones with rules. Default (axis_name, None, None).
      rngs: `nnx.Rngs`; draws from its params stream.

    Raises:
      UcclValueError: sizes that are no sizes; when the axis is known, experts that it does not divide.

    Cost: 6 * D * (K * F + S) + 2 * D * E flops a token; communication as for one dispatch in expert-major layout, one
      combine, and one psum of 2 * E + 4 floats.

    Source: the routers' papers in `jax_uccl.flax`; experts as in Mixtral (arXiv 2401.04088), shared experts as in
      DeepSeekMoE (arXiv 2401.06066 section 3.2).

    Example:
      >>> import jax, jax.numpy as jnp, numpy as np
      >>> from flax import nnx
      >>> from jax.sharding import Mesh
      >>> from jax_uccl.flax import mixtral
      >>> from jax_uccl.flax.nnx import MoE
      >>> mesh = Mesh(np.array(jax.devices()[:2]), ("expert",))
      >>> layer = MoE(16, 32, mixtral(8), mesh=mesh, rngs=nnx.Rngs(0))
      >>> y, report = nnx.jit(lambda m, x: m(x))(layer, jnp.ones((4, 10, 16)))
      >>> y.shape, int(report.load.sum())
      ((4, 10, 16), 80)
    """

    def __init__(
        self,
        features: int,
        hidden_features: int,
        router: Router,
        *,
        axis_name: Any = "expert",
        shared_hidden_features: int = 0,
        mesh: Any = None,
        token_axes: Any = None,
        capacity: int | None = None,
        on_overflow: str = "drop",
        mode: str = "throughput",
        quantize: str | None = None,
        implementation: str | None = None,
        experts_implementation: str = "auto",
        activation: Activation = jax.nn.silu,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        precision: Any = None,
        kernel_init: make.Initializer = make.default_expert_init,
        router_init: make.Initializer = make.default_kernel_init,
        shared_init: make.Initializer = make.default_kernel_init,
        partition_names: tuple[Any, Any, Any] | None = None,
        rngs: nnx.Rngs,
    ):
        make.check_sizes(features=features, hidden_features=hidden_features)
        self.options = moe_core.Options(
            router=router,
            axis_name=axis_name,
            token_axes=token_axes,
            capacity=capacity,
            on_overflow=on_overflow,
            mode=mode,
            quantize=quantize,
            implementation=implementation,
            experts_implementation=experts_implementation,
            activation=activation,
            dtype=dtype,
            precision=precision,
        )
        self.mesh = mesh
        self.features, self.hidden_features = features, hidden_features
        self.shared_hidden_features = shared_hidden_features
        local = moe_core.is_local(self.options)
        found = None if local else moe_core.find_mesh(self.options, mesh)
        if local or found is not None:
            moe_core.check_experts(self.options, moe_core.axis_sizes(self.options, mesh)[0])

        of_experts, of_width, of_hidden = partition_names or (axis_name, None, None)
        # Flax places annotated variables when they are made, which needs a mesh.
        place = None if not local and (found is not None or meta.global_mesh_defined()) else False

        def param(init: make.Initializer, shape: tuple[int, ...], names: tuple[Any, ...]) -> Any:
            metadata: dict[str, Any] = {"out_sharding": names, "eager_sharding": place}
            if mesh is not None:
                metadata["mesh"] = mesh
            return nnx.Param(init(rngs.params(), shape, param_dtype), **metadata)

        experts, d, f, s = (
            router.num_experts,
            features,
            hidden_features,
            shared_hidden_features,
        )
        bias = RouterState(jnp.zeros(experts, jnp.float32)) if router.use_bias else None
        self.router = _Router(param(router_init, (d, experts), (of_width, None)), bias)
        init = make.of_this_rank(self.options, kernel_init)
        up_names, down_names = (of_experts, of_width, of_hidden), (of_experts, of_hidden, of_width)
        self.experts = _Gated(
            param(init, (experts, d, f), up_names),
            param(init, (experts, d, f), up_names),
            param(init, (experts, f, d), down_names),
        )
        shared = None
        if s:
            make.check_sizes(shared_hidden_features=s)
            shared = _Gated(
                param(shared_init, (d, s), up_names[1:]),
                param(shared_init, (d, s), up_names[1:]),
                param(shared_init, (s, d), down_names[1:]),
            )
        self.shared = shared  # set once: Flax fixes at the first assignment whether it holds arrays

    def __call__(self, x: Any, *, valid: Any = None) -> tuple[jax.Array, MoEReport]:
        """Applies the layer.

        Args:
          x: [..., D] with at least one leading axis; the first one is divided over `token_axes`.
          valid: bool [...], False for padding tokens: they visit no expert, get zeros, and count in no loss.

        Returns:
          [..., D] of `dtype`, sharded like `x`, and a `MoEReport`: add its `loss` to the objective, and give
          its `load` to `update_bias` after the step.

        Raises:
          UcclValueError: no such axis here, or shapes, kernels or experts do not fit its size.
        """
        params = moe_core.Params(
            router=self.router.kernel[...],
            bias=None if self.router.bias is None else self.router.bias[...],
            experts=self.experts.kernels(),
            shared=None if self.shared is None else self.shared.kernels(),
        )
        return moe_core.apply(self.options, params, x, valid=valid, mesh=self.mesh)

    def update_bias(self, load: Any) -> None:
        """Moves the balancing bias by the load of a step (`MoEReport.load`); outside of any gradient.

        Raises:
          UcclValueError: the router has no bias, or `load` is not [E].
        """
        bias = None if self.router.bias is None else self.router.bias[...]
        moved = updated_bias(self.options.router, bias, load)
        if self.router.bias is not None:
            self.router.bias[...] = moved

    def describe(self) -> MoEDescription:
        """The resolved axis and sizes, where this is called (inside `jax.shard_map`, or with a mesh).

        Raises:
          UcclValueError: no such axis here, or it does not divide the experts.
        """
        return moe_core.describe(
            self.options,
            self.mesh,
            self.features,
            self.hidden_features,
            self.shared_hidden_features,
        )
