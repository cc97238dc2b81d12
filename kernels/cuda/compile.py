"""Compiling, inspecting and linking one architecture's library. Objects are kept by the hash of all that made them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kernels.cuda.toolchain import Compiler, Headers, find_tool
from kernels.cuda.units import SOURCES, Unit, source_digest, units
from kernels.errors import BuildError

__all__ = ["Build", "Inspection", "library_name", "usual_jobs"]

_FLAGS = (
    "-std=c++17",
    "-O3",
    "-DNDEBUG",
    "--expt-relaxed-constexpr",
    "-Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Werror",
    "-Werror=all-warnings",
    "-diag-suppress=20012",  # CUTLASS annotates explicitly defaulted functions, and the note names our file
)
_MEMORY_KB = 7 << 20  # a tile of the SM120 family takes 6.3 GB to compile
_SHOWN_LINES = 12


@dataclass(frozen=True)
class Inspection:
    """How often the wanted instruction stands in each kernel of an object: (kernel, count)."""

    instruction: str
    counts: tuple[tuple[str, int], ...]


def library_name(architecture: str) -> str:
    return f"libnvfp4_{architecture}.so"


def usual_jobs() -> int:
    """As many compilers as there are cores and memory for, at least one."""
    try:
        available = int(re.search(r"MemAvailable: +(\d+)", Path("/proc/meminfo").read_text())[1])  # type: ignore[index]
    except (OSError, TypeError):
        return 1
    return max(1, min(os.cpu_count() or 1, available // _MEMORY_KB))


class Build:
    """One architecture with one toolchain. `say` gets progress lines; `objects` is the folder of kept objects."""

    def __init__(
        self, architecture: str, compiler: Compiler, headers: Headers, objects: Path, say: Callable[[str], None]
    ) -> None:
        self.architecture = architecture
        self.units = units(architecture)
        self._compiler = compiler
        self._headers = headers
        self._objects = objects
        self._say = say
        self._sources = source_digest(architecture)

    def objects(self, chosen: Sequence[Unit], jobs: int) -> dict[str, Path]:
        """Compile what is not kept yet; unit name to object. BuildError `compile-failed` after all have ended."""
        self._objects.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(jobs) as pool:
            started = [pool.submit(self._object, unit, index + 1, len(chosen)) for index, unit in enumerate(chosen)]
        return {unit.name: future.result() for unit, future in zip(chosen, started, strict=True)}

    def _object(self, unit: Unit, index: int, count: int) -> Path:
        path = self._objects / f"{unit.name}-{self._key(unit)[:24]}.o"
        where = f"[{index}/{count}] sm_{self.architecture} {unit.name}"
        if path.is_file():
            self._say(f"{where}: kept")
            return path
        begun = time.monotonic()
        self._say(f"{where}: compiling")
        half = path.with_suffix(f".{os.getpid()}.tmp.o")
        try:
            self._run([*self._command(unit), "-c", str(unit.source), "-o", str(half)], "compile-failed", unit.name)
            half.replace(path)
        finally:
            half.unlink(missing_ok=True)
        self._say(f"{where}: {time.monotonic() - begun:.0f} s")
        return path

    def _command(self, unit: Unit) -> list[str]:
        target = f"-gencode=arch=compute_{self.architecture},code=sm_{self.architecture}"
        system = [item for folder in self._headers.include for item in ("-isystem", str(folder))]
        own = ["-I", str(SOURCES / "csrc")]
        return [str(self._compiler.nvcc), *_FLAGS, target, *system, *own, *(f"-D{text}" for text in unit.defines)]

    def _key(self, unit: Unit) -> str:
        """Over sources, flags, defines, compilers, CUTLASS; no path of this machine, so that a move keeps objects."""
        own = sorted(unit.source.parent.glob("*.*")) + sorted((SOURCES / "csrc").glob("*.*h"))
        files = [hashlib.sha256(path.read_bytes()).hexdigest() for path in own if path.suffix in (".cuh", ".h", ".inc")]
        files.append(hashlib.sha256(unit.source.read_bytes()).hexdigest())
        tools = (self._compiler.release, self._compiler.host, self._headers.version, self._headers.sha256)
        subject = [self.architecture, *_FLAGS, *unit.defines, *files, *tools]
        return hashlib.sha256("\0".join(subject).encode()).hexdigest()

    @property
    def build_id(self) -> str:
        """SHA-256 over every unit's key: what the plans of this library are bound to."""
        return hashlib.sha256("".join(self._key(unit) for unit in self.units).encode()).hexdigest()

    def inspect(self, unit: Unit, path: Path) -> Inspection | None:
        """Count the tensor-core instruction in each kernel of a tile's object; None without a disassembler.

        BuildError `wrong-instruction` when one of the kernels lacks it, or there are not as many as tactics.
        """
        tool = find_tool("cuobjdump")
        if tool is None or find_tool("nvdisasm") is None:
            return None
        text = self._run([str(tool), "--dump-sass", str(path)], "inspect-failed", unit.name)
        counts = []
        for part in text.split("Function : ")[1:]:
            name, _, code = part.partition("\n")
            if "device_kernel" in name:
                counts.append((name.strip(), len(re.findall(rf"\b{re.escape(unit.instruction)}", code))))
        bare = [name for name, count in counts if count == 0]
        if bare or len(counts) != unit.kernels:
            seen = f"{len(counts)} kernels, {len(bare)} of them without {unit.instruction}"
            raise BuildError("wrong-instruction", f"{unit.name} has {seen}; {unit.kernels} with it were expected")
        return Inspection(unit.instruction, tuple(counts))

    def link(self, objects: dict[str, Path], output: Path) -> Path:
        """The library, written beside its place and renamed."""
        output.mkdir(parents=True, exist_ok=True)
        path = output / library_name(self.architecture)
        half = path.with_suffix(f".{os.getpid()}.tmp.so")
        quoted = json.dumps(json.dumps(self.facts(), sort_keys=True))
        info = half.with_suffix(".cpp")
        try:
            info.write_text(f'#define NVFP4_BUILD {quoted}\n#include "{SOURCES / "csrc" / "build_info.cpp"}"\n')
            libraries = [f"-L{self._compiler.libraries}"] if self._compiler.libraries else []
            own = ["-I", str(SOURCES / "csrc"), "-Xcompiler=-fPIC,-fvisibility=hidden", "-cudart=static", "-shared"]
            parts = [str(objects[unit.name]) for unit in self.units]
            argv = [str(self._compiler.nvcc), *own, str(info), *parts, *libraries, "-o", str(half)]
            self._run(argv, "link-failed", path.name)
            half.replace(path)
        finally:
            half.unlink(missing_ok=True)
            info.unlink(missing_ok=True)
        return path

    def facts(self) -> dict[str, str]:
        """What the library says of itself (`nvfp4_build`)."""
        return {
            "architecture": self.architecture,
            "build_id": self.build_id,
            "compiler": f"nvcc {self._compiler.release}, {self._compiler.host}",
            "cutlass_sha256": self._headers.sha256,
            "cutlass_version": self._headers.version,
            "sources": self._sources,
        }

    def _run(self, argv: Sequence[str], code: str, what: str) -> str:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return done.stdout
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-_SHOWN_LINES:])
        hint = "; it was killed: a tile needs 6.5 GB of memory, so try --jobs 1" if done.returncode in (-9, 137) else ""
        raise BuildError(code, f"{what} for sm_{self.architecture}: status {done.returncode}{hint}\n{said}")
