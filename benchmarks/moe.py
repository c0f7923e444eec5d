"""MoE dispatch and combine beside what is written with jax.lax today, in one run.

    python benchmarks/moe.py [--layouts 4x1,1x8,8x1,2x4] [--shapes 128x7168,4096x2048] [--peers uccl,mix]
        [--skews 1] [--experts 64] [--top-k 8] [--rounds 5] [--cell-seconds 20] [--json out.json]

Peers, all bf16; a layout is processes x devices of each, a shape is tokens of each rank x hidden:
  uccl             rank-major, one row for each token and rank; weights applied before the way back
  uccl-ll          the same in low-latency mode
  uccl-fp8         the same with 8-bit tokens on the way out
  uccl-expert      expert-major, one row for each choice, ordered sum; capacity 1.25 times the skewed mean
  uccl-per-rank    expert-major, each rank adds its own choices first; the same capacity
  padded           GShard's exchange: one slot buffer for each expert through lax.all_to_all, sized to the largest
                   load so that nothing is dropped
  padded-u16       the same, rows shipped as uint16, which XLA:CPU does not widen
  padded-1.25      the same with 1.25 times the mean load, which drops
  gather           lax.all_gather of tokens and choices, masks, lax.psum_scatter (no order, sums in bf16)
  gather-u16       tokens gathered as uint16; partial sums return as uint16 through lax.all_to_all, added in f32
  mix              the cheapest of both: tokens gathered as uint16, lax.psum_scatter on the way back

A cell is the median time of one program, dispatch and combine with experts that change nothing, in milliseconds;
the ratio is the peer's over that of uccl. MB are those that leave or enter a rank by construction, both ways: of the
mean rank, and of the hottest one. `left` is what a process of jax_uccl really sent to others in one program, for each
of its ranks: rows out, rows back and the choices (0 with one process). `copy` is the time in which each rank, all at
once, copies the MB of the row into memory that is there, as a share of the row's time.
A skew of 4 gives the first rank four times the mean load. Peers take turns within one job, round after round. A peer
that would take more than --cell-seconds gets fewer rounds, at least one; `n` says how many. A peer whose program
needs more than 0.4 of the machine's memory on all ranks together is left out, which stderr says.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

PEERS = (
    "uccl uccl-ll uccl-fp8 uccl-expert uccl-per-rank padded padded-u16 padded-1.25 gather gather-u16 mix"
).split()
JOB_SECONDS = 3600


def route(
    ranks: int, tokens: int, experts: int, top_k: int, skew: float = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Choices, the first rank's `skew` times the mean, and weights that add up to one; [ranks * tokens, top_k]."""
    rng = np.random.default_rng(0)
    scores = rng.random((ranks * tokens, experts))
    if skew > 1:
        # So many tokens go to the first rank with all choices that it can hold.
        local = experts // ranks
        share = (skew - 1) * top_k / (ranks * min(top_k, local) - top_k)
        scores[:, :local] -= rng.random((ranks * tokens, 1)) < share
    idx = np.argsort(scores, 1)[:, :top_k].astype(np.int32)
    w = rng.random(idx.shape).astype(np.float32)
    return idx, w / w.sum(1, keepdims=True)


def bytes_of(
    peer: str, idx: np.ndarray, plan: dict, hidden: int, reduce: Callable[..., Any] = np.mean
) -> float:
    """Payload that a rank sends or gets, both ways; `reduce` makes one number of those of all ranks."""
    n, experts = plan["ranks"], plan["experts"]
    tokens, local, k = idx.shape[0] // n, experts // n, idx.shape[1]
    target, source = idx // local, np.arange(idx.shape[0])[:, None] // tokens
    remote = target != source
    copies = reduce([((target == d) & remote).any(1).sum() for d in range(n)])
    choices, row = reduce([((target == d) & remote).sum() for d in range(n)]), 2 * hidden
    largest = max(np.bincount(idx[r * tokens :][:tokens].ravel()).max() for r in range(n))
    share = (n - 1) / n
    return {
        "uccl": 2 * copies * row,
        "uccl-ll": (tokens * (n - 1) + copies) * row,
        "uccl-fp8": copies * (hidden + hidden / 32 + row),
        "uccl-expert": (copies + choices) * row,
        "uccl-per-rank": 2 * copies * row,
        "padded": 2 * experts * largest * share * 2 * row,
        "padded-u16": 2 * experts * largest * share * row,
        "padded-1.25": 2 * experts * np.ceil(1.25 * tokens * k / experts) * share * 2 * row,
        "gather": (n - 1) * tokens * 2 * 2 * row,
        "gather-u16": (n - 1) * tokens * 2 * row,
        "mix": (n - 1) * tokens * (1 + 2) * row,
    }[peer]


