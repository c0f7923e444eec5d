"""Which ranks share a host, as static data: what decides whether a dispatch goes in two levels, and over whom.

Hosts only decide which way rows go, never what arrives, so a wrong guess costs time and nothing else. It must be the
same on all ranks, however, and it is: it follows from the mesh, from the processes of its devices and from the
setting `processes_per_host`, which the processes compare at start-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jax_uccl import _uccl
from jax_uccl._src import axes, comm
from jax_uccl._src import jax_compat as compat
from jax_uccl._src.errors import UcclValueError

Hosts = tuple[int, ...]  # the host of each rank, numbered by first appearance; empty: all on one


def given(hosts: Any, ranks: int) -> Hosts:
    """What a caller says: a number of equal blocks of ranks, or the host of each rank."""
    if isinstance(hosts, int | np.integer):
        if hosts < 1 or ranks % hosts:
            raise UcclValueError(
                f"moe.dispatch: hosts={hosts} does not divide the {ranks} ranks into equal blocks; give a list "
                "with the host of each rank"
            )
        return _numbered([rank * int(hosts) // ranks for rank in range(ranks)])
    try:
        each = [int(host) for host in hosts]
    except (TypeError, ValueError):
        each = []
    if len(each) != ranks:
        raise UcclValueError(
            f"moe.dispatch: hosts must be a number, or the host of each of the {ranks} ranks, got {hosts!r}"
        )
    return _numbered(each)


def found(names: tuple[Any, ...], top_k: int) -> Hosts:
    """The hosts of the ranks along `names`, where a dispatch in two levels saves bytes between them; else none.

    The mesh that is traced under has no devices unless `jax.set_mesh` gave them; then they are taken to be
    `jax.devices()` in their order, and with fewer all ranks count as one host.
    """
    setting = comm.setting("processes_per_host")
    job = compat.distributed_job()
    if top_k < 2 or not setting or job is None:
        return ()
    try:
        of_process = _uccl.process_hosts(setting)
    except ValueError as error:
        raise UcclValueError(str(error)) from None
    processes = compat.mesh_processes()
    if processes is None or len(of_process) != job.processes:
        return ()
    order, grid = processes
    if not set(names) <= set(order):
        return ()
    rest = [axis for axis in order if axis not in names]
    grid = grid.transpose([order.index(axis) for axis in (*rest, *names)])
    groups = {
        _numbered([of_process[p] for p in row]) for row in grid.reshape(-1, axes.axis_size(names))
    }
    if len(groups) != 1:
        return ()
    (hosts,) = groups
    return hosts if 1 < len(set(hosts)) < len(hosts) else ()


def _numbered(hosts: Sequence[int]) -> Hosts:
    """By first appearance; empty where there is one host only."""
    numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    return tuple(numbers[host] for host in hosts) if len(numbers) > 1 else ()


def members(hosts: Hosts) -> list[list[int]]:
    """The ranks of each host, ascending."""
    return [[r for r, h in enumerate(hosts) if h == host] for host in range(max(hosts) + 1)]


def gateways(hosts: Hosts) -> np.ndarray:
    """int32 [ranks, hosts]: the rank of each host that takes what a rank has for it, and forwards it there.

    Sources are dealt out in blocks that ascend with the gateways. So what a rank gets from its host's gateways, one
    after the other, stands in the order of sources, which is that of a dispatch in one level.
    """
    n = len(hosts)
    rows = [[own[source * len(own) // n] for own in members(hosts)] for source in range(n)]
    return np.array(rows, np.int32)
