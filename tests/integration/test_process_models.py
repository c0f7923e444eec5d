"""The same program in every process model: many devices of one process, one device per process, and mixes."""

import mp
import pytest

# Prints a fingerprint of every byte of every result, assembled from the shards of all processes.
IDENTICAL = """
    import faulthandler, hashlib
    faulthandler.dump_traceback_later(150, exit=True)
    import jax, jax.numpy as jnp, ml_dtypes, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    import jax_uccl
    from child_report import report

    n = 8
    assert jax.device_count() == n
    mesh = Mesh(np.array(jax.devices()), ("x",))
    rng = np.random.default_rng(7)

    def place(value):
        return jax.make_array_from_callback(value.shape, NamedSharding(mesh, P("x")), lambda i: value[i])

    # Values of many magnitudes, so that another order of additions shows in the last bits. Sizes: scalar-like, one
    # step, two steps with parts that do not divide, large.
    arrays = [rng.normal(size=(n, size)) * 10.0 ** rng.integers(-6, 6, size=(n, size)) for size in (1, 1000, 70001)]
    dtypes = [np.float32, ml_dtypes.bfloat16, np.float16, np.int32]

    def f(xs):
        out = []
        for x in xs:
            out += [jax_uccl.psum(x, "x"), jax_uccl.all_reduce(x, "x", op="max"),
                    jax_uccl.psum(x, "x", axis_index_groups=[[0, 3, 6, 1], [5, 4, 7, 2]])]
            wide = jnp.broadcast_to(x[:, :1], (n, 3)) * jnp.arange(3).astype(x.dtype)
            out.append(jax_uccl.all_to_all(wide, "x", 0, 0, tiled=True))
        return out

    digests = {}
    g = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
    for dtype in dtypes:
        xs = [place(np.clip(a, -6e4, 6e4).astype(dtype)) for a in arrays]
        for k, y in enumerate(g(xs)):
            for shard in y.addressable_shards:
                row = shard.index[0].start or 0
                data = np.ascontiguousarray(np.asarray(shard.data))
                digests[f"{np.dtype(dtype).name}/{k}/{row}"] = hashlib.sha256(data.tobytes()).hexdigest()
    report(digests)
    jax_uccl.shutdown()
    jax.distributed.shutdown()
"""


# The other collectives against NumPy, row by row of what each process holds, and rows and columns of a 2-D mesh
# at once. Prints how many arrays were compared.
EVERY_COLLECTIVE = """
    import faulthandler
    faulthandler.dump_traceback_later(150, exit=True)
    import jax, jax.numpy as jnp, ml_dtypes, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    import jax_uccl
    from child_report import report

    n = 8
    mesh = Mesh(np.array(jax.devices()), ("x",))
    rng = np.random.default_rng(3)

    def place(value, mesh=mesh, spec=P("x")):
        return jax.make_array_from_callback(value.shape, NamedSharding(mesh, spec), lambda i: value[i])

    compared = 0
    def check(got, want, what):
        global compared
        assert got.shape == want.shape, (what, got.shape, want.shape)
        for shard in got.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), want[shard.index], err_msg=what)
            compared += 1

    sizes = rng.integers(0, 4, (n, n))
    sizes[2] = 0
    pairs = [(i, (i + 3) % n) for i in range(n - 1)]
    starts, lands = np.cumsum(sizes, 1) - sizes, np.cumsum(sizes, 0) - sizes
    for dtype in (np.float32, ml_dtypes.bfloat16, np.int8):
        for width in (1, 5000):
            # One block of n * 4 rows for each rank.
            v = rng.integers(-3, 4, (n, n * 4, width)).astype(dtype)
            x = place(v.reshape(n * n * 4, width))

            def f(a):
                o = jax_uccl.ragged_offsets(sizes, jax.lax.axis_index("x"))
                return (
                    jax_uccl.all_gather(a, "x", axis=1),
                    jax_uccl.psum_scatter(a, "x", tiled=True),
                    jax_uccl.reduce_scatter(a, "x", op="max", tiled=True),
                    jax_uccl.ppermute(a, "x", pairs),
                    jax_uccl.pbroadcast(a, "x", 5),
                    jax_uccl.ragged_all_to_all(a, a + 1, *o, axis_name="x"),
                    jax_uccl.barrier(a, "x"),
                    jax_uccl.pmin(a, "x"),
                )

            got = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))(x)
            parts = v.astype(np.float64).reshape(n, n, 4, width)
            moved = np.zeros_like(v)
            for s, t in pairs:
                moved[t] = v[s]
            ragged = (v.astype(np.float32) + 1).astype(dtype)
            for s in range(n):
                for t in range(n):
                    a, b, k = starts[s, t], lands[s, t], sizes[s, t]
                    ragged[t, b : b + k] = v[s, a : a + k]
            wants = [
                np.broadcast_to(v.transpose(1, 0, 2)[None], (n, n * 4, n, width)),
                parts.sum(0).astype(dtype),
                parts.max(0).astype(dtype),
                moved,
                np.broadcast_to(v[5][None], v.shape),
                ragged,
                v,
                np.broadcast_to(v.astype(np.float64).min(0).astype(dtype)[None], v.shape),
            ]
            for k, (g, w) in enumerate(zip(got, wants, strict=True)):
                check(g, w.reshape(g.shape), f"{np.dtype(dtype).name} {width} output {k}")

    # Rows and columns at once, overlapping groups, several times without waiting.
    grid = Mesh(np.array(jax.devices()).reshape(2, 4), ("r", "c"))
    v = rng.normal(size=(2, 4, 3000)).astype(np.float32).round(1)
    y = place(v, grid, P("r", "c"))
    both = jax.jit(jax.shard_map(
        lambda a: (jax_uccl.all_gather(a, "r"), jax_uccl.all_gather(a, "c"), jax_uccl.pmax(a, "r"),
                   jax_uccl.pmax(a, "c")),
        mesh=grid, in_specs=P("r", "c"), out_specs=P("r", "c"), check_vma=False))
    for outs in [both(y) for _ in range(8)]:
        check(outs[2], np.broadcast_to(v.max(0, keepdims=True), v.shape), "column maximum")
        check(outs[3], np.broadcast_to(v.max(1, keepdims=True), v.shape), "row maximum")
    stats = jax_uccl.stats()
    report([compared, stats["operations_failed"], stats["operations_in_flight"]])
    jax_uccl.shutdown()
    jax.distributed.shutdown()
"""


