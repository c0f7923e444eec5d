"""What one routing looks like as data: the static sizes, the handle, and what dispatch returns.

A handle holds integers only, so that it may be kept, carried through a scan, batched and used again; nothing
about it lives outside the program. Indices count rows of these buffers (sizes in `Spec`):

    x [tokens] -> send buffer [send_rows], copies by target rank, then token
               -> copies [copy_rows], by source rank, then token: the rank-major result
               -> expert-major result [capacity], by local expert, then copy; each group begins at a multiple
                  of the alignment
               (in two levels by way of the ranks of other hosts, see relay.py)
    and back, one row for each choice: return buffer [return_rows], by owner, token, choice
               -> answers [tokens * top_k], by answering rank, token, choice
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

LAYOUTS = ("rank_major", "expert_major")
MODES = ("throughput", "low_latency")


@dataclasses.dataclass(frozen=True)
class Spec:
    """The static part of a routing; equal on all ranks."""

    axis_name: tuple[Any, ...]
    ranks: int
    num_experts: int
    tokens: int
    top_k: int
    layout: str
    capacity: int
    expert_alignment: int
    mode: str
    implementation: str
    hosts: tuple[int, ...] = ()  # of each rank; a dispatch goes in two levels where there are any

    @property
    def local_experts(self) -> int:
        """Experts of one rank."""
        return self.num_experts // self.ranks

    @property
    def custom_calls(self) -> bool:
        """Whether this library's local custom calls may be used; the reference is plain JAX."""
        return self.implementation != "reference"

    @property
    def two_level(self) -> bool:
        """Whether a token goes once to each host, and is forwarded there."""
        return bool(self.hosts)

    @property
    def expert_major(self) -> bool:
        """Whether received rows are grouped by expert, one for each choice."""
        return self.layout == "expert_major"

    @property
    def reserved(self) -> int:
        """Rows of the capacity that alignment may need for padding."""
        return self.local_experts * (self.expert_alignment - 1) if self.expert_major else 0

    @property
    def worst_case(self) -> int:
        """The smallest capacity that holds whatever a router says that names no expert twice in a token."""
        each = min(self.top_k, self.local_experts) if self.expert_major else 1
        return self.tokens * self.ranks * each + self.reserved

    @property
    def never_drops(self) -> bool:
        """Whether the capacity holds even where tokens name an expert more than once."""
        each = self.top_k if self.expert_major else 1
        return self.capacity >= self.tokens * self.ranks * each + self.reserved

    @property
    def usable(self) -> int:
        """Received rows (copies, or choices in expert-major layout) that are kept at most."""
        return self.capacity - self.reserved

    @property
    def send_rows(self) -> int:
        """Copies that leave a rank at most."""
        return self.tokens * min(self.top_k, self.ranks)

    @property
    def hop_rows(self) -> int:
        """Copies that leave a rank in the first of two levels at most."""
        return self.tokens * min(self.top_k, max(self.hosts) + 1)

    @property
    def relay_rows(self) -> int:
        """Copies that a gateway gets at most."""
        smallest = min(self.hosts.count(host) for host in self.hosts)
        return self.tokens * -(-self.ranks // smallest)

    @property
    def onward_rows(self) -> int:
        """Copies that a gateway sends on at most."""
        largest = max(self.hosts.count(host) for host in self.hosts)
        return self.relay_rows * min(self.top_k, largest)

    @property
    def copy_rows(self) -> int:
        """Copies that a rank takes at most."""
        return min(self.tokens * self.ranks, self.usable) if self.expert_major else self.capacity

    @property
    def return_rows(self) -> int:
        """Choices that a rank answers at most."""
        return min(self.copy_rows * self.top_k, self.usable)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Handle:
    """Where the tokens of one routing went, and how their results come back. Made by `dispatch`.

    Every array is int32; `n` ranks, T tokens, K choices. -1 means nothing. Those from `choice_rows` to
    `answer_rows` are None in rank-major layout.

    Attributes:
      topk_idx: [T, K] the expert (physical, over all ranks) that serves each choice of this rank's tokens.
      send_offsets: [n] first row of the send buffer for each rank.
      send_counts: [n] copies for each rank.
      land_offsets: [n] where this rank's copies begin among those of each rank.
      recv_offsets: [n] where the copies of each rank begin here.
      recv_counts: [n] copies from each rank.
      send_tokens: [send_rows] the token in each row of the send buffer.
      send_rows: [T, K] the row of the send buffer that serves the choice; only for the first choice on a rank.
      slots: [T, K] target rank * T + token for the first choice on a rank; None but in low-latency mode.
      recv_sources: [copy_rows] source rank * T + token of each copy.
      recv_experts: [copy_rows, K] local expert of each choice of the copy's token, -1 for those elsewhere.
      choice_rows: [copy_rows, K] the expert-major row of each choice.
      row_choices: [capacity] copy * K + choice in each expert-major row.
      return_sources: [return_rows] the expert-major row in each row of the return buffer.
      return_counts: [n] rows of the return buffer for each rank.
      answer_counts: [n] answers from each rank.
      answer_rows: [T, K] the answer to each choice.
      relay: `Relay`, the way of the copies in two levels; None where they go straight to their ranks.
      demand: [] the smallest capacity with which this rank would have dropped nothing.
      spec: static sizes and options.
    """

    topk_idx: Any
    send_offsets: Any
    send_counts: Any
    land_offsets: Any
    recv_offsets: Any
    recv_counts: Any
    send_tokens: Any
    send_rows: Any
    slots: Any
    recv_sources: Any
    recv_experts: Any
    choice_rows: Any
    row_choices: Any
    return_sources: Any
    return_counts: Any
    answer_counts: Any
    answer_rows: Any
    relay: Any
    demand: Any
    spec: Spec = dataclasses.field(metadata=dict(static=True))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Stats:
    """Load of one routing, counted before anything is dropped; int32, `n` ranks.

    Attributes:
      expert_load: [num_experts] choices for each expert, over all ranks; equal on all ranks.
      source_rows: [n] copies that each rank has for this one.
      dropped: [] choices of this rank's tokens that no capacity was left for.
    """

    expert_load: Any
    source_rows: Any
    dropped: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Dispatched:
    """What a rank received. C is the capacity, K the choices of a token, L the experts of a rank.

    Rows that hold nothing are zeros, with expert -1 and weight 0.

    Attributes:
      tokens: [C, ...] received rows. With `quantize` and `dequantize=False`, float8_e4m3fn.
      experts: int32, local expert ids in 0..L-1 or -1. Rank-major [C, K], at the places of the token's
        choices; expert-major [C].
      weights: of the dtype of `topk_weights`, at the places of `experts`; None without `topk_weights`.
      counts: int32 [L] rows for each local expert.
      group_sizes: int32 [L] the same with padding up to the alignment; in expert-major layout the rows of
        expert e follow those of e - 1, as `jax.lax.ragged_dot` wants them.
      num_rows: int32 [] received rows; in rank-major layout they are the first ones.
      demand: int32 [] the smallest capacity with which this rank would drop nothing.
      scales: f32 [C, ceil(hidden / 128)] with `quantize` and `dequantize=False`; otherwise None.
      stats: `Stats` where asked for, otherwise None.
      wait_ns: uint32 [ranks] where asked for, otherwise None: nanoseconds from the start of this rank's wait for
        rows until the last one of each source was there (in throughput mode from the start of the exchange until it
        was in its place); 2^32 - 1 stands for more too.
      handle: for `combine`, and for further dispatches with the same routing.
    """

    tokens: Any
    experts: Any
    weights: Any
    counts: Any
    group_sizes: Any
    num_rows: Any
    demand: Any
    scales: Any
    stats: Any
    wait_ns: Any
    handle: Handle


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PendingDispatch:
    """A dispatch whose rows are on their way: between `dispatch_start` and `dispatch_done`."""

    rows: Any  # as they arrive: [copy_rows, ...], or [ranks * tokens, ...] in low-latency mode over collectives
    result: Dispatched  # `tokens` and `scales` are still None
    hidden: tuple[int, ...] = dataclasses.field(metadata=dict(static=True))
    dtype: Any = dataclasses.field(metadata=dict(static=True))
    quantize: Any = dataclasses.field(metadata=dict(static=True))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PendingCombine:
    """A combine whose rows are on their way: between `combine_start` and `combine_done`."""

    rows: Any  # as they arrive: [send_rows, ...], or [tokens * top_k, ...]; natively their sums, [tokens, ...]
    weights: Any
    bias: Any
    handle: Handle
    per_choice: bool = dataclasses.field(metadata=dict(static=True))
    dtype: Any = dataclasses.field(metadata=dict(static=True))
