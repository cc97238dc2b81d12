"""Runs on a GPU host before anything of this project is there: `python3 -I -c SOURCE COMMAND MARKER`, request on stdin.

The standard library alone, and one file. What a login shell prints around the answer does no harm: it is framed with
the marker, which the caller drew at random.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

OLDEST = (3, 11)


class Failure(Exception):
    """A reason that a person can act on."""


def base_of(request: dict[str, Any]) -> Path:
    """Absolute folder of this project on the host; a relative one lies in the home directory."""
    return Path.home() / Path(request["folder"]).expanduser()


def record_of(request: dict[str, Any]) -> Path:
    return base_of(request) / "prepared" / f"{request['sources']}.json"


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def probe(request: dict[str, Any]) -> dict[str, Any]:
    """What decides which wheels fit, and the record of these sources if they were prepared and are still there."""
    path = record_of(request)
    others = [item for item in path.parent.glob("*.json") if item != path]
    record = None
    if path.is_file():
        record = json.loads(path.read_text(encoding="utf-8"))
        if not (Path(record["interpreter"]).exists() and Path(record["sources_folder"]).is_dir()):
            record = None
    return {
        "base": str(base_of(request)),
        "implementation": platform.python_implementation(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "glibc": platform.libc_ver()[1],
        "record": record,
        "others": len(others),
    }


def facts(request: dict[str, Any]) -> dict[str, Any]:
    """What a host tells without this project: a part of what `harness.doctor.facts` tells, under the same names.

    Request: `sources`, `folder`, `tools`, `tool_folders` (patterns), `lease_path`, `state_dir` (None: the usual one).
    """
    usual = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "nvfp4-gates"
    state = Path(request["state_dir"] or usual)
    there = next(folder for folder in (state, *state.parents) if folder.exists())
    memory = {line.split()[0].rstrip(":"): int(line.split()[1]) for line in (text("/proc/meminfo") or "").splitlines()}
    return {
        **probe(request),
        "utc_ns": str(time.time_ns()),
        "host": {
            "disk_free_bytes": {"state": shutil.disk_usage(there).free},
            "mem_total_kib": memory.get("MemTotal"),
            "mem_available_kib": memory.get("MemAvailable"),
            "mem_reason": None if "MemAvailable" in memory else "no MemAvailable in /proc/meminfo",
            "loadavg": list(os.getloadavg()),
            "cores": os.cpu_count(),
            "usable_cores": len(os.sched_getaffinity(0)),
        },
        "state_dir": str(state),
        "clocksource": text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "python": {"executable": sys.executable, "version": platform.python_version()},
        "tools": {name: tool(name, request["tool_folders"]) for name in request["tools"]},
        "kernel_module": next(iter((text("/proc/driver/nvidia/version") or "").splitlines()), None),
        "gpus": [gpu(one) for one in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))],
        "lease": lease(Path(request["lease_path"])),
    }


def text(path: str | Path) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def tool(name: str, patterns: Sequence[str]) -> str | None:
    """Its absolute path, found without running it."""
    folders = [str(one) for pattern in patterns for one in sorted(Path("/").glob(pattern[1:]), reverse=True)]
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders))


def gpu(path: Path) -> tuple[str, str]:
    """Model and UUID, as the kernel module tells them."""
    rows = dict(line.partition(":")[::2] for line in (text(path) or "").splitlines())
    return rows.get("Model", "unknown").strip(), rows.get("GPU UUID", "unknown").strip()


def lease(path: Path) -> dict[str, Any]:
    """Whether anybody has locked the file, out of the kernel's table: no lock is taken, not even for an instant."""
    table = text("/proc/locks")
    try:
        inode = path.lstat().st_ino
    except OSError:
        return {"path": str(path), "locked": False, "record": None}
    rows = [line.split() for line in (table or "").splitlines()]
    locked = any("FLOCK" in row and any(word.endswith(f":{inode}") for word in row) for row in rows)
    record = text(f"{path}.holder.json")
    return {"path": str(path), "locked": None if table is None else locked, "record": record and record[:300]}


