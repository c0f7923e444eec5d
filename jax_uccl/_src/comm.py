"""Start and end of the native runtime in this process, and what it can say about itself.

    idle --ensure_started/init--> local                              one process: only settings apply
      ^                             | jax.distributed.initialize()
      |                             v
      |<--shutdown-- joining --all addresses known--> joined
      |                 |
      +<--shutdown-- failed: operations with other processes raise the stored error

Operations issued while joining wait in native code, so nothing here is on the path of an operation.
Finding the others is rendezvous.py's part. No thread holds `_lock` while it waits for anything: lowering
rules take it.
"""

from __future__ import annotations

import atexit
import dataclasses
import enum
import logging
import numbers
import os
import sys
import threading
import time
from typing import Any

from jax_uccl import _uccl
from jax_uccl._src import ffi_targets, rendezvous
from jax_uccl._src import jax_compat as compat
from jax_uccl._src.config import Config
from jax_uccl._src.errors import (
    CLASSES,
    CommAbortedError,
    ProtocolError,
    UcclError,
    UcclValueError,
    from_text,
)

_log = logging.getLogger("jax_uccl")

# Settings that decide how the ranks of one operation talk to each other.
_EQUAL_EVERYWHERE = (
    "backend",
    "eager_max_bytes",
    "algorithms",
    "processes_per_host",
    "executor",
    "executor_staging_bytes",
    "proxy_fifo_inflight",
)
_NAMES = {cls: name for name, cls in CLASSES.items()}


class _State(enum.Enum):
    IDLE = "idle"
    LOCAL = "local"
    JOINING = "joining"
    JOINED = "joined"
    FAILED = "failed"


@dataclasses.dataclass
class _Join:
    """One start with other processes."""

    job: compat.DistributedJob
    start: int
    done: threading.Event = dataclasses.field(default_factory=threading.Event)
    stop: threading.Event = dataclasses.field(default_factory=threading.Event)
    thread: threading.Thread | None = None


_lock = threading.Lock()  # guards all below
_state = _State.IDLE
_settings: dict[str, Any] = {}  # resolved; empty while idle
_join: _Join | None = None
_error: UcclError | None = None  # why the state is FAILED
_starts = 0  # with other processes, since this process began; equal on all of them


def _raise_line(line: str | None) -> None:
    """Raises the error of a native status line."""
    if line is not None:
        raise from_text(line) or UcclError(line)


def _resolve(explicit: dict[str, str]) -> dict[str, Any]:
    """All settings: `explicit` over the environment over the defaults."""
    line, values = _uccl.make_config(explicit, dict(os.environ))
    _raise_line(line)
    return values


def _defaults() -> dict[str, Any]:
    """All settings, of which nobody has set any: what is wrong in the environment matters where something starts."""
    line, values = _uccl.make_config({}, {})
    _raise_line(line)
    return values


def _explicit(config: Any, settings: dict[str, Any]) -> dict[str, str]:
    named = {} if config is None else config.settings()
    return named | {name: str(value) for name, value in settings.items() if value is not None}


def ensure_started() -> None:
    """Starts what is not started yet, with the settings of the environment; never waits.

    Called whenever a collective is lowered. Where other processes take part, a thread looks for them.

    Raises:
      UcclValueError: an environment variable has a value that cannot be used, or is none of ours.
    """
    with _lock:
        if _settled():
            return
        _start({})


def setting(name: str) -> Any:
    """A setting in use, or while nothing is started the one of the environment. Starts nothing."""
    with _lock:
        if _state is not _State.IDLE:
            return _settings[name]
    return _resolve({})[name]


