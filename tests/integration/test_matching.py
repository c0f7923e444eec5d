"""The matching protocol (docs/matching.md): right values whatever the order of thunks, compilation, caches, threads."""

import pathlib
import textwrap

import mp
import pytest

# Every check compares with NumPy, on integers small enough to be exact in float32.
PREAMBLE = """
    import faulthandler, os, sys, threading, time
    faulthandler.dump_traceback_later(150, exit=True)
    import jax, jax.numpy as jnp, numpy as np
    from jax import lax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    import jax_uccl
    from child_report import report

    rank, size = jax.process_index(), jax.process_count()
    devices = jax.devices()
    n = len(devices)
    mesh = Mesh(np.array(devices), ("x",))

    def place(value, mesh=mesh, spec=P("x")):
        value = np.asarray(value)
        return jax.make_array_from_callback(value.shape, NamedSharding(mesh, spec), lambda i: value[i])

    def local(array):
        return [(s.index, np.asarray(s.data)) for s in array.addressable_shards]

    def same(array, want):
        # Compares what is on this process with `want`, which is global.
        for index, got in local(array):
            np.testing.assert_array_equal(got, np.asarray(want)[index])

    def smap(f, out_specs=P("x"), mesh=mesh, in_specs=P("x"), **kw):
        return jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **kw)

    def exchange(x):  # rows of all ranks: block r of rank s goes to block s of rank r
        blocks = x.reshape(n, n, -1, *x.shape[1:])
        return np.swapaxes(blocks, 0, 1).reshape(x.shape)

    rng = np.random.default_rng(1)
    def data(rows, cols):
        return rng.integers(0, 8, size=(rows, cols)).astype(np.float32)

    def finish():
        stats = jax_uccl.stats()
        assert stats["operations_failed"] == 0, stats
        assert stats["operations_in_flight"] == 0, stats
        report("right")
        jax_uccl.shutdown()
        jax.distributed.shutdown()
"""

LAYOUTS = [(1, 4), (2, 1), (4, 1), (2, 4)]  # processes x devices of each
SOME_LAYOUTS = [(2, 1), (2, 4)]


def check(
    body: str, processes: int, per_process: int, env: dict | None = None, timeout: float = 160
) -> None:
    source = textwrap.dedent(PREAMBLE) + textwrap.dedent(body) + "\nfinish()\n"
    results = mp.run_processes(source, processes, per_process, env=env, timeout=timeout, check=True)
    assert [r.value for r in results] == ["right"] * processes, mp.format_results(results)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_many_independent_and_repeated_calls(layout: tuple[int, int]) -> None:
    # Independent collectives of several shapes behind matrix products (which shuffle the thunks), and one
    # function traced once and called 16 times with equal shapes; run ahead without blocking.
    check(
        """
        x = data(n * n, 6)
        inner = jax.jit(lambda v: jax_uccl.all_to_all(v, "x", 0, 0, tiled=True))
        def f(x):
            outs = []
            for i in range(16):
                y = jnp.dot(x, jnp.full((6, 6 + i % 3), float(i + 1)))
                outs.append(jax_uccl.psum(y, "x").sum()[None] if i % 2 else
                            jax_uccl.all_to_all(y, "x", 0, 0, tiled=True).sum(axis=1))
            same_site = [inner(x * (i + 1)) for i in range(16)]
            return outs, same_site
        outs_spec = [P() if i % 2 else P("x") for i in range(16)]
        g = jax.jit(smap(f, (outs_spec, [P("x")] * 16)))
        arg = place(x)
        for round in range(6):
            results = [g(arg) for _ in range(4)]
            for outs, same_site in results:
                for i, out in enumerate(outs):
                    y = x @ np.full((6, 6 + i % 3), float(i + 1), np.float32)
                    want = [y.sum()] if i % 2 else exchange(y).sum(axis=1)
                    same(out, np.asarray(want, np.float32))
                for i, out in enumerate(same_site):
                    same(out, exchange(x * (i + 1)))
        """,
        *layout,
    )


