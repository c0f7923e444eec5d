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


def _digests(processes: int, per_process: int) -> dict[str, str]:
    results = mp.run_processes(IDENTICAL, processes, per_process, timeout=160, check=True)
    merged: dict[str, str] = {}
    for result in results:
        merged.update(result.value)
    return merged


@pytest.mark.slow
def test_results_are_bit_identical_in_every_process_model() -> None:
    want = _digests(1, 8)
    assert len(want) == 4 * 12 * 8
    for layout in [(2, 4), (4, 2), (8, 1)]:
        assert _digests(*layout) == want, layout


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
