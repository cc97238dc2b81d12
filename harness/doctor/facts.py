"""What a host says of itself, as one JSON document: `python -m harness.doctor.facts [--port P] [--weights FOLDER] …`.

Only facts: `table` judges them, on this machine or on another. Nothing is changed, no lease is taken, and nothing that
can hang is asked in this process. A fact that cannot be had is null, with its reason where there is one.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import __version__, canonical, lease, ports, tools
from harness.errors import HarnessError
from harness.telemetry import host, nvml, pagecache, probe, procfs

__all__ = ["FORMAT", "TOOLS", "Request", "facts", "limits", "main", "parse_kernel_module"]

FORMAT = "nvfp4-gates-facts-v1"
TOOLS = ("nvidia-smi", "nvcc", "compute-sanitizer", "nsys")
PACKAGES = ("numpy", "psutil", "nvidia-ml-py", "uvicorn", "httptools")
CGROUP = Path("/sys/fs/cgroup")
CLOCK = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")


@dataclass(frozen=True)
class Request:
    """What of the configuration the facts depend on."""

    port: int = 8001
    lease_path: Path = Path("/tmp/gpu")
    state_dir: Path = Path("/tmp")
    weights: tuple[Path, ...] = ()


def facts(request: Request) -> dict[str, Any]:
    """The whole document; all of it is JSON."""
    return {
        "format": FORMAT,
        "harness": __version__,
        "utc_ns": str(time.time_ns()),
        "user": os.getuid(),
        "host": host.snapshot({"state": _existing(request.state_dir)}),
        "clocksource": _text(CLOCK),
        "python": {"executable": sys.executable, "version": platform.python_version(), "packages": _packages()},
        "tools": {name: tools.find(name) for name in TOOLS},
        "gpu": _gpu(),
        "lease": _lease(request.lease_path),
        "port": _port(request.port),
        "state_dir": str(request.state_dir),
        "cgroup": _cgroup(),
        "weights": [_weights(folder) for folder in request.weights],
    }


def _existing(path: Path) -> Path:
    """The folder itself or the nearest one above that exists: that is where it would be made."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _packages() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def _gpu() -> dict[str, Any]:
    """The probe's document, what the kernel module calls itself, and who gives the module `pynvml`."""
    document = probe.answer()
    for row in document.get("processes") or []:
        row.append(procfs.command(row[0]) if procfs.read_stat(row[0]) else None)
    try:
        binding: dict[str, Any] = {"owner": nvml.owner()}
    except HarnessError as error:
        binding = {"owner": None, "reason": error.message}
    module = _text(Path("/proc/driver/nvidia/version"))
    return {"nvml": document, "kernel_module": parse_kernel_module(module or ""), "binding": binding}


def parse_kernel_module(text: str) -> str | None:
    """The version in /proc/driver/nvidia/version: the first word like 580.82.07 of the line `NVRM version`."""
    for line in text.splitlines():
        if line.startswith("NVRM version"):
            words = [word for word in line.split() if word[0].isdigit() and "." in word]
            return words[0] if words else None
    return None


def _lease(path: Path) -> dict[str, Any]:
    state = lease.describe(path)
    return {
        "path": str(path),
        "held": state.held,
        "holder_alive": state.holder_alive,
        "sentence": state.sentence,
        "survivors": [one.who() for one in state.survivors],
    }


def _port(port: int) -> dict[str, Any]:
    stranger = ports.owner(port)
    return {"port": port, "owner": None if stranger is None else stranger.who()}


def _cgroup() -> dict[str, Any]:
    groups = (_text(Path("/proc/self/cgroup")) or "").splitlines()
    own = next((line[3:] for line in groups if line.startswith("0::")), None)
    if own is None:
        return {"memory_max_bytes": None, "cpu_max_cores": None, "reason": "no cgroup v2"}
    memory, cores = limits(CGROUP, own)
    return {"memory_max_bytes": memory, "cpu_max_cores": cores, "reason": None}


def limits(root: Path, own: str) -> tuple[int | None, float | None]:
    """The tightest memory.max (bytes) and cpu.max (cores) from the group `own` up to `root`; None: no limit.

    Inside a container the files lie at the root itself, whatever the group is called.
    """
    memory, cores = [], []
    for folder in _upwards(root, own):
        limit, quota = _text(folder / "memory.max"), (_text(folder / "cpu.max") or "max").split()
        if limit and limit != "max":
            memory.append(int(limit))
        if quota[0] != "max":
            cores.append(int(quota[0]) / int(quota[1]))
    return min(memory, default=None), min(cores, default=None)


def _upwards(root: Path, own: str) -> Iterator[Path]:
    parts = [part for part in own.split("/") if part not in ("", "..")]
    for count in range(len(parts), -1, -1):
        yield root.joinpath(*parts[:count])


def _weights(folder: Path) -> dict[str, Any]:
    """Whether the page cache of these files can be dropped and the drop be proven: looked at, nothing is dropped."""
    if not folder.exists():
        return {"path": str(folder), "files": 0, "told": None, "mapped_by": [], "reason": "not there yet"}
    try:
        found = pagecache.droppable(folder)
    except HarnessError as error:
        return {"path": str(folder), "files": 0, "told": False, "mapped_by": [], "reason": error.message}
    return {"path": str(folder), **asdict(found), "reason": None}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m harness.doctor.facts", description="Facts of this host as JSON.")
    made.add_argument("--port", type=int, default=Request.port)
    made.add_argument("--lease", type=Path, default=Request.lease_path)
    made.add_argument("--state-dir", type=Path, default=Request.state_dir)
    made.add_argument("--weights", type=Path, action="append", default=[], help="a folder whose cache a run drops")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    request = Request(options.port, options.lease, options.state_dir.resolve(), tuple(options.weights))
    sys.stdout.write(canonical.dumps(facts(request)).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
