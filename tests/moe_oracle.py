"""Dispatch and combine in NumPy, token by token: what the tests of jax_uccl.moe compare with."""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass
class Received:
    """What one rank gets, without padding rows; lists in the order of the rows."""

    rows: list[int]  # where each is in the result
    sources: list[tuple[int, int]]  # (rank, token)
    choices: list[int]  # expert-major: which choice; rank-major: -1
    experts: np.ndarray  # as Dispatched.experts, with padding
    counts: np.ndarray


def serve(idx: np.ndarray, num_experts: int, capacity: int, layout: str, align: int = 1):
    """`idx` [n, T, K] with -1 for what no capacity is left for, and the demand of each rank."""
    n, tokens, k = idx.shape
    local = num_experts // n
    served, demand = np.full_like(idx, -1), np.zeros(n, int)
    reserved = local * (align - 1) if layout == "expert_major" else 0
    for d in range(n):
        for t in range(tokens):
            for s in range(n):
                mine = [j for j in range(k) if idx[s, t, j] >= 0 and idx[s, t, j] // local == d]
                groups = [[j] for j in mine] if layout == "expert_major" else [mine] * bool(mine)
                for group in groups:
                    demand[d] += 1
                    if demand[d] <= capacity - reserved:
                        served[s, t, group] = idx[s, t, group]
    return served, demand + reserved


def receive(
    served: np.ndarray, num_experts: int, rank: int, capacity: int, layout: str, align: int = 1
) -> Received:
    """The rows of one rank."""
    n, tokens, k = served.shape
    local = num_experts // n
    copies = []
    for s in range(n):
        for t in range(tokens):
            ids = [
                int(e) - rank * local if e >= 0 and e // local == rank else -1 for e in served[s, t]
            ]
            if max(ids) >= 0:
                copies.append((s, t, ids))
    counts = np.array([sum(i == e for *_, ids in copies for i in ids) for e in range(local)])
    if layout == "rank_major":
        experts = np.full((capacity, k), -1)
        for i, (_, _, ids) in enumerate(copies):
            experts[i] = ids
        rows = list(range(len(copies)))
        return Received(rows, [c[:2] for c in copies], [-1] * len(rows), experts, counts)
    experts = np.full(capacity, -1)
    rows, sources, choices, at = [], [], [], 0
    for e in range(local):
        at = -(-at // align) * align
        for s, t, ids in copies:
            for j in range(k):
                if ids[j] == e:
                    experts[at] = e
                    rows.append(at)
                    sources.append((s, t))
                    choices.append(j)
                    at += 1
    return Received(rows, sources, choices, experts, counts)


def add_in_order(parts: list[np.ndarray], shape: tuple[int, ...], dtype) -> np.ndarray:
    """The parts added one after the other in f32, then rounded."""
    total = np.zeros(shape, np.float32)
    for part in parts:
        total = total + part.astype(np.float32)
    return total.astype(dtype)


def combine(
    ys: list[np.ndarray], got: list[Received], served: np.ndarray, num_experts: int, dtype
) -> np.ndarray:
    """[n, T, ...]: the ordered sum of the rows of all ranks (`ys[r]` has the padding rows as well)."""
    n, tokens, k = served.shape
    local = num_experts // n
    where = {}
    for d, received in enumerate(got):
        for row, (s, t), j in zip(received.rows, received.sources, received.choices, strict=True):
            where[d, s, t, j] = row
    out = np.zeros((n, tokens, *ys[0].shape[1:]), dtype)
    for s in range(n):
        for t in range(tokens):
            parts, seen = [], set()
            for j in range(k):
                if served[s, t, j] < 0:
                    continue
                d = int(served[s, t, j]) // local
                if (d, s, t, -1) in where:
                    if d not in seen:
                        parts.append(ys[d][where[d, s, t, -1]])
                    seen.add(d)
                else:
                    parts.append(ys[d][where[d, s, t, j]])
            out[s, t] = add_in_order(parts, out.shape[2:], dtype)
    return out


def routing(rng, ranks, tokens, top_k, num_experts, *, masked=0.0, hot=0.0, empty=()):
    """Choices int32 [n, T, K] distinct in a token; a share `hot` of tokens goes to the experts of rank 0 first."""
    scores = rng.random((ranks, tokens, num_experts))
    local = num_experts // ranks
    scores[..., :local] += rng.random((ranks, tokens, 1)) < hot
    idx = np.argsort(-scores, axis=-1)[..., :top_k].astype(np.int32)
    idx = rng.permuted(idx, axis=-1)
    idx[rng.random(idx.shape) < masked] = -1
    for s in empty:
        idx[s] = -1
    return idx
