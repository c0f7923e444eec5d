"""Routers and balancing against the published formulas in NumPy, token by token in float64."""

from __future__ import annotations

import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_uccl
from jax_uccl._src.flax import moe_core
from jax_uccl.flax import Router, balance, deepseek_v3, mixtral, qwen3, route, updated_bias
from jax_uccl.flax import linen as uccl_linen
from jax_uccl.flax import nnx as uccl_nnx


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def best(values, k):
    """Indices of the k largest, the lower index first among equals."""
    return sorted(range(len(values)), key=lambda i: (-values[i], i))[:k]


def mixtral_token(logits, k):
    """arXiv 2401.04088: Softmax(TopK(x W_g))."""
    chosen = best(logits, k)
    return chosen, softmax(logits[chosen])


def qwen3_token(logits, k):
    probability = softmax(logits)
    chosen = best(probability, k)
    return chosen, probability[chosen] / probability[chosen].sum()


def deepseek_token(logits, k, bias, groups, topk_groups, scale):
    """arXiv 2412.19437 equations 12-16, with the node limit as groups."""
    score = 1.0 / (1.0 + np.exp(-logits))
    ranked = score + bias
    size = len(logits) // groups
    group_score = [sum(sorted(ranked[g * size : (g + 1) * size])[-2:]) for g in range(groups)]
    open_groups = best(group_score, topk_groups)
    closed = [e for e in range(len(logits)) if e // size not in open_groups]
    ranked[closed] = -np.inf
    chosen = best(ranked, k)
    return chosen, score[chosen] / score[chosen].sum() * scale


def assert_routes(router, logits, oracle, **kwargs):
    routing = jax.jit(lambda x: route(router, x, **kwargs))(logits)
    assert routing.topk_idx.dtype == jnp.int32 and routing.topk_weights.dtype == jnp.float32
    for row, idx, weights in zip(logits, *routing, strict=True):
        chosen, expected = oracle(np.asarray(row, np.float64))
        assert idx.tolist() == list(chosen)
        np.testing.assert_allclose(weights, expected, rtol=3e-6)


@pytest.mark.parametrize(("experts", "k"), [(8, 2), (5, 1), (7, 7), (6, 3)])
def test_mixtral(experts, k):
    logits = np.random.default_rng(0).normal(0, 2, (33, experts)).astype(np.float32)
    assert_routes(mixtral(experts, k), logits, lambda x: mixtral_token(x, k))


@pytest.mark.parametrize(("experts", "k"), [(128, 8), (5, 1), (7, 7), (24, 3)])
def test_qwen3(experts, k):
    logits = np.random.default_rng(1).normal(0, 2, (33, experts)).astype(np.float32)
    assert_routes(qwen3(experts, k), logits, lambda x: qwen3_token(x, k))


@pytest.mark.parametrize(
    ("experts", "k", "groups", "topk_groups"),
    [(256, 8, 8, 4), (12, 4, 3, 2), (15, 3, 5, 1), (6, 2, 6, 2), (10, 5, 1, 1)],
)
def test_deepseek_v3(experts, k, groups, topk_groups):
    rng = np.random.default_rng(2)
    logits = rng.normal(0, 2, (33, experts)).astype(np.float32)
    # Strong and of both signs: it changes most choices, and drives some ranks below zero.
    bias = rng.normal(-0.5, 1, experts).astype(np.float32)
    router = deepseek_v3(experts, k, num_groups=groups, topk_groups=topk_groups)
    oracle = lambda x: deepseek_token(x, k, bias.astype(np.float64), groups, topk_groups, 2.5)
    assert_routes(router, logits, oracle, bias=bias)
    unbiased = [deepseek_token(x, k, 0 * bias, groups, topk_groups, 2.5)[0] for x in logits]
    biased = route(router, logits, bias=bias).topk_idx.tolist()
    assert sum(a != b for a, b in zip(unbiased, biased, strict=True)) > 5


def test_group_score_by_maximum():
    # By the two best, group 0 wins (3 + 2 against 4 + 0); by the best one, group 1.
    logits = jnp.array([3.0, 2.0, 4.0, 0.0])
    settings = dict(
        num_experts=4, top_k=1, softmax_over="topk", num_groups=2, topk_groups=1, normalize=False
    )
    assert route(Router(**settings), logits).topk_idx.tolist() == [0]
    assert route(Router(**settings, group_score="max"), logits).topk_idx.tolist() == [2]


def test_weights_without_normalising_and_with_scale():
    logits = np.random.default_rng(3).normal(size=(9, 6)).astype(np.float32)
    weights = route(Router(6, 2, normalize=False, scale=3.0), logits).topk_weights
    expected = [3.0 * np.sort(softmax(x.astype(np.float64)))[::-1][:2] for x in logits]
    np.testing.assert_allclose(weights, expected, rtol=3e-6)


@pytest.mark.parametrize("router", [mixtral(6, 3), qwen3(6, 3), Router(6, 3, score="sigmoid")])
def test_ties_go_to_the_lowest_index(router):
    assert route(router, jnp.zeros((2, 6))).topk_idx.tolist() == [[0, 1, 2]] * 2
    assert route(router, jnp.array([[1.0, 0, 1, 0, 1, 1]])).topk_idx.tolist() == [[0, 2, 4]]


def test_low_precision_logits_are_widened_first():
    logits = jnp.asarray(np.random.default_rng(4).normal(size=(5, 8)), jnp.bfloat16)
    low, wide = route(qwen3(8, 2), logits), route(qwen3(8, 2), logits.astype(jnp.float32))
    assert low.topk_weights.dtype == jnp.float32
    assert (low.topk_weights == wide.topk_weights).all()


def test_padding_tokens_choose_nothing():
    rng = np.random.default_rng(5)
    logits = rng.normal(size=(2, 5, 8)).astype(np.float32)
    valid = rng.random((2, 5)) < 0.6
    logits[~valid] = np.nan  # what padding holds must not matter
    routing = route(qwen3(8, 2), logits, valid=valid)
    assert (routing.topk_idx[~valid] == -1).all() and (routing.topk_weights[~valid] == 0).all()
    full = route(qwen3(8, 2), logits[valid])
    assert (routing.topk_idx[valid] == full.topk_idx).all()
    assert (routing.topk_weights[valid] == full.topk_weights).all()


@pytest.mark.parametrize("name", ["mixtral", "qwen3", "deepseek", "sigmoid_raw"])
def test_gradient_of_weights_against_finite_differences(name):
    experts, k = 8, 3
    router = {
        "mixtral": mixtral(experts, k),
        "qwen3": qwen3(experts, k),
        "deepseek": deepseek_v3(experts, k, num_groups=4, topk_groups=2),
        "sigmoid_raw": Router(experts, k, score="sigmoid", normalize=False),
    }[name]
    rng = np.random.default_rng(6)
    logits = rng.normal(size=(4, experts)).astype(np.float32)
    bias = rng.normal(0, 0.3, experts).astype(np.float32) if router.use_bias else None
    cotangent = rng.normal(size=(4, k))

    def oracle(flat):
        tokens = []
        for x in flat.reshape(4, experts):
            if name == "mixtral":
                tokens.append(mixtral_token(x, k)[1])
            elif name == "qwen3":
                tokens.append(qwen3_token(x, k)[1])
            elif name == "deepseek":
                tokens.append(deepseek_token(x, k, bias.astype(np.float64), 4, 2, 2.5)[1])
            else:
                score = 1.0 / (1.0 + np.exp(-x))
                tokens.append(score[best(score, k)])
        return (np.array(tokens) * cotangent).sum()

    ours = jax.grad(lambda x: (route(router, x, bias=bias).topk_weights * cotangent).sum())(logits)
    np.testing.assert_allclose(ours, finite_differences(oracle, logits), rtol=1e-4, atol=1e-6)
    if bias is not None:
        to_bias = jax.grad(lambda b: (route(router, logits, bias=b).topk_weights * cotangent).sum())
        assert (to_bias(bias) == 0).all()


def finite_differences(function, x, step=1e-6):
    flat = np.asarray(x, np.float64).ravel()
    grad = np.empty_like(flat)
    for i in range(flat.size):
        up, down = flat.copy(), flat.copy()
        up[i] += step
        down[i] -= step
        grad[i] = (function(up) - function(down)) / (2 * step)
    return grad.reshape(np.shape(x))


def losses_oracle(router, logits, topk_idx, valid):
    """(balance loss, z-loss, load) with loops; the choice is given, as it has no gradient."""
    load, probability, square, count = np.zeros(router.num_experts), 0.0, 0.0, 0
    for x, chosen, real in zip(logits, topk_idx, valid, strict=True):
        if not real:
            continue
        count += 1
        for e in chosen:
            load[e] += 1
        score = 1.0 / (1.0 + np.exp(-x)) if router.score == "sigmoid" else np.exp(x - x.max())
        probability = probability + score / score.sum()
        square += (np.log(np.exp(x - x.max()).sum()) + x.max()) ** 2
    fraction = load / load.sum()
    return router.num_experts * (fraction * probability / count).sum(), square / count, load


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_losses_and_gradients(score):
    router = Router(6, 2, score=score, balance_coefficient=0.3, z_coefficient=0.01)
    rng = np.random.default_rng(7)
    logits = rng.normal(size=(11, 6)).astype(np.float32)
    valid = np.arange(11) % 4 != 1
    routing = route(router, logits, valid=valid)

    def oracle(x):
        one, z, _ = losses_oracle(router, x.reshape(11, 6), routing.topk_idx, valid)
        return 0.3 * one + 0.01 * z

    loss = lambda x: balance(router, x, routing, valid=valid).loss
    result = balance(router, logits, routing, valid=valid)
    one, z, load = losses_oracle(router, logits.astype(np.float64), routing.topk_idx, valid)
    np.testing.assert_allclose(result.balance_loss, one, rtol=1e-6)
    np.testing.assert_allclose(result.z_loss, z, rtol=1e-6)
    assert result.load.tolist() == load.tolist() and float(result.tokens) == valid.sum()
    np.testing.assert_allclose(
        jax.grad(loss)(logits), finite_differences(oracle, logits), rtol=1e-4, atol=1e-7
    )
    assert (jax.grad(loss)(logits)[~valid] == 0).all()


def sequence_oracle(router, logits, valid):
    """arXiv 2412.19437 equations 17-20 for each sequence, token by token, averaged over sequences with tokens."""
    losses = []
    for x, real in zip(logits, valid, strict=True):
        if not real.any():
            continue
        often, mean = np.zeros(router.num_experts), np.zeros(router.num_experts)
        for token in x[real]:
            score = 1.0 / (1.0 + np.exp(-token)) if router.score == "sigmoid" else softmax(token)
            for e in best(score, router.top_k):
                often[e] += router.num_experts / (router.top_k * real.sum())
            mean += score / score.sum() / real.sum()
        losses.append((often * mean).sum())
    return np.mean(losses)


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_sequence_loss_and_gradient(score):
    router = Router(6, 2, score=score, sequence_coefficient=0.3, use_bias=True, num_groups=3)
    rng = np.random.default_rng(11)
    logits = rng.normal(size=(4, 5, 6)).astype(np.float32)
    valid = rng.random((4, 5)) < 0.7
    valid[2] = False  # a sequence of padding counts nowhere
    routing = route(router, logits, bias=np.full(6, 9.0), valid=valid)
    oracle = lambda x: 0.3 * sequence_oracle(router, x.reshape(4, 5, 6), valid)

    @jax.jit
    def losses_and_gradient(x):
        result, pull = jax.vjp(lambda x: balance(router, x, routing, valid=valid)[1:4], x)
        return result, pull((jnp.zeros(()), jnp.zeros(()), jnp.ones(())))[0]

    (of_sequences, _, loss), gradient = losses_and_gradient(logits)
    np.testing.assert_allclose(of_sequences, oracle(logits) / 0.3, rtol=1e-6)
    np.testing.assert_allclose(loss, oracle(logits), rtol=1e-6)
    np.testing.assert_allclose(gradient, finite_differences(oracle, logits), rtol=1e-4, atol=1e-7)
    assert (gradient[~valid] == 0).all()
    # A batch may be balanced where no sequence is.
    eye = jnp.stack([jnp.tile(50.0 * jnp.eye(6)[e], (4, 1)) for e in range(6)])
    router = Router(6, 1, sequence_coefficient=1.0)
    result = balance(router, eye, route(router, eye))
    np.testing.assert_allclose([result.balance_loss, result.sequence_loss], [1.0, 6.0], rtol=1e-5)


def test_balance_loss_is_one_when_balanced_and_experts_when_collapsed():
    router = Router(4, 1)
    even = jnp.eye(4) * 1e-3  # each token has another favourite, hardly preferred
    assert float(balance(router, even, route(router, even)).balance_loss) == pytest.approx(1.0)
    one = jnp.tile(jnp.array([50.0, 0, 0, 0]), (8, 1))
    assert float(balance(router, one, route(router, one)).balance_loss) == pytest.approx(4.0)


def test_a_batch_of_padding_has_no_loss():
    router = Router(4, 2, balance_coefficient=1.0, z_coefficient=1.0, sequence_coefficient=1.0)
    logits, valid = jnp.full((3, 4), jnp.nan), jnp.zeros(3, bool)
    result = balance(router, logits, route(router, logits, valid=valid), valid=valid)
    assert [float(v) for v in (result.loss, result.tokens)] == [0.0, 0.0]
    assert (result.load == 0).all()


@pytest.mark.parametrize("psum", [jax_uccl.psum, jax.lax.psum], ids=["uccl", "lax"])
@pytest.mark.parametrize("shape", [(3,), (2, 3)])
@pytest.mark.parametrize("check_vma", [True, False])
def test_losses_are_of_the_global_batch(mesh_of, psum, shape, check_vma):
    names = ("data", "expert")[-len(shape) :]
    mesh, tokens = mesh_of(shape, names), (2 * int(np.prod(shape)), 3)
    coefficients = dict(balance_coefficient=0.5, z_coefficient=0.1, sequence_coefficient=0.7)
    router = deepseek_v3(6, 2, num_groups=3, topk_groups=2, **coefficients)
    rng = np.random.default_rng(8)
    logits = rng.normal(size=(*tokens, 6)).astype(np.float32)
    valid = rng.random(tokens) < 0.7  # devices differ in how many tokens are real
    valid[1] = False  # and in how many sequences
    bias = rng.normal(0, 0.2, 6).astype(np.float32)

    def whole(x, v):
        return balance(router, x, route(router, x, bias=bias, valid=v), valid=v)

    def local(x, v):
        routing = route(router, x, bias=bias, valid=v)
        result = balance(router, x, routing, valid=v, axis_names=names, psum=psum)
        return result._replace(loss_share=psum(result.loss_share, names))

    spec = P(names)
    mapped = jax.shard_map(
        local, mesh=mesh, in_specs=(spec, spec), out_specs=P(), check_vma=check_vma
    )
    ours, expected = jax.jit(mapped)(logits, valid), whole(logits, valid)
    assert ours.load.tolist() == expected.load.tolist()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6), ours, expected)
    np.testing.assert_allclose(expected.loss_share, expected.loss)
    outside = jax.jit(jax.grad(lambda x: mapped(x, valid).loss))(logits)
    reference = jax.grad(lambda x: whole(x, valid).loss)(logits)
    np.testing.assert_allclose(outside, reference, rtol=1e-5, atol=1e-8)

    def inside(x, v):  # the other way in the docstring: each device differentiates its share
        def share(y):
            routing = route(router, y, bias=bias, valid=v)
            return balance(router, y, routing, valid=v, axis_names=names, psum=psum).loss_share

        return jax.grad(share)(x)

    per_device = jax.shard_map(
        inside, mesh=mesh, in_specs=(spec, spec), out_specs=spec, check_vma=check_vma
    )
    np.testing.assert_allclose(jax.jit(per_device)(logits, valid), reference, rtol=1e-5, atol=1e-8)
    # One sum forward, none backward.
    counted = jax.jit(per_device).lower(logits, valid).as_text()
    assert counted.count("stablehlo.all_reduce") == (psum is jax.lax.psum)


