"""jax_uccl.all_to_all against jax.lax and NumPy, under every transformation."""

from __future__ import annotations

import functools
import itertools
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_uccl
from jax_uccl._src.collectives import _reference

NATIVE = re.compile(
    r"\b(all-to-all|all-reduce|all-gather|reduce-scatter|collective-permute)(-start)?\("
)


def numpy_all_to_all(parts, split, concat, tiled):
    """What member j holds afterwards, for every j, from what the members hold before."""
    n = len(parts)
    out = []
    for j in range(n):
        mine = [np.split(part, n, axis=split)[j] for part in parts]
        if tiled:
            out.append(np.concatenate(mine, axis=concat))
        else:
            out.append(np.stack([m.squeeze(split) for m in mine], axis=concat))
    return out


def values(*shape, dtype=np.float32, seed=0):
    """Small integers: sums are exact in every dtype and order."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def pair_program(collectives, x, tiled, axis="x"):
    """All split and concat pairs of a rank-3 array whose axes are all n or 2n long."""
    return {
        f"{s}{c}": collectives.all_to_all(x, axis, s, c, tiled=tiled)
        for s, c in itertools.product(range(3), range(3))
    }


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("tiled", [True, False])
def test_all_pairs(mesh_of, against_lax, tiled, check_vma):
    n = 4
    side = 2 * n if tiled else n
    # A leading axis keeps the members' arrays apart outside.
    x = values(n, side, side, side)
    out = against_lax(
        lambda c, x: jax.tree.map(lambda y: y[None], pair_program(c, x[0], tiled)),
        x,
        mesh=mesh_of((n,), ("x",)),
        in_specs=P("x"),
        out_specs=P("x"),
        check_vma=check_vma,
    )
    for s, c in itertools.product(range(3), range(3)):
        want = np.stack(numpy_all_to_all(list(x), s, c, tiled))
        np.testing.assert_array_equal(out[f"{s}{c}"], want)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("tiled", [True, False])
def test_all_pairs_adjoint(mesh_of, tiled, check_vma):
    """<f(x), y> == <x, f^T(y)> and f(dx) == jvp, for every pair."""
    n = 2
    side = 2 * n if tiled else n
    x, mesh = values(n, side, side, side), mesh_of((n,), ("x",))

    def f(x):
        out = pair_program(jax_uccl, x[0], tiled)
        return jax.tree.map(lambda y: y[None], out)

    f = jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=check_vma)

    def products(x, dx):
        y, dy = jax.jvp(f, (x,), (dx,))
        cts = {k: jnp.cos(jnp.arange(v.size).reshape(v.shape)) for k, v in y.items()}
        back = {}
        for k in y:
            zero = jax.tree.map(jnp.zeros_like, cts)
            (back[k],) = jax.vjp(f, x)[1]({**zero, k: cts[k]})
        left = {k: jnp.vdot(y[k], cts[k]) for k in y}
        right = {k: jnp.vdot(x, back[k]) for k in y}
        return left, right, dy, f(dx)

    left, right, dy, fdx = jax.jit(products)(x, values(*x.shape, seed=1))
    for key in left:
        np.testing.assert_allclose(left[key], right[key], rtol=1e-5, atol=1e-4)
        np.testing.assert_array_equal(dy[key], fdx[key])


MESHES = [
    ((8,), ("x",), None, "x"),
    ((8,), ("x",), [7, 6, 5, 4, 3, 2, 1, 0], "x"),
    ((8,), ("x",), [3, 1, 4, 0, 5, 7, 2, 6], ("x",)),
    ((4,), ("x",), [2, 7, 3, 5], "x"),
    ((3,), ("x",), [5, 6, 7], "x"),
    ((2, 4), ("x", "y"), None, "x"),
    ((2, 4), ("x", "y"), [3, 1, 4, 0, 5, 7, 2, 6], "y"),
    ((2, 4), ("x", "y"), None, ("x", "y")),
    ((2, 4), ("x", "y"), [7, 6, 5, 4, 3, 2, 1, 0], ("y", "x")),
    ((2, 3), ("x", "y"), [1, 2, 3, 5, 6, 7], ("y", "x")),
    ((2, 2, 2), ("x", "y", "z"), None, ("z", "x")),
    ((2, 2, 2), ("x", "y", "z"), [3, 1, 4, 0, 5, 7, 2, 6], ("y", "x", "z")),
    ((1, 4), ("x", "y"), None, ("x", "y")),
]


@pytest.mark.parametrize("shape, names, order, axis", MESHES)
def test_meshes(mesh_of, against_lax, shape, names, order, axis):
    mesh = mesh_of(shape, names, order)
    n = int(np.prod([mesh.shape[a] for a in ((axis,) if isinstance(axis, str) else axis)]))
    total = mesh.size
    x = values(total * n, 2 * n)
    specs = P(names)
    against_lax(
        lambda c, x: (
            c.all_to_all(x, axis, 0, 1, tiled=True),
            c.all_to_all(x, axis, 1, 0, tiled=True),
        ),
        x,
        mesh=mesh,
        in_specs=specs,
        out_specs=specs,
    )


@pytest.mark.parametrize("check_vma", [True, False])
def test_groups(mesh_of, against_lax, check_vma):
    groups = [[[0, 1], [2, 3]], [[3, 0], [1, 2]], [[2, 0, 1, 3]], [[0], [1], [2], [3]]]

    def program(c, x):
        return [c.all_to_all(x, "x", 0, 1, axis_index_groups=g, tiled=True) for g in groups] + [
            c.all_to_all(
                x, ("y", "x"), 0, 1, axis_index_groups=[[0, 5, 1, 4], [2, 3, 7, 6]], tiled=True
            )
        ]

    against_lax(
        program,
        values(32, 4),
        mesh=mesh_of((4, 2), ("x", "y")),
        in_specs=P(("x", "y")),
        out_specs=P(("x", "y")),
        check_vma=check_vma,
    )


def test_groups_gradient(mesh_of, against_lax):
    groups = ((3, 0), (1, 2))

    def program(c, x):
        f = lambda x: jnp.sum(c.all_to_all(x, "x", 1, 0, axis_index_groups=groups, tiled=True) ** 3)
        return jax.grad(f)(x)

    against_lax(
        program, values(16, 4), mesh=mesh_of((4,), ("x",)), in_specs=P("x"), out_specs=P("x")
    )


DTYPES = [
    "bool", "int2", "int4", "int8", "int16", "int32", "uint2", "uint4", "uint8", "uint16", "uint32",
    "float16", "bfloat16", "float32", "complex64", "float4_e2m1fn", "float8_e3m4", "float8_e4m3",
    "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "float8_e8m0fnu",
]  # fmt: skip


def typed_values(name, shape, seed=0):
    """Values spread over what the dtype can hold."""
    raw = np.random.default_rng(seed).integers(0, 256, shape)
    if name == "bool":
        return raw > 128
    if name == "complex64":
        return (raw + 1j * raw[::-1]).astype(np.complex64)
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    if name in ("int2", "int4", "uint2", "uint4"):
        bits = int(name[-1])
        low = 0 if name[0] == "u" else -(2 ** (bits - 1))
        return (raw % 2**bits + low).astype(np.int8).astype(dtype)
    return (raw % 7).astype(np.float32).astype(dtype)


def test_dtypes(mesh_of):
    xs = {name: typed_values(name, (16, 4)) for name in DTYPES}
    f = jax.shard_map(
        lambda xs: jax_uccl.all_to_all(xs, "x", 0, 1, tiled=True),
        mesh=mesh_of((4,), ("x",)),
        in_specs=P("x"),
        out_specs=P("x"),
    )
    out = jax.jit(f)(xs)
    for name, x in xs.items():
        want = np.concatenate(numpy_all_to_all(np.split(x, 4), 0, 1, True))
        assert out[name].dtype == x.dtype
        np.testing.assert_array_equal(
            np.asarray(out[name]).astype(np.complex64), want.astype(np.complex64), err_msg=name
        )


def test_wide_dtypes(mesh_of):
    with jax.enable_x64(True):
        xs = {d: values(16, 4, dtype=d) for d in ("int64", "uint64", "float64", "complex128")}
        f = jax.shard_map(
            lambda xs: jax_uccl.all_to_all(xs, "x", 0, 1, tiled=True),
            mesh=mesh_of((4,), ("x",)),
            in_specs=P("x"),
            out_specs=P("x"),
        )
        out = jax.jit(f)(xs)
        for name, x in xs.items():
            want = np.concatenate(numpy_all_to_all(np.split(x, 4), 0, 1, True))
            assert out[name].dtype == x.dtype
            np.testing.assert_array_equal(out[name], want)


def test_random_keys(mesh_of):
    keys = jax.random.split(jax.random.key(0), (8, 2))
    f = jax.shard_map(
        lambda k: jax_uccl.all_to_all(k, "x", 0, 1, tiled=True),
        mesh=mesh_of((4,), ("x",)),
        in_specs=P("x"),
        out_specs=P("x"),
    )
    g = jax.shard_map(
        lambda k: jax_uccl.all_to_all(k, "x", 1, 0, tiled=True),
        mesh=mesh_of((2,), ("x",)),
        in_specs=P("x"),
        out_specs=P("x"),
    )
    data = np.asarray(jax.random.key_data(keys))
    with pytest.raises(ValueError, match="divisible"):
        f(keys)
    want = np.concatenate(numpy_all_to_all(np.split(data, 2), 1, 0, True))
    np.testing.assert_array_equal(jax.random.key_data(jax.jit(g)(keys)), want)


def test_arguments(mesh_of, against_lax):
    """Pytrees, lists of names, negative axes, NumPy integers, constants and weakly typed operands."""
    constant = values(4, 8)

    def program(c, x):
        return (
            c.all_to_all({"a": x, "b": [x + 1, None]}, ["x"], 0, 1, tiled=True),
            c.all_to_all(x, "x", -2, -1, tiled=True),
            c.all_to_all(x, "x", np.int64(0), -1),
            c.all_to_all(x[:, :4], "x", -1, -2),
            c.all_to_all(constant, "x", 0, 0),
            c.all_to_all(jnp.full((4, 1), 2.0), "x", 0, 1, tiled=True),
        )

    against_lax(
        program, values(16, 8), mesh=mesh_of((4,), ("x",)), in_specs=P("x"), out_specs=P("x")
    )


# --- vmap -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_axis, out_axis", [(0, 0), (1, 3), (2, 1), (3, 2)])
def test_vmap_inside(mesh_of, against_lax, in_axis, out_axis):
    against_lax(
        lambda c, x: jax.vmap(functools.partial(pair_program, c, tiled=True), in_axis, out_axis)(x),
        values(8, 4, 4, 4),
        mesh=mesh_of((2,), ("x",)),
        in_specs=P("x"),
        out_specs=P("x"),
    )


@pytest.mark.parametrize("spmd", [None, "y"])
def test_vmap_outside(mesh_of, assert_same, spmd):
    mesh = mesh_of((2, 2), ("x", "y"))
    x = values(4, 8, 4, 4)

    def mapped(c):
        f = jax.shard_map(
            functools.partial(pair_program, c, tiled=True),
            mesh=mesh,
            in_specs=P("x"),
            out_specs=P("x"),
        )
        return jax.vmap(f, spmd_axis_name=spmd)

    ours, want = jax.jit(lambda x: (mapped(jax_uccl)(x), mapped(_reference)(x)))(x)
    assert_same(ours, want)


@pytest.mark.parametrize("d", [0, 2])
def test_vmap_over_the_axis(assert_same, d):
    """The whole exchange is local data movement; there is no mesh."""

    def run(c, x):
        f = jax.vmap(functools.partial(pair_program, c, tiled=True, axis="b"), d, axis_name="b")

        def loss(x):
            weighted = lambda y: jnp.vdot(y, jnp.sin(jnp.arange(y.size).reshape(y.shape)))
            return sum(map(weighted, f(x).values()))

        return f(x), jax.grad(loss)(x)

    ours, want = jax.jit(lambda x: (run(jax_uccl, x), run(_reference, x)))(values(4, 4, 4, 4))
    assert_same(ours, want, rtol=1e-4)


def test_vmap_over_the_axis_unmapped():
    """An operand that is equal on all members (lax gets the shape of this one wrong)."""
    x = values(4, 4, 4)
    f = functools.partial(pair_program, jax_uccl, tiled=True, axis="b")
    out = jax.jit(jax.vmap(lambda _: f(x), axis_name="b"))(np.zeros(4))
    for s, c in itertools.product(range(3), range(3)):
        want = np.stack(numpy_all_to_all([x] * 4, s, c, True))
        np.testing.assert_array_equal(out[f"{s}{c}"], want)


@pytest.mark.parametrize(
    "axis", [("b", "x"), ("x", "b"), ("x", "b", "y"), ("y", "b"), ("b",), ("x", "y", "b")]
)
@pytest.mark.parametrize("d", [0, 1, None])
def test_vmap_mixed_axes(mesh_of, axis, d):
    """A tuple of mesh axes and a vmapped axis, against one exchange over a mesh that has all three."""
    sizes = {"x": 2, "y": 2, "b": 2}
    n = int(np.prod([sizes[a] for a in axis]))
    members = values(2, 2, 2, 8, 8)  # indexed by x, y, b
    if d is None:
        members[:] = members[:, :, :1]

    def ours(x):
        x = x[0, 0]  # [b, 8, 8]
        f = lambda x: (
            jax_uccl.all_to_all(x, axis, 0, 1, tiled=True),
            jax_uccl.all_to_all(x, axis, 1, 1, tiled=True),
            jax_uccl.all_to_all(x, axis, 1, 0, tiled=True),
        )
        operand = x[0] if d is None else jnp.moveaxis(x, 0, d)
        out = jax.vmap(f, in_axes=d, axis_name="b", axis_size=2)(operand)
        return jax.tree.map(lambda y: y[None, None], out)

    got = jax.jit(
        jax.shard_map(
            ours, mesh=mesh_of((2, 2), ("x", "y")), in_specs=P("x", "y"), out_specs=P("x", "y")
        )
    )(members)
    for (s, c), g in zip([(0, 1), (1, 1), (1, 0)], got, strict=True):
        assert g.shape[:3] == (2, 2, 2)
        # Communicators: fix the axes not named, order members as the tuple says.
        order = ["xyb".index(a) for a in axis] + ["xyb".index(a) for a in "xyb" if a not in axis]
        flat = members.transpose(*order, 3, 4).reshape(n, -1, 8, 8)
        seen = np.asarray(g).transpose(*order, 3, 4)
        seen = seen.reshape(n, -1, *g.shape[3:])
        for other in range(flat.shape[1]):
            want = np.stack(numpy_all_to_all(list(flat[:, other]), s, c, True))
            np.testing.assert_array_equal(seen[:, other], want)


def test_vmap_with_groups(mesh_of, assert_same):
    """lax does not have this case; one call per slice is the oracle."""
    groups = [[0, 3], [2, 1]]

    def f(x):
        call = lambda x: jax_uccl.all_to_all(x, "x", 0, 1, axis_index_groups=groups, tiled=True)
        return jax.vmap(call, 1, 1)(x), jnp.stack([call(x[:, i]) for i in range(3)], 1)

    mesh = mesh_of((4,), ("x",))
    got, want = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x")))(
        values(16, 3, 2)
    )
    assert_same(got, want)
    with pytest.raises(NotImplementedError, match="axis_index_groups"):
        jax.vmap(
            lambda x: jax_uccl.all_to_all(x, "b", 0, 0, axis_index_groups=[[0, 1]], tiled=True),
            axis_name="b",
        )(values(2, 2))


# --- control flow and derivatives -------------------------------------------------------------------


def a2a(c, x):
    return c.all_to_all(x, "x", 0, 1, tiled=True).reshape(x.shape)


def scan(c, x):
    return lax.scan(lambda h, _: (a2a(c, jnp.sin(h)) + x, a2a(c, h)), x, length=3)


def while_loop(c, x):
    """The trip count depends on data and is the same on all members."""
    total = lax.psum(jnp.sum(jnp.abs(x)), "x")
    step = lambda s: (s[0] + 1.0, a2a(c, s[1]) + 1)
    return lax.while_loop(lambda s: s[0] < 1 + total % 4, step, (0.0 * total, x))[1]


def cond(c, x):
    pick = lax.psum(jnp.sum(x), "x") > 0
    return lax.cond(pick, lambda x: a2a(c, x) * 2, lambda x: a2a(c, a2a(c, x)), x)


def remat(c, x):
    f = jax.checkpoint(lambda x: jnp.sin(a2a(c, jnp.cos(x))))
    return jax.grad(lambda x: jnp.sum(f(f(x)) ** 2))(x)


def scan_of_remat(c, x):
    body = jax.checkpoint(lambda h, _: (jnp.sin(a2a(c, h)) * x, None))
    return jax.grad(lambda x: jnp.sum(lax.scan(body, x, length=2)[0]))(x)


def custom_vjp(c, x):
    @jax.custom_vjp
    def f(x):
        return a2a(c, x)

    f.defvjp(lambda x: (a2a(c, x), None), lambda _, ct: (a2a(c, ct) * 3,))
    return jax.grad(lambda x: jnp.sum(f(x) * jnp.cos(x)))(x)


def second_derivative(c, x):
    f = lambda x: jnp.sum(jnp.sin(a2a(c, x)) * x)
    return jax.jvp(jax.grad(f), (x,), (jnp.cos(x),))[1], jax.grad(
        lambda x: jnp.vdot(jax.grad(f)(x), x)
    )(x)


def linearize(c, x):
    y, f_lin = jax.linearize(lambda x: a2a(c, jnp.sin(x)), x)
    return y, f_lin(jnp.cos(x)), jax.linear_transpose(functools.partial(a2a, c), x)(x)[0]


def vmap_of_scan(c, x):
    xs = jnp.stack([x, x + 1], 1)
    return jax.vmap(lambda x: scan(c, x)[0], 1, 1)(xs)


def inner_jit_twice(c, x):
    """One lowered call site, two calls after inlining."""
    f = jax.jit(functools.partial(a2a, c))
    return f(x) + f(x + 1) * 2


PROGRAMS = [
    scan, while_loop, cond, remat, scan_of_remat, custom_vjp, second_derivative, linearize,
    vmap_of_scan, inner_jit_twice,
]  # fmt: skip


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_transformations(mesh_of, against_lax, program, check_vma):
    against_lax(
        lambda c, x: jax.tree.map(lambda y: y.reshape(4, -1), program(c, x)),
        values(16, 4),
        mesh=mesh_of((4,), ("x",)),
        in_specs=P("x"),
        out_specs=P("x"),
        check_vma=check_vma,
        rtol=2e-5,
    )


def test_gradient_of_an_invariant_operand(mesh_of, against_lax):
    """The cast that the operand needs transposes to a sum over the members."""
    against_lax(
        lambda c, w: jax.grad(lambda w: lax.psum(jnp.sum(c.all_to_all(w, "x", 0, 0) ** 2), "x"))(w),
        values(4, 3),
        mesh=mesh_of((4,), ("x",)),
        in_specs=P(),
        out_specs=P(),
    )


def test_eager(mesh_of, assert_same):
    """Outside jit, shard_map evaluates operation by operation."""
    mesh, x = mesh_of((4,), ("x",)), values(16, 8)
    run = lambda c, vma: jax.shard_map(
        lambda x: (c.all_to_all(x, "x", 0, 1, tiled=True), jax.grad(lambda x: jnp.sum(a2a(c, x) * x))(x)),
        mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=vma,
    )(x)  # fmt: skip
    for check_vma in (True, False):
        assert_same(run(jax_uccl, check_vma), run(_reference, check_vma))


def test_ahead_of_time_and_donation(mesh_of):
    mesh = mesh_of((4,), ("x",))
    f = jax.shard_map(
        functools.partial(a2a, jax_uccl), mesh=mesh, in_specs=P("x"), out_specs=P("x")
    )
    x = values(16, 4)
    want = np.asarray(jax.jit(f)(x))
    sharded = lambda: jax.device_put(x, NamedSharding(mesh, P("x")))
    jitted = jax.jit(f, donate_argnums=0)
    compiled = jitted.lower(
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharded().sharding)
    ).compile()
    for _ in range(3):
        donated = sharded()
        np.testing.assert_array_equal(compiled(donated), want)
        assert donated.is_deleted()


def test_eval_shape_needs_no_runtime(mesh_of):
    mesh = AbstractMesh((16,), ("x",), axis_types=(AxisType.Auto,))
    f = jax.shard_map(
        lambda x: jax_uccl.all_to_all(x, "x", 1, 0, tiled=True),
        mesh=mesh,
        in_specs=P("x"),
        out_specs=P("x"),
    )
    out = jax.eval_shape(f, jax.ShapeDtypeStruct((32, 48), jnp.bfloat16))
    assert (out.shape, out.dtype) == ((512, 3), jnp.bfloat16)


@pytest.mark.parametrize("partial", [False, True])
def test_export(mesh_of, partial):
    """A serialised program names no device; it runs on the caller's mesh."""
    from jax import export

    mesh, x = mesh_of((4, 2), ("x", "y")), values(16, 4)
    f = jax.jit(
        jax.shard_map(
            functools.partial(a2a, jax_uccl),
            mesh=mesh,
            in_specs=P("x"),
            out_specs=P("x"),
            axis_names={"x"} if partial else {"x", "y"},
        ),
        in_shardings=NamedSharding(mesh, P("x")),
        out_shardings=NamedSharding(mesh, P("x")),
    )
    checks = [export.DisabledSafetyCheck.custom_call(n) for n in ("jax_uccl_all_to_all",)]
    exported = export.export(f, disabled_checks=checks)(jax.ShapeDtypeStruct(x.shape, x.dtype))
    text = exported.mlir_module()
    assert (
        "devices = dense<> : tensor<0xi64>" in text
        and "processes = dense<> : tensor<0xi64>" in text
    )
    again = export.deserialize(exported.serialize(vjp_order=1))
    y, vjp = jax.vjp(jax.jit(again.call), jax.device_put(x, NamedSharding(mesh, P("x"))))
    np.testing.assert_array_equal(y, f(x))
    np.testing.assert_array_equal(vjp(y)[0], x)


