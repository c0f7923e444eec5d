"""A dispatch in two levels: one copy of a token for each host that has experts of it, forwarded there to its ranks.

    x [tokens] -> hop buffer [hop_rows], by host, then token            first exchange: to the gateway on each host
               -> relayed [relay_rows], by source rank, then token
               -> onward buffer [onward_rows], by target rank, source rank, token
                                                                        second exchange: within the hosts
               -> copies, by gateway, source rank, token: the order of a dispatch in one level (hosts.gateways)

Pure integer arithmetic on everybody's choices, like plan.py; no further exchange is needed.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_uccl._src.moe import hosts as hosts_of
from jax_uccl._src.moe.count_before import count_before
from jax_uccl._src.moe.handle import Handle, Spec
from jax_uccl._src.moe.plan import exclusive, goes_to, invert, take_rows


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Relay:
    """Where the copies of a dispatch in two levels go; int32, `n` ranks, H hosts, Q ranks of the largest one.

    Attributes:
      hop_offsets: [n] first row of the hop buffer for each rank; gateways alone get any.
      hop_counts: [n] rows of the hop buffer for each rank.
      hop_tokens: [hop_rows] the token in each row of the hop buffer.
      hop_rows: [T, H] the row of the hop buffer that takes the token to each host.
      relay_offsets: [n] where the rows of each source begin at this gateway.
      relay_counts: [n] rows of each source.
      onward_offsets: [n] first row of the onward buffer for each rank.
      onward_counts: [n] rows of the onward buffer for each rank.
      onward_sources: [onward_rows] the relayed row in each row of the onward buffer.
      onward_rows: [relay_rows, Q] the rows of the onward buffer that hold each relayed row.
      land_offsets: [n] where the copies from each gateway begin here.
      land_counts: [n] copies from each gateway.
    """

    hop_offsets: Any
    hop_counts: Any
    hop_tokens: Any
    hop_rows: Any
    relay_offsets: Any
    relay_counts: Any
    onward_offsets: Any
    onward_counts: Any
    onward_sources: Any
    onward_rows: Any
    land_offsets: Any
    land_counts: Any


def add_relay(handle: Handle, idx_all: Any, me: Any) -> Handle:
    """The handle of rank `me` with its tables; `idx_all` [n, T, K] are the choices of all ranks that are served."""
    spec = handle.spec
    relay = _make(goes_to(idx_all, spec), me, handle.recv_counts, spec)
    return dataclasses.replace(handle, relay=relay)


def _make(goes: Any, me: Any, recv_counts: Any, spec: Spec) -> Relay:
    n, native = spec.ranks, spec.custom_calls
    own = hosts_of.members(spec.hosts)
    gateways = jnp.asarray(hosts_of.gateways(spec.hosts))  # [source, host]
    # [n, T, H]: whether any copy of the token goes to the host.
    to_host = jnp.stack([goes[:, :, np.array(ranks)].max(-1) for ranks in own], axis=-1)

    mine = to_host[me]
    per_host = mine.sum(0, dtype=np.int32)
    host_offsets = exclusive(per_host)
    nobody = jnp.zeros((n,), np.int32)
    number = jnp.arange(len(own), dtype=np.int32)
    place = count_before(jnp.where(mine > 0, number, -1), len(own), native=native) + host_offsets
    hop_rows = jnp.where(mine > 0, place, -1)
    hop_tokens = invert(hop_rows, hop_rows >= 0, spec.hop_rows)
    hop_tokens = jnp.where(hop_tokens >= 0, hop_tokens // len(own), -1)

    here = jnp.asarray(spec.hosts, np.int32)[me]
    mine_to_relay = gateways[:, here] == me  # [source]
    comes = (to_host[:, :, here] > 0) & mine_to_relay[:, None]  # [source, T]
    relay_counts = comes.sum(1, dtype=np.int32)
    relayed = count_before(jnp.where(comes, 0, -1), 1, native=native).reshape(-1)
    relay_sources = invert(relayed, relayed >= 0, spec.relay_rows)  # source rank * T + token

    # [source, T, Q]: to which ranks of this host; those of smaller ones are filled up by nobody.
    width = max(len(ranks) for ranks in own)
    padded = jnp.asarray([ranks + [-1] * (width - len(ranks)) for ranks in own], np.int32)[here]
    onward = jnp.where(padded >= 0, goes[:, :, jnp.maximum(padded, 0)], 0)
    targets = jnp.where((onward > 0) & comes[..., None], padded, -1)
    onward_counts = (targets.reshape(-1, 1) == jnp.arange(n)).sum(0, dtype=np.int32)
    onward_offsets = exclusive(onward_counts)
    before = count_before(targets, n, native=native)
    places = jnp.where(targets >= 0, before + onward_offsets[jnp.maximum(targets, 0)], -1)
    places = places.reshape(-1, width)
    onward_sources = invert(places, places >= 0, spec.onward_rows)
    onward_sources = jnp.where(onward_sources >= 0, onward_sources // width, -1)

    land_counts = nobody.at[gateways[:, here]].add(recv_counts)
    return Relay(
        hop_offsets=nobody.at[gateways[me]].set(host_offsets),
        hop_counts=nobody.at[gateways[me]].set(per_host),
        hop_tokens=hop_tokens,
        hop_rows=hop_rows,
        relay_offsets=exclusive(relay_counts),
        relay_counts=relay_counts,
        onward_offsets=onward_offsets,
        onward_counts=onward_counts,
        onward_sources=take_rows(relayed, onward_sources, -1),
        onward_rows=take_rows(places, relay_sources, -1),
        land_offsets=exclusive(land_counts),
        land_counts=land_counts,
    )
