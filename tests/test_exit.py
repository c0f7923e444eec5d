"""Start and end of whole processes: what is waited for at interpreter exit, and what never hangs it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest


def run_python(code, *args, env=None):
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        **(env or {}),
    }
    return subprocess.Popen(
        [sys.executable, "-c", code, *args],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process, timeout=120):
    try:
        output, _ = process.communicate(timeout=timeout)
    finally:
        process.kill()
    return process.returncode, output


_PROGRAM = """
import sys, jax, numpy as np, jax_uccl
from jax import lax
from jax.sharding import PartitionSpec as P
def program(f, devices):
    mesh = jax.sharding.Mesh(np.array(devices), ("x",))
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
"""


def test_exit_with_an_operation_that_never_completes():
    # Device 1 takes the other branch, so device 0 waits for ever.
    code = _PROGRAM + (
        "f = lambda x: lax.cond(lax.axis_index('x') == 0, lambda v: jax_uccl.psum(v, 'x'), lambda v: v, x)\n"
        "y = program(f, jax.devices())(np.ones(2, np.float32))\n"
        "while not jax_uccl._src.comm.status(): pass\n"
        "print('dispatched')\n"
    )
    rc, output = finish(run_python(code, env={"JAX_UCCL_SHUTDOWN_TIMEOUT_MS": "100"}))
    assert rc == 0, output
    assert "dispatched" in output


def test_exit_ends_the_runtime_before_jax():
    code = _PROGRAM + (
        "import jax._src.xla_bridge as xb\n"
        "from jax_uccl._src import comm\n"
        "y = program(lambda x: jax_uccl.psum(x, 'x'), jax.devices())(np.ones(2, np.float32))\n"
        "real = comm.shutdown\n"
        "def shutdown():\n"
        "    print('backend alive:', xb.backends_are_initialized())\n"
        "    real()\n"
        "comm.shutdown = shutdown\n"
    )
    rc, output = finish(run_python(code))
    assert rc == 0, output
    assert "backend alive: True" in output


def test_import_and_init_create_no_backend():
    code = (
        "import jax_uccl, jax._src.xla_bridge as xb\n"
        "jax_uccl.init(); jax_uccl.stats(); jax_uccl.shutdown()\n"
        "print('backend:', xb.backends_are_initialized())\n"
    )
    rc, output = finish(run_python(code))
    assert (rc, output) == (0, "backend: False\n")


def test_wrong_variable_is_reported_where_it_is_read_and_not_at_exit_again():
    code = "import jax_uccl\ntry: jax_uccl.init()\nexcept ValueError as e: print(e)\n"
    rc, output = finish(run_python(code, env={"JAX_UCCL_PATHS": "many"}))
    assert rc == 0, output
    assert output.count("JAX_UCCL_PATHS") == 1, output


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_two_processes_start_end_and_start_again():
    code = _PROGRAM + (
        "jax.distributed.initialize(f'localhost:{sys.argv[1]}', 2, int(sys.argv[2]))\n"
        "for shared in ('off', 'on'):\n"
        "    jax_uccl.init(op_timeout_ms=60000, shared_memory=shared)\n"
        "    f = program(lambda x: jax_uccl.psum(x, 'x'), jax.devices())\n"
        "    x = jax.make_array_from_callback((4,), jax.sharding.NamedSharding(\n"
        "        jax.sharding.Mesh(np.array(jax.devices()), ('x',)), P('x')),\n"
        "        lambda i: np.arange(4, dtype=np.float32)[i])\n"
        "    print('sum', [float(s.data[0]) for s in f(x).addressable_shards])\n"
        # Several more, so that what the first one sent has been acknowledged.
        "    for _ in range(8):\n"
        "        jax.block_until_ready(f(x))\n"
        "    peers = jax_uccl.stats()['peers']\n"
        "    assert list(peers) == [1 - int(sys.argv[2])]\n"
        "    paths = peers[1 - int(sys.argv[2])]['paths']\n"
        "    assert [path['state'] for path in paths] == ['up'] * 16, paths\n"
        "    neighbours = jax_uccl.stats()['shared_memory']\n"
        "    assert list(neighbours) == ([] if shared == 'off' else list(peers)), neighbours\n"
        "    if shared == 'on':\n"
        "        assert neighbours[1 - int(sys.argv[2])]['bytes_sent'] > 0, neighbours\n"
        "    else:\n"
        "        assert sum(path['packets_sent'] for path in paths) > 0, paths\n"
        "        assert max(path['srtt_ns'] for path in paths) > 0, paths\n"
        "    jax_uccl.shutdown()\n"
    )
    port = str(free_port())
    processes = [run_python(code, port, str(p)) for p in range(2)]
    for process in processes:
        rc, output = finish(process)
        assert rc == 0, output
        assert output.count("sum [6.0, 6.0]") == 2, output


def run_pair(code, timeout=120):
    """Two processes of one job with two devices each: their (return code, output)."""
    port = str(free_port())
    start = _PROGRAM + (
        "process = int(sys.argv[2])\n"
        "jax.distributed.initialize(f'localhost:{sys.argv[1]}', 2, process)\n"
        "x = jax.make_array_from_callback((4,), jax.sharding.NamedSharding(\n"
        "    jax.sharding.Mesh(np.array(jax.devices()), ('x',)), P('x')),\n"
        "    lambda i: np.ones(4, np.float32)[i])\n"
        "f = program(lambda x: lax.scan(\n"
        "    lambda c, _: (jax_uccl.psum(c, 'x') * 0.25, ()), x, None, length=200)[0], jax.devices())\n"
    )
    processes = [run_python(start + code, port, str(p)) for p in range(2)]
    return [finish(process, timeout) for process in processes]


@pytest.mark.parametrize("leaves", ["both", "first", "second"])
def test_exit_right_after_a_dispatch_does_its_part(leaves):
    # The result is dropped, so nothing but the exit can wait for the program that still runs.
    code = (
        "y = f(x)\n"
        f"if {leaves!r} in ('both', ('first', 'second')[process]):\n"
        "    del y\n"
        "else:\n"
        "    assert [float(s.data[0]) for s in y.addressable_shards] == [1.0, 1.0]\n"
    )
    for rc, output in run_pair(code):
        assert rc == 0, output
        assert "uccl." not in output


def test_exit_by_an_exception_tells_the_others():
    # The news may overtake data that is under way, so already the first program may fail in process 0.
    code = (
        "if process == 1:\n"
        "    jax.block_until_ready(f(x))\n"
        "    raise LookupError('no such batch')\n"
        "try:\n"
        "    with jax_uccl.errors():\n"
        "        for _ in range(2): jax.block_until_ready(f(x))\n"
        "except jax_uccl.UcclError as error: print('raised', type(error).__name__, error)\n"
    )
    (rc, output), (failed_rc, failed_output) = run_pair(code)
    assert rc == 0, output
    assert "raised CommAbortedError" in output
    assert "LookupError: no such batch" in output
    assert failed_rc == 1, failed_output
