"""nnx.MoE and linen.MoE against every expert on every token without any exchange."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx
from flax_cases import HIDDEN, SHARED, WIDTH, dense_layer, nnx_layer, pure, routers, tokens
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_uccl
from jax_uccl.flax import Router, deepseek_v3, mixtral, qwen3
from jax_uccl.flax import linen as uccl_linen
from jax_uccl.flax import nnx as uccl_nnx

pytestmark = pytest.mark.slow  # Most compile a layer and its gradients.


def close(ours, expected, rtol=2e-5, atol=2e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol, atol), ours, expected)


def dense_value_and_grad(router, params, x, target, valid=None):
    """Value, output and gradients of mean squared error plus losses; no gradient for the bias."""

    def objective(params, x):
        y, loss, load = dense_layer(router, params, x, valid)
        return ((y - target) ** 2).sum() + loss, (y, load)

    (value, aux), grads = jax.jit(jax.value_and_grad(objective, argnums=(0, 1), has_aux=True))(
        params, x
    )
    return value, aux, grads


def layer_value_and_grad(layer, x, target, valid=None):
    graph, params, rest = nnx.split(layer, nnx.Param, ...)

    @jax.jit
    def run(params, x):
        def objective(params, x):
            y, report = nnx.merge(graph, params, rest)(x, valid=valid)
            return ((y - target) ** 2).sum() + report.loss, (y, report.load)

        return jax.value_and_grad(objective, argnums=(0, 1), has_aux=True)(params, x)

    (value, aux), (grads, dx) = run(params, x)
    return value, aux, (nnx.to_pure_dict(grads), dx)


def assert_same(ours, expected):
    (value, (y, load), (grads, dx)), (value_, (y_, load_), (grads_, dx_)) = ours, expected
    assert load.tolist() == load_.tolist()
    close((value, y, dx), (value_, y_, dx_), 2e-5, 5e-5)
    grads_ = {**grads_, "router": {"kernel": grads_["router"]["kernel"]}}
    assert jax.tree.structure(grads) == jax.tree.structure(grads_)
    close(grads, grads_, 5e-5, 2e-4)


@pytest.mark.parametrize(
    ("name", "ranks", "experts", "implementation"),
    [
        ("mixtral", 1, 4, None),
        ("qwen3", 3, 6, None),
        ("deepseek_v3", 5, 10, None),
        ("deepseek_v3", 8, 24, None),
        ("deepseek_v3", 3, 6, "reference"),
    ],
)
def test_under_jit(mesh_of, name, ranks, experts, implementation):
    router = routers(experts)[name]
    layer = nnx_layer(router, mesh=mesh_of((ranks,), ("expert",)), implementation=implementation)
    x, target = tokens((ranks, 7)), tokens((ranks, 7), 1)
    assert_same(
        layer_value_and_grad(layer, x, target),
        dense_value_and_grad(router, pure(layer), x, target),
    )


@pytest.mark.parametrize(
    "options", [dict(mode="low_latency"), dict(experts_implementation="ragged_dot")]
)
def test_options_that_change_no_value(mesh_of, options):
    router = routers(6)["qwen3"]
    layer = nnx_layer(router, mesh=mesh_of((3,), ("expert",)), **options)
    x, target = tokens((3, 7)), tokens((3, 7), 1)
    assert_same(
        layer_value_and_grad(layer, x, target),
        dense_value_and_grad(router, pure(layer), x, target),
    )


@pytest.fixture
def fifos():
    """Collectives by kernels, FIFOs and proxies, as on a GPU."""
    jax_uccl.shutdown()
    jax_uccl.init(executor="fifo")
    yield
    jax_uccl.shutdown()


@pytest.mark.parametrize("options", [dict(), dict(mode="low_latency", implementation="native")])
def test_through_fifos(mesh_of, fifos, options):
    router = routers(6)["deepseek_v3"]
    layer = nnx_layer(router, mesh=mesh_of((3,), ("expert",)), **options)
    x, target = tokens((3, 7)), tokens((3, 7), 1)
    before = jax_uccl.stats()
    ours = layer_value_and_grad(layer, x, target)
    assert_same(ours, dense_value_and_grad(router, pure(layer), x, target))
    after = jax_uccl.stats()
    assert after["operations_started"] > before["operations_started"]
    assert after["operations_failed"] == before["operations_failed"]


def test_data_and_expert_axes_with_padding(mesh_of):
    router = routers(6)["deepseek_v3"]
    mesh = mesh_of((2, 3), ("data", "expert"))
    layer = nnx_layer(router, mesh=mesh, token_axes=("data", "expert"))
    x, target = tokens((12, 3)), tokens((12, 3), 1)
    valid = np.random.default_rng(2).random((12, 3)) < 0.6
    valid[:2] = False  # the first device has none
    target[~valid] = 0
    poisoned = np.where(valid[..., None], x, np.nan).astype(np.float32)
    ours = layer_value_and_grad(layer, poisoned, target, valid)
    assert_same(ours, dense_value_and_grad(router, pure(layer), x, target, valid))
    assert (np.asarray(ours[1][0])[~valid] == 0).all()


def inside_shard_map(layer, x, target, mesh, names, check_vma=True):
    """Value, output and gradients with everything inside; replicated parameters are summed by hand or by types."""
    graph, params, rest = nnx.split(layer, nnx.Param, ...)
    specs = nnx.get_partition_spec(params)
    pure_specs = nnx.to_pure_dict(specs)

    def local(params, rest, x, target):
        def objective(params, x):
            y, report = nnx.merge(graph, params, rest)(x)
            share = ((y - target) ** 2).sum() + report.loss_share
            return share, (y, report.load)

        (value, aux), (grads, dx) = jax.value_and_grad(objective, argnums=(0, 1), has_aux=True)(
            params, x
        )
        grads = nnx.to_pure_dict(grads)
        if not check_vma:  # nobody else sums what is the same on several devices

            def total(g, spec):
                divided = spec[0] if len(spec) else None
                return jax.lax.psum(g, tuple(n for n in names if n != divided))

            grads = jax.tree.map(total, grads, pure_specs, is_leaf=lambda v: isinstance(v, P))
        return jax.lax.psum(value, names), aux, grads, dx

    mapped = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(specs, P(), P(names), P(names)),
        out_specs=(P(), (P(names), P()), pure_specs, P(names)),
        check_vma=check_vma,
    )
    value, aux, grads, dx = jax.jit(mapped)(params, rest, x, target)
    return value, aux, (grads, dx)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_inside_shard_map(mesh_of, shape, check_vma):
    names = ("data", "expert")[-len(shape) :]
    mesh, router = mesh_of(shape, names), routers(6)["qwen3"]
    layer = nnx_layer(router, token_axes=names)  # no mesh at construction
    x, target = tokens((12, 5)), tokens((12, 5), 1)
    assert_same(
        inside_shard_map(layer, x, target, mesh, names, check_vma),
        dense_value_and_grad(router, pure(layer), x, target),
    )


def to_linen(params):
    """The arrays of an nnx layer as linen's collections."""
    params = {name: dict(part) for name, part in params.items() if part}
    variables = {"params": params}
    if (bias := params["router"].pop("bias", None)) is not None:
        variables["router_state"] = {"bias": bias}
    return variables


