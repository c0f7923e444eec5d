"""Command line of `jax-uccl sim` and `python -m jax_uccl.sim`: runs, table, JSON, plots.

    jax-uccl sim --fabric fat_tree --hosts 128 --workload permutation --bytes 4000000 --compare
    jax-uccl sim --chaos 40 --seeds 100
    jax-uccl sim --schedules 100000 --jobs 2

The simulation is native (csrc/sim/); its settings are the options, taken from the native table. A run is
a function of its settings: `--seed` replays it, and equal trace hashes mean equal runs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jax_uccl import _uccl
from jax_uccl._src import errors, sim_chaos

_TRANSPORTS = ("spray", "single", "bundle")
_EXIT_VIOLATION = 1
_EXIT_USAGE = 2
_BAR_WIDTH = 30
_SECONDS_PER_REDRAW = 0.2

Report = dict[str, Any]


def simulate(
    settings: Mapping[str, Any], progress: Callable[[dict[str, int]], None] | None = None
) -> Report:
    """One run.

    Args:
      settings: name to value; those that are missing take their default. `--list` and docs/simulator.md
        have the names.
      progress: called now and then with what is done; what it raises ends the run.

    Returns:
      The report; docs/simulator.md names its fields. `wall_s` is how long the run took.

    Raises:
      UcclValueError: an unknown setting, or a value that makes no simulation.
    """
    begin = time.perf_counter()
    line, text = _uccl.simulate({name: str(value) for name, value in settings.items()}, progress)
    if line is not None:
        raise errors.from_text(line) or RuntimeError(line)
    report: Report = json.loads(text)
    report["wall_s"] = time.perf_counter() - begin
    return report


def transport_name(settings: Mapping[str, Any]) -> str:
    """`spray`, or `spray + eqds` with receiver-driven credit."""
    scheduler = settings["receiver_scheduler"]
    return settings["transport"] + ("" if scheduler == "none" else f" + {scheduler}")


def percentile(values: Sequence[int], fraction: float) -> int:
    """Nearest rank of sorted values; 0 when there is none."""
    if not values:
        return 0
    rank = -int(-fraction * len(values) // 1)  # the ceiling
    return values[min(max(rank, 1), len(values)) - 1]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Returns:
      0 when every run was without a violation, 1 when one was not, 2 for a wrong command line.
    """
    args = _parser().parse_args(argv)
    if args.list:
        print(_listing())
        return 0
    if sum((args.compare, args.seeds > 1, args.schedules > 0)) > 1:
        text = "jax-uccl sim: --compare, --seeds and --schedules exclude each other"
        print(text, file=sys.stderr)
        return _EXIT_USAGE
    names = [row["name"] for row in _uccl.sim_settings()]
    settings = {n: value for n in names if (value := getattr(args, n)) is not None}
    if args.schedules > 0 and settings.keys() - {"seed"}:
        print("jax-uccl sim: --schedules draws every setting but --seed", file=sys.stderr)
        return _EXIT_USAGE
    try:
        if args.schedules > 1:
            return _run_schedules(int(settings.get("seed", 1)), args)
        if args.schedules == 1:
            settings = _uccl.sim_chaos_settings(int(settings.get("seed", 1)))
        reports = _run_all(settings, args)
    except errors.UcclValueError as error:
        print(f"jax-uccl sim: {error.detail}", file=sys.stderr)
        return _EXIT_USAGE
    except KeyboardInterrupt:
        print("\njax-uccl sim: stopped", file=sys.stderr)
        return 130
    if args.json == "-":
        print(json.dumps(reports))
    else:
        print(_seeds_summary(reports) if args.seeds > 1 else _table(reports))
        if args.json is not None:
            Path(args.json).write_text(json.dumps(reports))
    if args.plot is not None:
        # Only here: matplotlib is not among what the package needs.
        from jax_uccl._src import sim_plot

        sim_plot.save(reports, args.plot)
    return _EXIT_VIOLATION if any(report["violations"] for report in reports) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jax-uccl sim",
        description="Runs the production transport on a simulated fabric in virtual time.",
        allow_abbrev=False,
    )
    parser.add_argument("--list", action="store_true", help="list settings and workloads")
    parser.add_argument(
        "--compare",
        action="store_true",
        help="run the baselines (no receiver scheduler, one path, independent connections) on the"
        " same seed as well",
    )
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="run N seeds in a row")
    parser.add_argument(
        "--schedules",
        type=int,
        default=0,
        metavar="N",
        help="run N fault schedules, of which everything is drawn from --seed and the numbers after it",
    )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="threads that run --schedules"
    )
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="write the reports; -: to standard output, instead of the table",
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="flow completion times, queues and path usage (PNG, SVG)"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    group = parser.add_argument_group("settings of the simulation")
    for row in _uccl.sim_settings():
        unit = f" {row['unit']}" if row["unit"] else ""
        spelling = "--" + row["name"].replace("_", "-")
        # argparse formats its help texts.
        text = f"{row['help']}; default {row['default']}{unit}".replace("%", "%%")
        group.add_argument(spelling, dest=row["name"], metavar="X", help=text)
    return parser


def _listing() -> str:
    lines = ["settings"]
    for row in _uccl.sim_settings():
        default = f"{row['default']} {row['unit']}".strip()
        lines.append(f"  {row['name']:<20} {row['help']} [{default}]")
    lines.append("workloads")
    lines += [f"  {name:<20} {summary}" for name, summary in _uccl.sim_workloads()]
    return "\n".join(lines)


