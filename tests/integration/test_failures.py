"""A rank that dies, stops or disagrees: every other rank raises an error that says so, in time."""

import textwrap

import mp
import pytest

# Children: a mesh over all devices, a collective that is compiled before things go wrong, and a helper that reports
# which error came out of a call and after how long.
PREAMBLE = """
    import faulthandler, os, signal, sys, time
    faulthandler.dump_traceback_later(90, exit=True)
    import jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    import jax_uccl
    from child_report import report

    rank, size = jax.process_index(), jax.process_count()
    mesh = Mesh(np.array(jax.devices()), ("x",))

    def make(shape, dtype=np.float32):
        value = np.ones(shape, dtype)
        return jax.make_array_from_callback(shape, NamedSharding(mesh, P("x")), lambda i: value[i])

    def jit(f, out=P("x")):
        return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=out))

    def attempt(call):
        start = time.monotonic()
        try:
            with jax_uccl.errors():
                jax.block_until_ready(call())
        except jax_uccl.UcclError as error:
            return {"kind": type(error).__name__, "text": str(error), "op": error.op, "peer": error.peer,
                    "process": error.process, "seq": error.seq, "elapsed_s": error.elapsed_s,
                    "took_s": time.monotonic() - start}
        return {"kind": "none", "took_s": time.monotonic() - start}

    def leave():
        # The others are gone or broken: no barriers.
        sys.stdout.flush(); sys.stderr.flush(); os._exit(0)
"""


def run(body: str, n: int, **kwargs: object) -> list[mp.Result]:
    kwargs.setdefault("timeout", 120)
    source = textwrap.dedent(PREAMBLE) + textwrap.dedent(body)
    return mp.run_processes(source, n, end_on_failure=False, **kwargs)


def check_error(result: mp.Result, kinds: set[str], process: int) -> dict:
    assert result.value is not None, mp.format_results([result])
    error = result.value
    assert error["kind"] in kinds, error
    assert error["process"] == process, error
    assert error["peer"] is not None and error["peer"] >= 0, error
    assert error["seq"] is not None and error["seq"] >= 0, error
    assert error["elapsed_s"] is not None, error
    assert error["op"], error
    return error


@pytest.mark.parametrize(("victim", "shared_memory"), [(1, "on"), (2, "off")])
def test_killed_peer(victim: int, shared_memory: str) -> None:
    results = run(
        f"""
        jax_uccl.init(op_timeout_ms=20000, peer_silence_ms=4000, shared_memory="{shared_memory}")
        f = jit(lambda x: jax_uccl.psum(x, "x"), P())
        x = make((3 * 4,))
        for _ in range(3):
            jax.block_until_ready(f(x))
        if rank == {victim}:
            time.sleep(1)  # until its last messages have arrived: they may leave after its own call is complete
            os.kill(os.getpid(), signal.SIGKILL)
        error = attempt(lambda: f(x))
        # And what comes later fails at once, with the first cause.
        error["later"] = attempt(lambda: f(x))
        report(error)
        time.sleep(1 if rank else 3)  # the coordinator lives in rank 0
        leave()
        """,
        n=3,
    )
    for rank, result in enumerate(results):
        if rank == victim:
            assert result.returncode == -9
            continue
        error = check_error(result, {"PeerLostError"}, victim)
        assert "psum" in error["op"] or "all_reduce" in error["op"]
        assert error["took_s"] < 20
        later = error["later"]
        assert later["kind"] in {"CommAbortedError", "PeerLostError"}, later
        assert later["took_s"] < 5
        assert f"process={victim}" in later["text"]