@pytest.mark.parametrize("name", ["mixtral", "deepseek_v3"])
def test_linen_is_the_same_layer(mesh_of, name):
    mesh, router = mesh_of((3,), ("expert",)), routers(6)[name]
    other = nnx_layer(router, mesh=mesh)
    layer = uccl_linen.MoE(HIDDEN, router, shared_hidden_features=SHARED, mesh=mesh)
    x, target = tokens((3, 7)), tokens((3, 7), 1)
    variables = to_linen(pure(other))
    shapes = lambda tree: jax.tree.map(lambda v: (jnp.shape(v), jnp.result_type(v)), nn.unbox(tree))
    assert shapes(layer.init(jax.random.key(0), x)) == shapes(variables)

    def objective(params, x):
        y, report = layer.apply({**variables, "params": params}, x)
        return ((y - target) ** 2).sum() + report.loss, (y, report.load)

    (value, aux), grads = jax.jit(jax.value_and_grad(objective, argnums=(0, 1), has_aux=True))(
        variables["params"], x
    )
    assert_same((value, aux, grads), dense_value_and_grad(router, pure(other), x, target))


def test_linen_inside_shard_map(mesh_of):
    mesh, router = mesh_of((3,), ("expert",)), routers(6)["qwen3"]
    layer = uccl_linen.MoE(HIDDEN, router)
    x = tokens((6, 5))
    whole = layer.init(jax.random.key(3), x)
    specs = nn.get_partition_spec(whole)
    assert specs["params"]["experts"]["gate"] == P("expert", None, None)
    assert specs["params"]["router"]["kernel"] == P(None, None)

    def run(variables, x):
        y, report = layer.apply(variables, x)
        return y, report.loss

    mapped = jax.shard_map(
        run, mesh=mesh, in_specs=(specs, P("expert")), out_specs=(P("expert"), P())
    )
    y, loss = jax.jit(mapped)(nn.unbox(whole), x)
    y_, loss_, _ = dense_layer(router, nn.unbox(whole)["params"], x)
    close((y, loss), (y_, loss_))

    # Initialised inside, each rank holds its part of the same values.
    init = jax.shard_map(
        lambda x: layer.init(jax.random.key(3), x),
        mesh=mesh,
        in_specs=P("expert"),
        out_specs=specs,
        check_vma=False,
    )
    close(
        jax.jit(init)(x), nn.unbox(whole), 1e-6, 1e-6
    )  # compiled and not: the last bit may differ


