"""Starts the processes of a local job, relays their output, and sees to it that all of them end.

Each rank leads a session and process group of its own, so a signal reaches everything it started.
A job ends in one of these ways; `Outcome.exit_code` says which:

    RUNNING --all ranks exit with 0--------------------------------> DONE, 0
       |----a rank fails-----------> TERM . grace . KILL ----------> DONE, its code (128 + signal)
       |----SIGINT, TERM, HUP------> same signal . grace . KILL ---> DONE, 128 + signal
       |----timeout----------------> USR2 . dump . TERM . grace . KILL -> DONE, 124
       '----reader of output gone--> TERM . grace . KILL ----------> DONE, 141

SIGUSR2 makes `launch_child.py` dump its Python stacks. The first cause wins; a second signal kills
at once. Against the death of the launcher itself stand the parent-death signal (in the child) and
the guard process (`launch_guard.py`). Needs POSIX. Single-threaded: the parent-death signal is tied
to the thread that starts a process, so `run_job` is called from a thread that outlives the job.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType

from jax_uccl._src.launch_job import Job, child_environment, reserved_address
from jax_uccl._src.launch_output import STDERR, STDOUT, OutputSink

EXIT_TIMEOUT = 124  # As coreutils' timeout.
_DUMP_S = 0.5  # Time to print the stacks of a stuck process.
_DRAIN_S = 1.0  # Output is read this long after the last rank; only a stray process holds it open.
_POLL_S = 0.05  # Where the system has no pidfd_open.
_READ_BYTES = 64 * 1024
_FOLDER = pathlib.Path(__file__).parent
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a job ended: the launcher's exit code, and that of each rank as `subprocess` gives it."""

    exit_code: int
    rank_codes: tuple[int, ...]

    @property
    def timed_out(self) -> bool:
        return self.exit_code == EXIT_TIMEOUT


def run_job(job: Job, sink: OutputSink, *, forward_signals: bool = False) -> Outcome:
    """Runs a job to its end; no process of it is left when this returns or raises.

    Args:
      job: what to run.
      sink: receives the output of the ranks, on the calling thread.
      forward_signals: handle SIGINT, SIGTERM and SIGHUP as above while the job runs. Needs the main
        thread. Without it a `KeyboardInterrupt` kills the job and propagates.
    """
    with contextlib.ExitStack() as stack:
        coordinator = stack.enter_context(reserved_address())
        guard = stack.enter_context(_Guard())
        supervisor = stack.enter_context(_Supervisor(job, sink, guard))
        if forward_signals:
            stack.enter_context(_signals_to(supervisor.on_signal))
        supervisor.start(coordinator)
        return supervisor.run()


@dataclasses.dataclass
class _Rank:
    process: subprocess.Popen[bytes]
    pidfd: int | None
    code: int | None = None
    is_reaping: bool = False  # From just before its number may be reused by the system.
    was_told: bool = False  # Has been sent the signal that the launcher received.


