"""The handlers for CUDA are opened where JAX has a CUDA backend, and there only; the backend is made up here."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jax_uccl
from jax_uccl import _uccl, moe
from jax_uccl._src import cuda_module, ffi_targets, partitioning
from jax_uccl._src import jax_compat as compat
from jax_uccl._src.errors import UnsupportedError
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


class Device:
    """A function of ctypes that returns an address."""

    restype: Any = None

    def __call__(self) -> int:
        assert self.restype is ctypes.c_void_p
        return TABLE


TABLE = 4096


class FakeLibrary:
    """What ctypes.CDLL gives for an object with these symbols; others raise AttributeError."""

    def __init__(self, *symbols: str, refuses: bytes | None = None) -> None:
        self.UcclCudaPrepare = Prepare(refuses)
        self.UcclCudaDevice = Device()
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
        attached: list[tuple[int, list[int]]] = []
        attach_refuses: str | None = None
        library: Any = FakeLibrary(*cuda_module._SYMBOLS.values())

    class Client:
        def process_index(self) -> int:
            return 1

    # Of process 1 with two devices, the later one first, and one of another process.
    devices = [
        SimpleNamespace(id=7, process_index=1, local_hardware_id=1),
        SimpleNamespace(id=6, process_index=1, local_hardware_id=0),
        SimpleNamespace(id=0, process_index=0, local_hardware_id=0),
    ]

    def attach(address: int, ids: list[int]) -> str | None:
        machine.attached.append((address, ids))
        return machine.attach_refuses

    machine = Machine()
    machine.attached = []
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
        compat,
        "backend_devices",
        lambda name: (Client(), devices) if name in machine.backends else None,
    )
    stub = SimpleNamespace(
        attach_device=attach, stream_registrations=cuda_module._uccl.stream_registrations
    )
    monkeypatch.setattr(cuda_module, "_uccl", stub)
    return machine


def test_without_a_cuda_backend_nothing_is_opened(machine) -> None:
    assert not cuda_module.available()
    assert machine.opened == machine.registered == []
    assert "no CUDA backend" in cuda_module.status()


def test_with_one_it_is_opened_once_and_registered_for_cuda(machine) -> None:
    machine.backends.add("cuda")
    assert cuda_module.available() and cuda_module.available()
    assert machine.opened == [str(cuda_module._FILE)]
    kinds = {"take_rows", "fold_rows", "require", *partitioning.ON_STREAMS}
    names = {ffi_targets.target(kind) for kind in kinds}
    names |= {partitioning.auto_target(kind) for kind in partitioning.ON_STREAMS}
    assert set(machine.registered) == {(name, "CUDA") for name in names}
    assert machine.attached == [(TABLE, [6, 7])]  # by the ordinals of XLA
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


def test_an_object_of_another_build_is_refused(machine) -> None:
    machine.backends.add("cuda")
    machine.attach_refuses = "of another build"
    with pytest.warns(RuntimeWarning, match="of another build"):
        assert not cuda_module.available()
    assert machine.registered == []


def test_the_real_table_is_checked() -> None:
    refused = _uccl.attach_device(0, [0])
    assert refused is not None and "build them together" in refused


def test_what_runs_on_streams_has_handlers() -> None:
    stages = {"instantiate", "initialize", "execute"}
    assert _uccl.stream_registrations().keys() == {
        ffi_targets.target(kind) for kind in partitioning.ON_STREAMS
    }
    assert all(set(s) == stages for s in _uccl.stream_registrations().values())


COLLECTIVES = {
    "all_reduce": lambda x: jax_uccl.psum(x, "x"),
    "all_gather": lambda x: jax_uccl.all_gather(x, "x"),
    "all_to_all": lambda x: jax_uccl.all_to_all(x, "x", 0, 0, tiled=True),
    "reduce_scatter": lambda x: jax_uccl.psum_scatter(x, "x", tiled=True),
    "permute": lambda x: jax_uccl.ppermute(x, "x", [(0, 1)]),
    "barrier": lambda x: jax_uccl.barrier(x, "x"),
}


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_collectives_lower_for_cuda_where_the_kernels_are(machine, kind) -> None:
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))

    def lowered(platform: str) -> str:
        function = jax.shard_map(
            COLLECTIVES[kind], mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False
        )
        traced = jax.jit(function).trace(jnp.ones((8, 3)))
        return traced.lower(lowering_platforms=(platform,)).as_text()

    with pytest.raises(UnsupportedError, match="no CUDA backend"):
        lowered("cuda")
    machine.backends.add("cuda")
    text = lowered("cuda")
    assert f"@{ffi_targets.target(kind)}" in text
    assert text == lowered("cpu").replace("cpu", "cuda")  # the same attributes


@pytest.mark.parametrize("mode", ["throughput", "low_latency"])
@pytest.mark.parametrize("quantize", [None, "fp8"])
def test_dispatch_and_combine_lower_for_cuda(machine, mode, quantize) -> None:
    """By default they are made of calls that have handlers, and of plain JAX."""
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))

    def loss(x: Any, idx: Any) -> Any:
        d = moe.dispatch(x, idx, num_experts=4, axis_name="x", mode=mode, quantize=quantize)
        return moe.combine(d.tokens, d.handle).sum()

    function = jax.shard_map(
        jax.grad(loss), mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False
    )
    machine.backends.add("cuda")
    traced = jax.jit(function).trace(jnp.ones((8, 128)), jnp.zeros((8, 2), jnp.int32))
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    called = set(re.findall(r"@(jax_uccl_\w+)", text))
    handlers = {name for name, _ in machine.registered}
    assert called and called <= handlers, called - handlers
    rows_by = "moe_exchange" if mode == "throughput" else "ragged_all_to_all"
    assert ffi_targets.target(rows_by) in called


@pytest.mark.parametrize("quantize", [None, "fp8"])
def test_native_dispatch_and_combine_lower_for_cuda(machine, quantize) -> None:
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))

    def lowered(**how: Any) -> str:
        how |= dict(quantize=quantize, implementation="native")

        def loss(x: Any, idx: Any) -> Any:
            d = moe.dispatch(x, idx, num_experts=4, axis_name="x", **how)
            return moe.combine(d.tokens, d.handle).sum()

        function = jax.shard_map(
            jax.grad(loss), mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False
        )
        traced = jax.jit(function).trace(jnp.ones((8, 128)), jnp.zeros((8, 2), jnp.int32))
        return traced.lower(lowering_platforms=("cuda",)).as_text()

    machine.backends.add("cuda")
    for how, kinds in (
        (dict(mode="low_latency"), ["moe_dispatch", "moe_combine"]),
        (dict(mode="throughput"), ["moe_exchange"]),
        (dict(mode="throughput", hosts=[0, 1]), ["moe_exchange"]),
    ):
        called = set(re.findall(r"@(jax_uccl_\w+)", lowered(**how)))
        handlers = {name for name, _ in machine.registered}
        assert called <= handlers, called - handlers
        assert {ffi_targets.target(kind) for kind in kinds} <= called


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
    for symbol in (*cuda_module._SYMBOLS.values(), "UcclCudaPrepare", "UcclCudaDevice"):
        assert getattr(library, symbol)
    # Its table is of this build.
    library.UcclCudaDevice.restype = ctypes.c_void_p
    assert _uccl.attach_device(library.UcclCudaDevice(), []) is None