def test_nnx_made_inside_shard_map(mesh_of):
    mesh, router = mesh_of((3,), ("expert",)), routers(6)["qwen3"]
    x = tokens((6, 5))

    def run(x):
        layer = nnx_layer(router)
        assert layer.experts.gate.shape == (2, WIDTH, HIDDEN)
        return layer(x)[0]

    y = jax.jit(
        jax.shard_map(run, mesh=mesh, in_specs=P("expert"), out_specs=P("expert"), check_vma=False)
    )(x)
    close(y, dense_layer(router, pure(nnx_layer(router)), x)[0])


def test_mesh_of_the_context_and_other_axes(mesh_of):
    router = routers(4)["mixtral"]
    mesh = mesh_of((2, 2, 2), ("data", "expert", "model"))
    layer = nnx_layer(router, token_axes=("data", "expert"))
    x = tokens((8, 3))
    expected = dense_layer(router, pure(layer), x)[0]
    run = nnx.jit(lambda layer, x: layer(x)[0])
    with jax.set_mesh(mesh):
        close(run(layer, x), expected)
        # An operand that an axis of the mesh shards which the layer leaves alone.
        sharded = jax.device_put(x, NamedSharding(mesh, P(("data", "expert"), None, "model")))
        close(run(layer, sharded), expected)


def test_explicit_mesh(mesh_of):
    router = routers(6)["mixtral"]
    mesh = mesh_of((3,), ("expert",), axis_types=(AxisType.Explicit,))
    layer = nnx_layer(router)
    x, target = tokens((3, 7)), tokens((3, 7), 1)
    expected = dense_value_and_grad(router, pure(layer), x, target)
    with jax.set_mesh(mesh):
        placed = nnx_layer(router)
        assert placed.experts.gate.sharding.spec == P("expert", None, None)
        sharded = jax.device_put(x, NamedSharding(mesh, P("expert")))
        y = nnx.jit(lambda layer, x: layer(x)[0])(placed, sharded)
        assert jax.typeof(y).sharding.spec == P("expert", None, None)
        close(y, expected[1][0])
        assert_same(layer_value_and_grad(placed, sharded, target), expected)