def uccl_layer(peer: str, plan: dict, tokens: int, skew: float) -> Callable[..., Any]:
    import jax.numpy as jnp

    from jax_uccl import moe

    options: dict[str, Any] = dict(num_experts=plan["experts"], axis_name="x")
    reduction = "ordered"
    if peer == "uccl-ll":
        options["mode"] = "low_latency"
    elif peer == "uccl-fp8":
        options["quantize"] = "fp8"
    elif peer != "uccl":
        options["layout"] = "expert_major"
        options["capacity"] = int(np.ceil(1.25 * skew * tokens * plan["top_k"]))
        reduction = "per_rank" if peer == "uccl-per-rank" else "ordered"

    def layer(x: Any, idx: Any, w: Any) -> Any:
        d = moe.dispatch(x, idx, w, **options)
        weights = d.weights if d.weights.ndim == 1 else d.weights.sum(1)
        y = (d.tokens.astype(jnp.float32) * weights[:, None]).astype(x.dtype)
        return moe.combine(y, d.handle, reduction=reduction)

    return layer


def as_u16(move: Callable[[Any], Any], rows: Any) -> Any:
    """`move` of bf16 rows as bits, which XLA:CPU does not widen to f32."""
    import jax.numpy as jnp
    from jax import lax

    bits = move(lax.bitcast_convert_type(rows, jnp.uint16))
    return lax.bitcast_convert_type(bits, jnp.bfloat16)


def padded_layer(peer: str, plan: dict, capacity: int) -> Callable[..., Any]:
    import jax
    import jax.numpy as jnp
    from jax import lax

    n, experts, k = plan["ranks"], plan["experts"], plan["top_k"]

    def move(rows: Any) -> Any:
        return lax.all_to_all(rows, "x", 0, 0, tiled=True)

    def exchange(rows: Any) -> Any:
        return as_u16(move, rows) if peer == "padded-u16" else move(rows)

    def layer(x: Any, idx: Any, w: Any) -> Any:
        tokens, hidden = x.shape
        flat = idx.reshape(-1)
        chosen = jax.nn.one_hot(flat, experts, dtype=jnp.int32)
        slot = jnp.take_along_axis(jnp.cumsum(chosen, 0) - 1, flat[:, None], 1)[:, 0]
        slot = jnp.where(slot < capacity, slot, capacity)
        token = jnp.arange(tokens * k, dtype=jnp.int32) // k
        source = jnp.full((experts, capacity + 1), tokens, jnp.int32).at[flat, slot].set(token)
        padded = jnp.concatenate([x, jnp.zeros((1, hidden), x.dtype)])
        there = exchange(padded[source[:, :capacity]].reshape(n, -1, hidden))
        back = exchange(there).reshape(experts, capacity, hidden)
        rows = back[flat, jnp.minimum(slot, capacity - 1)].reshape(tokens, k, hidden)
        weights = jnp.where((slot < capacity).reshape(tokens, k), w, 0.0)
        return jnp.einsum("tkh,tk->th", rows.astype(jnp.float32), weights).astype(x.dtype)

    return layer


def gather_layer(peer: str, plan: dict) -> Callable[..., Any]:
    import jax.numpy as jnp
    from jax import lax

    n = plan["ranks"]
    local = plan["experts"] // n

    def gather(a: Any) -> Any:
        return lax.all_gather(a, "x", tiled=True)

    def to_owners(a: Any) -> Any:
        return lax.all_to_all(a, "x", 0, 0, tiled=True)

    def layer(x: Any, idx: Any, w: Any) -> Any:
        everything = gather(x) if peer == "gather" else as_u16(gather, x)
        mine = gather(idx) // local == lax.axis_index("x")
        share = jnp.where(mine, gather(w), 0).sum(1, keepdims=True)
        y = (everything.astype(jnp.float32) * share).astype(x.dtype)
        if peer != "gather-u16":
            return lax.psum_scatter(y, "x", scatter_dimension=0, tiled=True)
        parts = as_u16(to_owners, y).reshape(n, *x.shape)
        return parts.astype(jnp.float32).sum(0).astype(x.dtype)

    return layer


