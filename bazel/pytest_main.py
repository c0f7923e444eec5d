"""Runs pytest inside a Bazel test and lets Bazel know the single cases."""

import importlib.util
import os
import sys

import pytest

spec = importlib.util.find_spec("jax_uccl")
if spec and ".runfiles" + os.sep not in (spec.origin or ""):
    # An editable install has an import hook that beats PYTHONPATH; the tests would pass on other code.
    sys.exit(
        f"jax_uccl would come from {spec.origin}, not from this build: "
        "pip uninstall jax_uccl, or set PYTHON_BIN_PATH"
    )
# What is marked slow is left to `./dev test py`: here the build is tested.
args = ["-p", "no:cacheprovider", "--import-mode=importlib", "-rfEs", "-m", "not slow"]
if "XML_OUTPUT_FILE" in os.environ:
    args.append("--junitxml=" + os.environ["XML_OUTPUT_FILE"])
if "TEST_TMPDIR" in os.environ:
    args.append("--basetemp=" + os.environ["TEST_TMPDIR"] + "/pytest")
if os.environ.get("TESTBRIDGE_TEST_ONLY"):  # bazel test --test_filter=...
    args += ["-k", os.environ["TESTBRIDGE_TEST_ONLY"]]
status = pytest.main(args + sys.argv[1:])
if status == pytest.ExitCode.NO_TESTS_COLLECTED:
    status = pytest.ExitCode.OK  # a filter meant tests of another target, or all of these are slow
sys.exit(status)
