"""The native build: CMake with ninja, one folder per Python and per sanitizer under build/."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from devtool import pythons, system
from devtool.pythons import Environment
from devtool.shell import JOBS, ROOT, Words, output_of, run, timed

SANITIZERS = ("address", "thread")


def _configure(folder: Path, environment: Environment, options: dict[str, str]) -> None:
    cmake = environment.tool("cmake")
    if not (folder / "build.ninja").exists():
        shutil.rmtree(folder, ignore_errors=True)  # the rest of a failed configuration
    if ccache := system.ccache():
        options = {**options, "CMAKE_CXX_COMPILER_LAUNCHER": ccache}
    defines = [f"-D{name}={value}" for name, value in options.items()]
    ninja = environment.tool("ninja")
    command: Words = [
        cmake,
        "-S",
        ROOT,
        "-B",
        folder,
        "-G",
        "Ninja",
        f"-DCMAKE_MAKE_PROGRAM={ninja}",
    ]
    run([*command, *defines], env=environment.env(), quiet=True)


def _compile(folder: Path, environment: Environment, *targets: str) -> None:
    command: Words = [environment.tool("cmake"), "--build", folder, f"-j{JOBS}", "--target"]
    command += targets or ("all",)
    # Else ccache would not cache what includes a precompiled header; nothing here reads __TIME__.
    run(command, env=environment.env(CCACHE_SLOPPINESS="pch_defines,time_macros"))


def build_module(
    environment: Environment, headers: Path, *, with_tests: bool, rooms: Path | None = None
) -> Path:
    """The extension module, into jax_uccl/, and the C++ tests if wanted; the build folder.

    With rooms, a build folder of the same sources, only what depends on the Python is compiled.
    """
    system.need_compiler()
    if with_tests:
        system.need_gtest()
    folder = ROOT / "build" / f"dev-{environment.tag}"
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "JAX_UCCL_BUILD_PYTHON": "ON",
        "JAX_UCCL_INPLACE": "ON",
        "JAX_UCCL_ROOMS_FROM": str(rooms or ""),
        "JAX_UCCL_WERROR": "ON",
        "JAX_UCCL_XLA_INCLUDE_DIR": str(headers),
        "Python_EXECUTABLE": str(environment.python),
    }
    if with_tests:  # once on it stays on, so that demo and test do not configure in turn
        options["JAX_UCCL_BUILD_TESTS"] = "ON"
    with timed(f"building for {environment.tag}"):
        _configure(folder, environment, options)
        _compile(folder, environment, "all" if with_tests else "_uccl")
    return folder


def build_programs(folder: Path, environment: Environment) -> None:
    """The native programs of benchmarks/, into a folder that build_module has made."""
    with timed("building the benchmarks"):
        for program in ("engine_bench", "uccl_stream", "uccl_memory"):
            _compile(folder, environment, program)


def build_sanitized(environment: Environment, headers: Path, sanitizer: str) -> Path:
    """The C++ tests with a sanitizer, without Python; the build folder."""
    system.need_compiler()
    system.need_gtest()
    folder = ROOT / "build" / f"dev-{sanitizer}"
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "JAX_UCCL_BUILD_PYTHON": "OFF",
        "JAX_UCCL_BUILD_TESTS": "ON",
        "JAX_UCCL_SANITIZE": sanitizer,
        "JAX_UCCL_WERROR": "ON",
        "JAX_UCCL_XLA_INCLUDE_DIR": str(headers),
    }
    with timed(f"building with the {sanitizer} sanitizer"):
        _configure(folder, environment, options)
        _compile(folder, environment)
    return folder


def build_cuda(environment: Environment, headers: Path, targets: tuple[str, ...]) -> Path:
    """What is made for NVIDIA GPUs, without the extension module; the build folder."""
    system.need_compiler()
    system.need_gtest()
    folder = ROOT / "build" / "dev-cuda"
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "JAX_UCCL_BUILD_PYTHON": "OFF",
        "JAX_UCCL_BUILD_TESTS": "ON",
        "JAX_UCCL_CUDA": "ON",
        "JAX_UCCL_INPLACE": "ON",
        "JAX_UCCL_WERROR": "ON",
        "JAX_UCCL_XLA_INCLUDE_DIR": str(headers),
    }
    with timed("building for CUDA"):
        _configure(folder, environment, options)
        _compile(folder, environment, *targets)
    return folder


def cuda_version() -> str | None:
    """Of the nvcc on PATH."""
    found = re.search(r"release ([\d.]+)", output_of(["nvcc", "--version"]) or "")
    return found[1] if found else None


def build_fuzzers(environment: Environment, compiler: str, targets: list[str]) -> Path:
    """The libFuzzer programs, without Python; the build folder."""
    folder = ROOT / "build" / "dev-fuzz"
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_CXX_COMPILER": compiler,
        "JAX_UCCL_BUILD_FUZZERS": "ON",
        "JAX_UCCL_BUILD_PYTHON": "OFF",
        "JAX_UCCL_WERROR": "ON",
    }
    with timed("building the fuzzers"):
        _configure(folder, environment, options)
        _compile(folder, environment, *targets)
    return folder


def build_all(environments: list[Environment]) -> None:
    """The modules of all environments; the C++ tests come with the first."""
    headers = pythons.xla_headers(environments)
    rooms = build_module(environments[0], headers, with_tests=True)
    for environment in environments[1:]:
        build_module(environment, headers, with_tests=False, rooms=rooms)
