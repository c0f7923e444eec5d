"""jax_uccl.sharded: collectives under plain jit; no collective of XLA's appears around ours."""

from __future__ import annotations

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_uccl
from jax_uccl import sharded

NATIVE = re.compile(
    r" (all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute)(?:-start)?\("
)
SPEC = P("e", "d")
X = np.arange(16 * 24 * 8, dtype=np.float32).reshape(16, 24, 8) % 11 - 5
BLOCKS = X.reshape(4, 4, 24, 8)
ROTATE = [(0, 1), (1, 2), (3, 0)]


def _moved():
    want = np.zeros_like(BLOCKS)
    for s, t in ROTATE:
        want[t] = BLOCKS[s]
    return want.reshape(X.shape)


# Rows from each block to each; member 2 sends nothing, member 1 gets nothing.
SIZES = np.array([[1, 0, 2, 1], [2, 0, 0, 1], [0, 0, 0, 0], [0, 0, 1, 1]])
STARTS, LANDS = np.cumsum(SIZES, 1) - SIZES, np.cumsum(SIZES, 0) - SIZES


def _ragged(x, **how):
    vectors = (STARTS, SIZES, LANDS, SIZES.T)
    return sharded.ragged_all_to_all(x, x * 2, *vectors, axis_name="e", **how)


def _exchanged():
    want = 2 * BLOCKS
    for s in range(4):
        for t in range(4):
            a, b, k = STARTS[s, t], LANDS[s, t], SIZES[s, t]
            want[t, b : b + k] = BLOCKS[s, a : a + k]
    return want.reshape(X.shape)


# call, what it gives, the spec of the result; differentiable.
CASES = {
    "psum": (partial(sharded.psum, axis_name="e"), BLOCKS.sum(0), P(None, "d"), True),
    "pmean": (partial(sharded.pmean, axis_name="e"), BLOCKS.mean(0), P(None, "d"), True),
    "pmax": (partial(sharded.pmax, axis_name="e"), BLOCKS.max(0), P(None, "d"), False),
    "pmin": (partial(sharded.pmin, axis_name="e"), BLOCKS.min(0), P(None, "d"), False),
    "prod": (
        partial(sharded.all_reduce, axis_name="e", op="prod"),
        BLOCKS.prod(0),
        P(None, "d"),
        False,
    ),
    "all_gather": (partial(sharded.all_gather, axis_name="e"), X, P(None, "d"), True),
    "all_to_all": (
        partial(sharded.all_to_all, axis_name="e", split_axis=2, concat_axis=0),
        X,
        P(None, "d", "e"),
        True,
    ),
    "psum_scatter": (
        partial(sharded.psum_scatter, axis_name="e", scatter_dimension=1),
        BLOCKS.sum(0),
        P(None, ("d", "e")),
        True,
    ),
    "reduce_scatter": (
        partial(sharded.reduce_scatter, axis_name="e", op="max", scatter_dimension=2),
        BLOCKS.max(0),
        P(None, "d", "e"),
        False,
    ),
    "ppermute": (partial(sharded.ppermute, axis_name="e", perm=ROTATE), _moved(), SPEC, True),
    "pbroadcast": (
        partial(sharded.pbroadcast, axis_name="e", source=2),
        np.tile(BLOCKS[2], (4, 1, 1)),
        SPEC,
        True,
    ),
    "pbroadcast_from_array": (
        lambda x, **how: sharded.pbroadcast(x, "e", jnp.int32(2), **how),
        np.tile(BLOCKS[2], (4, 1, 1)),
        SPEC,
        True,
    ),
    "psum_any_order": (
        partial(sharded.psum, axis_name="e", reduction="any"),
        BLOCKS.sum(0),
        P(None, "d"),
        True,
    ),
    "ragged_all_to_all": (_ragged, _exchanged(), SPEC, True),
}


@pytest.fixture(params=["auto", "explicit"])
def kind(request):
    """Kind of the mesh axes."""
    return request.param


@pytest.fixture(params=[True, False], ids=["shardy", "gspmd"])
def partitioner(request):
    """Both of XLA's partitioners."""
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", request.param)
    yield request.param
    jax.config.update("jax_use_shardy_partitioner", before)


def _mesh(mesh_of, kind):
    types = AxisType.Explicit if kind == "explicit" else AxisType.Auto
    return mesh_of((2, 4), ("d", "e"), axis_types=(types,) * 2)


