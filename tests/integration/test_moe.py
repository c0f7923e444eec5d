"""Dispatch and combine are the same to the bit in every process model, and faults reach every process."""

import pathlib

import mp
import pytest

ACCEPTANCE = pathlib.Path(__file__).parents[1] / "moe_acceptance.py"

# Four ranks; prints a fingerprint of every byte of every result, assembled from the shards of all processes.
IDENTICAL = """
    import faulthandler, hashlib
    faulthandler.dump_traceback_later(200, exit=True)
    import jax, jax.numpy as jnp, ml_dtypes, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    import jax_uccl
    from jax_uccl import moe
    from child_report import report

    n, tokens, k, experts = 4, 37, 6, 16
    assert jax.device_count() == n
    mesh = Mesh(np.array(jax.devices()), ("e",))
    rng = np.random.default_rng(7)
    idx = np.argsort(rng.random((n * tokens, experts)))[:, :k].astype(np.int32)
    idx[rng.random(idx.shape) < 0.1] = -1
    idx[tokens : 2 * tokens] = -1  # rank 1 has no tokens
    x = rng.normal(size=(n * tokens, 300)) * 2.0 ** rng.integers(-9, 9, (n * tokens, 300))
    w = rng.random(idx.shape).astype(np.float32)

    def place(value):
        return jax.make_array_from_callback(value.shape, NamedSharding(mesh, P("e")), lambda i: value[i])

    def layer(x, idx, w, layout, mode, capacity, quantize):
        d = moe.dispatch(x, idx, w, num_experts=experts, axis_name="e", layout=layout, mode=mode,
                         capacity=capacity, quantize=quantize, implementation=IMPLEMENTATION,
                         hosts=HOSTS if capacity else None)
        gate = d.weights if d.weights.ndim == 1 else d.weights.sum(-1)
        y = (jnp.sin(d.tokens.astype(np.float32)) * gate[:, None]).astype(x.dtype)
        return moe.combine(y, d.handle), d.tokens, d.experts, d.demand[None]

    digests = {}
    def take(name, tree):
        for i, y in enumerate(jax.tree.leaves(tree)):
            for shard in y.addressable_shards:
                data = np.ascontiguousarray(np.asarray(shard.data)).tobytes()
                row = shard.index[0].start or 0
                digests[f"{name}/{i}/{row}"] = hashlib.sha256(data).hexdigest()

    for layout in ("rank_major", "expert_major"):
        ways = [("throughput", None, None), ("low_latency", None, None), ("throughput", 50, "fp8")]
        for mode, capacity, quantize in ways:
            f = jax.shard_map(lambda *a: layer(*a, layout, mode, capacity, quantize),
                              mesh=mesh, in_specs=P("e"), out_specs=P("e"), check_vma=False)
            args = place(x.astype(ml_dtypes.bfloat16)), place(idx), place(w)
            def loss(x, idx, w):
                out = f(x, idx, w)
                return (out[0].astype(np.float32) ** 2).sum(), out
            grads, out = jax.jit(jax.grad(loss, argnums=(0, 2), has_aux=True))(*args)
            take(f"{layout} {mode} {capacity}", (grads, out))
    report(digests)
    jax_uccl.shutdown()
    jax.distributed.shutdown()
"""


def _digests(
    processes: int,
    per_process: int,
    implementation: str | None = "ragged",
    executor: str = "direct",
) -> dict[str, str]:
    # In two levels, once, natively, which must not change anything.
    hosts = "None" if implementation == "ragged" else "2"
    script = IDENTICAL.replace("IMPLEMENTATION", repr(implementation)).replace("HOSTS", hosts)
    env = dict(JAX_UCCL_EXECUTOR=executor)
    results = mp.run_processes(script, processes, per_process, env=env, timeout=260, check=True)
    merged: dict[str, str] = {}
    for result in results:
        merged.update(result.value)
    return merged


