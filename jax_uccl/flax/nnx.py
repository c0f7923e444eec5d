"""The mixture-of-experts layer for `flax.nnx`."""

from jax_uccl._src.flax.nnx_layer import MoE as MoE
from jax_uccl._src.flax.nnx_layer import RouterState as RouterState
