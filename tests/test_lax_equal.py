"""Argument for argument like jax.lax of the installed version: signatures, types that wait for a sum, sources that
are known at run time; and `reduction`, which is ours."""

from __future__ import annotations

import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collective_cases import CASES, DIFFERENTIABLE, operand
from jax import lax
from jax.sharding import PartitionSpec as P

import jax_uccl

BOTH = P(("a", "b"))
SHARED = (
    "all_gather all_to_all pbroadcast pmax pmean pmin ppermute pshuffle psum psum_scatter "
    "ragged_all_to_all"
).split()
# Parameters that lax does not have, behind all of lax's.
OURS = {
    name: {"reduction": "ordered"} for name in ("pmax", "pmean", "pmin", "psum", "psum_scatter")
}
# Collectives of lax that have no equal here, and why.
LEFT_OUT = {
    "pswapaxes": "all_to_all under an older name; it works through jax_uccl.all_to_all",
    "pargmax": "deprecated in lax; made of pmax and pmin",
    "pargmin": "deprecated in lax; made of pmax and pmin",
    "psend": "half of a ppermute, for GPUs only; deprecated in 0.12",
    "precv": "half of a ppermute, for GPUs only; deprecated in 0.12",
    "pcast": "a cast: nothing is sent",
    "axis_index": "nothing is sent",
    "axis_size": "nothing is sent",
}


def test_signatures_are_those_of_lax():
    for name in SHARED:
        ours = inspect.signature(getattr(jax_uccl, name)).parameters
        lax_own = inspect.signature(getattr(lax, name)).parameters
        extra = dict(list(ours.items())[len(lax_own) :])
        assert {k: p.default for k, p in extra.items()} == OURS.get(name, {}), name
        for (k, p), (own_k, own_p) in zip(ours.items(), lax_own.items(), strict=False):
            assert (k, p.kind, p.default) == (own_k, own_p.kind, own_p.default), (name, k)


def test_every_collective_of_lax_is_here_or_left_out_for_a_reason():
    # What is deprecated can be had, but is not listed any more.
    takes_axis = {
        name
        for name in dir(lax)
        if callable(getattr(lax, name))
        and not isinstance(getattr(lax, name), type)
        and "axis_name" in _parameters(getattr(lax, name))
    }
    assert takes_axis == set(SHARED) | (LEFT_OUT.keys() & dir(lax))


def _parameters(f):
    try:
        return inspect.signature(f).parameters
    except ValueError:
        return {}


def _run(f, mesh, *args, in_specs=BOTH, out_specs=BOTH, check_vma=True):
    mapped = jax.shard_map(
        f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check_vma
    )
    return jax.tree.map(np.asarray, jax.jit(mapped)(*args))


def _same(got, want):
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-5), got, want)


def _use(f, mesh, *args, **kwargs):
    with jax_uccl.use():
        return _run(f, mesh, *args, **kwargs)


# --- pending sums -----------------------------------------------------------------------------------


def _gather_to_reduced(m, x, w):
    """Value, gradient (a psum_scatter of pending sums) and gradient of the gradient (a gather again)."""

    def loss(v):
        return (m.all_gather(v, "b", tiled=True, to="reduced") * w).sum()

    def along(v):
        return (jax.grad(loss)(v) ** 2).sum() + (jnp.sin(v) * loss(v)).sum()

    return loss(x)[None], jax.grad(loss)(x), jax.grad(along)(x)


def _pending(m, x, w):
    del w
    pending = lambda v: lax.pcast(v, "b", to="unreduced")  # noqa: E731
    total = lambda v: m.psum(pending(v), "b")  # noqa: E731
    return (
        total(x),
        m.psum_scatter(pending(x), "b", scatter_dimension=1, tiled=True),
        m.psum_scatter(pending(x)[:, :4], "b", scatter_dimension=1),
        jax.grad(lambda v: (total(v) ** 2).sum())(x),
    )


@pytest.mark.parametrize("program", [_gather_to_reduced, _pending])
def test_values_that_wait_for_their_sum(program, mesh_of):
    mesh, x = mesh_of((2, 4), ("a", "b")), operand()[..., 0]
    w = jnp.cos(jnp.arange(8 * 4 * 24.0)).reshape(64, 12)[:, :1] * jnp.ones((64, 24))
    args = dict(
        in_specs=(BOTH, BOTH),
        out_specs=(BOTH,) * 3 if program is _gather_to_reduced else (P("a"), BOTH, BOTH, BOTH),
    )
    want = _run(lambda v, u: program(lax, v, u), mesh, x, w, **args)
    before = jax_uccl.stats()["operations_started"]
    _same(_run(lambda v, u: program(jax_uccl, v, u), mesh, x, w, **args), want)
    middle = jax_uccl.stats()["operations_started"]
    _same(_use(lambda v, u: program(lax, v, u), mesh, x, w, **args), want)
    after = jax_uccl.stats()["operations_started"]
    assert (
        after - middle == middle - before >= 2 * 3
    )  # at least three operations on each of two rows


