"""jax_uccl/_src/tuning.py: the fit finds what times were made from; the file is what the runtime reads."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest

from jax_uccl import _uccl
from jax_uccl._src import bench_command, command, tuning

ROOT = pathlib.Path(__file__).absolute().parents[1]
DEFAULTS = {row["name"]: row["default"] for row in _uccl.cost_rows()}


def _measure(params, processes, hosts="", base_s=0.0, noise=0.0):
    """Times as the model has them."""
    rng = np.random.default_rng(4)
    measured = []
    for row in _uccl.algorithms():
        if row["collective"] not in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all"):
            continue
        for elements in (24, 2400, 24_000, 240_000, 2_400_000):
            picos = _uccl.schedule_cost(
                row["collective"], row["name"], "int32", elements, processes, hosts, params
            )
            seconds = (base_s + picos * 1e-12) * (1 + noise * rng.normal())
            measured.append(
                tuning.Measurement(row["collective"], row["name"], "int32", elements, seconds)
            )
    return measured


@pytest.mark.parametrize(
    ("processes", "hosts", "found_exactly"),
    [
        ([0, 1, 2, 3], "", ("host_message_ns", "host_byte_ps", "reduce_byte_ps")),
        # Stages take as long as the links between hosts, so these hide what happens on one.
        ([0, 0, 1, 1, 2, 2], "2,1", ("network_byte_ps", "reduce_byte_ps")),
    ],
)
def test_fit_finds_what_the_times_were_made_from(processes, hosts, found_exactly):
    factors = [0.5, 2, 1.5, 0.4, 2.5, 0.7, 1, 1.6, 1, 0.6, 1]
    truth = {
        name: round(value * factor)
        for (name, value), factor in zip(DEFAULTS.items(), factors, strict=True)
    }
    found = tuning.fit(_measure(truth, processes, hosts, base_s=30e-6), processes, hosts)
    for name in found_exactly:
        assert found.params[name] == pytest.approx(truth[name], rel=0.15), name
    if not hosts:  # nothing was said about other hosts
        assert found.params["network_byte_ps"] == DEFAULTS["network_byte_ps"]
    # Latencies of steps and what every stage costs are told apart only in part; the times are right.
    for m in _measure(truth, processes, hosts, base_s=30e-6):
        assert found.seconds(m, processes, hosts) == pytest.approx(m.seconds, rel=0.1), m


def test_fit_of_disturbed_times_still_chooses_well():
    processes = [0, 1, 2, 3, 4, 5]
    truth = {**DEFAULTS, "host_latency_ns": 40_000, "host_byte_ps": 200}
    found = tuning.fit(_measure(truth, processes, base_s=20e-6, noise=0.1), processes, "")
    for elements in (24, 2400, 240_000, 2_400_000):
        args = ("all_reduce", "int32", elements, processes, "")
        chosen = _uccl.cheapest_algorithm(*args, found.params)
        best = _uccl.cheapest_algorithm(*args, truth)
        cost = [
            _uccl.schedule_cost("all_reduce", name, "int32", elements, processes, "", truth)
            for name in (chosen, best)
        ]
        assert cost[0] <= 1.25 * cost[1], (elements, chosen, best)


def test_fit_parameters_are_never_negative():
    processes = [0, 1]
    measured = [
        tuning.Measurement("all_reduce", "direct", "int32", 10, 1e-3),
        tuning.Measurement("all_reduce", "split", "int32", 100_000, 1e-6),
    ]
    found = tuning.fit(measured, processes, "")
    assert min(found.params.values()) >= 0 and found.base_s >= 0


@pytest.mark.parametrize("seconds", [[], [0.0]])
def test_fit_of_nothing_raises(seconds):
    measured = [tuning.Measurement("all_reduce", "direct", "int32", 10, s) for s in seconds]
    with pytest.raises(ValueError, match="took some time"):
        tuning.fit(measured, [0, 1], "")


def test_write_is_what_the_runtime_reads(tmp_path):
    params = {name: 3 * value + 1 for name, value in DEFAULTS.items()}
    path = tmp_path / "tuned.json"
    tuning.write(path, params, 'on "this" host')
    assert json.loads(path.read_text())["note"] == 'on "this" host'
    line, values, digest = _uccl.read_tuning(str(path))
    assert line is None and values == params
    assert digest != _uccl.read_tuning("")[2]


def test_native_costs_refuse_unknown_names():
    for collective, algorithm, dtype in [
        ("allreduce", "ring", "int32"), ("all_reduce", "best", "int32"), ("all_reduce", "ring", "int"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match="is named"):
            _uccl.schedule_cost(collective, algorithm, dtype, 8, [0, 1], "", {})


@pytest.mark.parametrize(
    "argv",
    [
        ["--rounds", "0"],
        ["--collectives", "all_reduce,barrier"],
        ["--devices", "-1"],
        ["tuned.json"],
    ],
)
def test_command_line_that_is_wrong(argv, capsys):
    with pytest.raises(SystemExit) as stop:
        bench_command.main(argv)
    assert stop.value.code == 2
    assert "jax-uccl bench" in capsys.readouterr().err


def test_command_is_listed(capsys):
    assert command.main(["--help"]) == 0
    assert "bench" in capsys.readouterr().out


def test_documentation_names_every_algorithm_and_parameter():
    text = (ROOT / "docs" / "collectives.md").read_text(encoding="utf-8")
    for row in _uccl.algorithms():
        assert f"| {row['collective']} | `{row['name']}` |" in text, row
    for row in _uccl.cost_rows():
        assert f"| `{row['name']}` | {row['default']} |" in text, row