def make_layer(peer: str, plan: dict, tokens: int, skew: float, largest: int) -> Callable[..., Any]:
    if peer.startswith("uccl"):
        return uccl_layer(peer, plan, tokens, skew)
    if not peer.startswith("padded"):
        return gather_layer(peer, plan)
    mean = tokens * plan["top_k"] / plan["experts"]
    return padded_layer(peer, plan, int(np.ceil(1.25 * mean)) if "1.25" in peer else largest)


def check(peer: str, result: Any, x: np.ndarray) -> None:
    """The experts are the identity and weights add up to one."""
    mine = result.addressable_shards[0]
    error = np.abs(np.asarray(mine.data, np.float32) - x[mine.index]).max()
    limit = 0.3 if any(word in peer for word in ("fp8", "gather", "mix")) else 0.1
    if "1.25" not in peer and not error < limit:
        raise RuntimeError(f"{peer}: off by {error}")


def bytes_left() -> int:
    """Payload that jax_uccl has sent to other processes."""
    import jax_uccl

    stats = jax_uccl.stats()
    shared = sum(peer["bytes_sent"] for peer in stats["shared_memory"].values())
    return shared + sum(peer["payload_bytes_sent"] for peer in stats["peers"].values())


def copy_rate(ranks: int, size: int) -> float:
    """Bytes a second that each of `ranks` threads copies while the others do, and other processes with them."""
    pairs = [(np.ones(size, np.uint8), np.zeros(size, np.uint8)) for _ in range(ranks)]

    def copy(pair: tuple[Any, Any]) -> None:
        np.copyto(pair[1], pair[0])

    times = []
    with ThreadPoolExecutor(ranks) as pool:
        for _ in range(6):
            start = time.perf_counter()
            list(pool.map(copy, pairs))
            times.append(time.perf_counter() - start)
    return size / statistics.median(times[1:])


def bytes_needed(program: Any) -> int:
    """What XLA allocates for a compiled program on one device."""
    memory = program.memory_analysis()
    return memory.temp_size_in_bytes + memory.output_size_in_bytes