def _run_all(settings: dict[str, Any], args: argparse.Namespace) -> list[Report]:
    bar = not args.quiet and sys.stderr.isatty()
    if args.compare:
        variants = [{"transport": t, "receiver_scheduler": "none"} for t in _TRANSPORTS]
        if settings.get("receiver_scheduler", "none") != "none":
            variants.insert(0, {"transport": "spray"})
        return [_run(settings | v, v["transport"], bar) for v in variants]
    first = int(settings.get("seed", 1))
    reports = []
    for seed in range(first, first + args.seeds):
        report = _run(settings | {"seed": seed}, f"seed {seed}", bar)
        if args.seeds > 1 and report["violations"]:
            print(f"seed {seed}: {report['violation_texts'][0]}", file=sys.stderr)
        reports.append(report)
    return reports


def _run_schedules(first: int, args: argparse.Namespace) -> int:
    bar = not args.quiet and sys.stderr.isatty()
    summary = sim_chaos.run(first, args.schedules, args.jobs, bar)
    if args.json is not None and args.json != "-":
        Path(args.json).write_text(json.dumps(summary))
    print(json.dumps(summary) if args.json == "-" else sim_chaos.text(summary))
    return _EXIT_VIOLATION if summary["violations"] else 0


def _run(settings: Mapping[str, Any], label: str, bar: bool) -> Report:
    if not bar:
        return simulate(settings)
    drawn = 0.0

    def draw(done: dict[str, int]) -> None:
        nonlocal drawn
        if time.monotonic() - drawn < _SECONDS_PER_REDRAW:
            return
        drawn = time.monotonic()
        share = done["bytes_done"] / max(done["bytes"], 1)
        filled = round(share * _BAR_WIDTH)
        print(
            f"\r{label:<8} [{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {share:4.0%}"
            f"  {done['now_ns'] / 1e3:,.0f} us  {done['events'] / 1e6:.1f}M events ",
            end="",
            file=sys.stderr,
            flush=True,
        )

    try:
        return simulate(settings, draw)
    finally:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def _table(reports: Sequence[Report]) -> str:
    """A column a run, a row a figure."""

    def micros(ns: float) -> str:
        return f"{ns / 1e3:,.1f} us"

    first = reports[0]["completion_ns"]

    def loss(r: Report) -> str:
        kinds = ("queue_drops", "loss_drops", "down_drops", "receive_ring_drops")
        return " + ".join(str(r[kind]) for kind in kinds)

    def times(kind: str) -> list[tuple[str, Callable[[Report], str]]]:
        field = "flow_ns" if kind == "flow" else f"{kind}_flow_ns"
        if not any(r[field] for r in reports):
            return []
        return [
            (f"{kind} p{100 * q:g}", lambda r, q=q: micros(percentile(r[field], q)))  # type: ignore[misc]
            for q in (0.5, 0.99, 0.999)
        ]

    rows: list[tuple[str, Callable[[Report], str]]] = [
        ("transport", lambda r: transport_name(r["settings"])),
        ("completion", lambda r: micros(r["completion_ns"]) if r["complete"] else "INCOMPLETE"),
        ("  over the first", lambda r: f"{r['completion_ns'] / max(first, 1):.2f}x"),
        ("  lower bound", lambda r: micros(r["ideal_ns"])),
        ("goodput share", lambda r: f"{r['goodput_share']:.1%}"),
        *times("flow"),
        *times("small"),
        *times("cross"),
        ("deepest queue", lambda r: f"{r['peak_queue_bytes'] / 1024:,.0f} KiB"),
        ("packets", lambda r: f"{r['network']['sent']:,}"),
        ("drops q+loss+down+host", loss),
        ("ECN marked", lambda r: f"{r['network']['marked']:,}"),
        ("retransmits", lambda r: str(_retransmits(r))),
        ("events", lambda r: f"{r['events']:,}"),
        ("wall time", lambda r: f"{r['wall_s']:.1f} s"),
        ("seed, trace hash", lambda r: f"{r['settings']['seed']} {r['trace_hash']}"),
        ("violations", lambda r: str(r["violations"])),
    ]
    s = reports[0]["settings"]
    if len(reports) == 1:
        rows = [row for row in rows if row[0] != "  over the first"]
    lines = [
        f"{s['workload']} of {s['bytes']:,} bytes on {s['fabric']}: {reports[0]['hosts']} hosts,"
        f" {reports[0]['switches']} switches, {s['host_gbps']:g} Gbit/s,"
        f" base RTT {reports[0]['base_rtt_ns'] / 1e3:.1f} us"
    ]
    for name, cell in rows:
        lines.append(f"  {name:<22}" + "".join(f"{cell(r):>26}" for r in reports))
    for report in reports:
        lines += [f"  ! {text}" for text in report["violation_texts"]]
    return "\n".join(lines)


def _retransmits(report: Report) -> int:
    transport = report["transport"]
    return transport["retransmits_fast"] + transport["retransmits_timeout"]


def _seeds_summary(reports: Sequence[Report]) -> str:
    bad = [r["settings"]["seed"] for r in reports if r["violations"]]
    slowest = max(reports, key=lambda r: r["completion_ns"])
    lines = [
        f"{len(reports)} seeds, {len(bad)} with violations",
        f"  completion up to {slowest['completion_ns'] / 1e3:,.1f} us"
        f" (seed {slowest['settings']['seed']})",
    ]
    if bad:
        lines.append(f"  replay: jax-uccl sim ... --seed {bad[0]}")
    return "\n".join(lines)
