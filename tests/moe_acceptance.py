"""DeepEP's acceptance checks for `jax_uccl.moe`, in one process or several: each checks the ranks that it has.

    python moe_acceptance.py TOKENS HIDDEN EXPERTS TOP_K REPEATS    # below jax.distributed; reports what was checked

What is expected is worked out in NumPy from the inputs of all ranks, which every process makes from a seed.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jax_uccl import moe

LIMITS = {  # calc_diff of the tokens, by mode and format on the wire
    ("throughput", None): 5e-6,
    ("throughput", "fp8"): 5e-4,
    ("low_latency", None): 1e-5,
    ("low_latency", "fp8"): 9e-4,
}
LIMIT_OF_WEIGHTS = 1e-9


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of one rank; `hot` times the mean load falls on rank 0."""

    tokens: int
    hidden: int
    experts: int
    top_k: int
    hot: int = 1
    repeats: int = 2


def calc_diff(a: Any, b: Any) -> float:
    """DeepEP's distance of two arrays."""
    a, b = np.asarray(a, np.float64) + 1, np.asarray(b, np.float64) + 1
    return float(1 - 2 * (a * b).sum() / (a**2 + b**2).sum())


def choices(sizes: Sizes, ranks: int) -> np.ndarray:
    """[n, T, K] distinct experts; a tenth is masked, and ranks have unequal token counts, one of them none."""
    rng = np.random.default_rng(sizes.hot)
    n, local = ranks, sizes.experts // ranks
    scores = rng.random((n, sizes.tokens, sizes.experts))
    if sizes.hot > 1:
        # So many tokens go to rank 0 with all choices that it can hold.
        most = min(sizes.top_k, local)
        share = (sizes.hot - 1) * sizes.top_k / (n * most - sizes.top_k)
        scores[..., :local] += rng.random((n, sizes.tokens, 1)) < share
    idx = np.argsort(-scores, -1)[..., : sizes.top_k].astype(np.int32)
    idx = rng.permuted(idx, axis=-1)
    idx[rng.random(idx.shape) < 0.1] = -1
    for r in range(1, n):
        idx[r, sizes.tokens * (n - 1 - r) // (n - 1) :] = -1
    return idx


def _place(mesh: Mesh, value: np.ndarray) -> jax.Array:
    flat = value.reshape(-1, *value.shape[2:])
    return jax.make_array_from_callback(flat.shape, NamedSharding(mesh, P("e")), lambda i: flat[i])


def _mine(tree: Any) -> dict[int, Any]:
    """The rows of each rank of this process, by rank: arrays are [n, ...], divided over the ranks."""
    leaves, structure = jax.tree.flatten(tree)
    found: dict[int, list[Any]] = {}
    for leaf in leaves:
        for shard in leaf.addressable_shards:
            found.setdefault(shard.index[0].start or 0, []).append(np.asarray(shard.data)[0])
    return {r: jax.tree.unflatten(structure, values) for r, values in found.items()}


def _program(
    mesh: Mesh, sizes: Sizes, mode: str, quantize: str | None, capacity: int, implementation: str
) -> Any:
    """x [T, hidden], constant [T, 128], choices, weights -> everything that is checked."""
    options: dict[str, Any] = dict(
        num_experts=sizes.experts, axis_name="e", mode=mode, implementation=implementation
    )

    def body(x: Any, constant: Any, idx: Any, w: Any) -> Any:
        d = moe.dispatch(x, idx, w, quantize=quantize, **options)
        counted = moe.layout(idx, num_experts=sizes.experts, axis_name="e")
        same = moe.dispatch(constant, handle=d.handle)
        fresh = moe.dispatch(constant, idx, capacity=capacity, **options)
        grouped = moe.dispatch(constant, idx, layout="expert_major", **options)
        out, back = moe.combine(d.tokens, d.handle, weights=d.weights)
        again = moe.combine(moe.dispatch(x, handle=d.handle, quantize=quantize).tokens, d.handle)
        result = dict(
            out=out,
            again=again,
            back=back,
            experts=d.experts,
            counts=d.counts,
            sources=d.handle.recv_counts,
            same=same.tokens,
            fresh=(fresh.tokens, fresh.experts),
            grouped=(grouped.tokens, grouped.experts, grouped.counts),
            layout=counted,
        )
        return jax.tree.map(lambda a: a[None], result)

    return jax.jit(
        jax.shard_map(body, mesh=mesh, in_specs=P("e"), out_specs=P("e"), check_vma=False)
    )


def check(
    mesh: Mesh, sizes: Sizes, mode: str, quantize: str | None, implementation: str = "ragged"
) -> int:
    """Runs one case; the number of ranks that were checked here. AssertionError where something is wrong."""
    n, local = mesh.devices.size, sizes.experts // mesh.devices.size
    idx = choices(sizes, n)
    rng = np.random.default_rng(3)
    x = rng.normal(size=(n, sizes.tokens, sizes.hidden)).astype(ml_dtypes.bfloat16)
    w = rng.random(idx.shape).astype(np.float32)
    constant = np.broadcast_to(np.arange(n)[:, None, None], (n, sizes.tokens, 128))
    in_rank = np.stack(
        [((idx >= 0) & (idx // local == d)).any(-1) for d in range(n)], -1
    )  # [n, T, d]
    per_rank = in_rank.sum(1)  # [source, target]
    capacity = int(per_rank.sum(0).max())  # holds, just
    f = _program(mesh, sizes, mode, quantize, capacity, implementation)
    arguments = [_place(mesh, a) for a in (x, constant.astype(np.float32), idx, w)]
    result = f(*arguments)
    for r, got in (first := _mine(result)).items():
        # The layout equals an independent count.
        np.testing.assert_array_equal(got["layout"].tokens_per_rank, per_rank[r])
        load = np.bincount(idx[r][idx[r] >= 0], minlength=sizes.experts)
        np.testing.assert_array_equal(got["layout"].tokens_per_expert, load)
        np.testing.assert_array_equal(got["layout"].token_in_rank, in_rank[r])
        # Rows of a rank that sends its number are constant, and those of each source follow one another.
        sources = np.repeat(np.arange(n), per_rank[:, r])
        np.testing.assert_array_equal(got["sources"], per_rank[:, r])
        rows = len(sources)
        want = np.zeros((n * sizes.tokens, 128), np.float32)
        want[:rows] = sources[:, None]
        np.testing.assert_array_equal(got["same"], want)
        # Local expert ids, and how many of each.
        ids = got["experts"]
        assert ids.min() >= -1 and ids.max() < local
        loads = np.array([(idx == r * local + e).sum() for e in range(local)])
        np.testing.assert_array_equal([(ids == e).sum() for e in range(local)], loads)
        np.testing.assert_array_equal(got["counts"], loads)
        # A result without room to spare is the prefix of the other, whose tail is -1.
        assert (ids[rows:] == -1).all() and (ids[:rows] >= 0).any(-1).all()
        fresh, fresh_ids = got["fresh"]
        kept = min(capacity, n * sizes.tokens)
        np.testing.assert_array_equal(fresh[:kept], got["same"][:kept])
        np.testing.assert_array_equal(fresh_ids[:kept], ids[:kept])
        tokens, grouped_ids, counts = got["grouped"]
        np.testing.assert_array_equal(counts, loads)
        np.testing.assert_array_equal(
            grouped_ids[: loads.sum()], np.repeat(np.arange(local), loads)
        )
        assert (grouped_ids[loads.sum() :] == -1).all() and not tokens[loads.sum() :].any()
        assert (tokens == tokens[:, :1]).all()
        by_source = np.bincount(tokens[: loads.sum(), 0].astype(int), minlength=n)
        np.testing.assert_array_equal(by_source, ((idx // local == r) & (idx >= 0)).sum((1, 2)))
        # Experts that change nothing.
        ranks = in_rank[r].sum(-1, keepdims=True)
        mean = got["out"].astype(np.float32) / np.maximum(ranks, 1)
        difference = calc_diff(mean, np.where(ranks > 0, x[r], 0))
        assert difference < LIMITS[mode, quantize], (difference, mode, quantize)
        assert calc_diff(got["back"], np.where(idx[r] >= 0, w[r], 0)) < LIMIT_OF_WEIGHTS
        np.testing.assert_array_equal(got["again"], got["out"])  # the handle again
    for _ in range(sizes.repeats):
        for r, got in _mine(f(*arguments)).items():
            for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(first[r]), strict=True):
                assert a.tobytes() == b.tobytes()
    return len(first)


# maxtext's matrix: tokens from rank to rank, and where they begin at either end (marin#4746).
SENT = np.array([[1, 2, 0, 3], [4, 0, 1, 2], [0, 3, 2, 1], [2, 1, 4, 0]])
INPUT_OFFSETS = np.array([[0, 1, 3, 3], [0, 4, 4, 5], [0, 0, 3, 5], [0, 2, 3, 7]])
OUTPUT_OFFSETS = np.array([[0, 0, 0, 0], [1, 2, 0, 3], [5, 2, 1, 5], [5, 5, 3, 6]])


def check_offsets(mesh: Mesh) -> int:
    """Where slices begin on four ranks."""
    tokens = int(SENT.sum(1).max())
    idx = np.full((4, tokens, 1), -1, np.int32)
    for r in range(4):
        to = np.repeat(np.arange(4), SENT[r])
        idx[r, : len(to), 0] = np.random.default_rng(r).permutation(to)

    def body(idx: Any) -> Any:
        h = moe.dispatch(jnp.zeros((tokens, 1)), idx, num_experts=4, axis_name="e").handle
        found = (h.send_offsets, h.send_counts, h.land_offsets, h.recv_counts)
        return tuple(a[None] for a in found)

    mapped = jax.shard_map(body, mesh=mesh, in_specs=P("e"), out_specs=P("e"), check_vma=False)
    ranks = _mine(jax.jit(mapped)(_place(mesh, idx)))
    for r, (starts, counts, lands, received) in ranks.items():
        np.testing.assert_array_equal(starts, INPUT_OFFSETS[r])
        np.testing.assert_array_equal(counts, SENT[r])
        np.testing.assert_array_equal(lands, OUTPUT_OFFSETS[r])
        np.testing.assert_array_equal(received, SENT[:, r])
    return len(ranks)


def main() -> None:
    """All cases in one process of several."""
    from child_report import report

    import jax_uccl

    tokens, hidden, experts, top_k, repeats = map(int, sys.argv[1:6])
    mesh = Mesh(np.array(jax.devices()), ("e",))
    checked = check_offsets(mesh) if mesh.devices.size == 4 else 0
    for hot, case in enumerate(LIMITS):
        sizes = Sizes(tokens, hidden, experts, top_k, hot=1 + 3 * (hot % 2), repeats=repeats)
        checked += check(mesh, sizes, *case)
    report(checked)
    jax_uccl.shutdown()
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
