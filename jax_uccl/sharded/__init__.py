"""Collectives at the global view: under plain `jax.jit`, on sharded arrays, without a `jax.shard_map`.

Each function acts on the blocks into which the array is divided along a mesh axis, and says how the result is
sharded. Other mesh axes that shard the array go on doing so; nothing is gathered around the call.

    from jax_uccl import sharded
    with jax.set_mesh(mesh):
        total = sharded.psum(grads, "data", spec=P("data", "model"))

`jax_uccl.sharded.moe` has dispatch and combine for mixtures of experts.
"""

from jax_uccl._src.global_view import all_gather as all_gather
from jax_uccl._src.global_view import all_reduce as all_reduce
from jax_uccl._src.global_view import all_to_all as all_to_all
from jax_uccl._src.global_view import pbroadcast as pbroadcast
from jax_uccl._src.global_view import pmax as pmax
from jax_uccl._src.global_view import pmean as pmean
from jax_uccl._src.global_view import pmin as pmin
from jax_uccl._src.global_view import ppermute as ppermute
from jax_uccl._src.global_view import psum as psum
from jax_uccl._src.global_view import psum_scatter as psum_scatter
from jax_uccl._src.global_view import ragged_all_to_all as ragged_all_to_all
from jax_uccl._src.global_view import reduce_scatter as reduce_scatter
from jax_uccl.sharded import moe as moe
