"""Mixture-of-experts exchange: tokens to the ranks of their experts, and results back.

    from jax_uccl import moe
    d = moe.dispatch(x, topk_idx, topk_weights, num_experts=64, axis_name="expert", layout="expert_major")
    y = experts(d.tokens, d.group_sizes) * d.weights[:, None]
    out = moe.combine(y, d.handle)

Runs inside `jax.shard_map`. docs/moe.md has the meaning of every array.
"""

from jax_uccl._src.moe.combine import combine as combine
from jax_uccl._src.moe.combine import combine_done as combine_done
from jax_uccl._src.moe.combine import combine_start as combine_start
from jax_uccl._src.moe.dispatch import dispatch as dispatch
from jax_uccl._src.moe.dispatch import dispatch_done as dispatch_done
from jax_uccl._src.moe.dispatch import dispatch_start as dispatch_start
from jax_uccl._src.moe.handle import Dispatched as Dispatched
from jax_uccl._src.moe.handle import Handle as Handle
from jax_uccl._src.moe.handle import PendingCombine as PendingCombine
from jax_uccl._src.moe.handle import PendingDispatch as PendingDispatch
from jax_uccl._src.moe.handle import Spec as Spec
from jax_uccl._src.moe.handle import Stats as Stats
from jax_uccl._src.moe.layout import Layout as Layout
from jax_uccl._src.moe.layout import layout as layout
from jax_uccl._src.moe.quantize import dequantize as dequantize
from jax_uccl._src.moe.quantize import quantize as quantize
from jax_uccl._src.moe.relay import Relay as Relay