@pytest.mark.parametrize("shared_memory", ["on", "off"])
def test_stopped_peer_is_named_by_all(shared_memory: str) -> None:
    # Alive for the kernel, dead for the job: neither answers nor closes anything. A watcher ends it later, so that
    # the job can end.
    results = run(
        """
        import subprocess
        jax_uccl.init(op_timeout_ms=60000, peer_silence_ms=2000, shared_memory=os.environ["SHARED"])
        f = jit(lambda x: jax_uccl.all_to_all(x, "x", 0, 0, tiled=True))
        x = make((9, 1000))
        jax.block_until_ready(f(x))
        if rank == 1:
            subprocess.Popen(["sh", "-c", f"sleep 15; kill -KILL {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)
        report(attempt(lambda: f(x)))
        time.sleep(0 if rank else 2)
        leave()
        """,
        n=3,
        env={"SHARED": shared_memory},
    )
    for rank in (0, 2):
        error = check_error(results[rank], {"PeerLostError"}, 1)
        assert error["took_s"] < 30


def test_stuck_peer_times_out_by_deadline() -> None:
    # Its network thread answers, its program does not come: the deadline decides and names it.
    results = run(
        """
        jax_uccl.init(op_timeout_ms=3000, peer_silence_ms=30000)
        f = jit(lambda x: jax_uccl.psum(x, "x"), P())
        x = make((8,))
        jax.block_until_ready(f(x))
        if rank == 1:
            time.sleep(8)
            report(attempt(lambda: f(x)))
            leave()
        report(attempt(lambda: f(x)))
        time.sleep(10)
        leave()
        """,
        n=2,
    )
    error = check_error(results[0], {"PeerTimeoutError"}, 1)
    assert 2.5 < error["took_s"] < 20, error
    assert error["elapsed_s"] >= 2.9
    # The late one is told why nobody waits for it any more.
    late = results[1].value
    assert late["kind"] in {"CommAbortedError", "PeerTimeoutError"}, late


def test_different_shapes_are_a_mismatch_on_both_sides() -> None:
    results = run(
        """
        jax_uccl.init(op_timeout_ms=60000, mismatch_grace_ms=500)
        warm = jit(lambda x: jax_uccl.psum(x, "x"), P())
        jax.block_until_ready(warm(make((8,))))
        def step(x):
            n = 3 if rank == 0 else 5
            return jax_uccl.psum(x[:1] * np.ones(n, np.float32), "x")
        f = jit(step, P())
        report(attempt(lambda: f(make((2,)))))
        time.sleep(1 if rank else 3)
        leave()
        """,
        n=2,
    )
    for rank in (0, 1):
        error = results[rank].value
        assert error is not None, mp.format_results(results)
        assert error["kind"] == "ProtocolError", error
        assert "3 elements" in error["text"] and "5 elements" in error["text"], error
        assert error["took_s"] < 30


def test_work_goes_on_after_shutdown_and_init() -> None:
    # A timeout aborts the communicator; a new epoch works, with the same compiled programs.
    results = run(
        """
        f = jit(lambda x: jax_uccl.psum(x, "x"), P())
        x = make((8,))
        jax_uccl.init(op_timeout_ms=2000)
        first = np.asarray(f(x)).tolist()
        if rank == 0:
            broken = attempt(lambda: f(x))["kind"]
        else:
            time.sleep(5)
            broken = attempt(lambda: f(x))["kind"]
        jax_uccl.shutdown()
        jax_uccl.init(op_timeout_ms=20000)
        second = np.asarray(f(x)).tolist()
        report({"first": first, "broken": broken, "second": second})
        jax_uccl.shutdown()
        jax.distributed.shutdown()
        """,
        n=2,
    )
    for result in results:
        assert result.value is not None, mp.format_results(results)
        assert result.value["broken"] in {"PeerTimeoutError", "CommAbortedError"}, result.value
        assert result.value["first"] == [2.0] * 4 == result.value["second"]


def test_exit_right_after_dispatch() -> None:
    # Nobody waits for the results; the processes leave at different times and none hangs or fails.
    results = run(
        """
        f = jit(lambda x: jax_uccl.all_to_all(x, "x", 0, 0, tiled=True))
        x = make((9, 100000))
        jax.block_until_ready(f(x))
        y = f(x)
        report("dispatched")
        """,
        n=3,
        timeout=90,
    )
    assert [r.returncode for r in results] == [0, 0, 0], mp.format_results(results)
    assert [r.value for r in results] == ["dispatched"] * 3
