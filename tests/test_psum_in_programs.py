"""jax_uccl.psum and all_reduce inside programs: derivatives, control flow, export, unusual meshes, what is emitted."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_uccl
from jax_uccl._src.collectives import _reference

NATIVE = re.compile(
    r"\b(all-to-all|all-reduce|all-gather|reduce-scatter|collective-permute)(-start)?\("
)


def values(*shape, dtype=np.float32, seed=0):
    """Small integers: sums are exact in every dtype and order."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


# --- control flow and derivatives -------------------------------------------------------------------


def gradient(c, x):
    w = jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape)
    return jax.grad(lambda x: jnp.sum(c.psum(jnp.sin(x) * w, "x")) ** 2)(x)


def mean_gradient(c, x):
    return jax.value_and_grad(lambda x: jnp.sum(jnp.sin(c.all_reduce(x, "x", op="mean"))))(x)


def scan(c, x):
    def body(h, _):
        total = c.psum(jnp.sin(h), "x")
        return x + total, total

    return lax.scan(body, x, length=3)


def while_loop(c, x):
    start = (jnp.zeros(()), c.psum(x, "x"))
    step = lambda s: (s[0] + 1, s[1] + c.psum(x, "x"))
    return lax.while_loop(lambda s: s[0] < jnp.abs(jnp.sum(s[1])) % 3, step, start)[1]


def cond(c, x):
    pick = c.psum(jnp.sum(x), "x") > 0
    return lax.cond(pick, lambda x: c.psum(x, "x"), lambda x: c.psum(x * 2, "x"), x)


def remat(c, x):
    f = jax.checkpoint(lambda x: jnp.sin(c.psum(jnp.cos(x), "x")) * x)
    return jax.grad(lambda x: jnp.sum(f(f(x))))(x)


def scan_gradient(c, x):
    body = jax.checkpoint(lambda h, _: (jnp.sin(c.psum(h, "x")) * x, None))
    return jax.grad(lambda x: jnp.sum(lax.scan(body, x, length=2)[0]))(x)


def custom_vjp(c, x):
    @jax.custom_vjp
    def f(x):
        return c.psum(x, "x")

    f.defvjp(lambda x: (c.psum(x, "x"), x), lambda x, ct: (ct * jnp.sin(x),))
    return jax.grad(lambda x: jnp.sum(f(x) * 2))(x)


def second_derivative(c, x):
    f = lambda x: jnp.sum(jnp.sin(c.psum(x, "x"))) + jnp.sum(x**3)
    hvp = jax.jvp(jax.grad(f), (x,), (jnp.cos(x),))[1]
    return hvp, jax.grad(lambda x: jnp.vdot(jax.grad(f)(x), x))(x)


def linearize(c, x):
    y, f_lin = jax.linearize(lambda x: c.psum(jnp.sin(x), "x"), x)
    return y, f_lin(jnp.cos(x)), jax.jacrev(lambda x: c.psum(jnp.sum(x**2), "x"))(x)


def invariant_weight(c, x):
    """A weight that all members share: its gradient is the sum over members."""
    w = lax.pmax(jnp.arange(3.0), "x") if x is None else jnp.arange(3.0)
    return jax.grad(lambda w: c.psum(jnp.sum(jnp.sin(x[:, :3] * w)), "x"))(w)


def stop_gradient_max(c, x):
    """The usual stable softmax over members."""

    def loss(x):
        top = c.all_reduce(lax.stop_gradient(x), "x", op="max")
        e = jnp.exp(x - top)
        return jnp.sum((e / c.psum(e, "x")) * x)

    return jax.grad(loss)(x)


PROGRAMS = [
    gradient, mean_gradient, scan, while_loop, cond, remat, scan_gradient, custom_vjp,
    second_derivative, linearize, invariant_weight, stop_gradient_max,
]  # fmt: skip


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_transformations(mesh_of, against_lax, program, check_vma):
    def varying(y):
        """One row for each member, whatever the result's type."""
        missing = tuple({"x"} - set(jax.typeof(y).mat.varying)) if check_vma else ()
        return (lax.pcast(y, missing, to="varying") if missing else y).reshape(1, -1)

    against_lax(
        lambda c, x: jax.tree.map(varying, program(c, x)),
        values(8, 4),
        mesh=mesh_of((4,), ("x",)),
        in_specs=P("x"),
        out_specs=P("x"),
        check_vma=check_vma,
        rtol=1e-4,
    )


@pytest.mark.parametrize("op", ["max", "min", "prod", "and", "or"])
def test_no_derivative(mesh_of, op):
    f = jax.shard_map(
        lambda x: jax_uccl.all_reduce(x.astype(int) if op in ("and", "or") else x, "x", op=op),
        mesh=mesh_of((4,), ("x",)),
        in_specs=P("x"),
        out_specs=P(),
    )
    if op in ("and", "or"):  # integers have no tangent, so there is nothing to refuse
        assert not np.any(jax.grad(lambda x: jnp.sum(f(x)).astype(jnp.float32))(jnp.ones(4)))
        return
    with pytest.raises(NotImplementedError, match=f"op='{op}' has no derivative.*stop_gradient"):
        jax.grad(lambda x: jnp.sum(f(x)))(jnp.ones(4))


def test_eager(mesh_of, assert_same):
    mesh, x = mesh_of((4,), ("x",)), values(8, 3)

    def run(c, check_vma):
        f = lambda x: (
            c.psum(x, "x"),
            c.all_reduce(x, "x", op="min"),
            c.psum(x[0, 0], "x").reshape(1),
        )
        outs = P() if check_vma else P("x")
        return jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=outs, check_vma=check_vma)(x)

    for check_vma in (True, False):
        assert_same(run(jax_uccl, check_vma), run(_reference, check_vma))


