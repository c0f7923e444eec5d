"""Mixture-of-experts exchange at the global view: `jax_uccl.moe` under plain `jax.jit`, on sharded arrays.

from jax_uccl import sharded
d = sharded.moe.dispatch(x, topk_idx, topk_weights, num_experts=64, axis_name="expert", spec=P("expert"), mesh=mesh)
out = sharded.moe.combine(y, d.handle, spec=P("expert"), mesh=mesh)
"""

from jax_uccl._src.moe.global_view import combine as combine
from jax_uccl._src.moe.global_view import dispatch as dispatch
