"""jax_uccl.psum and all_reduce against jax.lax and NumPy: values, dtypes, groups, vmap, arguments."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jax_uccl
from jax_uccl._src.collectives import _reference

NUMPY = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}


def values(*shape, dtype=np.float32, seed=0):
    """Small integers: sums are exact in every dtype and order."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


MESHES = [
    ((8,), ("x",), None, "x"),
    ((8,), ("x",), [7, 6, 5, 4, 3, 2, 1, 0], ("x",)),
    ((4,), ("x",), [2, 7, 3, 5], "x"),
    ((3,), ("x",), [5, 6, 7], "x"),
    ((1,), ("x",), [3], "x"),
    ((2, 4), ("x", "y"), [3, 1, 4, 0, 5, 7, 2, 6], "x"),
    ((2, 4), ("x", "y"), None, ("y", "x")),
    ((2, 2, 2), ("x", "y", "z"), None, ("z", "x")),
    ((2, 2, 2), ("x", "y", "z"), [3, 1, 4, 0, 5, 7, 2, 6], ["y", "x", "z"]),
]


def all_ops(collectives, x, axis):
    """Every reduction that lax has, on operands that are and are not varying."""
    return {
        "psum": collectives.psum(x, axis),
        "pytree": collectives.psum({"a": [x, x * 2], "b": None}, axis),
        "scalar": collectives.psum(jnp.sum(x), axis),
        "invariant": collectives.psum(jnp.ones(3), axis),
        "bool": collectives.psum(x > 0, axis),
        **{op: collectives.all_reduce(x, axis, op=op) for op in ("sum", "mean", "max", "min")},
    }


@pytest.mark.parametrize("shape, names, order, axis", MESHES)
def test_meshes(mesh_of, against_lax, shape, names, order, axis):
    reduced = (axis,) if isinstance(axis, str) else tuple(axis)
    mesh = mesh_of(shape, names, order)
    rest = tuple(n for n in names if n not in reduced)
    x = values(mesh.size * 3, 5)
    out = against_lax(
        lambda c, x: jax.tree.map(lambda y: y.reshape(1, -1), all_ops(c, x, axis)),
        x,
        mesh=mesh,
        in_specs=P(names),
        out_specs=P(rest or None),
    )
    # NumPy, to be sure that lax is asked the right question.
    blocks = x.reshape(*shape, -1).sum(tuple(names.index(n) for n in reduced))
    np.testing.assert_array_equal(np.asarray(out["psum"]).ravel(), blocks.ravel())


def test_unchecked_types(mesh_of, against_lax):
    against_lax(
        lambda c, x: jax.tree.map(lambda y: y.reshape(1, -1), all_ops(c, x, ("y", "x"))),
        values(16, 4),
        mesh=mesh_of((2, 4), ("x", "y")),
        in_specs=P(("x", "y")),
        out_specs=P(("x", "y")),
        check_vma=False,
    )


def test_constants_are_folded(mesh_of):
    """Values that are not traced are multiplied, as lax does, and keep their kind."""

    def f(x):
        for value in (1, 2.5, 1j, np.float32(3), np.arange(3)):
            got, want = jax_uccl.psum(value, ("x", "y")), lax.psum(value, ("x", "y"))
            assert type(got) is type(want)
            np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(jax_uccl.psum(np.array([True, False]), "x"), [2, 0])
        assert jax_uccl.psum(True, "x") == 2
        assert jax_uccl.psum(1, "x") == 2
        assert jax_uccl.psum(1, "y", axis_index_groups=[[0, 1], [2, 3]]) == 2
        assert jax_uccl.psum(x, ()) is x
        return x * jax_uccl.psum(1, ("x", "y"))

    mapped = jax.shard_map(f, mesh=mesh_of((2, 4), ("x", "y")), in_specs=P("x"), out_specs=P("x"))
    text = jax.jit(mapped).lower(values(4)).as_text()
    assert "jax_uccl" not in text and "all_reduce" not in text


