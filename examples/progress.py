"""A small progress bar that also works through a pipe.

On a terminal, or below `python -m jax_uccl.launch` (which relays carriage returns to the terminal,
or turns them into an occasional line in a log file), the bar is redrawn in place. On any other
stream it prints one plain line per tenth of the work. No part of it asks for a terminal.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import TextIO

_REDRAW_INTERVAL_S = 0.1
_BAR_CELLS = 24


class ProgressBar:
    """Shows `done / total` with a status text; a disabled bar (ranks above 0) prints nothing."""

    def __init__(self, total: int, *, enabled: bool = True, stream: TextIO = sys.stdout):
        self._total = total
        self._enabled = enabled
        self._stream = stream
        self._in_place = stream.isatty() or "JAX_UCCL_LAUNCH_RANK" in os.environ
        self._start_s = time.monotonic()
        self._first: tuple[int, float] | None = None  # Work done at the first update, and when.
        self._next_redraw_s = 0.0
        self._drawn_width = 0
        self._next_tenth = 1

    def update(self, done: int, status: str) -> None:
        """Redraws the bar; the last update is always drawn and ends the line."""
        if not self._enabled:
            return
        now_s = time.monotonic()
        self._first = self._first or (done, now_s)
        finished = done >= self._total
        if self._in_place:
            if not finished and now_s < self._next_redraw_s:
                return
            self._next_redraw_s = now_s + _REDRAW_INTERVAL_S
        elif not finished and done * 10 < self._total * self._next_tenth:
            return
        self._next_tenth = done * 10 // self._total + 1
        line = self._render(done, status, now_s)
        self._write(line, end="\n" if finished or not self._in_place else "")

    def log(self, line: str) -> None:
        """Prints a line that stays, above the bar."""
        if self._enabled:
            self._write(line, end="\n")

    def _render(self, done: int, status: str, now_s: float) -> str:
        filled = _BAR_CELLS * done // self._total
        bar = "#" * filled + "." * (_BAR_CELLS - filled)
        line = f"[{bar}] {done}/{self._total} {status} {_clock(now_s - self._start_s)}"
        # What came before the first update is not counted: compilation says nothing of the rest.
        first_done, first_s = self._first or (done, now_s)
        if first_done < done < self._total:
            left_s = (now_s - first_s) * (self._total - done) / (done - first_done)
            line += f", {_clock(left_s)} left"
        if self._in_place:  # A wrapped line could not be overwritten.
            line = line[: shutil.get_terminal_size((110, 24)).columns - 1]
        return line

    def _write(self, line: str, *, end: str) -> None:
        # Blanks cover what is left of a longer line drawn before; works without escape codes.
        start = "\r" if self._in_place else ""
        self._stream.write(start + line.ljust(self._drawn_width) + end)
        self._stream.flush()
        self._drawn_width = 0 if end else len(line)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
