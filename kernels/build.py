"""`python -m kernels.build`: build the GPU kernels, one shared library an architecture. Never at import.

Exit 0 when every library (with `--tiles`: every object) stands, 1 with a sentence on stderr else.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from kernels.cuda.compile import Build, usual_jobs
from kernels.cuda.toolchain import cache_root, find_compiler, find_headers
from kernels.cuda.units import ARCHITECTURES
from kernels.errors import BuildError


def main(argv: Sequence[str] | None = None) -> int:
    options = _arguments(argv)
    try:
        compiler, headers = find_compiler(), find_headers()
        _say(f"nvcc {compiler.release} at {compiler.nvcc}; CUTLASS {headers.version} at {headers.root}")
        objects = cache_root(os.environ) / "objects"
        for architecture in options.arch:
            _build(Build(architecture, compiler, headers, objects, _say), options)
    except BuildError as error:
        print(f"kernels.build: {error.message} [{error.code}]", file=sys.stderr)
        return 1
    return 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kernels.build", description="Build the GPU kernels.")
    parser.add_argument(
        "--arch",
        type=_architectures,
        default=_architectures("121a"),
        help=f"such as {','.join(ARCHITECTURES.values())}",
    )
    parser.add_argument("--output", type=Path, default=None, help="folder of the libraries (default: where they load)")
    parser.add_argument("--jobs", type=int, default=usual_jobs(), help="compilers at once; 6.5 GB of memory each")
    parser.add_argument(
        "--tiles", type=_tiles, default=None, help="compile and inspect only these, such as 0,4; no link"
    )
    parser.add_argument("--require-inspection", action="store_true", help="fail without cuobjdump and nvdisasm")
    options = parser.parse_args(argv)
    if options.jobs < 1:
        parser.error("--jobs must be at least 1")
    return options


def _architectures(text: str) -> list[str]:
    return text.split(",")


def _tiles(text: str) -> list[int]:
    tiles = [int(part) for part in text.split(",")]
    if not all(0 <= tile < 8 for tile in tiles):
        raise ValueError
    return tiles


def _build(build: Build, options: argparse.Namespace) -> None:
    chosen = build.units if options.tiles is None else [build.units[tile] for tile in options.tiles]
    objects = build.objects(chosen, options.jobs)
    for unit in chosen:
        if not unit.instruction:
            continue
        found = build.inspect(unit, objects[unit.name])
        if found is None and options.require_inspection:
            text = (
                "there is no cuobjdump and nvdisasm to inspect the kernels with; pip install 'nvfp4-gates[cuda-build]'"
            )
            raise BuildError("no-disassembler", text)
        counts = "not inspected: no cuobjdump" if found is None else ", ".join(str(count) for _, count in found.counts)
        _say(f"sm_{build.architecture} {unit.name}: {unit.instruction} in its kernels: {counts}")
    if options.tiles is None:
        path = build.link(objects, options.output or cache_root(os.environ) / "lib")
        _say(f"{path} build {build.build_id[:16]}")


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
