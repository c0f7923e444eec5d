"""The stages of `./dev test`."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from devtool import build, lint, pythons, system, tally
from devtool.pythons import Environment
from devtool.shell import JOBS, ROOT, DevError, Words, child_env, output_of, run, say, status_of
from devtool.tally import Counts, Report

STAGES = ("lint", "cc", "san", "py", "bazel", "sources", "docs", "wheel")
_QUICK = ("cc", "py", "docs")


@dataclass(frozen=True)
class Options:
    filter: str | None
    quick: bool


def _fresh_folder(name: str) -> Path:
    folder = ROOT / "build" / "reports" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _without_address_randomisation() -> list[str]:
    """A prefix for ThreadSanitizer, whose older runtimes cannot live with many bits of randomisation."""
    if shutil.which("setarch") and output_of(["setarch", "-R", "true"]) is not None:
        return ["setarch", "-R"]
    return []


def run_ctest(name: str, folder: Path, environment: Environment, options: Options) -> Counts:
    reports = _fresh_folder(name)
    extra = {"GTEST_OUTPUT": f"xml:{reports}/"}
    if options.filter:
        extra["GTEST_FILTER"] = f"*{options.filter}*"
    if name == "cc-thread":
        extra["TSAN_OPTIONS"] = "halt_on_error=1 second_deadlock_stack=1"
    if name == "cc-address":
        extra["ASAN_OPTIONS"] = "detect_stack_use_after_return=1"
        extra["UBSAN_OPTIONS"] = "print_stacktrace=1"
    ctest = Path(environment.tool("cmake")).with_name("ctest")
    listing = output_of([ctest, "--test-dir", folder, "-N"]) or ""
    programs = re.findall(r"Test +#\d+: (\S+)", listing)
    if not programs:
        raise DevError(f"no C++ tests in {folder}")
    prefix = _without_address_randomisation() if name == "cc-thread" else []
    command = [*prefix, str(ctest), "--test-dir", str(folder), f"-j{JOBS}", "--output-on-failure"]
    status = status_of(command, env=child_env(extra))
    counts = tally.from_junit([reports / f"{program}.xml" for program in programs])
    if (status == 0) != (counts.failed == 0):  # for instance a leak reported after the last case
        counts += Counts(failed=1)
    return counts


def run_pytest(environment: Environment, options: Options, slow: bool) -> Counts:
    """Unit tests on all cores, then the tests that start processes of their own one after the other.

    Args:
      environment: whose Python and JAX.
      options: of the command line.
      slow: also those that are marked so.
    """
    reports = _fresh_folder(f"py-{environment.tag}")
    common: Words = [environment.python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    if options.filter:
        common += ["-k", options.filter]
    if not slow:
        common += ["-m", "not slow"]
    env = environment.env(UCCL_SOURCE_ROOT=str(ROOT))
    env.setdefault("JAX_PLATFORMS", "cpu")
    # Most of the time is LLVM's, optimising programs that run once. Bazel's tests compile as users do.
    env["XLA_FLAGS"] = f"{env.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0".strip()
    workers = ["-n", str(min(JOBS, 8)), "--dist", "worksteal"]
    parts = {
        "unit": ["tests", "--ignore=tests/integration", *workers],
        "integration": ["tests/integration"],
    }
    total = Counts()
    for part, where in parts.items():
        if part == "integration" and not list((ROOT / where[0]).glob("test_*.py")):
            continue
        report = reports / f"{part}.xml"
        status = status_of([*common, f"--junitxml={report}", *where], env=env)
        if status == 5 and (options.filter or not slow):  # the filter left nothing here
            continue
        counts = tally.from_junit([report])
        if (status == 0) != (counts.failed == 0):
            counts += Counts(failed=1)
        total += counts
    return total


def run_bazel(bazel: str, environment: Environment, options: Options) -> Counts:
    command = [bazel, "test", "--config=ci", "//..."]
    if options.filter:
        command.append(f"--test_filter={options.filter}")
    # The interpreter is named, so that local_env does not pick another; PATH stays as it is, or each
    # environment would make Bazel start over.
    env = child_env({"PYTHON_BIN_PATH": str(environment.python)})
    say(shlex.join(command))
    process = subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    counts = Counts()
    for line in process.stdout:
        print(line, end="", flush=True)
        found = re.search(
            r"Test cases: finished with .*?(\d+) passing.*? and .*?(\d+) failing", line
        )
        if found:
            counts = Counts(passed=int(found[1]), failed=int(found[2]))
    status = process.wait()
    if status != 0 and counts.failed == 0:
        counts += Counts(failed=1)
    return counts


def run_sources(environment: Environment, folder: Path, bazel: str | None) -> Counts:
    command: Words = [environment.python, "tools/check_sources.py", "--build-dir", folder]
    command += [] if bazel else ["--no-bazel"]
    env = environment.env(PYTHON_BIN_PATH=str(environment.python))
    env.pop("PYTHONPATH")
    return tally.one(status_of(command, env=env) == 0)


def run_docs(environment: Environment) -> Counts:
    """Generated pages must be what their generator makes of today's tables."""
    if not (ROOT / "tools" / "gen_docs.py").exists():
        raise DevError("tools/gen_docs.py is missing")
    command: Words = [environment.python, "tools/gen_docs.py", "--check"]
    return tally.one(status_of(command, env=environment.env()) == 0)