def test_export_with_symbolic_shapes_is_refused(mesh_of):
    from jax import export

    (b,) = export.symbolic_shape("4*b")
    f = lambda x: jax_uccl.psum(jax_uccl.all_to_all(x, "x", 1, 0, tiled=True), "x")
    mapped = jax.jit(jax.shard_map(f, mesh=mesh_of((4,), ("x",)), in_specs=P("x"), out_specs=P()))
    with pytest.raises(jax_uccl.UnsupportedError, match=r"all_to_all float32\[b,8\].*symbolic"):
        export.export(mapped)(jax.ShapeDtypeStruct((b, 8), jnp.float32))


# --- meshes that are not plain ----------------------------------------------------------------------


def test_partial_auto(mesh_of, against_lax):
    mesh = mesh_of((2, 4), ("y", "x"))
    x = jax.device_put(values(16, 8), NamedSharding(mesh, P("x", "y")))
    against_lax(
        lambda c, x: (a2a(c, jnp.sin(x)), jax.grad(lambda x: jnp.sum(a2a(c, x) * x))(x)),
        x,
        mesh=mesh,
        in_specs=P("x"),
        out_specs=P("x"),
        axis_names={"x"},
        rtol=1e-5,
    )


def test_explicit_mesh():
    mesh = jax.make_mesh((4, 2), ("x", "y"))
    assert mesh.axis_types == (AxisType.Explicit,) * 2
    x = jax.device_put(values(16, 8), NamedSharding(mesh, P("x", "y")))
    f = lambda c: jax.shard_map(
        lambda x: c.all_to_all(x, ("y", "x"), 1, 0, tiled=True) * 2, out_specs=P(("x", "y")),
        in_specs=P("x", None),
    )  # fmt: skip
    with jax.set_mesh(mesh):
        x = jax.sharding.reshard(x, P("x", None))
        got, want = jax.jit(lambda x: (f(jax_uccl)(x), f(_reference)(x)))(jnp.tile(x, (1, 1)))
    np.testing.assert_array_equal(got, want)
    assert got.sharding.spec == want.sharding.spec


