"""Strict mode: all collectives of a program in program order, enforced by XLA tokens.

By default independent operations run in whatever order XLA picks on each device, and the native matching
does not depend on it. In strict mode each operation also waits for the one before it. That costs overlap and
the fast dispatch path, and makes matching trivial; tests use it as an oracle, users to tell a fault of order
from another.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from jax_uccl._src import jax_compat as compat

_flag = compat.new_context_flag(
    "jax_uccl_strict_order", "Run all jax_uccl collectives of a program in program order."
)


class CommEffect(compat.Effect):
    """The effect of an operation in strict mode. All are equal: there is one order per program."""

    # jax.export rebuilds effects by calling their class without arguments and compares them.
    def __str__(self) -> str:
        return "Comm"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash("jax_uccl.CommEffect")


compat.register_ordered_effect(CommEffect)
comm_effect = CommEffect()


@contextlib.contextmanager
def strict_order(enabled: bool = True) -> Iterator[None]:
    """Traces collectives bound inside so that they run in program order.

    The setting is read when an operation is traced and takes part in jit's cache key, so a function
    called both with and without it is compiled twice. It must be the same on every process.

    Args:
      enabled: False switches back to the default inside an enclosing `strict_order()`.

    Example:
      >>> import jax_uccl
      >>> with jax_uccl.strict_order():
      ...     pass  # call or trace the program here
    """
    with _flag(enabled):
        yield


def is_strict() -> bool:
    """Whether operations traced here are to be ordered."""
    return bool(_flag.value)
