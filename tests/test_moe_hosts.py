"""A dispatch in two levels: the results of one level, to the bit, whichever ranks share a host."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
import moe_oracle as oracle
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from moe_checks import check

import jax_uccl
from jax_uccl import moe, sharded
from jax_uccl._src.moe import hosts as hosts_of

LAYOUTS = ["rank_major", "expert_major"]
# Equal blocks, uneven ones, ranks dealt out in turn, a host of one rank, one rank on each.
HOSTS = [
    (8, 2),
    (6, 3),
    (5, [0, 0, 0, 1, 1]),
    (6, [0, 1, 2, 0, 1, 2]),
    (4, [7, 7, 3, 7]),
    (3, 3),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("ranks", "hosts"), HOSTS)
def test_values(ranks, hosts, layout, mesh_of):
    idx = oracle.routing(np.random.default_rng(ranks), ranks, 9, 4, 4 * ranks, masked=0.1)
    idx[1] = -1  # a rank without tokens
    d, _ = check(mesh_of, idx, 4 * ranks, layout=layout, hosts=hosts)
    assert d.handle.spec.two_level


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("capacity", [7, 12, 20])
def test_capacity(capacity, layout, mesh_of):
    idx = oracle.routing(np.random.default_rng(0), 4, 9, 3, 8)
    d, _ = check(
        mesh_of, idx, 8, layout=layout, capacity=capacity, hosts=2, dtype=ml_dtypes.bfloat16
    )
    assert d.stats.dropped.sum() > 0


@pytest.mark.parametrize("tokens", [0, 1, 2, 7])
def test_tokens(tokens, mesh_of):
    idx = oracle.routing(np.random.default_rng(1), 4, tokens, 5, 12)
    check(mesh_of, idx, 12, layout="expert_major", hosts=2, align=4)


@pytest.mark.parametrize("chosen", [0, 5, 7])
def test_everything_to_one_rank(chosen, mesh_of):
    check(mesh_of, np.full((8, 6, 1), chosen, np.int32), 8, hosts=[0, 0, 1, 1, 1, 2, 2, 2])


def _inputs(n=4, tokens=6, k=3, experts=8, hidden=5):
    rng = np.random.default_rng(3)
    idx = oracle.routing(rng, 1, n * tokens, k, experts, masked=0.15)[0]
    x = rng.normal(size=(n * tokens, hidden)).astype(np.float32)
    return x, idx, rng.random((n * tokens, k)).astype(np.float32)


def _layer(x, idx, w, *, halves=False, **options):
    options = dict(num_experts=8, axis_name="e") | options
    if halves:
        d = moe.dispatch_done(moe.dispatch_start(x, idx, w, **options))
    else:
        d = moe.dispatch(x, idx, w, **options)
    gate = d.weights if d.weights.ndim == 1 else d.weights.sum(-1)
    again = moe.dispatch(x**2, handle=d.handle).tokens
    y = (d.tokens.astype(x.dtype) ** 2 + again) * gate[:, None]
    empty = (d.experts < 0).reshape(y.shape[0], -1).all(-1, keepdims=True)
    return moe.combine(jnp.where(empty, jnp.nan, y), d.handle)


def _mapped(mesh, **options):
    layer = partial(_layer, **options)
    return jax.shard_map(layer, mesh=mesh, in_specs=P("e"), out_specs=P("e"), check_vma=False)


def _gradients(mesh, x, idx, w, **options):
    loss = lambda x, w: (_mapped(mesh, **options)(x, idx, w) ** 2).sum()  # noqa: E731
    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(x, w)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        dict(layout="rank_major"),
        dict(layout="expert_major"),
        dict(layout="expert_major", reduction="per_rank"),
        dict(layout="rank_major", quantize="fp8"),
        dict(layout="rank_major", halves=True),
    ],
    ids=["rank", "expert", "per_rank", "fp8", "halves"],
)
def test_values_and_gradients_are_those_of_one_level(options, mesh_of):
    mesh, inputs = mesh_of((4,), ("e",)), _inputs()
    one, two = (_gradients(mesh, *inputs, hosts=hosts, **options) for hosts in (1, 2))
    assert np.isfinite(one[0])
    np.testing.assert_array_equal(one[0], two[0])
    for a, b in zip(one[1], two[1], strict=True):
        if "halves" in options:  # there gateways add up before they round
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_under_vmap_scan_and_checked_types(mesh_of):
    mesh, (x, idx, w) = mesh_of((4,), ("e",)), _inputs()
    want = jax.jit(_mapped(mesh, hosts=1))(x, idx, w)
    named = jax.vmap(partial(_layer, hosts=2), axis_name="e")
    split = [a.reshape(4, -1, a.shape[-1]) for a in (x, idx, w)]
    np.testing.assert_array_equal(named(*split).reshape(want.shape), want)

    def layers(x, idx, w):
        body = lambda c, _: (_layer(c, idx, w, hosts=[0, 1, 1, 0]) / 8, None)  # noqa: E731
        return jax.lax.scan(body, x, None, length=2)[0]

    got = jax.jit(jax.shard_map(layers, mesh=mesh, in_specs=P("e"), out_specs=P("e")))(x, idx, w)
    twice = jax.jit(_mapped(mesh, hosts=1))(want / 8, idx, w) / 8
    np.testing.assert_allclose(got, twice, rtol=1e-6)

    both = jax.vmap(partial(_layer, hosts=2), in_axes=(0, None, 0))
    both = jax.shard_map(
        both, mesh=mesh, in_specs=(P(None, "e"), P("e"), P(None, "e")), out_specs=P(None, "e")
    )
    got = jax.jit(both)(np.stack([x, 2 * x]), idx, np.stack([w, w]))
    np.testing.assert_array_equal(got[0], want)


def test_global_view_takes_hosts(mesh_of):
    mesh, (x, idx, w) = mesh_of((4,), ("e",)), _inputs()
    where = dict(spec=P("e"), mesh=mesh)

    @jax.jit
    def layer(x, idx, w):
        d = sharded.moe.dispatch(x, idx, w, num_experts=8, axis_name="e", hosts=2, **where)
        return d.tokens, sharded.moe.combine(d.tokens, d.handle, **where)

    tokens, out = layer(x, idx, w)
    one = jax.jit(
        jax.shard_map(
            lambda x, idx, w: moe.dispatch(x, idx, w, num_experts=8, axis_name="e").tokens,
            mesh=mesh,
            in_specs=P("e"),
            out_specs=P("e"),
        )
    )(x, idx, w)
    np.testing.assert_array_equal(tokens, one)
    ranks = np.array([len({e // 2 for e in row if e >= 0}) for row in idx])
    np.testing.assert_allclose(out, x * ranks[:, None], rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (dict(hosts=3), jax_uccl.UcclValueError, "hosts=3 does not divide the 4 ranks"),
        (dict(hosts=[0, 1]), jax_uccl.UcclValueError, r"each of the 4 ranks, got \[0, 1\]"),
        (dict(hosts="ab"), jax_uccl.UcclValueError, "each of the 4 ranks, got 'ab'"),
        (dict(hosts=2, mode="low_latency"), jax_uccl.UnsupportedError, "leave hosts out"),
        (dict(hosts=2, implementation="reference"), jax_uccl.UnsupportedError, "leave hosts out"),
    ],
)
def test_what_does_not_fit_is_refused(options, error, text, mesh_of):
    x, idx, w = _inputs()
    with pytest.raises(error, match=text):
        jax.eval_shape(_mapped(mesh_of((4,), ("e",)), **options), x, idx, w)


def test_hosts_beside_a_handle_must_be_its_own(mesh_of):
    x, idx, _ = _inputs()

    def layer(x, idx, hosts):
        d = moe.dispatch(x, idx, num_experts=8, axis_name="e", hosts=2)
        return moe.dispatch(x, handle=d.handle, hosts=hosts).tokens

    def trace(hosts):
        f = jax.shard_map(
            partial(layer, hosts=hosts),
            mesh=mesh_of((4,), ("e",)),
            in_specs=P("e"),
            out_specs=P("e"),
        )
        return jax.eval_shape(f, x, idx)

    trace([5, 5, 1, 1])
    with pytest.raises(jax_uccl.UcclValueError, match="with which the handle was made"):
        trace(4)


@pytest.mark.parametrize("hosts", [given for _, given in HOSTS])
def test_gateways_keep_the_order_of_sources(hosts):
    ranks = next(n for n, given in HOSTS if given is hosts)
    given = hosts_of.given(hosts, ranks)
    gateways = hosts_of.gateways(given)
    for host in range(max(given) + 1):
        assert {given[r] for r in gateways[:, host]} == {host}
        assert list(gateways[:, host]) == sorted(gateways[:, host])
        loads = np.bincount(gateways[:, host])
        assert loads.max() <= -(-ranks // given.count(host))
