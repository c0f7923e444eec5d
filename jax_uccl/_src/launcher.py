"""Command line of `python -m jax_uccl.launch`: one script as several local JAX processes.

    python -m jax_uccl.launch -n 4 train.py --steps 100
    python -m jax_uccl.launch -n 2 --devices-per-process 4 -m package.module

Each process runs the unmodified script after `jax.distributed.initialize`, with CPU devices. Output
is streamed with a `[rank/size] ` prefix; a rank that fails ends the others, and its exit code
becomes the launcher's. On a cluster use its own launcher instead; JAX detects it.

Starting and ending is in `launch_supervisor.py`, output in `launch_output.py`, the first code of a
rank in `launch_child.py`. None of them imports JAX.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
from collections.abc import Sequence

from jax_uccl._src.launch_job import Job
from jax_uccl._src.launch_output import Console
from jax_uccl._src.launch_supervisor import EXIT_TIMEOUT, run_job

_EXIT_USAGE = 2
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code.

    Returns:
      0 when all ranks succeed; else that of the first rank that failed (128 + signal when a signal
      ended it), 128 + signal when the launcher was told to end, 124 after `--timeout`.
    """
    args = _parse(argv)
    console = Console(args.n)
    job = Job(
        command=args.command,
        size=args.n,
        devices_per_process=args.devices_per_process,
        env=dict(args.env),
        timeout_s=args.timeout,
        grace_s=args.grace,
        initialize=not args.no_initialize,
        keep_memory=args.keep_memory,
        columns=console.columns(),
    )
    _adopt_orphans()
    try:
        return run_job(job, console, forward_signals=True).exit_code
    finally:
        _kill_adopted()


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m jax_uccl.launch",
        usage="%(prog)s -n N [options] (script.py | -m module) [arguments]",
        description="Runs a script as N local JAX processes on CPU devices.",
        epilog=f"Exit code: that of the first rank that fails, 128 + signal, or {EXIT_TIMEOUT} "
        "after --timeout.",
    )
    add = parser.add_argument
    add("-n", type=_positive_int, required=True, metavar="N", help="number of processes")
    add("--devices-per-process", type=_positive_int, default=1, metavar="D", help="default 1")
    add("--timeout", type=_positive_float, metavar="S", help="end the job after S seconds")
    add("--grace", type=_positive_float, default=5.0, metavar="S", help="from SIGTERM to SIGKILL")
    add("--env", type=_assignment, action="append", default=[], metavar="K=V", help="repeatable")
    add(
        "--keep-memory",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="let the C library (glibc) keep freed memory, in huge pages, instead of paying for new "
        "pages with every large result; not where GLIBC_TUNABLES or MALLOC_* are set (default: on)",
    )
    add(
        "--no-initialize",
        action="store_true",
        help="leave jax.distributed.initialize to the script, or do without JAX",
    )
    add("-m", dest="module", nargs=argparse.REMAINDER, help="run a module instead of a script")
    add("script", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.module:
        args.command = ["-m", *args.module]
    elif args.script:
        args.command = args.script
        if not os.path.exists(args.script[0]):
            parser.exit(_EXIT_USAGE, f"{parser.prog}: no such file: {args.script[0]}\n")
    else:
        parser.error("a script or -m module is needed")
    return args


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def _positive_float(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _assignment(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def _adopt_orphans() -> None:
    """Makes this process the parent of what ranks leave behind outside their groups (Linux)."""
    if sys.platform.startswith("linux"):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def _kill_adopted() -> None:
    """Kills and reaps what was adopted; a rank's daemon that left its session is found here."""
    if not sys.platform.startswith("linux"):
        return
    while True:
        children = _children_of(os.getpid())
        if not children:
            return
        for pid in children:  # They are ours and not yet reaped, so the numbers are theirs.
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _children_of(parent: int) -> list[int]:
    children = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    # "pid (name) state ppid ..."; the name may hold blanks and parentheses.
                    fields = file.read().rpartition(b")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue  # It ended while the folder was read.
            if int(fields[1]) == parent:
                children.append(int(entry))
    return children
