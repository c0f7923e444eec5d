"""Latency and bandwidth of jax_uccl's collectives as ratios to the same program with jax.lax.

    python benchmarks/collectives.py [--rounds 7] [--layouts 2x1,4x1,1x8] [--json out.json]

Each layout (processes x devices of each) is one job that runs both libraries in turn, round after round, so
that they meet the same noise. A cell is the median over the rounds of the time per call, with the fastest and
slowest round; the ratio is lax's median over ours (above 1: ours is faster). Calls are made one at a time from
Python and include its dispatch, about 100 microseconds for several devices; `in program` repeats the operation in a
scan inside one program and counts that.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import time
from typing import Any

OPERATIONS = ("psum", "all_to_all")
SIZES = {"8 B": 8, "64 KB": 64 << 10, "16 MB": 16 << 20}
SCAN_STEPS = 20  # of the `in program` figures, small sizes only


def child(rounds: int, out: str) -> None:
    """One process of one layout."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    import jax_uccl

    n = jax.device_count()
    mesh = Mesh(np.array(jax.devices()), ("x",))
    libraries = {"uccl": jax_uccl, "lax": lax}

    def make(library: Any, op: str, in_program: bool, steps: int) -> Any:
        def once(v: Any) -> Any:
            if op == "psum":
                # Keeps the values finite in the scan; fused with the copy that XLA makes anyway.
                return library.psum(v, "x") * jnp.float32(1 / n)
            return library.all_to_all(v, "x", 0, 0, tiled=True)

        def f(v: Any) -> Any:
            if not in_program:
                return once(v)
            return lax.scan(lambda c, _: (once(c), None), v, None, length=steps)[0]

        mapped = jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
        return jax.jit(mapped)

    def calls_for(size: int) -> int:
        return 60 if size < 1 << 20 else 3

    results = []
    for op in OPERATIONS:
        for label, size in SIZES.items():
            # `size` bytes on each rank; an all-to-all needs a row per rank.
            elements = -(-size // 4 // n) * n
            value = np.ones((n * elements,), np.float32)
            arg = jax.make_array_from_callback(
                value.shape, NamedSharding(mesh, P("x")), lambda i, value=value: value[i]
            )
            for in_program in (False, True) if size < 1 << 20 else (False,):
                steps = SCAN_STEPS if in_program else 1
                functions = {k: make(lib, op, in_program, steps) for k, lib in libraries.items()}
                for f in functions.values():
                    jax.block_until_ready(f(arg))
                times: dict[str, list[float]] = {k: [] for k in functions}
                calls = max(1, calls_for(size) // steps)
                for r in range(rounds):
                    order = list(functions) if r % 2 else list(functions)[::-1]
                    for k in order:
                        start = time.perf_counter()
                        for _ in range(calls):
                            jax.block_until_ready(functions[k](arg))
                        times[k].append((time.perf_counter() - start) / calls / steps)
                results.append(
                    {
                        "op": op,
                        "size": label,
                        "bytes": size,
                        "in_program": in_program,
                        "times_s": times,
                    }
                )
    if jax.process_index() == 0:
        pathlib.Path(out).write_text(json.dumps(results))
    jax_uccl.shutdown()
    if jax.process_count() > 1:
        jax.distributed.shutdown()


def run_layout(processes: int, per_process: int, rounds: int, scratch: pathlib.Path) -> list[dict]:
    """Runs one layout and returns its rows."""
    import subprocess

    out = scratch / f"{processes}x{per_process}.json"
    command = [sys.executable, "-m", "jax_uccl.launch", "-n", str(processes)]
    command += ["--devices-per-process", str(per_process), "--timeout", "900"]
    command += [__file__, "--child", "--rounds", str(rounds), "--json", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    rows = json.loads(out.read_text())
    for row in rows:
        row["processes"], row["devices_per_process"] = processes, per_process
    return rows


def bus_factor(op: str, ranks: int) -> float:
    """Bytes that must leave or enter a rank, per byte of its operand."""
    return (2 if op == "psum" else 1) * (ranks - 1) / ranks


def print_table(rows: list[dict]) -> None:
    print(
        f"{'layout':8} {'operation':11} {'size':6} {'how':11} {'ours':>22} {'lax':>22} {'lax/ours':>9}  bus GB/s"
    )
    for row in rows:
        ranks = row["processes"] * row["devices_per_process"]
        cells, medians = [], {}
        for library in ("uccl", "lax"):
            times = [t * 1e6 for t in row["times_s"][library]]
            medians[library] = statistics.median(times)
            cells.append(f"{medians[library]:.0f} ({min(times):.0f}-{max(times):.0f})")
        speed = row["bytes"] * bus_factor(row["op"], ranks) / medians["uccl"] / 1e3
        print(
            f"{row['processes']}x{row['devices_per_process']:<6} {row['op']:11} {row['size']:6} "
            f"{'in program' if row['in_program'] else 'one call':11} {cells[0]:>22} {cells[1]:>22} "
            f"{medians['lax'] / medians['uccl']:9.2f}  {speed:.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--layouts", default="2x1,4x1,1x8", help="processes x devices of each")
    parser.add_argument("--json", default=None, help="where to write all times")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options.rounds, options.json)
    import tempfile

    rows: list[dict] = []
    with tempfile.TemporaryDirectory() as scratch:
        for layout in options.layouts.split(","):
            processes, per_process = (int(part) for part in layout.split("x"))
            print(f"running {layout} ...", file=sys.stderr, flush=True)
            rows += run_layout(processes, per_process, options.rounds, pathlib.Path(scratch))
    print("microseconds per call: median (fastest-slowest round)")
    print_table(rows)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