@pytest.mark.slow
def test_bit_identical_in_every_process_model() -> None:
    want = _digests(1, 4)
    # Six programs of two gradients and four results, one shard for each rank.
    assert len(want) == 6 * 6 * 4
    for layout in [(2, 2), (4, 1)]:
        assert _digests(*layout) == want, layout


@pytest.mark.slow
def test_commands_and_proxies_give_the_same_bits() -> None:
    want = _digests(1, 4)
    for layout in [(1, 4), (2, 2), (4, 1)]:
        assert _digests(*layout, "native", "fifo") == want, layout


@pytest.mark.slow
def test_rows_in_memory_give_the_same_bits() -> None:
    want = _digests(1, 4)
    for layout in [(1, 4), (2, 2), (4, 1)]:
        assert _digests(*layout, None) == want, layout


# Two processes of two ranks; the second one leaves between two dispatches that exchange rows alone.
ALONE = """
    import faulthandler, os, signal
    faulthandler.dump_traceback_later(100, exit=True)
    import jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    import jax_uccl
    from jax_uccl import moe
    from child_report import report

    n = jax.device_count()
    mesh = Mesh(np.array(jax.devices()), ("e",))
    options = dict(num_experts=n, axis_name="e", mode="MODE", implementation="native")

    def route(x, idx):
        return jax.tree.map(lambda a: a[None], moe.dispatch(x, idx, **options).handle)

    def again(x, handle):
        handle = jax.tree.map(lambda a: a[0], handle)
        return moe.combine(moe.dispatch(x, handle=handle).tokens, handle)

    def mapped(f):
        return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("e"), out_specs=P("e"), check_vma=False))

    def place(value):
        return jax.make_array_from_callback(value.shape, NamedSharding(mesh, P("e")), lambda i: value[i])

    x, f = place(np.ones((2 * n, 3), np.float32)), mapped(again)
    handle = mapped(route)(x, place(np.arange(2 * n)[:, None] % n))
    jax.block_until_ready(f(x, handle))
    if jax.process_index() == 1:
        LEAVE
    try:
        with jax_uccl.errors():
            jax.block_until_ready(f(x, handle))
        said = "done"
    except jax_uccl.UcclError as e:
        said = f"{type(e).__name__}: {e}"
    report(said)
    os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "op"), [("low_latency", "moe.dispatch"), ("throughput", "moe.exchange")]
)
@pytest.mark.parametrize(
    ("leave", "name"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "PeerLostError"),
        ("signal.pause()", "PeerTimeoutError"),
    ],
)
def test_rows_that_never_come_are_an_error_that_says_whose(
    leave: str, name: str, mode: str, op: str
) -> None:
    script = ALONE.replace("LEAVE", leave).replace("MODE", mode)
    env = dict(JAX_UCCL_EXECUTOR="fifo", JAX_UCCL_OP_TIMEOUT_MS="8000")
    results = mp.run_processes(script, 2, 2, env=env, timeout=150, end_on_failure=False)
    said = results[0].value
    assert said.startswith(name), said
    assert f'op="{op} float32[2,3] axis=(e)"' in said and "process=1" in said


OVERFLOW = """
    import faulthandler
    faulthandler.dump_traceback_later(100, exit=True)
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    import jax_uccl
    from jax_uccl import moe
    from child_report import report

    n = jax.device_count()
    mesh = Mesh(np.array(jax.devices()), ("e",))

    def layer(x, idx):
        d = moe.dispatch(x, idx, num_experts=n, axis_name="e", capacity=4, on_overflow="error", mode="MODE")
        return moe.combine(d.tokens, d.handle)

    def place(value):
        return jax.make_array_from_callback(value.shape, NamedSharding(mesh, P("e")), lambda i: value[i])

    f = jax.jit(jax.shard_map(layer, mesh=mesh, in_specs=P("e"), out_specs=P("e"), check_vma=False))
    x, few = np.ones((2 * n, 3), np.float32), np.arange(2 * n)[:, None] % n
    many = few.copy()
    many[:5] = 1  # five rows for rank 1
    said = []
    for idx in (few, many, few):
        try:
            with jax_uccl.errors():
                jax.block_until_ready(f(place(x), place(idx)))
            said.append("done")
        except jax_uccl.UcclValueError as e:
            said.append(e.detail)
    report(said)
    jax_uccl.shutdown()
    jax.distributed.shutdown()
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["throughput", "low_latency"])
def test_overflow_fails_every_process_and_work_goes_on(mode) -> None:
    results = mp.run_processes(OVERFLOW.replace("MODE", mode), 3, 1, timeout=120, check=True)
    text = "rank 1 needs capacity=5 for its rows, got capacity=4; 6 always holds"
    for result in results:
        assert result.value == ["done", text, "done"], result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "sizes"),
    [
        ((4, 1), (19, 200, 16, 5, 20)),
        ((2, 2), (19, 200, 16, 5, 20)),
        ((4, 1), (128, 7168, 64, 8, 20)),  # DeepEP's own size
    ],
    ids=["4x1", "2x2", "128x7168"],
)
def test_acceptance(layout, sizes) -> None:
    results = mp.run_processes(
        ACCEPTANCE, *layout, args=[str(v) for v in sizes], timeout=200, check=True
    )
    assert sum(result.value for result in results) == 5 * 4


