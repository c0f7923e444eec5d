"""The classes of jax_uccl errors and their text form."""

from __future__ import annotations

import pickle

import pytest

import jax_uccl
from jax_uccl import _uccl
from jax_uccl._src import errors

LINE = (
    'uccl.PeerTimeout op="all_to_all float32[4,8] axis=(x)" comm=12 peer=3 process=1 path=5 seq=4711 '
    "bytes=128 elapsed_ms=30001: no ack: since 3 s"
)


def test_classes_are_those_of_the_native_table():
    rows = _uccl.status_codes()
    assert {row[1]: row[2] for row in rows} == {k: c.__name__ for k, c in errors.CLASSES.items()}
    for _, name, python_name, meaning in rows:
        cls = errors.CLASSES[name]
        assert getattr(jax_uccl, python_name) is cls and issubclass(cls, jax_uccl.UcclError)
        # The class says what the table says: its words, up to punctuation.
        words = set(meaning.replace(",", "").replace(";", "").lower().split())
        said = set(cls.__doc__.replace(",", "").replace(".", "").replace(";", "").lower().split())
        assert len(words & said) >= len(words) / 2, (meaning, cls.__doc__)


@pytest.mark.parametrize(
    "cls, builtin",
    [
        (jax_uccl.UcclValueError, ValueError),
        (jax_uccl.PeerTimeoutError, TimeoutError),
        (jax_uccl.PeerLostError, ConnectionError),
        (jax_uccl.UcclMemoryError, MemoryError),
        (jax_uccl.UcclError, RuntimeError),
    ],
)
def test_classes_are_also_builtin_ones(cls, builtin):
    assert issubclass(cls, builtin)
    with pytest.raises(builtin, match="words"):
        raise cls("words", peer=1)


def test_fields():
    error = errors.from_text(f"DEADLINE_EXCEEDED: {LINE}\nmore text of XLA peer=9")
    assert type(error) is jax_uccl.PeerTimeoutError
    assert error.op == "all_to_all float32[4,8] axis=(x)"
    assert (error.comm, error.peer, error.process, error.path) == (12, 3, 1, 5)
    assert (error.seq, error.bytes, error.elapsed_s) == (4711, 128, 30.001)
    assert error.detail == "no ack: since 3 s"
    assert error.cause is None
    assert str(error) == LINE


def test_missing_fields_are_none():
    error = errors.from_text("uccl.NicError: sendmmsg: no buffer space")
    assert type(error) is jax_uccl.NicError and error.detail == "sendmmsg: no buffer space"
    for name in ("op", "comm", "peer", "process", "path", "seq", "bytes", "elapsed_s", "cause"):
        assert getattr(error, name) is None
    assert errors.from_text("uccl.Protocol").detail == ""
    assert errors.from_text("uccl.Protocol op=psum peer=-2: x").op == "psum"
    assert errors.from_text("uccl.Protocol comm=-77: x").comm == -77


def test_quotes_in_an_operation():
    error = errors.from_text(r'uccl.Protocol op="a \"b\" \\ c=1" peer=2: d')
    assert error.op == r'a "b" \ c=1' and error.peer == 2


def test_every_class_is_found():
    for name, cls in errors.CLASSES.items():
        error = errors.from_text(
            f"INTERNAL: Error dispatching computation: UNAVAILABLE: uccl.{name} peer=2: x"
        )
        assert type(error) is cls and error.peer == 2


def test_cause_of_an_abort():
    text = f"ABORTED: uccl.Aborted op=psum comm=1: first cause: {LINE}"
    error = errors.from_text(text)
    assert type(error) is jax_uccl.CommAbortedError
    assert type(error.cause) is jax_uccl.PeerTimeoutError and error.cause.peer == 3


@pytest.mark.parametrize(
    "text", ["", "UNAVAILABLE: socket closed", "uccl.core failed", "uccl.Ok: fine"]
)
def test_other_texts(text):
    assert errors.from_text(text) is None


def test_errors_converts():
    original = RuntimeError(f"DEADLINE_EXCEEDED: {LINE}")
    with pytest.raises(jax_uccl.PeerTimeoutError) as caught, jax_uccl.errors():
        raise original
    assert caught.value.__cause__ is original and caught.value.peer == 3


def test_errors_passes_others():
    with pytest.raises(KeyError), jax_uccl.errors():
        raise KeyError("uccl")
    direct = jax_uccl.PeerLostError("gone", peer=4)
    with pytest.raises(jax_uccl.PeerLostError) as caught, jax_uccl.errors():
        raise direct
    assert caught.value is direct
    with jax_uccl.errors():
        value = 3
    assert value == 3


def test_pickle():
    error = errors.from_text(LINE)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and vars(again) == vars(error) and str(again) == str(error)