@pytest.mark.parametrize("op", ["sum", "mean", "max", "min", "prod", "and", "or"])
def test_all_reduce_dtypes(mesh_of, op):
    """Every dtype that the reduction takes, against NumPy; the others are refused in words."""
    floats = ("float16", "bfloat16", "float32")
    integers = (
        "int2",
        "int4",
        "int8",
        "int16",
        "int32",
        "uint2",
        "uint4",
        "uint8",
        "uint16",
        "uint32",
    )
    takes = {"and": integers + ("bool",), "or": integers + ("bool",)}.get(op, floats + integers)
    takes += {"sum": ("complex64",), "prod": ("complex64",), "mean": ("complex64",)}.get(op, ())
    takes += ("bool",) if op in ("max", "min") else ()
    raw = np.random.default_rng(0).integers(-2, 3, (4, 6))
    xs = {}
    for name in takes:
        dtype = np.dtype(getattr(ml_dtypes, name, name))
        xs[name] = (
            (raw if "u" not in name and name != "bool" else raw % 2).astype(np.int8).astype(dtype)
        )
    if "int32" in xs:
        xs["int32"] = xs["int32"] * 2**29  # wraps
    f = jax.shard_map(
        lambda xs: jax_uccl.all_reduce(xs, "x", op=op),
        mesh=mesh_of((4,), ("x",)),
        in_specs=P("x"),
        out_specs=P(),
    )
    out = jax.jit(f)(xs)
    for name, x in xs.items():
        wide = np.asarray(x).astype(np.int64) if name in integers else np.asarray(x)
        if name in ("float16", "bfloat16"):
            wide = wide.astype(np.float32)
        if op == "mean":
            total = np.add.reduce(wide, axis=0).astype(x.dtype).astype(np.complex64)
            np.testing.assert_allclose(np.asarray(out[name]).astype(np.complex64)[0], total / 4)
            continue
        want = NUMPY[op].reduce(wide, axis=0).astype(x.dtype)
        assert out[name].dtype == x.dtype, name
        np.testing.assert_array_equal(np.asarray(out[name])[0], want, err_msg=name)


def test_wide_dtypes(mesh_of):
    with jax.enable_x64(True):
        xs = {d: values(4, 6, dtype=d) for d in ("int64", "float64", "complex128")}
        xs["uint64"] = np.arange(24, dtype=np.uint64).reshape(4, 6) + np.uint64(2**63)
        f = jax.shard_map(
            lambda xs: jax_uccl.psum(xs, "x"),
            mesh=mesh_of((4,), ("x",)),
            in_specs=P("x"),
            out_specs=P(),
        )
        out = jax.jit(f)(xs)
        for name, x in xs.items():
            assert out[name].dtype == x.dtype
            np.testing.assert_array_equal(out[name][0], x.sum(0, dtype=x.dtype))


def test_bool_becomes_an_integer(mesh_of, against_lax):
    out = against_lax(
        lambda c, x: {op: c.all_reduce(x > 0, "x", op=op) for op in ("sum", "mean", "prod")},
        values(8, 3),
        mesh=mesh_of((4,), ("x",)),
        in_specs=P("x"),
        out_specs=P("x"),
        check_vma=False,
    )
    assert out["sum"].dtype == np.int32 and out["mean"].dtype == np.float32


def test_half_sums_accumulate_in_float32(mesh_of):
    """1 + 2^-8 eight times loses every small part in bfloat16 arithmetic."""
    x = np.full((8, 1), 2.0**-8, ml_dtypes.bfloat16)
    x[0] = 1
    f = jax.shard_map(
        lambda x: jax_uccl.psum(x, "x"), mesh=mesh_of((8,), ("x",)), in_specs=P("x"), out_specs=P()
    )
    want = (1 + 7 * 2.0**-8).__float__()
    assert jax.jit(f)(x)[0, 0] == np.array(want, ml_dtypes.bfloat16)
    got = jax.vmap(lambda x: jax_uccl.psum(x, "b"), axis_name="b")(jnp.asarray(x))
    assert got[0, 0] == np.array(want, ml_dtypes.bfloat16)


@pytest.mark.parametrize(
    "op, dtype",
    [
        ("sum", "float8_e4m3fn"), ("sum", "float8_e5m2"), ("max", "float4_e2m1fn"), ("mean", "float8_e3m4"),
        ("max", "complex64"), ("and", "float32"), ("or", "complex64"),
    ],
)  # fmt: skip
def test_refused_dtypes(mesh_of, op, dtype):
    x = np.ones((4, 2), np.dtype(getattr(ml_dtypes, dtype, dtype)))
    f = jax.shard_map(
        lambda x: jax_uccl.all_reduce(x, "x", op=op),
        mesh=mesh_of((4,), ("x",)),
        in_specs=P("x"),
        out_specs=P(),
    )
    with pytest.raises(jax_uccl.UnsupportedError, match=dtype):
        jax.eval_shape(f, x)


