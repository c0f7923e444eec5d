"""Every collective in every kind of program equals its meaning in plain lax (tests/collective_cases.py)."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collective_cases import CASES, DIFFERENTIABLE, ROTATE, operand
from jax import export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_uccl
from jax_uccl._src.collectives import _reference

BOTH = P(("a", "b"))
MOVED = [name for name, case in CASES.items() if not case.reduces]
REDUCED = [name for name, case in CASES.items() if case.reduces and "pmean" not in name]
DTYPES = (
    "bool int8 uint16 int32 int64 float16 bfloat16 float64 complex64 float8_e4m3fn int4".split()
)


@pytest.fixture(params=list(CASES))
def name(request):
    """The collective under test."""
    return request.param


@pytest.fixture
def check(mesh_of, against_lax):
    """check(name, wrap, x=...): the case, inside `wrap(call)`, is what lax gives, unchecked types."""

    def run(name, wrap, x=None, **kwargs):
        call = CASES[name].call
        return against_lax(
            lambda m, v: wrap(partial(call, m))(v),
            operand() if x is None else x,
            mesh=mesh_of((2, 4), ("a", "b")),
            in_specs=kwargs.pop("in_specs", BOTH),
            out_specs=kwargs.pop("out_specs", BOTH),
            check_vma=kwargs.pop("check_vma", False),
            **kwargs,
        )

    return run


def _cubes(f):
    return lambda x: sum((leaf.astype(jnp.float32) ** 3).sum() for leaf in jax.tree.leaves(f(x)))


def test_plain(name, check):
    check(name, lambda f: f)


def test_checked_types(name, check):
    check(name, lambda f: f, check_vma=True, out_specs=P("a") if CASES[name].invariant else BOTH)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MOVED)
def test_moves_every_dtype(name, dtype, check):
    with jax.enable_x64():
        check(name, lambda f: f, operand(jnp.dtype(dtype)))


def test_moves_random_keys(mesh_of):
    """As their words, whose axis is behind all of the keys' own and not counted."""
    words = jnp.asarray(np.arange(2 * 4 * 4 * 3 * 2).reshape(8, 4, 3, 2), np.uint32)
    sizes = np.array([[1, 0, 2, 1], [0, 1, 1, 0], [1, 1, 0, 0], [0, 2, 1, 1]])
    calls = {
        "all_gather": lambda v, a: jax_uccl.all_gather(v, "b", axis=a),
        "all_gather_tiled": lambda v, a: jax_uccl.all_gather(v, "b", axis=a, tiled=True),
        "all_gather_nothing": lambda v, a: jax_uccl.all_gather(v[:, :0], "b", axis=a),
        "all_to_all": lambda v, a: jax_uccl.all_to_all(v, "b", 0, a),
        "ppermute": lambda v, a: jax_uccl.ppermute(v, "b", ROTATE[1:]),
        "pbroadcast": lambda v, a: jax_uccl.pbroadcast(v, "b", 2),
        "pbroadcast_array": lambda v, a: jax_uccl.pbroadcast(v, "b", jnp.asarray(2, np.int32)),
        "barrier": lambda v, a: jax_uccl.barrier(v, "b"),
        "ragged": lambda v, a: jax_uccl.ragged_all_to_all(
            v, v, *jax_uccl.ragged_offsets(sizes, jax.lax.axis_index("b")), axis_name="b"
        ),
        "vmap": lambda v, a: jax.vmap(lambda u: jax_uccl.all_gather(u, "b", axis=a))(v),
    }

    def body(v):
        v = v[0]
        keys = jax.random.wrap_key_data(v)
        on_keys = [jax.random.key_data(call(keys, -1)) for call in calls.values()]
        on_words = [call(v, -2) for call in calls.values()]
        return [[u[None] for u in part] for part in (on_keys, on_words)]

    f = jax.shard_map(
        body, mesh=mesh_of((2, 4), ("a", "b")), in_specs=BOTH, out_specs=BOTH, check_vma=False
    )
    for name, got, want in zip(calls, *jax.jit(f)(words), strict=True):
        np.testing.assert_array_equal(got, want, err_msg=name)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("name", REDUCED)
def test_reduces_dtypes(name, dtype, check):
    with jax.enable_x64():
        check(name, lambda f: f, operand(jnp.dtype(dtype)))


def test_vmap(name, check):
    check(name, lambda f: lambda x: jax.vmap(f)(jnp.stack([x, x + 1, 2 * x])).swapaxes(0, 1))