def init(config: Config | None = None, **settings: Any) -> None:
    """Starts the runtime and waits until all processes of the job have found each other.

    Only needed to give settings, or to have start-up errors raised here: otherwise the first
    collective that is traced starts the runtime. With several processes call it on each of them, after
    `jax.distributed.initialize()`. Calling it again is allowed as long as nothing asked for differs.

    Args:
      config: settings; those not given come from environment variables, then defaults.
      **settings: single settings by name, over `config`; see `jax_uccl.Config` and docs/config.md.

    Raises:
      UcclValueError: a setting is wrong, differs from the one in use, or differs between processes.
      PeerTimeoutError: processes are missing after `init_timeout_ms`; the text names them.
      PeerLostError: a process could not start, or the coordination service is gone.
      NicError: the network backend cannot be opened.

    Example:
      >>> import jax_uccl
      >>> jax_uccl.init(op_timeout_ms=60_000)
      >>> jax_uccl.shutdown()
    """
    explicit = _explicit(config, settings)
    with _lock:
        if _state is not _State.IDLE:
            _refuse_change(explicit)
        if not _settled():
            _start(explicit)
        join = _join
    ffi_targets.tell_devices()
    if join is None:
        return
    while not join.done.wait(0.1):  # in slices, so that Ctrl-C is served at once everywhere
        pass
    with _lock:
        if _join is join and _state is _State.JOINED:
            return
        error = _error if _join is join else None
    raise error or CommAbortedError("jax_uccl.shutdown() was called while init was waiting")


def shutdown(timeout: float | None = None) -> None:
    """Ends communication: waits for operations in flight and for peers' acknowledgements, in bounded time.

    What is not complete by then fails with CommAbortedError. Afterwards `init` may be called again, on all
    processes. Does nothing when nothing is started. Runs by itself when the interpreter exits.

    Args:
      timeout: seconds from 0 on; None means the setting `shutdown_timeout_ms`.

    Raises:
      UcclValueError: `timeout` is not such a number; nothing has ended.
      PeerTimeoutError: everything is closed, but a peer did not acknowledge all that was sent to it.
    """
    global _state, _settings, _join, _error
    if timeout is not None and not (isinstance(timeout, numbers.Real) and timeout >= 0):
        raise UcclValueError(
            f"shutdown: timeout={timeout!r} is no number of seconds; give one from 0 on, or None for the "
            "setting shutdown_timeout_ms"
        )
    with _lock:
        join, settings = _join, _settings
        _state, _settings, _join, _error = _State.IDLE, {}, None, None
    if timeout is None:
        timeout = (settings or _defaults())["shutdown_timeout_ms"] / 1000
    if join is not None and not join.done.is_set():
        join.stop.set()
        # Operations that wait for the other processes would only wait until the timeout.
        _fail_natively(CommAbortedError("shut down before all processes had started"))
    if join is not None and join.thread is not None:
        join.thread.join()
    _raise_line(_uccl.shutdown(timeout))


def is_initialized() -> bool:
    """Whether collectives can run: in one process after the first use or init, else once all have joined."""
    with _lock:
        return _state in (_State.LOCAL, _State.JOINED)


def stats() -> dict[str, Any]:
    """Counters of this process since it started.

    Returns:
      `state`; `process` and `processes`; `settings` in use; `operations_started`, `_failed`, `_in_flight`;
      `worker_threads`; `algorithms`: operations started, by collective and algorithm; `engine`: of all engine
      threads together turns, sleeps, commands, packets dropped for an unknown key, the number of engines and
      the CPUs they are bound to, and `nic`: system calls, datagrams, and how many left or came joined
      (segmented, joined), were refused so, and whether that is in use; `peers`: the transport's counters by
      process, with `paths`: per path (of each engine in turn) its state (up or failed), round trip, bytes in
      flight, packets sent, lost and marked; `shared_memory`: by process of this host, what went that way
      instead: messages and payload bytes sent and received, of those bytes how many were fetched in one copy or
      cut into fragments, and whether one copy is allowed; `not_shared_because`: why this process has no shared
      memory, or empty; `last_error`: the latest status line or None.

    Example:
      >>> import jax_uccl
      >>> jax_uccl.stats()["operations_in_flight"]
      0
    """
    with _lock:
        state, settings, join = _state, dict(_settings), _join
    return {
        "state": state.value,
        "process": 0 if join is None else join.job.process,
        "processes": 1 if join is None else join.job.processes,
        "settings": settings,
        **_uccl.stats(),
        "last_error": _uccl.last_error(),
    }


