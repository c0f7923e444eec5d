"""jax_uccl.all_to_all against jax.lax and NumPy: values, dtypes, groups, vmap, arguments."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_uccl
from jax_uccl._src.collectives import _reference


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
