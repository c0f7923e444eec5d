"""`./dev fuzz`: the libFuzzer programs of tests/fuzz, built with clang and run for a while."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from devtool import build, system
from devtool.pythons import Environment
from devtool.shell import ROOT, DevError, Words, child_env, say, status_of

_KEPT = ROOT / "tests" / "fuzz" / "corpus"
_WORK = ROOT / "build" / "fuzz"
# Longest input worth trying: 64 steps of a connection, or more than any text that is exchanged.
_MAX_BYTES = 1024
# Against the sanitizers' defaults: less memory and time, as nothing here frees megabytes.
_ASAN = "quarantine_size_mb=16:malloc_context_size=8"


def targets() -> list[str]:
    """The rows of the table in tests/fuzz/targets.cc."""
    table = (ROOT / "tests" / "fuzz" / "targets.cc").read_text(encoding="utf-8")
    return re.findall(r'^ +\{"(\w+)", &Fuzz', table, re.MULTILINE)


def _clang() -> str:
    names = ["clang++", *(f"clang++-{version}" for version in range(21, 13, -1))]
    found = next(filter(None, map(shutil.which, names)), None)
    if not found:
        system.need(["clang"], "clang with libFuzzer")
        found = shutil.which("clang++")
    if not found:
        raise DevError("clang was installed and is not found")
    return found


def _run(program: Path, arguments: Words) -> int:
    env = child_env({"ASAN_OPTIONS": _ASAN, "UBSAN_OPTIONS": "print_stacktrace=1"})
    return status_of([program, *arguments], env=env)


def _fuzz(program: Path, target: str, seconds: int) -> bool:
    """Fuzzes one target, starting from the kept inputs; whether it found nothing."""
    work, findings = _WORK / target, _WORK / "findings"
    for folder in (work, findings):
        folder.mkdir(parents=True, exist_ok=True)
    say(f"{target}: {seconds} s, new inputs in {work.relative_to(ROOT)}")
    options = [f"-max_total_time={seconds}", f"-max_len={_MAX_BYTES}", "-timeout=20"]
    options += ["-entropic=0", "-print_final_stats=1", f"-artifact_prefix={findings}/{target}-"]
    return _run(program, [*options, work, _KEPT / target]) == 0


def _keep(program: Path, target: str) -> None:
    """The smallest set of inputs that reaches all that is reached, in place of the kept one.

    Files whose names say what they once found stay whatever they reach.
    """
    kept, fresh = _KEPT / target, _WORK / f"{target}-kept"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    # Edges alone, not how often each is taken: a tenth of the files.
    if _run(program, ["-merge=1", "-use_counters=0", fresh, kept, _WORK / target]) != 0:
        raise DevError(f"an input of {target} fails; run ./dev fuzz first")
    for path in kept.iterdir():
        if re.fullmatch(r"[0-9a-f]{40}", path.name):
            path.unlink()
    for path in fresh.iterdir():
        shutil.copyfile(path, kept / path.name)
    say(f"{target}: {len(list(kept.iterdir()))} inputs kept")


def fuzz(environment: Environment, only: str | None, seconds: int, keep: bool) -> int:
    """Runs the targets one after the other; 1 when there is a finding."""
    chosen = [name for name in targets() if only in (None, name)]
    if not chosen:
        raise DevError(f"no such target; there are: {', '.join(targets())}")
    folder = build.build_fuzzers(environment, _clang(), [f"fuzz_{name}" for name in chosen])
    clean = [_fuzz(folder / f"fuzz_{name}", name, seconds) for name in chosen]
    if not all(clean):
        say(f"findings are in {(_WORK / 'findings').relative_to(ROOT)}; see docs/testing.md")
        return 1
    if keep:
        for name in chosen:
            _keep(folder / f"fuzz_{name}", name)
    return 0
