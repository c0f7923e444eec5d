"""Start-up and end of the runtime: records in the key-value store, and states. test_exit.py has whole processes."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest

import jax_uccl
from jax_uccl._src import comm, rendezvous
from jax_uccl._src import jax_compat as compat
from jax_uccl._src.errors import (
    PeerLostError,
    PeerTimeoutError,
    ProtocolError,
    UcclError,
    UcclValueError,
)


class FakeStore:
    """A key-value store with its own clock: waiting takes no time, but moves the clock."""

    def __init__(self):
        self.values: dict[str, str] = {}
        self.arrivals: list[tuple[float, str, str]] = []  # (time, key, value)
        self.now = 0.0
        self.broken: Exception | None = None

    def clock(self) -> float:
        return self.now

    def arrive(self, at: float, key: str, value: str) -> None:
        self.arrivals.append((at, key, value))

    def _advance(self, until: float) -> None:
        self.now = until
        for at, key, value in self.arrivals:
            if at <= until:
                self.values.setdefault(key, value)

    def key_value_set(self, key, value, allow_overwrite=False):
        if self.broken:
            raise self.broken
        if key in self.values and not allow_overwrite:
            raise RuntimeError(f"ALREADY_EXISTS: key {key}")
        self.values[key] = value

    def blocking_key_value_get(self, key, timeout_in_ms):
        if self.broken:
            raise self.broken
        if key not in self.values:
            self._advance(self.now + timeout_in_ms / 1000)
        if key not in self.values:
            raise RuntimeError(f"DEADLINE_EXCEEDED: GetKeyValue() timed out with key: {key}")
        return self.values[key]

    def key_value_dir_get(self, prefix):
        if self.broken:
            raise self.broken
        return [(k, v) for k, v in self.values.items() if k.startswith(prefix)]


def record(process, processes=3, **changes):
    fields = {
        "address": f"address of {process}",
        "session": "00000000000000ff" if process == 0 else None,
        "library": "1.0",
        "settings": {"eager_max_bytes": 100},
    }
    return rendezvous.Record(process, processes, **(fields | changes))


def exchange(store, mine, start=1, timeout_s=10.0, **kwargs):
    return rendezvous.exchange(store, start, mine, timeout_s, clock=store.clock, **kwargs)


# --- records ----------------------------------------------------------------------------------------


def test_record_round_trip():
    mine = record(2, failure="no socket: é \n x")
    assert rendezvous.decode(rendezvous.encode(mine), 2) == mine


def test_record_any_changed_character_raises():
    text = rendezvous.encode(record(1))
    for i in range(len(text)):
        damaged = text[:i] + chr(ord(text[i]) ^ 1) + text[i + 1 :]
        with pytest.raises(ProtocolError, match="process 1"):
            rendezvous.decode(damaged, 1)


def test_record_any_prefix_raises():
    text = rendezvous.encode(record(1))
    for i in range(len(text)):
        with pytest.raises(ProtocolError, match="process 1"):
            rendezvous.decode(text[:i], 1)


def test_record_of_other_process_raises():
    with pytest.raises(ProtocolError, match="record of process 1 .* of process 2") as caught:
        rendezvous.decode(rendezvous.encode(record(2)), 1)
    assert caught.value.process == 1


def test_record_of_other_version_shows_both():
    text = "7" + rendezvous.encode(record(1))[1:]
    with pytest.raises(ProtocolError, match="has version 7, this process reads version 1"):
        rendezvous.decode(text, 1)


def test_new_session_is_random_and_not_zero():
    sessions = {int(rendezvous.new_session(), 16) for _ in range(100)}
    assert len(sessions) == 100 and 0 not in sessions


# --- exchange ---------------------------------------------------------------------------------------


def test_exchange_late_processes_give_all_addresses():
    store = FakeStore()
    store.arrive(3.0, "jax_uccl/1/0", rendezvous.encode(record(0)))
    store.arrive(1.0, "jax_uccl/1/2", rendezvous.encode(record(2)))
    addresses, session = exchange(store, record(1))
    assert addresses == ["address of 0", "address of 1", "address of 2"]
    assert session == 0xFF
    assert 3.0 <= store.now < 3.2
    assert rendezvous.decode(store.values["jax_uccl/1/1"], 1) == record(1)


def test_exchange_missing_processes_are_named_at_the_deadline():
    store = FakeStore()
    store.arrive(1.0, "jax_uccl/1/2", rendezvous.encode(record(2, 4)))
    with pytest.raises(PeerTimeoutError, match="within 10 s .*missing: process 1, process 3") as e:
        exchange(store, record(0, 4))
    assert e.value.process == 1
    assert 10.0 <= store.now < 10.2


def test_exchange_earlier_start_is_not_read_and_its_process_is_named():
    store = FakeStore()
    stale = rendezvous.encode(record(0, 2, session="00000000000000aa"))
    store.values["jax_uccl/1/0"] = stale
    with pytest.raises(PeerTimeoutError, match="start number 2 here, but process 0 is at 1"):
        exchange(store, record(1, 2), start=2)

    store.values["jax_uccl/3/0"] = rendezvous.encode(record(0, 2, session="00000000000000bb"))
    assert exchange(store, record(1, 2), start=3)[1] == 0xBB


def test_exchange_restarted_process_is_refused():
    store = FakeStore()
    store.values["jax_uccl/1/1"] = rendezvous.encode(record(1))
    with pytest.raises(UcclValueError, match="process 1 has already taken part in start number 1"):
        exchange(store, record(1))


def test_exchange_damaged_record_raises():
    store = FakeStore()
    store.values["jax_uccl/1/0"] = rendezvous.encode(record(0)).replace("address", "addresx")
    with pytest.raises(ProtocolError, match="process 0 is damaged: checksum"):
        exchange(store, record(1))


@pytest.mark.parametrize("session", [None, "", "not hex"])
def test_exchange_without_a_session_raises(session):
    store = FakeStore()
    store.values["jax_uccl/1/0"] = rendezvous.encode(record(0, 2, session=session))
    with pytest.raises(ProtocolError, match="process 0 published the session"):
        exchange(store, record(1, 2))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"settings": {"eager_max_bytes": 7}},
            "eager_max_bytes: process 1 has 100, process 0 has 7",
        ),
        ({"library": "2.0"}, "version: process 1 has '1.0', process 0 has '2.0'"),
        ({"byteorder": "odd"}, "byte order: process 1 has .* process 0 has 'odd'"),
        ({"processes": 5}, "number of processes: process 1 has 3, process 0 has 5"),
    ],
)
def test_exchange_misfit_shows_both_values(changes, text):
    store = FakeStore()
    store.values["jax_uccl/1/0"] = rendezvous.encode(dataclasses.replace(record(0), **changes))
    with pytest.raises(UcclValueError, match=text) as caught:
        exchange(store, record(1))
    assert caught.value.process == 0


def test_exchange_failure_of_a_peer_is_reported_at_once():
    store = FakeStore()
    store.values["jax_uccl/1/0"] = rendezvous.encode(record(0, failure="no such backend"))
    with pytest.raises(PeerLostError, match="process 0 could not start: no such backend"):
        exchange(store, record(1))
    assert store.now == 0.0


def test_exchange_broken_service_raises():
    store = FakeStore()
    store.broken = RuntimeError("UNAVAILABLE: connection refused")
    with pytest.raises(PeerLostError, match="coordination service .*connection refused"):
        exchange(store, record(1))


def test_exchange_stops_when_asked():
    store = FakeStore()
    with pytest.raises(rendezvous.Stopped):
        exchange(store, record(1), stopped=lambda: store.now > 1)
    assert store.now < 1.3


def test_local_address_of_loopback_coordinators():
    assert rendezvous.local_address("localhost:1234") == "127.0.0.1"
    assert rendezvous.local_address("127.0.0.1:1234") == "127.0.0.1"


@pytest.mark.parametrize("coordinator", ["", "nonsense", "name.invalid:1", "127.0.0.1:x"])
def test_local_address_unusable_coordinator_names_the_fix(coordinator):
    with pytest.raises(UcclValueError, match="JAX_UCCL_ADDRESS"):
        rendezvous.local_address(coordinator)


# --- states -----------------------------------------------------------------------------------------


class FakeNative:
    """Stands for the native module: records the calls and answers as told."""

    def __init__(self, real):
        self.calls: list[tuple] = []
        self.start_line: str | None = None
        self._real = real

    def make_config(self, settings, environment):
        return self._real.make_config(settings, environment)

    def read_tuning(self, path):
        return self._real.read_tuning(path)

    def set_config(self, settings):
        self.calls.append(("set_config", settings))

    def start(self, settings):
        self.calls.append(("start", settings["address"]))
        return self.start_line, "here"

    def connect(self, process, addresses, session):
        self.calls.append(("connect", process, addresses, session))

    def fail_startup(self, name, detail, process):
        self.calls.append(("fail_startup", name, detail, process))

    def shutdown(self, timeout_s):
        self.calls.append(("shutdown", timeout_s))

    def names(self):
        return [call[0] for call in self.calls]


@pytest.fixture
def idle():
    """The runtime before its first use, and again after the test."""
    comm.shutdown()
    yield
    comm.shutdown()


@pytest.fixture
def native(idle, monkeypatch):
    fake = FakeNative(comm._uccl)
    monkeypatch.setattr(comm, "_uccl", fake)
    yield fake
    comm.shutdown()


class Job:
    """Process 1 of 2, over a store whose waits are real but short."""

    def __init__(self, monkeypatch):
        self.store = FakeStore()
        self.job = compat.DistributedJob(self.store, 1, 2, "localhost:1")
        monkeypatch.setattr(compat, "distributed_job", lambda: self.job)
        monkeypatch.setattr(comm, "_starts", 0)

    def peer_arrives(self, start, **changes):
        from jax_uccl import __version__

        settings = comm._resolve({})
        other = rendezvous.Record(
            0,
            2,
            address="there",
            session="0000000000000007",
            library=__version__,
            settings={name: settings[name] for name in comm._EQUAL_EVERYWHERE}
            | comm._tuning(settings),
        )
        text = rendezvous.encode(dataclasses.replace(other, **changes))
        self.store.values[f"jax_uccl/{start}/0"] = text


@pytest.fixture
def job(monkeypatch, native):
    return Job(monkeypatch)


def test_ensure_started_one_process_applies_settings_once(native, monkeypatch):
    monkeypatch.setenv("JAX_UCCL_OP_TIMEOUT_MS", "1234")
    comm.ensure_started()
    comm.ensure_started()
    assert native.names() == ["set_config"]
    assert native.calls[0][1]["op_timeout_ms"] == "1234"
    assert comm.is_initialized()


def test_ensure_started_wrong_environment_names_the_variable(idle, monkeypatch):
    monkeypatch.setenv("JAX_UCCL_PATHS", "many")
    with pytest.raises(UcclValueError, match="JAX_UCCL_PATHS"):
        comm.ensure_started()
    assert not comm.is_initialized()


def test_ensure_started_unknown_variable_names_the_nearest(idle, monkeypatch):
    monkeypatch.setenv("JAX_UCCL_EXECUTER", "fifo")
    with pytest.raises(UcclValueError, match="JAX_UCCL_EXECUTER=.*nearest .* JAX_UCCL_EXECUTOR,"):
        comm.ensure_started()
    assert not comm.is_initialized()


def test_shutdown_of_nothing_does_not_read_the_environment(idle, monkeypatch):
    monkeypatch.setenv("JAX_UCCL_PATHS", "many")
    jax_uccl.shutdown()


@pytest.mark.parametrize("timeout", ["soon", "1", -1, float("nan"), [1]])
def test_shutdown_wrong_timeout_is_refused_and_ends_nothing(idle, timeout):
    jax_uccl.init()
    with pytest.raises(UcclValueError, match="shutdown: timeout="):
        jax_uccl.shutdown(timeout)
    assert comm.is_initialized()


@pytest.mark.parametrize("timeout", [0, 2.5, np.float32(1), float("inf"), True])
def test_shutdown_takes_any_real_number(idle, timeout):
    jax_uccl.init()
    jax_uccl.shutdown(timeout)
    assert not comm.is_initialized()


def test_init_equal_settings_are_idempotent_and_different_ones_raise(idle):
    jax_uccl.init(op_timeout_ms=5000)
    jax_uccl.init(jax_uccl.Config(op_timeout_ms=5000))
    jax_uccl.init()
    with pytest.raises(
        UcclValueError, match="op_timeout_ms=5000; init asks for op_timeout_ms=6000"
    ):
        jax_uccl.init(op_timeout_ms=6000)
    assert jax_uccl.stats()["settings"]["op_timeout_ms"] == 5000
    jax_uccl.shutdown()
    jax_uccl.init(op_timeout_ms=6000)
    assert jax_uccl.stats()["settings"]["op_timeout_ms"] == 6000


@pytest.mark.parametrize(
    ("settings", "text"),
    [({"pahts": 4}, "pahts"), ({"paths": 0}, "paths.*0"), ({"paths": "x"}, "paths.*x")],
)
def test_init_wrong_setting_raises_and_starts_nothing(idle, settings, text):
    with pytest.raises(ValueError, match=text):
        jax_uccl.init(**settings)
    assert not comm.is_initialized()


def test_init_keyword_goes_over_config(idle):
    jax_uccl.init(jax_uccl.Config(paths=2, spin_us=7), paths=3)
    settings = jax_uccl.stats()["settings"]
    assert (settings["paths"], settings["spin_us"]) == (3, 7)


def test_shutdown_twice_is_allowed(idle):
    jax_uccl.init()
    jax_uccl.shutdown()
    jax_uccl.shutdown(timeout=0)
    assert not comm.is_initialized()


def test_init_connects_to_the_others(native, job):
    job.peer_arrives(1)
    jax_uccl.init()
    assert native.calls == [
        ("start", "127.0.0.1"),
        ("connect", 1, ["there", "here"], 7),
    ]
    assert comm.is_initialized()
    jax_uccl.init()
    assert len(native.calls) == 2


def test_init_warns_of_more_threads_than_cpus(native, job, monkeypatch, caplog):
    # jax#34896: one CPU for each task throttles everything.
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {5, 7})
    job.peer_arrives(1)
    jax_uccl.init(engines=2)
    assert not caplog.records
    jax_uccl.shutdown()
    job.peer_arrives(2, session="0000000000000008")
    jax_uccl.init(engines=3)
    (record,) = caplog.records
    assert "engines=3 threads, but this process may use 2 CPU(s)" in record.getMessage()


def test_init_after_shutdown_uses_the_next_number(native, job):
    job.peer_arrives(1)
    jax_uccl.init()
    jax_uccl.shutdown()
    job.peer_arrives(2, session="0000000000000008")
    jax_uccl.init()
    assert native.calls[-1] == ("connect", 1, ["there", "here"], 8)


def test_ensure_started_does_not_wait_and_joins_in_the_background(native, job):
    comm.ensure_started()
    assert not comm.is_initialized()
    job.peer_arrives(1)
    jax_uccl.init()
    assert comm.is_initialized()
    assert native.names() == ["start", "connect"]


def test_ensure_started_after_local_use_joins_a_job_that_came_later(native, monkeypatch):
    comm.ensure_started()
    job = Job(monkeypatch)
    job.peer_arrives(1)
    comm.ensure_started()
    jax_uccl.init()
    assert native.names() == ["set_config", "start", "connect"]


def test_init_missing_process_raises_and_operations_learn_the_reason(native, job):
    with pytest.raises(PeerTimeoutError, match="missing: process 0"):
        jax_uccl.init(init_timeout_ms=50)
    name, code, detail, process = native.calls[-1]
    assert (name, code, process) == ("fail_startup", "PeerTimeout", 0)
    assert "missing: process 0" in detail
    with pytest.raises(PeerTimeoutError):  # still failed, and says so again
        jax_uccl.init()
    published = rendezvous.decode(job.store.values["jax_uccl/1/1"], 1)
    assert "missing: process 0" in published.failure

    jax_uccl.shutdown()
    job.peer_arrives(2)
    jax_uccl.init()
    assert comm.is_initialized()


def test_init_backend_failure_is_raised_and_published(native, job):
    native.start_line = "uccl.NicError: no socket"
    with pytest.raises(jax_uccl.NicError, match="no socket"):
        jax_uccl.init()
    assert native.calls[-1] == ("fail_startup", "NicError", "no socket", -1)
    assert "no socket" in rendezvous.decode(job.store.values["jax_uccl/1/1"], 1).failure


def test_init_unforeseen_error_of_the_client_is_raised(native, job):
    job.store.broken = TypeError("changed signature")
    with pytest.raises(UcclError, match="changed signature"):
        jax_uccl.init()


def test_init_other_setting_on_a_peer_raises(native, job):
    job.peer_arrives(1)
    with pytest.raises(UcclValueError, match="eager_max_bytes: process 1 has 5, process 0 has"):
        jax_uccl.init(eager_max_bytes=5)


def test_init_other_algorithms_on_a_peer_raises(native, job):
    job.peer_arrives(1)
    with pytest.raises(UcclValueError, match="setting algorithms: process 1 has 'barrier=direct'"):
        jax_uccl.init(algorithms="barrier=direct")


def test_init_other_tuning_on_a_peer_raises(native, job, tmp_path):
    # The same parameters under any path are equal, others are not.
    path = tmp_path / "tuned.json"
    path.write_text('{"jax_uccl_tuning": 1, "note": "the defaults"}')
    job.peer_arrives(1)
    jax_uccl.init(tuning_file=str(path))
    jax_uccl.shutdown()
    path.write_text('{"jax_uccl_tuning": 1, "host_latency_ns": 1}')
    job.peer_arrives(2)
    with pytest.raises(UcclValueError, match="tuning_file, digest of its parameters: process 1"):
        jax_uccl.init(tuning_file=str(path))


def test_init_tuning_file_that_is_not_there_raises(native, job):
    job.peer_arrives(1)
    with pytest.raises(UcclValueError, match="/nowhere/tuned.json"):
        jax_uccl.init(tuning_file="/nowhere/tuned.json")


def test_init_alone_refuses_wrong_algorithms(idle):
    with pytest.raises(UcclValueError, match='"best"; for all_reduce there are direct'):
        jax_uccl.init(algorithms="all_reduce=best")
    with pytest.raises(UcclValueError, match="/nowhere/tuned.json"):
        jax_uccl.init(tuning_file="/nowhere/tuned.json")


def test_shutdown_ends_a_start_that_waits(native, job):
    raised: list[Exception] = []
    waiting = threading.Event()

    def wait():
        waiting.set()
        try:
            jax_uccl.init()
        except UcclError as error:
            raised.append(error)

    comm.ensure_started()
    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(60)
    jax_uccl.shutdown()
    # Either it had begun to wait and was told, or it starts anew: then it waits until it is told, too.
    jax_uccl.shutdown()
    while thread.is_alive():
        thread.join(0.05)
        jax_uccl.shutdown()
    assert len(raised) == 1
    assert not comm.is_initialized()


def test_ensure_started_new_job_without_shutdown_raises(native, job):
    job.peer_arrives(1)
    jax_uccl.init()
    job.job = job.job._replace(client=FakeStore())
    with pytest.raises(UcclValueError, match="shutdown"):
        comm.ensure_started()