def missing(request: dict[str, Any]) -> dict[str, Any]:
    """Which of `files` (path below the folder, size, sha256) are not there whole. Makes the folders for them."""
    base, absent = base_of(request), []
    for row in request["files"]:
        path = base / row["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.stat().st_size != row["size"] or sha256(path) != row["sha256"]:
            absent.append(row["path"])
    return {"missing": absent}


def install(request: dict[str, Any]) -> dict[str, Any]:
    """Unpack the sources, make the environment out of the wheels, and record both."""
    base = base_of(request)
    wrong = missing(request)["missing"]
    if wrong:
        raise Failure(f"{wrong[0]} did not arrive whole; run the command again")
    wheels = [row for row in request["files"] if row["path"] != request["archive"]]
    folder = unpack(base / request["archive"], base / "sources" / request["sources"])
    environment = base / "environments" / request["environment"]
    make_environment(environment, [base / row["path"] for row in wheels], request["imports"])
    joined = base / "interpreters" / f"{request['sources']}-{request['environment']}"
    make_interpreter(joined, folder, environment)
    record = {
        "sources": request["sources"],
        "sources_sha256": request["sources_sha256"],
        "sources_folder": str(folder),
        "interpreter": str(joined / "bin" / "python"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "wheels": wheels,
        "utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    write_record(record_of(request), record)
    return record


def write_record(path: Path, record: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}.new")
    with fresh.open("w", encoding="utf-8") as file:
        json.dump(record, file, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def unpack(archive: Path, final: Path) -> Path:
    """The folder of the sources; complete or absent, since it is renamed into place."""
    if not final.is_dir():
        work = fresh_folder(final)
        with tarfile.open(archive) as tar:
            if hasattr(tarfile, "data_filter"):  # Debian 12 has Python 3.11.2, which is a little too old for it
                tar.extractall(work, filter="data")
            else:
                tar.extractall(work)
        place(work, final)
    return final


def make_environment(final: Path, wheels: Sequence[Path], imports: Sequence[str]) -> None:
    """A private environment, built under another name: its interpreter does not mind being moved."""
    if (final / "bin" / "python").exists():
        return
    shutil.rmtree(final, ignore_errors=True)
    work = fresh_folder(final)
    run([sys.executable, "-I", "-m", "venv", "--without-pip", work], "make an environment (Debian: python3-venv)")
    python = work / "bin" / "python"
    pip = next(wheel for wheel in wheels if wheel.name.startswith("pip-")) / "pip"
    options = ["--quiet", "--disable-pip-version-check", "--no-input", "--no-index", "--no-deps"]
    run([python, "-I", pip, "install", *options, *wheels], "install the wheels")
    run([python, "-I", "-m", "pip", "check"], "find every dependency among the wheels")
    run([python, "-I", "-c", f"import {', '.join(imports)}"], "import what was installed")
    place(work, final)


def make_interpreter(final: Path, sources: Path, environment: Path) -> None:
    """A bare environment that has these sources and those packages on its path: what it starts finds both, too,
    without a variable that a clean environment would not pass on."""
    if (final / "bin" / "python").exists():
        return
    shutil.rmtree(final, ignore_errors=True)
    work = fresh_folder(final)
    run([sys.executable, "-I", "-m", "venv", "--without-pip", work], "make an environment (Debian: python3-venv)")
    packages = Path("lib") / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    lines = [str(sources), f"import site; site.addsitedir({str(environment / packages)!r})"]
    (work / packages / "nvfp4_gates.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    place(work, final)


def fresh_folder(final: Path) -> Path:
    work = final.with_name(f"{final.name}.{os.getpid()}.new")
    shutil.rmtree(work, ignore_errors=True)
    final.parent.mkdir(parents=True, exist_ok=True)
    return work


def place(work: Path, final: Path) -> None:
    """Rename into place. Another process may have been first: then its folder stays and ours goes."""
    try:
        work.rename(final)
    except OSError:
        if not final.is_dir():
            raise
        shutil.rmtree(work, ignore_errors=True)


def run(argv: Sequence[str | Path], what: str) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, check=False)
    if done.returncode != 0:
        said = [line for line in done.stdout.decode("utf-8", "replace").splitlines() if line.strip()]
        raise Failure(f"cannot {what}: {' / '.join(said[-3:]) or done.returncode}")


def main(argv: Sequence[str]) -> int:
    command, marker = argv
    answer: dict[str, Any]
    try:
        if sys.version_info[:2] < OLDEST:
            raise Failure(f"{sys.executable} is Python {platform.python_version()}; 3.11 or later is needed")
        known = {"probe": probe, "facts": facts, "missing": missing, "install": install}
        answer = known[command](json.loads(sys.stdin.read()))
    except (Failure, OSError, tarfile.TarError) as error:
        answer = {"failure": str(error)}
    sys.stdout.buffer.write(framed(answer, marker))
    sys.stdout.flush()
    return 0


def framed(document: Any, marker: str) -> bytes:
    """As `harness.transport.framing.frame`, which is not there yet; a test holds them equal."""
    body = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
    return f"\n<<nvfp4-gates {marker} 1 {len(body)}\n".encode() + body + f"nvfp4-gates {marker}>>\n".encode()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
