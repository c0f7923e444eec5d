"""Gated feed-forward experts on rows sorted by expert: weight * down(act(x gate) * (x up)).

Two implementations of one meaning. "ragged_dot" is three `jax.lax.ragged_dot`; XLA has kernels for it on GPU and
TPU. On CPU XLA turns it into a dense product over rows x experts, of which it masks all but one part in G, and it
computes the unused rows at the end as well. "tiles" walks over tiles of rows of one expert, as many as there are,
so its cost follows the rows in use and not the capacity; it keeps nothing but its inputs for the backward pass.

Matrix products take operands of the compute dtype and accumulate in f32; the activation is computed in f32.
Source of the shape: SwiGLU (arXiv 2002.05202); tiles by group as in MegaBlocks (arXiv 2211.15841 section 5).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax import lax

from jax_uccl._src import jax_compat as compat
from jax_uccl._src.errors import UcclValueError

Implementation = Literal["auto", "ragged_dot", "tiles"]
Activation = Callable[[jax.Array], jax.Array]
DEFAULT_TILE = 128


class Kernels(NamedTuple):
    """Weights of the experts of one rank.

    Attributes:
      gate: [G, D, F].
      up: [G, D, F].
      down: [G, F, D].
    """

    gate: Any
    up: Any
    down: Any


def resolve(implementation: str) -> str:
    """The implementation that "auto" stands for on JAX's default backend; UcclValueError for an unknown one."""
    if implementation not in get_args(Implementation):
        raise UcclValueError(
            f"experts: implementation={implementation!r} is not one of {get_args(Implementation)}"
        )
    if implementation == "auto":
        return "tiles" if jax.default_backend() == "cpu" else "ragged_dot"
    return implementation


def gated_experts(
    x: Any,
    kernels: Kernels,
    group_sizes: Any,
    weights: Any = None,
    *,
    dtype: Any = None,
    activation: Activation = jax.nn.silu,
    precision: Any = None,
    implementation: str = "auto",
    tile: int = DEFAULT_TILE,
) -> jax.Array:
    """Applies expert g to the g-th group of rows.

    Args:
      x: [rows, D], groups one after the other from row 0 on. What rows past the last group hold does not matter.
      kernels: of G experts. Under `check_vma=True` everything must vary over the same axes.
      group_sizes: int32 [G], each 0 or more, together at most `rows`.
      weights: f32 [rows], factors on the results, applied before they are rounded; None for none.
      dtype: of the operands of the products and of the result; that of `x` by default.
      activation: elementwise, on f32.
      precision: of the products, as for `jax.lax.dot`.
      implementation: "tiles" (no forward mode, no second reverse derivative), "ragged_dot" (no vmap), or
        "auto": tiles on CPU.
      tile: rows of one tile at most; no effect on values but rounding.

    Returns:
      [rows, D] of `dtype`, zero past the last group. Gradients reach `x`, the kernels and `weights`; rows past the
      last group get and give none.

    Raises:
      UcclValueError: shapes that do not fit.

    Cost: 6 * D * F flops a row, three times that in the backward pass ("tiles": four times, as it computes the
      hidden layer again). "tiles" rounds each group up to whole tiles.
    """
    x, group_sizes = jnp.asarray(x), jnp.asarray(group_sizes)
    kernels = Kernels(*map(jnp.asarray, kernels))
    weights = jnp.ones_like(x, jnp.float32, shape=x.shape[:1]) if weights is None else weights
    weights = jnp.asarray(weights)
    _check_shapes(x, kernels, group_sizes, weights)
    if tile < 1:
        raise UcclValueError(f"experts: tile={tile} must be at least 1")
    dtype = x.dtype if dtype is None else jnp.dtype(dtype)
    implementation = resolve(implementation)
    if 0 in (*x.shape, *kernels.gate.shape):
        return jnp.zeros_like(x, dtype)
    x, weights = x.astype(dtype), weights.astype(jnp.float32)
    if implementation == "tiles":
        tile = min(tile, x.shape[0])
        return _tiles(activation, precision, tile, x, kernels, group_sizes, weights)
    return _ragged_dot(activation, precision, x, kernels, group_sizes, weights)


