"""Command line of `jax-uccl bench` and `python -m jax_uccl.bench`: measures algorithms of collectives on this job.

    jax-uccl bench --devices 8 --tune tuned.json
    python -m jax_uccl.launch -n 4 -m jax_uccl.bench --tune tuned.json

Every process of the job runs it; process 0 prints and writes. Each algorithm is forced in turn by its setting, in an
epoch of its own, and timed inside a jitted loop. `--tune` fits the parameters of the cost model to the times
(tuning.py) and writes the file that the setting `tuning_file` takes.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jax_uccl import _uccl
from jax_uccl._src import tuning
from jax_uccl._src.errors import UcclError

_EXIT_FAILED = 1
_DTYPE = "int32"  # every algorithm may add these
_ITEM_BYTES = 4
# One that has both ends of the model: reductions, copies, few and many steps.
_COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
_SIZES = (64, 4096, 65536, 1 << 20, 4 << 20)
_STEPS_BELOW, _STEPS = 1 << 20, 10  # smaller ones are repeated inside the program


@dataclasses.dataclass(frozen=True)
class _Program:
    """A compiled loop of one collective on one size, and its argument."""

    collective: str
    elements: int
    steps: int
    run: Callable[[Any], Any]
    argument: Any


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 0, or 1 when a measurement or the file failed."""
    args = _parse(argv)
    import jax

    if args.devices is not None:
        try:
            jax.config.update("jax_num_cpu_devices", args.devices)
        except RuntimeError as error:
            print(f"jax-uccl bench: --devices {args.devices}: {error}", file=sys.stderr)
            return _EXIT_FAILED
    try:
        return _bench(args)
    except (UcclError, OSError) as error:
        print(f"jax-uccl bench: {error}", file=sys.stderr)
        return _EXIT_FAILED


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="jax-uccl bench",
        description="Times every algorithm of the collectives on the devices of this job.",
        epilog="For several processes: python -m jax_uccl.launch -n N -m jax_uccl.bench [options].",
    )
    add = parser.add_argument
    add("--tune", type=Path, metavar="FILE", help="fit the cost model and write this tuning file")
    add("--devices", type=_positive, metavar="D", help="CPU devices, when this is the only process")
    add("--passes", type=_positive, default=3, metavar="P", help="over all algorithms; default 3")
    add("--rounds", type=_positive, default=7, metavar="R", help="of each pass; default 7")
    add(
        "--max-bytes",
        type=_positive,
        default=_SIZES[-1],
        metavar="B",
        help=f"largest size per rank; default {_SIZES[-1]}",
    )
    add(
        "--collectives", type=_collectives, default=_COLLECTIVES, metavar="A,B", help="default: all"
    )
    return parser.parse_args(argv)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def _collectives(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in _COLLECTIVES:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(_COLLECTIVES)}")
    return names


def _bench(args: argparse.Namespace) -> int:
    import jax

    import jax_uccl

    processes = [d.process_index for d in jax.devices()]
    programs = _programs(args.collectives, args.max_bytes)
    fastest: dict[tuple[str, int, str], float] = {}
    hosts = ""
    most = max(len(_names(c)) for c in args.collectives)
    # Passes over everything instead of more rounds at once: what disturbs the machine for a while then disturbs
    # no algorithm alone.
    for k in [k for _ in range(args.passes) for k in range(most)]:
        # The k-th algorithm of every collective; those that have fewer rest.
        forced = {c: _names(c)[k] for c in args.collectives if k < len(_names(c))}
        jax_uccl.init(algorithms=",".join(f"{c}={name}" for c, name in forced.items()))
        for program in programs:
            if program.collective in forced:
                key = (program.collective, program.elements, forced[program.collective])
                fastest[key] = min(_time(program, args.rounds), fastest.get(key, float("inf")))
        hosts = str(jax_uccl.stats()["settings"]["processes_per_host"])
        jax_uccl.shutdown()
    if jax.process_index() != 0:
        return 0
    measured = [
        tuning.Measurement(collective, algorithm, _DTYPE, elements, seconds)
        for (collective, elements, algorithm), seconds in fastest.items()
    ]
    fitted = tuning.fit(measured, processes, hosts)
    print(_table(measured, fitted, processes, hosts))
    if args.tune is not None:
        note = (
            f"{len(set(processes))} processes, {len(processes)} devices, on {platform.node()} with "
            f"{os.cpu_count()} CPUs; {len(measured)} measurements, each the fastest of "
            f"{args.passes * args.rounds} rounds"
        )
        tuning.write(args.tune, fitted.params, note)
        print(f"wrote {args.tune}; use it with JAX_UCCL_TUNING_FILE={args.tune} on all processes")
    return 0


