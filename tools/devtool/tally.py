"""Counting what the test runners report, and the closing lines of `./dev test`."""

from __future__ import annotations

import time
import traceback
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from devtool.shell import DevError, say


@dataclass
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped
        )


def one(ok: bool) -> Counts:
    return Counts(passed=int(ok), failed=int(not ok))


def from_junit(reports: list[Path]) -> Counts:
    """Sums reports of pytest or GoogleTest. A report that is absent or cut short is one failure."""
    total = Counts()
    for report in reports:
        try:
            root = ElementTree.parse(report).getroot()
        except (OSError, ElementTree.ParseError) as error:
            print(f"[dev] no report of {report.stem}: {error}", flush=True)
            total += Counts(failed=1)
            continue
        for case in root.iter("testcase"):
            if case.find("failure") is not None or case.find("error") is not None:
                total += Counts(failed=1)
            elif case.find("skipped") is not None or case.get("status") == "notrun":
                total += Counts(skipped=1)
            else:
                total += Counts(passed=1)
    return total


@dataclass
class Report:
    """The stages that ran. A stage that cannot even start is a failure of its own."""

    rows: list[tuple[str, Counts, float, str]] = field(default_factory=list)

    def stage(self, name: str, body: Callable[[], Counts]) -> bool:
        say(f"== {name}")
        start, note = time.monotonic(), ""
        try:
            counts = body()
        except DevError as error:
            counts, note = Counts(failed=1), str(error)
            say(note)
        except Exception:  # a fault of ours must not hide the other stages' results
            traceback.print_exc()
            counts, note = Counts(failed=1), "devtool failed, see above"
        self.rows.append((name, counts, time.monotonic() - start, note))
        return counts.failed == 0

    def skip(self, name: str, why: str) -> None:
        say(f"== {name}: skipped, {why}")
        self.rows.append((name, Counts(skipped=1), 0.0, why))

    def close(self) -> int:
        """Prints the table and the closing line; the exit status."""
        total = Counts()
        width = max((len(row[0]) for row in self.rows), default=0)
        print()
        for name, counts, seconds, note in self.rows:
            total += counts
            verdict = "FAILED" if counts.failed else "ok" if counts.passed else "skipped"
            print(
                f"{name:<{width}}  {verdict:<7} {counts.passed:>6} passed {counts.failed:>4} failed"
                f" {counts.skipped:>4} skipped {seconds:>5.0f} s  {note}"
            )
        print(f"\n{total.passed} passed, {total.failed} failed", flush=True)
        return 1 if total.failed or not total.passed else 0
