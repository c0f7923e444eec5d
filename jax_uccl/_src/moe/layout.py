"""layout: how many tokens go where, before anything is sent."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_uccl._src import axes
from jax_uccl._src.moe import routing


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Layout:
    """What this rank's tokens ask for.

    Attributes:
      tokens_per_rank: int32 [ranks] tokens with an expert on each rank.
      tokens_per_expert: int32 [num_experts] choices of each expert.
      token_in_rank: bool [T, ranks] whether the token has an expert on the rank.
    """

    tokens_per_rank: Any
    tokens_per_expert: Any
    token_in_rank: Any


def layout(topk_idx: Any, *, num_experts: int, axis_name: Any) -> Layout:
    """Counts this rank's tokens per rank and per expert; communicates nothing.

    `dispatch` works this out for itself; the counts serve load balancing and inspection.

    Args:
      topk_idx: integer [T, K], expert ids or -1.
      num_experts: experts over all ranks, a multiple of the number of ranks.
      axis_name: a mesh axis, or a tuple of mesh axes (major first).

    Returns:
      `Layout`. Choices that are no expert count nowhere.

    Raises:
      UcclValueError: shapes or sizes do not fit.
      NameError: `axis_name` is not bound.

    Cost: local. Source: DeepEP's get_dispatch_layout.

    Example:
      >>> import jax, numpy as np
      >>> from jax_uccl import moe
      >>> f = lambda idx: moe.layout(idx, num_experts=4, axis_name="i")
      >>> out = jax.vmap(f, axis_name="i")(np.array([[[0, 1], [1, -1]], [[2, 3], [0, 2]]]))
      >>> out.tokens_per_rank.tolist(), out.tokens_per_expert.tolist()
      ([[2, 0], [1, 2]], [[1, 2, 0, 0], [1, 0, 2, 1]])
    """
    names = axes.as_names(axis_name)
    axes.check_bound(names, "moe.layout")
    idx = routing.check_choices(topk_idx, "layout")
    count = routing.check_experts(num_experts, names, "layout")
    ranks = axes.axis_size(names)
    experts = jnp.arange(count, dtype=np.int32)
    chosen = idx[..., None] == experts  # [T, K, E]
    in_rank = chosen.reshape(*idx.shape, ranks, count // ranks).any((1, 3))
    return Layout(
        tokens_per_rank=in_rank.sum(0, dtype=np.int32),
        tokens_per_expert=chosen.sum((0, 1), dtype=np.int32),
        token_in_rank=in_rank,
    )
