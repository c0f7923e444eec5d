"""Collectives inside a shard_map that leaves another mesh axis automatic: XLA divides the calls along it, and puts no
collective of its own around them."""

from __future__ import annotations

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collective_cases import CASES, operand
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_uccl
from jax_uccl import moe

NATIVE = re.compile(
    r" (all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute)(?:-start)?\("
)
# The axis of the array that the automatic mesh axis "a" divides. All calls leave axis 0 alone, but barrier's case
# takes an element of it; some leave axis 2 alone, too.
ALONG = {
    **{name: P(("b", "a")) for name in CASES if name != "barrier"},
    "barrier": P("b", None, "a"),
}
ALONG_LAST = ["all_gather", "pmax", "ppermute_partial", "psum", "psum_scatter", "pbroadcast"]


def _mapped(name, mesh, collectives=jax_uccl):
    call = partial(CASES[name].call, collectives)
    specs = dict(in_specs=P("b"), out_specs=P("b"), axis_names={"b"}, check_vma=False)
    return jax.shard_map(lambda v: call(v * 2) + 1, mesh=mesh, **specs)


def _checked(program, x, *more):
    """What the compiled program gives; it holds calls of ours on parts and nothing of XLA's."""
    compiled = jax.jit(program).lower(x, *more).compile()
    text = compiled.as_text()
    assert "jax_uccl_" in text and "jax_uccl_auto" not in text
    assert not NATIVE.findall(text)
    return compiled(x, *more)


@pytest.mark.parametrize(
    ("name", "spec"),
    [*ALONG.items(), *((name, P("b", None, "a")) for name in ALONG_LAST)],
)
def test_nothing_is_gathered(name, spec, mesh_of):
    mesh, alone = mesh_of((2, 4), ("a", "b")), mesh_of((4,), ("b",))
    x = jax.device_put(operand(), NamedSharding(mesh, spec))
    want = jax.jit(_mapped(name, alone))(operand())
    got = _checked(_mapped(name, mesh), x)
    np.testing.assert_array_equal(np.asarray(got), np.asarray(want))
    if not CASES[name].differentiable:
        return
    pull = lambda f, v, w: jax.vjp(f, v)[1](w)[0]  # noqa: E731
    w = jnp.cos(jnp.arange(want.size, dtype=want.dtype)).reshape(want.shape)
    back = jax.jit(partial(pull, _mapped(name, alone)))(operand(), w)
    # A cotangent that is divided as the result is.
    w = jax.device_put(w, got.sharding)
    got = _checked(partial(pull, _mapped(name, mesh)), x, w)
    np.testing.assert_allclose(np.asarray(got), np.asarray(back), rtol=1e-6)


@pytest.mark.parametrize("name", ["psum", "all_to_all", "all_gather_tiled"])
def test_checked_types(name, mesh_of):
    mesh = mesh_of((2, 4), ("a", "b"))
    x = jax.device_put(operand(), NamedSharding(mesh, P(("b", "a"))))
    case = CASES[name]
    out = P() if case.invariant else P("b")
    f = jax.shard_map(
        lambda v: case.call(jax_uccl, v * 2),
        mesh=mesh,
        in_specs=P("b"),
        out_specs=out,
        axis_names={"b"},
    )
    _checked(f, x)


def test_dimensions_that_the_call_runs_along_are_gathered(mesh_of):
    """The values are right whatever is divided; only what cannot stay divided is gathered."""
    mesh, alone = mesh_of((2, 4), ("a", "b")), mesh_of((4,), ("b",))
    for name in ("all_to_all", "psum_scatter_tiled", "ragged_all_to_all", "all_gather_tiled"):
        for spec in (P("b", "a"), P("b", None, "a"), P("b")):
            x = jax.device_put(operand(), NamedSharding(mesh, spec))
            got = jax.jit(_mapped(name, mesh))(x)
            np.testing.assert_array_equal(got, jax.jit(_mapped(name, alone))(operand()))


def test_uneven_parts(mesh_of):
    """Parts are padded where a dimension is no multiple of the automatic axis."""
    mesh, alone = mesh_of((2, 2), ("a", "b")), mesh_of((2,), ("b",))
    x = jnp.arange(4 * 5 * 3, dtype=jnp.float32).reshape(4, 5, 3)

    def f(v, constrain):
        y = jax.lax.with_sharding_constraint(v, P(None, "a")) if constrain else v
        return jax_uccl.psum(y, "b") + jax_uccl.all_to_all(y, "b", 0, 0, tiled=True)

    def program(m, constrain):
        specs = dict(in_specs=P("b"), out_specs=P("b"), axis_names={"b"}, check_vma=False)
        return jax.jit(jax.shard_map(partial(f, constrain=constrain), mesh=m, **specs))

    with jax.set_mesh(mesh):
        got = program(mesh, True)(x)
    np.testing.assert_array_equal(np.asarray(got), np.asarray(program(alone, False)(x)))


