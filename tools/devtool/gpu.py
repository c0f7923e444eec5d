"""`./dev build --cuda` and `./dev gpu-check`: what can be built and run for GPUs on this machine.

Neither is part of `./dev test`: the kernels take minutes to compile. Each thing that cannot be done here (no nvcc, no
hipcc, no GPU, a JAX without CUDA) is told by name and with the reason; nothing passes that did not run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from devtool import build, pythons
from devtool.pythons import Environment
from devtool.shell import ROOT, DevError, Words, child_env, output_of, run, say, timed

TESTS = (
    "cuda_float_formats_test",
    "cuda_rows_test",
    "cuda_issue_wait_test",
    "cuda_send_await_test",
    "cuda_exchange_test",
    "cuda_limit_test",
    "moe_cuda_rows_test",
    "collectives_cuda_reduce_test",
)
RANKS = (2, 4)
RESULT = ROOT / "benchmarks" / "results" / "gpu_check.json"
_NO_NVCC = "no nvcc on PATH (CUDA 12.8 or newer)"
_NO_HIPCC = "no hipcc on PATH (apt-get install hipcc)"
_NO_GPU = "no NVIDIA GPU"


def gpu_name() -> str | None:
    """The first NVIDIA GPU of this machine."""
    names = output_of(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])
    return names.splitlines()[0].strip() if names and names.strip() else None


def build_cuda(environment: Environment, headers: Path) -> Path:
    """Kernels, `_uccl_cuda.so` into jax_uccl/, their tests and benchmark; the build folder."""
    if not shutil.which("nvcc"):
        raise DevError(f"nothing was built for CUDA: {_NO_NVCC}")
    return build.build_cuda(environment, headers, (*TESTS, "gpu_bench", "_uccl_cuda"))


def check_hip() -> None:
    """Compiles the kernels for AMD GPUs and throws the result away."""
    source = "csrc/cuda/testing/hip_check.hip"
    command: Words = ["hipcc", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off"]
    command += ["-I.", "--offload-arch=gfx90a", "-c", source, "-o", os.devnull]
    # Where nvcc is there too, hipcc would stand for it.
    run(command, env=child_env({"HIP_PLATFORM": "amd"}), quiet=True)


def build_gpu(named: str | None) -> None:
    """What `./dev build --cuda` does."""
    environments = pythons.environments(named=named, only_first=True)
    folder = build_cuda(environments[0], pythons.xla_headers(environments))
    say(f"built for CUDA: jax_uccl/_uccl_cuda.so, and tests in {folder.relative_to(ROOT)}")
    if shutil.which("hipcc"):
        with timed("compiling the kernels with hipcc (they are not run)"):
            check_hip()
    else:
        say(f"not compiled for AMD GPUs: {_NO_HIPCC}")


@dataclass
class Step:
    """One line of the table."""

    what: str
    state: str  # "ok", "FAILED", "not run"
    detail: str
    seconds: float = 0.0


class Check:
    """The steps of one gpu-check."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def step(self, what: str, missing: str | None, body: Any) -> Any:
        """Runs body(), which returns (detail, value), unless something is missing; the value or None."""
        if missing:
            self.steps.append(Step(what, "not run", missing))
            return None
        say(what)
        start = time.monotonic()
        try:
            detail, value = body()
            state = "ok"
        except (DevError, OSError, ValueError, subprocess.SubprocessError) as error:
            detail, value, state = str(error).splitlines()[0], None, "FAILED"
        self.steps.append(Step(what, state, detail, time.monotonic() - start))
        return value

    def table(self) -> str:
        width = max(len(s.what) for s in self.steps)
        rows = [
            f"{s.what:<{width}}  {s.state:<7}  {s.seconds:6.1f} s  {s.detail}" for s in self.steps
        ]
        return "\n".join(rows)


def _run_tests(folder: Path) -> tuple[str, dict[str, Any]]:
    """Kernel tests: on host threads, and on the GPU where the program finds one."""
    cases, devices = 0, True
    for program in TESTS:
        done = subprocess.run(
            [str(folder / program)],
            env=child_env({"UCCL_SOURCE_ROOT": str(ROOT)}),
            capture_output=True,
            text=True,
            timeout=240,
        )
        if done.returncode != 0:
            print(done.stdout + done.stderr)
            raise DevError(f"{program} failed")
        passed = re.search(r"\[  PASSED  \] (\d+) test", done.stdout)
        cases += int(passed[1]) if passed else 0
        devices = devices and "no CUDA device" not in done.stderr
    where = "on host threads and on the GPU" if devices and gpu_name() else "on host threads only"
    return f"{cases} tests {where}", {"tests": cases, "where": where}