@pytest.mark.parametrize("layout", [(1, 4), (2, 2)])
def test_order_shuffled_by_random_delays(layout: tuple[int, int]) -> None:
    # Every call waits up to 3 ms before it is matched, so devices and processes meet in another order each time.
    check(
        """
        inner = jax.jit(lambda v: jax_uccl.all_to_all(v, "x", 0, 0, tiled=True))
        def f(x):
            def body(c, k):
                return sum(inner(c + i) for i in range(3)) - 2 * inner(c), jax_uccl.psum(c, "x").sum()
            c, sums = lax.scan(body, x, jnp.arange(3.0))
            return [inner(x * (i + 1)) for i in range(6)], c, sums[None]
        g = jax.jit(smap(f, ([P("x")] * 6, P("x"), P("x")), check_vma=False))
        x = data(n * n, 3)
        c = x
        for _ in range(3):
            c = exchange(c) + 3
        for _ in range(8):
            outs, got, sums = g(place(x))
            for i, out in enumerate(outs):
                same(out, exchange(x * (i + 1)))
            same(got, c)
        """,
        *layout,
        env={"JAX_UCCL_TEST_DELAY_US": "3000"},
    )


@pytest.mark.parametrize("layout", SOME_LAYOUTS)
def test_two_functions_with_equal_positions_alternate(layout: tuple[int, int]) -> None:
    # Both jitted functions carry the same name and ordinal; launches run ahead. Blocks at least every 16
    # launches, as XLA:CPU deadlocks with more than 32 in flight on older versions.
    check(
        """
        def make(k):
            def f(x):
                return jax_uccl.all_to_all(x * k, "x", 0, 0, tiled=True)
            return jax.jit(smap(f))
        f, g, h = make(2.0), make(3.0), make(5.0)
        x = data(n * n, 3)
        arg = place(x)
        for round in range(10):
            pending = []
            for i in range(14):
                k, fun = [(2, f), (3, g), (5, h)][(i * (round + 1)) % 3]
                pending.append((k, fun(arg)))
            for k, out in pending:
                same(out, exchange(x * k))
        """,
        *layout,
    )


@pytest.mark.parametrize("layout", SOME_LAYOUTS)
def test_control_flow(layout: tuple[int, int]) -> None:
    # scan, while with a data-dependent trip count, cond, and all three nested, with duplicates inside.
    check(
        """
        a2a = lambda v: jax_uccl.all_to_all(v, "x", 0, 0, tiled=True)
        inner = jax.jit(a2a)
        def f(x, trips):
            def body(c, k):
                c = inner(inner(c) + k) - a2a(c) * 0
                c = lax.cond(k % 2 == 0, lambda c: jax_uccl.psum(c, "x") * 0 + c, lambda c: a2a(a2a(c)), c)
                return c, a2a(c).sum()
            c, ys = lax.scan(body, x, jnp.arange(4.0))
            def step(s):
                i, c = s
                return i + 1, inner(c) + jax_uccl.psum(1.0, "x")
            i, c = lax.while_loop(lambda s: s[0] < trips[0], step, (0, c))
            return c, ys[None]
        g = jax.jit(smap(f, (P("x"), P("x")), in_specs=(P("x"), P()), check_vma=False))
        x = data(n * n, 2)
        arg = place(x)
        def oracle(x, trips):
            for k in range(4):
                x = exchange(exchange(x) + k)
            for i in range(trips):
                x = exchange(x) + n
            return x
        for trips in (0, 3, 5, 1, 2, 5):
            c, ys = g(arg, place(np.array([trips]), spec=P()))
            same(c, oracle(x, trips))
        """,
        *layout,
    )