# --- groups -----------------------------------------------------------------------------------------

GROUPS = [[[0, 1], [2, 3]], [[3, 0], [1, 2]], [[2, 0, 1, 3]], [[0], [1], [2], [3]]]


def test_groups(mesh_of, against_lax):
    def program(c, x):
        return [
            (c.psum(x, "x", axis_index_groups=g), c.all_reduce(x, "x", op="max", axis_index_groups=g),
             c.all_reduce(x, "x", op="mean", axis_index_groups=g), c.all_reduce(x, "x", op="prod", axis_index_groups=g),
             jax.grad(lambda x: jnp.sum(c.psum(jnp.sin(x), "x", axis_index_groups=g) ** 2))(x),
             jax.vmap(lambda x: c.psum(x, "x", axis_index_groups=g), 1, 1)(x))
            for g in GROUPS
        ]  # fmt: skip

    against_lax(
        program,
        values(16, 3),
        mesh=mesh_of((4, 2), ("x", "y")),
        in_specs=P(("x", "y")),
        out_specs=P(("x", "y")),
        check_vma=False,
        rtol=1e-5,
    )


def test_groups_of_different_sizes(mesh_of):
    groups = [[0], [4, 2, 1], [3, 5]]
    x = values(6, 4) + 0.5
    ops = ("sum", "mean", "max", "min", "prod")

    def f(x):
        n = jax_uccl.psum(1, "x", axis_index_groups=groups)
        i = x.astype(jnp.int32)
        loss = lambda x: jnp.sum(jax_uccl.psum(x, "x", axis_index_groups=groups) * jnp.cos(x))
        bits = [
            jax_uccl.all_reduce(i, "x", op=op, axis_index_groups=groups) for op in ("and", "or")
        ]
        return (
            {op: jax_uccl.all_reduce(x, "x", op=op, axis_index_groups=groups) for op in ops},
            jnp.full((1,), n),
            bits,
            jax.grad(loss)(x),
        )

    mapped = jax.shard_map(
        f, mesh=mesh_of((6,), ("x",)), in_specs=P("x"), out_specs=P("x"), check_vma=False
    )
    out, n, bits, grad = jax.jit(mapped)(x)
    for group in groups:
        part = x[group]
        wants = {op: NUMPY[op].reduce(part) for op in ops if op != "mean"} | {"mean": part.mean(0)}
        for op, want in wants.items():
            np.testing.assert_allclose(
                np.asarray(out[op])[group], np.stack([want] * len(group)), rtol=1e-6
            )
        ints = part.astype(np.int32)
        np.testing.assert_array_equal(
            np.asarray(bits[0])[group], [NUMPY["and"].reduce(ints)] * len(group)
        )
        np.testing.assert_array_equal(
            np.asarray(bits[1])[group], [NUMPY["or"].reduce(ints)] * len(group)
        )
        np.testing.assert_array_equal(np.asarray(n)[group], len(group))
        # d/dx_j of sum_i psum(x)_i cos(x_i), taken on all members together.
        want = np.cos(part).sum(0) - part.sum(0) * np.sin(part)
        np.testing.assert_allclose(np.asarray(grad)[group], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "groups", [[[0, 1], [1, 2]], [[0, 1]], [[0, 1], [2, 4]], [[], [0, 1, 2, 3]]]
)
def test_wrong_groups(mesh_of, groups):
    f = jax.shard_map(
        lambda x: jax_uccl.psum(x, "x", axis_index_groups=groups),
        mesh=mesh_of((4,), ("x",)),
        in_specs=P("x"),
        out_specs=P("x"),
        check_vma=False,
    )
    with pytest.raises(ValueError, match="cover all indices exactly once"):
        f(values(4))


def test_groups_under_checked_types_are_refused(mesh_of):
    for c in (jax_uccl, lax):
        f = jax.shard_map(
            lambda x: c.psum(x, "x", axis_index_groups=[[0, 1], [2, 3]]),
            mesh=mesh_of((4,), ("x",)),
            in_specs=P("x"),
            out_specs=P("x"),
        )
        with pytest.raises(NotImplementedError):
            jax.eval_shape(f, values(4))


