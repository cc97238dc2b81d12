"""What `host prepare` sends: this project's sources and pinned wheels, for a host that needs no package index itself.

The sources are one deterministic archive, and its SHA-256 is what a run asks the host for: a run on other sources than
those here cannot happen unseen. The wheels are resolved here for the host's Python, machine and C library.
"""

from __future__ import annotations

import importlib.metadata
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import canonical
from harness.errors import UsageError

__all__ = ["IMPORTS", "HostPython", "Sources", "download", "pins", "platforms", "sources"]

DISTRIBUTION = "nvfp4-gates"
ROOT = Path(__file__).resolve().parents[1]
TREES = ("conf", "gates", "harness", "kernels")
FILES = ("LICENSE", "README.md", "pyproject.toml")
CACHES = {"__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
SOURCE_ONLY = ("antlr4-python3-runtime",)  # pure Python, on the index without a wheel: the one built here fits anywhere
IMPORTS = ("hydra", "omegaconf", "numpy", "pynvml", "psutil", "rich", "uvicorn", "httptools")
HERE_ONLY = ("paramiko",)  # nothing on the host opens a connection
PIP = "pip>=24.1"  # the first to know Python 3.13; it is sent along, since a Debian host may have none
OLDEST_GLIBC = 17  # manylinux_2_17 is manylinux2014; older wheels are tagged with it, too
FOREIGN = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_REQUIRE_VIRTUALENV", "PIP_PYTHON")


@dataclass(frozen=True)
class Sources:
    """An uncompressed tar and its SHA-256. `name` is the folder on the host."""

    archive: bytes
    sha256: str

    @property
    def name(self) -> str:
        return self.sha256[:16]


@dataclass(frozen=True)
class HostPython:
    """What decides which wheels fit: CPython's version, `platform.machine()`, the version of glibc ('' for another)."""

    version: str
    machine: str
    glibc: str

    @property
    def short(self) -> str:
        return ".".join(self.version.split(".")[:2])


def sources(root: Path = ROOT) -> Sources:
    """The archive of the sources at `root`: equal trees give equal bytes, whoever owns them and whenever."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in _files(root):
            data = path.read_bytes()
            member = tarfile.TarInfo(path.relative_to(root).as_posix())
            member.size, member.mode = len(data), 0o644
            tar.addfile(member, io.BytesIO(data))
    return Sources(buffer.getvalue(), canonical.sha256_bytes(buffer.getvalue()))


def _files(root: Path) -> Iterator[Path]:
    found = [root / name for name in FILES]
    found += [path for tree in TREES for path in (root / tree).rglob("*") if not CACHES & set(path.parts)]
    for path in sorted(found, key=lambda item: item.relative_to(root).as_posix()):
        if path.is_file() and path.suffix != ".pyc" and not path.name.startswith("."):
            yield path


def pins(name: str = DISTRIBUTION) -> list[str]:
    """`project==version` of everything that a run needs, as it is installed here: the same runs there."""
    found: dict[str, str] = {}
    waiting = [name]
    while waiting:
        for line in importlib.metadata.requires(waiting.pop()) or []:
            project, marker = re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0], line.partition(";")[2]
            if project in found or project in HERE_ONLY or "extra" in marker:
                continue
            try:
                found[project] = importlib.metadata.version(project)
            except importlib.metadata.PackageNotFoundError:
                continue  # its marker is of another system
            waiting.append(project)
    return [f"{project}=={version}" for project, version in sorted(found.items(), key=lambda item: item[0].lower())]


def platforms(host: HostPython) -> list[str]:
    """The wheel tags that the host takes, newest first. UsageError `host-platform` where there is no glibc."""
    found = re.match(r"2\.(\d+)", host.glibc)
    if found is None or int(found[1]) < OLDEST_GLIBC:
        raise UsageError(
            "host-platform",
            f"the host has C library {host.glibc or 'other than glibc'!r}; wheels need glibc 2.{OLDEST_GLIBC} or later",
        )
    tags = [f"manylinux_2_{minor}_{host.machine}" for minor in range(int(found[1]), OLDEST_GLIBC - 1, -1)]
    return [*tags, f"manylinux2014_{host.machine}"]


def download(host: HostPython, requirements: Sequence[str], folder: Path) -> list[Path]:
    """Wheels of `requirements` and of pip for `host`, kept in `folder` under a name of their own; once.

    UsageError `wheels` when the index has none that fits, or does not answer.
    """
    subject = [host.short, host.machine, host.glibc, PIP, *requirements]
    final = folder / canonical.sha256_bytes(canonical.dumps(subject))[:16]
    if not final.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix="new-") as work:
            wheels = Path(work) / "wheels"
            _built(requirements, wheels)
            _downloaded(host, requirements, wheels)
            wheels.rename(final)
    return sorted(final.glob("*.whl"))


def _built(requirements: Sequence[str], wheels: Path) -> None:
    """`--use-pep517`: without it an older pip asks for the package `wheel`, which a new environment has not."""
    wheels.mkdir()
    for pin in requirements:
        if pin.split("==")[0] in SOURCE_ONLY:
            _pip(["wheel", "--use-pep517", "--no-deps", "--wheel-dir", str(wheels), pin], f"build {pin}")


def _downloaded(host: HostPython, requirements: Sequence[str], wheels: Path) -> None:
    tags = [item for tag in platforms(host) for item in ("--platform", tag)]
    target = ["--python-version", host.short, "--implementation", "cp", *tags]
    where = ["--only-binary=:all:", "--find-links", str(wheels), "--dest", str(wheels)]
    _pip(["download", *where, *target, PIP, *requirements], f"find wheels for Python {host.short} on {host.machine}")


def _pip(arguments: Sequence[str], what: str) -> None:
    command = [sys.executable, "-m", "pip", *arguments, "--quiet", "--disable-pip-version-check", "--no-input"]
    done = subprocess.run(command, capture_output=True, text=True, env=_environment(os.environ), check=False)
    if done.returncode != 0:
        lines = [line.strip() for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()]
        raise UsageError(
            "wheels",
            f"cannot {what}: {' / '.join(lines[-3:])}; this machine (not the host) asks the package index, so set "
            "PIP_INDEX_URL or HTTPS_PROXY here if it does not answer, then run `host prepare` again",
        )


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The user's own index and proxy, without what would put packages elsewhere."""
    return {name: value for name, value in environ.items() if name not in FOREIGN}