def status() -> list[dict[str, Any]]:
    """The operations in flight on this process; may be called from any thread, also while others hang.

    Returns:
      For each: `op`, `comm`, `seq`, `elapsed_s`, `waiting_for_local` (device ids of this process that have
      not called yet) and `waiting_for_remote` ((device id, process) pairs that owe data or acknowledgements).
    """
    return list(_uccl.in_flight())


def last_error() -> UcclError | None:
    """The latest failure of an operation in this process, or None."""
    line = _uccl.last_error()
    return None if line is None else from_text(line)


# --- under _lock ------------------------------------------------------------------------------------


def _settled() -> bool:
    """Whether there is nothing to start."""
    if _state is _State.IDLE:
        return False
    job = compat.distributed_job()
    if job is None:
        return True
    if _join is None:
        return False  # jax.distributed was initialised after the first use
    if job.client is not _join.job.client:
        raise UcclValueError(
            "jax.distributed was initialised again while jax_uccl was running; call jax_uccl.shutdown() "
            "before jax.distributed.shutdown()"
        )
    return True


def _refuse_change(explicit: dict[str, str]) -> None:
    if not explicit:
        return
    wanted = _resolve(explicit)
    differing = [name for name in explicit if wanted[name] != _settings[name]]
    if differing:
        raise UcclValueError(
            "jax_uccl is already running with "
            + ", ".join(f"{name}={_settings[name]!r}" for name in differing)
            + "; init asks for "
            + ", ".join(f"{name}={wanted[name]!r}" for name in differing)
            + ". Call init before the first use, or jax_uccl.shutdown() first"
        )


def _start(explicit: dict[str, str]) -> None:
    """From IDLE or LOCAL to LOCAL, JOINING or FAILED."""
    global _state, _settings, _join, _error, _starts
    settings = _settings if _state is _State.LOCAL else _resolve(explicit)
    job = compat.distributed_job()
    if job is not None:
        _warn_of_few_cpus(settings)
    if job is None:
        _raise_line(_uccl.set_config(_as_text(settings)))
        _state, _settings = _State.LOCAL, settings
        return
    _starts += 1
    join = _Join(job, _starts)
    record, error = _record(settings, job), None
    try:
        record = dataclasses.replace(
            record,
            address=_open(settings, job),
            settings={**record.settings, **_tuning(settings)},
        )
    except UcclError as caught:
        # Not raised from here: it is init's to raise, and the error of the operations that need the others.
        error = caught
    join.thread = threading.Thread(
        target=_run_join, args=(join, record, settings, error), name="jax_uccl-init", daemon=True
    )
    _state, _settings, _join, _error = _State.JOINING, settings, join, None
    join.thread.start()


def _warn_of_few_cpus(settings: dict[str, Any]) -> None:
    """Threads that poll on one CPU take turns, and everything waits for them."""
    allowed = len(os.sched_getaffinity(0))
    for name in ("engines", "proxy_threads"):
        if settings[name] > allowed:
            _log.warning(
                "%s=%d threads, but this process may use %d CPU(s), which slows down everything: lower the setting, "
                "or allow more (taskset, cpuset, --cpus-per-task)",
                name,
                settings[name],
                allowed,
            )