def test_bias_moves_by_the_sign_of_the_load_error():
    router = deepseek_v3(4, 2, num_groups=1, topk_groups=1, bias_update_rate=0.25)
    bias = jnp.array([0.0, 1.0, -1.0, 2.0])
    moved = updated_bias(router, bias, jnp.array([10.0, 2.0, 4.0, 0.0]))  # the mean is 4
    assert moved.tolist() == [-0.25, 1.25, -1.0, 2.25]
    assert updated_bias(router, bias, jnp.full(4, 7)).tolist() == bias.tolist()


def test_bias_balances_without_a_loss():
    router = deepseek_v3(6, 2, num_groups=1, topk_groups=1, bias_update_rate=0.02)
    rng = np.random.default_rng(9)
    skew = np.linspace(0, 3, 6)
    bias, history = jnp.zeros(6), []

    @jax.jit
    def step(bias, logits):
        load = balance(router, logits, route(router, logits, bias=bias)).load
        return updated_bias(router, bias, load), load.max() / load.mean()

    for _ in range(60):
        logits = (rng.normal(size=(256, 6)) + skew).astype(np.float32)
        bias, imbalance = step(bias, logits)
        history.append(float(imbalance))
    assert history[0] > 2.0 and np.mean(history[-5:]) < 1.3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(num_experts=0, top_k=1), "num_experts=0 must be at least 1"),
        (dict(num_experts=4, top_k=5), "top_k=5 must be between 1 and num_experts=4"),
        (dict(num_experts=4, top_k=0), "top_k=0 must be between"),
        (dict(num_experts=8, top_k=2, num_groups=3), "num_groups=3 must divide num_experts=8"),
        (dict(num_experts=8, top_k=2, num_groups=4, topk_groups=5), "topk_groups=5 must be"),
        (dict(num_experts=8, top_k=5, num_groups=4, topk_groups=2), "exceeds the 4 experts"),
        (dict(num_experts=8, top_k=2, score="relu"), "score='relu' is not one of"),
        (dict(num_experts=8, top_k=2, score="sigmoid", softmax_over="topk"), "needs score"),
        (dict(num_experts=8, top_k=2, z_coefficient=-1.0), "z_coefficient=-1.0 must not"),
    ],
)
def test_bad_router(fields, message):
    with pytest.raises(jax_uccl.UcclValueError, match=message):
        Router(**fields)