@pytest.mark.parametrize("layout", SOME_LAYOUTS)
def test_overlapping_and_disjoint_groups(layout: tuple[int, int]) -> None:
    # Rows and columns of a 2-D mesh in one program, a mesh in another device order, and subgroups.
    check(
        """
        two = Mesh(np.array(devices).reshape(2, -1), ("r", "c"))
        back = Mesh(np.array(devices[::-1]), ("x",))
        x = data(n, 4)
        def f(v):
            return (jax_uccl.psum(v, "r"), jax_uccl.psum(v, "c"), jax_uccl.psum(v, ("r", "c")),
                    jax_uccl.psum(v, ("c", "r")))
        g = jax.jit(smap(f, P(("r", "c")), mesh=two, in_specs=P(("r", "c")), check_vma=False))
        grid = x.reshape(2, n // 2, 4)
        for _ in range(10):
            r, c, rc, cr = g(place(x, two, P(("r", "c"))))
            same(r, np.broadcast_to(grid.sum(0, keepdims=True), grid.shape).reshape(x.shape))
            same(c, np.broadcast_to(grid.sum(1, keepdims=True), grid.shape).reshape(x.shape))
            same(rc, np.broadcast_to(x.sum(0, keepdims=True), x.shape))
            same(cr, np.broadcast_to(x.sum(0, keepdims=True), x.shape))
        y = data(n * n, 2)
        h = jax.jit(smap(lambda v: jax_uccl.all_to_all(v, "x", 0, 0, tiled=True), mesh=back))
        same(h(place(y, back)), exchange(y))
        groups = [list(range(0, n, 2)), list(range(1, n, 2))]
        s = jax.jit(smap(lambda v: jax_uccl.psum(v, "x", axis_index_groups=groups), check_vma=False))
        want = np.empty_like(x)
        for g_ in groups:
            want[g_] = x[g_].sum(0)
        same(s(place(x)), want)
        """,
        *layout,
    )


@pytest.mark.parametrize("layout", [(2, 1), (4, 1), (2, 4)])
def test_one_rank_slow_cached_recompiled_or_busy(
    layout: tuple[int, int], tmp_path: pathlib.Path
) -> None:
    # One function traced once and called 16 times. Rank 0 has a persistent cache that it filled in an earlier job; the
    # last rank sleeps, compiles other things, clears its caches and runs single-device programs between.
    body = """
        if rank == 0:
            jax.config.update("jax_compilation_cache_dir", os.environ["CACHE"])
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
            jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        inner = jax.jit(lambda v: jax_uccl.all_to_all(v, "x", 0, 0, tiled=True))
        def step(x):
            return sum(inner(jnp.dot(x, jnp.full((3, 3), i + 1.0))) for i in range(16)), jax_uccl.psum(x, "x")
        g = jax.jit(smap(step, (P("x"), P())))
        x = data(n * n, 3)
        arg = place(x)
        want = exchange(x @ np.full((3, 3), 136.0, np.float32))
        total = x.reshape(n, n, 3).sum(0)
        for i in range(12):
            if rank == size - 1 and i % 3 == 1:
                time.sleep(0.2)
                jax.block_until_ready(jax.jit(lambda v: v * i)(jnp.ones(4)))
                jax.jit(smap(lambda v: jax_uccl.psum(v * 2, "x"), P())).lower(arg).compile()
                if i == 7:
                    jax.clear_caches()
            out, s = g(arg)
            same(out, want)
            same(s, total)
    """
    env = {"CACHE": tmp_path}
    check(body, *layout, env=env)
    assert any(tmp_path.iterdir()), "the first job did not fill the cache"
    check(body, *layout, env=env)


def test_one_rank_loads_a_serialized_executable() -> None:
    check(
        """
        from jax.experimental import serialize_executable
        inner = jax.jit(lambda v: jax_uccl.all_to_all(v, "x", 0, 0, tiled=True))
        def step(x):
            def body(c, _):
                return inner(inner(c) + 1), None
            return lax.scan(body, sum(inner(x * (i + 1)) for i in range(4)), None, length=3)[0]
        x = data(n * n, 3)
        arg = place(x)
        compiled = jax.jit(smap(step)).lower(arg).compile()
        want = exchange(x * 10)
        for _ in range(3):
            want = exchange(exchange(want) + 1)
        for _ in range(4):
            same(compiled(arg), want)
        if rank == 0:
            compiled = serialize_executable.deserialize_and_load(*serialize_executable.serialize(compiled))
        for _ in range(6):
            same(compiled(arg), want)
        """,
        2,
        1,
    )


