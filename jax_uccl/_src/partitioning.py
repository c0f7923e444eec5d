"""Calls inside a partial-auto shard_map, where XLA's partitioner divides operands along the other mesh axes.

XLA knows nothing about a custom call, so it would gather an operand that an automatic axis shards, and every device
along that axis would exchange all of it. Here the partitioner is told that most dimensions of a call do not matter:
a rule in the text lets shardings pass through, and a function that XLA calls while it compiles gives back the same
call on a device's part. The text holds no pointers, so programs are cached as others are; and should XLA never ask,
the call is right all the same, on a gathered operand.

Only such calls carry a name of their own (`auto_target`): XLA would ask for every call of a registered name.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from jax_uccl._src import jax_partitioner
from jax_uccl._src.jax_partitioner import Tiles

# For each dimension of a tensor what runs along it: a number that operands and results share, or None where the
# operation itself does.
Dims = tuple[int | None, ...]
COLLECTIVES = (
    "all_reduce all_to_all all_gather reduce_scatter permute broadcast barrier ragged_all_to_all"
).split()
KINDS = [*COLLECTIVES, *"moe_exchange moe_return moe_relay moe_dispatch moe_combine".split()]
# Those that have a handler where XLA runs on a stream of a device.
ON_STREAMS = [*COLLECTIVES, *"moe_exchange moe_dispatch moe_combine".split()]
# Calls on one rank's data. An automatic axis that divides the width of rows divides these calls as well; the 8-bit
# ones want whole rows, since a scale belongs to 128 channels, and numbering and checking look at everything.
LOCAL_KINDS = "take_rows fold_rows count_before require encode_fp8 decode_fp8".split()


def auto_target(kind: str) -> str:
    """The custom call of an operation kind inside a partial-auto shard_map."""
    return f"jax_uccl_auto_{kind}"


def dims_of(
    kind: str, operands: Sequence[int], results: Sequence[int]
) -> tuple[list[Dims], list[Dims]]:
    """What runs along the dimensions of each operand and result, given their ranks."""

    def plain(rank: int) -> Dims:
        return tuple(range(rank))

    def rows(rank: int) -> Dims:
        return (None, *range(rank - 1)) if rank else ()

    def apart(rank: int) -> Dims:
        return (rank_of_rows, *range(rank - 1)) if rank else ()

    def whole(rank: int) -> Dims:
        return (None,) * rank

    # A number above those of all other dimensions.
    rank_of_rows = max([*operands, *results])
    if kind in ("take_rows", "fold_rows"):
        # Rows of the result are those of the index or table, and any row of the operand may go into one.
        ins, outs = (
            [rows(operands[0]), (rank_of_rows, *whole(operands[1] - 1))],
            [apart(results[0])],
        )
    elif kind in ("encode_fp8", "decode_fp8"):
        ins, outs = [(0, *whole(operands[0] - 1))], [(0, *whole(results[0] - 1))]
    elif kind == "count_before":
        ins, outs = [whole(r) for r in operands], [whole(r) for r in results]
    elif kind == "require":
        ins, outs = [plain(operands[0]), whole(operands[1])], [plain(results[0])]
    elif kind == "all_gather":
        ins, outs = [plain(r) for r in operands], [rows(r) for r in results]
    elif kind == "reduce_scatter":
        ins, outs = [rows(r) for r in operands], [plain(r) for r in results]
    elif kind in ("all_to_all", "ragged_all_to_all"):
        # The vectors of the ragged exchange have one dimension, which it runs along.
        ins, outs = [rows(r) for r in operands], [rows(r) for r in results]
    elif kind.startswith("moe_"):
        # Tables beside the rows, and times, which each device measures for itself.
        ins = [rows(operands[0]), *map(whole, operands[1:])]
        outs = [rows(results[0]), whole(results[1]), *map(rows, results[2:])]
    elif kind == "barrier":
        # Arrays that have nothing to do with each other.
        starts = [sum(operands[:i]) for i in range(len(operands))]
        ins = [(*range(s, s + r),) for s, r in zip(starts, operands, strict=True)]
        outs = ins[: len(results)]
    else:
        ins, outs = [plain(r) for r in operands], [plain(r) for r in results]
    return ins, outs


def sharding_rule(kind: str, operands: Sequence[Any], results: Sequence[Any]) -> Any:
    """The attribute that lets shardings of the other dimensions pass through a call; IR types of its values."""
    ins, outs = dims_of(kind, [len(t.shape) for t in operands], [len(t.shape) for t in results])
    return jax_partitioner.sharding_rule(ins, outs, operands, results)


def _partition(
    kind: str,
    operands: Sequence[Any],
    shardings: Sequence[Tiles],
    results: Sequence[Any],
    wanted: Sequence[Tiles],
) -> tuple[list[Tiles], list[Tiles]]:
    """How a call divides its operands and results, for shapes and for what XLA has and would like.

    The first operand that is divided along a dimension which may be decides; without one the first such result.
    """
    ins, outs = dims_of(kind, [len(s) for s in operands], [len(s) for s in results])
    if kind == "barrier":
        return list(shardings), list(shardings[: len(results)])
    every = [*zip(shardings, ins, strict=True), *zip(wanted, outs, strict=True)]
    cuts = [tiles.along(dims) for tiles, dims in every]
    cut = next((c for c in cuts if c.counts), cuts[0])
    return [cut.at(dims) for dims in ins], [cut.at(dims) for dims in outs]


def register() -> None:
    """Tells XLA how the calls are divided; once, at import."""
    for kind in [*KINDS, *LOCAL_KINDS]:
        rule = partial(_partition, kind)
        jax_partitioner.register_partitioner(auto_target(kind), f"jax_uccl_{kind}", rule)