def _names(collective: str) -> list[str]:
    return [row["name"] for row in _uccl.algorithms() if row["collective"] == collective]


def _programs(collectives: Sequence[str], max_bytes: int) -> list[_Program]:
    """One for each collective and size, compiled once: the algorithm is no part of a program."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    import jax_uccl

    ranks = jax.device_count()
    mesh = Mesh(np.array(jax.devices()), ("x",))

    # Each has a result in the shape of its operand, so that a loop can feed it back.
    def once(collective: str, x: Any) -> Any:
        if collective == "all_reduce":
            return jax_uccl.psum(x, "x")
        if collective == "reduce_scatter":
            part = jax_uccl.psum_scatter(x, "x", tiled=True)
            return jnp.concatenate([part, x[part.shape[0] :]])
        if collective == "all_gather":
            return jax_uccl.all_gather(x, "x", tiled=True)[: x.shape[0]]
        return jax_uccl.all_to_all(x, "x", 0, 0, tiled=True)

    programs = []
    for collective in collectives:
        for size in (s for s in _SIZES if s <= max_bytes):
            # Of a gather the size is that of the result, as it is of the operand elsewhere.
            elements = max(1, size // _ITEM_BYTES // ranks)
            if collective != "all_gather":
                elements *= ranks
            steps = _STEPS if size < _STEPS_BELOW else 1

            def loop(x: Any, collective: str = collective, steps: int = steps) -> Any:
                return jax.lax.fori_loop(0, steps, lambda _, v: once(collective, v), x)

            def zeros(_: Any, elements: int = elements) -> Any:
                return np.zeros(elements, np.int32)

            run = jax.jit(
                jax.shard_map(loop, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
            )
            argument = jax.make_array_from_callback(
                (ranks * elements,),
                NamedSharding(mesh, P("x")),
                zeros,
            )
            programs.append(_Program(collective, elements, steps, run, argument))
    return programs


def _time(program: _Program, rounds: int) -> float:
    """Seconds of one operation, of the fastest round after one that compiles: disturbances only add."""
    import jax

    jax.block_until_ready(program.run(program.argument))
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        jax.block_until_ready(program.run(program.argument))
        times.append(time.perf_counter() - begin)
    return min(times) / program.steps


def _table(
    measured: Sequence[tuning.Measurement], fitted: tuning.Fit, processes: Sequence[int], hosts: str
) -> str:
    """What was measured, what the model says of it, and what it would choose."""
    lines = [
        f"{'collective':<15}{'bytes/rank':>11}  {'algorithm':<12}{'measured us':>12}{'model us':>12}",
    ]
    best: dict[tuple[str, int], float] = {}
    for m in measured:
        key = (m.collective, m.elements)
        best[key] = min(best.get(key, m.seconds), m.seconds)
    for m in sorted(measured, key=lambda m: (m.collective, m.elements)):
        chosen = _uccl.cheapest_algorithm(
            m.collective, m.dtype, m.elements, processes, hosts, fitted.params
        )
        marks = [
            text
            for text, there in (
                ("chosen", m.algorithm == chosen),
                ("fastest", m.seconds == best[m.collective, m.elements]),
            )
            if there
        ]
        lines.append(
            f"{m.collective:<15}{m.elements * _ITEM_BYTES:>11}  {m.algorithm:<12}{m.seconds * 1e6:>12.1f}"
            f"{fitted.seconds(m, processes, hosts) * 1e6:>12.1f}  {', '.join(marks)}"
        )
    lines.append("")
    for row in _uccl.cost_rows():
        lines.append(
            f"{row['name']:<20}{fitted.params[row['name']]:>10}  (default {row['default']})"
        )
    lines.append(f"{'of every operation':<20}{fitted.base_s * 1e9:>10.0f} ns besides")
    return "\n".join(lines)