@pytest.mark.parametrize("check_vma", [True, False])
def test_explicit_axes_beside_manual_ones(check_vma):
    """The call runs on the shards: nothing is gathered that the same program without it does not gather."""
    mesh = jax.make_mesh((4, 2), ("x", "y"))
    x = jax.device_put(values(16, 4, 6), NamedSharding(mesh, P("x", None, "y")))

    def program(local):
        g = jax.shard_map(
            local, in_specs=P("x"), out_specs=P("x"), axis_names={"x"}, check_vma=check_vma
        )
        return jax.jit(lambda x: (g(x), jax.grad(lambda x: jnp.sum(g(x) ** 3))(x)))

    def gathers(compiled):
        return sorted(name for name, _ in NATIVE.findall(compiled.as_text()))

    with jax.set_mesh(mesh):
        ours = program(lambda x: jax_uccl.all_to_all(x, "x", 0, 1, tiled=True)).lower(x).compile()
        bare = program(lambda x: x * 2).lower(x).compile()
        y, dx = ours(x)
        assert len(gathers(ours)) <= len(gathers(bare))
        with pytest.raises(ValueError, match="Reshard the operand"):
            program(lambda x: jax_uccl.all_to_all(x, "x", 1, 2, tiled=True)).lower(x)
    raw = np.asarray(x)
    np.testing.assert_array_equal(y, np.concatenate(numpy_all_to_all(np.split(raw, 4), 0, 1, True)))
    np.testing.assert_array_equal(dx, 3 * raw**2)