def test_no_collective_of_xla_moves_tokens_or_kernels(mesh_of):
    # Sharded as the metadata says, kernels and tokens reach the exchange without being gathered first.
    mesh, router = mesh_of((4,), ("expert",)), routers(8)["qwen3"]
    layer = nnx_layer(router, mesh=mesh, shared=0)
    graph, state = nnx.split(layer)
    x = jax.device_put(tokens((4, 5)), NamedSharding(mesh, P("expert")))

    def objective(state, x):
        y, report = nnx.merge(graph, state)(x)
        return y, (y**2).sum() + report.loss

    text = jax.jit(lambda s, x: objective(s, x)[0]).lower(state, x).compile().as_text()
    for collective in ("all-gather", "all-to-all", "collective-permute", "all-reduce"):
        assert f" {collective}(" not in text and f" {collective}-start(" not in text
    grad = jax.jit(jax.grad(lambda s, x: objective(s, x)[1], argnums=(0, 1)))
    text = grad.lower(state, x).compile().as_text()
    for collective in ("all-gather", "all-to-all", "collective-permute", "all-reduce"):
        assert f" {collective}(" not in text and f" {collective}-start(" not in text


def test_low_precision(mesh_of):
    router = routers(6)["qwen3"]
    mesh = mesh_of((3,), ("expert",))
    x = tokens((3, 50))
    layer = nnx_layer(router, mesh=mesh, dtype=jnp.bfloat16)
    y, report = nnx.jit(lambda m, x: m(x))(layer, x)
    expected, loss, load = dense_layer(router, pure(layer), x)
    assert y.dtype == jnp.bfloat16 and report.loss.dtype == jnp.float32
    # The router sees x as it came, in f32: no choice differs.
    assert report.load.tolist() == load.tolist()
    close(report.loss, loss)
    error = np.abs(np.asarray(y, np.float32) - expected)
    assert error.max() < 0.03 * np.abs(expected).max()
    assert all(v.dtype == np.float32 for v in jax.tree.leaves(pure(layer)))
    low = nnx_layer(router, mesh=mesh, param_dtype=jnp.bfloat16)
    assert low.experts.gate.dtype == jnp.bfloat16

    eight = nnx_layer(router, mesh=mesh, quantize="fp8")
    y8 = nnx.jit(lambda m, x: m(x)[0])(eight, x)
    error = np.abs(np.asarray(y8) - expected)
    assert 1e-4 < error.max() < 0.1 * np.abs(expected).max()  # rounded, and not by much


def test_capacity(mesh_of):
    router = Router(4, 1)
    mesh = mesh_of((2,), ("expert",))
    layer = nnx_layer(router, mesh=mesh, capacity=4, shared=0)
    kernel = np.zeros((WIDTH, 4), np.float32)
    kernel[0] = [3.0, 0, 0, -3.0]
    layer.router.kernel[...] = kernel
    x = np.ones((2, 5, WIDTH), np.float32)
    x[1, 3:, 0] = -1  # eight tokens for expert 0, two for expert 3
    y, report = nnx.jit(lambda m, x: m(x))(layer, x)
    assert report.load.tolist() == [8, 0, 0, 2] and float(report.dropped) == 4
    served = (np.abs(np.asarray(y)) > 0).any(axis=-1)
    assert served.sum() == 6 and served[1, 3:].all()
    whole, report = nnx.jit(lambda m, x: m(x))(nnx_layer(router, mesh=mesh, shared=0), x)
    assert float(report.dropped) == 0


