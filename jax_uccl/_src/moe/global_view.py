"""The functions of jax_uccl.sharded.moe: dispatch and combine of arrays that a mesh divides.

As in `jax_uccl._src.global_view` each is one `jax.shard_map` over all axes of the mesh with the arrays' own
shardings, so that XLA has nothing to insert. What a rank gets is a block of the result.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jax_uccl._src import global_view
from jax_uccl._src.errors import UcclValueError
from jax_uccl._src.moe import combine as _combine
from jax_uccl._src.moe import dispatch as _dispatch
from jax_uccl._src.moe.handle import Dispatched, Handle


def dispatch(
    x: Any,
    topk_idx: Any = None,
    topk_weights: Any = None,
    *,
    axis_name: Any = None,
    handle: Handle | None = None,
    logical_to_physical: Any = None,
    rank_mask: Any = None,
    spec: Any = None,
    mesh: Any = None,
    **options: Any,
) -> Dispatched:
    """Sends each token to the ranks that hold its experts; see `jax_uccl.moe.dispatch`.

    Args:
      x: global array [tokens, ...]; `axis_name` divides the leading axis. Other mesh axes may divide that axis as
        well (each of their parts is then a group of ranks with all experts), or others.
      topk_idx: [tokens, K], divided like the leading axis of `x`.
      topk_weights: [tokens, K] or None, divided likewise.
      axis_name: a mesh axis, or a tuple of mesh axes (major first). Default: that of the handle.
      handle: what this function returned before, see `jax_uccl.moe.dispatch`.
      logical_to_physical: the same on all devices.
      rank_mask: the same on all devices.
      spec: PartitionSpec of `x`. Default: that of its type (explicit mesh axes) or of the concrete array.
      mesh: default: that of `jax.set_mesh`, or of the concrete array.
      **options: the others of `jax_uccl.moe.dispatch`, such as `num_experts`; `capacity` is that of one rank.

    Returns:
      `Dispatched`, with the arrays of all ranks one after the other on the leading axis, which is divided like that
      of `x`: tokens [ranks * C, ...], counts and group_sizes [num_experts], num_rows and demand [ranks]. Arrays
      of `stats` have a new leading axis. Inside a `jax.shard_map` with the spec of that axis the handle serves
      `jax_uccl.moe.combine`.

    Raises:
      UcclValueError: `spec` or `mesh` is missing, does not divide the leading axis along `axis_name`, or the call is
        inside a `jax.shard_map`.
      And as for `jax_uccl.moe.dispatch`.

    Cost: as for `jax_uccl.moe.dispatch`; no collective is inserted around it.

    Example:
      >>> import jax, numpy as np
      >>> from jax.sharding import Mesh, PartitionSpec as P
      >>> from jax_uccl import sharded
      >>> where = dict(spec=P("expert"), mesh=Mesh(np.array(jax.devices()[:2]), ("expert",)))
      >>> @jax.jit
      ... def layer(x, idx, w):
      ...     d = sharded.moe.dispatch(x, idx, w, num_experts=4, axis_name="expert", **where)
      ...     y = d.tokens * d.weights.sum(-1, keepdims=True)  # experts that change nothing
      ...     return sharded.moe.combine(y, d.handle, **where)
      >>> x, idx = np.ones((4, 3), np.float32), np.array([[0, 3], [1, 2], [2, 3], [0, -1]])
      >>> layer(x, idx, np.full((4, 2), 0.5, np.float32))[:, 0].tolist()
      [1.0, 1.0, 1.0, 0.5]
    """
    api = "moe.dispatch"
    if handle is not None and axis_name is None:
        axis_name = _check_handle(handle, api).spec.axis_name
    if axis_name is None:
        raise UcclValueError("sharded.moe.dispatch: needs topk_idx and axis_name, or a handle")
    x, names, parts, mesh = global_view.prepare(x, axis_name, spec, mesh, api)
    rows = _of_rows(parts, names, api)
    same = PartitionSpec()
    given = {
        "x": (x, _spec(parts)),
        "topk_idx": (topk_idx, rows),
        "topk_weights": (topk_weights, rows),
        "handle": (handle, rows),
        "logical_to_physical": (logical_to_physical, same),
        "rank_mask": (rank_mask, same),
    }
    given = {name: pair for name, pair in given.items() if pair[0] is not None}

    def local(arrays: dict[str, Any]) -> Dispatched:
        if "handle" in arrays:
            arrays = arrays | {"handle": _own(arrays["handle"])}
        result = _dispatch.dispatch(**arrays, axis_name=names, **options)
        return dataclasses.replace(
            result,
            num_rows=result.num_rows[None],
            demand=result.demand[None],
            stats=jax.tree.map(lambda a: a[None], result.stats),
            handle=dataclasses.replace(result.handle, demand=result.handle.demand[None]),
        )

    fields: dict[str, Any] = dict.fromkeys(Dispatched.__dataclass_fields__, rows)
    out = Dispatched(**(fields | {"tokens": _spec(parts), "scales": _spec(parts)}))
    mapped = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=({name: pair[1] for name, pair in given.items()},),
        out_specs=out,
    )
    return mapped({name: pair[0] for name, pair in given.items()})


def combine(
    y: Any,
    handle: Handle,
    *,
    weights: Any = None,
    bias: Any = None,
    reduction: str = "ordered",
    spec: Any = None,
    mesh: Any = None,
) -> Any:
    """Returns rows of a dispatch to the owners of their tokens and adds them up; see `jax_uccl.moe.combine`.

    Args:
      y: floating global array [ranks * C, ...], divided like `tokens` of `dispatch`.
      handle: of `dispatch` in this module.
      weights: None, or what returns beside the rows, [ranks * C, ...]; divided like the leading axis of `y`.
      bias: None, an array or a tuple of arrays that broadcast to the result, divided like it.
      reduction: as for `jax_uccl.moe.combine`.
      spec: PartitionSpec of `y`. Default: that of its type (explicit mesh axes) or of the concrete array.
      mesh: as for `dispatch`.

    Returns:
      [tokens, ...] of the dtype of `y`, divided like it; with `weights` a pair of it and [tokens, K] weights.

    Raises:
      As for `dispatch`, and as for `jax_uccl.moe.combine`.

    Cost: as for `jax_uccl.moe.combine`; no collective is inserted around it.

    Example: see `dispatch`.
    """
    api = "moe.combine"
    names = _check_handle(handle, api).spec.axis_name
    y, names, parts, mesh = global_view.prepare(y, names, spec, mesh, api)
    rows = _of_rows(parts, names, api)
    biases = () if bias is None else tuple(bias) if isinstance(bias, tuple | list) else (bias,)
    biases = tuple(jnp.asarray(b) for b in biases)
    arrays = {"y": y, "handle": handle, "bias": biases}
    specs = {"y": _spec(parts), "handle": rows, "bias": tuple(_of_bias(b, parts) for b in biases)}
    if weights is not None:
        arrays["weights"], specs["weights"] = weights, rows

    def local(arrays: dict[str, Any]) -> Any:
        return _combine.combine(
            arrays["y"],
            _own(arrays["handle"]),
            weights=arrays.get("weights"),
            bias=arrays["bias"] or None,
            reduction=reduction,
        )

    out = _spec(parts) if weights is None else (_spec(parts), rows)
    return jax.shard_map(local, mesh=mesh, in_specs=(specs,), out_specs=out)(arrays)


def _check_handle(handle: Any, api: str) -> Handle:
    if not isinstance(handle, Handle):
        raise UcclValueError(f"sharded.{api}: handle must be a moe.Handle, got {type(handle)}")
    return handle


def _own(handle: Handle) -> Handle:
    """The handle of this rank from its block of the global one."""
    return dataclasses.replace(handle, demand=handle.demand.reshape(()))


def _spec(parts: global_view.Parts) -> PartitionSpec:
    return PartitionSpec(*(part or None for part in parts))


def _of_rows(parts: global_view.Parts, names: tuple[Any, ...], api: str) -> PartitionSpec:
    """The spec of what has a block for each rank; `names` must divide the leading axis and no other."""
    lead = parts[0] if parts else ()
    if not set(names) <= set(lead):
        raise UcclValueError(
            f"sharded.{api}: the leading axis, the tokens, must be divided along {names}, but its mesh axes are "
            f"{lead}"
        )
    return PartitionSpec(lead)


def _of_bias(bias: Any, parts: global_view.Parts) -> PartitionSpec:
    """The spec of an array that broadcasts to one with `parts`."""
    aligned = parts[len(parts) - bias.ndim :] if bias.ndim <= len(parts) else [()] * bias.ndim
    entries = [part if size != 1 else () for size, part in zip(bias.shape, aligned, strict=True)]
    return _spec(entries)
