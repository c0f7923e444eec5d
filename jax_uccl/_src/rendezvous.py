"""How the processes of a job find each other: one record each in JAX's key-value store.

Record of process p in start number e, under the key `jax_uccl/<e>/<p>`:

    <record version> <length of the payload> <BLAKE2b of the payload, 16 hex digits>
    {"process": p, "processes": n, "address": ..., "session": ..., "library": ..., "byteorder": ..., "settings": {...}}

A process that could not start, or gave up, sets "failure" to the reason, so that the others need not wait
for the deadline. Process 0 draws the session, a random number that every packet is keyed with:
packets of an earlier start are then strangers. The number of the start is part of the key, so that a start
never reads the records of an earlier one.

Pure apart from the client and the clock, which are arguments. When to start, and what follows from the
addresses, is comm.py's part.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import secrets
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from jax_uccl._src.errors import (
    PeerLostError,
    PeerTimeoutError,
    ProtocolError,
    UcclError,
    UcclValueError,
)

RECORD_VERSION = 1
# Longest single wait in the client: it cannot be interrupted, and exit has to wait for its end.
SLICE_S = 0.1


class KeyValueClient(Protocol):
    """The part of JAX's coordination-service client that is used here."""

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> Any: ...

    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str: ...

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]: ...


@dataclasses.dataclass(frozen=True)
class Record:
    """What one process tells the others."""

    process: int
    processes: int = 0
    address: str = ""
    session: str | None = None  # 16 hex digits, from process 0 only
    library: str = ""
    byteorder: str = sys.byteorder
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    failure: str | None = None


class Stopped(Exception):
    """shutdown() was called meanwhile."""


def new_session() -> str:
    """A random session number, never 0."""
    return f"{secrets.randbits(64) | 1:016x}"


def _checksum(payload: str) -> str:
    return hashlib.blake2b(payload.encode(), digest_size=8).hexdigest()


def encode(record: Record) -> str:
    """The text to publish."""
    payload = json.dumps(dataclasses.asdict(record), sort_keys=True)
    return f"{RECORD_VERSION} {len(payload)} {_checksum(payload)}\n{payload}"


def decode(text: str, process: int) -> Record:
    """The record that `process` published.

    Raises:
      ProtocolError: the text is short, damaged or of another version; both values are shown.
    """

    def bad(what: str) -> ProtocolError:
        return ProtocolError(f"the start-up record of process {process} {what}", process=process)

    head, _, payload = text.partition("\n")
    fields = head.split(" ")
    if len(fields) != 3 or not fields[1].isdecimal():
        raise bad(f"starts with {head[:60]!r}, expected `<version> <length> <checksum>`")
    version, length, checksum = fields
    if version != str(RECORD_VERSION):
        raise bad(
            f"has version {version}, this process reads version {RECORD_VERSION}; "
            "install the same jax_uccl everywhere"
        )
    if len(payload) != int(length):
        raise bad(f"has {len(payload)} characters, its head says {length}")
    if _checksum(payload) != checksum:
        raise bad(f"is damaged: checksum {_checksum(payload)}, its head says {checksum}")
    try:
        record = Record(**json.loads(payload))
    except (TypeError, ValueError) as error:
        raise bad(f"cannot be read: {error}") from error
    if record.process != process:
        raise bad(f"says that it is of process {record.process}")
    return record


def _shared(record: Record) -> dict[str, Any]:
    """What must be equal on all processes, by name for people."""
    return {
        "number of processes": record.processes,
        "jax_uccl version": record.library,
        "byte order": record.byteorder,
        **{f"setting {name}": value for name, value in record.settings.items()},
    }


def check(mine: Record, theirs: Record) -> None:
    """Raises unless the two processes can work together; the error shows both values."""
    who = f"process {theirs.process}"
    ours, other = _shared(mine), _shared(theirs)
    for name in sorted(ours.keys() & other.keys()):
        here, there = ours[name], other[name]
        if here != there:
            raise UcclValueError(
                f"{name}: process {mine.process} has {here!r}, {who} has {there!r}; "
                "it must be equal on all processes",
                process=theirs.process,
            )
    # Last, so that two processes that do not fit both name the misfit, whichever gave up first.
    if theirs.failure is not None:
        raise PeerLostError(f"{who} could not start: {theirs.failure}", process=theirs.process)


def _is(error: Exception, code: str) -> bool:
    """Whether an error of the client has this gRPC code: its type carries none, its text starts with one."""
    return code in str(error).split(":", 1)[0]


def _key(start: int, process: int) -> str:
    return f"jax_uccl/{start}/{process}"


