"""jax_uccl.Config, and what importing the package does and does not do."""

from __future__ import annotations

import dataclasses
import doctest
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_uccl
from jax_uccl import _uccl
from jax_uccl._src import ffi_targets, jax_compat


def test_fields_are_those_of_the_native_table():
    rows = _uccl.config_rows()
    assert [f.name for f in dataclasses.fields(jax_uccl.Config)] == [row["name"] for row in rows]
    for row in rows:
        assert f"  {row['name']}: " in jax_uccl.Config.__doc__
        assert row["env"] in jax_uccl.Config.__doc__
        kind = "int | None" if row["is_int"] else "str | None"
        assert jax_uccl.Config.__annotations__[row["name"]] == kind


def test_only_what_was_set_is_passed_on():
    assert jax_uccl.Config().settings() == {}
    config = jax_uccl.Config(paths=8, backend="udp", address="")
    assert config.settings() == {"paths": "8", "backend": "udp", "address": ""}


def test_equality_and_immutability():
    assert jax_uccl.Config(paths=8) == jax_uccl.Config(paths=8) != jax_uccl.Config(paths=9)
    assert hash(jax_uccl.Config(paths=8)) == hash(jax_uccl.Config(paths=8))
    with pytest.raises(dataclasses.FrozenInstanceError):
        jax_uccl.Config().paths = 3
    assert dataclasses.replace(jax_uccl.Config(paths=8), backend="udp").paths == 8


def test_unknown_settings_are_refused():
    with pytest.raises(TypeError, match="pathz"):
        jax_uccl.Config(pathz=3)
    with pytest.raises(TypeError):
        jax_uccl.Config("udp")  # positions would change meaning when the table grows


def test_importing_jax_uccl_does_not_import_flax():
    script = (
        "import sys, jax_uccl, jax_uccl.moe, jax_uccl.flax\n"
        "assert not [m for m in sys.modules if m == 'flax' or m.startswith('flax.')]\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


IMPORT = """
import jax, jax_uccl
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized()
jax_uccl.Config(paths=2)
jax_uccl.moe.dispatch, jax_uccl.sharded.moe.dispatch  # reached without an import of their own
assert not xla_bridge.backends_are_initialized()
"""


def test_import_initialises_no_backend():
    """Otherwise jax.distributed.initialize() could not follow it."""
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    run = subprocess.run(
        [sys.executable, "-c", IMPORT], env=env, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == run.stderr == ""


@pytest.mark.parametrize(
    "name", ["all_to_all", "psum", "all_reduce", "strict_order", "errors", "Config"]
)
def test_docstring_examples(name):
    """The public function has an example, and it runs."""
    examples = doctest.DocTestFinder(recurse=False).find(getattr(jax_uccl, name), name, globs={})
    assert any(test.examples for test in examples)
    runner = doctest.DocTestRunner()
    for test in examples:
        assert runner.run(test).failed == 0


def test_module_names_match():
    """The lowering and the compile event must agree on a module's name, for odd function names too."""
    seen, lowered = [], []

    def listen(event, duration, **kwargs):
        if event == jax_compat.BACKEND_COMPILE_EVENT:
            seen.append(jax_compat.module_name_of_event(kwargs["fun_name"]))

    jax.monitoring.register_event_duration_secs_listener(listen)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("x",))

    def step_(x):
        return jax_uccl.psum(x, "x")

    for f in (lambda x: jax_uccl.psum(x, "x"), step_):
        mapped = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P()))
        f_lowered = mapped.lower(np.ones(2, np.float32))
        text = f_lowered.as_text()
        lowered.append(text[text.index("module @") :].split()[1].removeprefix("@"))
        assert f'module = "{lowered[-1]}"' in text
        f_lowered.compile()
        assert seen[-1] == lowered[-1]
    assert lowered == ["jit__lambda", "jit_step"]


def test_native_part_knows_the_devices(monkeypatch):
    """Once for each backend client, in jax.devices() order, and only when one exists."""
    calls = []

    class Native:
        compile_boundary = staticmethod(lambda name: calls.append(name))
        set_default_devices = staticmethod(lambda ids, processes: calls.append((ids, processes)))

    monkeypatch.setattr(ffi_targets, "_uccl", Native)
    monkeypatch.setattr(ffi_targets, "_known_client", None)
    ids = [d.id for d in jax.devices("cpu")]
    event = jax_compat.BACKEND_COMPILE_EVENT
    ffi_targets._on_duration("/jax/other", 0.1, fun_name="jit(f)")
    ffi_targets._on_duration(event, 0.1, fun_name="jit(f)")
    ffi_targets._on_duration(event, 0.1, fun_name="jit(<lambda>)")
    assert calls == ["jit_f", (ids, [0] * len(ids)), "jit__lambda"]
    monkeypatch.setattr(ffi_targets, "_known_client", None)
    monkeypatch.setattr(jax_compat, "backend_devices", lambda platform: None)
    ffi_targets._on_duration(event, 0.1, fun_name="jit(f)")
    assert calls[3:] == ["jit_f"]
