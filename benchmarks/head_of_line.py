"""Latency of an 8-byte psum alone, and while a large all_to_all is under way between the same two processes.

Each process has two devices. The first ones exchange large arrays without a pause, from one Python thread; the
second ones add up 8 bytes from another thread. Both go through the same link (or the same engine and connection).
Rounds without and with the exchange alternate. What is left of the difference is the processor: with fewer cores
than busy threads the short operation waits for its turn on one.

    ./dev bench head_of_line [--mb 256] [--rounds 5] [--calls 200] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import threading
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
WAYS = {
    "shared memory, one copy": {"JAX_UCCL_SHARED_MEMORY": "on", "JAX_UCCL_SHM_ONE_COPY": "1"},
    "shared memory, two copies": {"JAX_UCCL_SHARED_MEMORY": "on", "JAX_UCCL_SHM_ONE_COPY": "0"},
    "UDP over loopback": {"JAX_UCCL_SHARED_MEMORY": "off"},
}
MARK = "head_of_line "


def child(mb: int, rounds: int, calls: int) -> None:
    """One of the two processes; process 0 prints times in microseconds."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    import jax_uccl

    per_process: dict[int, list[Any]] = {}
    for device in jax.devices():
        per_process.setdefault(device.process_index, []).append(device)

    def program(which: int, call: Any, shape: tuple[int, ...]) -> Any:
        mesh = Mesh(np.array([per_process[p][which] for p in (0, 1)]), ("x",))
        f = jax.jit(jax.shard_map(call, mesh=mesh, in_specs=P("x"), out_specs=P("x")))
        made = jax.jit(
            lambda: jnp.ones(shape, jnp.float32), out_shardings=NamedSharding(mesh, P("x"))
        )
        operand = made()
        return lambda: jax.block_until_ready(f(operand))

    floats = (mb << 20) // 4
    exchange = program(
        0, lambda v: jax_uccl.all_to_all(v, "x", 0, 0, tiled=True), (2 * 2, floats // 2)
    )
    # The sum of two floats, kept apart by rank.
    add = program(1, lambda v: jax_uccl.psum(v, "x") + 0 * v, (2 * 2,))
    exchange()
    add()

    times: dict[str, list[float]] = {"alone": [], "behind": []}
    exchanges = 0
    for _ in range(rounds):
        for name in times:
            # Both counts are fixed, so that the two processes call the same; a short operation counts as one behind
            # the exchange while there are exchanges left.
            done = threading.Event()
            count = 4 if name == "behind" else 0

            def exchange_all(count: int = count, done: threading.Event = done) -> None:
                for _ in range(count):
                    exchange()
                done.set()

            thread = threading.Thread(target=exchange_all)
            thread.start()
            for _ in range(calls):
                begin = time.perf_counter()
                add()
                elapsed = (time.perf_counter() - begin) * 1e6
                if name == "alone" or not done.is_set():
                    times[name].append(elapsed)
            thread.join()
            exchanges += count
    if jax.process_index() == 0:
        print(MARK + json.dumps({"times": times, "exchanges": exchanges}), flush=True)
    jax_uccl.shutdown()
    jax.distributed.shutdown()


class _Lines:
    """Output sink that keeps process 0's result and shows everything else."""

    def __init__(self) -> None:
        self.data: dict[tuple[int, int], bytearray] = {}

    def write(self, rank: int, stream: int, data: bytes) -> None:
        self.data.setdefault((rank, stream), bytearray()).extend(data)

    def close(self, rank: int, stream: int) -> None:
        pass

    def note(self, message: str) -> None:
        print(message, file=sys.stderr)

    def result(self) -> dict[str, Any] | None:
        for data in self.data.values():
            for line in data.decode(errors="replace").splitlines():
                if line.startswith(MARK):
                    return dict(json.loads(line.removeprefix(MARK)))
        return None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--mb", type=int, default=256, help="operand of each rank of the exchange")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of rounds, alone and behind")
    parser.add_argument("--calls", type=int, default=200, help="short operations in a round")
    parser.add_argument("--way", default="", help="only ways of talking whose name contains this")
    parser.add_argument("--json", type=pathlib.Path, help="write all times there")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.mb, options.rounds, options.calls)
        return 0
    sys.path.insert(0, str(ROOT))
    from jax_uccl._src.launch_job import Job
    from jax_uccl._src.launch_supervisor import run_job

    numbers = [
        "--mb",
        str(options.mb),
        "--rounds",
        str(options.rounds),
        "--calls",
        str(options.calls),
    ]
    results: dict[str, Any] = {}
    print(
        f"8-byte psum of two processes, us: median (10 % .. 90 %); exchange of {options.mb} MB a rank"
    )
    for way, env in WAYS.items():
        if options.way not in way:
            continue
        job = Job(
            command=[__file__, "--child", *numbers],
            size=2,
            devices_per_process=2,
            env={"PYTHONPATH": str(ROOT), **env},
            timeout_s=1200,
        )
        lines = _Lines()
        outcome = run_job(job, lines)
        result = lines.result()
        if outcome.exit_code != 0 or result is None:
            for (rank, _), data in lines.data.items():
                print(f"[{rank}] {data.decode(errors='replace')}", file=sys.stderr)
            return 1
        results[way] = result["times"]
        print(f"{way:28}" + "".join(_column(n, t) for n, t in result["times"].items()), flush=True)
    if options.json:
        options.json.write_text(
            json.dumps({"options": vars(options), "times": results}, default=str)
        )
    return 0


def _column(name: str, times: list[float]) -> str:
    if len(times) < 10:
        return f"  {name}: {len(times)} calls only"
    deciles = statistics.quantiles(times, n=10)
    return f"  {name} {statistics.median(times):8.0f} ({deciles[0]:.0f} .. {deciles[-1]:.0f}), {len(times)} calls"


if __name__ == "__main__":
    sys.exit(main())
