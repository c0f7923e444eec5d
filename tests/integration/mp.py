"""Runs a test program as several processes below `jax.distributed`.

    import mp

    def test_sum():
        results = mp.run_processes('''
            import jax, jax_uccl
            from child_report import report
            report(jax.process_index())
            jax_uccl.shutdown()
            jax.distributed.shutdown()
        ''', n=2, check=True)
        assert [r.value for r in results] == [0, 1]

Uses the launcher's own supervisor: ports never collide, a stuck job is ended with the Python stacks
of every process in its stderr, and no process is left behind whatever happens to the test.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from child_report import REPORT_VARIABLE

import jax_uccl
from jax_uccl._src.launch_job import Job
from jax_uccl._src.launch_output import STDERR, STDOUT
from jax_uccl._src.launch_supervisor import run_job

_HERE = pathlib.Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Result:
    """What one process did. `returncode` is negative when a signal ended it."""

    rank: int
    returncode: int
    stdout: str
    stderr: str
    value: Any = None  # Given to child_report.report(); None when it was not called.


class ProcessesFailed(AssertionError):
    """A job ran into its timeout, or failed with `check=True`; the text holds all output."""

    def __init__(self, reason: str, results: Sequence[Result]):
        super().__init__(f"{reason}\n{format_results(results)}")
        self.results = results


def run_processes(
    script: str | pathlib.Path,
    n: int,
    devices_per_process: int = 1,
    args: Sequence[str] = (),
    env: Mapping[str, str | pathlib.Path] | None = None,
    timeout: float = 120,
    *,
    check: bool = False,
    end_on_failure: bool = True,
    initialize: bool = True,
) -> list[Result]:
    """Runs `script` in `n` processes and waits for all of them.

    Args:
      script: Python source (it may be indented as a whole), or the path of a file.
      n: number of processes.
      devices_per_process: CPU devices in each.
      args: given to the script as `sys.argv[1:]`.
      env: more environment variables. A dict per rank is not needed: see `jax.process_index()`.
      timeout: limit in seconds for the whole job.
      check: raise unless every process exits with 0.
      end_on_failure: a process that fails ends the others. False to watch the survivors.
      initialize: call `jax.distributed.initialize` before the script.

    Returns:
      One result per rank, in order.

    Raises:
      ProcessesFailed: the timeout passed, or a process failed and `check` is true.
    """
    with tempfile.TemporaryDirectory(prefix="uccl-mp-") as name:
        folder = pathlib.Path(name)
        path = script
        if isinstance(script, str):
            path = folder / "child.py"
            path.write_text(textwrap.dedent(script))
        capture = _Capture()
        # The children import the same jax_uccl as this process, installed or not.
        package_root = pathlib.Path(jax_uccl.__file__).parents[1]
        paths = [str(_HERE), str(package_root), *filter(None, [os.environ.get("PYTHONPATH")])]
        job = Job(
            command=[str(path), *args],
            size=n,
            devices_per_process=devices_per_process,
            env={"PYTHONPATH": os.pathsep.join(paths)}
            | {k: str(v) for k, v in (env or {}).items()},
            rank_env=[{REPORT_VARIABLE: str(folder / f"{rank}.json")} for rank in range(n)],
            timeout_s=timeout,
            initialize=initialize,
            end_on_failure=end_on_failure,
        )
        outcome = run_job(job, capture)
        results = [
            Result(
                rank=rank,
                returncode=code,
                stdout=capture.text(rank, STDOUT),
                stderr=capture.text(rank, STDERR),
                value=_read_json(folder / f"{rank}.json"),
            )
            for rank, code in enumerate(outcome.rank_codes)
        ]
    if outcome.timed_out:
        raise ProcessesFailed(f"no end within {timeout:g} s", results)
    if check and outcome.exit_code != 0:
        raise ProcessesFailed(" ".join(capture.notes), results)
    return results


def environment_alone() -> dict[str, str]:
    """This process's environment for a child that chooses its number of devices itself."""
    flags = re.sub(
        r"--xla_force_host_platform_device_count=\d+", "", os.environ.get("XLA_FLAGS", "")
    )
    return {**os.environ, "XLA_FLAGS": flags.strip()}


def format_results(results: Sequence[Result]) -> str:
    """All output of a job, for the message of a failed assertion."""
    parts = []
    for result in results:
        parts.append(f"----- rank {result.rank}: returncode {result.returncode}")
        parts += [
            f"{name}:\n{text}" for name in ("stdout", "stderr") if (text := getattr(result, name))
        ]
    return "\n".join(parts)


def _read_json(path: pathlib.Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


class _Capture:
    """Output sink that keeps everything."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._data: dict[tuple[int, int], bytearray] = {}

    def write(self, rank: int, stream: int, data: bytes) -> None:
        self._data.setdefault((rank, stream), bytearray()).extend(data)

    def close(self, rank: int, stream: int) -> None:
        del rank, stream

    def note(self, message: str) -> None:
        self.notes.append(message)

    def text(self, rank: int, stream: int) -> str:
        return self._data.get((rank, stream), bytearray()).decode(errors="replace")