def test_maxima_of_groups_under_checked_types(mesh_of):
    """As in lax, and under use(); the type says that the groups differ."""
    groups, x = [[0, 3], [2, 1]], values(4)

    def f(c):
        mapped = jax.shard_map(
            lambda x: (
                c.pmax(x, "x", axis_index_groups=groups),
                c.pmin(x, "x", axis_index_groups=groups),
            ),
            mesh=mesh_of((4,), ("x",)),
            in_specs=P("x"),
            out_specs=P("x"),
        )
        return jax.jit(mapped)(x)

    want = [
        np.array([pick(x[0], x[3]), *[pick(x[2], x[1])] * 2, pick(x[0], x[3])])
        for pick in (max, min)
    ]
    np.testing.assert_array_equal(f(jax_uccl), want)
    np.testing.assert_array_equal(f(lax), want)
    with jax_uccl.use():
        np.testing.assert_array_equal(f(lax), want)


# --- vmap -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check_vma", [True, False])
def test_vmap(mesh_of, assert_same, check_vma):
    """Inside, outside, with spmd_axis_name, and of unmapped operands."""
    mesh, x = mesh_of((2, 2), ("x", "y")), values(4, 8, 3)

    def run(c):
        def local(x):
            inside = jax.vmap(
                lambda r, s: (c.psum(r, "x"), c.all_reduce(s, "x", op="max")), (1, None), 1
            )
            return inside(x, x[:, 0])

        outs = P() if check_vma else P("x")
        mapped = jax.shard_map(
            local, mesh=mesh, in_specs=P("x"), out_specs=outs, check_vma=check_vma
        )
        # JAX itself fails on slices under checked types and spmd_axis_name, so this one is simpler.
        plain = jax.shard_map(
            lambda x: (c.psum(x, "x"), c.all_reduce(x, "x", op="max")),
            mesh=mesh, in_specs=P("x"), out_specs=outs, check_vma=check_vma,
        )  # fmt: skip
        return mapped(x[0]), jax.vmap(mapped)(x), jax.vmap(plain, spmd_axis_name="y")(x)

    ours, want = jax.jit(lambda: (run(jax_uccl), run(_reference)))()
    assert_same(ours, want)


def test_vmap_over_the_axis(assert_same):
    """No mesh: all is local; with nesting, gradients and unmapped operands."""

    def program(c, x, y):
        out = [c.psum(x, "b"), c.psum(y, "b"), c.psum(x, ("b", "d"))]
        out += [c.all_reduce(x, "b", op=op) for op in ("max", "min", "mean", "prod")]
        out += [c.all_reduce(y, ("d", "b"), op=op) for op in ("max", "prod")]
        return out, jax.grad(lambda x: jnp.sum(jnp.sin(c.psum(x, "b"))))(x)

    def run(c):
        inner = jax.vmap(functools.partial(program, c), (0, None), axis_name="b")
        return jax.vmap(inner, (0, None), axis_name="d")

    x, y = values(2, 4, 3), values(3)
    ours, want = jax.jit(lambda x, y: (run(jax_uccl)(x, y), _vmap_oracle(run)(x, y)))(x, y)
    assert_same(ours, want, rtol=1e-6)
    bits = jax.vmap(lambda x: jax_uccl.all_reduce(x, "b", op="and"), axis_name="b")(
        np.array([7, 14])
    )
    np.testing.assert_array_equal(bits, [6, 6])


def _vmap_oracle(run):
    """lax's all_gather has no rule for operands that are equal on all members under two vmaps' names."""

    class Oracle:
        psum = staticmethod(_reference.psum)

        @staticmethod
        def all_reduce(x, axis_name, *, op):
            if op != "prod":
                return _reference.all_reduce(x, axis_name, op=op)
            return jnp.exp2(lax.psum(jnp.log2(jnp.abs(x)), axis_name)) * (
                1 - 2 * (lax.psum((x < 0).astype(jnp.float32), axis_name) % 2)
            )

    return run(Oracle)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("axis", [("b", "x"), ("x", "b", "y"), ("y", "b"), ("b",)])
def test_vmap_mixed_axes(mesh_of, axis, check_vma):
    x = values(2, 2, 3, 5)  # x, y, b
    ops = {"sum": np.sum, "max": np.max, "mean": np.mean}

    def f(x):
        call = lambda x: {op: jax_uccl.all_reduce(x, axis, op=op) for op in ops}
        out = jax.vmap(call, axis_name="b")(x[0, 0])
        return jax.tree.map(lambda y: y[None, None], out)

    rest = [n if n not in axis or not check_vma else None for n in ("x", "y")]
    mapped = jax.shard_map(
        f,
        mesh=mesh_of((2, 2), ("x", "y")),
        in_specs=P("x", "y"),
        out_specs=P(*rest),
        check_vma=check_vma,
    )
    out = jax.jit(mapped)(x)
    for op, reduce in ops.items():
        want = reduce(x, tuple("xyb".index(a) for a in axis), keepdims=True)
        np.testing.assert_allclose(out[op], np.broadcast_to(want, out[op].shape), rtol=1e-6)