def _check_shapes(x: Any, kernels: Kernels, group_sizes: Any, weights: Any) -> None:
    gate, up, down = (k.shape for k in kernels)
    if len(gate) != 3 or up != gate or down != (gate[0], gate[2], gate[1]):
        raise UcclValueError(
            f"experts: gate {list(gate)}, up {list(up)} and down {list(down)} must be [G, D, F], [G, D, F] "
            "and [G, F, D]"
        )
    if x.ndim != 2 or x.shape[1] != gate[1]:
        raise UcclValueError(f"experts: x has shape {list(x.shape)}, but must be [rows, {gate[1]}]")
    if group_sizes.shape != gate[:1] or not jnp.issubdtype(group_sizes.dtype, jnp.integer):
        raise UcclValueError(
            f"experts: group_sizes is {group_sizes.dtype}{list(group_sizes.shape)}, but must be "
            f"int32[{gate[0]}]: one size for each expert"
        )
    if weights.shape != x.shape[:1] or not jnp.issubdtype(weights.dtype, jnp.floating):
        raise UcclValueError(
            f"experts: weights is {weights.dtype}{list(weights.shape)}, but must be float32[{x.shape[0]}]: "
            "one factor for each row"
        )


# --- ragged_dot -------------------------------------------------------------------------------------


def _ragged_dot(
    activation: Activation,
    precision: Any,
    x: Any,
    kernels: Kernels,
    group_sizes: Any,
    weights: Any,
) -> jax.Array:
    dtype = x.dtype
    used = (jnp.arange(x.shape[0]) < group_sizes.sum())[:, None]
    x = jnp.where(used, x, 0)  # a NaN there would reach gradients where kernels multiply by zero

    def product(rows: Any, kernel: Any) -> jax.Array:
        return lax.ragged_dot(
            rows,
            kernel.astype(dtype),
            group_sizes.astype(jnp.int32),
            precision=precision,
            preferred_element_type=jnp.float32,
        )

    hidden = activation(product(x, kernels.gate)) * product(x, kernels.up)
    # Rows past the last group are unspecified, not zero, in some of XLA's kernels.
    y = jnp.where(used, product(hidden.astype(dtype), kernels.down), 0.0)
    return (y * jnp.where(used, weights[:, None], 0.0)).astype(dtype)


# --- tiles ------------------------------------------------------------------------------------------


class _Tile(NamedTuple):
    group: jax.Array  # whose expert
    base: jax.Array  # first row of the slice
    mask: jax.Array  # bool [tile, 1]: which rows of the slice are of this tile


def _locator(
    group_sizes: Any, tile: int, rows: int
) -> tuple[jax.Array, Callable[[jax.Array], _Tile]]:
    """The number of tiles, and where the i-th one is. Tiles never span two groups."""
    sizes = group_sizes.astype(jnp.int32)
    ends = jnp.cumsum(sizes)
    tiles = (sizes + (tile - 1)) // tile
    tile_ends = jnp.cumsum(tiles)

    def locate(i: jax.Array) -> _Tile:
        group = (tile_ends <= i).sum(dtype=jnp.int32)
        low = ends[group] - sizes[group] + (i - (tile_ends[group] - tiles[group])) * tile
        high = jnp.minimum(low + tile, ends[group])
        # At the end of the buffer the slice moves back, into rows of other tiles that the mask leaves alone.
        base = jnp.minimum(low, rows - tile)
        row = base + jnp.arange(tile)
        return _Tile(group, base, ((row >= low) & (row < high))[:, None])

    return tile_ends[-1], locate


def _read(x: Any, at: _Tile) -> jax.Array:
    rows = lax.dynamic_slice_in_dim(x, at.base, at.mask.shape[0])
    return jnp.where(at.mask, rows, 0)


def _write(x: Any, rows: Any, at: _Tile) -> jax.Array:
    old = lax.dynamic_slice_in_dim(x, at.base, at.mask.shape[0])
    new = jnp.where(at.mask, rows.astype(x.dtype), old)
    return lax.dynamic_update_slice_in_dim(x, new, at.base, 0)


