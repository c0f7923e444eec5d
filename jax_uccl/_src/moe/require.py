"""require: a fault that only the data shows becomes an error of the program.

The check is local. Ranks that look at equal values fail alike, each by itself; what they send afterwards must
depend on the result of the check, so that nobody waits for a rank that has failed.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_uccl._src import cuda_module, lowering
from jax_uccl._src import jax_compat as compat
from jax_uccl._src.collectives import define
from jax_uccl._src.collectives.vary import vary_alike


def require(x: Any, values: Any, *, limit: int, op: str, text: str) -> Any:
    """`x`, if no entry of `values` is above `limit`; otherwise the program fails.

    Args:
      x: integers of any shape.
      values: int32 [m].
      limit: the largest good value.
      op: name of the operation, for the error.
      text: what to say; {i} and {value} stand for the first entry above the limit.

    Raises:
      UcclValueError: at run time (`jax_uccl.errors`); on CUDA by the next check of the process, and the program
        that fails here goes on with values that are not to be used.
    """
    x, values = vary_alike([x, values])
    return require_p.bind(x, values, limit=limit, op=op, text=text)


require_p = compat.Primitive("uccl_require")


def _abstract_eval(x: Any, values: Any, **params: Any) -> Any:
    del values, params
    return x


def _lower(ctx: Any, x: Any, values: Any, *, limit: int, op: str, text: str) -> Any:
    return lowering.local_call(
        ctx, "require", [x, values], dict(limit=np.int64(limit), op=op, text=text), {0: 0}
    )


def _batch(axis_data: Any, operands: Any, dims: Any, **params: Any) -> Any:
    # The largest of the batch stands for each entry, so that entries keep their numbers.
    x, values = (define.to_front(v, d, axis_data.size) for v, d in zip(operands, dims, strict=True))
    return require_p.bind(x, jnp.max(values, axis=0), **params), 0


require_p.def_impl(lambda *args, **params: jax.jit(lambda *a: require_p.bind(*a, **params))(*args))
require_p.def_abstract_eval(_abstract_eval)
compat.mlir.register_lowering(require_p, lowering.no_handler("moe"))
compat.mlir.register_lowering(require_p, _lower, platform="cpu")
compat.mlir.register_lowering(require_p, cuda_module.only_there(_lower, "moe"), platform="cuda")
compat.define_batching(require_p, _batch)