def test_capacity_that_does_not_hold_is_an_error(tmp_path):
    # A failed operation ends the communicator, so this happens in a process of its own.
    script = tmp_path / "overflow.py"
    script.write_text("""if True:
        import jax, jax_uccl, numpy as np
        from flax import nnx
        from jax.sharding import Mesh
        from jax_uccl.flax import Router
        from jax_uccl.flax.nnx import MoE
        mesh = Mesh(np.array(jax.devices()[:2]), ("expert",))
        layer = MoE(6, 4, Router(4, 1), mesh=mesh, capacity=4, on_overflow="error", rngs=nnx.Rngs(0))
        layer.router.kernel[...] = np.eye(6, 4, dtype=np.float32)
        run = nnx.jit(lambda m, x: m(x)[0])
        jax.block_until_ready(run(layer, np.eye(6, dtype=np.float32)[None, :4].repeat(2, 0)))
        try:
            with jax_uccl.errors():
                jax.block_until_ready(run(layer, np.ones((2, 4, 6), np.float32)))
        except jax_uccl.UcclValueError as e:
            assert "rank 0 needs capacity=8 for its rows, got capacity=4" in str(e), e
            print("refused")
        """)
    done = subprocess.run(
        [sys.executable, str(script)], check=True, timeout=200, capture_output=True, text=True
    )
    assert done.stdout == "refused\n"


def test_bias_is_updated_outside_of_the_gradient(mesh_of):
    router = deepseek_v3(4, 2, num_groups=1, topk_groups=1, bias_update_rate=0.5)
    mesh = mesh_of((2,), ("expert",))
    layer = nnx_layer(router, mesh=mesh, shared=0)
    layer.router.bias[...] = jnp.array([9.0, 8.0, 0.0, 0.0])  # everybody takes 0 and 1
    x = tokens((2, 4))

    @nnx.jit
    def step(layer, x):
        grads, report = nnx.grad(lambda m: (lambda y, r: ((y**2).sum(), r))(*m(x)), has_aux=True)(
            layer
        )
        layer.update_bias(report.load)
        return grads, report

    grads, report = step(layer, x)
    assert report.load.tolist() == [8, 8, 0, 0]
    assert layer.router.bias[...].tolist() == [8.5, 7.5, 0.5, 0.5]
    assert "bias" not in nnx.to_pure_dict(grads)["router"]  # nnx.grad is with respect to Param

    linen = uccl_linen.MoE(HIDDEN, router, mesh=mesh)
    variables = nn.unbox(linen.init(jax.random.key(0), x))
    assert variables["router_state"]["bias"].tolist() == [0.0] * 4  # init does not count as a step
    variables["router_state"]["bias"] = jnp.array([9.0, 8.0, 0.0, 0.0])
    _, state = jax.jit(lambda v: linen.apply(v, x, mutable=["router_state"]))(variables)
    assert state["router_state"]["bias"].tolist() == [8.5, 7.5, 0.5, 0.5]
    _, report = jax.jit(linen.apply)(variables, x)  # not mutable: nothing is updated
    assert report.load.tolist() == [8, 8, 0, 0]


def test_partitioning_metadata(mesh_of):
    layer = nnx_layer(routers(6)["qwen3"])
    specs = nnx.to_pure_dict(nnx.get_partition_spec(nnx.state(layer, nnx.Param)))
    assert specs["experts"] == dict.fromkeys(("gate", "up", "down"), P("expert", None, None))
    assert specs["shared"]["down"] == P(None, None)
    logical = dict(partition_names=("experts", "embed", "mlp"))
    layer = nnx_layer(routers(6)["qwen3"], **logical)
    assert layer.experts.down.out_sharding == ("experts", "mlp", "embed")
    assert layer.shared.up.out_sharding == ("embed", "mlp")
    assert layer.router.kernel.out_sharding == ("embed", None)
    linen = uccl_linen.MoE(HIDDEN, routers(6)["qwen3"], **logical)
    names = nn.get_partition_spec(linen.init(jax.random.key(0), tokens((1, 2))))["params"]
    assert names["experts"]["down"] == P("experts", "mlp", "embed")
    # An initialiser that brings its own names keeps them.
    init = jax.nn.initializers.normal(2.0)
    layer = nnx_layer(
        routers(6)["qwen3"], kernel_init=nnx.with_partitioning(init, ("a", "b", None))
    )
    assert layer.experts.gate.out_sharding == ("a", "b", None)
    assert 1.8 < float(layer.experts.gate[...].std()) < 2.2
    linen = uccl_linen.MoE(
        HIDDEN, routers(6)["qwen3"], kernel_init=nn.with_partitioning(init, ("a", "b", None))
    )
    names = nn.get_partition_spec(linen.init(jax.random.key(0), tokens((1, 2))))["params"]
    assert names["experts"]["up"] == P("a", "b", None)


