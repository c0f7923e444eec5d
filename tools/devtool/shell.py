"""Running commands and telling the user about it."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

Words = list[str | Path]  # a command and its arguments
ROOT = Path(__file__).resolve().parents[2]
JOBS = len(os.sched_getaffinity(0))


class DevError(Exception):
    """Something that the user has to know and that ends the command."""


def say(text: str) -> None:
    colour = sys.stdout.isatty()
    print(f"\033[1m[dev]\033[0m {text}" if colour else f"[dev] {text}", flush=True)


def child_env(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of children: ours without the PYTHONPATH through which devtool itself is found."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env.update(extra or {})
    return env


def status_of(
    command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path = ROOT
) -> int:
    """Runs the command with our output; its exit status."""
    words = [str(word) for word in command]
    return subprocess.run(words, env=dict(env or child_env()), cwd=cwd).returncode


def run(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    quiet: bool = False,
) -> None:
    """Runs the command; with quiet its output shows only when it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        env=dict(env or child_env()),
        cwd=cwd,
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.STDOUT if quiet else None,
        text=True,
        errors="replace",
    )
    if done.returncode != 0:
        if quiet:
            print(done.stdout, end="", flush=True)
        raise DevError(f"exit status {done.returncode} from: {shlex.join(words)}")


def output_of(command: Sequence[str | Path], *, timeout_s: float = 60) -> str | None:
    """The command's standard output, or None when it is absent or fails."""
    try:
        done = subprocess.run(
            [str(word) for word in command],
            env=child_env(),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


@contextlib.contextmanager
def timed(what: str) -> Iterator[None]:
    say(what)
    start = time.monotonic()
    yield
    say(f"{what}: {time.monotonic() - start:.0f} s")