@pytest.mark.parametrize("order", [None, [4, 5, 6, 7], [3, 2, 1, 0]])
def test_abstract_mesh(mesh_of, order):
    """Lowered without devices, a program runs on the default order or says what to do, never wrongly."""
    mesh = mesh_of((4,), ("x",), order)
    x = jax.device_put(values(16, 3), NamedSharding(mesh, P("x")))
    f = functools.partial(a2a, jax_uccl)
    want = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x")))(x)
    abstract = jax.jit(jax.shard_map(f, mesh=mesh.abstract_mesh, in_specs=P("x"), out_specs=P("x")))
    if order is None:
        np.testing.assert_array_equal(abstract(x), want)
    else:
        with pytest.raises(jax_uccl.UcclValueError, match="jax.devices") as caught:
            with jax_uccl.errors():
                jax.block_until_ready(abstract(x))
        assert caught.value.op == "all_to_all float32[4,3] axis=(x)"
        assert isinstance(caught.value.__cause__, jax.errors.JaxRuntimeError)
    with jax.set_mesh(mesh):
        inferred = jax.jit(jax.shard_map(f, in_specs=P("x"), out_specs=P("x")))
        np.testing.assert_array_equal(inferred(x), want)


def test_abstract_mesh_lowers_for_absent_devices():
    mesh = AbstractMesh((16,), ("x",), axis_types=(AxisType.Auto,))
    f = jax.jit(
        jax.shard_map(
            functools.partial(a2a, jax_uccl), mesh=mesh, in_specs=P("x"), out_specs=P("x")
        )
    )
    spec = jax.ShapeDtypeStruct((256, 3), jnp.float32, sharding=NamedSharding(mesh, P("x")))
    text = f.trace(spec).lower(lowering_platforms=("cpu",)).as_text()
    assert text.count("jax_uccl_all_to_all") == 1
    assert "partition_id" in text


