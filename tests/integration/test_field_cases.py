"""Faults that users of other systems have reported, each in processes of its own; the names say which."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import mp
import pytest

import jax_uccl

# jax#34755: there is no ragged all-to-all on CPU. Groups of 2, 4, 8 and 12 of twelve devices, beside NumPy, and the
# adjoint identity of its derivative, with members that send nothing and others that get nothing.
RAGGED = """
    import faulthandler
    faulthandler.dump_traceback_later(150, exit=True)
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    import jax_uccl
    from child_report import report

    rng, compared = np.random.default_rng(0), []
    for n in (2, 4, 8, 12):
        if jax.process_count() > 1 and n != jax.device_count():
            continue
        mesh = Mesh(np.array(jax.devices()[:n]), ("x",))
        sizes = rng.integers(0, 4, (n, n))
        sizes[0] = 0  # sends nothing
        sizes[:, n - 1] = 0  # gets nothing
        rows = max(int(sizes.sum(0).max()), int(sizes.sum(1).max())) + 2
        values = [rng.integers(-9, 10, (n, rows, 3)).astype(np.float32) for _ in range(3)]

        def place(value):
            return jax.make_array_from_callback(value.shape, NamedSharding(mesh, P("x")), lambda i: value[i])

        def body(x, out, ct):
            o = jax_uccl.ragged_offsets(sizes, jax.lax.axis_index("x"))
            f = lambda x, out: jax_uccl.ragged_all_to_all(x[0], out[0], *o, axis_name="x")[None]
            y, pull = jax.vjp(f, x, out)
            return y, *pull(ct)

        mapped = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
        got = mapped(*map(place, values))
        x, out, ct = values
        want, dx, into = out.copy(), np.zeros_like(x), ct.copy()
        starts, lands = np.cumsum(sizes, 1) - sizes, np.cumsum(sizes, 0) - sizes
        for s in range(n):
            for t in range(n):
                a, b, k = starts[s, t], lands[s, t], sizes[s, t]
                want[t, b : b + k] = x[s, a : a + k]
                dx[s, a : a + k] = ct[t, b : b + k]
                into[t, b : b + k] = 0
        # <f(x, out), ct> == <(x, out), f^T(ct)>, exact in small integers.
        assert (want * ct).sum() == (x * dx).sum() + (out * into).sum()
        for g, w in zip(got, (want, dx, into), strict=True):
            for shard in g.addressable_shards:
                np.testing.assert_array_equal(np.asarray(shard.data), w[shard.index], err_msg=str(n))
        compared.append(n)
    report(compared)
    jax_uccl.shutdown()
    jax.distributed.shutdown()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "groups"), [((1, 12), [2, 4, 8, 12]), ((3, 4), [12])], ids=["1x12", "3x4"]
)
def test_ragged_exchange_on_cpu(layout: tuple[int, int], groups: list[int]) -> None:
    results = mp.run_processes(RAGGED, *layout, timeout=200, check=True)
    assert [r.value for r in results] == [groups] * layout[0]


# uccl#923, #671: 24 ranks hang where 16 and 32 work; ranks without tokens return early.
RANKS = """
    import faulthandler, sys
    faulthandler.dump_traceback_later(250, exit=True)
    import jax, numpy as np
    from jax.sharding import Mesh, PartitionSpec as P
    import jax_uccl
    from jax_uccl import moe
    from child_report import report

    done = []
    for n, tokens in [(7, 3), (12, 1), (24, 2), (24, 0), (3, 512)]:
        mesh = Mesh(np.array(jax.devices()[:n]), ("e",))
        rng = np.random.default_rng(n)
        idx = np.argsort(rng.random((n * tokens, 2 * n)))[:, :3].astype(np.int32)
        idx[: 2 * tokens] = -1  # two ranks without tokens
        x = rng.integers(-9, 10, (n * tokens, 4)).astype(np.float32)

        def layer(x, idx):
            d = moe.dispatch(x, idx, num_experts=2 * n, axis_name="e")
            return moe.combine(d.tokens, d.handle)

        out = jax.jit(jax.shard_map(layer, mesh=mesh, in_specs=P("e"), out_specs=P("e")))(x, idx)
        copies = np.array([len({e // 2 for e in row if e >= 0}) for row in idx.tolist()], np.float32)
        np.testing.assert_array_equal(out, x * copies.reshape(-1, 1))
        done.append(n)
    report(done)
    jax_uccl.shutdown()
"""


