"""Collectives between two hosts joined by four paths that lose packets, go dark and come back; see path_network.py."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator

import pytest
from path_network import PathNetwork, free_port, missing

import jax_uccl

TIMEOUT_S = 120

# Adds 1 MB of small integers, whose sums are exact, again and again.
SCRIPT = """
import json, sys
import jax
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import jax_uccl

steps = int(sys.argv[3])
mesh = Mesh(np.array(jax.devices()), ("x",))
f = jax.jit(jax.shard_map(lambda v: jax_uccl.psum(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P("x")))
values = np.arange(1 << 19, dtype=np.float32).reshape(2, -1) % 1021
for step in range(steps):
    operand = values + step
    arg = jax.make_array_from_callback(operand.shape, NamedSharding(mesh, P("x")), lambda i: operand[i])
    for shard in f(arg).addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data)[0], operand.sum(axis=0))
    print("step", step, flush=True)
peer = jax_uccl.stats()["peers"][1 - jax.process_index()]
print("stats", json.dumps({k: v for k, v in peer.items() if k != "paths"}), flush=True)
jax_uccl.shutdown()
jax.distributed.shutdown()
"""


@pytest.fixture
def network() -> Iterator[PathNetwork]:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    with PathNetwork(rate_mbit=100) as net:
        yield net


def run(
    net: PathNetwork, folder: pathlib.Path, steps: int, events: dict[int, Callable[[], None]]
) -> list[dict]:
    """Runs SCRIPT as one process on each host, and `events` after their steps; the statistics of both."""
    script = folder / "child.py"
    script.write_text(textwrap.dedent(SCRIPT))
    coordinator = f"{net.address('a')}:{free_port(net, 'a', sys.executable)}"
    root = pathlib.Path(jax_uccl.__file__).parents[1]
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu"}
    env["JAX_UCCL_SHARED_MEMORY"] = "off"  # namespaces of one host are to be two hosts
    env.pop("XLA_FLAGS", None)
    ranks = []
    for rank, host in enumerate("ab"):
        command = [
            *net.enter(host),
            sys.executable,
            str(script),
            coordinator,
            str(rank),
            str(steps),
        ]
        errors = (folder / f"{rank}.err").open("w")
        ranks.append(
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=errors, text=True)
        )
        errors.close()
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        for rank in ranks:
            rank.kill()

    limit = threading.Timer(TIMEOUT_S, expire)
    limit.start()
    try:
        lines = []
        for line in ranks[0].stdout:
            lines.append(line)
            if line.startswith("step "):
                events.get(int(line.split()[1]), lambda: None)()
        outputs = ["".join(lines), ranks[1].stdout.read()]
        codes = [rank.wait() for rank in ranks]
    finally:
        limit.cancel()
        for rank in ranks:
            rank.kill()
            rank.wait()
    texts = "\n".join((folder / f"{rank}.err").read_text()[-4000:] for rank in (0, 1))
    assert not expired.is_set(), f"no end within {TIMEOUT_S} s\n{texts}"
    assert codes == [0, 0], f"{outputs}\n{texts}"
    return [
        json.loads(line.removeprefix("stats "))
        for output in outputs
        for line in output.splitlines()
        if line.startswith("stats ")
    ]


def test_psum_with_loss_and_a_cut_path(network: PathNetwork, tmp_path: pathlib.Path) -> None:
    network.lose(0.01)
    # A cut lasts for several steps: with three paths and loss a step takes 30 ms and more.
    events = {10: lambda: network.cut(1), 40: network.heal, 60: lambda: network.cut(3)}
    stats = run(network, tmp_path, 100, events)
    assert len(stats) == 2
    for peer in stats:
        assert peer["payload_bytes_received"] >= 100 * (1 << 20)
        # 1 % of at least 73000 packets.
        assert peer["retransmits_fast"] + peer["retransmits_timeout"] > 100


def test_full_queue_of_this_host(network: PathNetwork, tmp_path: pathlib.Path) -> None:
    """The kernel then answers ENOBUFS: a loss like any other, and no failure."""
    shape = "root tbf rate 100mbit burst 4kb limit 6000".split()
    subprocess.run([*network.enter("a"), "tc", "qdisc", "add", "dev", "eth0", *shape], check=True)
    assert len(run(network, tmp_path, 5, {})) == 2
    show = [*network.enter("a"), "tc", "-s", "-j", "qdisc", "show", "dev", "eth0"]
    (queue,) = json.loads(subprocess.run(show, capture_output=True, check=True).stdout)
    assert queue["drops"] > 0
