"""The native handlers for NVIDIA GPUs: found and opened when the first CUDA program is lowered, never before.

Kernels lie in a shared object of their own, `_uccl_cuda.so`, which only builds with JAX_UCCL_CUDA contain. It has
handlers for rows; those of what communicates are part of `_uccl` and launch its kernels through a table. A machine
without a GPU never opens it, and nothing here initialises a backend. Where a build has none, or it cannot be
opened, operations with a meaning in plain JAX use that; `status()` says why.
"""

from __future__ import annotations

import ctypes
import threading
import warnings
from pathlib import Path
from typing import Any

import jax

from jax_uccl._src import ffi_targets, partitioning
from jax_uccl._src import jax_compat as compat
from jax_uccl._src.errors import UnsupportedError
from jax_uccl._src.ffi_targets import _uccl

_FILE = Path(__file__).resolve().parents[1] / "_uccl_cuda.so"
# Operation kinds (ffi_targets.target) and their symbols in xla_ffi/cuda_handlers.h.
_SYMBOLS = {
    "take_rows": "UcclCudaTakeRows",
    "fold_rows": "UcclCudaFoldRows",
    "require": "UcclCudaRequire",
}

_lock = threading.Lock()
_library: Any = None  # guarded by _lock; stays open, XLA keeps pointers into it
_fault: str | None = None  # guarded by _lock; why it could not be opened: tried once


def available() -> bool:
    """Whether CUDA programs may call the native handlers; opens and registers them the first time.

    Only where JAX's CUDA backend exists already, as it does while a program for it is lowered.
    """
    global _library, _fault
    found = compat.backend_devices("cuda")
    if found is None:
        return False
    with _lock:
        if _library is not None:
            return True
        if _fault is not None or not _FILE.exists():
            return False
        try:
            library = ctypes.CDLL(str(_FILE))
            stages = {kind: getattr(library, symbol) for kind, symbol in _SYMBOLS.items()}
            library.UcclCudaPrepare.restype = ctypes.c_char_p
            refused = library.UcclCudaPrepare()
            if refused is not None:
                raise OSError(refused.decode())
            library.UcclCudaDevice.restype = ctypes.c_void_p
            refused = _uccl.attach_device(library.UcclCudaDevice(), _ids_by_ordinal(*found))
            if refused is not None:
                raise OSError(refused)
        except (OSError, AttributeError) as error:
            _fault = str(error)
            warnings.warn(
                f"jax_uccl: {_FILE.name} cannot be used, and CUDA programs go without it: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
            return False
        for kind, function in stages.items():
            jax.ffi.register_ffi_target(
                ffi_targets.target(kind), jax.ffi.pycapsule(function), platform="CUDA"
            )
        handlers = _uccl.stream_registrations()
        for kind in partitioning.ON_STREAMS:
            for name in (ffi_targets.target(kind), partitioning.auto_target(kind)):
                jax.ffi.register_ffi_target(
                    name, handlers[ffi_targets.target(kind)], platform="CUDA"
                )
        _library = library
        return True


def only_there(lower: Any, api: str) -> Any:
    """The lowering rule for CUDA of an operation without a meaning in plain JAX."""

    def rule(ctx: Any, *operands: Any, **params: Any) -> Any:
        if not available():
            raise UnsupportedError(
                f"jax_uccl.{api} for cuda needs the kernels of {_FILE.name}: {status()}"
            )
        return lower(ctx, *operands, **params)

    return rule


def _ids_by_ordinal(client: Any, devices: list[Any]) -> list[int]:
    """jax.Device.id of this process's devices by the ordinal that XLA hands to handlers."""
    local = [d for d in devices if d.process_index == client.process_index()]
    return [int(d.id) for d in sorted(local, key=lambda d: int(d.local_hardware_id))]


def status() -> str:
    """One line: whether the handlers are in use, and if not, why. Opens nothing."""
    with _lock:
        if _library is not None:
            return f"in use: {_FILE}"
        if _fault is not None:
            return f"unusable: {_fault}"
    if not _FILE.exists():
        return "not in this build (pip install . -C cmake.define.JAX_UCCL_CUDA=ON)"
    if compat.backend_devices("cuda") is None:
        return "built, not opened: JAX has no CUDA backend in this process"
    return "built, not opened yet"