# --- what is emitted --------------------------------------------------------------------------------


def test_nothing_to_exchange(mesh_of):
    """One member, or an empty array: no call, and the right shapes."""
    mesh = mesh_of((1, 4), ("one", "x"))
    f = jax.jit(
        jax.shard_map(
            lambda x, e: (
                lax.pmax(jax_uccl.all_to_all(x, "one", 0, 1, tiled=True), "one"),
                lax.pmax(jax_uccl.all_to_all(x[None], "one", 0, 2), "one"),
                jax_uccl.all_to_all(
                    x, "x", 0, 0, axis_index_groups=[[0], [1], [2], [3]], tiled=True
                ),
                jax_uccl.all_to_all(e, "x", 1, 0, tiled=True),
            ),
            mesh=mesh,
            in_specs=(P("x"), P("x")),
            out_specs=P("x"),
        )
    )
    x, empty = values(8, 4), np.zeros((0, 4), np.float32)
    assert "jax_uccl" not in f.lower(x, empty).as_text()
    a, b, c, e = f(x, empty)
    np.testing.assert_array_equal(a, x)
    np.testing.assert_array_equal(b, x[:, :, None])
    np.testing.assert_array_equal(c, x)
    assert e.shape == (0, 1)


@pytest.mark.parametrize("check_vma", [True, False])
def test_no_native_collective(mesh_of, check_vma):
    """Forward, backward and second derivative go through our calls only."""
    mesh = mesh_of((2, 2), ("x", "y"))

    def f(x):
        loss = lambda x: jnp.sum(jnp.sin(a2a(jax_uccl, x)))
        return a2a(jax_uccl, x), jax.grad(loss)(x), jax.jvp(jax.grad(loss), (x,), (x,))[1]

    mapped = jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=check_vma)
    text = jax.jit(mapped).lower(values(8, 4)).compile().as_text()
    assert not NATIVE.findall(text)
    assert text.count('custom_call_target="jax_uccl_all_to_all"') >= 3


