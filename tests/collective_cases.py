"""One row for each collective: how it is called on a [16, 24, 8] shard of a (2, 4) mesh, for shared tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jax_uccl

# Rows that each of four members sends to each; zeros included.
SIZES = np.array([[1, 2, 0, 3], [4, 0, 1, 2], [0, 3, 2, 1], [2, 1, 4, 0]])
ROTATE = [(i, (i + 1) % 4) for i in range(4)]


class Case(NamedTuple):
    """`call(collectives, x)` works on axis "b" (of size 4) of the mesh ("a", "b")."""

    call: Callable[[Any, Any], Any]
    differentiable: bool = True
    reduces: bool = False  # takes dtypes of all_reduce only
    # Under check_vma=True the result does not vary over "b".
    invariant: bool = False


def _ragged(m: Any, x: Any) -> Any:
    offsets = jax_uccl.ragged_offsets(SIZES, jax.lax.axis_index("b"))
    out = m.ragged_all_to_all(x[:, :12, 0].T, x[:, 12:, 1].T, *offsets, axis_name="b")
    return out[None]


CASES = {
    "all_gather": Case(lambda m, x: m.all_gather(x, "b", axis=1)),
    "all_gather_tiled": Case(lambda m, x: m.all_gather(x, "b", axis=-1, tiled=True)),
    "all_to_all": Case(lambda m, x: m.all_to_all(x, "b", 1, 2, tiled=True)),
    "barrier": Case(lambda m, x: m.barrier((x, x[0] > 0), "b")[0]),
    "pbroadcast": Case(lambda m, x: m.pbroadcast(x, "b", 2)),
    "pmax": Case(lambda m, x: m.pmax(x, "b"), False, True, True),
    "pmean": Case(lambda m, x: m.pmean(x, "b"), reduces=True, invariant=True),
    "pmin": Case(lambda m, x: m.pmin(x, "b"), False, True, True),
    "ppermute": Case(lambda m, x: m.ppermute(x, "b", ROTATE)),
    "ppermute_partial": Case(lambda m, x: m.ppermute(x, "b", [(0, 1), (2, 3), (3, 0)])),
    "pshuffle": Case(lambda m, x: m.pshuffle(x, "b", [1, 3, 0, 2])),
    "psum": Case(lambda m, x: m.psum(x, "b"), reduces=True, invariant=True),
    "psum_scatter": Case(
        lambda m, x: m.psum_scatter(x[:, :4], "b", scatter_dimension=1), reduces=True
    ),
    "psum_scatter_tiled": Case(
        lambda m, x: m.psum_scatter(x, "b", scatter_dimension=2, tiled=True), reduces=True
    ),
    "ragged_all_to_all": Case(_ragged),
    "reduce_scatter_max": Case(
        lambda m, x: m.reduce_scatter(x, "b", op="max", scatter_dimension=1, tiled=True),
        differentiable=False,
        reduces=True,
    ),
}
DIFFERENTIABLE = [name for name, case in CASES.items() if case.differentiable]


def operand(dtype: Any = np.float32, seed: int = 0) -> Any:
    """Global array of shape [16, 24, 8] for a mesh of 8 along its first axis; small exact values."""
    values = np.random.default_rng(seed).integers(-8, 8, (16, 24, 8))
    if np.dtype(dtype) == np.bool_:
        return jnp.asarray(values > 0)
    if jnp.issubdtype(dtype, np.unsignedinteger):
        values = np.abs(values) % 4
    if jnp.issubdtype(dtype, np.complexfloating):
        return jnp.asarray(values + 1j * values[::-1], dtype)
    return jnp.asarray(values, np.float32).astype(dtype)
