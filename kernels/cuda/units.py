"""What a kernel library consists of: one translation unit a CUTLASS tile, and the rest of its sources."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernels.errors import BuildError
from kernels.tactics import CUTLASS_TACTICS, Tactic

__all__ = ["ARCHITECTURES", "SOURCES", "Unit", "source_digest", "units"]

SOURCES = Path(__file__).parent
# By compute capability. The `a` targets are exact: code for one runs on no other.
ARCHITECTURES = {(9, 0): "90a", (12, 0): "120a", (12, 1): "121a"}
_INSTRUCTION = {"90a": "HGMMA", "120a": "OMMA.SF", "121a": "OMMA.SF"}


@dataclass(frozen=True)
class Unit:
    """One source compiled with `defines`. `kernels` of its SASS functions must each hold the tensor-core `instruction`;
    none where it is ''."""

    name: str
    source: Path
    defines: tuple[str, ...] = ()
    instruction: str = ""
    kernels: int = 0


def units(architecture: str) -> tuple[Unit, ...]:
    """Every unit of one architecture's library, tiles first. BuildError `unknown-architecture`."""
    if architecture not in _INSTRUCTION:
        known = ", ".join(sorted(_INSTRUCTION))
        raise BuildError("unknown-architecture", f"there are no kernels for {architecture!r}; there are for {known}")
    return (*_tiles(architecture), *_others(architecture))


def _tiles(architecture: str) -> Iterator[Unit]:
    source = SOURCES / "csrc" / ("tile_sm90.cu" if architecture == "90a" else "tile_sm120.cu")
    tactics = [tactic for tactic in CUTLASS_TACTICS if isinstance(tactic, Tactic)]
    for tile in range(len(tactics) // 4):
        four = tactics[4 * tile : 4 * tile + 4]
        first = four[0]
        size = (f"NVFP4_TILE_M={first.tile_m}", f"NVFP4_TILE_N={first.tile_n}", f"NVFP4_TILE_K={first.tile_k}")
        ids = tuple(f"NVFP4_ID_{index}={tactic.id}" for index, tactic in enumerate(four))
        name = f"tile{tile}-{first.tile_m}x{first.tile_n}x{first.tile_k}"
        yield Unit(name, source, (*size, *ids), _INSTRUCTION[architecture], 4)


def _others(architecture: str) -> Iterator[Unit]:
    for name in ("support", "model"):
        yield Unit(name, SOURCES / "csrc" / f"{name}.cu")
    if architecture == "90a":
        for path in sorted((SOURCES / "hopper_fused").glob("*.cu")):
            yield Unit(f"hopper_fused-{path.stem}", path)


def source_digest(architecture: str) -> str:
    """SHA-256 over every file that a library of `architecture` is compiled from, with its name."""
    folders = ("csrc", "hopper_fused") if architecture == "90a" else ("csrc",)
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted((SOURCES / folder).glob("*.*")):
            if path.suffix in (".cu", ".cuh", ".h", ".cpp", ".inc"):
                digest.update(f"{folder}/{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
