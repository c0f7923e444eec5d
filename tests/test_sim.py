"""`jax-uccl sim`: the command line, its reports and plots. The simulation itself is tested in csrc/sim/."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import jax_uccl
from jax_uccl import _uccl
from jax_uccl._src import command, sim_chaos, sim_command

SMALL = ["--hosts", "8", "--bytes", "100000", "--paths", "8", "--quiet"]
SMALL_SETTINGS = {"hosts": 8, "bytes": 100_000, "paths": 8}


def test_report_is_that_of_the_seed():
    a, b = sim_command.simulate(SMALL_SETTINGS), sim_command.simulate(SMALL_SETTINGS)
    other = sim_command.simulate(SMALL_SETTINGS | {"seed": 2})
    assert a["trace_hash"] == b["trace_hash"] != other["trace_hash"]
    assert a["complete"] and a["violations"] == 0
    assert a["settings"]["hosts"] == 8 and a["flows"] == len(a["flow_ns"]) == 8
    assert 0 < a["goodput_share"] <= 1
    assert sorted(a["flow_ns"]) == a["flow_ns"]
    sent = a["network"]["sent"] + a["network"]["duplicated"]
    assert sent == a["network"]["delivered"] + a["network"]["dropped"]


@pytest.mark.parametrize("workload", [name for name, _ in _uccl.sim_workloads()])
def test_every_workload_runs_from_the_command_line(workload, capsys):
    assert sim_command.main([*SMALL, "--workload", workload]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{workload} of 100,000 bytes on leaf_spine: 8 hosts")
    assert "INCOMPLETE" not in out


def test_compare_runs_the_baselines_on_one_seed(capsys, tmp_path):
    target = tmp_path / "reports.json"
    assert sim_command.main([*SMALL, "--compare", "--seed", "7", "--json", str(target)]) == 0
    reports = json.loads(target.read_text())
    assert [r["settings"]["transport"] for r in reports] == ["spray", "single", "bundle"]
    assert {r["settings"]["seed"] for r in reports} == {7}
    assert "1.00x" in capsys.readouterr().out


def test_compare_with_credits_runs_the_same_without_them(capsys, tmp_path):
    target = tmp_path / "reports.json"
    args = [*SMALL, "--compare", "--receiver-scheduler", "eqds", "--json", str(target)]
    assert sim_command.main(args) == 0
    reports = json.loads(target.read_text())
    names = [sim_command.transport_name(r["settings"]) for r in reports]
    assert names == ["spray + eqds", "spray", "single", "bundle"]
    assert [r["transport"]["credits_sent"] > 0 for r in reports] == [True, False, False, False]
    assert "spray + eqds" in capsys.readouterr().out


def test_equal_settings_give_equal_reports_byte_for_byte():
    texts = {_uccl.simulate({"hosts": "8", "chaos": "30", "seed": "5"})[1] for _ in range(2)}
    assert len(texts) == 1


def test_schedules_run_in_threads_and_are_the_same_however_many(capsys):
    args = ["--quiet", "--seed", "11", "--json", "-"]
    summaries = []
    for jobs in ("1", "3"):
        assert sim_command.main([*args, "--schedules", "120", "--jobs", jobs]) == 0
        summaries.append(json.loads(capsys.readouterr().out))
    for summary in summaries:
        del summary["wall_s"]
    assert summaries[0] == summaries[1]
    assert summaries[0]["schedules"] == 120 and summaries[0]["failures"] == []
    assert summaries[0]["retransmits"] > 0


def test_one_schedule_shows_its_report(capsys):
    assert sim_command.main(["--quiet", "--seed", "11", "--schedules", "1", "--json", "-"]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    settings = {name: str(value) for name, value in report["settings"].items()}
    assert settings == {n: v.removesuffix(".0") for n, v in _uccl.sim_chaos_settings(11).items()}
    assert sim_command.main(["--quiet", "--seed", "11", "--schedules", "2"]) == 0
    assert "2 schedules, 0 with violations" in capsys.readouterr().out


def test_schedules_draw_their_settings(capsys):
    assert sim_command.main(["--schedules", "5", "--hosts", "4"]) == 2
    assert "draws every setting" in capsys.readouterr().err
    assert sim_command.main(["--schedules", "5", "--compare"]) == 2
    assert "exclude each other" in capsys.readouterr().err


def test_a_violation_of_a_schedule_names_its_replay():
    summary = sim_chaos.run(1, 1)
    summary["failures"] = [(7, "at 5 ns: liveness")]
    text = sim_chaos.text(summary)
    assert "1 with violations" in text
    assert "replay: jax-uccl sim --schedules 1 --seed 7" in text


def test_seeds_run_in_a_row(capsys):
    assert sim_command.main([*SMALL, "--chaos", "10", "--seeds", "3", "--json", "-"]) == 0
    reports = json.loads(capsys.readouterr().out)
    assert [r["settings"]["seed"] for r in reports] == [1, 2, 3]


def test_violation_is_shown_and_is_the_exit_code(capsys):
    args = [*SMALL, "--loss", "0.5", "--transport", "single", "--deadline-ms", "1"]
    assert sim_command.main(args) == 1
    out = capsys.readouterr().out
    assert "INCOMPLETE" in out and "liveness" in out


def test_wrong_settings_are_named(capsys):
    assert sim_command.main(["--fabric", "torus"]) == 2
    assert "unknown fabric `torus`" in capsys.readouterr().err
    assert sim_command.main(["--hosts", "many"]) == 2
    assert "hosts is `many`" in capsys.readouterr().err
    with pytest.raises(jax_uccl.UcclValueError, match="unknown setting `hostz`"):
        sim_command.simulate({"hostz": 3})


def test_progress_is_called_and_may_stop_the_run():
    seen = []
    sim_command.simulate({"hosts": 8, "bytes": 16_000_000}, seen.append)
    assert seen and seen[0]["bytes"] == 8 * 16_000_000
    assert [p["events"] for p in seen] == sorted(p["events"] for p in seen)

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sim_command.simulate({"hosts": 8, "bytes": 16_000_000}, stop)


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_plot_is_written(tmp_path, ending):
    pytest.importorskip("matplotlib")
    target = tmp_path / f"plot.{ending}"
    assert (
        sim_command.main([*SMALL, "--compare", "--workload", "mixed", "--plot", str(target)]) == 0
    )
    assert target.stat().st_size > 10_000


def test_percentile_is_the_nearest_rank():
    assert sim_command.percentile([10, 20, 30, 40], 0.5) == 20
    assert sim_command.percentile([10, 20, 30, 40], 0.51) == 30
    assert sim_command.percentile([10, 20, 30, 40], 1) == 40
    assert sim_command.percentile([10, 20, 30, 40], 0) == 10
    assert sim_command.percentile([], 0.5) == 0


def test_list_and_help_name_every_setting(capsys):
    assert sim_command.main(["--list"]) == 0
    listing = capsys.readouterr().out
    with pytest.raises(SystemExit):
        sim_command.main(["--help"])
    text = capsys.readouterr().out
    for row in _uccl.sim_settings():
        assert f"  {row['name']} " in listing
        assert "--" + row["name"].replace("_", "-") in text


def test_document_names_every_field_of_a_report():
    document = Path(__file__).absolute().parents[1] / "docs" / "simulator.md"
    if not document.exists():
        pytest.skip("the documents are not beside the tests")
    text = document.read_text()
    report = sim_command.simulate(SMALL_SETTINGS)
    assert [name for name in report if f"`{name}`" not in text] == []


def test_console_script_hands_on(capsys):
    assert command.main(["sim", "--list"]) == 0
    assert "workloads" in capsys.readouterr().out
    assert command.main(["--help"]) == 0
    assert "launch" in capsys.readouterr().out
    assert command.main([]) == 2
    assert command.main(["fly"]) == 2
    assert "unknown command 'fly'" in capsys.readouterr().err


def test_module_runs():
    done = subprocess.run(
        [sys.executable, "-m", "jax_uccl.sim", *SMALL], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "permutation of 100,000 bytes" in done.stdout