class _Supervisor:
    """Owns the processes of one job. All methods on one thread; `on_signal` in its handlers."""

    def __init__(self, job: Job, sink: OutputSink, guard: _Guard):
        self._job = job
        self._sink = sink
        self._guard = guard
        self._selector = selectors.DefaultSelector()
        self._ranks: list[_Rank] = []
        self._open_streams = 0
        self._exit_code: int | None = None  # Set by the first cause that ends the job.
        self._pending_signals: deque[tuple[float, signal.Signals]] = deque()
        self._first_failure = 0
        self._received: signal.Signals | None = None
        # Written by on_signal: Python resumes a select() after a handler, this ends it.
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_out, False)
        self._selector.register(self._wake_in, selectors.EVENT_READ, ("wake", 0, 0))

    def __enter__(self) -> _Supervisor:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for rank in self._running():
            self._send(rank, signal.SIGKILL)
        for rank in self._running():
            self._reap_one(rank)
        for key in list(self._selector.get_map().values()):
            if key.data[0] == "stream":
                key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
        os.close(self._wake_in)
        os.close(self._wake_out)

    def start(self, coordinator: str) -> None:
        for index in range(self._job.size):
            if self._received is not None:
                return  # A signal came between two starts.
            process = subprocess.Popen(
                [sys.executable, str(_FOLDER / "launch_child.py"), *self._job.command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=child_environment(self._job, index, coordinator),
                start_new_session=True,
            )
            self._guard.watch(process.pid)
            rank = _Rank(process, _open_pidfd(process.pid))
            self._ranks.append(rank)
            if rank.pidfd is not None:
                self._selector.register(rank.pidfd, selectors.EVENT_READ, ("exit", index, 0))
            for pipe, stream in ((process.stdout, STDOUT), (process.stderr, STDERR)):
                assert pipe is not None  # Asked for above.
                os.set_blocking(pipe.fileno(), False)
                self._selector.register(pipe, selectors.EVENT_READ, ("stream", index, stream))
                self._open_streams += 1

    def run(self) -> Outcome:
        now_s = time.monotonic()
        timeout_s = self._job.timeout_s
        end_s = None if timeout_s is None else now_s + timeout_s
        drain_end_s: float | None = None
        while True:
            self._turn(now_s, end_s, drain_end_s)
            now_s = time.monotonic()
            self._take_signal(now_s)
            self._reap(now_s)
            if not self._running():
                # Every rank has ended. Their last output may still be in the pipes.
                drain_end_s = drain_end_s or now_s + _DRAIN_S
                if self._open_streams == 0 or now_s >= drain_end_s:
                    break
            elif end_s is not None and now_s >= end_s:
                self._on_timeout(now_s)
                end_s = None
            self._send_due(now_s)
        self._close_streams()
        codes = tuple(rank.code for rank in self._ranks if rank.code is not None)
        return Outcome(self._exit_code or self._first_failure, codes)

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Passes a signal on at once, even where the loop is stuck writing to a slow reader.

        Interrupts the loop between any two of its instructions, so it changes nothing but the two
        fields that exist for it; `_take_signal` does the rest. A second signal kills.
        """
        del frame
        is_second = self._received is not None
        self._received = self._received or signal.Signals(number)
        for rank in list(self._ranks):
            if not rank.is_reaping:
                self._send(rank, signal.SIGKILL if is_second else signal.Signals(number))
                rank.was_told = True
        with contextlib.suppress(BlockingIOError):  # Full of earlier wake-ups.
            os.write(self._wake_out, b"s")

    def _take_signal(self, now_s: float) -> None:
        if self._received is None:
            return
        for rank in self._running():
            if not rank.was_told:  # It was being started when the signal came.
                self._send(rank, self._received)
                rank.was_told = True
        if self._exit_code is None:
            self._exit_code = 128 + self._received
            self._note(f"received {self._received.name}; ending all ranks")
            self._pending_signals.append((now_s + self._job.grace_s, signal.SIGKILL))

    def _turn(self, now_s: float, *deadlines: float | None) -> None:
        """Waits for output, an exit or a deadline, and relays the output."""
        waits = [deadline - now_s for deadline in deadlines if deadline is not None]
        waits += [due_s - now_s for due_s, _ in self._pending_signals]
        if any(rank.pidfd is None for rank in self._running()):
            waits.append(_POLL_S)
        timeout = max(0.0, min(waits)) if waits else None
        for key, _ in self._selector.select(timeout):
            kind, index, stream = key.data
            if kind == "stream":
                self._relay(key.fd, index, stream, key.fileobj)
            elif kind == "wake":
                os.read(self._wake_in, _READ_BYTES)

    def _relay(self, fd: int, index: int, stream: int, pipe: object) -> None:
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return
        try:
            if data:
                self._sink.write(index, stream, data)
                return
            self._sink.close(index, stream)
        except BrokenPipeError:
            # Nobody reads any more. The pipes are drained all the same, so that ranks can end.
            self._sink = _Discard()
            self._end(128 + signal.SIGPIPE, None)
        if not data:
            self._selector.unregister(fd)
            pipe.close()  # type: ignore[attr-defined]
            self._open_streams -= 1

    def _close_streams(self) -> None:
        """Ends streams that a stray process keeps open."""
        for key in list(self._selector.get_map().values()):
            kind, index, stream = key.data
            if kind == "stream":
                with contextlib.suppress(BrokenPipeError):
                    self._sink.close(index, stream)

    def _reap(self, now_s: float) -> None:
        for index, rank in enumerate(self._ranks):
            if rank.code is not None or not _has_exited(rank.process.pid):
                continue
            # While the leader is a zombie its number cannot be reused: what it left behind in its
            # group is killed before it is reaped.
            self._send(rank, signal.SIGKILL)
            self._reap_one(rank)
            code = rank.process.returncode
            if code == 0:
                continue
            exit_code = code if code > 0 else 128 - code
            self._first_failure = self._first_failure or exit_code
            if self._job.end_on_failure:
                others = "; ending the others" if self._running() else ""
                self._end(exit_code, f"rank {index} {_describe(code)}{others}", now_s)

    def _reap_one(self, rank: _Rank) -> None:
        rank.is_reaping = True
        rank.code = rank.process.wait()
        self._guard.unwatch(rank.process.pid)
        if rank.pidfd is not None:
            self._selector.unregister(rank.pidfd)
            os.close(rank.pidfd)
            rank.pidfd = None

    def _on_timeout(self, now_s: float) -> None:
        if self._exit_code is not None:
            return
        still = [str(index) for index, rank in enumerate(self._ranks) if rank.code is None]
        self._exit_code = EXIT_TIMEOUT
        self._note(
            f"timeout after {self._job.timeout_s:g} s; still running: rank {', '.join(still)}"
        )
        self._schedule(now_s, [(0.0, signal.SIGUSR2), (_DUMP_S, signal.SIGTERM)])

    def _end(self, exit_code: int, reason: str | None, now_s: float | None = None) -> None:
        if self._exit_code is None:
            self._exit_code = exit_code
            if reason is not None:
                self._note(reason)
            self._schedule(now_s or time.monotonic(), [(0.0, signal.SIGTERM)])

    def _schedule(self, now_s: float, steps: list[tuple[float, signal.Signals]]) -> None:
        for delay_s, number in steps:
            self._pending_signals.append((now_s + delay_s, number))
        kill_s = now_s + steps[-1][0] + self._job.grace_s
        self._pending_signals.append((kill_s, signal.SIGKILL))

    def _send_due(self, now_s: float) -> None:
        while self._pending_signals and self._pending_signals[0][0] <= now_s:
            _, number = self._pending_signals.popleft()
            for rank in self._running():
                self._send(rank, number)

    def _send(self, rank: _Rank, number: signal.Signals) -> None:
        """Signals the group of a rank that has not been reaped; a request for stacks, only it."""
        with contextlib.suppress(ProcessLookupError):  # No process of the group is left.
            if number == signal.SIGUSR2:
                os.kill(rank.process.pid, number)
            else:
                os.killpg(rank.process.pid, number)

    def _running(self) -> list[_Rank]:
        return [rank for rank in self._ranks if rank.code is None]

    def _note(self, message: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # The ranks are being ended already.
            self._sink.note(message)


class _Discard:
    """Sink for what ranks print after the reader of the launcher's output has gone."""

    def write(self, rank: int, stream: int, data: bytes) -> None:
        del rank, stream, data

    def close(self, rank: int, stream: int) -> None:
        del rank, stream

    def note(self, message: str) -> None:
        del message


class _Guard:
    """The guard process; see `launch_guard.py`."""

    def __enter__(self) -> _Guard:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_FOLDER / "launch_guard.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._process.stdin is not None  # Asked for above.
        self._process.stdin.close()
        self._process.wait()

    def watch(self, group: int) -> None:
        self._tell(f"+{group}\n")

    def unwatch(self, group: int) -> None:
        self._tell(f"-{group}\n")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None  # Asked for above.
        # A guard that somebody killed is no reason to lose the job it guards.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._process.stdin.fileno(), line.encode())


@contextlib.contextmanager
def _signals_to(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    # A signal that is ignored stays so: nohup, or a shell that starts jobs in the background.
    chosen = [number for number in _FORWARDED if signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, handler) for number in chosen}
    try:
        yield
    finally:
        for number, old in previous.items():
            signal.signal(number, old)


def _open_pidfd(pid: int) -> int | None:
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:  # A kernel before 5.3, or a sandbox that forbids the call: poll instead.
        return None


def _has_exited(pid: int) -> bool:
    """Whether the process is a zombie; leaves it one."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _describe(code: int) -> str:
    if code > 0:
        return f"exited with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:  # A real-time signal has no name.
        return f"was ended by signal {-code}"