_SMOKE = """
import jax, jax.numpy as jnp, jax_uccl, sys
from jax_uccl import _uccl
print("installed:", jax_uccl.__file__, _uccl.__file__, "jax", jax.__version__)
assert sys.argv[1] in jax_uccl.__file__ and sys.argv[1] in _uccl.__file__
mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
spec = jax.sharding.PartitionSpec("x")
f = jax.jit(jax.shard_map(lambda x: jax_uccl.psum(x, "x"), mesh=mesh, in_specs=spec,
                          out_specs=jax.sharding.PartitionSpec()))
assert f(jnp.arange(4.0)).tolist() == [6.0], f(jnp.arange(4.0))
"""


def run_wheel(environment: Environment) -> Counts:
    """`pip install .` as a user does it: isolated build, then used away from the source tree."""
    with tempfile.TemporaryDirectory(prefix="uccl-wheel-") as scratch:
        target = Path(scratch) / "site"
        pip: Words = [environment.python, "-m", "pip", "install", "-qq"]
        # With the options of ./dev build the compiler cache knows the rooms, whose objects depend on no Python.
        env = child_env({"CMAKE_ARGS": "-DJAX_UCCL_WERROR=ON"})
        if ccache := system.ccache():
            env["CMAKE_CXX_COMPILER_LAUNCHER"] = ccache
        run([*pip, "--disable-pip-version-check", "--no-deps", "--target", target, ROOT], env=env)
        stray = [
            str(p.relative_to(target))
            for p in (target / "jax_uccl").rglob("*")
            if p.suffix in (".cc", ".h", ".cpp") or p.name == "BUILD.bazel"
        ]
        modules = list((target / "jax_uccl").glob("_uccl*.so"))
        if stray or len(modules) != 1:
            raise DevError(f"wrong contents of the wheel: stray {stray}, modules {modules}")
        env = child_env({"PYTHONPATH": str(target), "JAX_PLATFORMS": "cpu"})
        env["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
        command: Words = [environment.python, "-c", _SMOKE, str(target)]
        return tally.one(status_of(command, env=env, cwd=Path(scratch)) == 0)


def _build_modules(environments: list[Environment]) -> Counts:
    build.build_all(environments)
    return Counts(passed=len(environments))


def _run_sanitized(
    sanitizer: str, environment: Environment, headers: Path, options: Options
) -> Counts:
    folder = build.build_sanitized(environment, headers, sanitizer)
    return run_ctest(f"cc-{sanitizer}", folder, environment, options)


def run_tests(stages: tuple[str, ...], options: Options, named: str | None) -> int:
    """Runs the stages (all, or with --quick a few) and prints the closing line."""
    stages = stages or (_QUICK if options.quick else STAGES)
    report = Report()
    environments = pythons.environments(named=named, only_first=options.quick)
    first = environments[0]
    folder = ROOT / "build" / f"dev-{first.tag}"

    if {"lint", "cc", "py", "sources", "docs"} & set(stages):
        if not report.stage("build", partial(_build_modules, environments)):
            return report.close()
    if "lint" in stages:
        report.stage("lint", partial(lint.lint, first))
    if "cc" in stages:
        report.stage("cc", partial(run_ctest, "cc", folder, first, options))
    if "san" in stages:
        headers = pythons.xla_headers(environments)
        for sanitizer in build.SANITIZERS:
            body = partial(_run_sanitized, sanitizer, first, headers, options)
            report.stage(f"cc with {sanitizer} sanitizer", body)
    if "py" in stages:
        for environment in environments:
            # What is slow takes a quarter of an hour: once is enough.
            slow = environment is first and not options.quick
            report.stage(f"py {environment.tag}", partial(run_pytest, environment, options, slow))
    bazel = system.bazel() if {"bazel", "sources"} & set(stages) else None
    if "bazel" in stages:
        if bazel:
            report.stage("bazel", partial(run_bazel, bazel, first, options))
        else:
            report.skip("bazel", "no Bazel: sudo apt-get install bazel-bootstrap libgtest-dev")
    if "sources" in stages:
        report.stage("sources", partial(run_sources, first, folder, bazel))
    if "docs" in stages:
        report.stage("docs", partial(run_docs, first))
    if "wheel" in stages:
        for environment in environments:
            report.stage(f"wheel {environment.tag}", partial(run_wheel, environment))
    return report.close()


def shut_bazel_down() -> None:
    """Bazel's server would stay for three hours."""
    bazel = shutil.which("bazel")
    if bazel and os.path.isdir(ROOT / "bazel-out"):
        status_of([bazel, "shutdown"])
