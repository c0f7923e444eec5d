"""Values of jax_uccl.moe against a NumPy oracle: every rank count, token count, top-k, layout and mode."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import moe_oracle as oracle
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from moe_checks import HIDDEN, check, values

from jax_uccl import moe

LAYOUTS = ["rank_major", "expert_major"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 6, 8])
def test_ranks(ranks, layout, mesh_of):
    idx = oracle.routing(np.random.default_rng(ranks), ranks, 9, 4, 4 * ranks, masked=0.1)
    check(mesh_of, idx, 4 * ranks, layout=layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_reference(ranks, layout, mesh_of):
    idx = oracle.routing(np.random.default_rng(ranks), ranks, 5, 4, 4 * ranks, masked=0.1)
    check(mesh_of, idx, 4 * ranks, layout=layout, implementation="reference")
    tight = dict(capacity=7, dtype=ml_dtypes.bfloat16)
    check(mesh_of, idx, 4 * ranks, layout=layout, implementation="reference", **tight)


@pytest.mark.parametrize("tokens", [0, 1, 2, 3, 7, 8, 127, 128, 129])
def test_tokens(tokens, mesh_of):
    idx = oracle.routing(np.random.default_rng(tokens), 3, tokens, 3, 9)
    for layout in LAYOUTS if tokens < 128 else ["expert_major"]:
        check(mesh_of, idx, 9, layout=layout)


@pytest.mark.parametrize("top_k", [1, 2, 5, 8])
def test_top_k(top_k, mesh_of):
    # More choices than experts on a rank, and the reverse.
    idx = oracle.routing(np.random.default_rng(top_k), 3, 6, top_k, 9)
    check(mesh_of, idx, 9, layout="expert_major", dtype=ml_dtypes.bfloat16)
    check(mesh_of, idx, 9, layout="rank_major", dtype=ml_dtypes.bfloat16)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("hot", [0.25, 1.0])
def test_unequal_ranks(hot, layout, mesh_of):
    # Rank 0 is hot, rank 1 has no tokens, and the others have masked ones.
    idx = oracle.routing(np.random.default_rng(4), 5, 8, 3, 15, masked=0.3, hot=hot, empty=[1])
    check(mesh_of, idx, 15, layout=layout)
    check(mesh_of, np.full_like(idx, -1), 15, layout=layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("capacity", [1, 10, 23])
def test_small_capacity_drops_in_order(capacity, layout, mesh_of):
    idx = oracle.routing(np.random.default_rng(5), 4, 8, 3, 8, hot=0.5)
    d, _ = check(mesh_of, idx, 8, layout=layout, capacity=capacity)
    assert (d.demand > capacity).any()  # otherwise this test shows nothing
    assert (d.num_rows <= capacity).all()


def test_default_capacity(mesh_of):
    # maxtext#1767: no more than choices that can be on one rank.
    idx = oracle.routing(np.random.default_rng(5), 3, 4, 6, 12)
    assert check(mesh_of, idx, 12)[0].tokens.shape[1] == 4 * 3
    d, _ = check(mesh_of, idx, 12, layout="expert_major", align=8)
    assert d.tokens.shape[1] == 4 * 3 * 4 + 4 * 7
    idx = oracle.routing(np.random.default_rng(5), 3, 4, 2, 12)
    assert check(mesh_of, idx, 12, layout="expert_major")[0].tokens.shape[1] == 4 * 3 * 2


@pytest.mark.parametrize("align", [4, 7])
def test_alignment(align, mesh_of):
    idx = oracle.routing(np.random.default_rng(6), 3, 8, 3, 9, masked=0.2)
    check(mesh_of, idx, 9, layout="expert_major", align=align)
    check(mesh_of, idx, 9, layout="expert_major", align=align, capacity=3 * (align - 1) + 12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_low_latency(layout, mesh_of):
    idx = oracle.routing(np.random.default_rng(7), 5, 8, 3, 15, masked=0.2, hot=0.5, empty=[2])
    check(mesh_of, idx, 15, layout=layout, mode="low_latency")
    check(mesh_of, idx, 15, layout=layout, mode="low_latency", capacity=9)


def test_repeated_choices_take_a_row_each(mesh_of):
    idx = np.array([[[1, 1, 2]], [[3, 0, 3]]], np.int32)
    check(mesh_of, idx, 4, layout="expert_major")
    check(mesh_of, idx, 4, layout="rank_major")
    # More rows than the default capacity, which counts on distinct choices.
    idx = np.full((2, 2, 3), 1, np.int32)
    d, _ = check(mesh_of, idx, 4, layout="expert_major")
    assert d.demand.tolist() == [12, 0] and d.num_rows.tolist() == [8, 0]


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8, ml_dtypes.bfloat16])
def test_dtypes_of_tokens(dtype, mesh_of):
    idx = oracle.routing(np.random.default_rng(8), 3, 5, 2, 6)
    x = np.arange(3 * 5 * 4).reshape(3, 5, 2, 2).astype(dtype)

    def body(idx, x):
        d = moe.dispatch(x[0], idx[0], num_experts=6, axis_name="e")
        assert d.weights is None
        if not jnp.issubdtype(x.dtype, np.floating):
            return d.tokens, d.tokens
        return d.tokens, moe.combine(d.tokens, d.handle)

    with jax.enable_x64():
        mapped = jax.shard_map(body, mesh=mesh_of((3,), ("e",)), in_specs=P("e"), out_specs=P("e"))
        tokens, out = map(np.asarray, jax.jit(mapped)(idx, x))
    for r in range(3):
        want = oracle.receive(idx, 6, r, 15, "rank_major")
        for row, (s, t) in zip(want.rows, want.sources, strict=True):
            np.testing.assert_array_equal(tokens[r * 15 + row], x[s, t])
    if np.issubdtype(dtype, np.integer):
        return
    ranks = [[len({e // 2 for e in token}) for token in rank] for rank in idx]
    want = x.astype(np.float64) * np.array(ranks)[..., None, None]
    np.testing.assert_array_equal(out.reshape(x.shape), want.astype(dtype))


def test_layout_counts(mesh_of):
    n, tokens, k = 3, 11, 4
    idx = oracle.routing(np.random.default_rng(11), n, tokens, k, 12, masked=0.2, empty=[2])

    def body(idx):
        out = moe.layout(idx[0], num_experts=12, axis_name="e")
        return jax.tree.map(lambda a: a[None], out)

    mapped = jax.shard_map(body, mesh=mesh_of((n,), ("e",)), in_specs=P("e"), out_specs=P("e"))
    out = jax.tree.map(np.asarray, jax.jit(mapped)(idx))
    for r in range(n):
        in_rank = np.zeros((tokens, n), bool)
        for t in range(tokens):
            for e in idx[r, t]:
                if e >= 0:
                    in_rank[t, e // 4] = True
        np.testing.assert_array_equal(out.token_in_rank[r], in_rank)
        np.testing.assert_array_equal(out.tokens_per_rank[r], in_rank.sum(0))
        want = np.bincount(idx[r][idx[r] >= 0], minlength=12)
        np.testing.assert_array_equal(out.tokens_per_expert[r], want)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_handle_is_used_again(layout, mesh_of):
    # The second dispatch has the same places, and other values of another width.
    n, tokens = 3, 6
    rng = np.random.default_rng(12)
    idx = oracle.routing(rng, n, tokens, 3, 6, masked=0.1)
    x = rng.normal(size=(n, tokens, 5)).astype(np.float32)
    w = rng.random(idx.shape).astype(np.float32)

    def body(idx, x, w):
        x, idx, w = x[0], idx[0], w[0]
        options = dict(num_experts=6, axis_name="e", layout=layout)
        first = moe.dispatch(x, idx, w, **options)
        again = moe.dispatch(2 * x[:, :3], None, w + 1, handle=first.handle)
        fresh = moe.dispatch(2 * x[:, :3], idx, w + 1, **options)
        return jax.tree.map(lambda a: a[None], (again, fresh))

    mapped = jax.shard_map(body, mesh=mesh_of((n,), ("e",)), in_specs=P("e"), out_specs=P("e"))
    again, fresh = jax.jit(mapped)(idx, x, w)
    assert jax.tree.structure(again) == jax.tree.structure(fresh)
    for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(fresh), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_per_rank_reduction_and_bias(mesh_of):
    n, tokens, k, local = 3, 7, 4, 3
    rng = np.random.default_rng(13)
    idx = oracle.routing(rng, n, tokens, k, n * local, masked=0.1)
    dtype = ml_dtypes.bfloat16
    y = values(rng, (n, tokens * n * 3, HIDDEN), dtype)
    biases = [values(rng, (n, tokens, HIDDEN), np.float32), values(rng, (n, HIDDEN), dtype)]

    def body(idx, y, one, other):
        options = dict(num_experts=n * local, axis_name="e", layout="expert_major")
        handle = moe.dispatch(jnp.zeros((tokens, 1)), idx[0], **options).handle
        bias = (one[0], other[0])
        return [
            moe.combine(y[0], handle, reduction="per_rank")[None],
            moe.combine(y[0], handle, bias=bias)[None],
            moe.combine(y[0], handle, bias=one[0])[None],
        ]

    mapped = jax.shard_map(body, mesh=mesh_of((n,), ("e",)), in_specs=P("e"), out_specs=P("e"))
    per_rank, two, one = map(np.asarray, jax.jit(mapped)(idx, y, *biases))
    got = [oracle.receive(idx, n * local, r, y.shape[1], "expert_major") for r in range(n)]
    where = {
        (r, s, t, j): row
        for r in range(n)
        for row, (s, t), j in zip(got[r].rows, got[r].sources, got[r].choices, strict=True)
    }
    for s in range(n):
        for t in range(tokens):
            chosen = [j for j in range(k) if idx[s, t, j] >= 0]
            rank_of = {j: int(idx[s, t, j]) // local for j in chosen}
            sums = [
                oracle.add_in_order(
                    [y[r][where[r, s, t, j]] for j in chosen if rank_of[j] == r], (HIDDEN,), dtype
                )
                for r in dict.fromkeys(rank_of[j] for j in chosen)
            ]
            want = oracle.add_in_order(sums, (HIDDEN,), dtype)
            np.testing.assert_array_equal(per_rank[s, t], want)
            rows = [y[rank_of[j]][where[rank_of[j], s, t, j]] for j in chosen]
            want = oracle.add_in_order([*rows, biases[0][s, t]], (HIDDEN,), dtype)
            np.testing.assert_array_equal(one[s, t], want)
            want = oracle.add_in_order([*rows, biases[0][s, t], biases[1][s]], (HIDDEN,), dtype)
            np.testing.assert_array_equal(two[s, t], want)


def test_ordered_sum_does_not_depend_on_the_rank_count(mesh_of):
    # The same 24 tokens on 1, 3 and 8 ranks.
    rng = np.random.default_rng(14)
    idx = oracle.routing(rng, 1, 24, 5, 48)[0]
    x = values(rng, (24, HIDDEN), ml_dtypes.bfloat16)
    factor = values(rng, (48, HIDDEN), np.float32)

    def body(idx, x, factor):
        options = dict(num_experts=48, axis_name="e", layout="expert_major")
        d = moe.dispatch(x, idx, **options)
        y = d.tokens * factor[jnp.maximum(d.experts, 0)].astype(x.dtype)
        return moe.combine(y, d.handle)

    results = []
    for n in (1, 3, 8):
        mapped = jax.shard_map(body, mesh=mesh_of((n,), ("e",)), in_specs=P("e"), out_specs=P("e"))

        def loss(v, mapped=mapped):
            out = mapped(idx, v, factor)
            return (out.astype(np.float32) ** 2).sum(), out

        gradient, out = jax.jit(jax.grad(loss, has_aux=True))(x)
        results.append([np.asarray(out), np.asarray(gradient)])
    for out, gradient in results[1:]:
        np.testing.assert_array_equal(out, results[0][0])
        np.testing.assert_array_equal(gradient, results[0][1])


def test_twenty_runs_are_equal(mesh_of):
    n, tokens = 8, 32
    rng = np.random.default_rng(15)
    idx = oracle.routing(rng, n, tokens, 4, 16, hot=0.5)
    x = values(rng, (n, tokens, 64), ml_dtypes.bfloat16)

    def body(idx, x):
        d = moe.dispatch(x[0], idx[0], num_experts=16, axis_name="e", layout="expert_major")
        return d.tokens[None], moe.combine(d.tokens * d.tokens, d.handle)[None]

    mapped = jax.shard_map(body, mesh=mesh_of((n,), ("e",)), in_specs=P("e"), out_specs=P("e"))
    f = jax.jit(mapped)
    first = jax.tree.map(np.asarray, f(idx, x))
    for _ in range(20):
        for a, b in zip(first, f(idx, x), strict=True):
            np.testing.assert_array_equal(a, np.asarray(b))