def test_export(mesh_of):
    from jax import export

    mesh, x = mesh_of((4,), ("x",)), values(8, 3)
    f = jax.jit(
        jax.shard_map(
            lambda x: jnp.sin(x) * jax_uccl.psum(x, "x"),
            mesh=mesh,
            in_specs=P("x"),
            out_specs=P("x"),
        ),
        in_shardings=NamedSharding(mesh, P("x")),
        out_shardings=NamedSharding(mesh, P("x")),
    )
    checks = [export.DisabledSafetyCheck.custom_call("jax_uccl_all_reduce")]
    exported = export.export(f, disabled_checks=checks)(jax.ShapeDtypeStruct(x.shape, x.dtype))
    again = export.deserialize(exported.serialize(vjp_order=1))
    sharded = jax.device_put(x, NamedSharding(mesh, P("x")))
    y, vjp = jax.vjp(jax.jit(again.call), sharded)
    np.testing.assert_allclose(y, f(x), rtol=1e-6)
    np.testing.assert_allclose(vjp(y)[0], jax.vjp(f, x)[1](y)[0], rtol=1e-5)


# --- meshes that are not plain ----------------------------------------------------------------------


def test_partial_auto(mesh_of, against_lax):
    mesh = mesh_of((2, 4), ("y", "x"))
    x = jax.device_put(values(16, 8), NamedSharding(mesh, P("x", "y")))
    against_lax(
        lambda c, x: (x * c.psum(jnp.sin(x), "x"), gradient(c, x)),
        x,
        mesh=mesh,
        in_specs=P("x"),
        out_specs=P("x"),
        axis_names={"x"},
        rtol=1e-4,
    )


@pytest.mark.parametrize("check_vma", [True, False])
def test_explicit_axes_beside_manual_ones(check_vma):
    """Elementwise on the shards: nothing is gathered that the same program with lax does not gather."""
    mesh = jax.make_mesh((4, 2), ("x", "y"))
    x = jax.device_put(values(8, 6), NamedSharding(mesh, P("x", "y")))

    def natives(c):
        """Native collectives of the forward and of the backward program, by name; and the first's result."""
        g = jax.shard_map(
            lambda x: x * c.psum(x, "x"),
            in_specs=P("x"),
            out_specs=P("x"),
            axis_names={"x"},
            check_vma=check_vma,
        )
        forward = jax.jit(g).lower(x).compile()
        backward = jax.jit(jax.grad(lambda x: jnp.sum(g(x) ** 2))).lower(x).compile()
        names = [[name for name, _ in NATIVE.findall(p.as_text())] for p in (forward, backward)]
        return names, forward(x), backward(x)

    with jax.set_mesh(mesh):
        (ours_forward, ours_backward), y, dx = natives(jax_uccl)
        (lax_forward, lax_backward), want_y, want_dx = natives(lax)
    assert ours_forward.count("all-gather") <= lax_forward.count("all-gather")
    assert ours_backward.count("all-gather") <= lax_backward.count("all-gather")
    assert "all-reduce" not in ours_forward
    np.testing.assert_array_equal(y, want_y)
    np.testing.assert_array_equal(dx, want_dx)


# --- what is emitted --------------------------------------------------------------------------------


@pytest.mark.parametrize("check_vma", [True, False])
def test_no_native_collective(mesh_of, check_vma):
    """Forward and backward go through our calls only, for a varying and for a shared operand."""

    def f(x, w):
        if check_vma:
            dw = jax.grad(lambda w: jax_uccl.psum(jnp.sum(jax_uccl.psum(w, "x") * x), "x"))(w)
        else:
            dw = w
        return gradient(jax_uccl, x), dw

    mapped = jax.shard_map(
        f,
        mesh=mesh_of((4,), ("x",)),
        in_specs=(P("x"), P()),
        out_specs=(P("x"), P()),
        check_vma=check_vma,
    )
    text = jax.jit(mapped).lower(values(8, 4), values(4)).compile().as_text()
    natives = NATIVE.findall(text)
    # JAX casts `psum(w) * x` by itself, and that cast transposes to XLA's own sum.
    assert len(natives) <= (1 if check_vma else 0)
    assert 'custom_call_target="jax_uccl_all_reduce"' in text


def test_nothing_to_reduce(mesh_of):
    f = jax.jit(
        jax.shard_map(
            lambda x, e: (jax_uccl.psum(x, "one"), jax_uccl.psum(e, "x")),
            mesh=mesh_of((1, 4), ("one", "x")),
            in_specs=(P("x"), P(None, "x")),
            out_specs=(P("x"), P()),
        )
    )
    x, empty = values(8), np.zeros((0, 4), np.float32)
    assert "jax_uccl" not in f.lower(x, empty).as_text()
    got, none = f(x, empty)
    np.testing.assert_array_equal(got, x)
    assert none.shape == (0, 1)


def test_strict_order(mesh_of, against_lax):
    with jax_uccl.strict_order():
        for program in (gradient, scan, while_loop, remat, second_derivative, stop_gradient_max):
            against_lax(
                lambda c, x: jax.tree.map(lambda y: y.reshape(1, -1), program(c, x)),
                values(8, 4), mesh=mesh_of((4,), ("x",)), in_specs=P("x"), out_specs=P("x"),
                check_vma=False, rtol=1e-4,
            )  # fmt: skip
