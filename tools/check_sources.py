"""Fails when Bazel, CMake and the disk do not agree on the sources.

Both builds glob by the same rules, but a sub-folder with a BUILD file, a new room or a file with an odd name escapes
one of them silently. Compared are C++ files, Python files of the package and test files; headers, flags and linked
libraries are not. Bazel is asked by `bazel query`, CMake by the compile_commands.json of a build with tests.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CC_FOLDERS = ("benchmarks", "csrc", "tests", "xla_ffi")
# Compiled by clang alone, with JAX_UCCL_BUILD_FUZZERS.
ONLY_FUZZERS = {"tests/fuzz/fuzzer_main.cc"}


def on_disk(folders: Iterable[str], pattern: str) -> set[str]:
    found = (p for folder in folders for p in (ROOT / folder).rglob(pattern))
    return {p.relative_to(ROOT).as_posix() for p in found if "__pycache__" not in p.parts}


def in_cmake(build_dir: Path) -> set[str]:
    commands = json.loads((build_dir / "compile_commands.json").read_text())
    files = ((Path(c["directory"]) / c["file"]).resolve() for c in commands)
    inside = (p.relative_to(ROOT) for p in files if p.is_relative_to(ROOT))
    return {p.as_posix() for p in inside if p.parts[0] in CC_FOLDERS}


def in_bazel(query: str) -> set[str]:
    """Paths of the source files that the query names; labels of other repositories are left out."""
    command = ["bazel", "query", "--noshow_progress", f'kind("source file", {query})']
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    labels = (line for line in done.stdout.splitlines() if line.startswith("//"))
    return {label[2:].replace(":", "/").lstrip("/") for label in labels}


def compare(what: str, sides: dict[str, set[str]]) -> bool:
    """Prints each file that some side lacks."""
    every = set().union(*sides.values())
    same = True
    for path in sorted(every):
        having = [name for name, files in sides.items() if path in files]
        if len(having) != len(sides):
            print(f"{what}: only {' and '.join(having)} has {path}")
            same = False
    if same:
        print(f"{what}: {' = '.join(sides)}, {len(every)} files")
    return same and bool(every)


def versions() -> dict[str, set[str]]:
    """The version, wherever it is written."""
    found = {
        "pyproject.toml": tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    }
    patterns = {"MODULE.bazel": r'^    version = "([^"]+)",$'}
    for path in sorted((ROOT / "jax_uccl").rglob("*.py")):
        patterns[path.relative_to(ROOT).as_posix()] = r'^__version__(?:: str)? = "([^"]+)"$'
    for name, pattern in patterns.items():
        match = re.search(pattern, (ROOT / name).read_text(), re.MULTILINE)
        if match:
            found[name] = match[1]
    return {name: {f"version {version}"} for name, version in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build-dir", type=Path, required=True, help="CMake build with tests")
    parser.add_argument("--no-bazel", action="store_true", help="compare only CMake and the disk")
    options = parser.parse_args()

    cc = {
        "disk": on_disk(CC_FOLDERS, "*.cc") - ONLY_FUZZERS,
        "CMake": in_cmake(options.build_dir.resolve()),
    }
    python = {"disk": on_disk(["jax_uccl"], "*.py")}
    tests = {"disk": on_disk(["tests"], "test_*.py")}
    if not options.no_bazel:
        # Filegroups among the srcs are followed one step.
        cc_files = in_bazel('deps(labels(srcs, kind("cc_(library|binary|test) rule", //...)), 1)')
        cc["Bazel"] = {p for p in cc_files if p.endswith(".cc")}
        python["Bazel"] = in_bazel('labels(srcs, kind("py_library rule", //jax_uccl/...))')
        tests["Bazel"] = in_bazel('labels(srcs, kind("pytest_test rule", //tests/...))')
    good = [compare("C++", cc), compare("version", versions())]
    if not options.no_bazel:
        good += [compare("Python", python), compare("Python tests", tests)]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
