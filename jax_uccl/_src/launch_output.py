"""Output of many ranks on one terminal: whole lines, each with the prefix `[rank/size] `.

Lines of different ranks never mix within a line. A carriage return means "draw this line again":
only the last version of a line is kept. While rank 0 redraws a line (a progress bar) or leaves one
unfinished, a terminal shows it as a status line below the output of all ranks; in a file, where
nothing can be redrawn, it appears as an ordinary line once per `_STATUS_INTERVAL_S`.

Nothing here starts processes or reads pipes; that is `launch_supervisor.py`.
"""

from __future__ import annotations

import os
import select
import time
from typing import Protocol

# A bar in a log file: often enough to see that the job lives, rare enough to keep the file small.
_STATUS_INTERVAL_S = 10.0
# An unfinished line longer than this is printed in parts, so that memory stays bounded.
_MAX_LINE_BYTES = 64 * 1024
STDOUT, STDERR = 1, 2  # Stream numbers, equal to the file descriptors they come from.


class OutputSink(Protocol):
    """Receives what ranks print. `stream` is `STDOUT` or `STDERR`."""

    def write(self, rank: int, stream: int, data: bytes) -> None: ...

    def close(self, rank: int, stream: int) -> None:
        """The stream has ended; called once for each rank and stream."""

    def note(self, message: str) -> None:
        """A message of the launcher itself."""


class LineAssembler:
    """Cuts a byte stream into lines and resolves carriage returns."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the lines completed by `data`, without their newline."""
        *complete, self._pending = (self._pending + data).split(b"\n")
        lines = [_visible(line) for line in complete]
        # Only the latest version of a redrawn line matters. A carriage return at the end is kept:
        # what follows decides whether it was a redraw or half of a "\r\n".
        if b"\r" in self._pending:
            ends_with_return = self._pending.endswith(b"\r")
            self._pending = (
                b"\r" + _last_drawn(self._pending) + (b"\r" if ends_with_return else b"")
            )
        if len(self._pending) > _MAX_LINE_BYTES:
            lines.append(_visible(self._pending))
            self._pending = b""
        return lines

    def finish(self) -> list[bytes]:
        """Returns the last line if it has no newline."""
        line, self._pending = _visible(self._pending), b""
        return [line] if line else []

    @property
    def pending(self) -> bytes:
        """What a terminal would show of the unfinished line."""
        return _visible(self._pending)

    @property
    def is_redrawn(self) -> bool:
        """Whether the unfinished line has been drawn over with a carriage return."""
        return b"\r" in self._pending


def _last_drawn(line: bytes) -> bytes:
    drawn = line.rstrip(b"\r")
    return drawn[drawn.rfind(b"\r") + 1 :]


def _visible(line: bytes) -> bytes:
    # Blanks at the end of a redrawn line cover a longer earlier version, which is gone here.
    return _last_drawn(line).rstrip(b" ") if b"\r" in line else line


class Console:
    """Prints the lines of all ranks on this process's standard output and error.

    `write` raises `BrokenPipeError` when the reader of the output has gone. Used by one thread.
    """

    def __init__(self, size: int):
        self._prefixes = [f"[{rank}/{size}] ".encode() for rank in range(size)]
        self._assemblers: dict[tuple[int, int], LineAssembler] = {}
        is_dumb = os.environ.get("TERM", "dumb") == "dumb"
        self._terminals = {s: os.isatty(s) and not is_dumb for s in (STDOUT, STDERR)}
        self._status: tuple[int, bytes] | None = None  # Stream and text now on the terminal.
        self._next_status_s = time.monotonic() + _STATUS_INTERVAL_S

    def write(self, rank: int, stream: int, data: bytes) -> None:
        assembler = self._assemblers.setdefault((rank, stream), LineAssembler())
        self._print(rank, stream, assembler.feed(data))
        if rank == 0:
            self._show_status(stream, assembler)

    def close(self, rank: int, stream: int) -> None:
        assembler = self._assemblers.pop((rank, stream), None)
        if assembler is not None:
            self._print(rank, stream, assembler.finish())
            if rank == 0:
                self._show_status(stream, assembler)

    def note(self, message: str) -> None:
        self._emit(STDERR, f"[launch] {message}\n".encode())

    def columns(self) -> int | None:
        """Width that a rank may use on the terminal, or None where there is none."""
        for stream in (STDOUT, STDERR):
            if self._terminals[stream]:
                return max(20, _width(stream) - len(self._prefixes[-1]))
        return None

    def _print(self, rank: int, stream: int, lines: list[bytes]) -> None:
        if lines:
            prefix = self._prefixes[rank]
            self._emit(stream, b"".join(prefix + line + b"\n" for line in lines))

    def _show_status(self, stream: int, assembler: LineAssembler) -> None:
        text = assembler.pending
        if self._terminals[stream]:
            if text:
                self._draw_status((stream, text))
            elif self._status is not None and self._status[0] == stream:
                self._draw_status(None)
        elif text and assembler.is_redrawn and time.monotonic() >= self._next_status_s:
            self._next_status_s = time.monotonic() + _STATUS_INTERVAL_S
            self._print(0, stream, [text])

    def _draw_status(self, status: tuple[int, bytes] | None) -> None:
        if status == self._status:
            return
        self._erase_status()
        self._status = status
        if status is not None:
            stream, text = status
            # A status that wraps could not be erased, so it is cut at the width of the terminal.
            shown = (self._prefixes[0] + text).decode(errors="replace")
            _write_all(stream, b"\r" + shown[: _width(stream) - 1].encode())

    def _erase_status(self) -> None:
        if self._status is not None:
            _write_all(self._status[0], b"\r\x1b[2K")

    def _emit(self, stream: int, data: bytes) -> None:
        status = self._status
        self._draw_status(None)
        _write_all(stream, data)
        self._draw_status(status)


def _width(terminal: int) -> int:
    """Columns of a terminal; some do not say and report 0."""
    return os.get_terminal_size(terminal).columns or 80


def _write_all(stream: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(stream, view) :]
        except BlockingIOError:  # Whoever shares the stream has made it non-blocking.
            select.select([], [stream], [])
