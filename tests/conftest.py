"""Eight CPU devices for every Python test of this process; the flag is read when JAX starts.

Makes the helpers beside the tests importable, too: pytest's importlib mode does not.
"""

from __future__ import annotations

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))

_FLAG = "--xla_force_host_platform_device_count"
if _FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}=8".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def _moe_implementation():
    """UCCL_TEST_MOE=native runs the tests of MoE with that implementation where they name none (docs/testing.md)."""
    name = os.environ.get("UCCL_TEST_MOE")
    if name is not None:
        from jax_uccl._src.moe import registry

        registry.find(name)
        registry.DEFAULTS |= dict.fromkeys(registry.DEFAULTS, name)


@pytest.fixture
def mesh_of():
    """make(shape, names, order=None): a mesh with automatic axes over the devices in `order`."""

    def make(shape, names, order=None, axis_types=None):
        devices = jax.devices() if order is None else [jax.devices()[i] for i in order]
        devices = np.array(devices[: int(np.prod(shape))]).reshape(shape)
        return jax.sharding.Mesh(devices, names, axis_types=axis_types)

    return make


@pytest.fixture
def against_lax():
    """check(program, *args, ...): `program(collectives, *args)` gives what jax.lax gives.

    Runs both in one compiled program, so that ours also runs beside XLA's own collectives.
    """
    import jax_uccl
    from jax_uccl._src.collectives import _reference

    def check(program, *args, mesh, in_specs, out_specs, check_vma=True, rtol=0.0, **kwargs):
        def mapped(collectives):
            return jax.shard_map(
                lambda *xs: program(collectives, *xs),
                mesh=mesh,
                in_specs=in_specs,
                out_specs=out_specs,
                check_vma=check_vma,
                **kwargs,
            )

        ours, lax_result = jax.jit(lambda *xs: (mapped(jax_uccl)(*xs), mapped(_reference)(*xs)))(
            *args
        )
        assert_same(ours, lax_result, rtol)
        return ours

    return check


def assert_same(got, want, rtol=0.0):
    """Equal trees, shapes, dtypes and weak types; values to the bit, or to `rtol`."""
    got_leaves, got_tree = jax.tree.flatten(got)
    want_leaves, want_tree = jax.tree.flatten(want)
    assert got_tree == want_tree
    for i, (g, w) in enumerate(zip(got_leaves, want_leaves, strict=True)):
        assert (g.shape, g.dtype, g.weak_type) == (w.shape, w.dtype, w.weak_type), i
        if rtol:
            np.testing.assert_allclose(g, w, rtol=rtol, atol=rtol, err_msg=f"leaf {i}")
        else:
            np.testing.assert_array_equal(np.asarray(g), np.asarray(w), err_msg=f"leaf {i}")


@pytest.fixture(name="assert_same")
def assert_same_fixture():
    return assert_same