@pytest.mark.parametrize("layout", [(2, 1)])
def test_two_threads_dispatch_different_programs(layout: tuple[int, int]) -> None:
    # Names and content differ, so the values are right; order between the threads is random on each process.
    check(
        """
        def alpha(x): return jax_uccl.all_to_all(x * 2, "x", 0, 0, tiled=True)
        def beta(x): return jax_uccl.all_to_all(x * 3, "x", 0, 0, tiled=True)
        x = data(n * n, 2)
        arg = place(x)
        f, g = (jax.jit(smap(h)).lower(arg).compile() for h in (alpha, beta))
        failures = []
        def work(fun, k):
            try:
                for i in range(40):
                    time.sleep(((rank + 1) * (i + k) % 5) * 0.001)
                    same(fun(arg), exchange(x * k))
            except BaseException as e:
                failures.append(e)
        threads = [threading.Thread(target=work, args=a) for a in ((f, 2), (g, 3))]
        [t.start() for t in threads]; [t.join() for t in threads]
        assert not failures, failures
        """,
        *layout,
    )


def test_two_threads_that_cannot_be_told_apart_get_an_error_or_the_right_values() -> None:
    # Two functions of one name and content launched from two threads: never wrong data without an error.
    source = textwrap.dedent(PREAMBLE) + textwrap.dedent(
        """
        jax_uccl.init(op_timeout_ms=15000)
        def make(k):
            def f(x, k): return jax_uccl.all_to_all(x * k, "x", 0, 0, tiled=True)
            return jax.jit(smap(f, in_specs=(P("x"), P())))
        x = data(n * n, 2)
        arg, k2, k3 = place(x), place(np.float32(2), spec=P()), place(np.float32(3), spec=P())
        f, g = make(0).lower(arg, k2).compile(), make(1).lower(arg, k2).compile()
        wrong, errors, right = [], [], []
        def work(fun, k, kv):
            for i in range(40):
                time.sleep(((rank + 1) * (i + k) % 5) * 0.001)
                try:
                    out = local(fun(arg, kv))
                except Exception as e:
                    errors.append(str(e))
                    return
                for index, got in out:
                    (right if (got == exchange(x * k)[index]).all() else wrong).append(i)
        threads = [threading.Thread(target=work, args=a) for a in ((f, 2, k2), (g, 3, k3))]
        [t.start() for t in threads]; [t.join() for t in threads]
        report({"wrong": len(wrong), "errors": errors[:2], "right": len(right)})
        sys.stdout.flush(); time.sleep(1 if rank else 3); os._exit(0)
        """
    )
    results = mp.run_processes(source, 2, timeout=120, end_on_failure=False)
    for result in results:
        assert result.value is not None, mp.format_results(results)
        # Where data met that did not belong together, an error was raised as well.
        assert not result.value["wrong"] or result.value["errors"], result.value
        if result.value["errors"]:
            assert "uccl." in result.value["errors"][0], result.value


def test_single_and_multi_device_programs_share_a_device() -> None:
    check(
        """
        x = data(n * n, 3)
        arg = place(x)
        g = jax.jit(smap(lambda v: jax_uccl.all_to_all(v, "x", 0, 0, tiled=True)))
        one = jax.jit(lambda v: (v @ v.T).sum())
        for i in range(20):
            busy = [one(jnp.ones((64 * (rank + 1), 64))) for _ in range(rank * 3)]
            same(g(arg), exchange(x))
            jax.block_until_ready(busy)
        """,
        2,
        2,
    )


def test_strict_order_agrees_with_the_default() -> None:
    check(
        """
        x = data(n * n, 3)
        arg = place(x)
        def step(x):
            a = jax_uccl.all_to_all(jnp.dot(x, jnp.eye(3)), "x", 0, 0, tiled=True)
            b = jax_uccl.psum(x, "x")
            c = jax_uccl.all_to_all(x * 3, "x", 0, 0, tiled=True)
            return a + c, b
        def run():
            return jax.jit(smap(step, (P("x"), P())))(arg)
        free = run()
        with jax_uccl.strict_order():
            strict = [run() for _ in range(3)]
        for a, b in strict:
            same(a, exchange(x) * 4)
            same(b, x.reshape(n, n, 3).sum(0))
        same(free[0], exchange(x) * 4)
        """,
        2,
        2,
    )
