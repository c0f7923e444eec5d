"""The hashes in csrc/cuda/testing/quantize_bits.inc, by which C++ tests hold the kernels to `moe.quantize`, are its."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jax_uccl._src.moe import quantize

ROOT = Path(os.environ.get("UCCL_SOURCE_ROOT") or Path(__file__).absolute().parents[1])
TABLE = ROOT / "csrc" / "cuda" / "testing" / "quantize_bits.inc"
ROW = re.compile(
    r"^UCCL_QUANTIZE_BITS\((\w+), k\w+, (\w+), (\d+), (\d+), 0x([0-9a-f]{16})\)$", re.M
)
ROWS = ROW.findall(TABLE.read_text(encoding="utf-8"))
MASK = (1 << 64) - 1


def mix(x: Any) -> Any:
    """splitmix64, of an array or of one number."""
    if isinstance(x, int):
        x = (x + 0x9E3779B97F4A7C15) & MASK
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
        return x ^ (x >> 31)
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def made(dtype: str, rows: int, channels: int) -> np.ndarray:
    """The elements of GoldenElement in csrc/cuda/rows_test.cc."""
    u = np.uint64
    h = mix(np.arange(rows * channels, dtype=np.uint64))
    row = np.arange(rows * channels, dtype=np.uint64) // u(channels)
    if dtype == "float16":
        bits = (h & u(1)) << u(15) | (((h >> u(1)) + row) % u(31)) << u(10) | h >> u(8) & u(0x3FF)
    else:
        exponent = u(100) + row % u(7) * u(4) + (h >> u(1)) % u(16)
        bits = (h & u(1)) << u(31) | exponent << u(23) | h >> u(8) & u(0x7FFFFF)
        if dtype == "bfloat16":
            bits = bits >> u(16)
    bits = np.where(row == 0, u(0), bits)
    if dtype == "float32":
        return bits.astype(np.uint32).view(np.float32).reshape(rows, channels)
    kind = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    return bits.astype(np.uint16).view(kind).reshape(rows, channels)


def test_table_is_there() -> None:
    assert len(ROWS) >= 12
    assert {r[0] for r in ROWS} == {"float16", "bfloat16", "float32"}


@pytest.mark.parametrize("dtype,cast,rows,channels,want", ROWS)
def test_quantize_has_these_bits(
    dtype: str, cast: str, rows: str, channels: str, want: str
) -> None:
    x = jnp.asarray(made(dtype, int(rows), int(channels)))
    power_of_two = {"kToFp8": False, "kToFp8PowerOf2": True}[cast]
    wire = quantize.to_wire(*quantize.quantize(x, power_of_two_scales=power_of_two))
    value = 0
    for byte in np.asarray(wire).tobytes():
        value = mix(value ^ byte)
    assert f"{value:016x}" == want
