"""Collective communication for JAX over a software multipath transport.

The functions have the names, arguments and meaning of their `jax.lax` equals and are used in the same
places, inside `jax.shard_map`:

    import jax_uccl
    y = jax_uccl.all_to_all(x, "expert", split_axis=0, concat_axis=0, tiled=True)
    total = jax_uccl.psum(loss, ("data", "expert"))
"""

from jax_uccl import moe as moe
from jax_uccl import sharded as sharded
from jax_uccl._src.collectives.all_gather import all_gather as all_gather
from jax_uccl._src.collectives.all_reduce import all_reduce as all_reduce
from jax_uccl._src.collectives.all_reduce import pmax as pmax
from jax_uccl._src.collectives.all_reduce import pmean as pmean
from jax_uccl._src.collectives.all_reduce import pmin as pmin
from jax_uccl._src.collectives.all_reduce import psum as psum
from jax_uccl._src.collectives.all_to_all import all_to_all as all_to_all
from jax_uccl._src.collectives.barrier import barrier as barrier
from jax_uccl._src.collectives.ppermute import pbroadcast as pbroadcast
from jax_uccl._src.collectives.ppermute import ppermute as ppermute
from jax_uccl._src.collectives.ppermute import pshuffle as pshuffle
from jax_uccl._src.collectives.ragged_all_to_all import ragged_all_to_all as ragged_all_to_all
from jax_uccl._src.collectives.ragged_all_to_all import ragged_offsets as ragged_offsets
from jax_uccl._src.collectives.reduce_scatter import psum_scatter as psum_scatter
from jax_uccl._src.collectives.reduce_scatter import reduce_scatter as reduce_scatter
from jax_uccl._src.comm import init as init
from jax_uccl._src.comm import is_initialized as is_initialized
from jax_uccl._src.comm import last_error as last_error
from jax_uccl._src.comm import shutdown as shutdown
from jax_uccl._src.comm import stats as stats
from jax_uccl._src.comm import status as status
from jax_uccl._src.config import Config as Config
from jax_uccl._src.errors import CommAbortedError as CommAbortedError
from jax_uccl._src.errors import NicError as NicError
from jax_uccl._src.errors import PathError as PathError
from jax_uccl._src.errors import PeerLostError as PeerLostError
from jax_uccl._src.errors import PeerTimeoutError as PeerTimeoutError
from jax_uccl._src.errors import ProtocolError as ProtocolError
from jax_uccl._src.errors import UcclError as UcclError
from jax_uccl._src.errors import UcclMemoryError as UcclMemoryError
from jax_uccl._src.errors import UcclValueError as UcclValueError
from jax_uccl._src.errors import UnsupportedError as UnsupportedError
from jax_uccl._src.errors import errors as errors
from jax_uccl._src.ordering import strict_order as strict_order
from jax_uccl._src.use import use as use

__version__ = "0.1.0"