def test_initial_scale_is_that_of_one_expert():
    layer = uccl_nnx.MoE(200, 300, qwen3(16, 2), rngs=nnx.Rngs(0))
    assert float(layer.experts.gate[...].std()) == pytest.approx(200**-0.5, rel=0.02)
    assert float(layer.experts.down[...].std()) == pytest.approx(300**-0.5, rel=0.02)
    assert not np.allclose(layer.experts.gate[0], layer.experts.gate[1])


def test_describe(mesh_of):
    mesh = mesh_of((2, 3), ("data", "expert"))
    layer = nnx_layer(routers(6)["qwen3"], mesh=mesh, token_axes=("data", "expert"))
    told = layer.describe()
    assert (told.ranks, told.experts_per_rank, told.token_shards) == (3, 2, 6)
    params = jax.tree.leaves(nnx.state(layer, nnx.Param))
    assert told.num_params == sum(p.size for p in params)
    assert told.num_params_per_rank == sum(p.addressable_shards[0].data.size for p in params)
    assert "6 experts, top-3, over axis ('expert',) of 3: 2 each" in str(told)
    linen = uccl_linen.MoE(
        HIDDEN,
        routers(6)["qwen3"],
        shared_hidden_features=SHARED,
        mesh=mesh,
        token_axes=("data", "expert"),
    )
    assert linen.describe(WIDTH) == told
    seen = []

    def inside(x):
        seen.append(nnx_layer(routers(6)["qwen3"]).describe())
        return x

    mesh = mesh_of((6,), ("expert",))
    jax.eval_shape(jax.shard_map(inside, mesh=mesh, in_specs=P(), out_specs=P()), 0.0)
    assert (seen[0].ranks, seen[0].experts_per_rank) == (6, 1)


def test_mismatch_is_refused(mesh_of):
    mesh, x = mesh_of((4,), ("expert",)), tokens((4, 3))
    error = lambda text: pytest.raises(jax_uccl.UcclValueError, match=text)
    with error(r"num_experts=6 is not a multiple of the 4 ranks of axis 'expert'; use 8 experts"):
        nnx_layer(mixtral(6), mesh=mesh)
    layer = nnx_layer(mixtral(6))
    with error("num_experts=6 is not a multiple"), jax.set_mesh(mesh):
        layer(x)
    with error("no axis 'expert' here. Call the layer inside jax.shard_map"):
        layer(x)
    with error("no axis 'expert' here"):
        layer.describe()
    with error(r"\['ep'\] are not axes of the mesh \('expert',\)"):
        nnx_layer(mixtral(8), mesh=mesh, axis_name="ep")
    with error(r"token_axes=\('data',\) must contain the expert axis \['expert'\]"):
        nnx_layer(mixtral(8), token_axes="data")
    layer = nnx_layer(mixtral(8), mesh=mesh)
    with error(r"x has shape \[4, 3, 5\], but must be \[..., 6\]"):
        layer(x[..., :5])
    with error(r"x has shape \[6\], but must be"):
        layer(x[0, 0])
    with error(r"leading axis of x, 3, is not a multiple of the 4 devices"):
        layer(x[:3])
    with error(r"valid has shape \[4\], but must be \[4, 3\]"):
        layer(x, valid=np.ones(4, bool))
    with error("must be bool"):
        layer(x, valid=np.ones((4, 3)))
    with error(r"sequence_coefficient=0.5 of the router needs \[..., sequence, width\]"):
        nnx_layer(mixtral(8, sequence_coefficient=0.5), mesh=mesh)(x[:, 0])
    with error("hidden_features=0 must be"):
        uccl_nnx.MoE(WIDTH, 0, mixtral(8), rngs=nnx.Rngs(0))
    with error("shared_hidden_features=-1 must be"):
        nnx_layer(mixtral(8), shared=-1)
    with error("implementation='magic' is not one of"):
        nnx_layer(mixtral(8), mesh=mesh, implementation="magic")(x)
    with error("implementation='magic' is not one of"):
        nnx_layer(mixtral(8), mesh=mesh, experts_implementation="magic")
    with error("mode='fast'"):
        nnx_layer(mixtral(8), mesh=mesh, mode="fast")(x)
    with error("no bias"):
        layer.update_bias(np.ones(8))

    inside = lambda f, names="expert", **kw: jax.shard_map(
        f, mesh=mesh_of((2, 2), ("data", "expert")), in_specs=P(names), out_specs=P(names), **kw
    )(x)
    bare = nnx_layer(mixtral(8))
    with error(
        r"experts.gate has shape \[8, 6, 10\], but must hold 4 experts here: 8 experts over 2 ranks"
    ):
        inside(lambda x: bare(x)[0])
    with error(r"inside a jax.shard_map over \('data',\) that does not bind"):
        inside(lambda x: bare(x)[0], "data", axis_names={"data"})
    both = nnx_layer(mixtral(8), token_axes=("data", "expert"))
    with error(r"only some are bound.*'data': 'not bound'"):
        inside(lambda x: both(x)[0], axis_names={"expert"})
    layer.experts.up.set_value(layer.experts.up[:4])
    with error(r"experts.up has shape \[4, 6, 10\], but must hold 8 experts here: all experts"):
        layer(x)