BYTES = """
    import faulthandler
    faulthandler.dump_traceback_later(100, exit=True)
    import jax, jax.numpy as jnp, ml_dtypes, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    import jax_uccl
    from jax_uccl import moe
    from child_report import report

    n, tokens, hidden, k, experts, calls = 4, 128, 1024, 6, 16, 5
    mesh = Mesh(np.array(jax.devices()), ("e",))
    idx = np.argsort(np.random.default_rng(0).random((n * tokens, experts)))[:, :k].astype(np.int32)

    def place(value):
        return jax.make_array_from_callback(value.shape, NamedSharding(mesh, P("e")), lambda i: value[i])

    def sent():
        return sum(peer["bytes_sent"] for peer in jax_uccl.stats()["shared_memory"].values())

    arguments = place(np.ones((n * tokens, hidden), ml_dtypes.bfloat16)), place(idx)
    found = {}
    for name, options in dict(bf16={}, fp8=dict(quantize="fp8", dequantize=False)).items():
        def layer(x, idx):
            d = moe.dispatch(x, idx, num_experts=experts, axis_name="e", layout="expert_major", **options)
            return d.tokens, d.handle.send_counts

        f = jax.jit(jax.shard_map(layer, mesh=mesh, in_specs=P("e"), out_specs=P("e"), check_vma=False))
        jax.block_until_ready(f(*arguments))
        before = sent()
        for _ in range(calls):
            out = jax.block_until_ready(f(*arguments))
        copies = np.asarray(out[1].addressable_shards[0].data)
        copies = copies.sum() - copies[jax.process_index()]
        found[name] = [int(sent() - before), int(calls * copies)]
    report(found)
    jax_uccl.shutdown()
    jax.distributed.shutdown()
"""


@pytest.mark.slow
def test_bytes_on_the_wire() -> None:
    # Tokens times distinct remote ranks; beside them the choices, once to each rank.
    for result in mp.run_processes(BYTES, 4, 1, timeout=120, check=True):
        sent, copies = result.value["bf16"]
        choices = 5 * 3 * 128 * 6 * 4
        assert copies * 2048 <= sent - choices <= 1.05 * copies * 2048
        fp8, same = result.value["fp8"]
        assert same == copies and fp8 <= 0.55 * sent


