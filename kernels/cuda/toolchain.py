"""The compiler and the headers that the kernels are built with, and where they come from.

CUTLASS: 16 of the 32 tactics (tile N below 128) need version 4.5. The index's `nvidia-cutlass` stops at 4.2.0 and so
has no part here; the wheel `flashinfer-python==0.6.13` carries the 4.5.0 headers, and only these are taken out of it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kernels.errors import BuildError

__all__ = ["WHEEL", "Compiler", "Headers", "cache_root", "find_compiler", "find_headers", "find_tool"]

WHEEL = "flashinfer-python==0.6.13"
_WHEEL_SHA256 = "239e6ddc3cbbaf0bee251861a8c7c69438b1171830d69ddfa133ddea4494850d"
_IN_WHEEL = "flashinfer/data/cutlass/"
_FOLDERS = ("include", "tools/util/include")
_OLDEST = (4, 5)
_INSTALL = "pip install 'nvfp4-gates[cuda-build]'"


@dataclass(frozen=True)
class Compiler:
    """`nvcc`, its release (`13.0.88`), the host compiler's first line, and the folder of a pip runtime to link from."""

    nvcc: Path
    release: str
    host: str
    libraries: Path | None


@dataclass(frozen=True)
class Headers:
    """A CUTLASS tree: the folder, `4.5.0`, and the SHA-256 over the headers' names and bytes."""

    root: Path
    version: str
    sha256: str

    @property
    def include(self) -> tuple[Path, ...]:
        return tuple(self.root / folder for folder in _FOLDERS)


def cache_root(env: Mapping[str, str]) -> Path:
    """`${XDG_CACHE_HOME:-~/.cache}/nvfp4-gates/kernels`; a relative XDG_CACHE_HOME counts as unset."""
    root = env.get("XDG_CACHE_HOME", "")
    return (Path(root) if root.startswith("/") else Path.home() / ".cache") / "nvfp4-gates" / "kernels"


def find_compiler(env: Mapping[str, str] = os.environ) -> Compiler:
    """CUDA_HOME's nvcc, else the one out of pip wheels, else the PATH's, else /usr/local/cuda's.

    BuildError `no-nvcc` or `no-host-compiler` says what to install.
    """
    nvcc = find_tool("nvcc", env)
    if nvcc is None:
        raise BuildError("no-nvcc", f"there is no nvcc: {_INSTALL}, or set CUDA_HOME to a CUDA toolkit 13")
    said = _ask([str(nvcc), "--version"])
    release = re.search(r"V(\d+\.\d+\.\d+)", said)
    if release is None:
        raise BuildError("no-nvcc", f"{nvcc} --version answers no release: {said[-200:]!r}; {_INSTALL}")
    host = shutil.which(env.get("CXX") or "c++") or shutil.which("g++")
    if host is None:
        raise BuildError("no-host-compiler", "nvcc needs a C++ compiler beside it (Debian: apt-get install g++)")
    wheel = nvcc.parent.parent / "lib"
    libraries = wheel if (wheel / "libcudart_static.a").exists() else None
    return Compiler(nvcc, release[1], _ask([host, "--version"]).splitlines()[0], libraries)


def find_tool(name: str, env: Mapping[str, str] = os.environ) -> Path | None:
    """One of the toolkit's programs, looked for as `find_compiler` says; None when there is none."""
    folders = [Path(env["CUDA_HOME"]) / "bin"] if env.get("CUDA_HOME") else []
    folders += [root / "bin" for root in _pip_toolkits()]
    on_path = shutil.which(name, path=env.get("PATH", ""))
    folders += [Path(on_path).parent] if on_path else []
    folders.append(Path("/usr/local/cuda/bin"))
    return next((folder / name for folder in folders if os.access(folder / name, os.X_OK)), None)


def _pip_toolkits() -> list[Path]:
    found = importlib.util.find_spec("nvidia")
    places = found.submodule_search_locations if found else None
    return sorted((path for place in places or () for path in Path(place).glob("cu[0-9]*")), reverse=True)


def _ask(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError("no-nvcc", f"{' '.join(argv)} ends with {done.returncode}: {done.stderr.strip()[-200:]}")
    return done.stdout


def find_headers(env: Mapping[str, str] = os.environ) -> Headers:
    """CUTLASS_DIR, else an installed FlashInfer's, else those taken once out of its wheel (14 MB, from the package
    index, into `cache_root`). BuildError `no-cutlass` or `old-cutlass`."""
    if env.get("CUTLASS_DIR"):
        return _checked(Path(env["CUTLASS_DIR"]), "CUTLASS_DIR")
    installed = importlib.util.find_spec("flashinfer")
    if installed and installed.origin:
        root = Path(installed.origin).parent / "data" / "cutlass"
        if _version(root) is not None and _version(root) >= _OLDEST:  # type: ignore[operator]
            return _checked(root, "the installed flashinfer-python")
    root = cache_root(env) / f"cutlass-{_WHEEL_SHA256[:12]}"
    if not root.is_dir():
        _take_out_of_wheel(root)
    return _checked(root, WHEEL)


def _take_out_of_wheel(root: Path) -> None:
    """Unpacked beside its place and renamed, so that a broken download leaves nothing that looks whole."""
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent) as folder:
        argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        done = subprocess.run([*argv, "-d", folder, WHEEL], capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            said = (done.stderr.strip().splitlines() or ["no word"])[-1]
            mend = "set CUTLASS_DIR to a CUTLASS tree of 4.5 or later, or PIP_INDEX_URL to an index that answers"
            raise BuildError("no-cutlass", f"cannot fetch {WHEEL} for its CUTLASS headers: {said}; {mend}")
        found = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
        if found != _WHEEL_SHA256:
            raise BuildError("no-cutlass", f"{WHEEL} has SHA-256 {found}, not {_WHEEL_SHA256}; set CUTLASS_DIR")
        wanted = tuple(f"{_IN_WHEEL}{part}/" for part in _FOLDERS)
        with zipfile.ZipFile(wheels[0]) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if name.startswith(wanted)])
        (Path(folder) / _IN_WHEEL).rename(root)


def _version(root: Path) -> tuple[int, int, int] | None:
    try:
        text = (root / "include" / "cutlass" / "version.h").read_text(encoding="utf-8")
    except OSError:
        return None
    found = dict(re.findall(r"#define CUTLASS_(MAJOR|MINOR|PATCH) +(\d+)", text))
    return (int(found["MAJOR"]), int(found["MINOR"]), int(found["PATCH"])) if len(found) == 3 else None


def _checked(root: Path, source: str) -> Headers:
    version = _version(root)
    if version is None:
        raise BuildError("no-cutlass", f"{source}: {root} has no include/cutlass/version.h; give a whole CUTLASS tree")
    text = ".".join(map(str, version))
    if version < _OLDEST:
        need = "tiles with N below 128 need CUTLASS 4.5"
        raise BuildError(
            "old-cutlass", f"{source}: {root} is CUTLASS {text}, and {need}; unset CUTLASS_DIR or renew it"
        )
    digest = hashlib.sha256()
    for folder in _FOLDERS:
        for path in sorted((root / folder).rglob("*.h*")):
            digest.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes())
        for path in sorted((root / folder).rglob("*.inl")):
            digest.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes())
    return Headers(root.resolve(), text, digest.hexdigest())
