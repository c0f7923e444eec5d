"""Draws the loss curve of a run as a PNG; nothing here needs a display."""

from __future__ import annotations

import pathlib
from typing import Any

import matplotlib

matplotlib.use("Agg")  # Before pyplot, which would look for a display.
import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
from text_data import to_bits

_LN2 = 1.0 / to_bits(1.0)


def save_loss_curve(path: pathlib.Path, history: dict[str, Any], *, title: str) -> pathlib.Path:
    """Plots train and held-out loss against the unigram entropy, in nats and bits per byte."""
    train = np.asarray(history["train"], np.float64)
    steps = np.arange(1, train.size + 1)
    held_out = np.asarray(history["held_out"])
    entropy = history["unigram_entropy"]

    figure, axes = plt.subplots(figsize=(8, 4.8), layout="constrained")
    axes.plot(steps, train, color="#9ecae1", linewidth=0.8, label="train, each step")
    axes.plot(steps, _smooth(train), color="#2171b5", linewidth=2.0, label="train, smoothed")
    axes.plot(
        held_out[:, 0], held_out[:, 1], "o-", color="#d94801", markersize=4, label="held-out files"
    )
    axes.axhline(entropy, color="#636363", linestyle="--", linewidth=1.2)
    axes.annotate(
        f"unigram entropy {entropy:.2f}",
        (1.0, entropy),
        xycoords=("axes fraction", "data"),
        xytext=(-6, 4),
        textcoords="offset points",
        ha="right",
        color="#636363",
    )
    axes.annotate(
        f"{held_out[-1, 1]:.2f}",
        held_out[-1],
        xytext=(0, 8),
        textcoords="offset points",
        ha="right",
        color="#d94801",
    )
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per byte)")
    axes.set_title(title)
    axes.set_xlim(0, train.size * 1.02)
    axes.grid(alpha=0.25)
    axes.spines[["top"]].set_visible(False)
    bits = axes.secondary_yaxis("right", functions=(lambda nats: nats / _LN2, lambda b: b * _LN2))
    bits.set_ylabel("bits per byte")
    axes.legend(frameon=False, loc="best")
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def _smooth(values: npt.NDArray[np.float64], width: float = 4.0) -> npt.NDArray[np.float64]:
    """Mean with Gaussian weights around each step: unlike a running mean, it does not lag."""
    distance = np.arange(values.size)[:, None] - np.arange(values.size)
    weight = np.exp(-0.5 * (distance / width) ** 2)
    return weight @ values / weight.sum(axis=1)