def test_vmap_over_a_middle_axis(name, check):
    def wrap(f):
        return lambda x: jax.vmap(f, in_axes=1, out_axes=1)(jnp.stack([x, x + 1, 2 * x], axis=1))

    check(name, wrap)


def test_vmap_around_shard_map(name, mesh_of, assert_same):
    mesh = mesh_of((2, 4), ("a", "b"))
    x = jnp.stack([operand(seed=s) for s in range(2)])

    def program(m, **kwargs):
        mapped = jax.shard_map(
            partial(CASES[name].call, m), mesh=mesh, in_specs=BOTH, out_specs=BOTH, check_vma=False
        )
        return jax.jit(jax.vmap(mapped, **kwargs))(x)

    assert_same(program(jax_uccl), program(_reference))


def test_spmd_axis_name(name, mesh_of, assert_same):
    mesh = mesh_of((2, 4), ("a", "b"))
    x = jnp.stack([operand(seed=s) for s in range(2)])

    def program(m):
        mapped = jax.shard_map(
            partial(CASES[name].call, m),
            mesh=mesh,
            in_specs=P("b"),
            out_specs=P("b"),
            check_vma=False,
        )
        return jax.jit(jax.vmap(mapped, spmd_axis_name="a"))(x)

    assert_same(program(jax_uccl), program(_reference))


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@pytest.mark.parametrize("check_vma", [False, True])
def test_grad(name, check_vma, check):
    check(name, lambda f: jax.grad(_cubes(f)), check_vma=check_vma, rtol=1e-6)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_jvp_and_second_derivative(name, check):
    def wrap(f):
        def both(x):
            _, tangent = jax.jvp(f, (x,), (jnp.cos(x),))
            _, second = jax.jvp(jax.grad(_cubes(f)), (x,), (jnp.sin(x),))
            return tangent, second

        return both

    check(name, wrap, rtol=1e-5)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_adjoint_identity(name, mesh_of):
    # <f(x), y> == <x, f^T(y)> over all members together.
    mesh = mesh_of((2, 4), ("a", "b"))
    call = partial(CASES[name].call, jax_uccl)
    if name in ("psum", "pmean"):
        pytest.skip("without checked types a sum is its own transpose, as in lax")

    def both(x):
        start = call(jnp.zeros_like(x))  # the constant part, if there is one
        y, pull = jax.vjp(lambda v: call(v) - start, x)
        w = jnp.arange(y.size, dtype=jnp.float32).reshape(y.shape) % 7 - 3
        return jnp.stack([(y * w).sum(), (x * pull(w)[0]).sum()])[None]

    mapped = jax.shard_map(both, mesh=mesh, in_specs=BOTH, out_specs=BOTH, check_vma=False)
    left, right = np.asarray(jax.jit(mapped)(operand())).sum(0)
    assert left == pytest.approx(right, rel=1e-6)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_remat_scan_grad(name, check):
    def wrap(f):
        def loss(x):
            def step(carry, _):
                y = jax.checkpoint(f)(carry)
                return carry * 0.5 + sum(leaf.sum() for leaf in jax.tree.leaves(y)) * 1e-3, None

            return (jax.lax.scan(step, x, None, length=3)[0] ** 2).sum()

        return jax.grad(loss)

    check(name, wrap, rtol=1e-5)


def test_while_and_cond(name, check):
    def wrap(f):
        def program(x):
            # A trip count that is data, alike on all members.
            def body(carry):
                i, acc = carry
                new = jax.lax.cond(i % 2 == 0, f, lambda v: f(v + 1), acc)
                return i + 1, acc + jax.tree.leaves(new)[0].ravel()[0]

            return jax.lax.while_loop(lambda c: c[0] < 3, body, (0, x))[1]

        return program

    check(name, wrap)


def test_called_many_times_at_once(name, check):
    def wrap(f):
        inner = jax.jit(f)
        return lambda x: jnp.stack([inner(x + i) for i in range(6)], axis=1)

    check(name, wrap)


def test_strict_order(name, check):
    with jax_uccl.strict_order():
        check(name, lambda f: lambda x: (f(x), f(x + 1)))


def test_eval_shape_needs_no_runtime(name, mesh_of):
    mesh = jax.sharding.AbstractMesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    shapes = [
        jax.eval_shape(
            jax.shard_map(
                partial(CASES[name].call, m),
                mesh=mesh,
                in_specs=BOTH,
                out_specs=BOTH,
                check_vma=False,
            ),
            jax.ShapeDtypeStruct((16, 24, 8), np.float32),
        )
        for m in (jax_uccl, _reference)
    ]
    assert shapes[0] == shapes[1]