def publish(client: KeyValueClient, start: int, record: Record, *, overwrite: bool = False) -> None:
    """Makes the record visible to all.

    Raises:
      UcclValueError: this process number has published a record for this start already.
      PeerLostError: the coordination service does not answer.
    """
    try:
        client.key_value_set(_key(start, record.process), encode(record), overwrite)
    except Exception as error:
        if _is(error, "ALREADY_EXISTS"):
            raise UcclValueError(
                f"process {record.process} has already taken part in start number {start} of this job. "
                "A process that was restarted cannot join: restart all of them",
                process=record.process,
            ) from error
        raise _service_lost(error) from error


def _service_lost(error: Exception) -> PeerLostError:
    return PeerLostError(
        f"JAX's coordination service (in process 0) does not answer: {error}", process=0
    )


def exchange(
    client: KeyValueClient,
    start: int,
    mine: Record,
    timeout_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    stopped: Callable[[], bool] = lambda: False,
) -> tuple[list[str], int]:
    """Publishes `mine` and waits for the records of all others.

    Args:
      client: of the coordination service.
      start: number of this start, counted from 1 on every process.
      mine: this process's record; process 0's carries the session.
      timeout_s: deadline from now on.
      clock: seconds, monotonic.
      stopped: asked between waits.

    Returns:
      The addresses by process, and the session.

    Raises:
      PeerTimeoutError: processes are missing; the text names them.
      PeerLostError: a process reported that it could not start, or the coordination service is gone.
      ProtocolError, UcclValueError: a record is damaged or does not fit.
      Stopped: `stopped` returned true.
    """
    deadline = clock() + timeout_s
    publish(client, start, mine)
    records: dict[int, Record] = {mine.process: mine}
    for process in range(mine.processes):
        while process not in records:
            if stopped():
                raise Stopped
            left = deadline - clock()
            if left <= 0:
                raise _timeout(client, start, mine, timeout_s)
            text = _get(client, _key(start, process), min(SLICE_S, left))
            if text is None:
                continue
            record = decode(text, process)
            check(mine, record)
            records[process] = record
    session = records[0].session
    try:
        number = int(session or "", 16)
    except ValueError as error:
        raise ProtocolError(f"process 0 published the session {session!r}", process=0) from error
    return [records[p].address for p in range(mine.processes)], number


def _get(client: KeyValueClient, key: str, timeout_s: float) -> str | None:
    try:
        return client.blocking_key_value_get(key, max(1, int(timeout_s * 1000)))
    except Exception as error:
        if _is(error, "DEADLINE_EXCEEDED") or _is(error, "NOT_FOUND"):
            return None
        raise _service_lost(error) from error


def _timeout(client: KeyValueClient, start: int, mine: Record, timeout_s: float) -> UcclError:
    """The error for a start whose deadline has passed; looks once more at who is missing."""
    try:
        keys = [key for key, _ in client.key_value_dir_get("jax_uccl/")]
    except Exception as error:
        return _service_lost(error)
    seen: dict[int, set[int]] = {}  # process -> the starts it took part in
    for key in keys:
        parts = key.strip("/").split("/")
        if len(parts) == 3 and parts[1].isdecimal() and parts[2].isdecimal():
            seen.setdefault(int(parts[2]), set()).add(int(parts[1]))
    missing = [p for p in range(mine.processes) if start not in seen.get(p, ())]
    text = (
        f"not all of the {mine.processes} processes started within {timeout_s:g} s (init_timeout_ms); "
        f"missing: {', '.join(f'process {p}' for p in missing) or 'none any more'}"
    )
    if behind := [f"process {p} is at {max(seen[p])}" for p in missing if p in seen]:
        text += (
            f". This is start number {start} here, but {', '.join(behind)}: every process must call "
            "init and shutdown equally often"
        )
    return PeerTimeoutError(text, process=missing[0] if missing else None)


def local_address(coordinator: str) -> str:
    """The IP address from which this host reaches the coordinator (`host:port`); sends nothing.

    Raises:
      UcclValueError: the host has no address, or none that this host has a route to.
    """
    host, _, port = coordinator.rpartition(":")
    host = host.strip("[]")
    if host == "localhost":
        return "127.0.0.1"
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)
    except (OSError, ValueError) as error:
        raise UcclValueError(
            f"the coordinator's address {coordinator!r} cannot be resolved ({error}); "
            "set `address` (JAX_UCCL_ADDRESS) to an IP address of this host"
        ) from error
    reasons = []
    for family, kind, proto, _, where in sorted(found, key=lambda f: f[0] != socket.AF_INET):
        try:
            with socket.socket(family, kind, proto) as probe:
                probe.connect(where)  # UDP: only asks the routing table
                return str(probe.getsockname()[0])
        except OSError as error:
            reasons.append(f"{where[0]}: {error}")
    raise UcclValueError(
        f"no route to the coordinator {coordinator!r} ({'; '.join(reasons)}); "
        "set `address` (JAX_UCCL_ADDRESS) to an IP address of this host"
    )