def _same_spec(a, b):
    strip = lambda spec: [p for p in spec] + [None] * (3 - len(spec))  # noqa: E731
    return [
        q if not isinstance(q, tuple) or len(q) > 1 else (q or (None,))[0] for q in strip(a)
    ] == strip(b)


@pytest.mark.parametrize("name", list(CASES))
def test_values_sharding_and_program(name, kind, partitioner, mesh_of):
    call, want, out_spec, differentiable = CASES[name]
    mesh = _mesh(mesh_of, kind)
    with jax.set_mesh(mesh):
        x = jax.device_put(X, NamedSharding(mesh, SPEC))
        spec = {} if kind == "explicit" else {"spec": SPEC}
        f = jax.jit(lambda v: call(v * 1.0, **spec))
        program = f.lower(x).compile()
        got = program(x)
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-6)
        assert _same_spec(got.sharding.spec, out_spec), got.sharding.spec
        assert "jax_uccl_" in program.as_text()
        assert not NATIVE.findall(program.as_text())
        if not differentiable:
            return
        weights = jnp.asarray(np.random.default_rng(1).normal(size=want.shape), jnp.float32)
        weights = jax.device_put(weights, NamedSharding(mesh, out_spec))
        # The inner product is local up to XLA's own sum of the scalar, so ask for the pull-back alone.
        pull = jax.jit(lambda v, w: jax.vjp(lambda u: call(u, **spec), v)[1](w)[0])
        backward = pull.lower(x, weights).compile()
        cotangent = np.asarray(backward(x, weights))
        left = (want.astype(np.float64) * np.asarray(weights)).sum()
        assert left == pytest.approx((X.astype(np.float64) * cotangent).sum(), rel=1e-4)
        assert not NATIVE.findall(backward.as_text())


def test_concrete_array_needs_nothing(mesh_of):
    mesh = _mesh(mesh_of, "auto")
    x = jax.device_put(X, NamedSharding(mesh, SPEC))
    np.testing.assert_array_equal(np.asarray(sharded.psum(x, "e")), BLOCKS.sum(0))


def test_both_axes_at_once(mesh_of):
    mesh = _mesh(mesh_of, "auto")
    got = jax.jit(lambda v: sharded.psum(v, ("d", "e"), spec=SPEC, mesh=mesh))(X)
    want = X.reshape(4, 4, 2, 12, 8).sum((0, 2))
    np.testing.assert_array_equal(np.asarray(got), want)


def test_errors_say_the_fix(mesh_of):
    mesh = _mesh(mesh_of, "auto")

    def fails(match, f):
        with pytest.raises(jax_uccl.UcclValueError, match=match):
            jax.jit(f)(X)

    fails("jax.set_mesh", lambda v: sharded.psum(v, "e", spec=SPEC))
    fails("needs spec=", lambda v: sharded.psum(v, "e", mesh=mesh))
    fails("not axes of the mesh", lambda v: sharded.psum(v, "z", spec=SPEC, mesh=mesh))
    fails("does not divide", lambda v: sharded.psum(v, "e", spec=P("d"), mesh=mesh))
    fails("more axes than", lambda v: sharded.psum(v, "e", spec=P(*"edxy"), mesh=mesh))
    fails(".'q'. are not axes", lambda v: sharded.psum(v, "e", spec=P("e", "q"), mesh=mesh))
    fails("write P.'e'.", lambda v: sharded.psum(v, "e", spec="e", mesh=mesh))
    fails("one array, got dict", lambda v: sharded.psum({"a": v}, "e", spec=P("e"), mesh=mesh))
    fails("size 5, which the 4", lambda v: sharded.psum(v[:5], "e", spec=P("e"), mesh=mesh))
    fails("must be divided", lambda v: sharded.all_gather(v, "e", axis=1, spec=SPEC, mesh=mesh))
    fails(
        "divided along .'d',. already",
        lambda v: sharded.all_to_all(v, "e", 1, 0, spec=SPEC, mesh=mesh),
    )
    bad = np.zeros((4, 3), int)
    fails(
        "must be .4, 4.",
        lambda v: sharded.ragged_all_to_all(v, v, *[bad] * 4, axis_name="e", spec=SPEC, mesh=mesh),
    )
    fails(
        "rows .axis 0. must be divided",
        lambda v: sharded.ragged_all_to_all(v, v, *[bad] * 4, axis_name="d", spec=SPEC, mesh=mesh),
    )
    inside = jax.shard_map(lambda v: sharded.psum(v, "e"), mesh=mesh, in_specs=SPEC, out_specs=SPEC)
    fails("call jax_uccl.psum", inside)
