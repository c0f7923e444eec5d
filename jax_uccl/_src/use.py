"""use(): programs written with jax.lax collectives run on this library, without an edit.

Not the functions are replaced but how their primitives are lowered, so it does not matter how a library got
hold of them (`from jax.lax import psum`, a reference kept since import, a transpose made by JAX). A flag says
per thread whether a lowering is ours; it is part of the cache keys of tracing and of jit, so a function
called inside and outside is compiled once for each. Our rules are in JAX's table only while somebody uses
them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from jax_uccl._src import jax_compat as compat
from jax_uccl._src.collectives.all_gather import all_gather
from jax_uccl._src.collectives.all_reduce import pmax, pmin, psum
from jax_uccl._src.collectives.all_to_all import all_to_all
from jax_uccl._src.collectives.ppermute import pbroadcast, ppermute
from jax_uccl._src.collectives.ragged_all_to_all import ragged_all_to_all
from jax_uccl._src.collectives.reduce_scatter import psum_scatter
from jax_uccl._src.errors import UcclValueError
from jax_uccl._src.ordering import is_strict

_flag = compat.new_context_flag(
    "jax_uccl_use", "Lower the collectives of jax.lax to those of jax_uccl."
)
_lock = threading.Lock()
_users = 0  # guarded by _lock
_restore: Callable[[], None] | None = None  # guarded by _lock; set while _users > 0


def _reduce(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, *, axes, axis_index_groups=None: function(
        x, axes, axis_index_groups=axis_index_groups
    )


def _gather(to: str) -> Callable[..., Any]:
    def call(
        x: Any,
        *,
        all_gather_dimension: int,
        axis_name: Any,
        axis_size: int,
        tiled: bool,
        axis_index_groups: Any = None,
    ) -> Any:
        del axis_size
        groups = dict(axis_index_groups=axis_index_groups)
        return all_gather(x, axis_name, axis=all_gather_dimension, tiled=tiled, to=to, **groups)

    return call


def _scatter(
    x: Any,
    *,
    scatter_dimension: int,
    axis_name: Any,
    axis_size: int,
    tiled: bool,
    axis_index_groups: Any = None,
) -> Any:
    del axis_size
    return psum_scatter(
        x,
        axis_name,
        scatter_dimension=scatter_dimension,
        axis_index_groups=axis_index_groups,
        tiled=tiled,
    )


def _broadcast_from(x: Any, source: Any, *, axis_name: Any) -> Any:
    return pbroadcast(x, axis_name, source)


# lax's primitive -> the same operation here, given lax's parameters.
_CALLS: dict[str, Callable[..., Any]] = {
    "psum_p": _reduce(psum),
    "psum_invariant_p": _reduce(psum),
    "pmax_p": _reduce(pmax),
    "pmin_p": _reduce(pmin),
    "all_gather_p": _gather("varying"),
    "all_gather_invariant_p": _gather("invarying"),
    "all_gather_reduced_p": _gather("reduced"),
    "reduce_scatter_p": _scatter,
    # Pending sums, and from JAX 0.12 on pending maxima and minima.
    "unreduced_psum_p": _reduce(psum),
    "unreduced_pmax_p": _reduce(pmax),
    "unreduced_pmin_p": _reduce(pmin),
    "unreduced_reduce_scatter_p": _scatter,
    "all_to_all_p": all_to_all,
    "ppermute_p": ppermute,
    "pbroadcast_p": pbroadcast,
    "pbroadcast_dynamic_p": _broadcast_from,
    "ragged_all_to_all_p": ragged_all_to_all,
}


def _lowering(name: str, before: Callable[..., Any] | None) -> Callable[..., Any]:
    ours = compat.mlir.lower_fun(_CALLS[name], multiple_results=False)

    def rule(ctx: Any, *operands: Any, is_async: bool = False, **params: Any) -> Any:
        if _flag.value:
            if is_strict():
                raise UcclValueError(
                    "jax_uccl.use() inside jax_uccl.strict_order(): jax.lax collectives carry no "
                    "tokens; call the functions of jax_uccl instead"
                )
            return ours(ctx, *operands, **params)
        if is_async:
            params["is_async"] = is_async
        if before is None:
            raise NotImplementedError(
                f"MLIR translation rule for primitive '{ctx.primitive}' not found for platform cpu"
            )
        return before(ctx, *operands, **params)

    return rule


@contextlib.contextmanager
def use(enabled: bool = True) -> Iterator[None]:
    """Runs `jax.lax` collectives inside `jax.shard_map` on jax_uccl, to try a program without an edit.

    A context manager and a decorator. Under it `psum`, `pmean`, `pmax`, `pmin`, `all_gather`,
    `psum_scatter`, `all_to_all`, `ragged_all_to_all`, `ppermute`, `pshuffle` and `pbroadcast` of `jax.lax`,
    and the collectives that JAX's derivatives of them are made of, become custom calls of this library.
    Collectives that XLA's partitioner inserts outside `jax.shard_map` are not touched.

    What counts is where a function is compiled: call a jitted function inside, or trace and lower it inside.
    Other threads are not affected, and outside nothing is left.

    Args:
      enabled: False switches back to XLA's collectives inside an enclosing `use()`.

    Raises:
      UnsupportedError: while compiling, for what the functions of this library refuse (sums of 8-bit
        floats).
      UcclValueError: while compiling, inside `jax_uccl.strict_order()`.

    Example:
      >>> import jax, numpy as np, jax_uccl
      >>> from jax.sharding import Mesh, PartitionSpec as P
      >>> mesh = Mesh(np.array(jax.devices()), ("x",))
      >>> f = jax.shard_map(lambda a: jax.lax.psum(a, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
      >>> with jax_uccl.use():
      ...     text = jax.jit(f).lower(np.arange(jax.device_count())).as_text()
      >>> "jax_uccl_all_reduce" in text or jax.device_count() == 1
      True
    """
    global _users, _restore
    with _lock:
        if _users == 0:
            _restore = compat.replace_lowerings(_CALLS, _lowering, platform="cpu")
        _users += 1
    try:
        with _flag(enabled):
            yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and _restore is not None:
                _restore()
                _restore = None