def child(plan: dict, out: str) -> None:
    """One process of a job."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import jax_uccl

    spec = PartitionSpec("x")
    mesh = Mesh(np.array(jax.devices()), ("x",))
    local = jax.local_device_count()

    def put(a: np.ndarray) -> Any:
        return jax.make_array_from_callback(a.shape, NamedSharding(mesh, spec), lambda i: a[i])

    def mapped(f: Callable[..., Any]) -> Any:
        return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))

    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    slowest = mapped(lambda t: jax_uccl.pmax(t, "x"))

    def agreed(seconds: float) -> float:
        """The most of all processes."""
        most = slowest(put(np.full((plan["ranks"],), seconds, np.float32)))
        return float(most.addressable_shards[0].data[0])

    rows = []
    for (tokens, hidden), skew in itertools.product(plan["shapes"], plan["skews"]):
        idx, w = route(plan["ranks"], tokens, plan["experts"], plan["top_k"], skew)
        x = np.random.default_rng(1).standard_normal((idx.shape[0], hidden), np.float32)
        arguments = [put(np.asarray(x, jnp.bfloat16)), put(idx), put(w)]
        own = (idx[r * tokens :][:tokens].ravel() for r in range(plan["ranks"]))
        largest = int(max(np.bincount(choices).max() for choices in own))
        functions, rounds, left = {}, {}, {}
        for peer in plan["peers"]:
            layer = make_layer(peer, plan, tokens, skew, largest)
            program = mapped(layer).lower(*arguments).compile()
            if (needed := bytes_needed(program) * plan["ranks"]) > 0.4 * memory:
                if jax.process_index() == 0:
                    text = f"left out, it needs {needed / 1e9:.0f} GB on this host"
                    print(f"{tokens}x{hidden}, skew {skew:g}: {peer}: {text}", file=sys.stderr)
                continue
            functions[peer] = program
            check(peer, jax.block_until_ready(functions[peer](*arguments)), x)
            before, start = bytes_left(), time.perf_counter()
            jax.block_until_ready(functions[peer](*arguments))
            took = agreed(time.perf_counter() - start)
            left[peer] = (bytes_left() - before) / local if peer.startswith("uccl") else None
            rounds[peer] = int(np.clip(plan["cell_seconds"] / took, 1, plan["rounds"]))
            if jax.process_index() == 0:
                print(f"{tokens}x{hidden}, skew {skew:g}: {peer}: {took:.3f} s", file=sys.stderr)
        times: dict[str, list[float]] = {peer: [] for peer in functions}
        for turn in range(plan["rounds"]):
            for peer in list(functions)[:: 1 if turn % 2 else -1]:
                if turn >= rounds[peer]:
                    continue
                start = time.perf_counter()
                jax.block_until_ready(functions[peer](*arguments))
                times[peer].append(time.perf_counter() - start)
        agreed(0.0)  # all processes copy at the same time
        rate = copy_rate(local, int(bytes_of("uccl", idx, plan, hidden)))
        rows += [
            dict(peer=p, tokens=tokens, hidden=hidden, skew=skew, times_s=t)
            | dict(bytes=float(bytes_of(p, idx, plan, hidden)), bytes_left=left[p])
            | dict(bytes_hottest=float(bytes_of(p, idx, plan, hidden, np.max)))
            | dict(copy_bytes_per_s=rate)
            for p, t in times.items()
        ]
    if jax.process_index() == 0:
        pathlib.Path(out).write_text(json.dumps(rows))
    jax_uccl.shutdown()
    if jax.process_count() > 1:
        jax.distributed.shutdown()


def run_layout(layout: str, options: argparse.Namespace) -> list[dict]:
    processes, devices = (int(part) for part in layout.split("x"))
    plan = dict(
        ranks=processes * devices,
        experts=options.experts,
        top_k=options.top_k,
        shapes=[[int(v) for v in shape.split("x")] for shape in options.shapes.split(",")],
        skews=[float(v) for v in options.skews.split(",")],
        peers=options.peers.split(","),
        rounds=options.rounds,
        cell_seconds=options.cell_seconds,
    )
    with tempfile.TemporaryDirectory() as scratch:
        out = f"{scratch}/rows.json"
        command = [sys.executable, "-m", "jax_uccl.launch", "-n", str(processes)]
        command += ["--devices-per-process", str(devices), "--timeout", str(JOB_SECONDS)]
        command += [str(pathlib.Path(__file__).resolve()), "--child", json.dumps(plan), out]
        subprocess.run(command, check=True, timeout=JOB_SECONDS + 60)
        rows = json.loads(pathlib.Path(out).read_text())
    return [row | dict(layout=layout) for row in rows]


def print_table(rows: list[dict]) -> None:
    print(
        f"{'layout':8}{'shape':12}{'skew':>4} {'peer':15}{'n':>3}{'ms':>9}{'best':>9}{'ratio':>7}{'MB':>8}"
        f"{'hottest':>8}{'left':>8}{'copy':>6}"
    )
    for row in rows:
        same = [
            r for r in rows if all(r[k] == row[k] for k in ("layout", "tokens", "hidden", "skew"))
        ]
        ours = [statistics.median(r["times_s"]) for r in same if r["peer"] == "uccl"]
        median = statistics.median(row["times_s"])
        ratio = f"{median / ours[0]:7.2f}" if ours else f"{'-':>7}"
        shape = f"{row['tokens']}x{row['hidden']}"
        left = "-" if row["bytes_left"] is None else f"{row['bytes_left'] / 1e6:.1f}"
        share = row["bytes"] / row["copy_bytes_per_s"] / median
        print(
            f"{row['layout']:8}{shape:12}{row['skew']:4g} {row['peer']:15}{len(row['times_s']):3}"
            f"{median * 1e3:9.1f}{min(row['times_s']) * 1e3:9.1f}{ratio}{row['bytes'] / 1e6:8.1f}"
            f"{row['bytes_hottest'] / 1e6:8.1f}{left:>8}{share:6.0%}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--child", nargs=2, metavar=("PLAN", "OUT"), help=argparse.SUPPRESS)
    parser.add_argument("--layouts", default="4x1,1x8,8x1,2x4", help="processes x devices of each")
    parser.add_argument("--shapes", default="128x7168,4096x2048", help="tokens of a rank x hidden")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--skews", default="1", help="load of the first rank over the mean")
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cell-seconds", type=float, default=20.0, help="for one peer and shape")
    parser.add_argument("--json", default=None, help="where to write all times")
    options = parser.parse_args()
    if options.child:
        child(json.loads(options.child[0]), options.child[1])
        return
    if unknown := set(options.peers.split(",")) - set(PEERS):
        parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(PEERS)}")
    rows: list[dict] = []
    for layout in options.layouts.split(","):
        rows += run_layout(layout, options)
    print_table(rows)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
