"""Tests of JAX's that do not hold with our functions in place of lax's, each with its reason.

`run.py` runs them all the same and complains about one that passes by now, except where it would end the
process or never end.
"""

from __future__ import annotations

import fnmatch
from typing import NamedTuple


class Excluded(NamedTuple):
    """`pattern` of names as `run.py` prints them, of files, classes and tests."""

    pattern: str
    modes: tuple[str, ...]
    reason: str
    run: bool = True


BOTH = ("use", "swap")
_NAMES = "looks for the names of lax's primitives (psum_invariant, pvary) in a jaxpr; ours have their own"
_GROUPS = (
    "looks for XLA's newer way to write the groups of a collective (axes of a mesh) in the text"
)
_NONE = "calls no collective: its derivatives cast and sum by themselves, which is lax's code in this mode"
EXCLUDED = (
    Excluded(
        "ragged_*::test_ragged_all_to_all_vmap_unsupported_axis_index_groups",
        ("swap",),
        "expects lax's NotImplementedError for jax.vmap with axis_index_groups, which works here",
    ),
    Excluded("shard_map_test.py::*::test_all_gather_with_vma_in_types", ("swap",), _NAMES),
    Excluded("shard_map_test.py::*::test_fanin_psum_transposes_to_fanout", ("swap",), _NAMES),
    Excluded("shard_map_test.py::*::test_pmax_vma_in_types", ("swap",), _NAMES),
    Excluded(
        "shard_map_test.py::*::test_psum_with_implicit_fanout_self_transposes", ("swap",), _NAMES
    ),
    Excluded("shard_map_test.py::*::test_rewrite_scan", ("swap",), _NAMES),
    Excluded("shard_map_test.py::*::test_*_rgv3*", BOTH, _GROUPS),
    Excluded("shard_map_test.py::*SystematicTest::*", ("swap",), _NONE, run=False),
)


def find(name: str, mode: str) -> Excluded | None:
    """The entry for a test, or None."""
    for entry in EXCLUDED:
        if mode in entry.modes and fnmatch.fnmatchcase(name, entry.pattern):
            return entry
    return None


def not_run(name: str, mode: str) -> bool:
    """Whether the test must not even start."""
    entry = find(name, mode)
    return entry is not None and not entry.run