TWO_LEVEL = """
    import faulthandler
    faulthandler.dump_traceback_later(200, exit=True)
    import jax, jax.numpy as jnp, ml_dtypes, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    import jax_uccl
    from jax_uccl import moe
    from child_report import report

    n, tokens, hidden, k, experts = 4, 128, 1024, 6, 16
    me, processes = jax.process_index(), jax.process_count()
    here = me // (processes // 2)  # two hosts, with one half of the processes on each
    mesh = Mesh(np.array(jax.devices()), ("e",))
    rng = np.random.default_rng(0)
    idx = np.argsort(rng.random((n * tokens, experts)))[:, :k].astype(np.int32)
    idx[rng.random(idx.shape) < 0.2] = -1
    idx[tokens : 2 * tokens] = -1  # rank 1 has no tokens
    x = rng.normal(size=(n * tokens, hidden)).astype(ml_dtypes.bfloat16)
    w = rng.random(idx.shape).astype(np.float32)

    def place(value):
        return jax.make_array_from_callback(value.shape, NamedSharding(mesh, P("e")), lambda i: value[i])

    def mapped(f):
        return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("e"), out_specs=P("e"), check_vma=False))

    def left():
        "Payload for processes of the other host."
        peers = jax_uccl.stats()["shared_memory"]
        assert len(peers) == processes - 1
        return sum(s["bytes_sent"] for p, s in peers.items() if int(p) // (processes // 2) != here)

    def bytes_of(f, *arguments):
        jax.block_until_ready(f(*arguments))
        before = left()
        jax.block_until_ready(f(*arguments))
        return left() - before

    def send(hosts, x, idx):
        return moe.dispatch(x, idx, num_experts=experts, axis_name="e", layout="expert_major", hosts=hosts)

    # One exchange of the choices, and as much again for each dispatch.
    choices = bytes_of(mapped(lambda i: jax_uccl.all_gather(i, "e")), place(idx))
    sent = {}
    for name, hosts in dict(two=None, one=1).items():
        f = mapped(lambda x, i: send(hosts, x, i).tokens)
        sent[name] = bytes_of(f, place(x), place(idx)) - choices

    def layer(hosts, x, idx, w):
        def loss(x, w):
            d = moe.dispatch(x, idx, w, num_experts=experts, axis_name="e", hosts=hosts)
            y = (d.tokens.astype(np.float32) * d.weights.sum(-1, keepdims=True)).astype(x.dtype)
            out = moe.combine(y, d.handle)
            chosen.append(d.handle.spec.hosts)
            return (out.astype(np.float32) ** 2).sum(), (d.tokens, out)
        (_, results), grads = jax.value_and_grad(loss, (0, 1), has_aux=True)(x, w)
        return results, grads

    chosen = []
    results = [mapped(lambda *a: layer(hosts, *a))(place(x), place(idx), place(w)) for hosts in (None, 1)]
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        for p, q in zip(a.addressable_shards, b.addressable_shards, strict=True):
            np.testing.assert_array_equal(np.asarray(p.data), np.asarray(q.data))
            assert np.isfinite(np.asarray(p.data, np.float32)).all()

    # What has to cross: of this host's tokens each one with an expert on the other host, or each such rank.
    target = np.where(idx >= 0, idx // (experts // n), -1)
    away = [r for r in range(n) if r // 2 != here]
    own = [r for r in range(n) if r * processes // n == me]
    rows = [slice(r * tokens, (r + 1) * tokens) for r in own]
    hosts = sum(int(np.isin(target[s], away).any(1).sum()) for s in rows)
    ranks = sum(int((target[s] == r).any(1).sum()) for s in rows for r in away)
    report([sent["two"], hosts * hidden * 2, sent["one"], ranks * hidden * 2, list(map(list, chosen))])
    jax_uccl.shutdown()
    jax.distributed.shutdown()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "devices"), [(4, 1), (2, 2)])
def test_a_token_crosses_to_a_host_once(processes: int, devices: int) -> None:
    env = {"JAX_UCCL_PROCESSES_PER_HOST": f"{processes // 2},{processes // 2}"}
    results = mp.run_processes(TWO_LEVEL, processes, devices, env=env, timeout=240, check=True)
    for result in results:
        two, to_hosts, one, to_ranks, chosen = result.value
        assert chosen == [[0, 0, 1, 1], []]
        assert to_hosts <= two <= 1.05 * to_hosts
        assert to_ranks <= one <= 1.05 * to_ranks
    assert sum(r.value[1] for r in results) < 0.7 * sum(r.value[3] for r in results)