def test_vmap_over_the_axis_with_groups():
    with pytest.raises(NotImplementedError, match="axis_index_groups"):
        jax.vmap(lambda x: jax_uccl.psum(x, "b", axis_index_groups=[[0, 1]]), axis_name="b")(
            np.ones(2)
        )


def test_types_are_those_of_lax(mesh_of):
    """Shape, dtype, weak type and varying axes of every result."""
    mesh = mesh_of((2, 4), ("x", "y"))

    def f(x, w):
        weak = lax.full_like(jnp.sum(w), 2.0) * 1.5
        for operand in (x, x.astype(jnp.bfloat16), jnp.sum(x), w, weak, weak * jnp.sum(x)):
            for axis in ("x", ("y", "x")):
                ours, want = all_ops(jax_uccl, operand, axis), all_ops(_reference, operand, axis)
                assert jax.tree.map(jax.typeof, ours) == jax.tree.map(jax.typeof, want)
        return x

    for vma in (True, False):
        specs = P(("x", "y"))
        mapped = jax.shard_map(f, mesh=mesh, in_specs=(specs, P()), out_specs=specs, check_vma=vma)
        jax.eval_shape(mapped, values(8, 2), values(3))


def test_partly_varying_operands_are_refused(mesh_of):
    """A sum over an axis that the value does not vary over, among others, is a slip; lax refuses it."""
    for c in (jax_uccl, lax):
        f = jax.shard_map(
            lambda x: c.psum(x, ("x", "y")),
            mesh=mesh_of((2, 4), ("x", "y")),
            in_specs=P("x"),
            out_specs=P(),
        )
        with pytest.raises(ValueError, match="can only accept axis_name"):
            jax.eval_shape(f, values(4))


# --- errors -----------------------------------------------------------------------------------------


def test_unbound_axis():
    for call in (jax_uccl.psum, functools.partial(jax_uccl.all_reduce, op="max")):
        with pytest.raises(NameError, match=r"unbound axis name: q.*jax_uccl.*shard_map"):
            call(np.ones(3), "q")
        with pytest.raises(NameError, match="unbound axis name"):
            jax.jit(lambda x: call(x, ("q",)))(np.ones(3))


def test_forbidden_axes(mesh_of):
    forbid = getattr(jax.sharding, "no_collectives", None)
    if forbid is None:
        pytest.skip("this JAX has no jax.sharding.no_collectives")
    for c in (jax_uccl, lax):
        f = jax.shard_map(
            lambda x: c.psum(x, "x"), mesh=mesh_of((4,), ("x",)), in_specs=P("x"), out_specs=P()
        )
        with forbid({"x"}), pytest.raises(Exception, match="forbidden by `no_collectives`"):
            jax.eval_shape(f, values(4))


def test_wrong_op():
    with pytest.raises(jax_uccl.UcclValueError, match="op='median' is not one of sum"):
        jax_uccl.all_reduce(np.ones(3), "x", op="median")


@pytest.mark.parametrize("groups", ["01", ["01"], [[0.5, 1]], [[0, 1], [1]], [[0, 2]]])
def test_groups_that_lax_refuses(groups):
    for c in (jax_uccl, lax):
        with pytest.raises(ValueError, match="must cover all indices exactly once"):
            jax.vmap(lambda x: c.psum(x, "b", axis_index_groups=groups), axis_name="b")(
                np.ones(2, np.float32)
            )


def test_positional_axes(assert_same):
    """Integers name axes of the array itself."""
    x = values(4, 2, 3)
    run = lambda c: jax.vmap(
        lambda x: (c.psum(x, ("b", 0)), c.psum(x, (1,)), jax.grad(lambda x: jnp.sum(c.psum(x, ("b", 1)) ** 2))(x)),
        axis_name="b",
    )(x)  # fmt: skip
    assert_same(jax.jit(lambda: run(jax_uccl))(), jax.jit(lambda: run(_reference))())
    with pytest.raises(ValueError, match="just named axes"):
        jax.vmap(
            lambda x: jax_uccl.psum(x, ("b", 0), axis_index_groups=[[0, 1, 2, 3]]), axis_name="b"
        )(x)
