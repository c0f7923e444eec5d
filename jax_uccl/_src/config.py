"""`jax_uccl.Config`: the settings of one runtime, generated from csrc/base/config_table.inc.

The native part owns names, defaults, ranges and environment variables; this class only carries what a
program sets explicitly. Precedence: Config over environment over default. Values are checked when the
runtime starts, by native code, so that there is one set of rules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jax_uccl import _uccl


def _describe(row: Mapping[str, Any]) -> str:
    """One line of the class documentation for one row of the table."""
    unit = f" {row['unit']}" if row["unit"] else ""
    span = f", from {row['min']} to {row['max']}" if row["is_int"] else ""
    shown = row["default"] if str(row["default"]) else "''"
    return f"  {row['name']}: {row['help']} Default {shown}{unit}{span}. Environment: {row['env']}."


def _settings(self: Any) -> dict[str, str]:
    """What was set explicitly, by name, as text; the form that the native part parses."""
    values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
    return {name: str(value) for name, value in values.items() if value is not None}


def _make_config() -> type[Any]:
    rows = _uccl.config_rows()
    cls = dataclasses.make_dataclass(
        "Config",
        [(row["name"], "int | None" if row["is_int"] else "str | None", None) for row in rows],
        frozen=True,
        kw_only=True,
        namespace={"settings": _settings},
    )
    cls.__module__ = "jax_uccl"
    cls.__doc__ = "\n".join(
        [
            "Settings of the runtime; None (the default) leaves a setting to its environment variable.",
            "",
            "Args:",
            *(_describe(row) for row in rows),
            "",
            "Example:",
            "  >>> import jax_uccl",
            "  >>> jax_uccl.Config(paths=8).settings()",
            "  {'paths': '8'}",
        ]
    )
    return cls


if TYPE_CHECKING:  # the fields exist only at run time

    class Config:
        def __init__(self, **settings: int | str | None) -> None: ...
        def __getattr__(self, name: str) -> int | str | None: ...
        def settings(self) -> dict[str, str]: ...

else:
    Config = _make_config()
