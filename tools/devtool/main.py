"""The command line of `./dev`."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from pathlib import Path

from devtool import build, fuzz, gpu, lint, pythons, testing
from devtool.shell import ROOT, DevError, Words, run, say, status_of

_EPILOG = """\
Everything sets up what it needs first: environments under .venv/, and as root system packages through apt-get.
--python PATH uses that interpreter and the packages it has, instead of .venv/.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./dev", epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", metavar="PATH", help="use this interpreter as it is")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("setup", help="make the environments (quick when they are there)")

    command = commands.add_parser("build", help="build the extension modules and the C++ tests")
    command.add_argument("--sanitize", choices=build.SANITIZERS, help="build the C++ tests with it")
    command.add_argument(
        "--cuda", action="store_true", help="build for NVIDIA GPUs (needs nvcc); checks HIP too"
    )

    command = commands.add_parser("test", help="run the tests")
    command.add_argument("stages", nargs="*", metavar="stage", help=", ".join(testing.STAGES))
    command.add_argument("-k", dest="filter", help="only tests whose name contains this")
    command.add_argument(
        "--quick", action="store_true", help="one Python, no slow tests, few stages"
    )

    command = commands.add_parser("fuzz", help="fuzz the receive path with libFuzzer (needs clang)")
    command.add_argument("target", nargs="?", help="default: all in turn")
    command.add_argument("--seconds", type=int, default=60, help="for each target; default 60")
    command.add_argument("--keep", action="store_true", help="update tests/fuzz/corpus afterwards")

    command = commands.add_parser("lax-suite", help="run JAX's own tests on jax_uccl's functions")
    command.add_argument("args", nargs=argparse.REMAINDER, help="passed to tests/lax_suite/run.py")

    command = commands.add_parser("demo", help="train a small mixture of experts in 4 processes")
    command.add_argument("-n", type=int, default=4, help="number of processes")
    command.add_argument("args", nargs=argparse.REMAINDER, help="passed to examples/train_moe.py")

    command = commands.add_parser(
        "gpu-check", help="build, test and measure for GPUs, where there are"
    )
    command.add_argument("--json", type=Path, default=gpu.RESULT, help="where the result goes")

    commands.add_parser("lint", help="check the sources' form")
    commands.add_parser("format", help="rewrite the sources in form")

    command = commands.add_parser("bench", help="run benchmarks/*.py")
    command.add_argument("name", nargs="?", help="one of them, without .py; default: all in turn")
    command.add_argument("args", nargs=argparse.REMAINDER, help="passed on")

    commands.add_parser("docs", help="rewrite the generated pages of docs/")

    command = commands.add_parser("clean", help="remove build products")
    command.add_argument("--all", action="store_true", help="and the environments")
    return parser


def _clean(everything: bool) -> None:
    testing.shut_bazel_down()
    products = [ROOT / "build", ROOT / "dist", ROOT / "train_moe_out"]
    products += (ROOT / "jax_uccl").glob("_uccl*.so")
    products += [p for name in ("__pycache__", ".*_cache") for p in ROOT.glob(name)]
    for folder in ("jax_uccl", "tests", "tools", "examples", "benchmarks"):
        products += (ROOT / folder).rglob("__pycache__")
    products += ROOT.glob("bazel-*")
    if everything:
        products.append(ROOT / ".venv")
    for path in products:
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.is_dir():
            shutil.rmtree(path)


def _built(named: str | None, *, programs: bool = False) -> pythons.Environment:
    """One environment with its module up to date: what demo, bench and docs run in."""
    environments = pythons.environments(only_first=True, named=named)
    headers = pythons.xla_headers(environments)
    folder = build.build_module(environments[0], headers, with_tests=False)
    if programs:
        build.build_programs(folder, environments[0])
    return environments[0]


def _demo(named: str | None, processes: int, args: list[str]) -> int:
    environment = _built(named)
    launch: Words = [environment.python, "-m", "jax_uccl.launch", "-n", str(processes)]
    return status_of([*launch, "examples/train_moe.py", *args], env=environment.env())


def _bench(named: str | None, name: str | None, args: list[str]) -> int:
    programs = sorted(p for p in (ROOT / "benchmarks").glob("*.py") if not p.name.startswith("_"))
    chosen = [p for p in programs if name in (None, p.stem)]
    if not chosen:
        raise DevError(f"no such benchmark; there are: {', '.join(p.stem for p in programs)}")
    environment = _built(named, programs=True)
    return max(status_of([environment.python, p, *args], env=environment.env()) for p in chosen)


def _main(options: argparse.Namespace) -> int:
    named: str | None = options.python
    match options.command:
        case "setup":
            environments = pythons.environments(named=named)
            say("ready: " + ", ".join(str(e.python) for e in environments))
        case "build":
            if options.cuda:
                gpu.build_gpu(named)
                return 0
            environments = pythons.environments(named=named)
            if options.sanitize:
                headers = pythons.xla_headers(environments)
                build.build_sanitized(environments[0], headers, options.sanitize)
            else:
                build.build_all(environments)
        case "test":
            unknown = set(options.stages) - set(testing.STAGES)
            if unknown:
                raise DevError(f"unknown {sorted(unknown)}; stages: {', '.join(testing.STAGES)}")
            chosen = testing.Options(filter=options.filter, quick=options.quick)
            return testing.run_tests(tuple(options.stages), chosen, named)
        case "fuzz":
            environment = pythons.environments(only_first=True, named=named)[0]
            return fuzz.fuzz(environment, options.target, options.seconds, options.keep)
        case "lax-suite":
            environment = _built(named)
            program = [environment.python, "tests/lax_suite/run.py", *options.args]
            return status_of(program, env=environment.env())
        case "gpu-check":
            return gpu.gpu_check(named, options.json)
        case "demo":
            return _demo(named, options.n, options.args)
        case "lint":
            counts = lint.lint(pythons.environments(only_first=True, named=named)[0])
            return 1 if counts.failed else 0
        case "format":
            lint.format_all(pythons.environments(only_first=True, named=named)[0])
        case "bench":
            return _bench(named, options.name, options.args)
        case "docs":
            environment = _built(named)
            run([environment.python, Path("tools/gen_docs.py")], env=environment.env())
        case "clean":
            _clean(options.all)
    return 0


def _stop(signum: int, _frame: object) -> None:
    raise SystemExit(128 + signum)  # unwinding ends the child that runs at the moment


def main() -> int:
    signal.signal(signal.SIGTERM, _stop)
    try:
        return _main(_parser().parse_args())
    except DevError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
