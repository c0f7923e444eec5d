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

# glibc gives a freed block of more than some megabytes back to the kernel, so every large result of XLA costs a
# page fault for each 4 KiB and zeroed pages, often more than to compute or to send it. Told to keep what was freed,
# in huge pages, an all_to_all of 64 MB took 10 instead of 18 ms and met no fault instead of hundreds. What a thread
# other than the first allocates beyond 64 MB comes from the kernel all the same; arena_max=1 would change that, and
# makes compilations a third slower.
KEEP_FREED_MEMORY = ":".join(
    f"glibc.malloc.{name}" for name in ("hugetlb=1", "mmap_max=0", "trim_threshold=1099511627776")
)

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
      keep_memory: whether the C library keeps what is freed (KEEP_FREED_MEMORY), unless the environment
        says itself how it is to allocate.
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
    keep_memory: bool = True
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


def allocator_environment(env: Mapping[str, str]) -> dict[str, str]:
    """What to add to `env` so that a process keeps freed memory; nothing where it says itself how to allocate."""
    if any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in env):
        return {}
    return {"GLIBC_TUNABLES": KEEP_FREED_MEMORY}


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
    if job.keep_memory:
        env |= allocator_environment(env)
    if job.columns is not None:
        env["COLUMNS"] = str(job.columns)
    env |= job.env
    if job.rank_env:
        env |= job.rank_env[rank]
    return env
