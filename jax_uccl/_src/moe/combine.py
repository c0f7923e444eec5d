"""combine: the experts' results travel back to the tokens' owners and are added up."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_uccl._src.errors import UcclValueError
from jax_uccl._src.moe import exchange, plan, registry
from jax_uccl._src.moe.dispatch import check_reduction
from jax_uccl._src.moe.handle import Handle, PendingCombine


def combine(
    y: Any,
    handle: Handle,
    *,
    weights: Any = None,
    bias: Any = None,
    reduction: str = "ordered",
) -> Any:
    """Returns rows of a dispatch to the owners of their tokens and adds them up.

    `y` holds a result for each row of `dispatch(...).tokens`, already multiplied by its weight: in rank-major
    layout the weighted sum over the local experts of the row, in expert-major layout one expert's result.
    Rows that hold nothing are not read.

    Args:
      y: floating [capacity, ...], in the handle's layout.
      handle: of the dispatch.
      weights: None, or floating: [capacity, K] in rank-major, [capacity] in expert-major layout; what
        belongs to each choice travels back beside the rows, without a sum.
      bias: None, an array or a tuple of arrays that broadcast to [T, ...]; added last, in f32.
      reduction: "ordered": all rows of a token are added in the order of its choices, in f32, at its owner.
        In expert-major layout the result is then the same to the bit for any number of ranks, and each
        choice travels as a row of its own. "per_rank" (expert-major): each rank first adds its own choices of
        the token, in order and in f32, and rounds; one row travels for each token and rank. Rank-major rows
        are sums of one rank already; they are added in the order of each rank's first choice.

    Returns:
      [T, ...] of the dtype of `y`; with `weights` a pair of it and [T, K] weights, 0 where a choice was not
      served. Tokens without a served choice get zeros (plus bias).

    Raises:
      UcclValueError: a shape, dtype or option does not fit; the text says what does.

    Cost: one step; rank-major or "per_rank": a row for each token and remote rank, otherwise a row for each
      choice. Its transpose is the dispatch, one row for each token and rank always.

    Source: DeepEP's combine.

    Example: see `dispatch`.
    """
    y, biases = _check(y, handle, bias, reduction)
    impl = registry.find(handle.spec.implementation)
    returned = _return_weights(weights, handle)
    wide = jnp.promote_types(y.dtype, np.float32)
    if not biases:
        out = impl.combine(y, handle, reduction=reduction)
    else:
        out = impl.combine(y, handle, reduction=reduction, dtype=wide)
        out = _add(out, biases, handle).astype(y.dtype)
    return out if weights is None else (out, returned)


def combine_start(
    y: Any,
    handle: Handle,
    *,
    weights: Any = None,
    bias: Any = None,
    reduction: str = "ordered",
) -> PendingCombine:
    """The first half of `combine`, with the same arguments: everything up to the arrival of rows.

    What does not need the result may stand between the halves. `combine_done(combine_start(...))` has the
    values of `combine(...)`; its transpose sends a row for each choice where the combine does.

    Returns:
      `PendingCombine`, a pytree.

    Raises:
      As for `combine`.
    """
    y, biases = _check(y, handle, bias, reduction)
    impl = registry.find(handle.spec.implementation)
    per_choice = handle.spec.expert_major
    if per_choice and reduction == "per_rank":
        y, per_choice = exchange.gather_choices(y, handle), False
    return PendingCombine(
        rows=impl.combine_start(y, handle, per_choice),
        weights=_return_weights(weights, handle),
        bias=biases,
        handle=handle,
        per_choice=per_choice,
        dtype=y.dtype,
    )


def combine_done(pending: PendingCombine) -> Any:
    """The second half of `combine`: adds up what `combine_start` brought.

    Args:
      pending: of `combine_start`.

    Returns:
      As `combine`.

    Raises:
      UcclValueError: `pending` is not what `combine_start` returned.
    """
    if not isinstance(pending, PendingCombine):
        raise UcclValueError(
            f"moe.combine_done takes the result of combine_start, got {type(pending)}"
        )
    handle, rows = pending.handle, pending.rows
    impl = registry.find(handle.spec.implementation)
    wide = jnp.promote_types(pending.dtype, np.float32)
    dtype = wide if pending.bias else pending.dtype
    out = impl.combine_done(rows, handle, pending.per_choice, dtype)
    if pending.bias:
        out = _add(out, pending.bias, handle).astype(pending.dtype)
    return out if pending.weights is None else (out, pending.weights)


def _check(y: Any, handle: Any, bias: Any, reduction: str) -> tuple[Any, tuple[Any, ...]]:
    if not isinstance(handle, Handle):
        raise UcclValueError(f"moe.combine: handle must be a moe.Handle, got {type(handle)}")
    check_reduction(reduction, "combine")
    y = jnp.asarray(y)
    if y.ndim == 0 or y.shape[0] != handle.spec.capacity:
        raise UcclValueError(
            f"moe.combine: y must have {handle.spec.capacity} rows, the capacity of the handle, got "
            f"shape {y.shape}"
        )
    if not jnp.issubdtype(y.dtype, np.floating):
        raise UcclValueError(f"moe.combine: y must be floats, got {y.dtype}")
    biases = () if bias is None else tuple(bias) if isinstance(bias, tuple | list) else (bias,)
    biases = tuple(jnp.asarray(b) for b in biases)
    want = (handle.spec.tokens, *y.shape[1:])
    for b in biases:
        if not jnp.issubdtype(b.dtype, np.floating) or not _fits(b.shape, want):
            raise UcclValueError(
                f"moe.combine: bias must be floats that broadcast to {list(want)}, got {b.dtype}"
                f"{list(b.shape)}"
            )
    return y, biases


def _fits(shape: tuple[int, ...], want: tuple[int, ...]) -> bool:
    """Whether an array of `shape` broadcasts to `want`."""
    aligned = zip(shape[::-1], want[::-1], strict=False)
    return len(shape) <= len(want) and all(a in (1, b) for a, b in aligned)


def _add(out: Any, biases: tuple[Any, ...], handle: Handle) -> Any:
    for b in biases:
        out = out + b.astype(out.dtype)
    return out


def _return_weights(weights: Any, handle: Handle) -> Any:
    """[T, K]: the weight of each choice, from the rank that served it."""
    if weights is None:
        return None
    spec, weights = handle.spec, jnp.asarray(weights)
    want = (spec.capacity,) if spec.expert_major else (spec.capacity, spec.top_k)
    if weights.shape != want or not jnp.issubdtype(weights.dtype, np.floating):
        raise UcclValueError(
            f"moe.combine: weights must be floats {list(want)}, got {weights.dtype}"
            f"{list(weights.shape)}"
        )
    if spec.expert_major:
        weights = plan.take_rows(weights, handle.choice_rows)
    # One rank alone has a choice, so the sum over ranks adds zeros to it.
    weights = jnp.where(handle.recv_experts >= 0, weights, jnp.zeros((), weights.dtype))
    return registry.find(spec.implementation).combine(weights, handle, copies=True)
