"""The repository @local_env: what this machine offers, found without any download.

The Python named by PYTHON_BIN_PATH (else VIRTUAL_ENV, else python3 on PATH) gives the interpreter of the tests, its
headers, jaxlib's FFI headers and nanobind; GoogleTest comes from the system. For --config=cuda nvcc is the one that NVCC
names, else that on PATH, and its toolkit gives the runtime. Made anew when one of these variables changes; after
`pip install` run `bazel sync --configure`.
"""

_PROBE = """
import importlib.util, sysconfig
from importlib.metadata import distributions
print("include", sysconfig.get_paths()["include"])
for name in ("jaxlib", "nanobind"):  # found, not imported: an import costs seconds
    spec = importlib.util.find_spec(name)
    print(name, *(spec.submodule_search_locations if spec else []))
print(*sorted({f"# {d.metadata['Name']} {d.version}" for d in distributions()}), sep="\\n")
"""

_BUILD = """
load("@rules_cc//cc:cc_library.bzl", "cc_library")
load("@rules_python//python:py_runtime.bzl", "py_runtime")
load("@rules_python//python:py_runtime_pair.bzl", "py_runtime_pair")

package(default_visibility = ["//visibility:public"])

exports_files(["packages.txt"])

cc_library(name = "python_headers", hdrs = glob(["python/**/*.h"]), includes = ["python"])

cc_library(name = "xla_ffi_headers", hdrs = glob(["jaxlib/**/*.h"]), includes = ["jaxlib"])

cc_library(
    name = "nanobind",
    srcs = ["nanobind/src/nb_combined.cpp"],
    hdrs = glob(["nanobind/include/**/*.h"]),
    copts = ["-fvisibility=hidden", "-fno-strict-aliasing", "-ffunction-sections", "-fdata-sections", "-w"],
    includes = ["nanobind/include", "nanobind/ext/robin_map/include"],
    linkstatic = True,
    local_defines = ["NB_COMPACT_ASSERTIONS"],
    textual_hdrs = glob(
        ["nanobind/src/*", "nanobind/ext/**/*.h"],
        exclude = ["nanobind/src/nb_combined.cpp"],
    ),
    deps = [":python_headers"],
)

py_runtime(name = "py3", interpreter_path = "%s", python_version = "PY3")

py_runtime_pair(name = "pair", py3_runtime = ":py3")

toolchain(
    name = "py_toolchain",
    toolchain = ":pair",
    toolchain_type = "@bazel_tools//tools/python:toolchain_type",
)
"""

_GTEST = """
cc_library(
    name = "gtest",
    srcs = ["gtest/libgtest_main.a", "gtest/libgtest.a"],
    hdrs = glob(["gtest/include/**/*.h"]),
    includes = ["gtest/include"],
    linkopts = ["-lpthread"],
)
"""

_CUDART = """
cc_library(
    name = "cudart",
    srcs = ["cuda/%s/libcudart_static.a"],
    hdrs = glob(["cuda/include/*.h", "cuda/include/crt/*.h"]),
    includes = ["cuda/include"],
    linkopts = ["-lpthread", "-ldl", "-lrt"],
)
"""

# Stands for what this machine lacks: building it fails and says why, all else builds.
_MISSING = """
genrule(name = "no_{name}", outs = ["no_{name}.h"], tags = ["manual"], cmd = "echo '{why}' >&2; exit 1")

cc_library(name = "{name}", hdrs = ["no_{name}.h"], tags = ["manual"])
"""

_LIBRARY_FOLDERS = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
]

def _gtest(ctx):
    for folder in _LIBRARY_FOLDERS:
        if ctx.path(folder + "/libgtest_main.a").exists:
            ctx.symlink("/usr/include/gtest", "gtest/include/gtest")
            ctx.symlink(folder + "/libgtest_main.a", "gtest/libgtest_main.a")
            ctx.symlink(folder + "/libgtest.a", "gtest/libgtest.a")
            return _GTEST
    return _MISSING.format(name = "gtest", why = "no GoogleTest: apt-get install libgtest-dev")

# nvcc may be a script around another, so it is asked for its own root.
def _cudart(ctx, nvcc):
    if nvcc:
        words = [nvcc, "--dryrun", "-x", "cu", "-c", "/dev/null", "-o", "/dev/null"]
        for line in ctx.execute(words).stderr.splitlines():
            if not line.startswith("#$ TOP="):
                continue
            top = line[len("#$ TOP="):]
            for folder in ["lib64", "lib"]:
                if ctx.path(top + "/" + folder + "/libcudart_static.a").exists:
                    ctx.symlink(top + "/include", "cuda/include")
                    ctx.symlink(top + "/" + folder, "cuda/" + folder)
                    return _CUDART % folder
    return _MISSING.format(name = "cudart", why = "no CUDA toolkit: put nvcc on PATH, or set NVCC")

def _python(ctx):
    env = ctx.os.environ
    if env.get("PYTHON_BIN_PATH"):
        return env["PYTHON_BIN_PATH"]
    if env.get("VIRTUAL_ENV"):
        return env["VIRTUAL_ENV"] + "/bin/python"
    return str(ctx.which("python3"))

def _local_env_impl(ctx):
    python = _python(ctx)
    probe = ctx.execute([python, "-c", _PROBE])
    found = dict([(line + " ").split(" ", 1) for line in probe.stdout.splitlines()])
    if not found.get("jaxlib") or not found.get("nanobind"):
        fail("%s has no jaxlib or nanobind; set PYTHON_BIN_PATH.\n%s" % (python, probe.stderr))
    ctx.symlink(found["include"].strip(), "python")
    ctx.symlink(found["jaxlib"].strip() + "/include", "jaxlib")
    ctx.symlink(found["nanobind"].strip(), "nanobind")
    ctx.file("packages.txt", probe.stdout)
    nvcc = ctx.os.environ.get("NVCC") or str(ctx.which("nvcc") or "")
    ctx.file("defs.bzl", "PYTHON = %r\nNVCC = %r\n" % (python, nvcc))
    ctx.file("BUILD.bazel", _BUILD % python + _gtest(ctx) + _cudart(ctx, nvcc))

local_env = repository_rule(
    _local_env_impl,
    configure = True,
    environ = ["PYTHON_BIN_PATH", "VIRTUAL_ENV", "PATH", "NVCC"],
    local = True,
)
