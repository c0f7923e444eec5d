"""The helper that other multi-process tests rest on: it must never turn a failure into a pass."""

from __future__ import annotations

import pathlib

import mp
import pytest


def run(script, n, **kwargs):
    return mp.run_processes(script, n, initialize=False, **kwargs)


def test_results_in_rank_order():
    results = run(
        """
        import os, sys
        from child_report import report
        rank = int(os.environ["JAX_UCCL_LAUNCH_RANK"])
        print("out", rank, sys.argv[1:], os.environ["NAME"])
        print("err", rank, file=sys.stderr)
        report({"square": rank * rank})
        """,
        3,
        args=["a"],
        env={"NAME": "value"},
        check=True,
    )
    assert [r.rank for r in results] == [0, 1, 2]
    assert [r.returncode for r in results] == [0, 0, 0]
    assert [r.stdout for r in results] == [f"out {rank} ['a'] value\n" for rank in range(3)]
    assert [r.stderr for r in results] == [f"err {rank}\n" for rank in range(3)]
    assert [r.value for r in results] == [{"square": rank * rank} for rank in range(3)]


FAILS = """
import os, signal
if os.environ["JAX_UCCL_LAUNCH_RANK"] == "1":
    raise ValueError("boom")
if {waits}:
    signal.pause()
print("survived")
"""


def test_failure_is_returned():
    ended, failed = run(FAILS.format(waits=True), 2)
    assert failed.returncode == 1 and "ValueError: boom" in failed.stderr
    assert ended.returncode == -15 and ended.stdout == ""


def test_survivors_go_on():
    results = run(FAILS.format(waits=False), 2, end_on_failure=False)
    assert [r.returncode for r in results] == [0, 1]
    assert results[0].stdout == "survived\n"


@pytest.mark.parametrize("end_on_failure", [True, False])
def test_failure_raises_when_checked(end_on_failure):
    script = FAILS.format(waits=False)
    with pytest.raises(mp.ProcessesFailed, match="boom"):
        run(script, 2, check=True, end_on_failure=end_on_failure)


def test_nothing_stays_behind():
    (result,) = run(
        """
        import subprocess, sys
        from child_report import report
        stays = "import signal\\nwhile True: signal.pause()"
        report(subprocess.Popen([sys.executable, "-c", stays]).pid)
        """,
        1,
        check=True,
    )
    fields = pathlib.Path(f"/proc/{result.value}/stat")
    # It is gone, or a zombie that init has not yet reaped.
    assert not fields.exists() or fields.read_text().rpartition(")")[2].split()[0] == "Z"


def test_timeout_shows_where_each_process_is():
    script = """
    import signal
    def stuck_here():
        while True:  # The request for stacks ends a pause.
            signal.pause()
    print("before", flush=True)
    stuck_here()
    """
    with pytest.raises(mp.ProcessesFailed, match="no end within 2 s") as caught:
        run(script, 2, timeout=2)
    assert all(result.returncode == -15 for result in caught.value.results)
    assert str(caught.value).count("in stuck_here") == 2
    assert str(caught.value).count("before") == 2
