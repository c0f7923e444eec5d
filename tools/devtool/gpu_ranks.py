"""A part of `./dev gpu-check`: processes as ranks, all on one device; collectives and MoE exchange against NumPy.

    python -m jax_uccl.launch -n 4 tools/devtool/gpu_ranks.py cpu    # or cuda, where the handlers exist

Every rank knows the operands of all, and compares what it holds. Rank 0 prints one line of JSON. On CUDA, which takes
JAX_UCCL_EXECUTOR=fifo, a program is called often enough to be replayed from a command buffer.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # the ranks share the device's memory

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import jax_uccl  # noqa: E402
from jax_uccl import moe  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
import moe_acceptance  # noqa: E402

REPLAYS = 3


def _place(mesh: Mesh, value: np.ndarray) -> jax.Array:
    sharding = NamedSharding(mesh, P("e"))
    return jax.make_array_from_callback(value.shape, sharding, lambda i: value[i])


def _expect(mesh: Mesh, function: Callable[..., Any], want: np.ndarray, *args: np.ndarray) -> int:
    """`function` of each rank's shards under jit, some calls in a row; `want` is over all ranks. Cases checked."""
    program = jax.jit(
        jax.shard_map(function, mesh=mesh, in_specs=P("e"), out_specs=P("e"), check_vma=False)
    )
    placed = [_place(mesh, a) for a in args]
    for _ in range(REPLAYS):
        got = program(*placed)
        assert got.shape == want.shape, (got.shape, want.shape)
        for shard in got.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), want[shard.index])
    return 1


def check_collectives(mesh: Mesh) -> int:
    """Small integers, so that sums are exact in every type and order."""
    n, cases = mesh.devices.size, 0
    rng = np.random.default_rng(0)
    for dtype in (jnp.int32, jnp.float32, jnp.bfloat16):
        for width in (1, 129, 4096):
            # [ranks, n, width]: what each rank has, in n parts.
            x = rng.integers(-8, 8, (n, n, width)).astype(dtype)
            flat, total = x.reshape(n * n, width), x.sum(0, dtype=dtype)

            def same(part: np.ndarray) -> np.ndarray:
                return np.concatenate([part] * n)

            table: list[tuple[Callable[..., Any], np.ndarray]] = [
                (lambda v: jax_uccl.psum(v, "e"), same(total)),
                (lambda v: jax_uccl.pmax(v, "e"), same(x.max(0))),
                (lambda v: jax_uccl.psum_scatter(v, "e", tiled=True), total),
                (lambda v: jax_uccl.all_gather(v, "e", tiled=True), same(flat)),
                (
                    lambda v: jax_uccl.all_to_all(v, "e", 0, 0, tiled=True),
                    x.swapaxes(0, 1).reshape(flat.shape),
                ),
                (
                    lambda v: jax_uccl.ppermute(v, "e", [(i, (i + 1) % n) for i in range(n)]),
                    np.roll(x, 1, 0).reshape(flat.shape),
                ),
            ]
            for function, want in table:
                cases += _expect(mesh, function, want, flat)
            if dtype != jnp.int32:

                def gradient(v: jax.Array) -> jax.Array:
                    def loss(v: jax.Array) -> jax.Array:
                        return (jax_uccl.all_to_all(v, "e", 0, 0, tiled=True) * weight(v)).sum()

                    return jax.grad(loss)(v)

                def weight(v: jax.Array) -> jax.Array:
                    return jax.lax.axis_index("e").astype(v.dtype)

                # Part i of a rank's operand is weighted where it went: on rank i.
                sent_to = np.tile(np.arange(n), n)[:, None]
                want = np.broadcast_to(sent_to, flat.shape).astype(dtype)
                cases += _expect(mesh, gradient, want, flat)
    return cases


def check_moe(mesh: Mesh) -> int:
    """The acceptance checks of the tests, and the gradient of a dispatch that comes back."""
    n, cases = mesh.devices.size, 0
    sizes = moe_acceptance.Sizes(tokens=37, hidden=256, experts=16, top_k=4)
    for mode in ("throughput", "low_latency"):
        for quantize in (None, "fp8"):
            moe_acceptance.check(mesh, sizes, mode, quantize)
            cases += 1
    if os.environ.get("JAX_UCCL_EXECUTOR") == "fifo":  # rows by commands
        for mode in ("throughput", "low_latency"):
            for quantize in (None, "fp8"):
                moe_acceptance.check(mesh, sizes, mode, quantize, "native")
                cases += 1

    idx = moe_acceptance.choices(sizes, n)
    owners = idx // (sizes.experts // n)
    reached = sum(((idx >= 0) & (owners == d)).any(-1) for d in range(n))  # ranks of each token
    x = np.ones((n * sizes.tokens, sizes.hidden), np.float32)

    def gradient(x: jax.Array, idx: jax.Array) -> jax.Array:
        def loss(x: jax.Array) -> jax.Array:
            d = moe.dispatch(x, idx, num_experts=sizes.experts, axis_name="e")
            return (moe.combine(d.tokens, d.handle) * 2).sum()

        return jax.grad(loss)(x)

    want = 2.0 * np.broadcast_to(np.reshape(reached, (-1, 1)), x.shape).astype(np.float32)
    return cases + _expect(mesh, gradient, want, x, idx.reshape(-1, sizes.top_k))


def main() -> int:
    platform = sys.argv[1]
    jax.config.update("jax_platforms", platform)
    devices = jax.devices()
    assert all(d.platform == ("gpu" if platform == "cuda" else platform) for d in devices), devices
    mesh = Mesh(np.array(devices), ("e",))
    collectives, exchanges = check_collectives(mesh), check_moe(mesh)
    if jax.process_index() == 0:
        result = {"ranks": len(devices), "device": devices[0].device_kind}
        print(json.dumps(result | {"collectives": collectives, "moe": exchanges}))
    jax_uccl.shutdown()
    jax.distributed.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
