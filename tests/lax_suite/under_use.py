"""A pytest plugin: every test runs inside `jax_uccl.use()`, on eight CPU devices.

For the tests of a JAX checkout of the installed version, which pip does not carry:

    PYTHONPATH=tests/lax_suite:. python -m pytest -p under_use $JAX_SOURCE_DIR/tests/shard_map_test.py -k psum

With JAX_UCCL_SUITE=lax the same cases run on JAX's own collectives: only what passes there and fails here counts.
The summary says how many collectives were lowered to this library; none would make the run worthless.
"""

from __future__ import annotations

import os

_FLAG = "--xla_force_host_platform_device_count=8"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import pytest  # noqa: E402

import jax_uccl  # noqa: E402
from jax_uccl._src import lowering  # noqa: E402

OURS = os.environ.get("JAX_UCCL_SUITE", "uccl") != "lax"
_lowered = 0
_emit = lowering.emit_collective


def _counting(*args, **kwargs):
    global _lowered
    _lowered += 1
    return _emit(*args, **kwargs)


lowering.emit_collective = _counting


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    with jax_uccl.use(OURS):
        yield


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"collectives lowered to jax_uccl: {_lowered}")
