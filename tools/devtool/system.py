"""System packages: installed through apt-get where we are root, named to the user where we are not."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from devtool.shell import DevError, child_env, run, say, status_of

_GTEST_HEADER = Path("/usr/include/gtest/gtest.h")


def apt_install(packages: Sequence[str], why: str) -> bool:
    """Whether the packages are there afterwards; False where we may not install."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return False
    say(f"installing {' '.join(packages)} ({why})")
    env = child_env({"DEBIAN_FRONTEND": "noninteractive"})
    command = ["apt-get", "install", "-qy", "--no-install-recommends", *packages]
    if status_of(command, env=env) == 0:
        return True
    run(["apt-get", "update", "-q"], env=env)  # a fresh image has no package lists
    return status_of(command, env=env) == 0


def need(packages: Sequence[str], why: str) -> None:
    if not apt_install(packages, why):
        raise DevError(f"missing: {why}. Install it: sudo apt-get install {' '.join(packages)}")


def need_compiler() -> None:
    if not shutil.which("g++") and not shutil.which(os.environ.get("CXX", "clang++")):
        need(["g++"], "a C++20 compiler")


def need_gtest() -> None:
    if not _GTEST_HEADER.exists() and not Path("/usr/local/include/gtest/gtest.h").exists():
        need(["libgtest-dev"], "GoogleTest, for the C++ tests")


def bazel() -> str | None:
    """The Bazel to use, or None where there is none and we may not install one."""
    if not shutil.which("bazel"):
        # Bazel's tests take GoogleTest from the same package as CMake's.
        apt_install(["bazel-bootstrap", "libgtest-dev"], "Bazel")
    return shutil.which("bazel")


@functools.cache
def ccache() -> str | None:
    """The compiler cache, which lets the wheels reuse the rooms' objects; None where it cannot be had."""
    if not shutil.which("ccache"):
        apt_install(["ccache"], "a compiler cache")
    return shutil.which("ccache")
