"""Keeping experts equally busy: load, auxiliary losses, and the balancing bias.

All figures are of the global batch: with `axis_names` they are summed over these axes before anything nonlinear
happens to them, so that the losses do not depend on how the batch is divided.

Sources: balance loss, Switch Transformer (arXiv 2101.03961 equations 4-6) for K choices; sequence loss, DeepSeek-V3
(arXiv 2412.19437 equations 17-20); z-loss, ST-MoE (arXiv 2202.08906 equation 5); bias, DeepSeek-V3 section 2.1.2.
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
      sequence_loss: f32 scalar, the same sum for each sequence, averaged over sequences; the choices that f counts
        are the K best scores, without bias and groups. 0 where the router's coefficient is 0.
      z_loss: f32 scalar, mean of logsumexp(logits)^2.
      loss: f32 scalar, the three times their coefficients in the router.
      loss_share: f32 scalar, this device's part of `loss`; the parts of all devices add up to it. For objectives
        that are differentiated on each device: its gradient needs no communication, that of `loss` does.
      load: f32 [E], choices that fell on each expert. No gradient. Exact up to 2^24 choices an expert.
      tokens: f32 scalar, tokens that are no padding.
    """

    balance_loss: jax.Array
    sequence_loss: jax.Array
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
      logits: [..., E], as for `route`; [..., S, E] with sequences of S tokens where the router has a
        `sequence_coefficient`.
      routing: what `route` gave.
      valid: bool [...], False for padding tokens, which count nowhere.
      axis_names: axes of the enclosing `jax.shard_map` over which tokens are divided. They must be different tokens
        on each device: replicated ones would count several times (with no effect on the losses).
      psum: the sum over these axes, `jax_uccl.psum` or `jax.lax.psum`.

    Returns:
      Balance. With `check_vma=True` its values are invariant over `axis_names`, except `loss_share`. From outside of
      the shard_map differentiate `loss`; inside, where each device differentiates its share of the objective, add
      `loss_share` to it.

    Raises:
      UcclValueError: a shape does not fit.

    Cost: one psum of 2 * E + 4 floats; none without `axis_names`.
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
    of_sequences, sequences = _of_sequences(router, logits, probability, valid)
    scalars = [square.sum(), of_sequences, tokens, sequences]
    local = jnp.concatenate(
        [
            lax.stop_gradient(chosen.astype(jnp.float32)),
            probability.reshape(-1, experts).sum(axis=0),
            jnp.stack(scalars),
        ]
    )
    sums = psum(local, tuple(axis_names)) if axis_names else local
    load, counts = lax.stop_gradient(sums[:experts]), lax.stop_gradient(sums[-2:])
    # A batch of padding has losses of zero.
    divisor, parts = jnp.maximum(counts[0], 1.0), jnp.maximum(counts[1], 1.0)

    def losses(of: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        # Linear in what is differentiable, so that those of the parts are parts of those of the whole.
        mean = of[experts : 2 * experts] / divisor
        balance_loss = experts * jnp.vdot(load / (divisor * router.top_k), mean)
        z_loss, sequence_loss = of[2 * experts] / divisor, of[2 * experts + 1] / parts
        loss = router.balance_coefficient * balance_loss + router.z_coefficient * z_loss
        loss = loss + router.sequence_coefficient * sequence_loss
        return balance_loss, sequence_loss, z_loss, loss

    return Balance(*losses(sums), losses(local)[-1], load, counts[0])


def _of_sequences(
    router: Router, logits: jax.Array, probability: jax.Array, valid: Any
) -> tuple[jax.Array, jax.Array]:
    """The sum of the sequence losses, and the number of sequences that hold a token.

    `probability` [..., S, E] is zero for padding.
    """
    zero = jnp.zeros((), jnp.float32)
    if not router.sequence_coefficient:
        return zero, zero
    if logits.ndim < 2:
        raise UcclValueError(
            f"balance: logits have shape {list(logits.shape)}, but sequence_coefficient="
            f"{router.sequence_coefficient} needs [..., sequence, E]; set it to 0 for tokens without sequences"
        )
    keep = jnp.ones(logits.shape[:-1], bool) if valid is None else jnp.asarray(valid)
    # Scores grow with logits, so the best are the same.
    best = lax.top_k(lax.stop_gradient(logits), router.top_k)[1]
    best = jnp.where(keep[..., None], best, -1)
    chosen = (best[..., None] == jnp.arange(router.num_experts)).sum(axis=(-3, -2))
    count = keep.sum(axis=-1, dtype=jnp.float32)
    divisor = jnp.maximum(count, 1.0)[..., None]
    often = lax.stop_gradient(chosen.astype(jnp.float32)) / (divisor * router.top_k)
    each = router.num_experts * (often * probability.sum(axis=-2) / divisor).sum(axis=-1)
    return each.sum(), (count > 0).sum(dtype=jnp.float32)


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
