"""The console script `jax-uccl`: picks a sub-command and hands the rest of the line to it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from jax_uccl._src import bench_command, launcher, sim_command

# name -> (function of the rest of the line, summary).
_COMMANDS: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "bench": (bench_command.main, "measure the running job, and write a tuning file"),
    "launch": (launcher.main, "run a script as several local JAX processes"),
    "sim": (sim_command.main, "run the transport on a simulated fabric"),
}


def _usage() -> str:
    width = max(map(len, _COMMANDS))
    rows = [f"  {name:<{width}}  {summary}" for name, (_, summary) in _COMMANDS.items()]
    return "\n".join(["usage: jax-uccl COMMAND [options]", "", "commands:", *rows])


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code of the sub-command, 2 for an unknown one."""
    args = list(sys.argv[1:] if argv is None else argv)
    if args and args[0] in ("-h", "--help"):
        print(_usage())
        return 0
    if not args or args[0] not in _COMMANDS:
        problem = f"jax-uccl: unknown command {args[0]!r}\n" if args else ""
        print(problem + _usage(), file=sys.stderr)
        return 2
    return _COMMANDS[args[0]][0](args[1:])