@pytest.mark.slow
def test_any_number_of_ranks_and_tokens() -> None:
    (result,) = mp.run_processes(RANKS, 1, 24, timeout=280, check=True)
    assert result.value == [7, 12, 24, 24, 3]


# jax#23543: the wire dtype is widened behind the user's back. What is passed is what travels.
WIDTHS = """
    import faulthandler
    faulthandler.dump_traceback_later(100, exit=True)
    import jax, jax.numpy as jnp, ml_dtypes, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    import jax_uccl
    from child_report import report

    mesh = Mesh(np.array(jax.devices()), ("x",))
    count = 1 << 16

    def sent():
        return jax_uccl.stats()["shared_memory"][1 - jax.process_index()]["bytes_sent"]

    found = {}
    for dtype in (np.float32, ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e4m3fn, np.int8, np.bool_):
        x = jax.make_array_from_callback((2 * count,), NamedSharding(mesh, P("x")), lambda i: np.ones(count, dtype))
        calls = dict(
            all_to_all=lambda v: jax_uccl.all_to_all(v, "x", 0, 0, tiled=True),
            all_gather=lambda v: jax_uccl.all_gather(v, "x", tiled=True),
            ppermute=lambda v: jax_uccl.ppermute(v, "x", [(0, 1), (1, 0)]),
        )
        if dtype in (np.float32, np.int8):  # halves of a sum travel in the dtype of its additions
            calls["psum_scatter"] = lambda v: jax_uccl.psum_scatter(v, "x", tiled=True)
        for name, call in calls.items():
            f = jax.jit(jax.shard_map(call, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
            jax.block_until_ready(f(x))
            before = sent()
            jax.block_until_ready(f(x))
            share = 2 if name in ("all_to_all", "psum_scatter") else 1
            found[f"{np.dtype(dtype).name} {name}"] = (sent() - before) * share / count / np.dtype(dtype).itemsize
    report(found)
    jax_uccl.shutdown()
    jax.distributed.shutdown()
"""


@pytest.mark.slow
def test_what_is_passed_is_what_travels() -> None:
    for result in mp.run_processes(WIDTHS, 2, 1, timeout=120, check=True):
        assert len(result.value) == 6 * 3 + 2
        assert set(result.value.values()) == {1.0}, result.value


# jax#40831: one collective ignores the timeout. One rank takes part in nothing after the first round.
DEADLINE = """
    import faulthandler, os, sys, time
    faulthandler.dump_traceback_later(380, exit=True)
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    import jax_uccl
    from child_report import report

    mesh = Mesh(np.array(jax.devices()), ("x",))
    sizes = np.ones((2, 2), np.int32)
    calls = dict(
        psum=lambda v: jax_uccl.psum(v, "x"),
        pmax=lambda v: jax_uccl.pmax(v, "x"),
        all_gather=lambda v: jax_uccl.all_gather(v, "x", tiled=True),
        psum_scatter=lambda v: jax_uccl.psum_scatter(v, "x", tiled=True),
        all_to_all=lambda v: jax_uccl.all_to_all(v, "x", 0, 0, tiled=True),
        ppermute=lambda v: jax_uccl.ppermute(v, "x", [(0, 1), (1, 0)]),
        pbroadcast=lambda v: jax_uccl.pbroadcast(v, "x", 1),
        barrier=lambda v: jax_uccl.barrier(v, "x"),
        ragged=lambda v: jax_uccl.ragged_all_to_all(
            v, v, *jax_uccl.ragged_offsets(sizes, jax.lax.axis_index("x")), axis_name="x"),
    )
    x = jax.make_array_from_callback((8,), NamedSharding(mesh, P("x")), lambda i: np.ones(4, np.float32))
    jitted = {
        name: jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
        for name, f in calls.items()
    }
    found = {}
    for number, (name, f) in enumerate(jitted.items()):
        jax_uccl.init(op_timeout_ms=60_000)
        jax.block_until_ready(f(x))
        jax_uccl.shutdown()
        jax_uccl.init(op_timeout_ms=1000, peer_silence_ms=60_000)
        client = jax._src.distributed.global_state.client
        if jax.process_index() == 0:
            start = time.monotonic()
            try:
                with jax_uccl.errors():
                    jax.block_until_ready(f(x))
                found[name] = ["none", 0, 0]
            except jax_uccl.UcclError as e:
                found[name] = [type(e).__name__, e.process, time.monotonic() - start]
        client.wait_at_barrier(f"late-{number}", 60_000)  # process 1 comes here and never to the operation
        jax_uccl.shutdown()
    report(found)
    sys.stdout.flush(); os._exit(0)
"""


