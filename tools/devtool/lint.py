"""`./dev lint` and `./dev format`: the same programs and versions everywhere, from the dev extra."""

from __future__ import annotations

import shlex
from pathlib import Path

from devtool import tally
from devtool.pythons import Environment
from devtool.shell import ROOT, run, say, status_of
from devtool.tally import Counts

_CODE_FOLDERS = ("benchmarks", "csrc", "tests", "xla_ffi")
_TEXT = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs",
    "csrc",
    "xla_ffi",
)
_PYTHON = ("jax_uccl", "tests", "tools", "examples", "benchmarks")


def _existing(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if (ROOT / name).exists()]


def cc_files() -> list[Path]:
    """Every C++ file. Tables (.inc) keep one row a line whatever its length, so they stay out."""
    found = [p for folder in _CODE_FOLDERS for p in (ROOT / folder).rglob("*")]
    return sorted(p for p in found if p.suffix in (".h", ".cc", ".cu", ".cuh"))


def lint(environment: Environment) -> Counts:
    checks = {
        "ruff check": [environment.tool("ruff"), "check", "--quiet", "."],
        "ruff format": [environment.tool("ruff"), "format", "--check", "--quiet", "."],
        "mypy": [environment.tool("mypy"), "--no-error-summary", "--python-executable",
                 str(environment.python)],
        "codespell": [environment.tool("codespell"), *_existing(_TEXT + _PYTHON)],
        "clang-format": [environment.tool("clang-format"), "--dry-run", "-Werror",
                         *map(str, cc_files())],
        "tidy": [str(environment.python), "-m", "pytest", "-q", "-p", "no:cacheprovider",
                 "tests/test_tidy.py"],
    }  # fmt: skip
    total = Counts()
    for name, command in checks.items():
        ok = status_of(command, env=environment.env()) == 0
        say(f"{name}: {'ok' if ok else 'FAILED: ' + shlex.join(command[:6])}")
        total += tally.one(ok)
    return total


def format_all(environment: Environment) -> None:
    run([environment.tool("ruff"), "check", "--fix", "--quiet", "."], env=environment.env())
    run([environment.tool("ruff"), "format", "--quiet", "."], env=environment.env())
    run([environment.tool("clang-format"), "-i", *cc_files()], env=environment.env())
