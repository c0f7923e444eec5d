"""First code of a launched process: ties its life to the launcher's, starts JAX, runs the script.

Run as a file, not as a module, so that nothing of `jax_uccl` (and so of JAX) is imported before
the script is: `--no-initialize` then runs scripts that know nothing of JAX.

    launch_child.py script.py [args...]      launch_child.py -m module [args...]

The launcher describes the job in `JAX_UCCL_LAUNCH_*` environment variables. After an error the
process leaves without JAX's own exit handler: that one waits, for minutes, until all processes
have arrived at a barrier, and the launcher could not end a job that has failed.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import functools
import os
import runpy
import signal
import sys
import traceback
from types import TracebackType
from typing import Any

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    _die_with(int(os.environ["JAX_UCCL_LAUNCH_PARENT"]))
    faulthandler.enable()
    # The launcher asks for a dump when a job runs into its timeout.
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    exit_status = 1
    try:
        if os.environ["JAX_UCCL_LAUNCH_INITIALIZE"] == "1":
            _initialize_jax()
        _run_target(sys.argv[1:])
        exit_status = 0
    except SystemExit as error:
        exit_status = _status_of(error)
    except BaseException as error:
        _print_traceback(error)
        exit_status = 130 if isinstance(error, KeyboardInterrupt) else 1
    if exit_status != 0:
        _failure["exit_status"] = exit_status
    sys.exit(exit_status)


def _die_with(parent: int) -> None:
    """Asks the kernel to kill this process when the launcher dies (Linux only)."""
    if not sys.platform.startswith("linux"):
        return  # The launcher's guard process covers the other systems.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # It died before the call above.
        os.kill(os.getpid(), signal.SIGKILL)


# Filled by main() once the script has failed, read when the interpreter exits.
_failure: dict[str, int] = {}


def _leave_if_failed() -> None:
    """Exit handler between those of the script and those of JAX (last in, first out)."""
    if _failure:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
        os._exit(_failure["exit_status"])


def _initialize_jax() -> None:
    import jax

    atexit.register(_leave_if_failed)  # After JAX's import, so it runs before JAX's handlers.
    original = jax.distributed.initialize
    coordinator = os.environ["JAX_UCCL_LAUNCH_COORDINATOR"]
    own: dict[str, Any] = {
        "coordinator_address": coordinator,
        "num_processes": int(os.environ["JAX_UCCL_LAUNCH_SIZE"]),
        "process_id": int(os.environ["JAX_UCCL_LAUNCH_RANK"]),
    }
    local: dict[str, Any] = {
        "coordinator_bind_address": coordinator,  # Not reachable from other machines.
        "cluster_detection_method": "deactivate",
    }
    if own["num_processes"] == 1 and "JAX_CPU_COLLECTIVES_IMPLEMENTATION" not in os.environ:
        # Without a distributed client JAX exchanges between devices of a process in memory; with one it would take
        # gloo's sockets, whose bf16 sums of 100 MB over 8 devices of a process were seen to be wrong (JAX 0.10.2).
        jax.config.update("jax_cpu_collectives_implementation", None)
    original(**own, **local)

    # A script made for a cluster calls this itself. Under the launcher the call has nothing left
    # to do, unless it contradicts the launcher or comes after jax.distributed.shutdown().
    @functools.wraps(original)
    def initialize(
        coordinator_address: str | None = None,
        num_processes: int | None = None,
        process_id: int | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        for name, given in (("num_processes", num_processes), ("process_id", process_id)):
            if given is not None and given != own[name]:
                raise ValueError(
                    f"jax.distributed.initialize({name}={given}) contradicts the launcher, "
                    f"which started this process with {name}={own[name]}"
                )
        if not jax.distributed.is_initialized():
            del coordinator_address, args, kwargs  # The launcher's own port is still reserved.
            original(**own, **local)

    jax.distributed.initialize = initialize


def _run_target(arguments: list[str]) -> None:
    """Runs the script or module as `python` would, with the same `sys.argv` and `sys.path`."""
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.realpath(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")


def _status_of(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def _print_traceback(error: BaseException) -> None:
    """Prints the traceback from the script's first frame on; those above are the launcher's."""
    first: TracebackType | None = error.__traceback__
    while first is not None and _is_own_frame(first):
        first = first.tb_next
    traceback.print_exception(type(error), error, first or error.__traceback__)


def _is_own_frame(frame: TracebackType) -> bool:
    file = frame.tb_frame.f_code.co_filename
    return file == __file__ or "runpy" in os.path.basename(file)


if __name__ == "__main__":
    main()