def test_wrong_pending_reductions_are_refused(mesh_of):
    mesh, x = mesh_of((2, 4), ("a", "b")), operand()[..., 0]
    pending = lambda v: lax.pcast(v, "b", to="unreduced")  # noqa: E731
    with pytest.raises(ValueError, match="waits for a sum"):
        _run(lambda v: jax_uccl.pmax(pending(v), "b"), mesh, x)
    with pytest.raises(ValueError, match="only"):
        _run(lambda v: jax_uccl.psum(pending(v), ("a", "b")), mesh, x)
    groups = [[0, 1], [2, 3]]
    with pytest.raises(NotImplementedError, match="axis_index_groups"):
        _run(lambda v: jax_uccl.psum(pending(v), "b", axis_index_groups=groups), mesh, x)
    with pytest.raises(ValueError, match="unreduced"):
        _run(lambda v: jax_uccl.all_gather(pending(v), "b"), mesh, x)


# --- pbroadcast from a source that is known at run time ---------------------------------------------

_FROM = dict(in_specs=(BOTH, P()))


@pytest.mark.parametrize("check_vma", [False, True])
@pytest.mark.parametrize(
    "dtype", "float32 bfloat16 float8_e4m3fn complex64 int4 uint8 bool".split()
)
def test_pbroadcast_from_an_array(dtype, check_vma, mesh_of):
    mesh, x = mesh_of((2, 4), ("a", "b")), operand(dtype)
    if jnp.issubdtype(dtype, np.floating):
        x = jnp.where(x == 0, jnp.asarray(-0.0, dtype), x)  # a sum would lose the sign
    f = jax.jit(
        jax.shard_map(
            lambda v, s: jax_uccl.pbroadcast(v, "b", s),
            mesh=mesh,
            out_specs=BOTH,
            check_vma=check_vma,
            **_FROM,
        )
    )
    blocks = np.asarray(x).reshape(2, 4, 2, 24, 8)
    for source in range(4):
        got = np.asarray(f(x, np.int32(source)))
        want = np.broadcast_to(blocks[:, source, None], blocks.shape).reshape(x.shape)
        assert got.dtype == x.dtype and got.tobytes() == want.tobytes()


@pytest.mark.parametrize("check_vma", [False, True])
def test_pbroadcast_from_an_array_under_transformations(check_vma, mesh_of):
    mesh, x = mesh_of((2, 4), ("a", "b")), operand()
    w = jnp.cos(x)

    def program(v, u, source):
        f = lambda y: jax_uccl.pbroadcast(y, "b", source)  # noqa: E731
        loss = lambda y: (jnp.sin(f(y)) * u).sum()  # noqa: E731
        return (
            jax.vmap(f, 1, 1)(v),
            jax.grad(loss)(v),
            jax.jvp(f, (v,), (u,))[1],
            jax.grad(lambda y: (jax.grad(loss)(y) ** 2).sum())(v),
        )

    specs = dict(out_specs=(BOTH,) * 4, check_vma=check_vma)
    got = _run(program, mesh, x, w, np.int32(2), in_specs=(BOTH, BOTH, P()), **specs)
    want = _run(lambda v, u: program(v, u, 2), mesh, x, w, in_specs=(BOTH, BOTH), **specs)
    _same(got, want)


def test_pbroadcast_from_an_array_over_a_vmap_axis():
    x = jnp.arange(12.0).reshape(3, 4)
    f = lambda v, s: jax.vmap(lambda u: jax_uccl.pbroadcast(u, "i", s), axis_name="i")(v)  # noqa: E731
    np.testing.assert_array_equal(jax.jit(f)(x, np.int32(1)), np.broadcast_to(x[1], x.shape))


def test_bad_sources_are_refused(mesh_of):
    mesh, x = mesh_of((2, 4), ("a", "b")), operand()
    f = lambda v, s: jax_uccl.pbroadcast(v, "b", s)  # noqa: E731
    with pytest.raises(TypeError, match="must be int32"):
        _run(f, mesh, x, np.float32(1), **_FROM)
    with pytest.raises(ValueError, match="must be a scalar"):
        _run(f, mesh, x, np.ones(2, np.int32), **_FROM)
    with pytest.raises(NotImplementedError, match="different source"):
        _run(lambda v, s: jax.vmap(f)(v, s), mesh, x, np.ones(2, np.int32), **_FROM)


