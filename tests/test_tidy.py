"""The rules that no compiler holds: include arrows, purity of the transport, form of the files."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("UCCL_SOURCE_ROOT") or Path(__file__).absolute().parents[1])
MAX_LINES = 600

# room -> the rooms that it may include besides itself; the longest matching folder decides.
ARROWS: dict[str, set[str]] = {
    "csrc/base": set(),
    "csrc/wire": {"csrc/base"},
    "csrc/core": {"csrc/base", "csrc/wire"},
    "csrc/nic": {"csrc/base"},
    "csrc/shm": {"csrc/base", "csrc/core"},
    "csrc/engine": {"csrc/base", "csrc/wire", "csrc/core", "csrc/nic", "csrc/shm"},
    "csrc/collectives": {
        "csrc/base", "csrc/wire", "csrc/core", "csrc/nic", "csrc/shm", "csrc/engine", "csrc/cuda", "csrc/proxy",
        "csrc/executor", "csrc/fifo",
    },
    "csrc/sim": {"csrc/base", "csrc/wire", "csrc/core", "csrc/nic", "csrc/shm", "csrc/engine"},
    "csrc/moe": {"csrc/base", "csrc/fifo", "csrc/proxy", "csrc/cuda", "csrc/executor", "csrc/collectives"},
    "csrc/cuda": {"csrc/base", "csrc/fifo"},
    "csrc/fifo": {"csrc/base"},
    "csrc/executor": {"csrc/base", "csrc/engine", "csrc/fifo", "csrc/cuda", "csrc/proxy"},
    "csrc/proxy": {"csrc/base", "csrc/core", "csrc/engine", "csrc/fifo"},
    "xla_ffi": {
        "csrc/base", "csrc/wire", "csrc/core", "csrc/nic", "csrc/engine", "csrc/collectives",
        "csrc/moe", "csrc/sim", "csrc/cuda", "csrc/executor",
    },
    "tests/fuzz": {
        "csrc/base", "csrc/wire", "csrc/core", "csrc/nic", "csrc/engine", "csrc/collectives",
    },
}  # fmt: skip

# Policies of the core see samples, not the connection that feeds them.
POLICY_FOLDERS = ("csrc/core/cc", "csrc/core/path", "csrc/core/recovery")

PURE_ROOMS = ("csrc/wire", "csrc/core")
IMPURE_HEADERS = {
    "atomic", "condition_variable", "ctime", "fstream", "future", "iostream", "mutex",
    "semaphore", "shared_mutex", "stop_token", "thread", "time.h", "poll.h", "pthread.h", "netdb.h",
    "unistd.h", "random",
}  # fmt: skip
IMPURE_HEADER_FOLDERS = ("sys/", "netinet/", "arpa/", "linux/", "net/")
IMPURE_CALLS = (
    r"(?:system|steady|high_resolution)_clock\b", r"\bclock_gettime\s*\(", r"\bgettimeofday\s*\(",
    r"(?<![\w.>:])time\s*\(",
    r"\bgetenv\s*\(", r"std::(?:jthread|thread|mutex|lock_guard|unique_lock|atomic)\b",
    r"std::(?:cout|cerr|clog)\b", r"\b(?:usleep|nanosleep|sleep)\s*\(", r"::(?:socket|sendto|recvfrom)\s*\(",
)  # fmt: skip

# The one place that may read the environment.
ENVIRONMENT_READERS = {"csrc/base/config.cc"}
FATAL_CALLS = (
    r"(?<![\w.>])(?:std::)?(?:abort|terminate|quick_exit|_exit|exit)\s*\(",
    r"(?<![\w.>])(?:std::)?(?:printf|puts|putchar|perror|vprintf)\s*\(",
    r"(?<![\w.>])(?:std::)?v?fprintf\s*\(\s*(?:stdout|stderr)\b",
    r"std::(?:cout|cerr|clog)\b",
)
# base/assert.h ends the process on a bug of ours; base/log.* is the text log.
FATAL_ALLOWED = re.compile(r"^csrc/base/(?:assert|log)\.(?:h|cc)$")

PRIVATE_JAX = re.compile(r"^(?:jax\._src|jaxlib|jax\.interpreters|jax\.extend)(?:\.|$)")
PRIVATE_JAX_READER = "jax_uccl/_src/jax_compat.py"


def files(folders: tuple[str, ...], *suffixes: str) -> list[str]:
    found = (p for folder in folders for p in (ROOT / folder).rglob("*"))
    return sorted(
        p.relative_to(ROOT).as_posix()
        for p in found
        if p.suffix in suffixes and "__pycache__" not in p.parts
    )


CC_FILES = files(("csrc", "xla_ffi", "tests"), ".h", ".cc", ".inc", ".cu", ".cuh")
PYTHON_FILES = files(("jax_uccl", "tests", "tools", "examples", "benchmarks", "bazel"), ".py")
LIBRARY_CC_FILES = [
    p
    for p in CC_FILES
    if not p.endswith("_test.cc") and "/testing/" not in p and not p.startswith("tests/")
]


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def code_lines(path: str) -> Iterator[tuple[int, str]]:
    """Numbered lines without comments and without what stands in string literals."""
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), read(path), flags=re.DOTALL)
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#include"):
            yield number, line
            continue
        line = re.sub(r'"(?:\\.|[^"\\])*"', '""', line)
        yield number, line.split("//", 1)[0]


def includes(path: str) -> Iterator[tuple[int, str]]:
    for number, line in code_lines(path):
        match = re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line)
        if match:
            yield number, match[1]


def room_of(path: str) -> str | None:
    matching = [room for room in ARROWS if path.startswith(room + "/")]
    return max(matching, key=len, default=None)


def report(faults: list[str]) -> None:
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


def test_tree_is_there() -> None:
    assert len(CC_FILES) > 5 and len(PYTHON_FILES) > 5, f"the tree was not found under {ROOT}"


def test_include_arrows() -> None:
    faults = []
    for path in CC_FILES:
        room = room_of(path)
        if room is None:
            faults.append(f"{path}: belongs to no room of tests/test_tidy.py")
            continue
        for number, name in includes(path):
            target = room_of(name)
            if name.startswith(("csrc/", "xla_ffi/")) and target is None:
                faults.append(f"{path}:{number}: includes {name}, which is in no room")
            elif target is not None and target != room and target not in ARROWS[room]:
                faults.append(f"{path}:{number}: {room} may not include {name}")
    report(faults)


def test_includes_start_at_the_root() -> None:
    faults = []
    for path in CC_FILES:
        for number, line in code_lines(path):
            match = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
            if not match or match[1].startswith("xla/"):
                continue
            if not (ROOT / match[1]).exists():
                faults.append(f'{path}:{number}: "{match[1]}" is no path from the root')
    report(faults)


def test_policies_do_not_include_the_connection() -> None:
    faults = []
    for path in LIBRARY_CC_FILES:
        if path.startswith(tuple(folder + "/" for folder in POLICY_FOLDERS)):
            for number, name in includes(path):
                if name.startswith("csrc/core/connection"):
                    faults.append(f"{path}:{number}: a policy may not include {name}")
    report(faults)


def test_wire_and_core_are_pure() -> None:
    faults = []
    for path in CC_FILES:
        if not path.startswith(tuple(room + "/" for room in PURE_ROOMS)):
            continue
        if path.endswith("_test.cc") or "/testing/" in path:
            # Tests may read golden files, print and seed a generator; time is an argument there too.
            forbidden, calls = IMPURE_HEADERS - {"iostream", "fstream", "random"}, IMPURE_CALLS[:4]
        else:
            forbidden, calls = IMPURE_HEADERS, IMPURE_CALLS
        for number, name in includes(path):
            if name in forbidden or name.startswith(IMPURE_HEADER_FOLDERS):
                faults.append(f"{path}:{number}: includes <{name}>")
        for number, line in code_lines(path):
            for call in calls:
                if re.search(call, line):
                    faults.append(f"{path}:{number}: {line.strip()}")
    report(faults)


def test_environment_is_read_in_one_place() -> None:
    faults = []
    for path in LIBRARY_CC_FILES:
        if path in ENVIRONMENT_READERS:
            continue
        for number, line in code_lines(path):
            if re.search(r"\b(?:secure_)?getenv\s*\(|\benviron\b", line):
                faults.append(f"{path}:{number}: {line.strip()}")
    report(faults)


def test_library_neither_ends_the_process_nor_prints() -> None:
    faults = []
    for path in LIBRARY_CC_FILES:
        if FATAL_ALLOWED.match(path):
            continue
        for number, line in code_lines(path):
            for call in FATAL_CALLS:
                if re.search(call, line):
                    faults.append(f"{path}:{number}: {line.strip()}")
    report(faults)


def test_every_file_says_what_it_is() -> None:
    faults = []
    for path in CC_FILES:
        if not read(path).lstrip().startswith(("//", "/*")):
            faults.append(f"{path}: no comment at its head")
    for path in PYTHON_FILES:
        if ast.get_docstring(ast.parse(read(path))) is None and read(path).strip():
            faults.append(f"{path}: no docstring at its head")
    report(faults)


def test_files_stay_short() -> None:
    lengths = {path: len(read(path).splitlines()) for path in CC_FILES + PYTHON_FILES}
    report(
        [
            f"{path}: {n} lines, more than {MAX_LINES}"
            for path, n in lengths.items()
            if n > MAX_LINES
        ]
    )


def test_headers_are_guarded() -> None:
    headers = [p for p in CC_FILES if p.endswith((".h", ".cuh"))]
    report([f"{p}: no #pragma once" for p in headers if "#pragma once" not in read(p)])


def imports(path: str) -> Iterator[tuple[int, str]]:
    """Absolute module names, for `from a import b` both a and a.b."""
    for node in ast.walk(ast.parse(read(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.lineno, node.module
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def test_private_jax_is_imported_in_one_place() -> None:
    faults = set()
    for path in files(("jax_uccl", "examples", "benchmarks"), ".py"):
        if path != PRIVATE_JAX_READER:
            for number, name in imports(path):
                if PRIVATE_JAX.match(name):
                    faults.add(f"{path}:{number}: imports {name}")
    report(sorted(faults))


def test_code_lines_ignores_comments_and_strings(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(
        "pathlib.Path.read_text", lambda self, **_: 'a("exit(1)");  // exit(2)\nexit(3);'
    )
    found = [line for _, line in code_lines("x.cc") if re.search(FATAL_CALLS[0], line)]
    assert found == ["exit(3);"]
