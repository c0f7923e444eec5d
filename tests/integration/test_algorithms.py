"""Algorithms forced by the setting, through JAX: the same bits from all of them, in every process model; and the
command that measures them."""

from __future__ import annotations

import json
import pathlib

import mp
import pytest

# One epoch for each algorithm; prints a fingerprint of the results of each, by what was computed.
FORCED = """
    import faulthandler, hashlib
    faulthandler.dump_traceback_later(150, exit=True)
    import jax, jax.numpy as jnp, ml_dtypes, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    import jax_uccl
    from jax_uccl import _uccl
    from child_report import report

    n = 8
    mesh = Mesh(np.array(jax.devices()), ("x",))
    rng = np.random.default_rng(7)

    def place(value):
        return jax.make_array_from_callback(value.shape, NamedSharding(mesh, P("x")), lambda i: value[i])

    def f(x):
        return (jax_uccl.psum(x, "x"), jax_uccl.psum_scatter(x, "x", scatter_dimension=1, tiled=True),
                jax_uccl.all_gather(x, "x"), jax_uccl.all_to_all(x, "x", 1, 1, tiled=True),
                jax_uccl.pbroadcast(x, "x", 3), jax_uccl.barrier(x, "x"))

    # Of many magnitudes, so that another order of additions shows in the last bits.
    xs = []
    for size in (8, 8 * 1001):
        v = rng.normal(size=(n, size)) * 10.0 ** rng.integers(-3, 4, size=(n, size))
        xs += [place(v.astype(t)) for t in (np.float32, ml_dtypes.bfloat16, np.int32)]
    g = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))

    names = {}
    for row in _uccl.algorithms():
        names.setdefault(row["collective"], []).append(row["name"])
    digests = []
    for k in range(max(map(len, names.values()))):
        # Rings may not add floats: the first algorithm is named behind them.
        jax_uccl.init(algorithms=",".join(f"{c}={a[k % len(a)]},{c}={a[0]}" for c, a in names.items()))
        rows = {}
        for i, x in enumerate(xs):
            for j, y in enumerate(g(x)):
                for shard in y.addressable_shards:
                    data = np.ascontiguousarray(np.asarray(shard.data))
                    rows[f"{i}/{j}/{shard.index[0].start or 0}"] = hashlib.sha256(data.tobytes()).hexdigest()
        digests.append(rows)
        stats = jax_uccl.stats()
        assert stats["operations_failed"] == 0
        for c in ("all_gather", "all_to_all", "broadcast", "barrier"):
            assert f"{c} {names[c][k % len(names[c])]}" in stats["algorithms"], (c, stats["algorithms"])
        jax_uccl.shutdown()
    report(digests)
    jax.distributed.shutdown()
"""


def _digests(processes: int, per_process: int) -> list[dict[str, str]]:
    results = mp.run_processes(FORCED, processes, per_process, timeout=160, check=True)
    epochs: list[dict[str, str]] = [{} for _ in results[0].value]
    for result in results:
        for merged, rows in zip(epochs, result.value, strict=True):
            merged.update(rows)
    return epochs


@pytest.mark.slow
def test_every_algorithm_gives_the_same_bits_in_every_process_model() -> None:
    first, *others = _digests(1, 8)
    assert len(first) == 6 * 6 * 8
    assert len(others) >= 6
    for layout in [(2, 4), (4, 2), (8, 1)]:
        for k, rows in enumerate(_digests(*layout)):
            assert rows == first, (layout, k)


REFUSED = """
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, PartitionSpec as P
    import jax_uccl
    from child_report import report

    mesh = Mesh(np.array(jax.devices()), ("x",))
    jax_uccl.init(algorithms="all_reduce=ring")
    g = jax.jit(jax.shard_map(lambda a: jax_uccl.psum(a, "x"), mesh=mesh,
                in_specs=P("x"), out_specs=P(), check_vma=False))
    try:
        with jax_uccl.errors():
            jax.block_until_ready(g(jnp.ones(jax.device_count())))
        report("no error")
    except jax_uccl.UcclValueError as e:
        report(str(e))
"""