LOWER = """
import os, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"
import jax, numpy as np, jax.numpy as jnp, jax_uccl
from jax.sharding import Mesh, PartitionSpec as P
if sys.argv[1] == "busy":  # whatever the process did before must not show
    warm = Mesh(np.array(jax.devices()[:2]), ("w",))
    for n in range(3):
        g = lambda x: jax_uccl.psum(x * n, "w")
        jax.jit(jax.shard_map(g, mesh=warm, in_specs=P("w"), out_specs=P())).lower(jnp.ones(2))
mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("x", "y"))
@jax.jit
def inner(x):
    return jax_uccl.all_to_all(x, "y", 0, 1, tiled=True)
def step(x):
    y = inner(x) + inner(x * 2)
    z = jax_uccl.psum(jnp.sum(y), ("x", "y")) + jax_uccl.all_reduce(x, "x", op="max")
    return z + jax.grad(lambda x: jnp.sum(jax_uccl.all_to_all(x, "y", 0, 1, tiled=True) ** 2))(x)
f = jax.shard_map(step, mesh=mesh, in_specs=P(("x", "y")), out_specs=P(("x", "y")), check_vma=False)
sys.stdout.write(jax.jit(f).lower(jnp.ones((32, 4))).as_text())
"""


def test_lowering_is_deterministic():
    """Two processes with different histories and hash seeds lower to the same text."""
    texts = []
    for how, seed in (("fresh", "1"), ("busy", "2")):
        env = {**os.environ, "PYTHONHASHSEED": seed, "XLA_FLAGS": ""}
        run = subprocess.run(
            [sys.executable, "-c", LOWER, how], env=env, capture_output=True, text=True, timeout=120
        )
        assert run.returncode == 0, run.stderr
        texts.append(run.stdout)
    assert texts[0] == texts[1]
    sites = re.findall(r"site = (-?\d+)", texts[0])
    assert len(sites) >= 4 and len(set(sites)) == len(sites)


