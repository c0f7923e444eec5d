"""The errors of jax_uccl and their one-line text form.

Inside a compiled program a fault can only be an XLA error: a `jax.errors.JaxRuntimeError` whose text holds
one line made by csrc/base/status.cc. `with jax_uccl.errors():` turns it back into a class with attributes.
The classes are those of csrc/base/status_codes.inc.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator


class UcclError(RuntimeError):
    """Base of all errors that the native runtime reports.

    Attributes:
      op: the operation, such as 'all_to_all float32[4,8] axis=(x)', or None.
      comm: number of the communicator, or None.
      peer: rank (JAX device id) that is missing or at fault, or None.
      process: process that owns the peer, or None.
      path: network path, or None.
      seq: number of the operation on its communicator, counted on this rank, or None.
      bytes: bytes concerned, or None.
      elapsed_s: seconds since the operation was issued here, or None.
      detail: what happened, in words.
      cause: the first cause, where this error is a consequence (CommAbortedError), or None.
    """

    def __init__(
        self,
        text: str = "",
        *,
        op: str | None = None,
        comm: int | None = None,
        peer: int | None = None,
        process: int | None = None,
        path: int | None = None,
        seq: int | None = None,
        bytes: int | None = None,
        elapsed_s: float | None = None,
        detail: str | None = None,
        cause: UcclError | None = None,
    ):
        super().__init__(text)
        self.op = op
        self.comm = comm
        self.peer = peer
        self.process = process
        self.path = path
        self.seq = seq
        self.bytes = bytes
        self.elapsed_s = elapsed_s
        self.detail = text if detail is None else detail
        self.cause = cause


class UcclValueError(UcclError, ValueError):
    """The caller's shapes, ranks or sizes are wrong."""


class PeerTimeoutError(UcclError, TimeoutError):
    """A peer made no progress within the deadline."""


class PeerLostError(UcclError, ConnectionError):
    """A peer closed, was reset or crashed."""


class PathError(UcclError):
    """No path to the peer works."""


class NicError(UcclError):
    """A network device or socket reported an error."""


class ProtocolError(UcclError):
    """A peer sent something impossible, or the ranks disagree about the operation."""


class UcclMemoryError(UcclError, MemoryError):
    """A bounded resource (buffers, sockets, threads) ran out."""


class UnsupportedError(UcclError):
    """The backend or dtype lacks a capability."""


class CommAbortedError(UcclError):
    """The communicator was aborted; `cause` is the first cause."""


# Wire name -> class. tests/test_errors.py holds it against the native table.
CLASSES: dict[str, type[UcclError]] = {
    "InvalidArgument": UcclValueError,
    "PeerTimeout": PeerTimeoutError,
    "PeerLost": PeerLostError,
    "AllPathsFailed": PathError,
    "NicError": NicError,
    "Protocol": ProtocolError,
    "ResourceExhausted": UcclMemoryError,
    "Unsupported": UnsupportedError,
    "Aborted": CommAbortedError,
}

_FIELD = re.compile(r' (\w+)=("(?:[^"\\]|\\.)*"|[\w.-]+)')
_STATUS = re.compile(r'uccl\.(\w+)((?: \w+=(?:"(?:[^"\\]|\\.)*"|[\w.-]+))*)(?:: ([^\n]*))?')
_INT_FIELDS = ("comm", "peer", "process", "path", "seq", "bytes")


def from_text(text: str) -> UcclError | None:
    """The first status line in `text` as an exception object; None when there is none."""
    for match in _STATUS.finditer(text):
        cls = CLASSES.get(match.group(1))
        if cls is None:  # a module path such as uccl.core in some other message
            continue
        fields = {key: value for key, value in _FIELD.findall(match.group(2))}
        op = fields.get("op")
        if op is not None and op.startswith('"'):
            op = re.sub(r"\\(.)", r"\1", op[1:-1])
        numbers = {key: int(fields[key]) for key in _INT_FIELDS if key in fields}
        elapsed_ms = fields.get("elapsed_ms")
        detail = match.group(3) or ""
        return cls(
            match.group(0),
            op=op,
            elapsed_s=None if elapsed_ms is None else int(elapsed_ms) / 1000,
            detail=detail,
            cause=from_text(detail),
            **numbers,  # type: ignore[arg-type]
        )
    return None


@contextlib.contextmanager
def errors() -> Iterator[None]:
    """Re-raises faults of jax_uccl operations as the classes of this module.

    XLA reports a fault where a result is first waited for, so the wait has to be inside the block.
    Other exceptions pass through unchanged.

    Raises:
      UcclError: a subclass named after the fault, `from` the original exception.

    Example:
      >>> import jax_uccl
      >>> with jax_uccl.errors():
      ...     pass  # jax.block_until_ready(step(params, batch))
    """
    try:
        yield
    except UcclError:
        raise
    except Exception as original:
        found = from_text(str(original))
        if found is None:
            raise
        raise found from original