def test_algorithm_that_cannot_keep_the_order_is_refused_in_words() -> None:
    for result in mp.run_processes(REFUSED, 1, 2, timeout=60):
        assert result.value is not None, result.stderr
        assert "allows only ring for all_reduce" in result.value, result.value


ANY = """
    import jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    import jax_uccl
    from child_report import report

    n = jax.device_count()
    mesh = Mesh(np.array(jax.devices()), ("x",))
    jax_uccl.init(algorithms="all_reduce=ring,reduce_scatter=ring")
    # Magnitudes at which every order of adding gives other last bits.
    values = np.random.default_rng(7).normal(size=(n, n * 501)) * 10.0 ** np.arange(n)[:, None]
    x = jax.make_array_from_callback(
        values.shape, NamedSharding(mesh, P("x")), lambda i: values[i].astype(np.float32))
    def f(v):
        whole = jax_uccl.psum(v, "x", reduction="any")
        part = jax_uccl.psum_scatter(v, "x", scatter_dimension=1, tiled=True, reduction="any")
        return whole, part
    g = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
    runs = []
    for _ in range(2):
        whole, part = g(x)
        rows = [np.asarray(s.data)[0] for s in whole.addressable_shards]
        runs.append([row.tobytes().hex() for row in rows])
        for row in rows:
            np.testing.assert_allclose(row, values.sum(0), rtol=1e-5)
        for s in part.addressable_shards:
            at = (s.index[0].start or 0) * 501
            np.testing.assert_allclose(np.asarray(s.data)[0], values.sum(0)[at : at + 501], rtol=1e-5)
    stats = jax_uccl.stats()
    report([runs, sorted(stats["algorithms"]), stats["operations_failed"]])
    jax_uccl.shutdown()
    jax.distributed.shutdown()
"""


def test_any_order_takes_algorithms_that_the_fixed_order_refuses() -> None:
    results = mp.run_processes(ANY, 3, 1, timeout=100, check=True)
    first = results[0].value[0][0]
    for runs, algorithms, failed in (r.value for r in results):
        assert runs == [first, first], "the same on all members and in every run"
        assert algorithms == ["all_reduce ring", "reduce_scatter ring"] and failed == 0


TUNE = """
    import json, pathlib
    from child_report import report
    from jax_uccl._src.bench_command import main
    import jax

    path = pathlib.Path(PATH)
    options = ["--passes", "1", "--rounds", "1", "--max-bytes", "4096", "--collectives", "all_reduce,all_to_all"]
    code = main(["--tune", str(path), *options])
    # Process 0 has written the file, which all may use from here on.
    client = jax._src.distributed.global_state.client
    if client is not None:
        client.wait_at_barrier("written", 60_000)
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    import jax_uccl
    jax_uccl.init(tuning_file=str(path))
    mesh = Mesh(np.array(jax.devices()), ("x",))
    ones = jax.make_array_from_callback((2,), NamedSharding(mesh, P("x")), lambda i: np.ones(1, np.float32))
    g = jax.jit(jax.shard_map(lambda a: jax_uccl.psum(a, "x"), mesh=mesh,
                in_specs=P("x"), out_specs=P(), check_vma=False))
    total = g(ones)
    report([code, float(total.addressable_data(0)[0])])
    jax_uccl.shutdown()
    if client is not None:
        jax.distributed.shutdown()
"""


@pytest.mark.parametrize(("processes", "per_process"), [(1, 2), (2, 1)])
def test_bench_tune_writes_a_file_that_the_job_can_use(
    tmp_path: pathlib.Path, processes: int, per_process: int
) -> None:
    path = tmp_path / "tuned.json"
    results = mp.run_processes(
        TUNE.replace("PATH", repr(str(path))), processes, per_process, timeout=120, check=True
    )
    assert [r.value for r in results] == [[0, 2.0]] * processes
    content = json.loads(path.read_text())
    assert content["jax_uccl_tuning"] == 1
    assert f"{processes} processes, 2 devices" in content["note"]
    assert all(isinstance(v, int) and v >= 0 for k, v in content.items() if k != "note")
    assert "fastest" in results[0].stdout and f"wrote {path}" in results[0].stdout