def test_call_sites_have_their_own_ids(mesh_of):
    """Equal calls at different places differ in site and position; attributes are what the handler reads."""
    mesh = mesh_of((2, 2), ("x", "y"), order=[3, 1, 2, 0])

    def twins(x):
        return a2a(jax_uccl, x) - a2a(jax_uccl, x + 1)

    f = jax.jit(jax.shard_map(twins, mesh=mesh, in_specs=P("x"), out_specs=P("x")))
    text = f.lower(values(8, 4)).as_text()
    for attribute in ("site", "position"):
        ids = re.findall(rf"{attribute} = (-?\d+) : i64", text)
        assert len(ids) == 2 and ids[0] != ids[1]
    assert 'label = "all_to_all float32[4,4] axis=(x)"' in text
    assert "devices = dense<[3, 1, 2, 0]> : tensor<4xi64>" in text
    assert "groups = dense<[0, 2, 1, 3]> : tensor<4xi64>" in text
    assert "partition_id" not in text


# --- strict order -----------------------------------------------------------------------------------


def test_strict_order(mesh_of, against_lax):
    """Tokens chain the calls; results are the same, in every transformation."""
    mesh, x = mesh_of((4,), ("x",)), values(16, 4)
    f = jax.jit(
        jax.shard_map(
            lambda x: a2a(jax_uccl, x) + a2a(jax_uccl, 2 * x),
            mesh=mesh,
            in_specs=P("x"),
            out_specs=P("x"),
        )
    )
    free = np.asarray(f(x))
    with jax_uccl.strict_order():
        np.testing.assert_array_equal(f(x), free)
        text = f.lower(x).as_text()
        with jax_uccl.strict_order(False):
            assert "!stablehlo.token" not in f.lower(x).as_text()
        for program in (scan, while_loop, scan_of_remat, custom_vjp, second_derivative):
            against_lax(
                lambda c, x: jax.tree.map(lambda y: y.reshape(4, -1), program(c, x)),
                x, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False, rtol=2e-5,
            )  # fmt: skip
    assert text.count("!stablehlo.token) -> (") == 2 and text.count("ordered = 1 : i64") == 2
    assert "!stablehlo.token" not in f.lower(x).as_text()


