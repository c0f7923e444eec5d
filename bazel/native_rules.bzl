"""Repositories that stand for rules_cc and the like on Bazel 4 to 6 and re-export the rules built into it.

Bazel 4 would download them, and every BUILD file may load() its rules the way Bazel 8 demands.
"""

_RULES = {
    "cc": [
        "cc_binary",
        "cc_import",
        "cc_library",
        "cc_proto_library",
        "cc_test",
        "cc_toolchain",
        "cc_toolchain_suite",
    ],
    "java": [
        "java_binary",
        "java_import",
        "java_library",
        "java_proto_library",
        "java_runtime",
        "java_test",
        "java_toolchain",
    ],
    "python": [
        "py_binary",
        "py_library",
        "py_runtime",
        "py_test",
    ],
}

_PY_RUNTIME_PAIR = """load("@bazel_tools//tools/python:toolchain.bzl", _pair = "py_runtime_pair")

py_runtime_pair = _pair
"""

def _export(rules):
    return "".join(["{0} = native.{0}\n".format(rule) for rule in rules])

def _native_rules_impl(ctx):
    tool = 'filegroup(name = "%s", visibility = ["//visibility:public"])\n'
    ctx.file("BUILD.bazel", tool % "coverage_report_generator" + tool % "lcov_merger")
    for package, rules in _RULES.items():
        ctx.file(package + "/BUILD.bazel", "")
        ctx.file(package + "/defs.bzl", _export(rules))
        for rule in rules:
            ctx.file("%s/%s.bzl" % (package, rule), _export([rule]))
    ctx.file("python/py_runtime_pair.bzl", _PY_RUNTIME_PAIR)

native_rules = repository_rule(_native_rules_impl)
