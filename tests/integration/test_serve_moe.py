"""The serving example: the same texts whatever carries the tokens, and a decode loop that is the model's own."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys

import mp
import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
SERVE = EXAMPLES / "serve_moe.py"
BATCH, PROMPT, NEW = 8, 8, 6
SIZES = ["--width", 32, "--layers", 2, "--heads", 2, "--hidden", 32]
TINY = [*SIZES, "--batch", BATCH, "--prompt", PROMPT, "--new-tokens", NEW]
# Without the sharp logits of a trained model, a temperature makes texts that differ from each other.
WARM = ["--temperature", 0.5]


def run_alone(*arguments, program=SERVE, check=True):
    command = [sys.executable, str(program), *map(str, arguments)]
    env = mp.environment_alone()
    return subprocess.run(
        command, env=env, check=check, timeout=250, capture_output=True, text=True
    )


def read_results(prefix, processes):
    results = [json.loads(pathlib.Path(f"{prefix}.{i}").read_text()) for i in range(processes)]
    return np.concatenate([np.array(r["texts"]) for r in results]), results


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Texts of one process with plain jax.lax, in throughput mode all the way."""
    prefix = tmp_path_factory.mktemp("reference") / "r"
    options = ["--collectives", "lax", "--decode-mode", "throughput", "--devices", 4]
    run_alone(*TINY, *WARM, *options, "--json", prefix)
    return read_results(prefix, 1)[0]


def test_reference_writes(reference):
    assert reference.shape == (BATCH, PROMPT + NEW)
    assert len({tuple(text[PROMPT:]) for text in reference.tolist()}) == BATCH


def test_four_processes_in_low_latency_mode(reference, tmp_path):
    arguments = [str(v) for v in (*TINY, *WARM, "--json", tmp_path / "r")]
    results = mp.run_processes(SERVE, 4, args=arguments, timeout=250, check=True)
    texts, numbers = read_results(tmp_path / "r", 4)
    assert texts.tolist() == reference.tolist()
    out = results[0].stdout
    assert re.search(r"prefill +\d+ tokens/s \(64 in [\d.]+ s\) in throughput mode", out)
    assert re.search(
        r"decode +\d+ tokens/s \(40 in [\d.]+ s\) in low_latency mode, [\d.]+ ms a step", out
    )
    assert "8 experts, top-2, over axis ('ep',) of 4: 2 each" in out
    assert numbers[0]["decode_tokens"] == BATCH * (NEW - 1)
    assert all(result.stdout == "" for result in results[1:])


@pytest.mark.slow
def test_texts_that_end_stay_ended(tmp_path):
    options = ["--stop-at-newline", "--temperature", 5, "--devices", 2, "--batch", 64]
    more = ["--new-tokens", 24, "--json", tmp_path / "r"]
    run_alone(*TINY, *options, *more)
    texts, (numbers,) = read_results(tmp_path / "r", 1)
    ended = served = 0
    for text in texts[:, PROMPT:].tolist():
        end = text.index(10) if 10 in text else len(text)
        ended += end < len(text)
        served += min(end, len(text) - 1)
        assert all(byte == 10 for byte in text[end:])
    assert 0 < ended < len(texts)
    assert numbers["decode_tokens"] == served


@pytest.mark.slow
def test_serves_what_was_trained(tmp_path):
    path = tmp_path / "weights.npz"
    train = ["--steps", 12, "--warmup", 2, "--learning-rate", 0.01, "--sequence", 32, "--batch", 8]
    train = [*SIZES, *train, "--held-out-batch", 8, "--out", "", "--save", path]
    mp.run_processes(
        EXAMPLES / "train_moe.py", 2, args=[str(v) for v in train], timeout=250, check=True
    )
    run_alone(*TINY, "--devices", 2, "--weights", path, "--json", tmp_path / "r")
    texts = read_results(tmp_path / "r", 1)[0][:, PROMPT:]
    # After a few steps the model knows which bytes are frequent; an untrained one writes any.
    assert set(texts.ravel().tolist()) <= set(b" \n_abcdefghijklmnopqrstuvwxyz.,()=:'\"#")
    wrong = run_alone(*TINY, "--devices", 2, "--weights", path, "--hidden", 64, check=False)
    assert wrong.returncode == 1 and "does not fit the model in 6 parameters" in wrong.stderr


def test_uneven_batch_is_refused():
    wrong = run_alone("--devices", 3, "--batch", 4, check=False)
    assert wrong.returncode == 1 and "--batch must be a multiple of 3 devices" in wrong.stderr


def test_prefill_and_decode_are_the_model(mesh_of, monkeypatch):
    """Logits of a text read in pieces, with caches, are those of the whole text."""
    import jax
    from flax import nnx
    from jax.sharding import PartitionSpec as P

    monkeypatch.syspath_prepend(str(EXAMPLES))
    from moe_model import ModelConfig, MoELanguageModel

    sizes = dict(vocabulary=11, width=8, layers=2, heads=2, experts=4, hidden=6, sequence=7)
    models = [
        MoELanguageModel(ModelConfig(**sizes, mode=mode), rngs=nnx.Rngs(0))
        for mode in ("throughput", "low_latency")
    ]
    graphs, states = zip(*map(nnx.split, models), strict=True)
    tokens = np.random.default_rng(0).integers(0, 11, (4, 7))

    def run(state, tokens):
        model, server = (nnx.merge(graph, state) for graph in graphs)
        whole, _ = model(tokens)
        caches = jax.tree.map(
            lambda leaf: jax.lax.pcast(leaf, "ep", to="varying"), model.empty_cache(2)
        )
        pieces, (logits, caches) = [], model.extend(tokens[:, :4], caches, 0)
        for at in range(4, 7):
            pieces.append(logits)
            logits, caches = server.extend(tokens[:, at : at + 1], caches, at)
        return whole[:, 3:], jax.numpy.stack([*pieces, logits], axis=1)

    specs = nnx.get_partition_spec(states[0])
    mapped = jax.shard_map(
        run, mesh=mesh_of((2,), ("ep",)), in_specs=(specs, P("ep")), out_specs=P("ep")
    )
    whole, pieces = jax.jit(mapped)(states[0], tokens)
    np.testing.assert_allclose(pieces, whole, rtol=2e-4, atol=2e-5)