def _as_text(settings: dict[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in settings.items()}


def _open(settings: dict[str, Any], job: compat.DistributedJob) -> str:
    """Opens the engine; its address."""
    here = settings["address"] or rendezvous.local_address(job.coordinator)
    line, address = _uccl.start(_as_text(settings | {"address": here}))
    _raise_line(line)
    return str(address)


def _tuning(settings: dict[str, Any]) -> dict[str, str]:
    """What processes compare of their tuning files: not the path, but the parameters."""
    line, _, digest = _uccl.read_tuning(settings["tuning_file"])
    _raise_line(line)
    return {"tuning_file, digest of its parameters": f"{digest:016x}"}


def _record(settings: dict[str, Any], job: compat.DistributedJob) -> rendezvous.Record:
    """What to tell the others, but for the address."""
    from jax_uccl import __version__

    return rendezvous.Record(
        process=job.process,
        processes=job.processes,
        session=rendezvous.new_session() if job.process == 0 else None,
        library=__version__,
        byteorder=sys.byteorder,
        settings={name: settings[name] for name in _EQUAL_EVERYWHERE},
    )


# --- on the init thread -----------------------------------------------------------------------------


def _fail_natively(error: UcclError) -> None:
    """Operations with other processes fail with `error` from now on."""
    process = -1 if error.process is None else error.process
    _uccl.fail_startup(_NAMES.get(type(error), "Protocol"), error.detail, process)


def _find_others(join: _Join, record: rendezvous.Record, settings: dict[str, Any]) -> None:
    timeout_s = settings["init_timeout_ms"] / 1000
    addresses, session = rendezvous.exchange(
        join.job.client, join.start, record, timeout_s, stopped=join.stop.is_set
    )
    _raise_line(_uccl.connect(join.job.process, addresses, session))


def _run_join(
    join: _Join, record: rendezvous.Record, settings: dict[str, Any], error: UcclError | None
) -> None:
    """Finds the other processes. When that fails, or `error` says that this process cannot take part, tells
    our operations and the others why.
    """
    global _state, _error
    try:
        if error is None:
            _find_others(join, record, settings)
    except UcclError as caught:
        error = caught
    except rendezvous.Stopped:
        error = CommAbortedError("shut down before all processes had started")
    except (
        Exception
    ) as caught:  # of any kind: this thread has nobody to raise to, and init waits for it
        error = ProtocolError(f"start-up failed: {type(caught).__name__}: {caught}")
        error.__cause__ = caught
    if error is not None:
        _fail_natively(error)
        try:
            record = dataclasses.replace(record, failure=str(error))
            rendezvous.publish(join.job.client, join.start, record, overwrite=True)
        except UcclError as untold:
            _log.warning("the other processes could not be told of the failed start: %s", untold)
    with _lock:
        if _join is join:
            _state, _error = (_State.JOINED, None) if error is None else (_State.FAILED, error)
    join.done.set()


# --- at exit ----------------------------------------------------------------------------------------


def _finish_dispatched() -> None:
    """Waits for programs that run on unobserved: their operations are part of what the peers compute.

    Bounded: operations have deadlines. Alone in the job nobody else would miss one, so there an operation
    without progress is given up after `shutdown_timeout_ms`.
    """
    with _lock:
        alone, patience = _state is _State.LOCAL, _settings.get("shutdown_timeout_ms", 0) / 1000
        idle = _state is _State.IDLE
    if idle:
        return
    marker = compat.dispatch_marker("cpu")
    progress, since, pause = None, time.monotonic(), 0.001
    while marker is not None and not marker.is_ready():
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
        counts = _uccl.stats()
        now = (counts["operations_started"], counts["operations_in_flight"])
        if now != progress or now[1] == 0:
            progress, since = now, time.monotonic()
        elif alone and time.monotonic() - since > patience:
            return


def _at_exit() -> None:
    """Ends everything before JAX does: an operation that never completes would hang the interpreter.

    Exit functions run in reverse order of registration, and importing jax has registered its own.
    """
    try:
        failure = getattr(sys, "last_value", None)  # what ended the program, if it was an exception
        if failure is None:
            _finish_dispatched()
        else:
            _uccl.abort(f"the program ended with {type(failure).__name__}: {failure}")
        shutdown()
    except UcclError as error:
        _log.warning("at exit: %s", error)
    finally:
        # A program that still runs would wait for what no longer exists.
        _uccl.abort("the interpreter has exited")


atexit.register(_at_exit)
