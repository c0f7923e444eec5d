"""Writes docs/config.md and docs/errors.md from the two tables in csrc/base.

    python tools/gen_docs.py           writes both files
    python tools/gen_docs.py --check   exits with 1 and names the files that differ from the tables

Pure text: nothing needs to be built. It leaves the words themselves to csrc/base/config_table.inc
and csrc/base/status_codes.inc, which are the only places to edit.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CONFIG_TABLE = "csrc/base/config_table.inc"
STATUS_TABLE = "csrc/base/status_codes.inc"

# One argument of a row: a string literal (escapes allowed) or anything up to the next comma.
_ARGUMENT = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[^,"]+?)\s*(?:,|$)')

_CONFIG_HEAD = f"""# Settings

Generated from `{CONFIG_TABLE}` by `tools/gen_docs.py`; do not edit by hand.

A setting comes from, first found wins: `jax_uccl.Config(...)` given to `jax_uccl.init`, the
environment variable, the default. The environment is read once, when the runtime starts; a
variable that is set but empty counts as not set. A value that does not parse or lies outside
its range is a `UcclValueError` that names the setting, the value, the source and the range; so is
a variable that begins with `JAX_UCCL_` and is none of these (`JAX_UCCL_LAUNCH_*` are the launcher's).
All processes of a job should use equal settings.

"""

_ERRORS_HEAD = f"""# Errors

Generated from `{STATUS_TABLE}` by `tools/gen_docs.py`; do not edit by hand.

A fault inside a jitted program reaches Python as `jax.errors.JaxRuntimeError`, at dispatch or
later at `block_until_ready`, whose text holds one line of the form below. Inside
`with jax_uccl.errors():` it becomes the class of the table, raised `from` the original.

```
uccl.PeerTimeout op="all_to_all f32[4,8]" comm=12 peer=3 process=1 seq=47 elapsed_ms=30001: detail
```

Fields come in the order op, comm, peer, process, path, seq, bytes, elapsed_ms; one that is not
known is left out. `op` is quoted when it holds anything but letters, digits, `_`, `-` and `.`;
inside the quotes, `"` and `\\` are preceded by `\\`. The whole is always one line.

"""

# Python classes that are also a built-in exception, so that `except TimeoutError` works.
_ALSO = {
    "UcclValueError": "ValueError",
    "PeerTimeoutError": "TimeoutError",
    "PeerLostError": "ConnectionError",
    "UcclMemoryError": "MemoryError",
}


class TableError(ValueError):
    """A row of a table that this parser does not understand."""


@dataclass(frozen=True)
class Row:
    """One macro call of a table: its name and its arguments, string literals unquoted."""

    macro: str
    arguments: tuple[str, ...]


def parse_rows(text: str, where: str) -> Iterator[Row]:
    """Yields the macro calls of a table, one per line; comments and blank lines are passed over."""
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("//"):
            continue
        call = re.fullmatch(r"(UCCL_\w+)\((.*)\)", line)
        if call is None:
            raise TableError(f"{where}:{number}: expected one UCCL_...(...) per line, got {line!r}")
        yield Row(call[1], _arguments(call[2], f"{where}:{number}"))


def _arguments(text: str, where: str) -> tuple[str, ...]:
    arguments: list[str] = []
    position = 0
    while position < len(text):
        match = _ARGUMENT.match(text, position)
        if match is None:
            raise TableError(f"{where}: cannot read an argument at {text[position:]!r}")
        argument = match[1]
        if argument.startswith('"'):
            argument = re.sub(r"\\(.)", r"\1", argument[1:-1])
        arguments.append(argument)
        position = match.end()
    return tuple(arguments)


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(
        "| " + " | ".join(c.replace("|", "\\|") for c in line) + " |\n" for line in lines
    )


def config_markdown(table: str) -> str:
    """The text of docs/config.md."""
    rows: list[list[str]] = []
    for row in parse_rows(table, CONFIG_TABLE):
        if row.macro == "UCCL_CONFIG_INT" and len(row.arguments) == 7:
            name, env, default, low, high, unit, sentence = row.arguments
            rows.append([f"`{name}`", f"`{env}`", default, f"{low} .. {high}", unit, sentence])
        elif row.macro == "UCCL_CONFIG_STR" and len(row.arguments) == 4:
            name, env, default, sentence = row.arguments
            shown = f"`{default}`" if default else "(empty)"
            rows.append([f"`{name}`", f"`{env}`", shown, "text", "", sentence])
        else:
            raise TableError(f"{CONFIG_TABLE}: unknown row {row}")
    header = ["setting", "environment variable", "default", "range", "unit", "what it does"]
    return _CONFIG_HEAD + _table(header, rows)


def errors_markdown(table: str) -> str:
    """The text of docs/errors.md."""
    rows: list[list[str]] = []
    for row in parse_rows(table, STATUS_TABLE):
        if row.macro != "UCCL_STATUS" or len(row.arguments) != 5:
            raise TableError(f"{STATUS_TABLE}: unknown row {row}")
        enumerator, name, ffi_code, python, meaning = row.arguments
        also = f" (also `{_ALSO[python]}`)" if python in _ALSO else ""
        ffi = re.sub(r"(?<!^)(?=[A-Z])", "_", ffi_code.removeprefix("k")).upper()
        rows.append([f"`{name}`", f"`{python}`{also}", f"`{ffi}`", f"`{enumerator}`", meaning])
    header = ["name", "Python class", "XLA FFI code", "C++", "meaning"]
    return _ERRORS_HEAD + _table(header, rows)


def main(argv: list[str] | None = None) -> int:
    """Writes or checks the documents; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument(
        "--root", type=Path, default=Path(__file__).resolve().parent.parent, help="source tree"
    )
    options = parser.parse_args(argv)
    root: Path = options.root
    documents = {
        "docs/config.md": config_markdown((root / CONFIG_TABLE).read_text(encoding="utf-8")),
        "docs/errors.md": errors_markdown((root / STATUS_TABLE).read_text(encoding="utf-8")),
    }
    stale: list[str] = []
    for name, text in documents.items():
        path = root / name
        if options.check:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                stale.append(name)
        else:
            path.write_text(text, encoding="utf-8")
    for name in stale:
        print(f"{name} differs from its table: run python tools/gen_docs.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