def _zeros(shape: tuple[int, ...], dtype: Any, like: Any) -> jax.Array:
    """Zeros that vary over the axes over which `like` does: what a loop may carry."""
    zeros = jnp.zeros(shape, dtype)
    axes = tuple(compat.varying_axes(jax.typeof(like)))
    return lax.pcast(zeros, axes, to="varying") if axes else zeros


def _tiles_once(
    activation: Activation,
    precision: Any,
    tile: int,
    x: Any,
    kernels: Kernels,
    group_sizes: Any,
    weights: Any,
) -> jax.Array:
    total, locate = _locator(group_sizes, tile, x.shape[0])
    dot = partial(lax.dot, precision=precision, preferred_element_type=jnp.float32)
    weights = weights[:, None]

    def step(i: jax.Array, y: jax.Array) -> jax.Array:
        at = locate(i)
        gate, up, down = (k[at.group].astype(x.dtype) for k in kernels)
        rows = _read(x, at)
        hidden = activation(dot(rows, gate)) * dot(rows, up)
        return _write(y, _read(weights, at) * dot(hidden.astype(x.dtype), down), at)

    return lax.fori_loop(0, total, step, _zeros(x.shape, x.dtype, x))


def _tiles_forward(
    activation: Activation,
    precision: Any,
    tile: int,
    x: Any,
    kernels: Kernels,
    group_sizes: Any,
    weights: Any,
) -> tuple[jax.Array, Any]:
    # Not through `_tiles`: this way forward mode over the gradient passes through the loop.
    y = _tiles_once(activation, precision, tile, x, kernels, group_sizes, weights)
    return y, (x, kernels, group_sizes, weights)


def _tiles_backward(
    activation: Activation, precision: Any, tile: int, residuals: Any, dy: Any
) -> tuple[Any, Kernels, None, Any]:
    x, kernels, group_sizes, weights = residuals
    total, locate = _locator(group_sizes, tile, x.shape[0])
    dtype, weights = x.dtype, weights[:, None]

    def dot(a: Any, b: Any, contract_a: int, contract_b: int) -> jax.Array:
        dims = (((contract_a,), (contract_b,)), ((), ()))
        return lax.dot_general(a, b, dims, precision=precision, preferred_element_type=jnp.float32)

    def step(i: jax.Array, carry: tuple[Any, Any, Kernels]) -> tuple[Any, Any, Kernels]:
        dx, dweights, sums = carry
        at = locate(i)
        gate, up, down = (k[at.group].astype(dtype) for k in kernels)
        rows, dy_rows, weight = _read(x, at), _read(dy, at), _read(weights, at)
        hidden, pull = jax.vjp(
            lambda g, u: activation(g) * u, dot(rows, gate, 1, 0), dot(rows, up, 1, 0)
        )
        dhidden = dot(dy_rows, down, 1, 1)
        # <dy, hidden down> = <dy down^T, hidden>: the gradient of the weight without the result.
        dweights = _write(dweights, (dhidden * hidden).sum(axis=1, keepdims=True), at)
        dgate, dup = (d.astype(dtype) for d in pull(weight * dhidden))
        dx = _write(dx, dot(dgate, gate, 1, 1) + dot(dup, up, 1, 1), at)
        parts = Kernels(
            dot(rows, dgate, 0, 0),
            dot(rows, dup, 0, 0),
            dot((weight * hidden).astype(dtype), dy_rows, 0, 0),
        )
        sums = Kernels(*(s.at[at.group].add(p) for s, p in zip(sums, parts, strict=True)))
        return dx, dweights, sums

    sums = Kernels(*(_zeros(k.shape, jnp.float32, x) for k in kernels))
    init = _zeros(x.shape, dtype, x), _zeros(weights.shape, jnp.float32, x), sums
    dx, dweights, sums = lax.fori_loop(0, total, step, init)
    dkernels = Kernels(*(s.astype(k.dtype) for s, k in zip(sums, kernels, strict=True)))
    return dx, dkernels, None, dweights[:, 0]


_tiles = jax.custom_vjp(_tiles_once, nondiff_argnums=(0, 1, 2))
_tiles.defvjp(_tiles_forward, _tiles_backward)