@pytest.mark.slow
def test_every_operation_honours_the_deadline() -> None:
    first, _ = mp.run_processes(DEADLINE, 2, 1, timeout=400, end_on_failure=False)
    assert first.value is not None, mp.format_results([first])
    assert len(first.value) == 9
    for name, (kind, process, took) in first.value.items():
        assert (kind, process) == ("PeerTimeoutError", 1), (name, first.value)
        assert 0.9 < took < 30, (name, first.value)


# jax#32673: start-up chatter.
SILENT = """
    import jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    import jax_uccl
    from jax_uccl import moe

    mesh = Mesh(np.array(jax.devices()), ("x",))
    x = jax.make_array_from_callback((8, 3), NamedSharding(mesh, P("x")), lambda i: np.ones((8, 3), np.float32)[i])
    idx = jax.make_array_from_callback((8, 1), NamedSharding(mesh, P("x")), lambda i: np.ones((8, 1), np.int32)[i])

    def f(x, idx):
        d = moe.dispatch(jax_uccl.psum(x, "x"), idx, num_experts=8, axis_name="x")
        return moe.combine(d.tokens, d.handle)

    g = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
    jax.block_until_ready(g(x, idx))
    jax_uccl.shutdown()
    jax.distributed.shutdown()
"""


@pytest.mark.slow
@pytest.mark.parametrize("shared_memory", ["auto", "off"])
def test_silent_on_success(shared_memory: str) -> None:
    env = {"JAX_UCCL_SHARED_MEMORY": shared_memory, "TF_CPP_MIN_LOG_LEVEL": "1"}
    for result in mp.run_processes(SILENT, 2, 2, env=env, timeout=120, check=True):
        said = [
            line
            for line in (result.stdout + result.stderr).splitlines()
            if "Gloo" not in line  # JAX's own backend says how many ranks it has
        ]
        assert not said, said


# jax#25861, #24255: host callbacks re-enter the runtime. While Python is held by one thread, operations complete.
HELD = """
    import time
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    import jax_uccl
    from child_report import report

    mesh = Mesh(np.array(jax.devices()), ("x",))
    x = jax.make_array_from_callback((16, 4), NamedSharding(mesh, P("x")), lambda i: np.ones((16, 4), np.float32)[i])

    def f(v):
        for _ in range(4):
            v = jax_uccl.psum(v, "x") / 16
            v = jax_uccl.all_to_all(jnp.tile(v, (4, 1)), "x", 0, 0, tiled=True)[:4]
        return v

    g = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
    jax.block_until_ready(g(x))
    numbers = range(40_000_000)
    ready = []
    for _ in range(3):
        y = g(x)
        start = time.monotonic()
        sum(numbers)  # one bytecode: the interpreter's lock is not given away
        ready.append([y.is_ready(), time.monotonic() - start])
        jax.block_until_ready(y)
    report(ready)
    jax_uccl.shutdown()
    jax.distributed.shutdown()
"""


@pytest.mark.slow
def test_operations_need_no_python() -> None:
    for result in mp.run_processes(HELD, 2, 2, timeout=120, check=True):
        assert all(ready for ready, _ in result.value), result.value
        assert min(took for _, took in result.value) > 0.2, result.value


# jax#28160: CPU start needs a network interface. In a namespace of its own even loopback is down.
ALONE = """
import jax, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
import jax_uccl
jax_uccl.init()
mesh = Mesh(np.array(jax.devices()), ("x",))
f = jax.jit(jax.shard_map(lambda v: jax_uccl.psum(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()))
print(f(np.arange(4.0, dtype=np.float32)))
jax_uccl.shutdown()
"""


def test_no_network_interface_is_needed() -> None:
    unshare = shutil.which("unshare")
    command = [str(unshare), "--user", "--map-root-user", "--net", "true"]
    if unshare is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs `unshare --user --net`")
    root = os.path.dirname(os.path.dirname(os.path.abspath(jax_uccl.__file__)))
    env = os.environ | {
        "PYTHONPATH": root,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [*command[:-1], sys.executable, "-c", ALONE],
        env=env,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[6.]"), done.stderr