# How processes of one host talk, by name.
WAYS = {
    "network": {"JAX_UCCL_SHARED_MEMORY": "off"},
    "shared memory": {"JAX_UCCL_SHARED_MEMORY": "on"},
    "one copy": {"JAX_UCCL_SHARED_MEMORY": "on", "JAX_UCCL_SHM_EAGER_BYTES": "100"},
    "two copies": {
        "JAX_UCCL_SHARED_MEMORY": "on",
        "JAX_UCCL_SHM_EAGER_BYTES": "100",
        "JAX_UCCL_SHM_ONE_COPY": "0",
    },
    # Kernels, FIFOs and proxies under the operations, also between devices of one process.
    "fifos": {"JAX_UCCL_EXECUTOR": "fifo"},
    "fifos, network": {"JAX_UCCL_EXECUTOR": "fifo", "JAX_UCCL_SHARED_MEMORY": "off"},
}


def _digests(processes: int, per_process: int, way: str) -> dict[str, str]:
    results = mp.run_processes(
        IDENTICAL, processes, per_process, timeout=160, check=True, env=WAYS[way]
    )
    merged: dict[str, str] = {}
    for result in results:
        merged.update(result.value)
    return merged


@pytest.mark.slow
def test_results_are_bit_identical_in_every_process_model() -> None:
    want = _digests(1, 8, "network")
    assert len(want) == 4 * 12 * 8
    for *layout, way in [
        (2, 4, "one copy"),
        (4, 2, "two copies"),
        (4, 2, "shared memory"),
        (8, 1, "network"),
        (1, 8, "fifos"),
        (2, 4, "fifos, network"),
        (8, 1, "fifos"),
    ]:
        assert _digests(*layout, way) == want, (layout, way)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "per_process", "way"),
    [
        (1, 8, "network"),
        (2, 4, "network"),
        (2, 4, "one copy"),
        (4, 2, "network"),
        (4, 2, "two copies"),
        (4, 2, "shared memory"),
        (8, 1, "one copy"),
        (1, 8, "fifos"),
        (2, 4, "fifos"),
        (4, 2, "fifos, network"),
        (8, 1, "fifos"),
    ],
)
def test_every_collective_in_every_process_model(
    processes: int, per_process: int, way: str
) -> None:
    results = mp.run_processes(
        EVERY_COLLECTIVE, processes, per_process, timeout=160, check=True, env=WAYS[way]
    )
    # Six inputs of eight outputs, and two results of eight launches; one shard for each device.
    assert [r.value for r in results] == [[(6 * 8 + 16) * per_process, 0, 0]] * processes