def test_bad_arguments():
    router = Router(4, 2)
    with pytest.raises(ValueError, match=r"shape \[3, 5\].*num_experts=4"):
        route(router, jnp.zeros((3, 5)))
    with pytest.raises(ValueError, match="int32, but must be floating"):
        route(router, jnp.zeros((3, 4), jnp.int32))
    with pytest.raises(ValueError, match="use_bias=False, but bias is given"):
        route(router, jnp.zeros((3, 4)), bias=jnp.zeros(4))
    with pytest.raises(ValueError, match="use_bias=True, but bias is missing"):
        route(Router(4, 2, use_bias=True), jnp.zeros((3, 4)))
    with pytest.raises(ValueError, match=r"valid is float32\[3\], but must be bool\[3\]"):
        route(router, jnp.zeros((3, 4)), valid=jnp.ones(3))
    with pytest.raises(ValueError, match="no bias; set use_bias=True"):
        updated_bias(router, jnp.zeros(4), jnp.zeros(4))


def test_layers_and_their_options_have_the_same_fields():
    # The options are defined once, in moe_core.Options; the layers repeat them for people who read signatures.
    options = {f.name: f.default for f in dataclasses.fields(moe_core.Options)}
    options |= {"axis_name": "expert", "router": dataclasses.MISSING}
    linen = {f.name: f.default for f in dataclasses.fields(uccl_linen.MoE)}
    assert {name: linen[name] for name in options} == options
    parameters = inspect.signature(uccl_nnx.MoE.__init__).parameters
    given = {name: p.default for name, p in parameters.items() if name not in ("self", "rngs")}
    given = {
        n: dataclasses.MISSING if d is inspect.Parameter.empty else d for n, d in given.items()
    }
    assert given == {n: d for n, d in linen.items() if n not in ("parent", "name")} | {
        "features": dataclasses.MISSING
    }
