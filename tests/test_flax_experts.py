"""Gated experts: both implementations against NumPy row by row, with gradients and awkward group sizes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_uccl
from jax_uccl._src.flax.experts import Kernels, gated_experts

IMPLEMENTATIONS = ["ragged_dot", "tiles"]
ROWS, WIDTH, HIDDEN = 23, 5, 7
GROUPS = [
    [23],
    [0],
    [4, 0, 9, 1],
    [0, 0, 23],
    [0, 0, 0],
    [7, 8, 8],
    [1, 0, 0, 2, 0],
    [11, 0, 12],
]


def make(groups, rows=ROWS, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    shapes = [(groups, WIDTH, HIDDEN)] * 2 + [(groups, HIDDEN, WIDTH)]
    return rng.normal(size=(rows, WIDTH)).astype(dtype), Kernels(
        *(rng.normal(0, 0.5, shape).astype(dtype) for shape in shapes)
    )


def oracle(x, kernels, sizes, weights=None):
    y, start = np.zeros_like(x), 0
    weights = np.ones(len(x)) if weights is None else weights
    for g, size in enumerate(sizes):
        for row in range(start, start + size):
            gate, up = x[row] @ kernels.gate[g], x[row] @ kernels.up[g]
            y[row] = weights[row] * ((gate / (1 + np.exp(-gate)) * up) @ kernels.down[g])
        start += size
    return y


def oracle_gradients(x, kernels, sizes, weights, dy):
    dx, dk, start = np.zeros_like(x), Kernels(*map(np.zeros_like, kernels)), 0
    dw = np.zeros_like(weights)
    for g, size in enumerate(sizes):
        for row in range(start, start + size):
            gate, up = x[row] @ kernels.gate[g], x[row] @ kernels.up[g]
            s = 1 / (1 + np.exp(-gate))
            hidden = gate * s * up
            dw[row] = dy[row] @ (hidden @ kernels.down[g])
            dy_row = weights[row] * dy[row]
            dh = kernels.down[g] @ dy_row
            dgate, dup = dh * up * (s + gate * s * (1 - s)), dh * gate * s
            dx[row] = kernels.gate[g] @ dgate + kernels.up[g] @ dup
            dk.gate[g] += np.outer(x[row], dgate)
            dk.up[g] += np.outer(x[row], dup)
            dk.down[g] += np.outer(hidden, dy_row)
        start += size
    return dx, dk, dw


def close(ours, expected, rtol=2e-5, atol=2e-5):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), ours, expected
    )


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("tile", [1, 4, 128])
@pytest.mark.parametrize("sizes", GROUPS, ids=str)
def test_values_and_gradients(implementation, tile, sizes):
    if implementation == "ragged_dot" and tile != 4:
        pytest.skip("has no tiles")
    x, kernels = make(len(sizes))
    rng = np.random.default_rng(1)
    dy, weights = rng.normal(size=x.shape), rng.normal(size=len(x))
    used = sum(sizes)
    arguments = [v.astype(np.float32) for v in (x, weights, dy)]
    for array in arguments:
        array[used:] = np.nan  # what nobody uses must not matter

    @jax.jit
    def both(x, weights, dy, kernels, sizes):
        run = lambda x, k, w: gated_experts(
            x, k, sizes, w, implementation=implementation, tile=tile
        )
        y, pull = jax.vjp(run, x, kernels, weights)
        return y, *pull(dy)

    y, dx, dk, dw = both(*arguments, jax.tree.map(np.float32, kernels), np.array(sizes, np.int32))
    assert y.dtype == jnp.float32
    close(y, oracle(x, kernels, sizes, weights))
    close((dx, dk, dw), oracle_gradients(x, kernels, sizes, weights, dy))
    assert all((v[used:] == 0).all() for v in (y, dx, dw))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_bfloat16_accumulates_in_float32(implementation):
    # 1024 products of 1/32 * 1/32 make 1; a bfloat16 sum would stop growing at 1/4.
    width, sizes = 1024, jnp.array([3, 2])
    kernels = Kernels(
        jnp.full((2, width, 8), 1 / 32, jnp.float32),
        jnp.full((2, width, 8), 1 / 32, jnp.float32),
        jnp.full((2, 8, width), 1 / 8, jnp.float32),
    )
    x = jnp.full((8, width), 1 / 32, jnp.float32)
    run = lambda x, k: gated_experts(
        x, k, sizes, dtype=jnp.bfloat16, activation=lambda v: v, implementation=implementation
    )
    y, pull = jax.vjp(run, x, kernels)
    assert y.dtype == jnp.bfloat16
    assert (y[:5] == 1).all() and (y[5:] == 0).all()
    dx, dk = pull(jnp.ones_like(y))
    assert dx.dtype == jnp.float32 and all(k.dtype == jnp.float32 for k in dk)
    # d hidden = 1024 / 8 = 128, then 8 channels * 2 * 128 / 32 each.
    np.testing.assert_allclose(dx[:5], 64.0, rtol=1e-2)
    np.testing.assert_allclose(dk.gate[0], 3 * 128 / 32, rtol=1e-2)
    np.testing.assert_allclose(dk.down[1], 2.0, rtol=1e-2)


def test_many_rows_of_one_group_add_up_in_float32():
    # Each tile adds 1 to the gradient of `down`; in bfloat16 the sum would stop at 256.
    rows = 1000
    kernels = Kernels(*(jnp.ones((1, 1, 1), jnp.bfloat16) for _ in range(3)))
    loss = lambda k: (
        gated_experts(
            jnp.ones((rows, 1), jnp.bfloat16),
            k,
            jnp.array([rows]),
            activation=lambda v: v,
            implementation="tiles",
            tile=1,
        )
        .astype(jnp.float32)
        .sum()
    )
    assert float(jax.grad(loss)(kernels).down[0, 0, 0]) == 1000.0


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_transformations(implementation):
    x, kernels = make(3, dtype=np.float32)
    sizes = np.array([[4, 0, 9], [10, 2, 11]], np.int32)
    run = lambda x, k, s: gated_experts(x, k, s, implementation=implementation, tile=4)
    batched = jax.vmap(run, (0, None, 0))
    if implementation == "tiles":
        both = jax.jit(batched)(np.stack([x, 2 * x]), kernels, sizes)
        close(both, [oracle(x, kernels, sizes[0]), oracle(2 * x, kernels, sizes[1])], 1e-4, 1e-4)
    else:  # When JAX learns it, the docstring has to follow.
        with pytest.raises(NotImplementedError, match="ragged_dot vmap"):
            batched(np.stack([x, 2 * x]), kernels, sizes)
    _, scanned = jax.lax.scan(lambda c, s: (c, run(x, kernels, s)), 0, sizes)
    close(scanned, [oracle(x, kernels, s) for s in sizes])
    loss = lambda k: (run(x, k, sizes[1]) ** 2).sum()
    close(jax.grad(jax.checkpoint(loss))(kernels), jax.grad(loss)(kernels))
    # A Hessian-vector product, forward over reverse, against a difference of gradients.
    tangent = jax.tree.map(lambda k: np.random.default_rng(2).normal(size=k.shape), kernels)
    tangent = jax.tree.map(np.float32, tangent)
    _, product = jax.jvp(jax.grad(loss), (kernels,), (tangent,))
    step = 1e-2
    moved = lambda sign: jax.tree.map(lambda k, t: k + sign * step * t, kernels, tangent)
    difference = jax.tree.map(
        lambda a, b: (a - b) / (2 * step), jax.grad(loss)(moved(1)), jax.grad(loss)(moved(-1))
    )
    scale = max(float(jnp.abs(p).max()) for p in product)
    close(product, difference, 0, 2e-2 * scale)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("check_vma", [True, False])
def test_inside_shard_map(mesh_of, implementation, check_vma):
    mesh = mesh_of((3,), ("x",))
    x, kernels = make(6, rows=30)
    sizes = np.array([3, 5, 0, 10, 0, 0], np.int32)
    spec = P("x")

    def local(x, k, w, s, dy):
        run = lambda x, k, w: gated_experts(x, k, s, w, implementation=implementation, tile=4)
        y, pull = jax.vjp(run, x, k, w)
        return y, *pull(dy)

    rng = np.random.default_rng(1)
    dy, weights = rng.normal(size=x.shape), rng.normal(size=len(x))
    mapped = jax.shard_map(
        local, mesh=mesh, in_specs=(spec,) * 5, out_specs=spec, check_vma=check_vma
    )
    arguments = jax.tree.map(np.float32, (x, kernels, weights))
    y, dx, dk, dw = jax.jit(mapped)(*arguments, sizes, np.float32(dy))
    for rank in range(3):
        rows, own = slice(10 * rank, 10 * rank + 10), slice(2 * rank, 2 * rank + 2)
        part = Kernels(*(k[own] for k in kernels))
        close(y[rows], oracle(x[rows], part, sizes[own], weights[rows]))
        expected = oracle_gradients(x[rows], part, sizes[own], weights[rows], dy[rows])
        close((dx[rows], Kernels(*(k[own] for k in dk)), dw[rows]), expected)


def test_tiles_computes_only_the_rows_in_use():
    # In the compiled program the products are inside of a loop and as small as one tile.
    x, kernels = make(2, rows=4096, dtype=np.float32)
    run = lambda s: gated_experts(x, kernels, s, implementation="tiles", tile=8)
    text = jax.jit(run).lower(jnp.array([1, 2])).as_text()
    assert "stablehlo.while" in text
    products = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
    assert len(products) == 3 and all("tensor<8x" in line for line in products)


def test_empty():
    kernels = Kernels(jnp.ones((2, 3, 4)), jnp.ones((2, 3, 4)), jnp.ones((2, 4, 3)))
    for implementation in IMPLEMENTATIONS:
        y = gated_experts(
            jnp.zeros((0, 3)), kernels, jnp.zeros(2, jnp.int32), implementation=implementation
        )
        assert y.shape == (0, 3)


def test_bad_arguments():
    x, kernels = make(2, dtype=np.float32)
    sizes = jnp.array([1, 2])
    with pytest.raises(jax_uccl.UcclValueError, match=r"must be \[G, D, F\]"):
        gated_experts(x, kernels._replace(down=kernels.gate), sizes)
    with pytest.raises(ValueError, match=r"x has shape \[23, 4\], but must be \[rows, 5\]"):
        gated_experts(x[:, :4], kernels, sizes)
    with pytest.raises(ValueError, match=r"int32\[3\], but must be int32\[2\]"):
        gated_experts(x, kernels, jnp.array([1, 2, 3]))
    with pytest.raises(ValueError, match=r"weights is float32\[2\], but must be float32\[23\]"):
        gated_experts(x, kernels, sizes, jnp.ones(2))
    with pytest.raises(ValueError, match="tile=0"):
        gated_experts(x, kernels, sizes, tile=0)
    with pytest.raises(ValueError, match="implementation='dense' is not one of"):
        gated_experts(x, kernels, sizes, implementation="dense")
