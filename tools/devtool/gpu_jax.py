"""A part of `./dev gpu-check`: rows by index in JAX programs on a GPU, against NumPy, under jit and with grad.

Prints one line of JSON with a summary. Fails where JAX has no CUDA backend or the handlers are not in use.
"""

from __future__ import annotations

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

from jax_uccl._src import cuda_module
from jax_uccl._src.moe import rows
from jax_uccl._src.moe.plan import invert


def main() -> int:
    try:
        device = jax.devices("cuda")[0]
    except RuntimeError as error:
        print(f"this JAX has no CUDA backend: {error}", file=sys.stderr)
        return 1
    rng = np.random.default_rng(0)
    cases = 0
    with jax.default_device(device):
        for dtype in (jnp.float32, jnp.bfloat16):
            for tokens, hidden in ((1, 1), (37, 129), (512, 7168)):
                x = jnp.asarray(rng.standard_normal((tokens, hidden)), dtype)
                index = np.asarray(rng.permutation(tokens + 5)[:tokens] - 5, np.int32)
                table = invert(jnp.asarray(index), jnp.asarray(index) >= 0, tokens)[:, None]
                take = jax.jit(lambda x, i, t: rows.take(x, i, t))
                want = np.where(index[:, None] < 0, 0, np.asarray(x, np.float32)[index])
                got = np.asarray(take(x, index, table), np.float32)
                assert np.array_equal(got, want), ("take", dtype, tokens, hidden)

                gradient = jax.jit(jax.grad(lambda x, i, t: (rows.take(x, i, t) * 2).sum()))
                got = np.asarray(gradient(x, index, table), np.float32)
                taken = np.isin(np.arange(tokens), index)[:, None]
                assert np.array_equal(got, np.where(taken, 2.0, 0.0) * np.ones_like(got))
                cases += 2
    if not cuda_module.status().startswith("in use"):
        print(f"the handlers were not used: {cuda_module.status()}", file=sys.stderr)
        return 1
    summary = f"{cases} cases of take, fold and grad equal NumPy under jit on {device.device_kind}"
    print(json.dumps({"summary": summary, "cases": cases, "jax": jax.__version__}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