@pytest.mark.skipif(
    not hasattr(jax._src.lax.parallel, "pbroadcast_dynamic_p"), reason="JAX 0.12 has it"
)
def test_use_takes_over_a_source_known_at_run_time(mesh_of):
    mesh, x = mesh_of((2, 4), ("a", "b")), operand()
    got = _use(lambda v, s: lax.pbroadcast(v, "b", s), mesh, x, np.int32(3), **_FROM)
    want = _run(lambda v: jax_uccl.pbroadcast(v, "b", 3), mesh, x)
    np.testing.assert_array_equal(got, want)


# --- several slices for each member -----------------------------------------------------------------


def test_ragged_gradient_where_a_member_sends_nothing(mesh_of):
    """Receive offsets [0, 2, 2], sizes [2, 0, 3], 8 rows: a published gradient of this was wrong."""
    sizes = np.array([[2, 2, 2], [0, 0, 0], [3, 3, 3]])
    assert jax_uccl.ragged_offsets(sizes, 0)[3].tolist() == [2, 0, 3]
    for wrong in (sizes + 0.5, sizes[:2]):
        with pytest.raises(ValueError, match="sizes must be integers"):
            jax_uccl.ragged_offsets(wrong, 0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 9, 2)).astype(np.float32)
    out, ct = (rng.normal(size=(3, 8, 2)).astype(np.float32) for _ in range(2))

    def body(x, out, ct):
        o = jax_uccl.ragged_offsets(sizes, jax.lax.axis_index("x"))

        def f(x, out):
            return jax_uccl.ragged_all_to_all(x[0], out[0], *o, axis_name="x")[None]

        y, pull = jax.vjp(f, x, out)
        return y, *pull(ct)

    specs = dict(mesh=mesh_of((3,), ("x",)), in_specs=P("x"), out_specs=P("x"))
    y, dx, into = jax.jit(jax.shard_map(body, **specs))(x, out, ct)
    starts = np.cumsum(sizes, 1) - sizes
    for t in range(3):
        want = np.concatenate([x[0, starts[0, t] :][:2], x[2, starts[2, t] :][:3], out[t, 5:]])
        np.testing.assert_array_equal(y[t], want)
        np.testing.assert_array_equal(into[t], np.concatenate([np.zeros((5, 2)), ct[t, 5:]]))
        np.testing.assert_array_equal(dx[0, starts[0, t] :][:2], ct[t, :2])
        np.testing.assert_array_equal(dx[2, starts[2, t] :][:3], ct[t, 2:5])
    assert not dx[1].any() and not dx[0, 6:].any()


def test_ragged_slices(mesh_of):
    """Two slices for each member in one call are the two calls, one after the other."""
    mesh, x = mesh_of((4,), ("b",)), operand()[:, :, 0]
    sizes = np.array([[[1, 0, 0, 1], [0, 1, 1, 0], [1, 1, 0, 0], [0, 0, 1, 1]]] * 2)

    def both(v):
        me = lax.axis_index("b")
        first, second = (jax_uccl.ragged_offsets(s, me) for s in sizes)
        second = (second[0] + 2, second[1], second[2] + 2, second[3])
        joined = [jnp.stack(pair, 1).reshape(-1) for pair in zip(first, second, strict=True)]
        call = lambda y, o, *vectors: jax_uccl.ragged_all_to_all(y, o, *vectors, axis_name="b")  # noqa: E731
        at_once = lambda y: call(y, y * 0 - 1, *joined)  # noqa: E731
        in_turn = lambda y: call(y, call(y, y * 0 - 1, *first), *second)  # noqa: E731
        grads = [jax.grad(lambda y, f=f: (f(y) * jnp.cos(v)).sum())(v) for f in (at_once, in_turn)]
        return at_once(v), in_turn(v), *grads

    specs = dict(in_specs=P("b"), out_specs=P("b"))
    one, two, d_one, d_two = _run(both, mesh, x, **specs)
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(d_one, d_two)
    assert (one != -1).any() and (one == -1).any()


def test_vectors_of_wrong_length_are_refused(mesh_of):
    mesh, x = mesh_of((2, 4), ("a", "b")), operand()
    ok, bad = np.zeros(8, np.int32), np.zeros(6, np.int32)
    for vectors in ([bad] * 4, [ok, ok, ok, bad], [ok[:4], ok, ok, ok]):
        call = lambda v, vs=vectors: jax_uccl.ragged_all_to_all(v, v, *vs, axis_name="b")  # noqa: E731
        with pytest.raises(ValueError, match="each of the 4 members"):
            _run(call, mesh, x)


