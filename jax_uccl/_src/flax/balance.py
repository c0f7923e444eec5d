"""Keeping experts equally busy: load, auxiliary losses, and the balancing bias.

All figures are of the global batch: with `axis_names` they are summed over these axes before anything nonlinear
happens to them, so that the losses do not depend on how the batch is divided.

Sources: balance loss, Switch Transformer (arXiv 2101.03961 equations 4-6) for K choices as in DeepSeek-V3
(arXiv 2412.19437 equations 17-20, there over one sequence); z-loss, ST-MoE (arXiv 2202.08906 equation 5); bias,
DeepSeek-V3 section 2.1.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jax_uccl._src.collectives.all_reduce import psum as _psum
from jax_uccl._src.errors import UcclValueError
from jax_uccl._src.flax.router import Router, Routing, checked_valid


class Balance(NamedTuple):
    """Result of `balance`; all but `loss_share` are equal on all devices of `axis_names`.

    Attributes:
      balance_loss: f32 scalar, E * sum_e f_e * P_e: f_e the fraction of all choices that fell on e, P_e the mean
        probability of e. 1 when balanced, E when all choices and probability are on one expert.
      z_loss: f32 scalar, mean of logsumexp(logits)^2.
      loss: f32 scalar, the two times their coefficients in the router.
      loss_share: f32 scalar, this device's part of `loss`; the parts of all devices add up to it. For objectives
        that are differentiated on each device: its gradient needs no communication, that of `loss` does.
      load: f32 [E], choices that fell on each expert. No gradient. Exact up to 2^24 choices an expert.
      tokens: f32 scalar, tokens that are no padding.
    """

    balance_loss: jax.Array
    z_loss: jax.Array
    loss: jax.Array
    loss_share: jax.Array
    load: jax.Array
    tokens: jax.Array


def balance(
    router: Router,
    logits: Any,
    routing: Routing,
    *,
    valid: Any = None,
    axis_names: Sequence[Any] = (),
    psum: Callable[..., Any] = _psum,
) -> Balance:
    """Load and auxiliary losses of a batch of tokens.

    Args:
      router: as for `route`.
      logits: [..., E], as for `route`.
      routing: what `route` gave.
      valid: bool [...], False for padding tokens, which count nowhere.
      axis_names: axes of the enclosing `jax.shard_map` over which tokens are divided. They must be different tokens
        on each device: replicated ones would count several times (with no effect on the losses).
      psum: the sum over these axes, `jax_uccl.psum` or `jax.lax.psum`.

    Returns:
      Balance. With `check_vma=True` its values are invariant over `axis_names`, except `loss_share`. From outside of
      the shard_map differentiate `loss`; inside, where each device differentiates its share of the objective, add
      `loss_share` to it.

    Cost: one psum of 2 * E + 2 floats; none without `axis_names`.
    """
    logits = jnp.asarray(logits).astype(jnp.float32)
    experts = router.num_experts
    if router.score == "sigmoid":
        probability = jax.nn.sigmoid(logits)
        probability = probability / (probability.sum(axis=-1, keepdims=True) + 1e-20)
    else:
        probability = jax.nn.softmax(logits, axis=-1)
    log_z = jax.nn.logsumexp(logits, axis=-1)
    if valid is None:
        tokens = jnp.full((), log_z.size, jnp.float32)
        square = log_z**2
    else:
        keep = checked_valid(valid, logits.shape[:-1])
        tokens = keep.sum(dtype=jnp.float32)
        square = jnp.where(keep, log_z**2, 0.0)
        probability = jnp.where(keep[..., None], probability, 0.0)

    # -1 is no expert, and compares equal to none. A scatter-add would be shorter and much slower on CPU.
    chosen = (routing.topk_idx.reshape(-1, 1) == jnp.arange(experts)).sum(axis=0)
    local = jnp.concatenate(
        [
            lax.stop_gradient(chosen.astype(jnp.float32)),
            probability.reshape(-1, experts).sum(axis=0),
            square.sum()[None],
            tokens[None],
        ]
    )
    sums = psum(local, tuple(axis_names)) if axis_names else local
    load, count = (lax.stop_gradient(v) for v in (sums[:experts], sums[2 * experts + 1]))
    divisor = jnp.maximum(count, 1.0)  # a batch of padding has losses of zero

    def losses(of: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        # Linear in what is differentiable, so that those of the parts are parts of those of the whole.
        mean = of[experts : 2 * experts] / divisor
        balance_loss = experts * jnp.vdot(load / (divisor * router.top_k), mean)
        z_loss = of[2 * experts] / divisor
        loss = router.balance_coefficient * balance_loss + router.z_coefficient * z_loss
        return balance_loss, z_loss, loss

    balance_loss, z_loss, loss = losses(sums)
    return Balance(balance_loss, z_loss, loss, losses(local)[2], load, count)


def updated_bias(router: Router, bias: Any, load: Any) -> jax.Array:
    """The balancing bias after a step: up by `bias_update_rate` for a slack expert, down for a busy one.

    Args:
      router: with `use_bias`.
      bias: f32 [E].
      load: [E], choices of the step's whole batch, all devices together (`Balance.load`).

    Returns:
      f32 [E]. An expert with exactly the mean load keeps its bias. No gradient.

    Raises:
      UcclValueError: the router has no bias, or a shape is wrong.

    Cost: none.
    """
    if not router.use_bias:
        raise UcclValueError("updated_bias: this router has no bias; set use_bias=True")
    for name, value in (("bias", bias), ("load", load)):
        if jnp.shape(value) != (router.num_experts,):
            raise UcclValueError(
                f"updated_bias: {name} has shape {list(jnp.shape(value))}, but must be "
                f"[{router.num_experts}]"
            )
    bias = lax.stop_gradient(jnp.asarray(bias, jnp.float32))
    load = lax.stop_gradient(jnp.asarray(load).astype(jnp.float32))
    # total - E * load is exact for integers below 2^24, the mean is not.
    error = load.sum() - router.num_experts * load
    return bias + router.bias_update_rate * jnp.sign(error)
