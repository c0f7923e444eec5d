"""jax_uccl.moe under transformations: derivatives, vmap, scan, remat, several handles, halves, mesh kinds."""

from __future__ import annotations

import re
from functools import partial

import jax
import jax.numpy as jnp
import moe_oracle as oracle
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jax_uccl
from jax_uccl import moe

N, T, K, E, H = 3, 5, 3, 6, 4
LOCAL = E // N
pytestmark = pytest.mark.slow  # Derivatives and transformations compile for minutes in all.

LAYOUTS = ["rank_major", "expert_major"]
EXPERT = P("e")


@pytest.fixture
def inputs():
    """Tokens, choices and weights of all ranks, [N * T, ...]; rank 1 has two tokens only."""
    rng = np.random.default_rng(0)
    idx = oracle.routing(rng, N, T, K, E, masked=0.15)
    idx[1, 2:] = -1
    x = rng.normal(size=(N * T, H)).astype(np.float32)
    return x, idx.reshape(N * T, K), rng.random((N * T, K)).astype(np.float32)


@pytest.fixture
def mesh(mesh_of):
    return mesh_of((N,), ("e",))


def layer(x, idx, w, *, layout, poison=False, halves=False, axis_name="e", **options):
    """Expert e multiplies by 1 + e / 4 and squares; rows are weighted before they go back."""
    options = dict(num_experts=E, axis_name=axis_name, layout=layout) | options
    if halves:
        d = moe.dispatch_done(moe.dispatch_start(x, idx, w, **options))
    else:
        d = moe.dispatch(x, idx, w, **options)
    first = jax.lax.axis_index(axis_name) * LOCAL
    factor = jnp.where(d.experts >= 0, 1 + (first + d.experts) / 4, 0)
    gate = (factor * d.weights).reshape(d.tokens.shape[0], -1).sum(-1, keepdims=True)
    y = d.tokens**2 * gate
    if poison:  # what an expert may leave in the rows that hold nothing
        empty = (d.experts < 0).reshape(d.tokens.shape[0], -1).all(-1, keepdims=True)
        y = jnp.where(empty, jnp.nan, y)
    if halves:
        return moe.combine_done(moe.combine_start(y, d.handle))
    return moe.combine(y, d.handle)


def mapped(f, mesh, *, check_vma=False, in_specs=EXPERT, out_specs=EXPERT, **kwargs):
    return jax.shard_map(
        f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check_vma, **kwargs
    )


def expected(x, idx, w):
    """`layer` by hand."""
    gate = (np.where(idx >= 0, 1 + idx / 4, 0) * w).sum(-1, keepdims=True)
    return x**2 * gate


def gradients(mesh, x, idx, w, *, check_vma=False, **options):
    f = mapped(partial(layer, **options), mesh, check_vma=check_vma)
    return jax.jit(jax.grad(lambda x, w: (f(x, idx, w) ** 2).sum(), argnums=(0, 1)))(x, w)


