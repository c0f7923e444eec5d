"""`jax-uccl sim --schedules N`: fault schedules by the thousand, in several threads.

A schedule is a run of which everything is drawn from its number (csrc/sim/chaos.h): fabric, workload,
transport, path policy, congestion control, sizes, limits, faults. The number alone replays it.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Any

from jax_uccl import _uccl

# Schedules that one thread runs without a break; about a tenth of a second.
_BLOCK = 50
_SECONDS_PER_REDRAW = 0.2

Summary = dict[str, Any]


def run(first: int, count: int, jobs: int = 1, bar: bool = False) -> Summary:
    """Runs the schedules `first` to `first + count - 1`.

    Args:
      first: number of the first schedule.
      count: of schedules.
      jobs: threads.
      bar: draw a progress bar on standard error.

    Returns:
      `schedules`, `violations`, `failures` ([(number, what was violated)]), what the schedules did to the
      transport (`packets`, `drops`, ...), `trace_hash` (equal for equal ranges, however many jobs) and
      `wall_s`.
    """
    begin = time.perf_counter()
    blocks = [(at, min(_BLOCK, first + count - at)) for at in range(first, first + count, _BLOCK)]
    total: Summary = {}
    drawn = 0.0
    pool = ThreadPoolExecutor(max(jobs, 1))
    try:
        futures: list[Future[Summary]] = [pool.submit(_uccl.sim_chaos, *b) for b in blocks]
        for future in as_completed(futures):
            _add(total, future.result())
            if bar and time.monotonic() - drawn > _SECONDS_PER_REDRAW:
                drawn = time.monotonic()
                done, bad = total["schedules"], len(total["failures"])
                text = f"\r{done:,} of {count:,} schedules, {bad} with violations "
                print(text, end="", file=sys.stderr, flush=True)
    finally:
        pool.shutdown(cancel_futures=True)
        if bar:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
    total["failures"].sort()
    total["trace_hash"] = f"{total['trace_hash'] % 2**64:016x}"
    total["wall_s"] = time.perf_counter() - begin
    return total


def _add(total: Summary, part: Summary) -> None:
    for name, value in part.items():
        total[name] = total[name] + value if name in total else value


def text(summary: Summary) -> str:
    """The summary for a terminal."""
    counts = (
        "packets",
        "drops",
        "corrupted",
        "duplicated",
        "marked",
        "retransmits",
        "spurious_retransmits",
        "timeouts",
    )
    lines = [
        f"{summary['schedules']:,} schedules, {len(summary['failures'])} with violations,"
        f" {summary['wall_s']:.1f} s, trace hash {summary['trace_hash']}",
        "  " + ", ".join(f"{summary[name]:,} {name.replace('_', ' ')}" for name in counts),
    ]
    for seed, what in summary["failures"]:
        lines.append(f"  ! {what}")
        lines.append(f"    replay: jax-uccl sim --schedules 1 --seed {seed}")
    return "\n".join(lines)
