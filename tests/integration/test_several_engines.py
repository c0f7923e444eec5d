"""Several engine threads per process: the same results, one story about failures, sums in the statistics."""

import mp
import pytest

PROGRAM = """
    import faulthandler, hashlib, os, signal, sys, time
    faulthandler.dump_traceback_later(100, exit=True)
    import jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    import jax_uccl
    from child_report import report

    n, rank = jax.device_count(), jax.process_index()
    mesh = Mesh(np.array(jax.devices()), ("x",))
    rng = np.random.default_rng(5)

    def place(value):
        return jax.make_array_from_callback(value.shape, NamedSharding(mesh, P("x")), lambda i: value[i])

    def collectives(xs):
        out = []
        for x in xs:
            out += [jax_uccl.psum(x, "x"), jax_uccl.all_to_all(x, "x", 1, 1, tiled=True)]
        return out

    f = jax.jit(jax.shard_map(collectives, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
    # 8 bytes a rank, some kilobytes, and above a megabyte; values whose sum depends on the order.
    xs = [place((rng.normal(size=(n, n * k)) * 10.0 ** rng.integers(-6, 6, size=(n, n * k))).astype(np.float32))
          for k in (1, 700, 100_000)]
"""

EQUAL = (
    PROGRAM
    + """
    digests = []
    for _ in range(3):
        for y in f(xs):
            for shard in y.addressable_shards:
                digests.append(hashlib.sha256(np.asarray(shard.data).tobytes()).hexdigest())
    stats = jax_uccl.stats()
    report({"digests": digests, "engines": stats["engine"]["engines"], "cpus": stats["engine"]["cpus"],
            "failed": stats["operations_failed"],
            "peers": {p: {"sent": s["packets_sent"], "by_path": [path["packets_sent"] for path in s["paths"]]}
                      for p, s in stats["peers"].items()}})
    jax_uccl.shutdown()
    jax.distributed.shutdown()
"""
)


OVER_NETWORK = {"JAX_UCCL_SHARED_MEMORY": "off"}  # shared memory passes the engines by


def _values(n: int, engines: int, **env: str) -> list[dict]:
    env = {"JAX_UCCL_ENGINES": str(engines), "JAX_UCCL_PATHS": "2", **OVER_NETWORK, **env}
    return [r.value for r in mp.run_processes(EQUAL, n, env=env, check=True)]


@pytest.mark.parametrize("n", [2, 3])
def test_results_equal_those_of_one_engine(n: int) -> None:
    one = _values(n, 1)
    two = _values(n, 2, JAX_UCCL_ENGINE_CPUS="auto")
    assert [v["digests"] for v in two] == [v["digests"] for v in one]
    for value, engines in [(v, 1) for v in one] + [(v, 2) for v in two]:
        assert value["engines"] == engines
        assert value["failed"] == 0
        assert len(value["cpus"]) == (2 if engines == 2 else 0)
        assert len(value["peers"]) == n - 1
        for peer in value["peers"].values():
            assert len(peer["by_path"]) == 2 * engines
            assert peer["sent"] >= sum(peer["by_path"])
            for engine in range(engines):
                assert sum(peer["by_path"][2 * engine : 2 * engine + 2]) > 0


def test_different_counts_are_refused_in_words() -> None:
    results = mp.run_processes(
        """
        import os, time
        import jax
        import jax_uccl
        from child_report import report
        try:
            jax_uccl.init(engines=1 + jax.process_index())
        except jax_uccl.UcclError as error:
            report(str(error))
        time.sleep(0 if jax.process_index() else 3)  # the coordinator lives in rank 0
        os._exit(0)
        """,
        2,
        end_on_failure=False,
    )
    for result in results:
        assert result.value is not None, mp.format_results([result])
        assert "engines" in result.value and "JAX_UCCL_ENGINES" in result.value, result.value


KILLED = (
    PROGRAM
    + """
    jax.block_until_ready(f(xs))
    if rank == 1:
        time.sleep(1)  # until its last messages have arrived
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        with jax_uccl.errors():
            jax.block_until_ready(f(xs))
        report("no error")
    except jax_uccl.UcclError as error:
        # The rest of the program's operations fail too, so that none is left in flight.
        deadline = time.monotonic() + 20
        while jax_uccl.stats()["operations_in_flight"] > 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        report([type(error).__name__, error.process, jax_uccl.stats()["operations_in_flight"]])
    sys.stdout.flush()
    time.sleep(1 if rank else 3)  # the coordinator lives in rank 0
    os._exit(0)
"""
)


def test_killed_peer_fails_what_every_engine_carries() -> None:
    results = mp.run_processes(
        KILLED,
        3,
        env={"JAX_UCCL_ENGINES": "2", "JAX_UCCL_PEER_SILENCE_MS": "4000", **OVER_NETWORK},
        end_on_failure=False,
    )
    for rank in (0, 2):
        assert results[rank].value is not None, mp.format_results(results)
        assert results[rank].value[1:] == [1, 0], results[rank].value
        assert results[rank].value[0] in ("PeerLostError", "PeerTimeoutError"), results[rank].value