# --- errors -----------------------------------------------------------------------------------------


def test_unbound_axis():
    x = np.ones((4, 4), np.float32)
    with pytest.raises(NameError, match=r"unbound axis name: q.*jax_uccl\.all_to_all.*shard_map"):
        jax_uccl.all_to_all(x, "q", 0, 0)
    with pytest.raises(NameError, match="unbound axis name"):
        jax.jit(lambda x: jax_uccl.all_to_all(x, "q", 0, 0))(x)


@pytest.mark.parametrize(
    "kwargs, error, text",
    [
        (dict(split_axis=0, concat_axis=0), ValueError, "equal x.shape"),
        (dict(split_axis=1, concat_axis=0, tiled=True), ValueError, "divisible"),
        (dict(split_axis=2, concat_axis=0, tiled=True), ValueError, "out of bounds"),
        (dict(split_axis=0, concat_axis=-3, tiled=True), ValueError, "out of bounds"),
        (dict(split_axis=0.5, concat_axis=0, tiled=True), TypeError, "integer"),
        (dict(split_axis=0, concat_axis=0, axis_index_groups=[[0, 1], [2]], tiled=True), ValueError, "cover"),
        (dict(split_axis=0, concat_axis=0, axis_index_groups=[[0, 1], [1, 2]], tiled=True), ValueError, "cover"),
        (dict(split_axis=0, concat_axis=0, axis_index_groups=[[0, 1, 2], [3]], tiled=True), ValueError, "equally"),
    ],
)  # fmt: skip
def test_wrong_arguments(mesh_of, kwargs, error, text):
    f = jax.shard_map(
        lambda x: jax_uccl.all_to_all(x, "x", **kwargs),
        mesh=mesh_of((4,), ("x",)),
        in_specs=P("x"),
        out_specs=P("x"),
    )
    with pytest.raises(error, match=text):
        f(np.ones((32, 3), np.float32))
