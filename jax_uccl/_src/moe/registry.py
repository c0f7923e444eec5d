"""The implementations of dispatch and combine: an explicit table, in which a missing one says what is missing.

A new implementation is one file with these functions and one row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jax_uccl._src.collectives.all_gather import all_gather
from jax_uccl._src.errors import UcclValueError, UnsupportedError
from jax_uccl._src.moe import _reference, exchange, ragged
from jax_uccl._src.moe.handle import Handle

# By mode. In low-latency mode the native one needs commands and proxies.
DEFAULTS = {"throughput": "native", "low_latency": "ragged"}


class Implementation(NamedTuple):
    """What an implementation provides; every function runs on one rank inside the mapped program.

    `gather(x, names)` gives [n, ...]. `dispatch` and `combine` move rows (`ragged.py` says what of). The
    halves compose to them: `done(start(x, handle), handle, ...)`.
    """

    gather: Callable[[Any, Any], Any]
    dispatch: Callable[..., Any]
    combine: Callable[..., Any]
    dispatch_start: Callable[[Any, Handle], Any]
    dispatch_done: Callable[[Any, Handle, bool], Any]
    combine_start: Callable[[Any, Handle, bool], Any]
    combine_done: Callable[[Any, Handle, bool, Any], Any]
    # Whether a fault found at run time can be raised as an error.
    run_time_errors: bool
    # Whether rows may go by way of another rank of the target's host.
    two_levels: bool


_REFERENCE = Implementation(
    gather=_reference.gather,
    dispatch=_reference.dispatch,
    combine=_reference.combine,
    dispatch_start=lambda x, handle: _reference.dispatch(x, handle, copies=True),
    dispatch_done=lambda rows, handle, copies: (
        exchange.spread(rows, handle) if handle.spec.expert_major and not copies else rows
    ),
    combine_start=_reference.combine_start,
    combine_done=lambda rows, handle, per_choice, dtype: _reference.add(rows, dtype),
    run_time_errors=False,
    two_levels=False,
)

_RAGGED = Implementation(
    gather=all_gather,
    dispatch=ragged.dispatch,
    combine=ragged.combine,
    dispatch_start=exchange.dispatch_start,
    dispatch_done=exchange.dispatch_done,
    combine_start=exchange.combine_start,
    combine_done=exchange.combine_done,
    run_time_errors=True,
    two_levels=True,
)

# `ragged.dispatch` and `combine` look for it where they run, and for CUDA go by the collectives. It brings and adds
# up rows in one go, so the first halves are the whole, and the second ones what is local.
_NATIVE = _RAGGED._replace(
    dispatch_start=lambda x, handle: ragged.dispatch(x, handle, copies=True),
    dispatch_done=_REFERENCE.dispatch_done,
    combine_start=lambda y, handle, per_choice: ragged.combine(
        y, handle, copies=not per_choice, dtype=jnp.promote_types(y.dtype, np.float32)
    ),
    combine_done=lambda rows, handle, per_choice, dtype: rows.astype(dtype),
)

# A string says what a named implementation lacks.
_TABLE: dict[str, Implementation | str] = {
    "reference": _REFERENCE,
    "ragged": _RAGGED,
    "native": _NATIVE,
}


def names() -> list[str]:
    """The implementations that can be used."""
    return [name for name, row in _TABLE.items() if not isinstance(row, str)]


def find(name: str) -> Implementation:
    """The implementation of that name, or an error that says what is missing."""
    row = _TABLE.get(name)
    if row is None:
        raise UcclValueError(f"implementation={name!r} is not one of {', '.join(_TABLE)}")
    if isinstance(row, str):
        raise UnsupportedError(f"implementation={name!r}: {row}; use {' or '.join(names())}")
    return row
