"""DeepEP's acceptance checks with all ranks in one process; tests/integration/test_moe.py has several processes."""

from __future__ import annotations

import moe_acceptance as acceptance
import numpy as np
import pytest


@pytest.mark.parametrize(("mode", "quantize"), acceptance.LIMITS)
def test_deepep(mode, quantize, mesh_of):
    # Ranks that are no power of two, and a hot one.
    hot = 4 if mode == "low_latency" else 1
    sizes = acceptance.Sizes(17, 200, 24, 5, hot=hot, repeats=20)
    assert acceptance.check(mesh_of((6,), ("e",)), sizes, mode, quantize) == 6


def test_offsets(mesh_of):
    assert acceptance.check_offsets(mesh_of((4,), ("e",))) == 4


def test_hot_rank_has_the_load_that_was_asked_for():
    for hot in (1, 4):
        idx = acceptance.choices(acceptance.Sizes(400, 1, 64, 8, hot=hot), 8)
        load = np.bincount(idx[idx >= 0] // 8, minlength=8)
        assert load[0] == pytest.approx(hot * load.mean(), rel=0.15)
        tokens = (idx >= 0).any(-1).sum(-1)
        assert tokens[0] > tokens[3] > tokens[7] == 0


def test_a_wrong_row_is_seen(monkeypatch, mesh_of):
    # The checks can fail.
    monkeypatch.setattr(acceptance, "LIMITS", {("throughput", "fp8"): 1e-9})
    sizes = acceptance.Sizes(8, 128, 4, 2)
    with pytest.raises(AssertionError, match="fp8"):
        acceptance.check(mesh_of((2,), ("e",)), sizes, "throughput", "fp8")
