"""jax_uccl's collectives beside those of JAX, mpi4jax and Open MPI: latency and bandwidth, in one run.

    python benchmarks/collectives.py [--layouts 2x1,4x1,1x8] [--sizes 8,1K,1M,64M] [--dtypes f32,bf16]
        [--operations psum,all_to_all] [--passes 3] [--cell-seconds 3] [--json out.json] [--plot out.png]

Peers of one layout (processes x devices of each):
  uccl     jax_uccl
  lax      jax.lax: gloo between processes, XLA's in-process collectives within one
  jax-mpi  jax.lax on JAX's MPI implementation; needs mpirun and the MPIwrapper named by MPITRAMPOLINE_LIB
  mpi4jax  needs mpirun and a Python with mpi4jax (--mpi4jax-python)
  mpi      a C program on MPI itself, compiled here; needs mpicc and mpirun
  memcpy   what copying the same bytes takes in each rank at the same time: into memory that is there (warm), and
           into new memory, as the results of XLA are

uccl, lax and memcpy take turns within one job, round after round. A job can hold only one of the others, so all
jobs are started in turn once a pass, and times of all passes count. Absent peers are named and skipped.

The size is of a rank's operand, for all_gather of its result. A cell is the median time per call in microseconds;
the ratio is the peer's median over ours (above 1: ours is faster). `one call` includes the dispatch from Python,
`in program` is an iteration of a loop of dependent operations inside one program. What would take a peer more
than --cell-seconds is called less often, in fewer rounds, and with a shorter loop (the C program on MPI is not).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from jax_uccl._src.launch_job import allocator_environment  # noqa: E402

HERE = pathlib.Path(__file__).parent
OPERATIONS = ("psum", "all_gather", "psum_scatter", "all_to_all", "ppermute")
PEERS = ("uccl", "lax", "jax-mpi", "mpi4jax", "mpi", "memcpy")
COPIES = ("memcpy", "memcpy to new")
UNITS = {"K": 1 << 10, "M": 1 << 20}
JOB_SECONDS = 3600


def parse_size(text: str) -> int:
    """`64K` -> 65536."""
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def show_size(size: int) -> str:
    for unit in ("M", "K"):
        if size % UNITS[unit] == 0:
            return f"{size // UNITS[unit]} {unit}B"
    return f"{size} B"


def bus_factor(op: str, ranks: int) -> float:
    """Bytes that must leave or enter a rank, per byte of the size."""
    if op == "ppermute":
        return 1.0
    return (2 if op == "psum" else 1) * (ranks - 1) / ranks


def why_absent(peer: str, options: argparse.Namespace, processes: int, per_process: int) -> str:
    """Why `peer` cannot run with this layout; empty if it can."""
    if peer not in ("jax-mpi", "mpi4jax", "mpi"):
        return ""
    if processes == 1 or per_process != 1:
        return "needs one device in each of several processes"
    if shutil.which("mpirun") is None:
        return "no mpirun"
    if peer == "mpi" and shutil.which("mpicc") is None:
        return "no mpicc"
    if peer == "jax-mpi" and not os.environ.get("MPITRAMPOLINE_LIB"):
        return "MPITRAMPOLINE_LIB does not name an MPIwrapper"
    if peer == "mpi4jax" and options.mpi4jax_python is None:
        if importlib.util.find_spec("mpi4jax") is None:
            return "no mpi4jax in this Python and no --mpi4jax-python"
    return ""


def jobs_of(peers: list[str]) -> list[list[str]]:
    """The peers that share a job, job by job."""
    together = [p for p in peers if p in ("uccl", "lax", "memcpy")]
    return ([together] if together else []) + [[p] for p in peers if p not in together]


def command_of(
    job: list[str], processes: int, per_process: int, options: argparse.Namespace, scratch: Any
) -> list[str]:
    mpirun = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(processes)]
    if os.geteuid() == 0:
        mpirun.insert(1, "--allow-run-as-root")
    if job == ["mpi"]:
        return [*mpirun, str(scratch / "mpi")]
    child = [str(HERE / "collectives_child.py"), ",".join(job)]
    if job[0] in ("jax-mpi", "mpi4jax"):
        python = sys.executable
        if job == ["mpi4jax"] and options.mpi4jax_python:
            python = options.mpi4jax_python
        return [*mpirun, python, *child]
    return [
        *(sys.executable, "-m", "jax_uccl.launch", "-n", str(processes)),
        *("--devices-per-process", str(per_process), "--timeout", str(JOB_SECONDS)),
        *child,
    ]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def run_job(job: list[str], command: list[str], plan: dict, scratch: pathlib.Path) -> list[dict]:
    """Runs one job and returns its rows; raises if it failed."""
    out = scratch / "rows.jsonl"
    out.unlink(missing_ok=True)
    text = json.dumps(plan)
    if job == ["mpi"]:
        command = [*command, str(out), str(plan["ranks"]), str(plan["rounds"])]
        command.append(",".join(plan["operations"]))
        command += [str(size) for size in plan["sizes"]]
    else:
        command = [*command, text, str(out)]
    environment = os.environ.copy()
    environment |= allocator_environment(environment)  # as under our launcher, for all peers
    if job == ["jax-mpi"]:
        environment["UCCL_BENCH_COORDINATOR"] = f"127.0.0.1:{free_port()}"
    done = subprocess.run(
        command, check=False, stdout=subprocess.DEVNULL, timeout=JOB_SECONDS + 60, env=environment
    )
    # JAX's MPI frees communicators after MPI_Finalize, which ends every job of it with an error.
    if done.returncode != 0 and not (job == ["jax-mpi"] and out.exists()):
        done.check_returncode()
    return [json.loads(line) for line in out.read_text().splitlines()]


def run_layout(layout: str, options: argparse.Namespace, scratch: pathlib.Path) -> list[dict]:
    """All peers of one layout, pass after pass; rows with the times of all passes."""
    processes, per_process = (int(part) for part in layout.split("x"))
    peers = []
    for peer in options.peers.split(","):
        reason = why_absent(peer, options, processes, per_process)
        if reason:
            print(f"{layout}: without {peer}: {reason}", file=sys.stderr)
        else:
            peers.append(peer)
    if "mpi" in peers:
        source = str(HERE / "collectives_mpi.c")
        subprocess.run(["mpicc", "-O2", source, "-o", str(scratch / "mpi")], check=True)
    plan = {
        "ranks": processes * per_process,
        "rounds": options.rounds,
        "operations": options.operations.split(","),
        "sizes": [parse_size(size) for size in options.sizes.split(",")],
        "dtypes": options.dtypes.split(","),
        "steps": options.steps,
        "cell_seconds": options.cell_seconds,
    }
    merged: dict[tuple, dict] = {}
    for turn in range(options.passes):
        jobs = jobs_of(peers)
        for job in jobs if turn % 2 == 0 else jobs[::-1]:
            print(f"{layout}: pass {turn + 1}: {', '.join(job)}", file=sys.stderr, flush=True)
            command = command_of(job, processes, per_process, options, scratch)
            for row in run_job(job, command, plan, scratch):
                key = tuple(row[k] for k in ("peer", "op", "dtype", "bytes", "in_program"))
                if key in merged:
                    merged[key]["times_s"] += row["times_s"]
                else:
                    merged[key] = row | {"processes": processes, "devices_per_process": per_process}
    return list(merged.values())


def print_table(rows: list[dict]) -> None:
    """One line for each operation, size, dtype and way of calling; a column for each peer."""
    cells: dict[tuple, dict[str, float]] = {}
    for row in rows:
        key = (row["processes"], row["devices_per_process"], row["op"], row["dtype"])
        key += (row["bytes"], row["in_program"])
        cells.setdefault(key, {})[row["peer"]] = statistics.median(row["times_s"]) * 1e6
    present = [p for p in PEERS if any(row["peer"] == p for row in rows)]
    print("microseconds per call, medians; (peer / ours)")
    head = "".join(f"{peer:>20}" for peer in present if peer != "memcpy")
    print(
        f"{'layout':7}{'operation':13}{'dtype':6}{'size':>7}  {'how':11}{head}{'memcpy':>10}{'to new':>10} GB/s of ours"
    )
    for (processes, each, op, dtype, size, in_program), medians in cells.items():
        if op in COPIES:
            continue
        ours = medians.get("uccl")
        line = f"{processes}x{each:<5}{op:13}{dtype:6}{show_size(size):>7}  "
        line += f"{'in program' if in_program else 'one call':11}"
        for peer in present:
            if peer == "memcpy":
                continue
            cell = f"{medians[peer]:.1f}" if peer in medians else "-"
            if peer in medians and peer != "uccl" and ours:
                cell += f" ({medians[peer] / ours:.2f})"
            line += f"{cell:>20}"
        for way in COPIES:
            copy = cells.get((processes, each, way, "bytes", size, False), {}).get("memcpy")
            line += f"{copy:10.1f}" if copy is not None else f"{'-':>10}"
        if ours:
            line += f" {size * bus_factor(op, processes * each) / ours / 1e3:.2f}"
        print(line)


def plot(rows: list[dict], path: str) -> None:
    """Time over size, single calls, f32: a panel for each layout and operation."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [r for r in rows if not r["in_program"] and r["dtype"] == "f32"]
    layouts = list(dict.fromkeys((r["processes"], r["devices_per_process"]) for r in rows))
    operations = list(dict.fromkeys(r["op"] for r in rows if r["op"] not in COPIES))
    size = (3.2 * len(operations), 2.8 * len(layouts))
    figure, panels = pyplot.subplots(len(layouts), len(operations), figsize=size, squeeze=False)
    for line, layout in zip(panels, layouts, strict=True):
        for panel, op in zip(line, operations, strict=True):
            for peer in PEERS:
                points = sorted(
                    (r["bytes"], statistics.median(r["times_s"]) * 1e6)
                    for r in rows
                    if (r["processes"], r["devices_per_process"]) == layout
                    and (r["op"], r["peer"]) == (op, peer)
                )
                if points:
                    panel.loglog(*zip(*points, strict=True), marker=".", label=peer)
            panel.set_title(f"{op}, {layout[0]}x{layout[1]}", fontsize=9)
            panel.set_xlabel("bytes")
            panel.set_ylabel("us")
            panel.legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layouts", default="2x1,4x1,1x8", help="processes x devices of each")
    parser.add_argument("--sizes", default="8,1K,64K,1M,16M", help="bytes; K and M are binary")
    parser.add_argument("--dtypes", default="f32", help="of f32, bf16; MPI runs f32 only")
    parser.add_argument("--operations", default=",".join(OPERATIONS))
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--passes", type=int, default=2, help="how often each job is started")
    parser.add_argument("--rounds", type=int, default=7, help="measurements in each job")
    parser.add_argument("--steps", type=int, default=100, help="operations of `in program`")
    parser.add_argument("--cell-seconds", type=float, default=3.0, help="for one peer and cell")
    parser.add_argument("--mpi4jax-python", default=None, help="an interpreter that has mpi4jax")
    parser.add_argument("--json", default=None, help="where to write all times")
    parser.add_argument("--plot", default=None, help="where to write a plot")
    options = parser.parse_args()
    for given, known in ((options.operations, OPERATIONS), (options.peers, PEERS)):
        if unknown := set(given.split(",")) - set(known):
            parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(known)}")
    rows: list[dict] = []
    with tempfile.TemporaryDirectory() as scratch:
        for layout in options.layouts.split(","):
            rows += run_layout(layout, options, pathlib.Path(scratch))
    print_table(rows)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1))
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