def test_trains_with_an_optimizer(mesh_of):
    class Model(nnx.Module):
        def __init__(self, mesh, rngs):
            router = qwen3(4, 2, balance_coefficient=0.01)
            self.embed = nnx.Linear(3, WIDTH, rngs=rngs)
            self.moe = uccl_nnx.MoE(WIDTH, HIDDEN, router, mesh=mesh, rngs=rngs)
            self.out = nnx.Linear(WIDTH, 1, rngs=rngs)

        def __call__(self, x):
            h = self.embed(x)
            y, report = self.moe(h)
            return self.out(h + y)[..., 0], report

    model = Model(mesh_of((4,), ("expert",)), nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    x = np.random.default_rng(3).normal(size=(8, 16, 3)).astype(np.float32)
    target = np.sin(2 * x[..., 0]) * x[..., 1] + np.abs(x[..., 2])

    @nnx.jit
    def step(model, optimizer):
        def objective(model):
            y, report = model(x)
            return ((y - target) ** 2).mean() + report.loss

        loss, grads = nnx.value_and_grad(objective)(model)
        optimizer.update(model, grads)
        return loss

    losses = [float(step(model, optimizer)) for _ in range(60)]
    assert losses[-1] < 0.35 * losses[0]
    assert model.moe.experts.gate.addressable_shards[0].data.shape == (1, WIDTH, HIDDEN)


def test_layers_in_a_scan_with_remat(mesh_of):
    mesh, router = mesh_of((3,), ("expert",)), routers(6)["mixtral"]

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            y, report = uccl_linen.MoE(HIDDEN, router, mesh=mesh)(x)
            return x + y, report.loss

    scanned = nn.scan(
        nn.remat(Layer),
        variable_axes={"params": 0},
        split_rngs={"params": True},
        length=2,
        metadata_params={nn.PARTITION_NAME: None},
    )()
    x = tokens((3, 4))
    variables = nn.unbox(scanned.init(jax.random.key(0), x, None))

    def ours(params):
        y, losses = scanned.apply({"params": params}, x, None)
        return (y**2).sum() + losses.sum()

    def dense(params):
        h, total = jnp.asarray(x), 0.0
        for i in range(2):
            layer = jax.tree.map(lambda p: p[i], params["MoE_0"])
            y, loss, _ = dense_layer(router, layer, h)
            h, total = h + y, total + loss
        return (h**2).sum() + total

    value, grads = jax.jit(jax.value_and_grad(ours))(variables["params"])
    value_, grads_ = jax.jit(jax.value_and_grad(dense))(variables["params"])
    close(value, value_)
    close(grads, grads_, 1e-4, 5e-4)
