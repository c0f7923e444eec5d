"""Dispatch and combine on a mesh beside the oracle, array by array: shared by tests of jax_uccl.moe."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import moe_oracle as oracle
import numpy as np
from jax.sharding import PartitionSpec as P

from jax_uccl import moe

HIDDEN = 6


def values(rng, shape, dtype):
    """Of many magnitudes, so that another order of additions shows in the last bits."""
    x = rng.normal(size=shape) * 2.0 ** rng.integers(-6, 6, shape)
    return x.astype(dtype)


def run(mesh, idx, x, w, y_of, *, check_vma=False, combine=None, **options):
    """Dispatch, `y_of(row values)`, combine; arrays [n, ...] in and out."""

    def body(idx, x, w):
        d = moe.dispatch(x[0], idx[0], w[0], axis_name="e", **options)
        me = jax.lax.axis_index("e")
        y = y_of(d, me)
        out, back = moe.combine(y, d.handle, weights=d.weights, **(combine or {}))
        return jax.tree.map(lambda a: a[None], (d, y, out, back))

    mapped = jax.shard_map(body, mesh=mesh, in_specs=P("e"), out_specs=P("e"), check_vma=check_vma)
    d, *rest = jax.jit(mapped)(idx, x, w)
    return jax.tree.map(np.asarray, d), *map(np.asarray, rest)


def check(mesh_of, idx, num_experts, *, dtype=np.float32, seed=0, align=1, **options):
    """Everything that a dispatch and a combine return, bit for bit."""
    n, tokens, k = idx.shape
    rng = np.random.default_rng(seed)
    layout = options.get("layout", "rank_major")
    x, w = values(rng, (n, tokens, HIDDEN), dtype), rng.random((n, tokens, k)).astype(np.float32)
    local = num_experts // n
    each = min(k, local) if layout == "expert_major" else 1
    reserved = local * (align - 1) if layout == "expert_major" else 0
    capacity = options.get("capacity") or tokens * n * each + reserved
    noise = values(rng, (n, capacity, HIDDEN), dtype)

    def y_of(d, me):
        return d.tokens + jnp.asarray(noise)[me]

    d, y, out, back = run(
        mesh_of((n,), ("e",)),
        idx,
        x,
        w,
        y_of,
        num_experts=num_experts,
        expert_alignment=align,
        stats=True,
        **options,
    )
    served, demand = oracle.serve(idx, num_experts, capacity, layout, align)
    np.testing.assert_array_equal(d.demand, demand)
    got = []
    for r in range(n):
        want = oracle.receive(served, num_experts, r, capacity, layout, align)
        got.append(want)
        np.testing.assert_array_equal(d.experts[r], want.experts)
        np.testing.assert_array_equal(d.counts[r], want.counts)
        np.testing.assert_array_equal(d.group_sizes[r], -(-want.counts // align) * align)
        assert d.num_rows[r] == len(want.rows)
        tokens_want = np.zeros((capacity, HIDDEN), dtype)
        weights_want = np.zeros(want.experts.shape, np.float32)
        for row, (s, t), j in zip(want.rows, want.sources, want.choices, strict=True):
            tokens_want[row] = x[s, t]
            if j < 0:
                weights_want[row] = np.where(want.experts[row] >= 0, w[s, t], 0)
            else:
                weights_want[row] = w[s, t, j]
        np.testing.assert_array_equal(d.tokens[r], tokens_want)
        np.testing.assert_array_equal(d.weights[r], weights_want)
        load = np.bincount(idx[idx >= 0], minlength=num_experts)
        np.testing.assert_array_equal(d.stats.expert_load[r], load)
        in_r = ((idx >= 0) & (idx // local == r)).any(-1).sum(-1)
        np.testing.assert_array_equal(d.stats.source_rows[r], in_r)
        assert d.stats.dropped[r] == (idx[r] >= 0).sum() - (served[r] >= 0).sum()
    np.testing.assert_array_equal(d.handle.topk_idx, served)
    np.testing.assert_array_equal(out, oracle.combine(list(y), got, served, num_experts, dtype))
    np.testing.assert_array_equal(back, np.where(served >= 0, w, 0))
    return d, out
