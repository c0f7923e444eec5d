"""Which experts a token goes to, and with what weights: the published routers as one pure function.

Everything is per token, so nothing here communicates. Losses and the balancing bias are in `balance.py`.

Sources: Mixtral (arXiv 2401.04088 section 2.1), Qwen3 (arXiv 2505.09388; softmax over all experts, then top-k,
then normalised), DeepSeek-V3 (arXiv 2412.19437 sections 2.1.2 and 4.2: sigmoid scores, groups, a bias that takes
part in the choice only). Symbols of the papers: E experts, K chosen, `s` scores, `b` bias, `g` weights.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax import lax

from jax_uccl._src.errors import UcclValueError

Score = Literal["softmax", "sigmoid"]
SoftmaxOver = Literal["all", "topk"]
GroupScore = Literal["top2", "max"]
NO_EXPERT = -1
_TINY = 1e-20  # DeepSeek-V3's own; it only matters when every chosen sigmoid is 0


@dataclasses.dataclass(frozen=True)
class Router:
    """How tokens choose experts, and how that is kept balanced. Hashable; all fields are static.

    Attributes:
      num_experts: E, in all ranks together.
      top_k: K, experts of one token, 1..E.
      score: what becomes of the logits: "softmax" over experts, or "sigmoid" of each.
      softmax_over: "all" experts before the choice, or "topk", the chosen logits only (softmax scores).
      normalize: divide the weights of a token by their sum. A softmax over "topk" is normalised anyway.
      scale: factor on the weights, after normalising.
      num_groups: experts are divided into this many equal groups in order; 1 for none.
      topk_groups: groups of which a token may choose experts.
      group_score: a group counts as the sum of its two best experts ("top2"), or its best one ("max").
      use_bias: a bias per expert is added to the scores for the choice (groups and experts), never for the weights.
      bias_update_rate: step of that bias, see `balance.updated_bias`.
      balance_coefficient: of the auxiliary balance loss over the batch; 0 for none.
      sequence_coefficient: of the balance loss over each sequence (DeepSeek-V3); 0 for none.
      z_coefficient: of the router z-loss; 0 for none.
    """

    num_experts: int
    top_k: int
    score: Score = "softmax"
    softmax_over: SoftmaxOver = "all"
    normalize: bool = True
    scale: float = 1.0
    num_groups: int = 1
    topk_groups: int = 1
    group_score: GroupScore = "top2"
    use_bias: bool = False
    bias_update_rate: float = 1e-3
    balance_coefficient: float = 0.0
    sequence_coefficient: float = 0.0
    z_coefficient: float = 0.0

    def __post_init__(self) -> None:
        for field, allowed in (
            ("score", get_args(Score)),
            ("softmax_over", get_args(SoftmaxOver)),
            ("group_score", get_args(GroupScore)),
        ):
            if getattr(self, field) not in allowed:
                raise UcclValueError(
                    f"Router: {field}={getattr(self, field)!r} is not one of {allowed}"
                )
        if self.num_experts < 1:
            raise UcclValueError(f"Router: num_experts={self.num_experts} must be at least 1")
        if not 1 <= self.top_k <= self.num_experts:
            raise UcclValueError(
                f"Router: top_k={self.top_k} must be between 1 and num_experts={self.num_experts}"
            )
        if self.num_groups < 1 or self.num_experts % self.num_groups:
            raise UcclValueError(
                f"Router: num_groups={self.num_groups} must divide num_experts={self.num_experts}"
            )
        if not 1 <= self.topk_groups <= self.num_groups:
            raise UcclValueError(
                f"Router: topk_groups={self.topk_groups} must be between 1 and "
                f"num_groups={self.num_groups}"
            )
        reachable = self.topk_groups * self.group_size
        if self.top_k > reachable:
            raise UcclValueError(
                f"Router: top_k={self.top_k} exceeds the {reachable} experts of "
                f"topk_groups={self.topk_groups} groups of {self.group_size}; raise topk_groups or lower top_k"
            )
        if self.softmax_over == "topk" and self.score != "softmax":
            raise UcclValueError(
                f'Router: softmax_over="topk" needs score="softmax", got score={self.score!r}'
            )
        for field in (
            "bias_update_rate",
            "balance_coefficient",
            "sequence_coefficient",
            "z_coefficient",
        ):
            if not getattr(self, field) >= 0:
                raise UcclValueError(f"Router: {field}={getattr(self, field)} must not be negative")

    @property
    def group_size(self) -> int:
        """Experts of one group."""
        return self.num_experts // self.num_groups


def mixtral(num_experts: int = 8, top_k: int = 2, **changes: Any) -> Router:
    """Mixtral: softmax over the logits of the chosen experts; balance loss 0.02 (its published configuration).

    The coefficient counts a balanced router as 1; where the loss counts it as `top_k`, divide by `top_k`.
    """
    fields: dict[str, Any] = {"softmax_over": "topk", "balance_coefficient": 0.02}
    return Router(num_experts, top_k, **(fields | changes))


def qwen3(num_experts: int = 128, top_k: int = 8, **changes: Any) -> Router:
    """Qwen3 MoE: softmax over all experts, top-k, weights normalised; balance loss over the global batch."""
    fields: dict[str, Any] = {"balance_coefficient": 1e-3}
    return Router(num_experts, top_k, **(fields | changes))


def deepseek_v3(num_experts: int = 256, top_k: int = 8, **changes: Any) -> Router:
    """DeepSeek-V3: sigmoid scores, best 4 of 8 groups by their two best experts, bias-corrected choice, scale 2.5.

    Balanced by the bias (rate 0.001) and, against imbalance within one sequence, by the paper's complementary loss
    over each sequence (factor 1e-4). Tokens without sequences need `sequence_coefficient=0`.
    """
    fields: dict[str, Any] = {
        "score": "sigmoid",
        "scale": 2.5,
        "num_groups": 8,
        "topk_groups": 4,
        "group_score": "top2",
        "use_bias": True,
        "sequence_coefficient": 1e-4,
    }
    return Router(num_experts, top_k, **(fields | changes))


class Routing(NamedTuple):
    """Result of `route`.

    Attributes:
      topk_idx: int32 [..., K], best expert first; -1 everywhere for a padding token.
      topk_weights: f32 [..., K]; 0 for a padding token.
    """

    topk_idx: jax.Array
    topk_weights: jax.Array


def route(router: Router, logits: Any, *, bias: Any = None, valid: Any = None) -> Routing:
    """Chooses experts and their weights for each token.

    Experts come in descending order of what they were chosen by (score plus bias); equal ones in ascending order
    of their index, so the choice is the same on every device and in every run.

    Args:
      router: what to do.
      logits: [..., E] of any float type, computed with in f32. Sharded in any way over tokens.
      bias: f32 [E], iff `router.use_bias`. No gradient flows into it.
      valid: bool [...], False for padding tokens; None when all are real.

    Returns:
      Routing. `topk_weights` is differentiable with respect to `logits`; the choice is a constant.

    Raises:
      UcclValueError: a shape or dtype does not fit the router.

    Cost: no communication; O(E log E) per token.

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_uccl.flax import Router, route
      >>> routing = route(Router(num_experts=4, top_k=2), jnp.array([[0., 2., 1., 2.]]))
      >>> routing.topk_idx.tolist()
      [[1, 3]]
    """
    logits = _checked_logits(router, logits)
    _check_bias(router, bias)
    if router.score == "sigmoid":
        scores = jax.nn.sigmoid(logits)
    elif router.softmax_over == "all":
        scores = jax.nn.softmax(logits, axis=-1)
    else:
        scores = logits  # what is chosen is the same, and the softmax comes later
    ranked = lax.stop_gradient(scores)
    if bias is not None:
        ranked = ranked + lax.stop_gradient(jnp.asarray(bias, jnp.float32))
    if router.topk_groups < router.num_groups:
        ranked = _only_best_groups(router, ranked)
    # lax.top_k gives the lower index first among equals.
    topk_idx = lax.top_k(ranked, router.top_k)[1].astype(jnp.int32)

    weights = jnp.take_along_axis(scores, topk_idx, axis=-1)
    if router.softmax_over == "topk":
        weights = jax.nn.softmax(weights, axis=-1)
    elif router.normalize:
        weights = weights / (weights.sum(axis=-1, keepdims=True) + _TINY)
    weights = weights * router.scale
    if valid is not None:
        keep = checked_valid(valid, logits.shape[:-1])[..., None]
        topk_idx = jnp.where(keep, topk_idx, NO_EXPERT)
        weights = jnp.where(keep, weights, 0.0)
    return Routing(topk_idx, weights)


def checked_valid(valid: Any, shape: tuple[int, ...]) -> jax.Array:
    """The mask of real tokens; UcclValueError when it is none of that shape."""
    valid = jnp.asarray(valid)
    if valid.dtype != jnp.bool_ or valid.shape != shape:
        raise UcclValueError(
            f"valid is {valid.dtype}{list(valid.shape)}, but must be bool{list(shape)}: one flag per token"
        )
    return valid


def _checked_logits(router: Router, logits: Any) -> jax.Array:
    logits = jnp.asarray(logits)
    if logits.ndim < 1 or logits.shape[-1] != router.num_experts:
        raise UcclValueError(
            f"route: logits have shape {list(logits.shape)}, but the last axis must be "
            f"num_experts={router.num_experts}"
        )
    if not jnp.issubdtype(logits.dtype, jnp.floating):
        raise UcclValueError(f"route: logits are {logits.dtype}, but must be floating point")
    return logits.astype(jnp.float32)


def _check_bias(router: Router, bias: Any) -> None:
    if (bias is not None) != router.use_bias:
        raise UcclValueError(
            f"route: use_bias={router.use_bias}, but bias is {'missing' if bias is None else 'given'}"
        )
    if bias is not None and jnp.shape(bias) != (router.num_experts,):
        raise UcclValueError(
            f"route: bias has shape {list(jnp.shape(bias))}, but must be [{router.num_experts}]"
        )


def _only_best_groups(router: Router, ranked: jax.Array) -> jax.Array:
    """`ranked` with -inf for experts outside a token's best groups.

    Deviation: some ports fill with 0, which lets an excluded expert win over one with a negative bias. The authors'
    inference code fills with -inf, as here.
    """
    grouped = ranked.reshape(*ranked.shape[:-1], router.num_groups, router.group_size)
    best = min(2 if router.group_score == "top2" else 1, router.group_size)
    group_scores = lax.top_k(grouped, best)[0].sum(axis=-1)
    groups = lax.top_k(group_scores, router.topk_groups)[1]
    allowed = (groups[..., None] == jnp.arange(router.num_groups)).any(axis=-2)
    return jnp.where(allowed[..., None], grouped, -jnp.inf).reshape(ranked.shape)
