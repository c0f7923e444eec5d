"""The handlers for CUDA are opened where JAX has a CUDA backend, and there only; the backend is made up here."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jax_uccl._src import cuda_module, ffi_targets
from jax_uccl._src import jax_compat as compat
from jax_uccl._src.moe import rows

ROOT = Path(os.environ.get("UCCL_SOURCE_ROOT") or Path(__file__).absolute().parents[1])


class Prepare:
    """A function of ctypes that returns a string."""

    restype: Any = None

    def __init__(self, refuses: bytes | None) -> None:
        self.refuses = refuses

    def __call__(self) -> bytes | None:
        assert self.restype is ctypes.c_char_p
        return self.refuses


class FakeLibrary:
    """What ctypes.CDLL gives for an object with these symbols; others raise AttributeError."""

    def __init__(self, *symbols: str, refuses: bytes | None = None) -> None:
        self.UcclCudaPrepare = Prepare(refuses)
        kind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
        for symbol in symbols:
            setattr(self, symbol, kind(lambda frame: None))


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Nothing opened yet, an object in the build; records what is opened and registered."""

    class Machine:
        opened: list[str] = []
        registered: list[tuple[str, str]] = []
        backends: set[str] = {"cpu"}
        library: Any = FakeLibrary(*cuda_module._SYMBOLS.values())

    machine = Machine()
    machine.opened, machine.registered, machine.backends = [], [], {"cpu"}

    def open_library(path: str) -> Any:
        machine.opened.append(path)
        if isinstance(machine.library, Exception):
            raise machine.library
        return machine.library

    file = tmp_path / "_uccl_cuda.so"
    file.touch()
    monkeypatch.setattr(cuda_module, "_FILE", file)
    monkeypatch.setattr(cuda_module, "_library", None)
    monkeypatch.setattr(cuda_module, "_fault", None)
    monkeypatch.setattr(ctypes, "CDLL", open_library)
    monkeypatch.setattr(
        jax.ffi,
        "register_ffi_target",
        lambda name, fn, platform: machine.registered.append((name, platform)),
    )
    monkeypatch.setattr(
        compat, "backend_devices", lambda name: (None, []) if name in machine.backends else None
    )
    return machine


def test_without_a_cuda_backend_nothing_is_opened(machine) -> None:
    assert not cuda_module.available()
    assert machine.opened == machine.registered == []
    assert "no CUDA backend" in cuda_module.status()


def test_with_one_it_is_opened_once_and_registered_for_cuda(machine) -> None:
    machine.backends.add("cuda")
    assert cuda_module.available() and cuda_module.available()
    assert machine.opened == [str(cuda_module._FILE)]
    assert set(machine.registered) == {
        (ffi_targets.target(kind), "CUDA") for kind in ("take_rows", "fold_rows")
    }
    assert cuda_module.status().startswith("in use")


def test_a_build_without_it_is_no_fault(machine) -> None:
    machine.backends.add("cuda")
    cuda_module._FILE.unlink()
    assert not cuda_module.available()
    assert machine.opened == [] and "JAX_UCCL_CUDA=ON" in cuda_module.status()


@pytest.mark.parametrize(
    "library",
    [
        OSError("libfoo.so: no such file"),
        FakeLibrary("UcclCudaTakeRows"),
        FakeLibrary(*cuda_module._SYMBOLS.values(), refuses=b"CUDA: out of memory"),
    ],
)
def test_what_cannot_be_used_is_told_once(machine, library) -> None:
    machine.backends.add("cuda")
    machine.library = library
    with pytest.warns(RuntimeWarning, match="go without it") as told:
        assert not cuda_module.available()
    assert not cuda_module.available()
    assert len(told) == 1 and len(machine.opened) == 1 and machine.registered == []
    assert cuda_module.status().startswith("unusable: ")


def test_rows_lower_to_the_handlers_where_they_are(machine) -> None:
    """Lowered for CUDA without a GPU: with the handlers a custom call, without them plain JAX."""
    args = jnp.ones((4, 8)), jnp.array([1, -1, 3]), jnp.array([[-1], [0], [-1], [2]])

    def text(function: Any) -> str:
        traced = jax.jit(function).trace(*args)
        return traced.lower(lowering_platforms=("cuda",)).as_text()

    assert "jax_uccl" not in text(lambda x, i, t: rows.take(x, i, t))
    machine.backends.add("cuda")
    assert "@jax_uccl_take_rows" in text(lambda x, i, t: rows.take(x, i, t))
    assert "@jax_uccl_fold_rows" in text(lambda x, i, t: rows.fold(x[:3], i, t, x.dtype))


def test_symbols_are_those_of_the_header() -> None:
    header = (ROOT / "xla_ffi" / "cuda_handlers.h").read_text(encoding="utf-8")
    assert set(re.findall(r"XLA_FFI_Error\* (\w+)\(", header)) == set(cuda_module._SYMBOLS.values())


def test_importing_the_package_opens_nothing() -> None:
    program = (
        "import ctypes, jax_uccl, jax_uccl.moe, sys\n"
        "from jax_uccl._src import cuda_module\n"
        "assert cuda_module._library is None\n"
        "assert not any('_uccl_cuda' in line for line in open('/proc/self/maps'))\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_the_real_object_loads_without_a_gpu() -> None:
    """Where the build has it: all it needs is on any machine, and the symbols are there."""
    if not cuda_module._FILE.exists():
        pytest.skip("this build has no _uccl_cuda.so")
    library = ctypes.CDLL(str(cuda_module._FILE))
    for symbol in (*cuda_module._SYMBOLS.values(), "UcclCudaPrepare"):
        assert getattr(library, symbol)
