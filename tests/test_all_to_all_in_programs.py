"""jax_uccl.all_to_all inside programs: derivatives, control flow, export, unusual meshes, what is emitted."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
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


def values(*shape, dtype=np.float32, seed=0):
    """Small integers: sums are exact in every dtype and order."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


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
    np.testing.assert_array_equal(y, raw.reshape(4, 4, 4, 6).swapaxes(0, 1).reshape(4, 16, 6))
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


def test_site_is_a_fingerprint_of_content(mesh_of):
    """What makes two operations different changes the site; the position says only where they stand."""
    mesh, two = mesh_of((4,), ("x",)), mesh_of((2, 2), ("x", "y"))
    exchange = lambda x: jax_uccl.all_to_all(x, "x", 0, 1, tiled=True)
    wide, short = values(16, 4), values(16, 2)
    programs = [
        (exchange, mesh, wide),
        (exchange, mesh, short),
        (exchange, mesh, wide.astype(np.int32)),
        (exchange, two, wide),
        (lambda x: jax_uccl.all_to_all(x, "x", 1, 0, tiled=True), mesh, wide),
        (lambda x: jax_uccl.all_to_all(x, "x", 0, 1, axis_index_groups=[[0, 1], [2, 3]], tiled=True),
         mesh, wide),
        (lambda x: jax_uccl.all_to_all(x, "x", 0, 1, axis_index_groups=[[0, 1], [3, 2]], tiled=True),
         mesh, wide),
        (lambda x: jax_uccl.all_reduce(x, "x", op="sum"), mesh, wide),
        (lambda x: jax_uccl.all_reduce(x, "x", op="max"), mesh, wide),
    ]  # fmt: skip
    sites, positions = [], set()
    for f, m, x in programs:
        mapped = jax.shard_map(f, mesh=m, in_specs=P("x"), out_specs=P("x"), check_vma=False)
        text = jax.jit(mapped).lower(x).as_text()
        sites += re.findall(r"site = (-?\d+)", text)
        positions |= set(re.findall(r"position = (-?\d+)", text))
    assert len(sites) == len(set(sites)) == len(programs)
    assert len(positions) == 1


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
