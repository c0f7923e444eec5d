"""jax_uccl.sharded.moe: dispatch and combine under plain jit; no collective of XLA's appears around ours."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import moe_oracle as oracle
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_uccl
from jax_uccl import moe, sharded

NATIVE = re.compile(
    r" (all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute)(?:-start)?\("
)
RANKS, TOKENS, K, E, H = 3, 12, 3, 6, 4
# Tokens over the experts' axis and width over the other; and tokens over both: two groups of three ranks.
SPECS = [P("e", "d"), P(("d", "e"))]


# Kind of the mesh axes, XLA's partitioner, spec and layout.
PROGRAMS = [
    ("auto", "shardy", SPECS[0], "rank_major"),
    ("explicit", "shardy", SPECS[1], "expert_major"),
    pytest.param("auto", "gspmd", SPECS[1], "expert_major", marks=pytest.mark.slow),
    pytest.param("explicit", "gspmd", SPECS[0], "rank_major", marks=pytest.mark.slow),
]


@pytest.fixture
def inputs():
    rng = np.random.default_rng(0)
    idx = oracle.routing(rng, 1, TOKENS, K, E, masked=0.2)[0]
    x = rng.normal(size=(TOKENS, H)).astype(np.float32)
    return x, idx, rng.random((TOKENS, K)).astype(np.float32)


def _mesh(mesh_of, kind="auto"):
    types = AxisType.Explicit if kind == "explicit" else AxisType.Auto
    return mesh_of((2, RANKS), ("d", "e"), axis_types=(types,) * 2)


def _place(mesh, spec, x, *others):
    put = lambda a, s: jax.device_put(a, NamedSharding(mesh, s))  # noqa: E731
    return put(x, spec), *(put(a, P(spec[0])) for a in others)


def _gate(d):
    return d.weights if d.weights.ndim == 1 else d.weights.sum(-1)


@pytest.mark.parametrize(("kind", "partitioner", "spec", "layout"), PROGRAMS)
def test_values_gradients_and_programs(kind, partitioner, spec, layout, mesh_of, inputs):
    mesh, (x, idx, w) = _mesh(mesh_of, kind), inputs
    where = {} if kind == "explicit" else {"spec": spec}
    options = dict(num_experts=E, axis_name="e", layout=layout, **where)

    def layer(x, idx, w):
        d = sharded.moe.dispatch(x, idx, w, **options)
        y = d.tokens**2 * _gate(d)[:, None]
        out, back = sharded.moe.combine(y, d.handle, weights=d.weights, bias=x, **where)
        return out, back

    def pull(x, idx, w, cts):
        return jax.vjp(lambda x, w: layer(x, idx, w), x, w)[1](cts)

    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", partitioner == "shardy")
    try:
        with jax.set_mesh(mesh):
            arguments = _place(mesh, spec, *inputs)
            forward = jax.jit(layer).lower(*arguments).compile()
            out, back = forward(*arguments)
            cts = _place(mesh, spec, np.cos(x), np.sin(w))
            backward = jax.jit(pull).lower(*arguments, cts).compile()
            dx, dw = backward(*arguments, cts)
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)
    served = np.where(idx >= 0, w, 0)
    gate = served.sum(1, keepdims=True)
    np.testing.assert_allclose(out, x**2 * gate + x, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.asarray(back), served)
    np.testing.assert_allclose(dx, np.cos(x) * (2 * x * gate + 1), rtol=1e-5, atol=1e-6)
    of_gate = (np.cos(x) * x**2).sum(1, keepdims=True) + np.sin(w)
    np.testing.assert_allclose(dw, np.where(idx >= 0, of_gate, 0), rtol=1e-5, atol=1e-6)
    assert out.sharding.is_equivalent_to(NamedSharding(mesh, spec), 2)
    for program in (forward, backward):
        text = program.as_text()
        assert re.search("jax_uccl_(ragged_all_to_all|moe_exchange|moe_return)", text)
        found = NATIVE.findall(text)
        # What the devices of "d" know of the weights' gradient must be added up: the width is divided there.
        assert found == ([] if program is forward or spec != SPECS[0] else ["all-reduce"]), found


def test_blocks_are_those_of_the_ranks(mesh_of, inputs):
    # Every array of the result is that of moe.dispatch, rank after rank.
    mesh, (x, idx, w) = _mesh(mesh_of), inputs
    table = np.array([[0], [1], [5], [3], [4], [2]])
    options = dict(
        num_experts=E, axis_name="e", layout="expert_major", capacity=7, stats=True, quantize="fp8"
    )
    options |= dict(dequantize=False, mode="low_latency")
    both = P(("d", "e"))

    def local(x, idx, w):
        d = moe.dispatch(x, idx, w, logical_to_physical=table, **options)
        lift = lambda a: jax.tree.map(lambda v: v[None], a)  # noqa: E731
        return d.tokens, d.scales, lift((d.num_rows, d.demand, d.stats)), d.counts, d.handle.slots

    mapped = jax.shard_map(local, mesh=mesh, in_specs=both, out_specs=both)
    want = jax.jit(mapped)(x, idx, w)
    arguments = _place(mesh, both, x, idx, w)
    where = dict(spec=both, mesh=mesh)
    f = lambda *a: sharded.moe.dispatch(*a, logical_to_physical=table, **options, **where)  # noqa: E731
    d = jax.jit(f)(*arguments)
    got = (d.tokens, d.scales, (d.num_rows, d.demand, d.stats), d.counts, d.handle.slots)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a, np.float32), np.asarray(b, np.float32))
    assert d.demand.shape == (6,) and d.counts.shape == (2 * E,)


def test_handle_is_used_again_and_inside_shard_map(mesh_of, inputs):
    mesh, (x, idx, _) = _mesh(mesh_of), inputs
    where = dict(spec=SPECS[0], mesh=mesh)

    def program(x, idx):
        first = sharded.moe.dispatch(x, idx, num_experts=E, axis_name="e", **where)
        again = sharded.moe.dispatch(2 * x, handle=first.handle, **where)
        out = sharded.moe.combine(again.tokens, again.handle, **where)
        inside = jax.shard_map(
            lambda y, handle: moe.combine(y, handle, bias=jnp.ones(2)),
            mesh=mesh,
            in_specs=(SPECS[0], P("e")),
            out_specs=SPECS[0],
        )
        return out, inside(again.tokens, first.handle)

    out, inside = jax.jit(program)(x, idx)
    ranks = np.array([len({e // 2 for e in token if e >= 0}) for token in idx])[:, None]
    np.testing.assert_allclose(out, 2 * x * ranks, rtol=1e-6)
    np.testing.assert_allclose(inside, 2 * x * ranks + 1, rtol=1e-6)


def test_masked_ranks_and_bias(mesh_of, inputs):
    mesh, (x, idx, _) = _mesh(mesh_of), inputs
    where = dict(spec=SPECS[0], mesh=mesh)

    def program(x, idx, mask, wide, narrow):
        d = sharded.moe.dispatch(x, idx, num_experts=E, axis_name="e", rank_mask=mask, **where)
        return sharded.moe.combine(d.tokens, d.handle, bias=(wide, narrow), **where)

    wide, narrow = np.ones((TOKENS, 1), np.float32), np.arange(H, dtype=np.float32)
    out = jax.jit(program)(x, idx, np.array([True, False, True]), wide, narrow)
    ranks = np.array([len({e // 2 for e in token if e >= 0} - {1}) for token in idx])
    ranks[TOKENS // 3 : 2 * TOKENS // 3] = 0
    np.testing.assert_allclose(out, x * ranks[:, None] + wide + narrow, rtol=1e-6)


def test_errors_say_the_fix(mesh_of, inputs):
    mesh, (x, idx, _) = _mesh(mesh_of), inputs
    options = dict(num_experts=E, axis_name="e")

    def fails(match, f):
        with pytest.raises(jax_uccl.UcclValueError, match=match):
            jax.jit(f)(x, idx)

    dispatch, combine = sharded.moe.dispatch, sharded.moe.combine
    fails("jax.set_mesh", lambda x, i: dispatch(x, i, spec=P("e"), **options))
    fails("sharded.moe.dispatch needs spec=", lambda x, i: dispatch(x, i, mesh=mesh, **options))
    fails(
        "the leading axis, the tokens, must be divided along .'e',., but its mesh axes are .'d',.",
        lambda x, i: dispatch(jnp.ones((len(x), 6)), i, mesh=mesh, spec=P("d", "e"), **options),
    )
    fails("topk_idx and axis_name, or a handle", lambda x, i: dispatch(x, mesh=mesh, spec=P("e")))
    fails("must be a moe.Handle", lambda x, i: dispatch(x, handle=3, mesh=mesh, spec=P("e")))
    fails("must be a moe.Handle", lambda x, i: combine(x, None, mesh=mesh, spec=P("e")))
    inside = jax.shard_map(
        lambda x, i: dispatch(x, i, **options).tokens, mesh=mesh, in_specs=P("e"), out_specs=P("e")
    )
    fails("call jax_uccl.moe.dispatch", inside)
