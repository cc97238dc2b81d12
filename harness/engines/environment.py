"""A private virtual environment for an engine that must not share ours: pinned, complete or absent, recorded.

Built under a temporary name beside its place and renamed, so that a half-made one is never taken for finished. It has
no pip of its own (3 s and 12 MB less): ours installs into it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import canonical
from harness.errors import UsageError

__all__ = ["Environment", "Installed"]

RECORD = "installed.json"
UNREACHABLE = re.compile(
    r"NewConnectionError|Failed to establish|name resolution|timed out|ProxyError|SSLError|Connection(?:Reset|Refused)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Installed:
    """What is inside: sorted `name==version` lines; `sha256` is over these lines."""

    python: str
    packages: tuple[str, ...]
    sha256: str

    def version(self, name: str) -> str | None:
        return dict(package.split("==", 1) for package in self.packages).get(name)


@dataclass(frozen=True)
class Environment:
    """`requirements` (exact pins) under `parent`, in a folder named by them and by the Python version.

    `modules` must import before the environment counts as made. `mend` is the command that a person types to make it.
    Of what the requirements bring, `without` is taken out again; `aliases` are further distribution names, with the
    version that each shows.
    """

    parent: Path
    name: str
    requirements: Sequence[str]
    modules: Sequence[str]
    mend: str
    without: Sequence[str] = ()
    absent: str = ""  # what to do where the index does not hold what the requirements need
    aliases: Mapping[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        subject: list[Any] = [*sorted(self.requirements), sys.implementation.cache_tag]
        if self.without or self.aliases:
            subject += [list(self.without), dict(self.aliases)]
        return self.parent / f"{self.name}-{canonical.sha256_bytes(canonical.dumps(subject))[:12]}"

    @property
    def python(self) -> Path:
        return self.root / "bin" / "python"

    def installed(self) -> Installed | None:
        """The record of a finished environment; None when there is none, or its interpreter is gone."""
        record = self.root / RECORD
        if not (record.is_file() and self.python.exists()):
            return None
        found = canonical.loads(record.read_bytes(), RECORD)
        return Installed(found["python"], tuple(found["packages"]), found["sha256"])

    def install(self) -> Installed:
        """Make it, or return what is there. UsageError `index-unreachable` or `environment-failed` says the mend."""
        if (present := self.installed()) is not None:
            return present
        self.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{self.name}-", dir=self.parent) as folder:
            built = Path(folder) / "env"
            self._build(built)
            self._place(built, Path(folder) / "replaced")
        placed = self.installed()
        assert placed is not None, "the record was written before the rename"
        return placed

    def _build(self, root: Path) -> None:
        python = str(root / "bin" / "python")
        self._run([sys.executable, "-m", "venv", "--without-pip", str(root)], "make a virtual environment")
        # Wheels only: without one for this machine pip would compile the engine for minutes, or fail in its middle.
        pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "--no-input"]
        self._run([*pip, "install", "--quiet", "--only-binary=:all:", *self.requirements], "install")
        if self.without:
            self._run([*pip, "uninstall", "--quiet", "--yes", *self.without], "take out packages of")
        listed = json.loads(self._run([*pip, "list", "--format=json"], "list the packages"))
        versions = {item["name"]: item["version"] for item in listed}
        for alias, version in self.aliases.items():
            _write_alias(root, alias, version)
        self._run([python, "-I", "-c", f"import {', '.join(self.modules)}"], "import")
        packages = sorted(f"{name}=={version}" for name, version in versions.items())
        running = self._run(
            [python, "-I", "-c", "import platform; print(platform.python_version())"], "ask the version"
        )
        record = {
            "packages": packages,
            "python": running.strip(),
            "sha256": canonical.sha256_bytes("".join(f"{line}\n" for line in packages).encode()),
        }
        (root / RECORD).write_bytes(canonical.dumps(record))

    def _place(self, built: Path, replaced: Path) -> None:
        """Rename into place. Another process may have finished first: then its environment stays, ours is dropped."""
        if self.root.exists() and self.installed() is None:
            self.root.rename(replaced)  # damaged by somebody: a rename never leaves one half made
        try:
            built.rename(self.root)
        except OSError:
            if self.installed() is None:
                raise

    def _run(self, argv: Sequence[str], what: str) -> str:
        done = subprocess.run(argv, capture_output=True, text=True, env=_environment(os.environ), check=False)
        if done.returncode != 0:
            raise self._failure(what, done.returncode, f"{done.stdout}\n{done.stderr}")
        return done.stdout

    def _failure(self, what: str, status: int, output: str) -> UsageError:
        pins = " ".join(self.requirements)
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        said = " / ".join(lines[-3:]) or f"status {status} and no word"
        if UNREACHABLE.search(output):
            return UsageError(
                "index-unreachable",
                f"cannot {what} {pins}: the package index does not answer ({said}); set PIP_INDEX_URL to one that this "
                f"machine reaches, or HTTPS_PROXY, then run again: {self.mend}",
            )
        if "No module named pip" in output:
            again = f"run `{sys.executable} -m ensurepip`, then: {self.mend}"
            return UsageError("environment-failed", f"cannot {what} {pins}: {sys.executable} has no pip; {again}")
        return UsageError("environment-failed", f"cannot {what} {pins} in {self.root}: {said}; {self._hint(what)}")

    def _hint(self, what: str) -> str:
        again = f"then run again: {self.mend}"
        match what:
            case "import":
                return (
                    f"the wheels need an x86-64-v3 or aarch64 CPU and the system's libgomp (package libgomp1), {again}"
                )
            case "make a virtual environment":
                return f"{sys.executable} needs the module venv (Debian: package python3-venv), {again}"
            case "install" if self.absent:
                return f"{self.absent}, {again}"
            case _:
                return f"each pin needs a wheel for this Python and machine on the index in use, {again}"


def _write_alias(root: Path, alias: str, version: str) -> None:
    """Metadata alone, for a program that asks for its own version under another name."""
    (library,) = root.glob("lib/python*")
    folder = library / "site-packages" / f"{alias}-{version}.dist-info"
    folder.mkdir(parents=True)  # pip takes a folder away with its last package
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {alias}\nVersion: {version}\n", encoding="ascii")


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The user's own (proxy, index), without what would put packages elsewhere or lend some from elsewhere."""
    foreign = (
        "PYTHONPATH",
        "PYTHONHOME",
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_USER",
        "PIP_REQUIRE_VIRTUALENV",
        "PIP_PYTHON",
    )
    return {name: value for name, value in environ.items() if name not in foreign}
