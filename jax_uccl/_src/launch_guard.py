"""Last line of defence against orphans: a process that outlives a launcher killed by SIGKILL.

Reads lines from its standard input, whose other end only the launcher holds. `+<id>` names a
process group to watch and `-<id>` one that has ended. End of input means that the launcher is
gone, however it went; what is still watched is killed. A parent-death signal alone would not do:
it reaches the direct child, not the processes that the child started.

Run as a file with `-I -S`, so it starts in a few milliseconds and imports nothing of the package.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    # The launcher decides when this process ends, by closing the pipe; it does so on every signal.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        if line.startswith("+"):
            groups.add(int(line[1:]))
        else:
            groups.discard(int(line[1:]))
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            continue  # It ended between the launcher's death and now, which is what is wanted.


if __name__ == "__main__":
    main()
