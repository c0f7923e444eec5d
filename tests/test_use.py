"""jax_uccl.use(): lax's own collectives, and libraries that call them, run on this library and back again."""

from __future__ import annotations

import threading
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from collective_cases import CASES, operand
from jax import lax
from jax.lax import psum as psum_kept_from_import
from jax.sharding import PartitionSpec as P

import jax_uccl

# pbroadcast and ragged_all_to_all do not exist in lax on CPU without use().
IN_LAX = [n for n in CASES if hasattr(lax, n.removesuffix("_tiled").removesuffix("_partial"))]
BOTH = P(("a", "b"))


def _compile(f, mesh, x, check_vma=False, out_specs=BOTH):
    mapped = jax.shard_map(f, mesh=mesh, in_specs=BOTH, out_specs=out_specs, check_vma=check_vma)
    return jax.jit(mapped).lower(x).compile()


@pytest.mark.parametrize("check_vma", [False, True])
@pytest.mark.parametrize("name", IN_LAX)
def test_every_lax_collective(name, check_vma, mesh_of):
    mesh = mesh_of((2, 4), ("a", "b"))
    case, x = CASES[name], operand()
    out_specs = P("a") if check_vma and case.invariant else BOTH
    args = (mesh, x, check_vma, out_specs)
    with jax_uccl.use():
        inside = _compile(partial(case.call, lax), *args)
    own = _compile(partial(case.call, jax_uccl), *args)
    assert "jax_uccl_" in inside.as_text()
    np.testing.assert_array_equal(np.asarray(inside(x)), np.asarray(own(x)))
    if name not in ("pbroadcast", "ragged_all_to_all"):
        outside = _compile(partial(case.call, lax), *args)
        assert "jax_uccl_" not in outside.as_text()
        np.testing.assert_array_equal(np.asarray(inside(x)), np.asarray(outside(x)))


# The transpose of lax.pbroadcast raises by itself.
@pytest.mark.parametrize(
    "name", [n for n in IN_LAX if CASES[n].differentiable and n != "pbroadcast"]
)
def test_backward_passes_too(name, mesh_of):
    mesh, x = mesh_of((2, 4), ("a", "b")), operand()

    def loss(m, v):
        return jax.grad(lambda w: (CASES[name].call(m, w) ** 2).sum())(v)

    with jax_uccl.use():
        inside = _compile(partial(loss, lax), mesh, x)
    for native in ("all-reduce", "all-gather", "all-to-all", "collective-permute"):
        assert f" {native}(" not in inside.as_text()
    own = _compile(partial(loss, jax_uccl), mesh, x)
    if name != "ragged_all_to_all":  # lax's own rule has no lowering for its offsets on CPU
        np.testing.assert_allclose(np.asarray(inside(x)), np.asarray(own(x)), rtol=1e-6)


def test_one_jitted_function_inside_and_outside(mesh_of):
    mesh, x = mesh_of((8,), ("x",)), jnp.arange(8.0)
    f = jax.jit(
        jax.shard_map(
            lambda v: psum_kept_from_import(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()
        )
    )

    def runs_on_us():
        before = jax_uccl.stats()["operations_started"]
        assert float(f(x)[0]) == 28.0
        return jax_uccl.stats()["operations_started"] > before

    assert not runs_on_us()
    with jax_uccl.use():
        assert runs_on_us()
        with jax_uccl.use(False):
            assert not runs_on_us()
        assert runs_on_us()
    assert not runs_on_us()


def test_leaves_no_trace(mesh_of):
    from jax._src.interpreters import mlir

    mesh, x = mesh_of((8,), ("x",)), jnp.arange(8.0)

    def text():
        mapped = jax.shard_map(
            lambda v: lax.psum(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()
        )
        return jax.jit(mapped).lower(x).as_text()

    tables = lambda: (
        dict(mlir._platform_specific_lowerings["cpu"]),
        set(mlir._uncacheable_primitives),
    )  # noqa: E731
    before, rules = text(), tables()
    with pytest.raises(RuntimeError, match="on purpose"), jax_uccl.use():
        assert text() != before
        raise RuntimeError("on purpose")
    assert text() == before
    assert tables() == rules


def test_other_threads_are_not_affected(mesh_of):
    mesh, x = mesh_of((8,), ("x",)), jnp.arange(8.0)
    texts = []

    def compile_it():
        texts.append(_compile_line(mesh, x))

    with jax_uccl.use():
        thread = threading.Thread(target=compile_it)
        thread.start()
        thread.join()
        compile_it()
    assert ["jax_uccl_" in t for t in texts] == [False, True]


def _compile_line(mesh, x):
    mapped = jax.shard_map(lambda v: lax.psum(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
    return jax.jit(mapped).lower(x).as_text()


def test_as_a_decorator(mesh_of):
    mesh, x = mesh_of((8,), ("x",)), jnp.arange(8.0)
    assert "jax_uccl_" in jax_uccl.use()(_compile_line)(mesh, x)


def test_refusals_say_what_to_do(mesh_of):
    mesh, x = mesh_of((8,), ("x",)), jnp.arange(8.0)
    f8 = x.astype(jnp.float8_e4m3fn)
    with jax_uccl.use(), pytest.raises(jax_uccl.UnsupportedError, match="wider dtype"):
        _compile_line(mesh, f8)
    with (
        jax_uccl.use(),
        jax_uccl.strict_order(),
        pytest.raises(jax_uccl.UcclValueError, match="call the functions of jax_uccl"),
    ):
        _compile_line(mesh, x)


class _Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(16)(x))
        # Flax itself calls lax.pmean here.
        x = nn.BatchNorm(use_running_average=False, axis_name="data")(x)
        return nn.Dense(1)(x)[:, 0]


def test_unmodified_flax_and_optax_training(mesh_of):
    mesh = mesh_of((8,), ("data",))
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 5)).astype(np.float32), rng.normal(size=32).astype(np.float32)
    model, optimizer = _Model(), optax.adam(1e-2)
    local = model.clone()
    variables = jax.vmap(lambda v: local.init(jax.random.key(0), v), axis_name="data")(x[None, :4])
    params = jax.tree.map(lambda leaf: leaf[0], variables["params"])

    def step(params, state, x, y):
        def loss(p):
            out, _ = model.apply({"params": p}, x, mutable=["batch_stats"])
            return jnp.mean((out - y) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        grads = lax.pmean(grads, "data")
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, lax.pmean(value, "data")

    def train():
        mapped = jax.jit(
            jax.shard_map(
                step,
                mesh=mesh,
                in_specs=(P(), P(), P("data"), P("data")),
                out_specs=P(),
                check_vma=False,
            )
        )
        p, state, losses = params, optimizer.init(params), []
        for _ in range(5):
            p, state, value = mapped(p, state, x, y)
            losses.append(float(value))
        return losses, mapped.lower(p, state, x, y).compile().as_text()

    want, plain = train()
    with jax_uccl.use():
        got, text = train()
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert "jax_uccl_all_reduce" in text
    assert " all-reduce(" not in text
    assert "jax_uccl_" not in plain
