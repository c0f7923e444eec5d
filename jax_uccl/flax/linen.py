"""The mixture-of-experts layer for `flax.linen`."""

from jax_uccl._src.flax.linen_layer import MoE as MoE
