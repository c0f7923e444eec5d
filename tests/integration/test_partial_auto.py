"""Partial-auto shard_map over the devices of several processes: right values, and no collective around ours."""

from __future__ import annotations

import os
import pathlib

import jax
import mp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_uccl

TESTS = pathlib.Path(__file__).parents[1]
# Mesh axis "b" is mapped; "a" is left to XLA, and divides the array beside it. With "a" first its parts are in
# different processes and a group of "b" within one; with "b" first it is the other way round.
MESHES = {"auto axis across": ("a", "b"), "mapped axis across": ("b", "a")}

CHILD = """
    import faulthandler, re, sys
    faulthandler.dump_traceback_later(280, exit=True)
    import jax, jax.numpy as jnp, numpy as np
    from functools import partial
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    import jax_uccl
    from child_report import report
    from collective_cases import CASES, operand

    order, wanted = sys.argv[1].split(","), np.load(sys.argv[2])
    sizes = {"a": 2, "b": 4}
    mesh = Mesh(np.array(jax.devices()).reshape([sizes[name] for name in order]), order)
    native = re.compile(r" (all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute)(?:-start)?\\(")

    def place(value, spec):
        return jax.make_array_from_callback(value.shape, NamedSharding(mesh, spec), lambda i: value[i])

    def checked(program, name, *arguments):
        compiled = jax.jit(program).lower(*arguments).compile()
        text = compiled.as_text()
        assert "jax_uccl_" in text and "jax_uccl_auto" not in text, name
        assert not native.findall(text), (name, native.findall(text))
        out = compiled(*arguments)
        for shard in out.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), wanted[name][shard.index], err_msg=name)
        return out

    x = np.asarray(operand())
    compared = 0
    for name, case in CASES.items():
        spec = P("b", None, "a") if name == "barrier" else P(("b", "a"))
        f = jax.shard_map(lambda v: case.call(jax_uccl, v * 2) + 1, mesh=mesh, in_specs=P("b"), out_specs=P("b"),
                          axis_names={"b"}, check_vma=False)
        out = checked(f, name, place(x, spec))
        compared += 1
        if case.differentiable:
            w = np.cos(np.arange(out.size, dtype=out.dtype)).reshape(out.shape).round(2)
            w = jax.make_array_from_callback(w.shape, out.sharding, lambda i: w[i])
            checked(lambda v, w: jax.vjp(f, v)[1](w)[0], f"{name} back", place(x, spec), w)
            compared += 1
    report(compared)
    jax_uccl.shutdown()
    jax.distributed.shutdown()
"""


def _references() -> dict[str, np.ndarray]:
    """What the four ranks of "b" give by themselves, in this process."""
    from collective_cases import CASES, operand

    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("b",))
    wanted = {}
    for name, case in CASES.items():
        f = jax.shard_map(
            lambda v, case=case: case.call(jax_uccl, v * 2) + 1,
            mesh=mesh,
            in_specs=P("b"),
            out_specs=P("b"),
            check_vma=False,
        )
        out = wanted[name] = np.asarray(jax.jit(f)(operand()))
        if case.differentiable:
            w = np.cos(np.arange(out.size, dtype=out.dtype)).reshape(out.shape).round(2)
            pull = jax.jit(lambda v, w, f=f: jax.vjp(f, v)[1](w)[0])
            wanted[f"{name} back"] = np.asarray(pull(operand(), w))
    return wanted


@pytest.mark.slow
@pytest.mark.parametrize("order", MESHES.values(), ids=MESHES)
def test_nothing_is_gathered(order: tuple[str, str], tmp_path: pathlib.Path) -> None:
    wanted = _references()
    np.savez(tmp_path / "wanted.npz", **wanted)
    paths = [TESTS, TESTS / "integration", TESTS.parent]
    results = mp.run_processes(
        CHILD,
        2,
        4,
        args=[",".join(order), str(tmp_path / "wanted.npz")],
        env={"PYTHONPATH": os.pathsep.join(map(str, paths))},
        timeout=300,
        check=True,
    )
    assert [r.value for r in results] == [len(wanted)] * 2
