"""The example trains to the same losses whatever carries its tokens, and over how many processes."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import mp
import numpy as np
import pytest

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "train_moe.py"
STEPS = 8
TINY = [
    *("--steps", STEPS, "--eval-every", 4, "--warmup", 2, "--learning-rate", 0.01),
    *("--width", 32, "--layers", 2, "--heads", 2, "--hidden", 32, "--sequence", 32),
    *("--batch", 8, "--held-out-batch", 8, "--out", ""),
]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """History of the run with jax.lax on four devices of one process, without the launcher."""
    path = tmp_path_factory.mktemp("reference") / "history.json"
    arguments = [*TINY, "--collectives", "lax", "--devices", 4, "--json", path]
    command = [sys.executable, str(EXAMPLE), *map(str, arguments)]
    subprocess.run(command, env=mp.environment_alone(), check=True, timeout=250)
    return json.loads(path.read_text())


def run_example(tmp_path, processes, devices_per_process, *more):
    path = tmp_path / "history.json"
    arguments = [str(value) for value in (*TINY, "--json", path, *more)]
    results = mp.run_processes(
        EXAMPLE, processes, devices_per_process, arguments, timeout=250, check=True
    )
    return json.loads(path.read_text()), results


def assert_same_training(history, reference):
    assert len(history["train"]) == STEPS
    np.testing.assert_allclose(history["train"], reference["train"], rtol=1e-4)
    np.testing.assert_allclose(history["held_out"], reference["held_out"], rtol=1e-4)
    np.testing.assert_allclose(history["busiest"], reference["busiest"], rtol=0.02)


def test_reference_learns(reference):
    # Guards the comparisons below: equal losses of a model that stands still would prove little.
    assert reference["train"][0] == pytest.approx(np.log(256), abs=1.0)
    assert reference["train"][-1] < reference["train"][0] - 0.5
    assert reference["held_out"][-1][1] < reference["held_out"][0][1]
    assert 1.05 < np.min(reference["busiest"])  # Devices get different numbers of tokens.


@pytest.mark.parametrize(
    ("processes", "devices"),
    [(4, 1), *(pytest.param(*layout, marks=pytest.mark.slow) for layout in ((2, 2), (1, 4)))],
)
def test_uccl_equals_lax(reference, tmp_path, processes, devices):
    history, results = run_example(tmp_path, processes, devices)
    assert history["processes"] == processes and history["devices"] == 4
    assert history["arguments"]["collectives"] == "uccl"
    assert_same_training(history, reference)
    # The numbers came by our own ways, and from every peer.
    assert sorted(history["peers"]) == [str(rank) for rank in range(1, processes)]
    assert sorted(history["shared_memory"]) == sorted(history["peers"])
    assert all(peer["bytes_sent"] > 10_000 for peer in history["shared_memory"].values())
    assert "held-out" in results[0].stdout
    assert all(result.stdout == "" for result in results[1:])


@pytest.mark.slow
def test_number_of_devices_does_not_matter(reference, tmp_path):
    history, _ = run_example(tmp_path, 2, 1)
    assert history["devices"] == 2
    assert_same_training(history, reference)


def test_uneven_split_is_refused():
    results = mp.run_processes(EXAMPLE, 3, args=["--collectives", "lax", "--out", ""])
    assert any(result.returncode == 1 for result in results)
    assert any("--batch must be a multiple of 3 devices" in result.stderr for result in results)
