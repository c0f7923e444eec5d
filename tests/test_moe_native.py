"""jax_uccl.moe with implementation="native": rows in memory, and by commands and proxies; values as everywhere."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import ml_dtypes
import moe_checks
import moe_oracle as oracle
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_uccl
from jax_uccl import moe

LAYOUTS = ["rank_major", "expert_major"]
NATIVE = dict(implementation="native")
# In throughput mode in one level and in two.
WAYS = [dict(mode="low_latency"), dict(mode="throughput"), dict(mode="throughput", hosts=(0, 0, 1))]
ways = pytest.mark.parametrize("way", WAYS, ids=["low_latency", "throughput", "two_levels"])


@pytest.fixture(autouse=True, scope="module", params=["fifo", "direct"])
def executor(request):
    jax_uccl.shutdown()
    jax_uccl.init(executor=request.param)
    yield request.param
    jax_uccl.shutdown()


@pytest.fixture(autouse=True)
def _low_latency_needs_fifos(executor, request):
    params = request.node.callspec.params
    mode = params.get("mode") or params.get("way", {}).get("mode")
    if mode == "low_latency" and executor != "fifo":
        pytest.skip("native low latency needs executor=fifo")


@pytest.mark.parametrize("mode", ["low_latency", "throughput"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_equals_the_oracle(ranks, layout, mode, mesh_of):
    options = dict(layout=layout, mode=mode, **NATIVE)
    idx = oracle.routing(
        np.random.default_rng(ranks), ranks, 5, 4, 4 * ranks, masked=0.1, empty=[0]
    )
    moe_checks.check(mesh_of, idx, 4 * ranks, **options)
    moe_checks.check(mesh_of, idx, 4 * ranks, capacity=7, dtype=ml_dtypes.bfloat16, **options)


def test_gateways_in_another_order_than_their_hosts(mesh_of):
    idx = oracle.routing(np.random.default_rng(4), 4, 9, 4, 16, masked=0.1)
    moe_checks.check(mesh_of, idx, 16, hosts=[0, 0, 1, 0], **NATIVE)


@ways
def test_one_expert_takes_everything_and_nobody_anything(way, mesh_of):
    options = dict(layout="expert_major", **way, **NATIVE)
    idx = oracle.routing(np.random.default_rng(4), 3, 6, 3, 9, masked=0.3, hot=1.0, empty=[1])
    moe_checks.check(mesh_of, idx, 9, align=4, **options)
    moe_checks.check(mesh_of, np.full_like(idx, -1), 9, **options)


@ways
def test_tokens_of_any_type(way, mesh_of):
    rng = np.random.default_rng(2)
    names = ["int4", "bool", "uint16", "float8_e4m3fn", "complex64"]
    xs = [rng.integers(0, 7, (15, 3)).astype(jnp.dtype(name)) for name in names]
    idx = oracle.routing(rng, 1, 15, 4, 12, masked=0.2)[0]

    def tokens(**options):
        def body(xs, idx):
            d = moe.dispatch(xs[0], idx, num_experts=12, axis_name="e", **options)
            return [d.tokens, *(moe.dispatch(x, handle=d.handle).tokens for x in xs[1:])]

        mapped = jax.shard_map(body, mesh=mesh_of((3,), ("e",)), in_specs=P("e"), out_specs=P("e"))
        return jax.jit(mapped)(xs, idx)

    for layout in LAYOUTS:
        got = tokens(layout=layout, **way, **NATIVE)
        assert [a.dtype.name for a in got] == names
        jax.tree.map(
            np.testing.assert_array_equal, got, tokens(layout=layout, implementation="reference")
        )


def _layer(mesh, **options):
    """(x, idx, w) [n * T, ...] -> what comes back, tokens, and times where asked for; two dispatches in flight."""
    reduction = dict(reduction=options.get("reduction", "ordered"))

    def body(x, idx, w):
        d = moe.dispatch(x, idx, w, num_experts=12, axis_name="e", **options)
        again = moe.dispatch(2 * x, handle=d.handle)
        gate = d.weights if d.weights.ndim == 1 else d.weights.sum(-1)
        y = (jnp.sin(d.tokens.astype(np.float32)) * gate[:, None]).astype(x.dtype)
        out = moe.combine(y, d.handle, **reduction) + moe.combine(
            again.tokens, d.handle, bias=jnp.ones(x.shape[1:], x.dtype), **reduction
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


def _gradients(mesh, arrays, **options):
    f = _layer(mesh, **options)

    def loss(x, idx, w):
        out = f(x, idx, w)
        return (out[0].astype(np.float32) ** 2).sum(), out

    return jax.grad(loss, argnums=(0, 2), has_aux=True)(*arrays)


@ways
@pytest.mark.parametrize(
    "options",
    [
        dict(layout="expert_major"),
        dict(layout="expert_major", reduction="per_rank"),
        dict(layout="rank_major", quantize="fp8", scale_format="power_of_two"),
    ],
    ids=["expert", "per_rank", "fp8"],
)
def test_gradients_and_reuse_equal_those_of_the_collectives(options, way, mesh_of):
    mesh, arrays = mesh_of((3,), ("e",)), _arrays(3)
    results = [
        _gradients(mesh, arrays, implementation=implementation, **options, **way)
        for implementation in ("ragged", "native")
    ]
    jax.tree.map(np.testing.assert_array_equal, *results)


@pytest.mark.parametrize("mode", ["low_latency", "throughput"])
def test_halves_of_float16_equal_those_of_the_collectives(mode, mesh_of):
    x, idx, w = _arrays(3, hidden=7)
    x = x.astype(np.float16)
    results = []
    for implementation in ("ragged", "native"):
        options = dict(num_experts=12, axis_name="e", mode=mode, implementation=implementation)

        def body(x, idx, w, options=options):
            one = moe.dispatch_start(x, idx, w, layout="expert_major", **options)
            two = moe.dispatch_start(x, idx, w, quantize="fp8", **options)
            d, e = moe.dispatch_done(one), moe.dispatch_done(two)
            wide = moe.dequantize(e.tokens, e.scales, np.float16)
            back = moe.combine_start(jnp.sin(d.tokens), d.handle, weights=d.weights)
            narrow = moe.combine_start(d.tokens, d.handle, reduction="per_rank", bias=x)
            also = moe.combine_start(wide, e.handle, bias=x)
            return [moe.combine_done(p) for p in (back, narrow, also)]

        def loss(x, idx, w, body=body):
            mapped = jax.shard_map(
                body, mesh=mesh_of((3,), ("e",)), in_specs=P("e"), out_specs=P("e")
            )
            (out, weights), *more = jax.jit(mapped)(x, idx, w)
            assert {a.dtype for a in (out, *more)} == {x.dtype}
            total = sum(a.astype(np.float32).sum() for a in (out, *more)) + (weights**2).sum()
            return total, (out, weights, more)

        results.append(jax.grad(loss, argnums=(0, 2), has_aux=True)(x, idx, w))
    jax.tree.map(np.testing.assert_array_equal, *results)


@pytest.mark.parametrize("mode", ["low_latency", "throughput"])
def test_scan_and_vmap(mode, mesh_of):
    x, idx, w = _arrays(2)
    two = jnp.stack([x, 3 * x])
    results = []
    for implementation in ("ragged", "native"):
        options = dict(num_experts=12, axis_name="e", mode=mode, implementation=implementation)

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


@ways
def test_wait_times(way, mesh_of):
    mesh, arrays, way = mesh_of((3,), ("e",)), _arrays(3), way | NATIVE
    quantize = None if "hosts" in way else "fp8"
    timed = _layer(mesh, wait_times=True, quantize=quantize, **way)(*arrays)
    plain = _layer(mesh, quantize=quantize, **way)(*arrays)
    assert plain[2] is None
    assert timed[2].shape == (9,) and timed[2].dtype == np.uint32
    assert (np.asarray(timed[2]) > 0).all()
    np.testing.assert_array_equal(timed[0], plain[0])
    np.testing.assert_array_equal(timed[1], plain[1])

    def total(x):
        return _layer(mesh, wait_times=True, quantize=quantize, **way)(x, *arrays[1:])[0].sum()

    def total_plain(x):
        return _layer(mesh, quantize=quantize, **way)(x, *arrays[1:])[0].sum()

    np.testing.assert_array_equal(jax.grad(total)(arrays[0]), jax.grad(total_plain)(arrays[0]))


@ways
def test_automatic_axes_divide_the_width(way, mesh_of):
    layout = "rank_major" if "hosts" in way else "expert_major"
    mesh, alone = mesh_of((2, 3), ("a", "e")), mesh_of((3,), ("e",))
    x, idx, w = _arrays(3, hidden=12)
    x = x.astype(np.float32)  # of narrower ones XLA rounds between operations as it fuses them

    def program(m, **options):
        def body(x, idx, w, factor):
            d = moe.dispatch(x, idx, w, num_experts=12, axis_name="e", layout=layout, **options)
            gate = d.weights if d.weights.ndim == 1 else d.weights.sum(-1)
            y = (d.tokens**2 * gate[:, None]).astype(x.dtype) * factor
            return moe.combine(y, d.handle)

        specs = (P("e"), P("e"), P("e"), P())
        mapped = jax.shard_map(
            body, mesh=m, in_specs=specs, out_specs=P("e"), axis_names={"e"}, check_vma=False
        )
        return lambda *arrays: jax.vjp(mapped, *arrays[:-1])[1](arrays[-1])[0], mapped

    factor = jnp.arange(12, dtype=x.dtype)
    wide = NamedSharding(mesh, P("e", "a"))
    narrow = NamedSharding(mesh, P("e"))
    placed = [
        jax.device_put(v, s)
        for v, s in ((x, wide), (idx, narrow), (w, narrow), (factor, NamedSharding(mesh, P("a"))))
    ]
    back, forth = program(mesh, **way, **NATIVE)
    want_back, want_forth = program(alone, implementation="ragged", mode=way["mode"])
    want = jax.jit(want_forth)(x, idx, w, factor)
    ct = np.cos(np.asarray(want, np.float32)).astype(x.dtype)
    want_x = jax.jit(want_back)(x, idx, w, factor, ct)
    for f, arrays, expected in ((forth, placed, want), (back, [*placed, ct], want_x)):
        compiled = jax.jit(f).lower(*arrays).compile()
        text = compiled.as_text()
        assert "jax_uccl_moe_" in text and "jax_uccl_auto" not in text
        assert not re.search(r" (all-gather|all-reduce|all-to-all|reduce-scatter)[-a-z]*\(", text)
        np.testing.assert_array_equal(np.asarray(compiled(*arrays)), np.asarray(expected))


def test_the_direct_executor_says_what_low_latency_needs(executor, mesh_of):
    if executor == "fifo":
        pytest.skip("it is there")
    with pytest.raises(jax_uccl.UnsupportedError, match="executor=fifo"), jax_uccl.errors():
        jax.block_until_ready(
            _layer(mesh_of((3,), ("e",)), mode="low_latency", **NATIVE)(*_arrays(3))
        )