def test_two_automatic_axes(mesh_of):
    mesh, alone = mesh_of((2, 2, 2), ("a", "b", "c")), mesh_of((2,), ("b",))
    x = jax.device_put(operand(), NamedSharding(mesh, P("b", "a", "c")))
    f = lambda v: jax_uccl.psum_scatter(v * 2, "b", scatter_dimension=0, tiled=True)  # noqa: E731
    specs = dict(in_specs=P("b"), out_specs=P("b"), axis_names={"b"}, check_vma=False)
    got = _checked(jax.shard_map(f, mesh=mesh, **specs), x)
    want = jax.jit(jax.shard_map(f, mesh=alone, **specs))(operand())
    np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


def _moe_layer(x, idx, w, factor, **options):
    d = moe.dispatch(x, idx, w, num_experts=8, axis_name="b", **options)
    gate = d.weights if d.weights.ndim == 1 else d.weights.sum(1)
    y = d.tokens**2 * gate[:, None] * factor
    return moe.combine(y, d.handle)


def _moe_inputs(tokens=20, hidden=12):
    rng = np.random.default_rng(0)
    idx = np.argsort(rng.random((tokens, 8)))[:, :3].astype(np.int32)
    idx[rng.random(idx.shape) < 0.2] = -1
    x = rng.normal(size=(tokens, hidden)).astype(np.float32)
    return x, idx, rng.random((tokens, 3)).astype(np.float32)


@pytest.mark.parametrize(
    "options",
    [
        dict(layout="rank_major"),
        dict(layout="expert_major", capacity=12, on_overflow="drop"),
        dict(layout="expert_major", mode="low_latency"),
        dict(layout="rank_major", hosts=2),
    ],
    ids=["rank_major", "expert_major", "low_latency", "two_level"],
)
def test_moe_divides_the_width_of_rows(options, mesh_of):
    """A call on one rank's rows is divided as well, forward and backward; numbering looks at whole arrays."""
    mesh, alone = mesh_of((2, 4), ("a", "b")), mesh_of((4,), ("b",))
    x, idx, w = _moe_inputs()

    def program(m):
        specs = (P("b"), P("b"), P("b"), P())
        layer = partial(_moe_layer, **options)
        return jax.shard_map(
            layer, mesh=m, in_specs=specs, out_specs=P("b"), axis_names={"b"}, check_vma=False
        )

    put = lambda v, spec: jax.device_put(v, NamedSharding(mesh, spec))  # noqa: E731
    wide = P("b", "a")
    factor = np.arange(12, dtype=np.float32)
    placed = [put(x, wide), put(idx, P("b")), put(w, P("b")), put(factor, P("a"))]
    got = _checked(program(mesh), *placed)
    want = jax.jit(program(alone))(x, idx, w, factor)
    np.testing.assert_array_equal(np.asarray(got), np.asarray(want))
    assert got.sharding.is_equivalent_to(NamedSharding(mesh, wide), 2)

    def pull(m):
        return lambda x, idx, w, factor, ct: jax.vjp(lambda x: program(m)(x, idx, w, factor), x)[1](
            ct
        )[0]

    ct = np.cos(np.asarray(want))
    back = jax.jit(pull(alone))(x, idx, w, factor, ct)
    got = _checked(pull(mesh), *placed, put(ct, wide))
    np.testing.assert_array_equal(np.asarray(got), np.asarray(back))


@pytest.mark.parametrize("spec", [P("b", "a"), P(("b", "a"))])
def test_moe_is_right_where_rows_are_gathered(spec, mesh_of):
    """8-bit rows want all of their channels, and a divided leading dimension all tokens."""
    mesh, alone = mesh_of((2, 4), ("a", "b")), mesh_of((4,), ("b",))
    x, idx, w = _moe_inputs(24, 256)

    def program(m):
        layer = partial(_moe_layer, factor=1.0, quantize="fp8", on_overflow="error", capacity=30)
        specs = dict(in_specs=P("b"), out_specs=P("b"), axis_names={"b"}, check_vma=False)
        return jax.jit(jax.shard_map(layer, mesh=m, **specs))

    got = program(mesh)(jax.device_put(x, NamedSharding(mesh, spec)), idx, w)
    np.testing.assert_array_equal(np.asarray(got), np.asarray(program(alone)(x, idx, w)))


def test_text_is_the_same_every_time(mesh_of):
    """No pointer or counter, so that a second process finds the program in the cache."""
    mesh, x = mesh_of((2, 4), ("a", "b")), operand()
    texts = {jax.jit(_mapped("all_to_all", mesh)).lower(x).as_text() for _ in range(2)}
    assert len(texts) == 1 and "jax_uccl_auto_all_to_all" in texts.pop()


def test_what_xla_cannot_divide_is_refused_in_words(mesh_of):
    """Either would end the process inside XLA."""
    mesh, x = mesh_of((2, 4), ("a", "b")), operand()
    with jax_uccl.strict_order(), pytest.raises(jax_uccl.UnsupportedError, match="Map all axes"):
        jax.jit(_mapped("psum", mesh)).lower(x)
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        with pytest.raises(jax_uccl.UnsupportedError, match="Shardy partitioner"):
            jax.jit(_mapped("psum", mesh)).lower(x)
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)
