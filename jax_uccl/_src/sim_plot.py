"""Plots of `jax-uccl sim --plot`: flow completion times, queues over time, path usage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jax_uccl._src import sim_command


def save(reports: Sequence[dict[str, Any]], path: str | Path) -> None:
    """Writes one picture; the ending of `path` names its format.

    Args:
      reports: of `sim_command.simulate`.
      path: the file.

    Raises:
      ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    heat_maps = [(r, usage) for r in reports for usage in r["path_usage"][:1]]
    columns = max(2, len(heat_maps))
    figure = plt.figure(figsize=(4.5 * columns, 8), layout="constrained")
    grid = figure.add_gridspec(2, 2 * columns)

    times = figure.add_subplot(grid[0, :columns])
    for i, report in enumerate(reports):
        label = _label(report)
        for field, suffix, line in (
            ("flow_ns", "", "-"),
            ("small_flow_ns", ", small", ":"),
            ("cross_flow_ns", ", cross", "--"),
        ):
            values = [ns / 1e3 for ns in report[field]]
            shares = [(i + 1) / len(values) for i in range(len(values))]
            if values:
                name = label + suffix
                times.step(values, shares, where="post", label=name, color=f"C{i}", linestyle=line)
    times.set(xlabel="flow completion time (us)", ylabel="share of flows", ylim=(0, 1.02))
    times.legend()

    queues = figure.add_subplot(grid[0, columns:])
    for i, report in enumerate(reports):
        at = [sample[0] / 1e3 for sample in report["queue_samples"]]
        for column, word, line in ((1, "deepest", "-"), (2, "mean", "--")):
            depth = [sample[column] / 1024 for sample in report["queue_samples"]]
            label = f"{_label(report)}, {word}"
            queues.plot(at, depth, color=f"C{i}", linestyle=line, label=label)
    queues.set(xlabel="time (us)", ylabel="queue of a switch port (KiB)", ylim=(0, None))
    queues.legend()

    for i, (report, usage) in enumerate(heat_maps):
        axes = figure.add_subplot(grid[1, 2 * i : 2 * i + 2])
        megabytes = [[b / 1e6 for b in row] for row in usage["bytes"]]
        width = max(map(len, megabytes))
        padded = [row + [float("nan")] * (width - len(row)) for row in megabytes]
        image = axes.imshow(padded, aspect="auto", interpolation="nearest", vmin=0)
        axes.set(title=f"{_label(report)}: {usage['tier']}", xlabel="uplink", ylabel="switch")
        figure.colorbar(image, ax=axes, label="MB")
    figure.savefig(path)
    plt.close(figure)


def _label(report: dict[str, Any]) -> str:
    settings = report["settings"]
    if settings["transport"] == "spray":
        return f"{sim_command.transport_name(settings)}, {settings['paths']} paths"
    if settings["transport"] == "bundle":
        return f"bundle, {settings['lanes']} connections"
    return str(settings["transport"])
