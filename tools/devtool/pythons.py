"""The Python environments: one per supported line of JAX, under .venv/.

| environment     | Python             | JAX                                  |
| --------------- | ------------------ | ------------------------------------ |
| .venv/py311     | 3.11               | 0.10.2, the oldest supported         |
| .venv/py312...  | 3.12, 3.13 or 3.14 | 0.12, the newest supported           |

Neither has jax_uccl installed: the extension modules lie in the source tree and a .pth file names the tree, so an
edit of a Python file needs no build, and Bazel's own copy, named by PYTHONPATH, comes first in its tests.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from devtool import system
from devtool.shell import ROOT, DevError, Words, child_env, output_of, run, say, timed

OLDEST_JAXLIB = "0.10.2"
_LINES = (
    (("3.11",), ("jax==0.10.2", "jaxlib==0.10.2")),
    (("3.12", "3.13", "3.14"), ("jax>=0.12,<0.13", "jaxlib>=0.12,<0.13")),
)
# Changed when the way an environment is made changes.
_RECIPE = "1"
_PROBE = (
    "import json, os, sys, sysconfig, importlib.util as u;"
    "print(json.dumps({'version': '%d.%d' % sys.version_info[:2], 'full': sys.version,"
    " 'pip': u.find_spec('ensurepip') is not None and u.find_spec('venv') is not None,"
    " 'headers': os.path.exists(sysconfig.get_paths()['include'] + '/Python.h'),"
    " 'jaxlib': u.find_spec('jaxlib') and u.find_spec('jaxlib').submodule_search_locations[0]}))"
)


@dataclass(frozen=True)
class Environment:
    """A Python that can build and test: ours under .venv/, or one that the user named."""

    tag: str  # "py311"
    python: Path

    @property
    def bin(self) -> Path:
        return self.python.parent

    def tool(self, name: str) -> str:
        """A program of this environment, else of the machine."""
        own = self.bin / name
        found = str(own) if own.exists() else shutil.which(name)
        if not found:
            raise DevError(f"{name} is not installed in {self.bin}: run ./dev setup")
        return found

    def env(self, **extra: str) -> dict[str, str]:
        """For children that import jax_uccl from the tree or look for this environment's programs."""
        path = f"{self.bin}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return child_env({"PATH": path, "PYTHONPATH": str(ROOT), **extra})


def _probe(python: str | Path) -> dict | None:
    text = output_of([python, "-c", _PROBE])
    return json.loads(text) if text else None


def _candidates(version: str) -> Iterator[Path]:
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    folders = [Path(p) for p in os.environ.get("PATH", os.defpath).split(os.pathsep) if p]
    for folder in [*folders, *sorted(pyenv.glob(f"{version}*/bin")), Path("/usr/bin")]:
        for name in (f"python{version}", "python3"):
            if (folder / name).exists():
                yield folder / name


def _find(versions: tuple[str, ...]) -> tuple[Path, dict] | None:
    """The first interpreter that can make an environment and compile against itself."""
    incomplete: list[tuple[Path, dict]] = []
    seen: set[Path] = set()
    for version in versions:
        for python in _candidates(version):
            if python in seen:
                continue
            seen.add(python)
            facts = _probe(python)
            if not facts or facts["version"] != version:
                continue
            if facts["pip"] and facts["headers"]:
                return python, facts
            incomplete.append((python, facts))
    for python, facts in incomplete:
        packages = [f"python{facts['version']}-venv", f"python{facts['version']}-dev"]
        if system.apt_install(packages, f"what {python} lacks to make environments"):
            facts = _probe(python)
            if facts and facts["pip"] and facts["headers"]:
                return python, facts
        say(
            f"{python} is left out: it lacks venv or headers (apt-get install {' '.join(packages)})"
        )
    return None


def _requirements() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *extras["dev"], *extras["examples"]]


def _build_tools() -> list[str]:
    """CMake and ninja from PyPI where the machine has none."""
    return [name for name in ("cmake", "ninja") if not shutil.which(name)]


def _make(tag: str, base: Path, facts: dict, jax: tuple[str, ...]) -> Environment:
    folder = ROOT / ".venv" / tag
    environment = Environment(tag, folder / "bin" / "python")
    wanted = [*jax, *_requirements(), *_build_tools()]
    stamp = folder / ".made-from"
    digest = hashlib.sha256(json.dumps([_RECIPE, facts["full"], str(ROOT), wanted]).encode())
    if stamp.exists() and stamp.read_text() == digest.hexdigest():
        return environment
    with timed(f"making .venv/{tag} with {base} and {jax[0]}"):
        if not environment.python.exists():
            run([base, "-m", "venv", "--clear", folder])
        run(
            [
                environment.python,
                "-m",
                "pip",
                "install",
                "-qq",
                "--disable-pip-version-check",
                *wanted,
            ]
        )
        site = folder / "lib" / f"python{facts['version']}" / "site-packages"
        (site / "jax_uccl_source_tree.pth").write_text(f"{ROOT}\n")
        stamp.write_text(digest.hexdigest())
    return environment


def xla_headers(environments: list[Environment]) -> Path:
    """The FFI headers of the oldest supported jaxlib, which every build is made against.

    A handler built against newer headers is refused by an older runtime, and the whole CPU backend with it.
    """
    folder = ROOT / ".venv" / f"xla-headers-{OLDEST_JAXLIB}"
    if (folder / "xla" / "ffi" / "api" / "ffi.h").exists():
        return folder
    for environment in environments:
        facts = _probe(environment.python)
        if facts and facts["jaxlib"]:
            package = Path(facts["jaxlib"])
            if list(package.parent.glob(f"jaxlib-{OLDEST_JAXLIB}.dist-info")):
                shutil.copytree(package / "include", folder, dirs_exist_ok=True)
                return folder
    download = ROOT / "build" / "jaxlib-wheel"
    pip: Words = [
        environments[0].python,
        "-m",
        "pip",
        "download",
        "-qq",
        "--no-deps",
        "--dest",
        download,
    ]
    run([*pip, "--only-binary=:all:", f"jaxlib=={OLDEST_JAXLIB}"])
    (wheel,) = download.glob("jaxlib-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith("jaxlib/include/") and not name.endswith("/"):
                target = folder / name.removeprefix("jaxlib/include/")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(name))
    shutil.rmtree(download)
    return folder


def environments(*, only_first: bool = False, named: str | None = None) -> list[Environment]:
    """Ready environments, made where needed; the one that `--python` names is used as it is."""
    if named:
        facts = _probe(named)
        if not facts:
            raise DevError(f"{named} does not run")
        return [Environment("py" + facts["version"].replace(".", ""), Path(named).absolute())]
    made: list[Environment] = []
    for versions, jax in _LINES:
        found = _find(versions)
        if found is None:
            say(f"no usable Python {' or '.join(versions)}: {jax[0]} is not tested here")
            continue
        made.append(_make("py" + found[1]["version"].replace(".", ""), found[0], found[1], jax))
        if only_first:
            break
    if not made:
        system.need(["python3-venv", "python3-dev"], "Python 3.11, 3.12, 3.13 or 3.14 with venv")
        raise DevError("no usable Python was found; run ./dev setup again")
    return made
