"""Registers the native handlers with XLA, and tells the native part when compilations end.

Importing this module initialises no backend: registration only queues, and devices are read from a listener
that JAX calls at the end of a compilation, when the backend exists. jax.distributed.initialize() therefore
works after the import.
"""

from __future__ import annotations

import threading
from typing import Any

import jax

from jax_uccl._src import jax_compat as compat
from jax_uccl._src import partitioning

try:
    from jax_uccl import _uccl
except ImportError as error:
    raise ImportError(
        "the native module jax_uccl._uccl cannot be loaded. In a source tree, run `./dev build` first; "
        "otherwise reinstall the package for this Python version with `pip install jax_uccl`."
    ) from error


def target(kind: str) -> str:
    """The custom call of an operation kind: all_reduce, all_to_all, all_gather, ..."""
    return f"jax_uccl_{kind}"


_PLATFORM = "cpu"
_lock = threading.Lock()
_known_client: Any = None  # guarded by _lock; the client whose devices the native part knows


def tell_devices() -> None:
    """Gives the native part the default device order, once for each backend client."""
    global _known_client
    found = compat.backend_devices(_PLATFORM)
    if found is None:
        return
    client, devices = found
    with _lock:
        if client is _known_client:
            return
        _uccl.set_default_devices(
            [int(d.id) for d in devices], [int(d.process_index) for d in devices]
        )
        _known_client = client


def _on_duration(event: str, duration_secs: float, **kwargs: str | int) -> None:
    """Marks the end of a backend compilation or of a load from the persistent cache.

    Instances of one call site are numbered from the previous such mark on. JAX calls this on the
    thread that compiles, which is the only thing that tells two concurrent compilations apart.
    """
    del duration_secs
    if event != compat.BACKEND_COMPILE_EVENT:
        return
    _uccl.compile_boundary(compat.module_name_of_event(str(kwargs.get("fun_name", ""))))
    tell_devices()


def register() -> None:
    """Queues every handler of the native module and installs the listener; called once, at import."""
    handlers = _uccl.registrations()
    for name, stages in handlers.items():
        jax.ffi.register_ffi_target(name, stages, platform=_PLATFORM)
    for kind in [*partitioning.KINDS, *partitioning.LOCAL_KINDS]:
        stages = _uccl.registrations()[target(kind)]
        jax.ffi.register_ffi_target(partitioning.auto_target(kind), stages, platform=_PLATFORM)
    partitioning.register()
    jax.monitoring.register_event_duration_secs_listener(_on_duration)


register()
