"""How partitioning.py talks to XLA's partitioner. `Tiles` is a tensor's sharding over the devices of automatic axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jax_uccl._src import jax_compat as compat

Dims = Sequence[int | None]


class Cut(NamedTuple):
    """Devices laid out along numbered dimensions: [*counts, replicas]."""

    numbers: tuple[int, ...]
    counts: tuple[int, ...]
    devices: Any

    def at(self, dims: Dims) -> Tiles:
        """The sharding of a tensor along whose dimensions these numbers run (None: not divided)."""
        order = [self.numbers.index(d) for d in dims if d in self.numbers]
        rest = [i for i in range(len(self.numbers) + 1) if i not in order]
        counts = [self.counts[self.numbers.index(d)] if d in self.numbers else 1 for d in dims]
        return Tiles(tuple(counts), self.devices.transpose(*order, *rest).reshape(*counts, -1))


class Tiles(NamedTuple):
    """A tensor's sharding: parts along each dimension, and the devices as [*counts, replicas]."""

    counts: tuple[int, ...]
    devices: Any

    def along(self, dims: Dims) -> Cut:
        """How the dimensions that have a number are divided; devices that differ elsewhere become replicas."""
        kept = [i for i, d in enumerate(dims) if d is not None and self.counts[i] > 1]
        rest = [i for i in range(len(self.counts) + 1) if i not in kept]
        counts = tuple(self.counts[i] for i in kept)
        devices = self.devices.transpose(*kept, *rest).reshape(*counts, -1)
        return Cut(tuple(int(dims[i]) for i in kept), counts, devices)  # type: ignore[arg-type]


def sharding_rule(
    ins: Sequence[Dims], outs: Sequence[Dims], operands: Sequence[Any], results: Sequence[Any]
) -> Any:
    """The attribute for Shardy: dimensions of one number are sharded alike, those without one not at all."""
    whole: list[str] = []

    def names(dims: Dims) -> tuple[str, ...]:
        out = []
        for d in dims:
            if d is None:
                whole.append(f"w{len(whole)}")
            out.append(whole[-1] if d is None else f"d{d}")
        return tuple(out)

    of_operands, of_results = (tuple(names(d) for d in side) for side in (ins, outs))
    rule = compat.partitioning_rules.SdyShardingRule(
        of_operands,  # type: ignore[arg-type]
        of_results,  # type: ignore[arg-type]
        need_replication_factors=tuple(whole),
    )
    return compat.partitioning_rules.sdy_sharding_rule_to_mlir(rule, list(operands), list(results))


def register_partitioner(name: str, target: str, rule: Callable[..., Any]) -> None:
    """Has XLA turn each call of `name` into one of `target`, with the same attributes, on parts.

    `rule(shapes, shardings, result shapes, wanted result shardings)` gives the shardings of operands and results.
    """

    def partition(
        arg_shapes: Any, arg_shardings: Any, shape: Any, sharding: Any, attributes: bytes
    ) -> Any:
        shapes = list(shape.tuple_shapes()) if shape.is_tuple() else [shape]
        wanted = sharding.tuple_elements() if shape.is_tuple() else [sharding]
        count = _device_count([*arg_shardings, *wanted])
        ins, outs = rule(
            [s.dimensions() for s in arg_shapes],
            [_from_hlo(s, t, count) for s, t in zip(arg_shardings, arg_shapes, strict=True)],
            [s.dimensions() for s in shapes],
            [_from_hlo(s, t, count) for s, t in zip(wanted, shapes, strict=True)],
        )
        ins, outs = ([_to_hlo(t) for t in side] for side in (ins, outs))
        module = _module(
            target,
            [s.tile(t) for s, t in zip(ins, arg_shapes, strict=True)],
            [s.tile(t) for s, t in zip(outs, shapes, strict=True)],
            attributes.decode(),
        )
        whole = (
            compat.xla_client.HloSharding.tuple_sharding(shape, outs)
            if shape.is_tuple()
            else outs[0]
        )
        return module, ins, whole

    # Shardings pass through calls by their rule; these two are for a partitioner that knows no rules.
    compat.xla_client.register_custom_call_partitioner(
        name,
        lambda user_sharding, shape, attributes: user_sharding,
        partition,
        lambda arg_shapes, arg_shardings, shape, attributes: (
            compat.xla_client.HloSharding.replicate()
        ),
    )


def _device_count(shardings: Sequence[Any]) -> int:
    return max((s.num_devices() for s in shardings if s.is_tiled()), default=1)


def _from_hlo(sharding: Any, shape: Any, devices: int) -> Tiles:
    rank = len(shape.dimensions())
    if not sharding.is_tiled():
        return Tiles((1,) * rank, np.arange(devices).reshape((1,) * rank + (devices,)))
    tiles = np.array(sharding.tile_assignment_devices())
    counts = tuple(sharding.tile_assignment_dimensions()[:rank])
    return Tiles(counts, tiles.reshape(*counts, -1))


def _to_hlo(tiles: Tiles) -> Any:
    if all(count == 1 for count in tiles.counts):
        return compat.xla_client.HloSharding.replicate()
    proto = compat.xla_client.OpSharding()
    proto.type = compat.xla_client.OpSharding.Type.OTHER
    replicas = tiles.devices.shape[-1]
    proto.tile_assignment_dimensions = [*tiles.counts, *([replicas] if replicas > 1 else [])]
    proto.tile_assignment_devices = [int(d) for d in tiles.devices.ravel()]
    proto.replicate_on_last_tile_dim = replicas > 1
    return compat.xla_client.HloSharding.from_proto(proto)


def _attributes(text: str) -> dict[str, Any]:
    parsed: Any = compat.ir.DictAttr.parse(text)
    return {a.name: a.attr for a in parsed}


def _module(target: str, operands: Sequence[Any], results: Sequence[Any], attributes: str) -> Any:
    """The program of one call, as bytes."""
    context = compat.make_ir_context()
    with context, compat.ir.Location.unknown(context):
        types = [
            [
                compat.ir.RankedTensorType.get(
                    list(s.dimensions()), compat.mlir.dtype_to_ir_type(s.numpy_dtype())
                )
                for s in side
            ]
            for side in (operands, results)
        ]
        module = compat.ir.Module.create()
        with compat.ir.InsertionPoint(module.body):
            main = compat.func.FuncOp("main", (types[0], types[1]))
            block = main.add_entry_block()  # type: ignore[attr-defined]
        with compat.ir.InsertionPoint(block):
            values = compat.custom_call(
                target,
                result_types=types[1],
                operands=list(block.arguments),
                attributes=_attributes(attributes),
                operand_layouts=[compat.row_major(len(t.shape)) for t in types[0]],
                result_layouts=[compat.row_major(len(t.shape)) for t in types[1]],
                has_side_effect=False,
                aliases={},
            )
            compat.func.ReturnOp(list(values))
        return compat.module_to_bytecode(module)
