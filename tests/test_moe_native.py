"""jax_uccl.moe with implementation="native": rows by commands and proxies; values as everywhere, bit for bit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import moe_checks
import moe_oracle as oracle
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_uccl
from jax_uccl import moe

LAYOUTS = ["rank_major", "expert_major"]
NATIVE = dict(implementation="native", mode="low_latency")


@pytest.fixture(autouse=True, scope="module")
def _fifos():
    jax_uccl.shutdown()
    jax_uccl.init(executor="fifo")
    yield
    jax_uccl.shutdown()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_equals_the_oracle(ranks, layout, mesh_of):
    idx = oracle.routing(
        np.random.default_rng(ranks), ranks, 5, 4, 4 * ranks, masked=0.1, empty=[0]
    )
    moe_checks.check(mesh_of, idx, 4 * ranks, layout=layout, **NATIVE)
    tight = dict(capacity=7, dtype=ml_dtypes.bfloat16)
    moe_checks.check(mesh_of, idx, 4 * ranks, layout=layout, **tight, **NATIVE)


def test_one_expert_takes_everything_and_nobody_anything(mesh_of):
    idx = oracle.routing(np.random.default_rng(4), 4, 6, 3, 8, masked=0.3, hot=1.0, empty=[1])
    moe_checks.check(mesh_of, idx, 8, layout="expert_major", **NATIVE)
    moe_checks.check(mesh_of, np.full_like(idx, -1), 8, layout="expert_major", **NATIVE)


def _layer(mesh, **options):
    """(x, idx, w) [n * T, ...] -> what comes back, tokens, and times where asked for; two dispatches in flight."""

    def body(x, idx, w):
        d = moe.dispatch(x, idx, w, num_experts=12, axis_name="e", **options)
        again = moe.dispatch(2 * x, handle=d.handle)
        gate = d.weights if d.weights.ndim == 1 else d.weights.sum(-1)
        y = (jnp.sin(d.tokens.astype(np.float32)) * gate[:, None]).astype(x.dtype)
        out = moe.combine(y, d.handle) + moe.combine(
            again.tokens, d.handle, bias=jnp.ones(x.shape[1:], x.dtype)
        )
        return out, d.tokens, d.wait_ns

    return jax.jit(
        jax.shard_map(body, mesh=mesh, in_specs=P("e"), out_specs=P("e"), check_vma=False)
    )


def _arrays(n, tokens=5, hidden=160):
    rng = np.random.default_rng(9)
    idx = oracle.routing(rng, n, tokens, 4, 12, masked=0.2).reshape(n * tokens, 4)
    x = rng.normal(size=(n * tokens, hidden)).astype(ml_dtypes.bfloat16)
    return x, idx, rng.random(idx.shape).astype(np.float32)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("quantize", [None, "fp8"])
def test_gradients_and_reuse_equal_those_of_the_collectives(layout, quantize, mesh_of):
    mesh, arrays = mesh_of((3,), ("e",)), _arrays(3)
    results = []
    for implementation in ("ragged", "native"):
        f = _layer(
            mesh,
            implementation=implementation,
            mode="low_latency",
            layout=layout,
            quantize=quantize,
        )

        def loss(x, idx, w, f=f):
            out = f(x, idx, w)
            return (out[0].astype(np.float32) ** 2).sum(), out

        results.append(jax.grad(loss, argnums=(0, 2), has_aux=True)(*arrays))
    jax.tree.map(np.testing.assert_array_equal, *results)


def test_scan_and_vmap(mesh_of):
    x, idx, w = _arrays(2)
    two = jnp.stack([x, 3 * x])
    results = []
    for implementation in ("ragged", "native"):
        options = dict(
            num_experts=12, axis_name="e", mode="low_latency", implementation=implementation
        )

        def step(x, idx, w, options=options):
            d = moe.dispatch(x, idx, w, **options)
            return moe.combine(d.tokens, d.handle)

        def body(xs, idx, w, step=step):
            # One routing for both; a step after the other; a routing for each.
            shared = jax.vmap(lambda x: step(x, idx, w))(xs)
            _, scanned = jax.lax.scan(lambda c, x: (c, step(x, idx, w)), 0, xs)
            each = jax.vmap(step)(xs, jnp.stack([idx, idx[::-1]]), jnp.stack([w, w]))
            return shared, scanned, each

        mapped = jax.shard_map(
            body,
            mesh=mesh_of((2,), ("e",)),
            in_specs=(P(None, "e"), P("e"), P("e")),
            out_specs=P(None, "e"),
            check_vma=False,
        )
        results.append(jax.jit(mapped)(two, idx, w))
    jax.tree.map(np.testing.assert_array_equal, *results)


@pytest.mark.parametrize("quantize", [None, "fp8"])
def test_wait_times(quantize, mesh_of):
    mesh, arrays = mesh_of((3,), ("e",)), _arrays(3)
    timed = _layer(mesh, wait_times=True, quantize=quantize, **NATIVE)(*arrays)
    plain = _layer(mesh, quantize=quantize, **NATIVE)(*arrays)
    assert plain[2] is None
    assert timed[2].shape == (9,) and timed[2].dtype == np.uint32
    assert (np.asarray(timed[2]) > 0).all()
    np.testing.assert_array_equal(timed[0], plain[0])
    np.testing.assert_array_equal(timed[1], plain[1])

    def total(x):
        return _layer(mesh, wait_times=True, quantize=quantize, **NATIVE)(x, *arrays[1:])[0].sum()

    def total_plain(x):
        return _layer(mesh, quantize=quantize, **NATIVE)(x, *arrays[1:])[0].sum()

    np.testing.assert_array_equal(jax.grad(total)(arrays[0]), jax.grad(total_plain)(arrays[0]))


def test_automatic_axes_are_refused_in_words(mesh_of):
    def body(x, idx):
        return moe.dispatch(x, idx, num_experts=2, axis_name="e", **NATIVE).tokens

    mapped = jax.shard_map(
        body, mesh=mesh_of((2, 2), ("e", "f")), in_specs=P("e"), out_specs=P("e"), axis_names={"e"}
    )
    with pytest.raises(jax_uccl.UnsupportedError, match="leaves mesh axes automatic"):
        jax.jit(mapped)(np.ones((4, 8), np.float32), np.zeros((4, 1), np.int32))


def test_the_direct_executor_says_what_is_needed(mesh_of):
    jax_uccl.shutdown()
    jax_uccl.init()
    try:
        with pytest.raises(jax_uccl.UnsupportedError, match="executor=fifo"), jax_uccl.errors():
            jax.block_until_ready(_layer(mesh_of((2,), ("e",)), **NATIVE)(*_arrays(2)))
    finally:
        jax_uccl.shutdown()
        jax_uccl.init(executor="fifo")