# A slice that is too long on one rank only: everybody hears of it, and the process lives on.
RAGGED_FAULT = """
    import faulthandler
    faulthandler.dump_traceback_later(100, exit=True)
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    import jax_uccl
    from child_report import report

    n = jax.device_count()
    mesh = Mesh(np.array(jax.devices()), ("x",))

    def f(a):
        me = jax.lax.axis_index("x")
        sizes = jnp.ones((n, n), jnp.int32)
        o = list(jax_uccl.ragged_offsets(sizes, me))
        o[FIELD] = o[FIELD].at[0].add(jnp.where(me == 1, EXTRA, 0))
        return jax_uccl.ragged_all_to_all(a, a, *o, axis_name="x")

    x = jax.make_array_from_callback((n * n, 3), NamedSharding(mesh, P("x")), lambda i: np.ones((n, 3), np.float32))
    g = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x")))
    try:
        jax.block_until_ready(g(x))
        report("no error")
    except jax.errors.JaxRuntimeError as e:
        report(str(e))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "per_process"), [(1, 3), (3, 1)])
@pytest.mark.parametrize(
    ("field", "extra", "text"),
    [(1, 100, "send_sizes[0]=101 are not within the"), (3, 1, "disagree|expects")],
)
def test_ragged_faults_reach_every_rank(
    processes: int, per_process: int, field: int, extra: int, text: str
) -> None:
    script = RAGGED_FAULT.replace("FIELD", str(field)).replace("EXTRA", str(extra))
    results = mp.run_processes(script, processes, per_process, timeout=100)
    for result in results:
        assert result.value is not None, result.stderr
        # Where the rank only expects too much, another process may have got and given all before it hears.
        done = field == 3 and result.rank != 1 % processes and result.value == "no error"
        assert done or any(part in result.value for part in text.split("|")), result.value


@pytest.mark.slow
def test_sixteen_devices_on_few_cores() -> None:
    # 16 independent collectives of several shapes in one program, 200 iterations; then one function traced once
    # and called 16 times with equal shapes. Blocks every eighth launch at the latest.
    results = mp.run_processes(
        """
        import faulthandler
        faulthandler.dump_traceback_later(240, exit=True)
        import functools
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        import jax_uccl
        from child_report import report

        n = 16
        mesh = Mesh(np.array(jax.devices()), ("x",))
        x = np.random.default_rng(0).integers(0, 3, size=(n * n, 24)).astype(np.float32)
        arg = jax.device_put(x, NamedSharding(mesh, P("x")))
        widths = [4 * (1 + i % 5) for i in range(16)]

        def independent(v):
            outs = []
            for i, width in enumerate(widths):
                y = jnp.dot(v, jnp.full((24, width), float(i + 1)))
                outs.append(jax_uccl.psum(y, "x") if i % 2 else jax_uccl.all_to_all(y, "x", 0, 0, tiled=True))
            return outs

        specs = [P() if i % 2 else P("x") for i in range(16)]
        f = jax.jit(jax.shard_map(independent, mesh=mesh, in_specs=P("x"), out_specs=specs))
        def exchange(y):
            return np.swapaxes(y.reshape(n, n, 1, -1), 0, 1).reshape(y.shape)
        wants = []
        for i, width in enumerate(widths):
            y = x @ np.full((24, width), float(i + 1), np.float32)
            wants.append(y.reshape(n, n, width).sum(0) if i % 2 else exchange(y))
        checked = 0
        for iteration in range(200):
            outs = f(arg)
            if iteration % 8 == 7:
                for out, want in zip(outs, wants, strict=True):
                    np.testing.assert_array_equal(np.asarray(out), want)
                    checked += 1

        inner = jax.jit(lambda v: jax_uccl.all_to_all(v, "x", 0, 0, tiled=True))
        repeated = jax.jit(jax.shard_map(
            lambda v: [inner(jnp.dot(v, jnp.full((24, 8), i + 1.0))) for i in range(16)],
            mesh=mesh, in_specs=P("x"), out_specs=[P("x")] * 16))
        for iteration in range(40):
            for i, out in enumerate(repeated(arg)):
                want = exchange(x @ np.full((24, 8), i + 1.0, np.float32))
                np.testing.assert_array_equal(np.asarray(out), want)
                checked += 1
        stats = jax_uccl.stats()
        report({"checked": checked, "failed": stats["operations_failed"], "left": stats["operations_in_flight"]})
        """,
        1,
        16,
        timeout=270,
        check=True,
    )
    assert results[0].value == {"checked": 25 * 16 + 40 * 16, "failed": 0, "left": 0}