def test_ahead_of_time_and_export(name, mesh_of, assert_same):
    mesh = mesh_of((2, 4), ("a", "b"))
    mapped = jax.shard_map(
        partial(CASES[name].call, jax_uccl),
        mesh=mesh,
        in_specs=BOTH,
        out_specs=BOTH,
        check_vma=False,
    )
    sharding = NamedSharding(mesh, BOTH)
    x = jax.device_put(operand(), sharding)
    f = jax.jit(mapped, in_shardings=sharding, out_shardings=sharding)
    want = f(x)
    assert_same(f.lower(x).compile()(x), want)
    kinds = ["all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "permute"]
    kinds += ["ragged_all_to_all", "reduce_scatter"]
    checks = [export.DisabledSafetyCheck.custom_call(f"jax_uccl_{kind}") for kind in kinds]
    exported = export.export(f, disabled_checks=checks)(x)
    again = export.deserialize(exported.serialize())
    assert_same(jax.jit(again.call)(x), want)


EXPLICIT = {
    "all_gather": lambda m, x: m.all_gather(x, "b", axis=2, tiled=True),
    "all_to_all": lambda m, x: m.all_to_all(x, "b", 2, 3, tiled=True),
    "pmax": lambda m, x: m.pmax(x, "b"),
    "ppermute": lambda m, x: m.ppermute(x, "b", ROTATE),
    "psum_scatter": lambda m, x: m.psum_scatter(x, "b", scatter_dimension=2, tiled=True),
}


@pytest.mark.parametrize("explicit", list(EXPLICIT))
def test_explicit_axes_beside_manual_ones(explicit, mesh_of):
    # "a" shards the first axis and stays out of the mapped function.
    mesh = mesh_of((2, 4), ("a", "b"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        x = jnp.stack([operand(seed=s) for s in range(4)])
        x = jax.device_put(x, NamedSharding(mesh, P("a", "b")))

        mapped = jax.shard_map(
            partial(EXPLICIT[explicit], jax_uccl),
            in_specs=P(None, "b"),
            out_specs=P(None, "b"),
            axis_names={"b"},
            check_vma=False,
        )
        ours = jax.jit(mapped).lower(x).compile()
        got = np.asarray(ours(x))
    assert "jax_uccl_" in ours.as_text()
    for native in ("all-to-all", "collective-permute", "reduce-scatter", "all-reduce"):
        assert f" {native}(" not in ours.as_text()
    auto = jax.shard_map(
        partial(EXPLICIT[explicit], _reference),
        mesh=mesh_of((2, 4), ("a", "b")),
        in_specs=P("a", "b"),
        out_specs=P("a", "b"),
        check_vma=False,
    )
    np.testing.assert_array_equal(got, np.asarray(jax.jit(auto)(np.asarray(x))))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("all_gather", (8, 0, 4)),
        ("all_gather_tiled", (8, 0, 4)),
        ("ppermute", (8, 4, 0)),
        ("pbroadcast", (8, 0, 4)),
        ("psum_scatter_tiled", (8, 0, 4)),
        ("barrier", (8, 0, 4)),
    ],
)
def test_zero_sized(name, shape, check):
    check(name, lambda f: f, jnp.zeros(shape, jnp.float32))


def test_large_operands(mesh_of, against_lax):
    """5 MB on each device: huge pages, copies past the caches, reductions shared among threads."""

    def program(m, x):
        return (
            m.psum(x, "b"),
            m.psum_scatter(x, "b", scatter_dimension=1, tiled=True),
            m.all_to_all(x, "b", 1, 1, tiled=True),
            m.all_gather(x[:, ::3], "b", axis=1, tiled=True),
            m.ppermute(x, "b", ROTATE[:-1]),
        )

    # Whole numbers, whose sums are exact in any order.
    x = np.random.default_rng(0).integers(-99, 99, (8, 4 * 330_001)).astype(np.float32)
    mesh = mesh_of((2, 4), ("a", "b"))
    against_lax(program, x, mesh=mesh, in_specs=BOTH, out_specs=BOTH, check_vma=False)


def test_several_axes_and_order(mesh_of, against_lax):
    def program(m, x):
        return (
            m.all_gather(x, ("b", "a"), axis=1, tiled=True),
            m.psum_scatter(x, ("b", "a"), scatter_dimension=2, tiled=True),
            m.ppermute(x, ("a", "b"), [(i, (i + 3) % 8) for i in range(8)]),
            m.pbroadcast(x, ("a", "b"), 5),
        )

    mesh = mesh_of((2, 4), ("a", "b"))
    against_lax(program, operand(), mesh=mesh, in_specs=BOTH, out_specs=BOTH, check_vma=False)


def test_ppermute_over_axes_in_another_order(mesh_of, against_lax):
    """Older JAX counts members in the order of the mesh, newer refuses, or counts in the order given."""
    mesh = mesh_of((2, 4), ("a", "b"))
    pairs = [(i, (i + 3) % 8) for i in range(8)]

    def program(m, x):
        return [m.ppermute(x, names, pairs) for names in (("a", "b"), ("b", "a"))]

    flag = "jax_raise_on_ppermute_sort_diff"
    refuses = hasattr(jax.config, flag)
    if refuses:
        jax.config.update(flag, False)
    try:
        one, other = against_lax(program, operand(), mesh=mesh, in_specs=BOTH, out_specs=BOTH)
    finally:
        if refuses:
            jax.config.update(flag, True)
    assert np.array_equal(np.asarray(one), np.asarray(other)) != refuses
    if refuses:
        mapped = jax.shard_map(partial(program, jax_uccl), mesh=mesh, in_specs=BOTH, out_specs=BOTH)
        with pytest.raises(RuntimeError, match=r"got \('b', 'a'\), the mesh has \('a', 'b'\)"):
            jax.jit(mapped).lower(operand())


def test_ppermute_refuses_an_iterator(mesh_of):
    """The second trace of a program would find it empty, and send nothing."""
    mapped = jax.shard_map(
        lambda x: jax_uccl.ppermute(x, "b", zip([0, 1], [1, 0], strict=True)),
        mesh=mesh_of((2, 4), ("a", "b")),
        in_specs=BOTH,
        out_specs=BOTH,
    )
    with pytest.raises(TypeError, match="must be a list or a tuple"):
        jax.eval_shape(mapped, operand())


def test_groups(mesh_of, against_lax):
    groups = [[0, 3], [2, 1]]

    def program(m, x):
        return (
            m.all_gather(x, "b", axis_index_groups=groups),
            m.psum_scatter(x, "b", scatter_dimension=1, axis_index_groups=groups, tiled=True),
            m.pmax(x, "b", axis_index_groups=groups),
        )

    mesh = mesh_of((2, 4), ("a", "b"))
    against_lax(program, operand(), mesh=mesh, in_specs=BOTH, out_specs=BOTH, check_vma=False)


def test_axis_of_one_member(mesh_of, against_lax):
    def program(m, x):
        return (
            m.all_gather(x, "one"),
            m.psum_scatter(x[None], "one"),
            m.ppermute(x, "one", [(0, 0)]),
            m.ppermute(x, "one", []),
            m.pbroadcast(x, "one", 0),
            m.barrier(x, "one"),
        )

    mesh = mesh_of((1, 4), ("one", "b"))
    against_lax(program, operand(), mesh=mesh, in_specs=P("b"), out_specs=P("b"), check_vma=False)


def test_pytrees_and_scalars(mesh_of, against_lax):
    def program(m, x):
        tree = {"x": x, "n": jnp.float32(2.0) * jax.lax.axis_index("b")}
        gathered = m.all_gather(tree, "b")
        moved = m.ppermute(tree, "b", ROTATE)
        return gathered["x"], gathered["n"][None], moved["x"], moved["n"][None]

    mesh = mesh_of((2, 4), ("a", "b"))
    against_lax(program, operand(), mesh=mesh, in_specs=BOTH, out_specs=BOTH, check_vma=False)


@pytest.mark.parametrize("name", ["all_gather", "psum_scatter_tiled", "pshuffle", "pbroadcast"])
def test_vmap_over_the_named_axis(name, assert_same):
    x = jnp.arange(4 * 8 * 24 * 8, dtype=jnp.float32).reshape(4, 8, 24, 8)

    def program(m):
        return jax.vmap(partial(CASES[name].call, m), axis_name="b")(x)

    assert_same(program(jax_uccl), program(_reference))


def test_vmap_over_one_of_two_named_axes(mesh_of):
    # lax does not take this.
    x = operand()

    def body(x):
        return (
            jax_uccl.all_gather(x, ("a", "v", "b"), axis=1, tiled=True),
            jax_uccl.psum_scatter(x, ("b", "v"), scatter_dimension=0, tiled=True),
            jax_uccl.pbroadcast(x, ("v", "b"), 3),
        )

    mesh2 = mesh_of((2, 4), ("a", "b"))
    inner = jax.vmap(body, axis_name="v", in_axes=0, out_axes=0)
    got = jax.jit(
        jax.shard_map(
            inner,
            mesh=mesh2,
            in_specs=P(None, None, "b"),
            out_specs=P(None, None, "b"),
            check_vma=False,
        )
    )(x[:2])
    # By hand: member (v) holds x[v]; over "b" the last axis is split in four.
    parts = np.asarray(x[:2]).reshape(2, 24, 4, 2)
    gathered = np.concatenate(
        [parts[v, :, b] for _ in range(2) for v in range(2) for b in range(4)], axis=1
    )
    assert got[0].shape == (2, 24, 32 * 4)
    np.testing.assert_array_equal(np.asarray(got[0])[0, :, :32], gathered)
    # Part (b, v) of the sum over both is what member (b, v) keeps.
    total = parts.sum((0, 2)).reshape(4, 2, 3, 2)
    kept = np.asarray(got[1]).reshape(2, 3, 4, 2)
    np.testing.assert_array_equal(kept, total.transpose(1, 2, 0, 3))
    np.testing.assert_array_equal(np.asarray(got[2])[1, :, :2], parts[0, :, 3])


def test_bad_arguments(mesh_of):
    mesh = mesh_of((2, 4), ("a", "b"))
    x = operand()

    def fails(f, error, match):
        with pytest.raises(error, match=match):
            jax.jit(jax.shard_map(f, mesh=mesh, in_specs=BOTH, out_specs=BOTH))(x)

    u = jax_uccl
    fails(lambda v: u.all_gather(v, "b", axis=5), ValueError, "axis 5 is out of bounds")
    fails(lambda v: u.all_gather(v, "b", to="up"), ValueError, "'varying', 'invarying', 'reduced'")
    fails(lambda v: u.all_gather(v, "z"), NameError, "unbound axis name: z")
    fails(
        lambda v: u.all_gather(v, "b", axis_index_groups=[[0], [1, 2, 3]]),
        ValueError,
        "equally sized",
    )
    fails(lambda v: u.psum_scatter(v, "b"), ValueError, "must match shard count 4.*tiled=True")
    fails(
        lambda v: u.psum_scatter(v[:, :3], "b", scatter_dimension=1, tiled=True),
        ValueError,
        "divisible by shard_count 4",
    )
    fails(lambda v: u.reduce_scatter(v, "b", op="xor"), u.UcclValueError, "op='xor' is not one of")
    fails(
        lambda v: u.psum_scatter(v.astype(jnp.float8_e4m3fn), "b", scatter_dimension=2, tiled=True),
        u.UnsupportedError,
        "wider dtype",
    )
    fails(lambda v: u.ppermute(v, "b", [(0, 4)]), ValueError, "destination indices must be in 0..3")
    fails(lambda v: u.ppermute(v, "b", [(0, 1), (0, 2)]), ValueError, "must be unique")
    fails(lambda v: u.pshuffle(v, "b", [0, 0, 1, 2]), ValueError, "not represent a permutation")
    fails(lambda v: u.pbroadcast(v, "b", 4), ValueError, "source=4 is not an index")
    fails(
        lambda v: jax.grad(
            lambda w: u.reduce_scatter(w, "b", op="max", scatter_dimension=2, tiled=True).sum()
        )(v),
        NotImplementedError,
        "has no derivative",
    )


def test_gathered_result_typed_as_invariant(mesh_of):
    mesh = mesh_of((2, 4), ("a", "b"))
    x = operand()

    def gather(v):
        return jax_uccl.all_gather(v, ("a", "b"), tiled=True, to="invarying")

    mapped = jax.shard_map(gather, mesh=mesh, in_specs=BOTH, out_specs=P())
    np.testing.assert_array_equal(np.asarray(jax.jit(mapped)(x)), np.asarray(x))
    g = jax.jit(jax.grad(lambda v: (mapped(v) ** 2).sum()))
    np.testing.assert_array_equal(np.asarray(g(x)), 2 * np.asarray(x))
    assert g.lower(x).compile().as_text().count('custom_call_target="jax_uccl_') <= 1
