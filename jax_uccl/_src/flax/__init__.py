"""Layers over `jax_uccl.moe`. Only `nnx_layer` and `linen_layer` import Flax."""
