"""Rules of this project: a room of native code, the extension module, a pytest target."""

load("@local_env//:defs.bzl", "NVCC", "PYTHON")
load("@rules_cc//cc:cc_binary.bzl", "cc_binary")
load("@rules_cc//cc:cc_library.bzl", "cc_library")
load("@rules_cc//cc:cc_test.bzl", "cc_test")

_COPTS = ["-Wall", "-Wextra", "-ffp-contract=off", "-fvisibility=hidden"]
_TESTS = ["**/*_test.cc"]
_TESTING = ["**/testing/*.cc", "**/testing/*.h", "testing/*.cc", "testing/*.h"]

def uccl_room(name, deps = [], testing_deps = [], visible_to = [], exclude = [], private_deps = [], tests_in_ci = True):
    """One room, the same globs as in tools/cmake/Rooms.cmake.

    Args:
      name: the room; its targets are :name, :testing and one test for each *_test.cc.
      deps: rooms that this one may include, as labels.
      testing_deps: the testing libraries of these rooms.
      visible_to: packages that may include this room; this is what holds the arrows.
      exclude: sources that belong to another target of the package.
      private_deps: what only this room's own files need, such as vendor headers.
      tests_in_ci: whether --config=ci runs a third of the tests. The stage "cc" has run all of them, and all of a
        room depend on the same libraries: some show that what the targets declare is what they need.
    """
    cc_library(
        name = name,
        srcs = native.glob(["**/*.cc"], exclude = _TESTS + _TESTING + exclude, allow_empty = True),
        hdrs = native.glob(["**/*.h", "**/*.inc"], exclude = _TESTING, allow_empty = True),
        copts = _COPTS,
        linkstatic = True,
        linkopts = ["-lpthread", "-ldl"],
        visibility = visible_to,
        deps = deps + private_deps,
    )
    cc_library(
        name = "testing",
        testonly = True,
        srcs = native.glob(_TESTING, exclude = _TESTS + ["**/testing/*.h", "testing/*.h"], allow_empty = True),
        hdrs = native.glob(["**/testing/*.h", "testing/*.h"], allow_empty = True),
        copts = _COPTS,
        linkstatic = True,
        visibility = visible_to,
        deps = [":" + name] + testing_deps,
    )
    for index, source in enumerate(native.glob(_TESTS, allow_empty = True)):
        cc_test(
            name = name + "_" + source[:-3].replace("/", "_"),
            size = "medium",
            srcs = [source],
            copts = _COPTS + ["-O1"],
            data = ["//docs:files"],
            # Tests run in the root of their copy of the tree.
            env = {"UCCL_SOURCE_ROOT": "."},
            linkstatic = True,
            tags = [] if tests_in_ci and index % 3 == 0 else ["again"],
            deps = [":" + name, ":testing", "@local_env//:gtest"],
        )
    native.filegroup(
        name = "files",
        srcs = native.glob(["**"]),
        visibility = ["//visibility:public"],
    )

def uccl_program(name, srcs, deps = []):
    cc_binary(
        name = name,
        srcs = srcs,
        copts = _COPTS,
        linkopts = ["-lpthread"],
        deps = deps,
    )

# As tools/cmake/Cuda.cmake; all of them need CUDA 12.8.
_CUDA_ARCHITECTURES = ["80", "90", "100"]

def cuda_library(name, srcs, hdrs, deps, visible_to = []):
    """Kernels, compiled by the machine's nvcc. Manual: only --config=cuda asks for it.

    Args:
      name: of the library.
      srcs: *.cu files.
      hdrs: filegroups with every header that they include.
      deps: libraries that the launch functions call.
      visible_to: packages.
    """
    flags = [
        "-lib -std=c++20 -O3 --expt-relaxed-constexpr -fmad=false -Werror=all-warnings",
        "-Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra -I.",
    ] + ["-gencode=arch=compute_{0},code=sm_{0}".format(a) for a in _CUDA_ARCHITECTURES]
    missing = "echo 'no nvcc: put it on PATH, or set NVCC' >&2; exit 1"
    command = " ".join([NVCC] + flags + ["-o $@"] + ["$(location %s)" % s for s in srcs])
    native.genrule(
        name = name + "_nvcc",
        srcs = srcs + hdrs,
        outs = ["lib%s_cu.a" % name],
        cmd = command if NVCC else missing,
        tags = ["manual"],
    )
    cc_library(
        name = name,
        srcs = ["lib%s_cu.a" % name],
        tags = ["manual"],
        visibility = visible_to,
        deps = deps + ["@local_env//:cudart"],
    )

def shared_object(name, srcs, deps):
    """A library that Python opens with ctypes; manual, as cuda_library."""
    cc_binary(
        name = name,
        srcs = srcs,
        copts = _COPTS,
        linkopts = ["-Wl,--gc-sections"],
        linkshared = True,
        tags = ["manual"],
        deps = deps,
    )

def nanobind_extension(name, srcs, deps = []):
    cc_binary(
        name = name + ".so",
        srcs = srcs,
        copts = _COPTS,
        linkopts = ["-Wl,--gc-sections"],
        linkshared = True,
        deps = deps + ["@local_env//:nanobind"],
    )

_RUNNER = """#!/bin/sh
export PYTHONPATH="$PWD${{PYTHONPATH:+:$PYTHONPATH}}"
export UCCL_SOURCE_ROOT="$PWD"
exec {command} "$@"
"""

def _pytest_test_impl(ctx):
    runner = ctx.actions.declare_file(ctx.label.name)
    command = [PYTHON, ctx.file._main.short_path] + [f.short_path for f in ctx.files.srcs]
    ctx.actions.write(runner, _RUNNER.format(command = " ".join(command)), is_executable = True)
    runfiles = ctx.runfiles(
        files = ctx.files.srcs + ctx.files.data + [ctx.file._main],
        collect_data = True,
    )
    for dep in ctx.attr.deps:
        runfiles = runfiles.merge(dep[DefaultInfo].default_runfiles)
    return [DefaultInfo(executable = runner, runfiles = runfiles)]

# Not py_test: that of Bazel 4 starts through `#!/usr/bin/env python`, which plain Debian lacks.
pytest_test = rule(
    _pytest_test_impl,
    attrs = {
        "data": attr.label_list(allow_files = True),
        "deps": attr.label_list(),
        "srcs": attr.label_list(allow_files = [".py"]),
        "_main": attr.label(default = "//bazel:pytest_main.py", allow_single_file = True),
    },
    test = True,
)
