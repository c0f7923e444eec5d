"""One process of a job of collectives.py: times the collectives of the libraries that it is told to.

Run by collectives.py with the peers of the job, its plan in JSON and the file that rank 0 appends its rows to.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

DTYPES = {"f32": 4, "bf16": 2}
IN_PROGRAM_BELOW = 1 << 20  # dispatch is nothing beside a larger transfer


def elements(op: str, size: int, itemsize: int, ranks: int) -> int:
    """Elements of one rank's operand."""
    count = max(1, size // itemsize)
    if op == "all_gather":
        return max(1, count // ranks)
    return max(1, count // ranks) * ranks if op in ("all_to_all", "psum_scatter") else count


def keep_shape(op: str, value: Any, like: Any, ranks: int) -> Any:
    """The result of `op` in the shape of its operand, so that a loop can feed it back; stays finite."""
    import jax.numpy as jnp

    if op == "all_gather":
        return value[: like.shape[0]]
    if op == "psum_scatter":
        return jnp.tile(value, ranks) * jnp.asarray(1 / ranks, like.dtype)
    return value * jnp.asarray(1 / ranks, like.dtype) if op == "psum" else value


def loop(once: Callable[[Any], Any], op: str, ranks: int, steps: int) -> Callable[[Any], Any]:
    """`steps` dependent operations in one program; one operation as it is."""
    from jax import lax

    if steps == 1:
        return once
    return lambda x: lax.fori_loop(0, steps, lambda _, v: keep_shape(op, once(v), v, ranks), x)


def shard_map_functions(peers: list[str]) -> dict[str, Any]:
    """peer -> module with the functions of jax.lax."""
    from jax import lax

    modules: dict[str, Any] = {}
    for peer in peers:
        if peer == "uccl":
            import jax_uccl

            modules[peer] = jax_uccl
        else:
            modules[peer] = lax
    return modules


def make_shard_map(module: Any, op: str, steps: int, mesh: Any) -> Callable[[Any], Any]:
    import jax
    from jax.sharding import PartitionSpec as P

    ranks = mesh.size

    def once(x: Any) -> Any:
        if op == "psum":
            return module.psum(x, "x")
        if op == "all_gather":
            return module.all_gather(x, "x", tiled=True)
        if op == "psum_scatter":
            return module.psum_scatter(x, "x", scatter_dimension=0, tiled=True)
        if op == "all_to_all":
            return module.all_to_all(x, "x", 0, 0, tiled=True)
        return module.ppermute(x, "x", [(i, (i + 1) % ranks) for i in range(ranks)])

    body = loop(once, op, ranks, steps)
    return jax.jit(
        jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    )


def make_mpi4jax(op: str, steps: int, comm: Any) -> Callable[[Any], Any] | None:
    """None for the operations that mpi4jax does not have."""
    import jax
    import mpi4jax
    from mpi4py import MPI

    rank, ranks = comm.Get_rank(), comm.Get_size()

    def once(x: Any) -> Any:
        if op == "psum":
            return mpi4jax.allreduce(x, op=MPI.SUM, comm=comm)
        if op == "all_gather":
            return mpi4jax.allgather(x, comm=comm).reshape(-1)
        if op == "all_to_all":
            return mpi4jax.alltoall(x.reshape(ranks, -1), comm=comm).reshape(-1)
        previous, following = (rank - 1) % ranks, (rank + 1) % ranks
        return mpi4jax.sendrecv(x, x, source=previous, dest=following, comm=comm)

    return None if op == "psum_scatter" else jax.jit(loop(once, op, ranks, steps))


def calls_for(size: int) -> int:
    return 50 if size < 1 << 20 else 5 if size < 16 << 20 else 1


class Timed(NamedTuple):
    """A call of `steps` operations."""

    call: Callable[[], Any]
    steps: int


def measure(
    functions: dict[str, Timed],
    rounds: int,
    calls: int,
    seconds: float,
    agree: Callable[[float], float],
) -> dict[str, list[float]]:
    """Seconds per operation of each function, in turns.

    Each is called once more before its time is taken: the processes come out of the one before it at different
    times, and leave that call together. What would take longer than `seconds` gets fewer calls in a round, then
    fewer rounds; `agree` makes all processes do the same.
    """
    plan: dict[str, tuple[int, int]] = {}
    for name, f in functions.items():
        f.call()
        start = time.perf_counter()
        f.call()
        took = agree(time.perf_counter() - start)
        if took < seconds / 10:
            f.call()
        fit = max(int(seconds / took), 2)  # of calls, in all
        plan[name] = min(rounds, max(fit // 2, 1)), max(min(calls, fit // rounds - 1), 1)
    times: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(rounds):
        for name in list(functions) if turn % 2 else list(functions)[::-1]:
            (turns, count), f = plan[name], functions[name]
            if turn >= turns:
                continue
            f.call()
            start = time.perf_counter()
            for _ in range(count):
                f.call()
            times[name].append((time.perf_counter() - start) / count / f.steps)
    return times


def copies(size: int, local_ranks: int) -> dict[str, Callable[[], Any]]:
    """Copies `size` bytes for each rank of this process at the same time: over old bytes, and into new memory."""
    from concurrent.futures import ThreadPoolExecutor

    pairs = [(np.ones(size, np.uint8), np.zeros(size, np.uint8)) for _ in range(local_ranks)]

    def warm(pair: tuple[Any, Any]) -> None:
        np.copyto(pair[1], pair[0])

    def fresh(pair: tuple[Any, Any]) -> None:
        pair[0].copy()

    if local_ranks == 1:
        return {"memcpy": lambda: warm(pairs[0]), "memcpy to new": lambda: fresh(pairs[0])}
    pool = ThreadPoolExecutor(local_ranks)
    return {
        "memcpy": lambda: list(pool.map(warm, pairs)),
        "memcpy to new": lambda: list(pool.map(fresh, pairs)),
    }


def main() -> None:
    peers, plan, out = sys.argv[1].split(","), json.loads(sys.argv[2]), sys.argv[3]
    import jax
    import jax.numpy as jnp

    comm = None
    if peers == ["mpi4jax"]:
        from mpi4py import MPI

        comm = MPI.COMM_WORLD.Clone()
        rank, ranks, local = comm.Get_rank(), comm.Get_size(), 1
    else:
        if peers == ["jax-mpi"]:
            jax.config.update("jax_cpu_collectives_implementation", "mpi")
            jax.distributed.initialize(
                os.environ["UCCL_BENCH_COORDINATOR"],
                int(os.environ["OMPI_COMM_WORLD_SIZE"]),
                int(os.environ["OMPI_COMM_WORLD_RANK"]),
            )
        rank, ranks, local = jax.process_index(), jax.device_count(), jax.local_device_count()
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))

    if ranks != plan["ranks"]:  # an mpirun of another MPI starts so many jobs of one rank each
        raise RuntimeError(f"{ranks} ranks instead of {plan['ranks']}")

    def operand(count: int, dtype: Any) -> Any:
        if comm is not None:
            return jnp.ones((count,), dtype)
        shard = np.ones((count,), dtype)
        return jax.make_array_from_callback((ranks * count,), sharding, lambda _: shard)

    def functions_for(op: str, steps: dict[str, int], x: Any) -> dict[str, Timed]:
        compiled: dict[str, Callable[[Any], Any]] = {}
        if comm is not None:
            f = make_mpi4jax(op, steps["mpi4jax"], comm)
            compiled = {} if f is None else {"mpi4jax": f}
        else:
            modules = shard_map_functions([p for p in peers if p != "memcpy"])
            compiled = {p: make_shard_map(m, op, steps[p], mesh) for p, m in modules.items()}
        return {
            p: Timed(lambda f=f: jax.block_until_ready(f(x)), steps[p])  # type: ignore[misc]
            for p, f in compiled.items()
        }

    if comm is None:
        from jax import lax

        along = sharding.spec
        slowest = jax.jit(
            jax.shard_map(
                lambda t: lax.pmax(t, "x"),
                mesh=mesh,
                in_specs=along,
                out_specs=along,
                check_vma=False,
            )
        )

    def agree(seconds: float) -> float:
        """The most of all processes."""
        if comm is not None:
            return float(comm.allreduce(seconds, op=MPI.MAX))
        each = np.full((ranks,), seconds, np.float32)
        most = slowest(jax.make_array_from_callback(each.shape, sharding, lambda i: each[i]))
        return float(most.addressable_shards[0].data[0])

    rows: list[dict] = []

    def record(times: dict[str, list[float]], **what: Any) -> None:
        rows.extend({"peer": peer, "times_s": t} | what for peer, t in times.items())

    for size in plan["sizes"]:
        if "memcpy" in peers:
            copying = {way: Timed(f, 1) for way, f in copies(size, local).items()}
            limits = (plan["rounds"], calls_for(size), plan["cell_seconds"], agree)
            for way, times_of in measure(copying, *limits).items():
                record({"memcpy": times_of}, op=way, dtype="bytes", bytes=size, in_program=False)
        for dtype in plan["dtypes"]:
            kind = {"f32": jnp.float32, "bf16": jnp.bfloat16}[dtype]
            for op in plan["operations"]:
                x = operand(elements(op, size, DTYPES[dtype], ranks), kind)
                limit = plan["cell_seconds"]
                steps = dict.fromkeys(peers, 1)
                one_call = functions_for(op, steps, x)
                times = measure(one_call, plan["rounds"], calls_for(size), limit, agree)
                record(times, op=op, dtype=dtype, bytes=size, in_program=False)
                if size >= IN_PROGRAM_BELOW:
                    continue
                for peer, each in times.items():
                    fit = limit / (plan["rounds"] + 2) / agree(statistics.median(each))
                    steps[peer] = max(min(plan["steps"], int(fit)), 2)
                times = measure(functions_for(op, steps, x), plan["rounds"], 1, limit, agree)
                record(times, op=op, dtype=dtype, bytes=size, in_program=True)
    if rank == 0:
        with open(out, "a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    if "uccl" in peers:
        import jax_uccl

        jax_uccl.shutdown()
    if comm is None and jax.process_count() > 1:
        jax.distributed.shutdown()


if __name__ == "__main__":
    main()
