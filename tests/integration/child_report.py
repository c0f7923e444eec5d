"""Imported by the processes that `mp.run_processes` starts: hands a value to the test.

    from child_report import report
    report({"sum": float(total)})

Imports nothing of the project, so a child may use it before or without JAX.
"""

from __future__ import annotations

import json
import os
import pathlib

REPORT_VARIABLE = "UCCL_TEST_REPORT"


def report(value: object) -> None:
    """Makes `value` (anything that JSON holds) the `Result.value` of this rank; the last one wins."""
    pathlib.Path(os.environ[REPORT_VARIABLE]).write_text(json.dumps(value))
