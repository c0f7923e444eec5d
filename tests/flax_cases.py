"""The mixture-of-experts layer, and the same in plain JAX or NumPy without exchange: every expert on every token."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jax_uccl.flax import deepseek_v3, mixtral, qwen3, route
from jax_uccl.flax import nnx as uccl_nnx

WIDTH, HIDDEN, SHARED = 6, 10, 4


def routers(experts):
    """The three presets at a size for tests, losses on."""
    top_k = min(3, experts)
    losses = dict(balance_coefficient=0.5, z_coefficient=0.25)
    groups = max(
        g for g in (1, 2, 3) if experts % g == 0 and (experts // g) * max(1, g - 1) >= top_k
    )
    return {
        "mixtral": mixtral(experts, min(2, experts), **losses),
        "qwen3": qwen3(experts, top_k, **losses),
        "deepseek_v3": deepseek_v3(
            experts,
            top_k,
            num_groups=groups,
            topk_groups=max(1, groups - 1),
            **(losses | {"sequence_coefficient": 0.5}),
        ),
    }


def nnx_layer(router, *, bias_seed=1, shared=SHARED, **options):
    layer = uccl_nnx.MoE(
        WIDTH, HIDDEN, router, shared_hidden_features=shared, rngs=nnx.Rngs(0), **options
    )
    if router.use_bias:  # strong enough to change choices
        rng = np.random.default_rng(bias_seed)
        layer.router.bias[...] = rng.normal(0, 0.3, router.num_experts).astype(np.float32)
    return layer


def pure(layer):
    """The layer's arrays as nested dicts in host memory."""
    return jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(layer)))


def feed_forward(x, gate, up, down):
    return (jax.nn.silu(x @ gate) * (x @ up)) @ down


def dense_layer(router, params, x, valid=None):
    """(y, loss, load): `params` as nested dicts of whole arrays, `x` [..., D]."""
    shape, x = x.shape, x.reshape(-1, x.shape[-1])
    valid = jnp.ones(len(x), bool) if valid is None else jnp.asarray(valid).reshape(-1)
    x = jnp.where(valid[:, None], x, 0)
    logits = x @ params["router"]["kernel"]
    routing = route(router, logits, bias=params["router"].get("bias"), valid=valid)
    experts = params["experts"]
    every = jax.vmap(feed_forward, (None, 0, 0, 0))(
        x, experts["gate"], experts["up"], experts["down"]
    )  # [E, T, D]
    y = jnp.zeros_like(x)
    for k in range(router.top_k):
        rows = every[jnp.maximum(routing.topk_idx[:, k], 0), jnp.arange(len(x))]
        y = y + routing.topk_weights[:, k, None] * rows
    if params.get("shared"):
        shared = params["shared"]
        y = y + feed_forward(x, shared["gate"], shared["up"], shared["down"])
    loss, load = dense_losses(router, logits, routing.topk_idx, valid)
    if router.sequence_coefficient:
        sequences = logits.reshape(*shape[:-1], -1), valid.reshape(shape[:-1])
        loss = loss + router.sequence_coefficient * dense_sequence_loss(router, *sequences)
    return y.reshape(shape), loss, load


def dense_losses(router, logits, topk_idx, valid):
    score = jax.nn.sigmoid(logits) if router.score == "sigmoid" else jnp.exp(logits)
    probability = score / score.sum(axis=-1, keepdims=True)
    mean = jnp.where(valid[:, None], probability, 0).sum(axis=0) / valid.sum()
    load = jnp.stack([(topk_idx == e).sum() for e in range(router.num_experts)])
    balance = router.num_experts * ((load / (valid.sum() * router.top_k)) * mean).sum()
    square = jnp.where(valid, jnp.log(jnp.exp(logits).sum(axis=-1)) ** 2, 0).sum() / valid.sum()
    return router.balance_coefficient * balance + router.z_coefficient * square, load


def dense_sequence_loss(router, logits, valid):
    """The mean over sequences [..., S, E] with tokens; scores are sigmoids."""
    score = jax.nn.sigmoid(logits)
    rank = (logits[..., None, :] > logits[..., :, None]).sum(axis=-1)  # how many are better
    chosen = (rank < router.top_k) & valid[..., None]
    probability = jnp.where(valid[..., None], score / score.sum(axis=-1, keepdims=True), 0)
    count = valid.sum(axis=-1)
    size = jnp.maximum(count, 1)[..., None]
    each = (chosen.sum(axis=-2) / (size * router.top_k)) * (probability.sum(axis=-2) / size)
    return router.num_experts * each.sum() / (count > 0).sum()


def tokens(shape, seed=0):
    return np.random.default_rng(seed).normal(size=(*shape, WIDTH)).astype(np.float32)
