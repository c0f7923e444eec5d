"""Description of a local job, and what each of its processes finds in its environment.

Starting, relaying and ending is in `launch_supervisor.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence

_DEVICE_COUNT_FLAG = re.compile(r"--xla_force_host_platform_device_count=\S*")


@dataclasses.dataclass(frozen=True)
class Job:
    """What to run.

    Attributes:
      command: script and its arguments, or "-m", module and its arguments.
      size: number of processes.
      devices_per_process: CPU devices that JAX shows in each process.
      env: variables to set in each process, over those of the launcher.
      rank_env: for each rank, variables over `env`; empty for none.
      timeout_s: limit for the whole job; None for no limit.
      grace_s: time between the request to end and SIGKILL.
      initialize: whether `jax.distributed.initialize` is called before the script.
      end_on_failure: whether the first rank that fails ends the others.
      columns: terminal width to report to the script, where there is a terminal.
    """

    command: Sequence[str]
    size: int
    devices_per_process: int = 1
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    rank_env: Sequence[Mapping[str, str]] = ()
    timeout_s: float | None = None
    grace_s: float = 5.0
    initialize: bool = True
    end_on_failure: bool = True
    columns: int | None = None


@contextlib.contextmanager
def reserved_address() -> Iterator[str]:
    """A local port that nobody else gets while the job runs.

    The socket is bound but does not listen, and allows others of this user to bind the same port
    explicitly, which is what the coordinator's server does. The kernel does not hand the port out
    for an ephemeral bind meanwhile. (Asking for a free port and closing it leaves a gap.)
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{holder.getsockname()[1]}"


def child_environment(job: Job, rank: int, coordinator: str) -> dict[str, str]:
    env = dict(os.environ)
    # An inherited device count would contradict the one given here, which JAX refuses.
    flags = _DEVICE_COUNT_FLAG.sub("", env.pop("XLA_FLAGS", "")).strip()
    if flags:
        env["XLA_FLAGS"] = flags
    env |= {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(job.devices_per_process),
        # JAX's preemption notice would swallow the SIGTERM that ends a rank.
        "JAX_ENABLE_PREEMPTION_SERVICE": "0",
        "PYTHONUNBUFFERED": "1",  # Lines appear when printed, not when 8 KiB have gathered.
        "JAX_UCCL_LAUNCH_RANK": str(rank),
        "JAX_UCCL_LAUNCH_SIZE": str(job.size),
        "JAX_UCCL_LAUNCH_COORDINATOR": coordinator,
        "JAX_UCCL_LAUNCH_PARENT": str(os.getpid()),
        "JAX_UCCL_LAUNCH_INITIALIZE": "1" if job.initialize else "0",
    }
    if job.columns is not None:
        env["COLUMNS"] = str(job.columns)
    env |= job.env
    if job.rank_env:
        env |= job.rank_env[rank]
    return env