# --- strict settings of JAX -------------------------------------------------------------------------


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_no_implicit_rank_or_dtype_promotion(name, mesh_of):
    """Users may forbid both, also in the code of libraries."""
    mesh, x = mesh_of((2, 4), ("a", "b")), operand()
    call = CASES[name].call

    def program(v):
        rows = jax.vmap(lambda u: call(jax_uccl, u), 3, 0)(jnp.stack([v, v], 3))
        return jax.grad(lambda u: (call(jax_uccl, u) ** 2).sum())(v), rows

    f = jax.shard_map(program, mesh=mesh, in_specs=BOTH, out_specs=BOTH, check_vma=False)
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        jax.jit(f).lower(x)


# --- reduction= -------------------------------------------------------------------------------------

REDUCTIONS = {
    "psum": lambda x, **how: jax_uccl.psum(x, "b", **how),
    "pmean": lambda x, **how: jax_uccl.pmean(x, "b", **how),
    "pmax": lambda x, **how: jax_uccl.pmax(x, "b", **how),
    "pmin": lambda x, **how: jax_uccl.pmin(x, "b", **how),
    "all_reduce": lambda x, **how: jax_uccl.all_reduce(x, "b", op="prod", **how),
    "psum_scatter": lambda x, **how: jax_uccl.psum_scatter(
        x, "b", scatter_dimension=1, tiled=True, **how
    ),
    "reduce_scatter": lambda x, **how: jax_uccl.reduce_scatter(
        x, "b", op="min", scatter_dimension=1, tiled=True, **how
    ),
    "reduce_scatter_mean": lambda x, **how: jax_uccl.reduce_scatter(
        x, "b", op="mean", scatter_dimension=1, tiled=True, **how
    ),
}
ORDER = re.compile(r"any_order = (\d)")


def _orders(f, mesh, x, check_vma):
    """The attribute of every custom call that reduces, in the text of `f`."""
    mapped = jax.shard_map(f, mesh=mesh, in_specs=BOTH, out_specs=P(), check_vma=False)
    if check_vma:
        mapped = jax.shard_map(
            lambda v: lax.psum(f(v).sum(), ("a", "b")), mesh=mesh, in_specs=BOTH, out_specs=P()
        )
    text = jax.jit(mapped).lower(x).as_text()
    calls = [
        line for line in text.splitlines() if re.search("@jax_uccl_(all_reduce|reduce_sc)", line)
    ]
    return {int(order) for line in calls for order in ORDER.findall(line)}, len(calls)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_order_of_a_reduction(name, mesh_of):
    mesh, x, call = mesh_of((2, 4), ("a", "b")), operand(), REDUCTIONS[name]
    for how, want in ({}, 0), ({"reduction": "ordered"}, 0), ({"reduction": "any"}, 1):
        assert _orders(lambda v, how=how: call(v, **how), mesh, x, False) == ({want}, 1)
        batched = lambda v, how=how: jax.vmap(lambda u: call(u, **how), 2, 2)(v)  # noqa: E731
        assert _orders(batched, mesh, x, False) == ({want}, 1)
    with pytest.raises(
        jax_uccl.UcclValueError, match="reduction='fast' is not one of ordered, any"
    ):
        _run(lambda v: call(v, reduction="fast"), mesh, x)


@pytest.mark.parametrize("check_vma", [False, True])
@pytest.mark.parametrize("name", ["psum", "pmean", "psum_scatter", "reduce_scatter_mean"])
def test_derivatives_keep_the_order(name, check_vma, mesh_of):
    mesh, x, call = mesh_of((2, 4), ("a", "b")), operand(), REDUCTIONS[name]
    for how, want in ({}, 0), ({"reduction": "any"}, 1):

        def loss(v, how=how):
            return (jnp.sin(call(v, **how)) ** 2).sum()

        def second(v, loss=loss):
            return jax.grad(lambda u: (jax.grad(loss)(u) ** 2).sum())(v)

        orders, calls = _orders(second, mesh, x, check_vma)
        assert orders == {want} and calls >= 2


def test_order_of_the_gradient_of_an_invariant_operand(mesh_of):
    """The sum that the cast of an invariant operand transposes to is as free as the one that it served."""
    mesh, w = mesh_of((2, 4), ("a", "b")), jnp.arange(8.0)

    def f(v, how):
        g = jax.grad(lambda u: (jax_uccl.psum(u, ("a", "b"), **how) ** 2).sum())(v)
        return g

    for how, want in ({}, 0), ({"reduction": "any"}, 1):
        mapped = jax.shard_map(lambda v, how=how: f(v, how), mesh=mesh, in_specs=P(), out_specs=P())
        orders = ORDER.findall(jax.jit(mapped).lower(w).as_text())
        assert set(orders) == {str(want)} and len(orders) == 2