def _bench(folder: Path) -> tuple[str, dict[str, Any]]:
    text = output_of([folder / "gpu_bench"], timeout_s=150)
    if text is None:
        raise DevError("gpu_bench failed or took more than 150 s")
    figures: dict[str, Any] = json.loads(text)
    for name, value in figures.items():
        if isinstance(value, dict):
            print(f"  {name:<24} {value['median']:10.4g} {value['unit']}  "
                  f"[{value['low']:.4g}, {value['high']:.4g}]")  # fmt: skip
    copy = figures["device_copy"]["median"]
    worst = min(
        figures[name]["median"] / copy
        for name in ("pack_bf16", "unpack_bf16", "reduce_4_f32", "fold_8_bf16")
    )
    trip = figures["fifo_round_trip"]["median"]
    return f"least {worst:.0%} of a device copy; FIFO round trip {trip:.3g} us", figures


# Custom calls go into command buffers, single ones too, so that repeated calls are replayed.
_GRAPHS = "--xla_gpu_enable_command_buffer=FUSION,CUSTOM_CALL --xla_gpu_graph_min_graph_size=1"


def _python(
    environment: Environment, words: list[str], failure: str, *, timeout_s: float, **extra: str
) -> str:
    """The standard output of that environment's Python; where it fails all output is shown."""
    done = subprocess.run(
        [str(environment.python), *words],
        env=environment.env(**extra),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    if done.returncode != 0:
        print(done.stdout + done.stderr)
        raise DevError(failure)
    return done.stdout


def _jax(environment: Environment) -> tuple[str, dict[str, Any]]:
    out = _python(environment, ["tools/devtool/gpu_jax.py"], "gpu_jax.py failed", timeout_s=180)
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return str(result["summary"]), result


def _ranks(environment: Environment, platform: str) -> tuple[str, list[dict[str, Any]]]:
    """Collectives and MoE exchange between processes that share one device."""
    results: list[dict[str, Any]] = []
    settings = {"JAX_UCCL_EXECUTOR": "fifo"}
    if platform == "cuda":
        # Kernels that wait for each other must not wait for one that is loaded when it is first launched.
        settings |= {"XLA_FLAGS": _GRAPHS, "CUDA_MODULE_LOADING": "EAGER"}
    for count in RANKS:
        command = [
            "-m",
            "jax_uccl.launch",
            "-n",
            str(count),
            "tools/devtool/gpu_ranks.py",
            platform,
        ]
        failure = f"gpu_ranks.py failed with {count} ranks"
        out = _python(environment, command, failure, timeout_s=240, **settings)
        line = out.splitlines()[-1]
        results.append(json.loads(line[line.index("{") :]))  # after the launcher's prefix
    cases = sum(r["collectives"] + r["moe"] for r in results)
    return f"{cases} cases equal NumPy between {' and '.join(map(str, RANKS))} ranks", results


def gpu_check(named: str | None, output: Path) -> int:
    """Everything for GPUs that this machine can do, in at most five minutes after the build."""
    environments = pythons.environments(named=named, only_first=True)
    environment, headers = environments[0], pythons.xla_headers(environments)
    no_nvcc = None if shutil.which("nvcc") else _NO_NVCC
    gpu = gpu_name()
    check = Check()

    def compile_module() -> tuple[str, Path]:
        return "", build.build_module(environment, headers, with_tests=False)

    def compile_all() -> tuple[str, Path]:
        folder = build_cuda(environment, headers)
        return "nvcc " + (build.cuda_version() or "of unknown version"), folder

    def compile_hip() -> tuple[str, None]:
        check_hip()
        return "compiled for gfx90a; never run", None

    module = check.step("the extension module compiles", None, compile_module)
    no_module = None if module else "no extension module"
    folder = check.step("kernels and handlers compile for CUDA", no_nvcc, compile_all)
    check.step("kernels compile for HIP", None if shutil.which("hipcc") else _NO_HIPCC, compile_hip)
    if folder is None:  # the same tests without CUDA: the kernels' source on host threads

        def host_tests() -> tuple[str, dict[str, Any]]:
            return _run_tests(build.build_module(environment, headers, with_tests=True))

        tests = check.step("kernel tests", None, host_tests)
    else:
        tests = check.step("kernel tests", None, lambda: _run_tests(folder))
    no_gpu = None if gpu and folder else (no_nvcc or _NO_GPU)
    figures = check.step("bandwidth and FIFO figures", no_gpu, lambda: _bench(folder))
    rows = check.step(
        "rows in JAX programs on the GPU", no_gpu or no_module, lambda: _jax(environment)
    )
    exchange = "collectives and MoE exchange, ranks on the"
    on_cpu = check.step(f"{exchange} CPU", no_module, lambda: _ranks(environment, "cpu"))
    no_ranks = no_module or no_gpu
    on_gpu = check.step(f"{exchange} GPU", no_ranks, lambda: _ranks(environment, "cuda"))

    result = {
        "gpu": gpu,
        "steps": [asdict(s) for s in check.steps],
        "tests": tests,
        "figures": figures,
        "jax": rows,
        "ranks_on_cpu": on_cpu,
        "ranks_on_gpu": on_gpu,
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(check.table())
    say(f"written: {output}")
    return 1 if any(s.state == "FAILED" for s in check.steps) else 0