@pytest.mark.parametrize("check_vma", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients(layout, check_vma, mesh, inputs):
    x, idx, w = inputs
    ours = gradients(mesh, x, idx, w, layout=layout, check_vma=check_vma)
    theirs = gradients(
        mesh, x, idx, w, layout=layout, check_vma=check_vma, implementation="reference"
    )
    gate = (np.where(idx >= 0, 1 + idx / 4, 0) * w).sum(-1, keepdims=True)
    by_hand = (
        4 * x**3 * gate**2,
        np.where(idx >= 0, 1 + idx / 4, 0) * (2 * x**4 * gate).sum(-1, keepdims=True),
    )
    for a, b, c in zip(ours, theirs, by_hand, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(a, c, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_weights_by_finite_differences(layout, mesh, inputs):
    # DeepSpeed#8213: the gradient of the router's weights must not get lost.
    x, idx, w = inputs
    f = mapped(partial(layer, layout=layout), mesh)
    output = jax.jit(lambda w: f(x, idx, w))

    def loss(w):  # added up in float64: differences of a float32 sum depend on its order
        return (np.asarray(output(w), np.float64) ** 2).sum()

    g = np.asarray(gradients(mesh, x, idx, w, layout=layout)[1])
    for i, j in [(0, 0), (4, 1), (6, 2), (11, 0), (14, 1)]:
        step = np.zeros_like(w)
        step[i, j] = 1e-2
        by_steps = (loss(w + step) - loss(w - step)) / 2e-2
        assert g[i, j] == pytest.approx(by_steps, rel=2e-3, abs=1e-3)
    assert np.abs(g[idx >= 0]).min() > 0 and not g[idx < 0].any()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_dispatch_and_combine_are_adjoint(layout, mesh, inputs):
    # <dispatch(x), y> == <x, combine(y)>, also for the weights, and jax.vjp of one gives the other to the bit.
    x, idx, w = inputs
    options = dict(num_experts=E, axis_name="e", layout=layout)

    def body(x, idx, w):
        def send(x, w):
            d = moe.dispatch(x, idx, w, **options)
            return d.tokens, d.weights

        (tokens, weights), pull = jax.vjp(send, x, w)
        handle = moe.dispatch(x, idx, w, **options).handle
        me = jax.lax.axis_index("e")
        y = jnp.cos(jnp.arange(tokens.size).reshape(tokens.shape) + me)
        v = jnp.sin(jnp.arange(weights.size).reshape(weights.shape) + me)
        back_x, back_w = moe.combine(y, handle, weights=v)
        pulled = pull((y, v))
        _, pull_back = jax.vjp(lambda y, v: moe.combine(y, handle, weights=v), y, v)
        again = pull_back((x, w))
        left = (tokens * y).sum() + (weights * v).sum()
        right = (x * back_x).sum() + (w * back_w).sum()
        same = [jnp.array_equal(a, b) for a, b in zip(pulled, (back_x, back_w), strict=True)]
        same += [jnp.array_equal(a, b) for a, b in zip(again, (tokens, weights), strict=True)]
        return jnp.stack([left, right])[None], jnp.stack(same)[None]

    sides, same = jax.jit(mapped(body, mesh))(x, idx, w)
    left, right = np.asarray(sides).sum(0)
    assert left == pytest.approx(right, rel=1e-5) and abs(left) > 0.1
    assert np.asarray(same).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nan_in_padding_reaches_nothing(layout, mesh, inputs):
    # TE#3116: two steps, the second one from what the first one left.
    x, idx, w = inputs

    def run(poison):
        f = mapped(partial(layer, layout=layout, poison=poison), mesh, check_vma=True)
        step = jax.jit(jax.grad(lambda x, w: (f(x, idx, w) ** 2).sum(), argnums=(0, 1)))
        first = step(x, w)
        return jax.jit(f)(x, idx, w), first, step(x - 0.01 * first[0], w - 0.01 * first[1])

    for a, b in zip(jax.tree.leaves(run(True)), jax.tree.leaves(run(False)), strict=True):
        assert np.isfinite(a).all()
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_jvp_and_second_derivative(layout, mesh, inputs):
    x, idx, w = inputs

    def both(implementation):
        f = mapped(partial(layer, layout=layout, implementation=implementation), mesh)

        def loss(x, w):
            return (f(x, idx, w) ** 2).sum()

        def program(x, w):
            tangent = jax.jvp(lambda x, w: f(x, idx, w), (x, w), (jnp.cos(x), jnp.sin(w)))[1]
            second = jax.jvp(jax.grad(loss, argnums=(0, 1)), (x, w), (jnp.sin(x), jnp.cos(w)))[1]
            return tangent, second

        return jax.jit(program)(x, w)

    for a, b in zip(
        jax.tree.leaves(both("ragged")), jax.tree.leaves(both("reference")), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("quantize", [None, "fp8"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_remat_scan(layout, quantize, mesh, inputs):
    # Three layers in a scan, recomputed in the backward pass; each iteration routes anew.
    x, idx, w = inputs

    def loss(x, w, implementation):
        def body(x, idx, w):
            f = partial(layer, layout=layout, quantize=quantize, implementation=implementation)

            def step(carry, shift):
                y = jax.checkpoint(f)(carry, jnp.where(idx >= 0, (idx + shift) % E, -1), w)
                return carry + 0.1 * y, y.sum()

            return jax.lax.scan(step, x, jnp.arange(3))[0]

        return (mapped(body, mesh)(x, idx, w) ** 2).sum()

    ours, theirs = (
        jax.jit(jax.grad(partial(loss, implementation=i), argnums=(0, 1)))(x, w)
        for i in ("ragged", "reference")
    )
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_vmap(mesh, inputs):
    # The routing shared or one for each, over any axis, with a gradient; equal to one after the other.
    x, idx, w = inputs
    xs, ws = jnp.stack([x, 2 * x], axis=1), jnp.stack([w, w + 1])
    idxs = jnp.stack([idx, np.where(idx >= 0, (idx + 1) % E, -1)])
    for layout in LAYOUTS:
        f = partial(layer, layout=layout)

        def program(xs, idxs, ws, f=f):
            shared = jax.vmap(f, in_axes=(1, None, None), out_axes=1)(xs, idxs[0], ws[0])
            each = jax.vmap(f, in_axes=(1, 0, 0), out_axes=1)(xs, idxs, ws)
            pull = jax.vjp(lambda x: jax.vmap(f, in_axes=(1, 0, 0))(x, idxs, ws), xs)[1]
            return shared, each, pull(jnp.ones((2, *xs.shape[::2])))[0]

        specs = (EXPERT, P(None, "e"), P(None, "e"))
        shared, each, pulled = jax.jit(mapped(program, mesh, in_specs=specs))(xs, idxs, ws)
        for b in range(2):
            at = np.asarray(xs[:, b])
            np.testing.assert_allclose(shared[:, b], expected(at, idx, w), rtol=1e-5)
            want = expected(at, np.asarray(idxs[b]), np.asarray(ws[b]))
            np.testing.assert_allclose(each[:, b], want, rtol=1e-5)
            np.testing.assert_allclose(pulled[:, b], 2 * want / at, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_vmap_over_the_named_axis(inputs):
    # No mesh at all: the ranks are a batch.
    x, idx, w = (a.reshape(N, T, -1) for a in inputs)
    for layout in LAYOUTS:
        for mode in ("throughput", "low_latency"):
            f = jax.vmap(partial(layer, layout=layout, mode=mode), axis_name="e")
            out = jax.jit(f)(x, idx, w)
            np.testing.assert_allclose(out, expected(x, idx, w), rtol=1e-5)
        g = jax.jit(jax.grad(lambda x, f=f: f(x, idx, w).sum()))(x)
        np.testing.assert_allclose(g, 2 * expected(x, idx, w) / x, rtol=1e-4, atol=1e-5)


def test_spmd_axis_name_and_two_axes(mesh_of):
    # A batch over "a", experts over "e"; then both axes together as one group of six ranks.
    mesh = mesh_of((2, N), ("a", "e"))
    rng = np.random.default_rng(3)
    x = rng.normal(size=(2, N * T, H)).astype(np.float32)
    idx = oracle.routing(rng, 2, N * T, K, E, masked=0.1)
    w = rng.random((2, N * T, K)).astype(np.float32)
    f = mapped(partial(layer, layout="expert_major"), mesh)
    got = jax.jit(jax.vmap(f, spmd_axis_name="a"))(x, idx, w)
    np.testing.assert_allclose(got, expected(x, idx, w), rtol=1e-5)

    def six(x, idx):
        d = moe.dispatch(x[0], idx[0], num_experts=E, axis_name=("a", "e"))
        me = jax.lax.axis_index(("a", "e"))
        return moe.combine(d.tokens * (1.0 + me), d.handle)[None]

    both = P("a", "e")
    got = jax.jit(mapped(six, mesh, in_specs=both, out_specs=both))(x, idx)
    want = x * np.where(idx >= 0, 1.0 + idx, 0).sum(-1, keepdims=True)
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_partly_manual_mesh(axis_type, mesh_of, inputs):
    # "b" stays with the partitioner.
    x, idx, w = inputs
    mesh = mesh_of((N, 2), ("e", "b"), axis_types=(axis_type,) * 2)
    with jax.set_mesh(mesh):
        f = jax.shard_map(
            partial(layer, layout="expert_major"),
            in_specs=EXPERT,
            out_specs=EXPERT,
            axis_names={"e"},
        )
        sharding = jax.sharding.NamedSharding(mesh, EXPERT)
        arguments = [jax.device_put(a, sharding) for a in (x, idx, w)]
        step = jax.jit(jax.value_and_grad(lambda *a: f(*a).sum()))
        value, pull = step(*arguments)
    want = expected(x, idx, w)
    assert float(value) == pytest.approx(want.sum(), rel=1e-5)
    np.testing.assert_allclose(pull, 2 * want / x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", ["throughput", "low_latency"])
def test_halves(layout, mode, mesh, inputs):
    # Two dispatches under way at once, and compute of one between the halves of the other.
    x, idx, w = inputs
    options = dict(num_experts=E, axis_name="e", layout=layout, mode=mode)

    def body(x, idx, w):
        one = moe.dispatch_start(x, idx, w, **options)
        two = moe.dispatch_start(2 * x, (idx + 1) % E, w, **options)
        d = moe.dispatch_done(one)
        pending = moe.combine_start(jnp.sin(d.tokens), d.handle, weights=d.weights)
        e = moe.dispatch_done(two)
        mine, back = moe.combine_done(pending)
        other = moe.combine_done(moe.combine_start(e.tokens, e.handle, bias=x))
        d2 = moe.dispatch(x, idx, w, **options)
        whole, whole_back = moe.combine(jnp.sin(d2.tokens), d2.handle, weights=d2.weights)
        e2 = moe.dispatch(2 * x, (idx + 1) % E, w, **options)
        return (mine, back, d, other), (
            *(whole, whole_back, d2),
            moe.combine(e2.tokens, e2.handle, bias=x),
        )

    def outer(x, idx, w):
        return jax.tree.map(lambda a: a[None], body(x, idx, w))

    got, want = jax.jit(mapped(outer, mesh))(x, np.maximum(idx, 0), w)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_halves(layout, mesh, inputs):
    x, idx, w = inputs
    got = gradients(mesh, x, idx, w, layout=layout, halves=True)
    want = gradients(mesh, x, idx, w, layout=layout)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    for implementation in ("ragged", "reference"):
        f = partial(layer, layout=layout, halves=True, implementation=implementation)
        out = jax.jit(mapped(f, mesh))(x, idx, w)
        np.testing.assert_allclose(out, expected(x, idx, w), rtol=1e-5)


def test_quantized_gradient_is_that_of_the_plain_dispatch(mesh, inputs):
    x, idx, w = inputs
    options = dict(num_experts=E, axis_name="e")

    def body(x, idx, w):
        out = []
        for quantize in ("fp8", None):
            tokens, pull = jax.vjp(
                lambda x, q=quantize: moe.dispatch(x, idx, w, quantize=q, **options).tokens, x
            )
            ct = jnp.cos(jnp.arange(tokens.size).reshape(tokens.shape))
            out.append((tokens, pull(0 * tokens + ct)[0]))  # of the type of the tokens
        return jax.tree.map(lambda a: a[None], out)

    for check_vma in (False, True):
        (rounded, g), (plain, h) = jax.jit(mapped(body, mesh, check_vma=check_vma))(x, idx, w)
        np.testing.assert_array_equal(np.asarray(g), np.asarray(h))
        assert 0 < np.abs(np.asarray(rounded) - plain).max() < 0.1


def test_handle_through_scan_cond_and_jit_borders(mesh, inputs):
    # A handle is carried, chosen by a condition, and comes out of one program and into another.
    x, idx, w = inputs
    options = dict(num_experts=E, axis_name="e")

    def make(x, idx):
        handle = moe.dispatch(x, idx, **options).handle
        return jax.tree.map(lambda a: a[None], handle)

    def use(x, handle):
        handle = jax.tree.map(lambda a: a[0], handle)
        other = moe.dispatch(x, jnp.full((T, K), E - 1), **options).handle

        def step(carry, i):
            x, handle = carry
            d = moe.dispatch(x, handle=handle)
            chosen = jax.lax.cond(i < 1, lambda: handle, lambda: other)
            return (x + moe.combine(d.tokens, handle), chosen), None

        return jax.lax.scan(step, (x, handle), jnp.arange(3))[0][0]

    handle = jax.jit(mapped(make, mesh))(x, idx)
    got = jax.jit(mapped(use, mesh))(x, handle)
    ranks = np.array([len({e // LOCAL for e in token if e >= 0}) for token in idx])[:, None]
    np.testing.assert_allclose(got, x * (1 + ranks) ** 2 * 2, rtol=1e-5)


def test_strict_order(mesh, inputs):
    x, idx, w = inputs
    with jax_uccl.strict_order():
        f = mapped(partial(layer, layout="expert_major"), mesh)
        g = jax.jit(jax.grad(lambda x: f(x, idx, w).sum()))
        np.testing.assert_allclose(g(x), 2 * expected(x, idx, w) / x, rtol=1e-4, atol=1e-5)


def test_shapes_need_no_runtime_and_programs_compile_ahead(mesh, inputs):
    x, idx, w = inputs
    abstract = jax.sharding.AbstractMesh((N,), ("e",), axis_types=(AxisType.Auto,))
    shape = jax.eval_shape(mapped(partial(layer, layout="expert_major"), abstract), x, idx, w)
    assert (shape.shape, shape.dtype) == (x.shape, x.dtype)
    f = jax.jit(mapped(partial(layer, layout="rank_major"), mesh))
    compiled = f.lower(x, idx, w).compile()
    np.testing.assert_array_equal(np.asarray(compiled(x, idx, w)), np.asarray(f(x, idx, w)))
    # The choices with their weights, rows there, rows back.
    assert compiled.as_text().count('custom_call_target="jax_uccl_all_gather"') == 1
    moves = re.findall(
        'target="jax_uccl_(ragged_all_to_all|moe_exchange|moe_return)"', compiled.as_text()
    )
    assert len(moves) == 2


def test_a_copy_travels_once_to_each_rank(mesh, inputs):
    # The slices that are sent hold one row for each token and rank, whatever number of its experts live there.
    x, idx, w = inputs

    def body(x, idx):
        d = moe.dispatch(x, idx, num_experts=E, axis_name="e", layout="expert_major")
        return d.handle.send_counts[None], d.handle.return_counts[None]

    sent, returned = map(np.asarray, jax.jit(mapped(body, mesh))(x, idx))
    ranks = np.where(idx >= 0, idx // LOCAL, -1).reshape(N, T, K)
    for s in range(N):
        for d in range(N):
            assert sent[s, d] == (ranks[s] == d).any(-1).sum()
            assert returned[d, s] == (ranks[s] == d).sum()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_padding_is_zero_in_memory_that_was_used(layout, mesh, inputs):
    # The buffers of a loop serve every turn: a turn with few tokens finds the rows of one with many.
    x, idx, w = inputs

    def body(x, idx, w):
        def step(_, keep):
            chosen = jnp.where(jnp.arange(T)[:, None] < keep, jnp.maximum(idx, 0), -1)
            d = moe.dispatch(x + 9, chosen, w, num_experts=E, axis_name="e", layout=layout)
            empty = (d.experts < 0).reshape(d.tokens.shape[0], -1).all(-1)
            in_padding = jnp.where(empty[:, None], d.tokens, 0)
            return None, (jnp.abs(in_padding).max(), empty.sum(), moe.combine(d.tokens, d.handle))

        return jax.lax.scan(step, None, jnp.array([T, 1, T, 0, 2]))[1]

    def outer(*arguments):
        return jax.tree.map(lambda a: a[None], body(*arguments))

    worst, empty, out = map(np.asarray, jax.jit(mapped(outer, mesh))(x, idx, w))
    assert not worst.any() and (empty[:, 1] > empty[:, 0]).all()
    for turn, keep in enumerate([T, 1, T, 0, 2]):
        assert (out[:, turn, :keep] != 0).any(-1).all() and not out[:, turn, keep:].any()


@pytest.mark.parametrize("partly", [False, True])
def test_export(partly, mesh_of, inputs):
    # A serialised program with its derivative; it names no device and runs on the caller's mesh.
    from jax import export

    x, idx, w = inputs
    mesh = mesh_of((N, 2), ("e", "b"))
    sharding = jax.sharding.NamedSharding(mesh, EXPERT)
    f = jax.jit(
        mapped(
            partial(layer, layout="expert_major"),
            mesh,
            check_vma=True,
            axis_names={"e"} if partly else {"e", "b"},
        ),
        in_shardings=sharding,
        out_shardings=sharding,
    )
    targets = "all_gather ragged_all_to_all moe_exchange moe_return reduce_scatter require".split()
    targets += "count_before take_rows fold_rows".split()
    checks = [export.DisabledSafetyCheck.custom_call(f"jax_uccl_{name}") for name in targets]
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in inputs]
    exported = export.export(f, disabled_checks=checks)(*shapes)
    assert "devices = dense<> : tensor<0xi64>" in exported.mlir_module()
    again = export.deserialize(exported.serialize(vjp_order=1))
    arguments = [jax.device_put(a, sharding) for a in inputs]
    call = jax.jit(lambda x, w: again.call(x, arguments[1], w))
    out, pull = jax.vjp(call, arguments[0], arguments[2])
    want, pull_here = jax.vjp(lambda x, w: f(x, arguments[1], w), arguments[0], arguments[2])
    np.testing.assert_array_equal(np.asarray(out), np.asarray(want))
    np.testing.assert_allclose(out, expected(x, idx, w), rtol=1e-5)
    for a, b in zip(pull(jnp.cos(out)), pull_here(jnp.cos(out)), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_spmd_axis_name_has_gradients(mesh_of):
    # The batch is divided over "a", also in the backward pass, with a routing for each element.
    mesh = mesh_of((2, N), ("a", "e"))
    rng = np.random.default_rng(3)
    x = rng.normal(size=(2, N * T, H)).astype(np.float32)
    idx = oracle.routing(rng, 2, N * T, K, E, masked=0.1)
    w = rng.random((2, N * T, K)).astype(np.float32)
    f = jax.vmap(mapped(partial(layer, layout="rank_major"), mesh), spmd_axis_name="a")
    put = lambda a: jax.device_put(a, jax.sharding.NamedSharding(mesh, P("a", "e")))  # noqa: E731
    program = jax.jit(jax.grad(lambda x, idx, w: f(x, idx, w).sum(), argnums=(0, 2)))
    compiled = program.lower(*map(put, (x, idx, w))).compile()
    got_x, got_w = compiled(*map(put, (x, idx, w)))
    np.testing.assert_allclose(got_x, 2 * expected(x, idx, w) / x, rtol=1e-4, atol=1e-5)
    want = np.where(idx >= 0, 1 + idx / 4, 0) * (x**2).sum(-1, keepdims=True)
    np.testing.assert_allclose(got_w, want, rtol=1e-4, atol=1e-5)
    assert " all-gather(" not in compiled.as_text()
