"""A pytest plugin of run.py: JAX's own tests with the collectives of jax_uccl in place of those of jax.lax.

What stands in is said by the environment:

    UCCL_SUITE=lax     nothing: what passes here counts below
    UCCL_SUITE=use     lax's functions, lowered by jax_uccl.use()
    UCCL_SUITE=swap    the functions themselves: jax.lax.psum is jax_uccl.psum, and so on

Outcomes of all tests go to UCCL_SUITE_REPORT (a prefix; the rank is added). The plugin also counts the
collectives that were lowered to this library: none would make the run worthless.

Only tests run whose source names a collective or a derivative (whose transposes are collectives), and of those
only the names in the file UCCL_SUITE_ONLY, where that is set. A test that looks for XLA's spelling of a
collective in a program's text is given ours instead.
"""

from __future__ import annotations

import contextlib
import fnmatch
import inspect
import json
import os
import pathlib
import re
import sys
import types
import unittest

import excluded
import jax
import pytest

import jax_uccl
from jax_uccl._src import lowering

MODE = os.environ["UCCL_SUITE"]
REPORT = os.environ["UCCL_SUITE_REPORT"]
PROCESSES = int(os.environ["UCCL_SUITE_PROCESSES"])
RANK = int(os.environ["JAX_UCCL_LAUNCH_RANK"])
SWAPPED = (
    "all_gather all_to_all pbroadcast pmax pmean pmin ppermute pshuffle psum psum_scatter "
    "ragged_all_to_all"
).split()

ONLY = os.environ.get("UCCL_SUITE_ONLY")
_ABOUT_COLLECTIVES = re.compile(
    "psum|pmean|pmax|pmin|all_gather|reduce_scatter|all_to_all|permute|pbroadcast|pshuffle|pswapaxes|"
    "grad|vjp|linear|transpose|hessian|jacrev"
)

_lowered = 0
_outcomes: dict[str, str] = {}


def _count_lowered():
    emit = lowering.emit_collective

    def counting(*args, **kwargs):
        global _lowered
        _lowered += 1
        return emit(*args, **kwargs)

    lowering.emit_collective = counting


def _as_we_write_it(text):
    """What our collectives look like in a program's text where lax's or XLA's look like `text`."""
    if not isinstance(text, str):
        return text
    text = text.replace("@ragged_all_to_all", "@jax_uccl_ragged_all_to_all")
    if MODE == "swap":  # in a jaxpr; under use() the primitives are lax's
        text = text.replace("unreduced_reduce_scatter", "uccl_psum_scatter")
    found = re.fullmatch(r"replica_groups = dense<\[\[(.*)\]\]> : tensor<(\d+)x(\d+)xi64>", text)
    if found is None:
        return text
    members = found[1].replace("], [", ", ")
    count = int(found[2]) * int(found[3])
    return f"group_size = {found[3]} : i64, groups = dense<[{members}]> : tensor<{count}xi64>"


def _accept_our_spelling():
    contains = unittest.TestCase.assertIn

    def either(self, member, container, msg=None):
        contains(self, _as_we_write_it(member), container, msg)

    unittest.TestCase.assertIn = either


def pytest_configure():
    _count_lowered()
    if MODE != "lax":
        _accept_our_spelling()
    if MODE == "swap":
        for name in SWAPPED:
            setattr(jax.lax, name, getattr(jax_uccl, name))
    if PROCESSES > 1:
        # What JAX's own launcher of such tests hands over as flags.
        import absl.flags
        from jax._src import test_multiprocess

        absl.flags.FLAGS([sys.argv[0]])
        absl.flags.FLAGS[test_multiprocess.NUM_PROCESSES.name].value = PROCESSES


def name_of(item):
    """`shard_map_test.py::Class::test`: the same for every place of a checkout."""
    path, *names = item.nodeid.split("::")
    return "::".join([pathlib.PurePath(path).name, *names])


def _wrapped(function):
    """`function` and those in it: not every decorator of JAX's tests says what it wraps."""
    found, left = [], [function]
    while left:
        f = inspect.unwrap(left.pop())
        if isinstance(f, types.FunctionType) and f not in found:
            found.append(f)
            left += [cell.cell_contents for cell in f.__closure__ or ()]
    return found


def _is_about_collectives(item):
    sources = (inspect.getsource(f) for f in _wrapped(item.function))
    return any(_ABOUT_COLLECTIVES.search(source) for source in sources)


def pytest_collection_modifyitems(config, items):
    only = None if ONLY is None else set(pathlib.Path(ONLY).read_text().splitlines())
    left, kept = [], []
    for item in items:
        name = name_of(item)
        if not _is_about_collectives(item) or (only is not None and name not in only):
            left.append(item)
        elif excluded.not_run(name, MODE):
            left.append(item)
            _outcomes[name] = "not run"
        else:
            kept.append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    # Ragged tests skip themselves on CPU, where JAX has no such collective; this library has.
    ragged = fnmatch.fnmatch(name_of(item), "ragged_*") and MODE != "lax"
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        if ragged:
            from jax._src import test_util

            matches = test_util.test_device_matches
            patch.setattr(
                test_util,
                "test_device_matches",
                lambda kinds: matches([k for k in kinds if k != "cpu"]),
            )
        if MODE == "use":
            stack.enter_context(jax_uccl.use())
        yield


def pytest_runtest_logreport(report):
    name = "::".join(
        [pathlib.PurePath(report.nodeid.split("::")[0]).name, *report.nodeid.split("::")[1:]]
    )
    worst = {"failed": 2, "skipped": 1, "passed": 0}
    if worst[report.outcome] >= worst.get(_outcomes.get(name, "passed"), 0):
        _outcomes[name] = report.outcome
    # Written each time: a test that ends the process must not take the others' outcomes with it.
    if report.when == "teardown":
        _write()


def pytest_sessionfinish():
    _write()


def _write():
    path = pathlib.Path(f"{REPORT}.{RANK}.json")
    path.write_text(json.dumps({"outcomes": _outcomes, "lowered": _lowered}))
