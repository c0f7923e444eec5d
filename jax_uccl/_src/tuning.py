"""Parameters of the cost model from measured times: a non-negative least-squares fit, and the file.

The model is linear in its parameters as long as the same process is the slowest of a stage, so the fit is repeated with
the slopes at the parameters found before. Times are compared by their ratio: an operation of ten microseconds
counts as much as one of ten milliseconds. What the measurements say nothing about (links to other hosts in a job on
one, copies where a process has one rank) stays at its default.

Pure apart from the native cost model. What is measured, and how, is bench_command.py's part.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jax_uccl import _uccl
from jax_uccl._src.errors import UcclError, from_text

VERSION = 1
# How much a parameter at twice its default weighs against one measurement that is off by so much.
_PULL = 0.02
_SWEEPS = 20_000
_REPEATS = 16


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The time of one operation: a sum, or a movement, of `elements` per rank."""

    collective: str
    algorithm: str
    dtype: str
    elements: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Fit:
    """`params` of the model; `base_s` is what every operation costs besides (dispatch, start), whatever it runs."""

    params: dict[str, int]
    base_s: float

    def seconds(self, m: Measurement, processes: Sequence[int], hosts: str) -> float:
        """What the model says that `m` takes."""
        return self.base_s + 1e-12 * _uccl.schedule_cost(
            m.collective, m.algorithm, m.dtype, m.elements, processes, hosts, self.params
        )


def _slopes(
    m: Measurement, processes: Sequence[int], hosts: str, params: Mapping[str, int]
) -> list[float]:
    """Seconds of `m` for one more unit of each parameter."""

    def cost(values: Mapping[str, int]) -> int:
        return _uccl.schedule_cost(
            m.collective, m.algorithm, m.dtype, m.elements, processes, hosts, values
        )

    here = cost(params)
    steps = {name: max(1, value // 64) for name, value in params.items()}
    return [
        1e-12 * (cost({**params, name: params[name] + step}) - here) / step
        for name, step in steps.items()
    ]


def _least_squares(a: Any, pull: Any) -> Any:
    """The x >= 0 that brings `a @ x` close to 1, drawn to 1 with the weights `pull`: coordinate descent, which
    converges because the problem is convex."""
    gram = a.T @ a + np.diag(pull)
    target = a.sum(0) + pull
    x = np.ones(len(pull))
    for _ in range(_SWEEPS):
        before = x.copy()
        for k in range(len(x)):
            rest = target[k] - gram[k] @ x + gram[k, k] * x[k]
            x[k] = max(rest / gram[k, k], 0.0) if gram[k, k] > 0 else 0.0
        if np.abs(x - before).max() < 1e-9:
            break
    return x


def fit(measurements: Sequence[Measurement], processes: Sequence[int], hosts: str) -> Fit:
    """The parameters under which the model comes closest to the measurements.

    Args:
      measurements: of one job.
      processes: the process of each rank, in the order of the group.
      hosts: the setting `processes_per_host` of the job.

    Raises:
      ValueError: there are no measurements, or one took no time.
    """
    if not measurements or min(m.seconds for m in measurements) <= 0:
        raise ValueError("a fit needs measurements, each of which took some time")
    defaults = {row["name"]: row["default"] for row in _uccl.cost_rows()}
    # In units of the defaults, which brings all unknowns to about 1; the last one is the base, in units of the
    # fastest operation.
    units = np.array([*map(float, defaults.values()), min(m.seconds for m in measurements)])
    pull = np.array([_PULL] * len(defaults) + [0.0])
    params, base_s = defaults, 0.0
    for _ in range(_REPEATS):
        a = np.array([[*_slopes(m, processes, hosts, params), 1.0] for m in measurements])
        a *= units / np.array([[m.seconds] for m in measurements])
        *values, base_s = (_least_squares(a, pull) * units).tolist()
        found = {name: round(value) for name, value in zip(defaults, values, strict=True)}
        if found == params:
            break
        # Half of the way, so that two processes that are the slowest in turn do not swing.
        params = {name: (params[name] + value + 1) // 2 for name, value in found.items()}
    return Fit(params, base_s)


def write(path: Path, params: Mapping[str, int], note: str) -> None:
    """Writes a tuning file, and reads it back as the runtime will.

    Raises:
      UcclValueError: the runtime would not take it.
      OSError: the file cannot be written.
    """
    content = {"jax_uccl_tuning": VERSION, "note": note, **params}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    line, values, _ = _uccl.read_tuning(str(path))
    if line is not None or values != dict(params):
        raise from_text(line or "") or UcclError(f"{path} reads as {values}, was {params}")
