"""Runs JAX's own test files with the collectives of jax_uccl in place of those of jax.lax, and counts.

    python tests/lax_suite/run.py JAX_CHECKOUT [-k words] [--modes swap,use] [--log FOLDER]

JAX_CHECKOUT is a checkout of JAX (https://github.com/jax-ml/jax) of the installed version, or one close to it.
What plugin.py describes as modes are the ways of standing in. A test that fails runs again with JAX's own
collectives: where it fails too it says nothing about us; where it passes or is skipped it has to pass with ours, or
`excluded.py` says why not. (Ragged tests are skipped on CPU, where lax has no such collective; with ours they run
and have to pass.) Tests of several processes run on two processes of four devices and on four processes of one.

Exit code 1: a test failed that is not excluded, an excluded one passes, a run ended early, or nothing was
lowered to this library.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

import excluded
import jax

from jax_uccl._src.launch_job import Job
from jax_uccl._src.launch_supervisor import run_job

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


class Suite(NamedTuple):
    """A pytest run: files, processes, devices in each."""

    files: tuple[str, ...]
    processes: int
    devices: int


_SEVERAL = tuple(
    f"multiprocess/{name}_test.py" for name in ("all_gather", "all_reduce", "all_to_all", "pmap")
)
SUITES = (
    Suite(("ragged_collective_test.py",), 1, 8),
    Suite(_SEVERAL, 2, 4),
    Suite(_SEVERAL, 4, 1),
    Suite(("shard_map_test.py",), 1, 8),
)
WORST = ("failed", "no outcome", "not run", "skipped", "passed")


class Run(NamedTuple):
    """What pytest said about each test, over all processes; `lowered` collectives to this library."""

    outcomes: dict[str, str]
    lowered: int
    ended: bool


class _Files:
    """Output sink: a file for each process and stream."""

    def __init__(self, folder: pathlib.Path, name: str):
        self._open = lambda rank: (folder / f"{name}.{rank}.log").open("ab")

    def write(self, rank: int, stream: int, data: bytes) -> None:
        with self._open(rank) as file:
            file.write(data)

    def close(self, rank: int, stream: int) -> None:
        pass

    def note(self, message: str) -> None:
        with self._open("launcher") as file:
            file.write(f"{message}\n".encode())


def run_suite(
    tests: pathlib.Path,
    suite: Suite,
    mode: str,
    words: str,
    log: pathlib.Path,
    timeout: float,
    only: Sequence[str] | None = None,
) -> Run:
    """One pytest run in all of its processes; `only` the tests of these names."""
    name = f"{pathlib.Path(suite.files[0]).stem}-{suite.processes}x{suite.devices}-{mode}"
    chosen = {}
    if only is not None:
        (log / f"{name}.only").write_text("\n".join(only))
        chosen = {"UCCL_SUITE_ONLY": str(log / f"{name}.only")}
    files = [str(tests / file) for file in suite.files if (tests / file).exists()]
    options = ["--noconftest", "--import-mode=importlib", "-p", "plugin", "-p", "no:cacheprovider"]
    options += ["-q", "--tb=short", "-W", "ignore", "--rootdir", str(tests)]
    options += ["-c", os.devnull, *(["-k", words] if words else [])]
    paths = [str(HERE), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    job = Job(
        command=["-m", "pytest", *options, *files],
        size=suite.processes,
        devices_per_process=suite.devices,
        env={
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONDONTWRITEBYTECODE": "1",
            "UCCL_SUITE": mode,
            "UCCL_SUITE_REPORT": str(log / name),
            "UCCL_SUITE_PROCESSES": str(suite.processes),
        }
        | chosen,
        timeout_s=timeout,
        initialize=suite.processes > 1,
        end_on_failure=False,
    )
    outcome = run_job(job, _Files(log, name))
    outcomes: dict[str, str] = {}
    lowered = 0
    for rank in range(suite.processes):
        path = log / f"{name}.{rank}.json"
        report = json.loads(path.read_text()) if path.exists() else {"outcomes": {}, "lowered": 0}
        lowered += report["lowered"]
        for test, result in report["outcomes"].items():
            outcomes[test] = min(outcomes.get(test, "passed"), result, key=WORST.index)
    # pytest: 0 all passed, 1 some failed, 5 none were chosen.
    return Run(outcomes, lowered, all(code in (0, 1, 5) for code in outcome.rank_codes))


def judge(lax: Run, ours: Run, mode: str) -> tuple[collections.Counter[str], list[str]]:
    """Counts, and complaints."""
    counts: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    for test, got in sorted(ours.outcomes.items()):
        base = lax.outcomes.get(test, "no outcome")
        entry = excluded.find(test, mode)
        if entry is not None and got != "passed":
            counts["excluded"] += 1
        elif entry is not None:
            counts["excluded but pass"] += 1
            wrong.append(f"{test} passes, but is excluded: {entry.reason}")
        elif got == "passed":
            counts["passed"] += 1
        elif got == "skipped":
            counts["skipped"] += 1
        elif base in ("failed", "no outcome"):
            counts["fail with lax too"] += 1
        else:
            counts["failed"] += 1
            wrong.append(f"{test}: {got} ({base} with JAX's own collectives)")
    return counts, wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev lax-suite", description=__doc__.splitlines()[0])
    parser.add_argument(
        "checkout", type=pathlib.Path, help="folder that holds tests/shard_map_test.py"
    )
    parser.add_argument("-k", dest="words", default="", help="pytest's -k")
    parser.add_argument("--modes", default="swap,use", help="default: swap,use")
    parser.add_argument("--only", default="", help="files whose name contains this")
    parser.add_argument("--log", type=pathlib.Path, help="folder for output and outcomes")
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds for each pytest run")
    options = parser.parse_args()
    tests = (options.checkout / "tests").resolve()
    if not (tests / "shard_map_test.py").exists():
        parser.error(f"{tests} has no shard_map_test.py: give a checkout of JAX {jax.__version__}")
    bad = 0
    with tempfile.TemporaryDirectory(prefix="uccl-lax-suite-") as temporary:
        log = options.log or pathlib.Path(temporary)
        log.mkdir(parents=True, exist_ok=True)
        print(f"JAX {jax.__version__}, tests of {tests}", flush=True)
        for suite in SUITES:
            if not any(options.only in file and (tests / file).exists() for file in suite.files):
                continue
            arguments = (options.words, log, options.timeout)
            for mode in options.modes.split(","):
                ours = run_suite(tests, suite, mode, *arguments)
                failed = [t for t, o in ours.outcomes.items() if o in ("failed", "no outcome")]
                unclear = [t for t in failed if excluded.find(t, mode) is None]
                lax = Run({}, 0, True)
                if unclear:
                    lax = run_suite(tests, suite, "lax", *arguments, only=unclear)
                counts, wrong = judge(lax, ours, mode)
                if not ours.ended:
                    wrong.append("a process ended early")
                if not ours.lowered:
                    wrong.append("no collective was lowered to jax_uccl")
                title = f"{suite.files[0]}{' ...' if len(suite.files) > 1 else ''}"
                numbers = ", ".join(f"{count} {what}" for what, count in counts.most_common())
                print(
                    f"{title} on {suite.processes} x {suite.devices} devices, {mode}: {numbers}; "
                    f"{ours.lowered} collectives lowered to jax_uccl",
                    flush=True,
                )
                for line in wrong:
                    print(f"  {line}", flush=True)
                bad += len(wrong)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
