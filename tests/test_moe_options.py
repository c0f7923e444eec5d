"""Options and errors of jax_uccl.moe: 8-bit tokens, replicas, masked ranks, and what is refused."""

from __future__ import annotations

import contextlib
from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
import moe_oracle as oracle
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_uccl
from jax_uccl import moe
from jax_uccl._src.moe import wire

LAYOUTS = ["rank_major", "expert_major"]


def calc_diff(a, b):
    """DeepEP's distance of two arrays."""
    a, b = np.asarray(a, np.float64) + 1, np.asarray(b, np.float64) + 1
    return 1 - 2 * (a * b).sum() / (a**2 + b**2).sum()


@pytest.mark.parametrize(
    ("mode", "quantize", "limit"),
    [
        ("throughput", None, 5e-6),
        ("throughput", "fp8", 5e-4),
        ("low_latency", None, 1e-5),
        ("low_latency", "fp8", 9e-4),
    ],
)
def test_identity_experts(mode, quantize, limit, mesh_of):
    rng = np.random.default_rng(9)
    n, tokens, k, hidden = 5, 33, 4, 256
    idx = oracle.routing(rng, n, tokens, k, 20, masked=0.1, hot=0.25)
    x = rng.normal(size=(n, tokens, hidden)).astype(ml_dtypes.bfloat16)
    w = rng.random(idx.shape).astype(np.float32)

    def body(idx, x, w):
        options = dict(num_experts=20, axis_name="e", mode=mode, quantize=quantize)
        d = moe.dispatch(x[0], idx[0], w[0], **options)
        out, back = moe.combine(d.tokens, d.handle, weights=d.weights)
        return out[None], back[None]

    mapped = jax.shard_map(body, mesh=mesh_of((n,), ("e",)), in_specs=P("e"), out_specs=P("e"))
    out, back = jax.jit(mapped)(idx, x, w)
    ranks = [[len({e // 4 for e in token if e >= 0}) for token in rank] for rank in idx]
    ranks = np.array(ranks)[..., None]
    mean = np.asarray(out, np.float32) / np.maximum(ranks, 1)
    assert calc_diff(mean, np.where(ranks > 0, x, 0)) < limit
    assert calc_diff(back, np.where(idx >= 0, w, 0)) < 1e-9


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fp8_is_what_was_asked_for(layout, mesh_of):
    rng = np.random.default_rng(10)
    n, tokens, hidden = 3, 4, 200  # the second block is not full
    idx = oracle.routing(rng, n, tokens, 2, 6, masked=0.2)
    x = (rng.normal(size=(n, tokens, hidden)) * 10.0 ** rng.integers(-8, 4, (n, tokens, 1))).astype(
        np.float32
    )
    x[0, 0] = 0
    x[1, 0, 0] = 448 * 8  # exactly a power of two
    x[1, 0, 1:] = 1

    def body(idx, x, *, scale_format):
        options = dict(num_experts=6, axis_name="e", layout=layout, quantize="fp8")
        options["scale_format"] = scale_format
        raw = moe.dispatch(x[0], idx[0], dequantize=False, **options)
        wide = moe.dispatch(x[0], idx[0], **options)
        assert raw.tokens.dtype == jnp.float8_e4m3fn and wide.tokens.dtype == x.dtype
        return raw.tokens[None], raw.scales[None], wide.tokens[None]

    for scale_format in ("float32", "power_of_two"):
        mapped = jax.shard_map(
            lambda i, v: body(i, v, scale_format=scale_format),
            mesh=mesh_of((n,), ("e",)),
            in_specs=P("e"),
            out_specs=P("e"),
        )
        values_, scales, wide = map(np.asarray, jax.jit(mapped)(idx, x))
        parts = np.pad(x, ((0, 0), (0, 0), (0, 56))).reshape(n, tokens, 2, 128)
        scale = np.maximum(np.abs(parts).max(-1), np.float32(1e-4)) * np.float32(1 / 448)
        if scale_format == "power_of_two":
            amax = np.maximum(np.abs(parts).max(-1), np.float32(1e-4)).astype(np.float64)
            scale = (2.0 ** np.ceil(np.log2(amax / 448))).astype(np.float32)
        rounded = (parts / scale[..., None]).astype(ml_dtypes.float8_e4m3fn)
        each = rounded.astype(np.float32) * scale[..., None]
        rounded = rounded.reshape(n, tokens, -1)[..., :hidden]
        each = each.reshape(n, tokens, -1)[..., :hidden]
        for r in range(n):
            want = oracle.receive(idx, 6, r, values_.shape[1], layout)
            empty = set(range(values_.shape[1])) - set(want.rows)
            assert empty
            for row in empty:
                assert not wide[r, row].any() and not scales[r, row].any()
                assert not values_[r, row].astype(np.float32).any()
            for row, (s, t) in zip(want.rows, want.sources, strict=True):
                np.testing.assert_array_equal(scales[r, row], scale[s, t])
                np.testing.assert_array_equal(
                    values_[r, row].view(np.uint8), rounded[s, t].view(np.uint8)
                )
                np.testing.assert_array_equal(wide[r, row], each[s, t])


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_wire_format_is_the_plain_one_to_the_bit(dtype):
    # The native loops against quantize and dequantize, where XLA converts; magnitudes over many powers of ten.
    rng = np.random.default_rng(20)
    x = rng.normal(size=(64, 300)) * 10.0 ** rng.integers(-9, 4, (64, 300))
    x[3], x[4, :7], x[5, 9] = 0, [448, -448, 1e-4, -1e-4, 2**-9, -(2**-10), -0.0], 3e4
    x = jnp.asarray(x.astype(dtype))
    for power_of_two in (False, True):
        plain, native = (
            jax.jit(partial(wire.encode, power_of_two=power_of_two, native=n))
            for n in (False, True)
        )
        rows = np.asarray(native(x))
        np.testing.assert_array_equal(rows, np.asarray(plain(x)))
        each = jax.jit(jax.vmap(native))(x.reshape(4, 16, 300))
        np.testing.assert_array_equal(np.asarray(each).reshape(rows.shape), rows)
        for out in (dtype, np.float32):
            plain, native = (
                jax.jit(partial(wire.decode, hidden=300, dtype=out, native=n))
                for n in (False, True)
            )
            got = np.asarray(native(rows))
            assert got.dtype == out
            np.testing.assert_array_equal(
                got.view(np.uint8), np.asarray(plain(rows)).view(np.uint8)
            )
            each = jax.jit(jax.vmap(native, in_axes=1, out_axes=1))(rows.reshape(16, 4, -1))
            np.testing.assert_array_equal(np.asarray(each).reshape(got.shape), got)


def test_replicated_experts(mesh_of):
    # Four logical experts on six places; the map is an argument, and one compiled program serves two maps.
    n, tokens = 3, 6
    rng = np.random.default_rng(16)
    idx = oracle.routing(rng, n, tokens, 2, 4 * n, masked=0.2)
    idx = np.where(idx >= 0, idx % 4, -1)
    x = rng.normal(size=(n, tokens, 2)).astype(np.float32)

    def body(idx, x, table):
        options = dict(num_experts=6, axis_name="e", logical_to_physical=table, stats=True)
        d = moe.dispatch(x[0], idx[0], **options)
        return d.handle.topk_idx[None], d.stats.expert_load[None]

    specs = (P("e"), P("e"), P())
    mapped = jax.shard_map(body, mesh=mesh_of((n,), ("e",)), in_specs=specs, out_specs=P("e"))
    f = jax.jit(mapped)
    for table in (
        [[0, 4, -1], [-1, 1, 5], [2, -1, -1], [3, -1, -1]],
        [[5, -1, -1], [4] * 3, [0, 1, 2], [3] * 3],
    ):
        got, load = map(np.asarray, f(idx, x, np.array(table)))
        for s in range(n):
            for t in range(tokens):
                for j in range(2):
                    places = [p for p in table[max(idx[s, t, j], 0)] if p >= 0]
                    want = places[(t + s) % len(places)] if idx[s, t, j] >= 0 else -1
                    assert got[s, t, j] == want
        np.testing.assert_array_equal(load[0], np.bincount(got[got >= 0], minlength=6))
    one = np.array([3, 1, 5, 0])
    np.testing.assert_array_equal(np.asarray(f(idx, x, one)[0]), np.where(idx >= 0, one[idx], -1))


def test_masked_ranks(mesh_of):
    n, tokens = 4, 6
    rng = np.random.default_rng(17)
    idx = oracle.routing(rng, n, tokens, 3, 8)
    x = rng.normal(size=(n, tokens, 2)).astype(np.float32)

    def body(idx, x, mask):
        d = moe.dispatch(x[0], idx[0], num_experts=8, axis_name="e", rank_mask=mask)
        return d.handle.topk_idx[None], d.num_rows[None]

    specs = (P("e"), P("e"), P())
    mapped = jax.shard_map(body, mesh=mesh_of((n,), ("e",)), in_specs=specs, out_specs=P("e"))
    got, rows = map(np.asarray, jax.jit(mapped)(idx, x, np.array([True, True, False, True])))
    want = np.where(idx // 2 == 2, -1, idx)
    want[2] = -1
    np.testing.assert_array_equal(got, want)
    assert rows[2] == 0 and (rows[[0, 1, 3]] > 0).all()


# --- errors -----------------------------------------------------------------------------------------


def _program(mesh_of, n, **options):
    def body(x, idx):
        d = moe.dispatch(x, idx, axis_name="e", **options)
        return moe.combine(d.tokens, d.handle), d.demand[None]

    mesh = mesh_of((n,), ("e",))
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("e"), out_specs=P("e")))


@pytest.mark.parametrize("mode", ["throughput", "low_latency"])
def test_overflow_is_an_error_on_request(mode, mesh_of):
    x, idx = (
        np.ones((6, 3), np.float32),
        np.array([[0, 1], [0, 2], [1, 2], [0, 5], [1, 4], [0, -1]]),
    )
    # Tokens 0 to 5 all go to rank 0.
    f = _program(mesh_of, 3, num_experts=6, capacity=5, on_overflow="error", mode=mode)
    with pytest.raises(jax_uccl.UcclValueError) as caught, jax_uccl.errors():
        jax.block_until_ready(f(x, idx))
    assert caught.value.op == "moe.dispatch"
    assert caught.value.detail == (
        "rank 0 needs capacity=6 for its rows, got capacity=5; 6 always holds"
    )
    # The runtime goes on, and the same program with less to do runs.
    idx = idx.copy()  # the program that failed may still read it on another device,
    idx[5] = [3, 4]
    for _ in range(100):  # and what is launched while it does fails with it
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            out, demand = jax.block_until_ready(f(x, idx))
            break
    assert demand.tolist() == [5, 3, 3]
    np.testing.assert_array_equal(np.asarray(out)[:, 0], [1, 2, 2, 2, 2, 2])


def test_no_tokens_at_all(mesh_of):
    """Nothing travels, and the rows that alignment reserves are padding; with and without 8-bit tokens."""
    ways = [dict(quantize=q, mode=m) for q in (None, "fp8") for m in ("throughput", "low_latency")]

    def body(x, idx):
        def loss(x, way):
            how = dict(layout="expert_major", expert_alignment=4, num_experts=6, axis_name="e")
            d = moe.dispatch(x, idx, **how, **way)
            return moe.combine(d.tokens, d.handle).sum(), d.tokens

        return [jax.grad(loss, has_aux=True)(x, way) for way in ways]

    mapped = jax.shard_map(body, mesh=mesh_of((3,), ("e",)), in_specs=P("e"), out_specs=P("e"))
    for grad, tokens in jax.jit(mapped)(np.ones((0, 130), np.float32), np.zeros((0, 2), np.int32)):
        assert grad.shape == (0, 130)
        np.testing.assert_array_equal(tokens, np.zeros((3 * 2 * 3, 130)))
    values, scales = moe.quantize(np.ones((0, 130), np.float32))
    assert (values.shape, scales.shape) == ((0, 130), (0, 2))


def test_choices_that_are_no_expert(mesh_of):
    x, idx = np.ones((6, 3), np.float32), np.zeros((6, 2), np.int32)
    idx[4] = [7, -2]
    f = _program(mesh_of, 3, num_experts=6)
    text = "rank 2 has 2 choices that are neither -1 nor an expert below 6"
    with pytest.raises(jax_uccl.UcclValueError, match=text), jax_uccl.errors():
        jax.block_until_ready(f(x, idx))
    # Nor does one too wide for 32 bits wrap around to an expert, or to -1.
    with pytest.raises(jax_uccl.UcclValueError, match="rank 0 has 4"), jax_uccl.errors():
        jax.block_until_ready(f(x, np.full((6, 2), 2**32 - 1, np.uint32)))
    # Without run-time errors they are no expert.
    out, _ = _program(mesh_of, 3, num_experts=6, implementation="reference")(x, idx)
    np.testing.assert_array_equal(np.asarray(out)[:, 0], [1, 1, 1, 1, 0, 1])
    table = np.zeros((4, 1), np.int32)
    f = _program(mesh_of, 3, num_experts=6, logical_to_physical=table)
    with pytest.raises(jax_uccl.UcclValueError, match="an expert below 4"), jax_uccl.errors():
        jax.block_until_ready(f(x, np.full((6, 2), 4)))


BAD = [
    (dict(num_experts=7), "num_experts=7 is not a multiple of the 3 ranks.*use num_experts=9"),
    (dict(num_experts=None), "num_experts is needed"),
    (dict(num_experts=6.0), "num_experts=6.0 is not an integer"),
    (dict(capacity=7.5), "capacity=7.5 is not an integer"),
    (dict(expert_alignment=2.0), "expert_alignment=2.0 is not an integer"),
    (dict(layout="token"), "layout='token' is not one of"),
    (dict(mode="fast"), "mode='fast' is not one of"),
    (dict(expert_alignment=0), "expert_alignment=0"),
    (dict(capacity=-1), "capacity=-1"),
    (
        dict(capacity=3, layout="expert_major", expert_alignment=8),
        "less than the 14 rows.*26 never",
    ),
    (dict(quantize="int4"), "quantize='int4'"),
    (dict(quantize="fp8", scale_format="x"), "scale_format='x'"),
    (dict(on_overflow="grow"), "on_overflow='grow'"),
    (dict(reduction="tree"), "reduction='tree'"),
    (dict(rank_mask=np.ones(2, bool)), "one entry for each of the 3 ranks"),
    (dict(logical_to_physical=np.ones((2, 2, 2), int)), "logical_to_physical must be integers"),
    (dict(implementation="nccl"), "implementation='nccl' is not one of reference, ragged, native"),
]


@pytest.mark.parametrize(("options", "text"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_bad_options(options, text, mesh_of):
    options = dict(num_experts=6) | options
    with pytest.raises(jax_uccl.UcclValueError, match=text):
        _program(mesh_of, 3, **options)(np.ones((6, 3), np.float32), np.zeros((6, 2), np.int32))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (dict(implementation="reference", wait_times=True), "wait_times need the native implement"),
        (
            dict(implementation="ragged", wait_times=True),
            "wait_times need the native implementation",
        ),
        (dict(implementation="reference", on_overflow="error"), "no run-time errors"),
    ],
)
def test_what_is_not_there_says_so(options, text, mesh_of):
    with pytest.raises(jax_uccl.UnsupportedError, match=text):
        _program(mesh_of, 3, num_experts=6, **options)(
            np.ones((6, 3), np.float32), np.zeros((6, 2), np.int32)
        )


def test_bad_arrays(mesh_of):
    x, idx, w = jnp.ones((4, 3)), jnp.zeros((4, 2), jnp.int32), jnp.ones((4, 2))
    options = dict(num_experts=6, axis_name="e")

    def fails(f, text, error=jax_uccl.UcclValueError):
        with pytest.raises(error, match=text):
            mapped = jax.shard_map(f, mesh=mesh_of((3,), ("e",)), in_specs=P(), out_specs=P("e"))
            jax.eval_shape(mapped, x)

    fails(lambda x: moe.dispatch(x, idx + 0.5, **options), "topk_idx must be integers")
    fails(lambda x: moe.dispatch(x, idx[0], **options), r"topk_idx must be \[tokens, top_k\]")
    fails(lambda x: moe.dispatch(x, idx[:3], **options), "x has 4 tokens, topk_idx is for 3")
    fails(
        lambda x: moe.dispatch(x, idx, w[:, :1], **options), r"topk_weights must be floats \[4, 2\]"
    )
    fails(lambda x: moe.dispatch(x, idx, idx, **options), "topk_weights must be floats")
    fails(lambda x: moe.dispatch(x[0, 0], idx, **options), "got a scalar")
    fails(lambda x: moe.dispatch(x.astype(int), idx, quantize="fp8", **options), "takes floats")
    fails(lambda x: moe.dispatch(x), "needs topk_idx and axis_name, or a handle")
    fails(
        lambda x: moe.dispatch(x, idx, num_experts=6, axis_name="z"),
        "unbound axis name: z",
        NameError,
    )

    def with_handle(f):
        return lambda x: f(x, moe.dispatch(x, idx, w, **options).handle)

    # TE#3277: a later, larger batch.
    larger = with_handle(lambda x, h: moe.dispatch(jnp.ones((5, 3)), handle=h))
    fails(larger, "x has 5 tokens, but the handle was made for 4")
    fails(with_handle(lambda x, h: moe.dispatch(x, idx, handle=h)), "the handle is a routing")
    fails(
        with_handle(lambda x, h: moe.dispatch(x, handle=h, capacity=3)),
        "capacity=3 differs from 12",
    )
    fails(lambda x: moe.dispatch(x, handle=3), "must be a moe.Handle")
    fails(with_handle(lambda x, h: moe.combine(jnp.ones((5, 3)), h)), "y must have 12 rows")
    fails(with_handle(lambda x, h: moe.combine(jnp.ones((12, 3), int), h)), "y must be floats")
    fails(
        with_handle(lambda x, h: moe.combine(jnp.ones((12, 3)), h, weights=w)), r"floats \[12, 2\]"
    )
    fails(
        with_handle(lambda x, h: moe.combine(jnp.ones((12, 3)), h, bias=jnp.ones((5, 3)))),
        r"broadcast to \[4, 3\]",
    )
    fails(
        with_handle(lambda x, h: moe.combine(jnp.ones((12, 3)), h, reduction="x")), "reduction='x'"
    )
    fails(lambda x: moe.combine(x, None), "must be a moe.Handle")
    fails(lambda x: moe.combine_done(x), "takes the result of combine_start")
    fails(lambda x: moe.dispatch_done(x), "takes the result of dispatch_start")
    fails(lambda x: moe.dispatch_start(x, idx, speed=1, **options), "unknown options", TypeError)
    with pytest.raises(NameError, match="unbound axis name: e"):
        moe.dispatch(x, idx, **options)
