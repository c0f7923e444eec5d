"""The program behind benchmarks/engine.py, so that it works when somebody wants to measure."""

import importlib.util
import pathlib
import sys
import types

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def engine() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("engine_benchmark", ROOT / "benchmarks/engine.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    try:
        module.find_program()
    except SystemExit as missing:
        pytest.skip(str(missing))
    return module


@pytest.mark.parametrize("kind", ["engine", "tcp"])
def test_round_trips(engine: types.ModuleType, kind: str) -> None:
    pair = engine.Pair(engine.find_program(), kind, engine.Network("loopback"), [])
    for how in engine.WAYS:
        figures = engine.round_trip(pair, 50, how)
        assert 0 < figures["median_us"] <= figures["p99_us"]
    pair.close()


def test_streams(engine: types.ModuleType) -> None:
    settings = ["engines=2", "max_datagram_bytes=1400"]
    pair = engine.Pair(engine.find_program(), "engine", engine.Network("loopback"), settings)
    for size in engine.SIZES.values():
        assert engine.engine_stream(pair, size, 0.01)["gb_per_s"] > 0
    sender, receiver = pair.ask("stats")
    assert sender["packets_sent"] > 0 and receiver["packets_received"] > 0
    pair.close()
