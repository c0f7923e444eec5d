"""Mixture-of-experts layers for Flax over `jax_uccl.moe`, and the routers they use.

`jax_uccl.flax.nnx.MoE` and `jax_uccl.flax.linen.MoE` are the layers; each is imported by its own name, because each
needs its part of Flax. What is here needs JAX only:

    from jax_uccl.flax import Router, deepseek_v3, route
    from jax_uccl.flax.nnx import MoE
"""

from jax_uccl._src.flax.balance import Balance as Balance
from jax_uccl._src.flax.balance import balance as balance
from jax_uccl._src.flax.balance import updated_bias as updated_bias
from jax_uccl._src.flax.moe_core import MoEDescription as MoEDescription
from jax_uccl._src.flax.moe_core import MoEReport as MoEReport
from jax_uccl._src.flax.router import Router as Router
from jax_uccl._src.flax.router import Routing as Routing
from jax_uccl._src.flax.router import deepseek_v3 as deepseek_v3
from jax_uccl._src.flax.router import mixtral as mixtral
from jax_uccl._src.flax.router import qwen3 as qwen3
from jax_uccl._src.flax.router import route as route
