"""Building and loading without a GPU: units, cache keys, refusals. The compiler runs in `nox -s kernels_build`."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from kernels.cuda import library, toolchain
from kernels.cuda.compile import Build
from kernels.cuda.device import Device
from kernels.cuda.toolchain import Compiler, Headers
from kernels.cuda.units import source_digest, units
from kernels.errors import BuildError, DeviceError
from kernels.tactics import CUTLASS_TACTICS

COMPILER = Compiler(Path("/usr/bin/nvcc"), "13.0.88", "c++ 12", None)
HEADERS = Headers(Path("/cutlass"), "4.5.0", "a" * 64)


def build(tmp_path: Path, compiler: Compiler = COMPILER, headers: Headers = HEADERS) -> Build:
    return Build("121a", compiler, headers, tmp_path, lambda _: None)


def test_the_eight_tiles_cover_the_tactics_in_their_order() -> None:
    defines = [define for unit in units("121a") if unit.instruction for define in unit.defines]
    ids = [int(define.split("=")[1]) for define in defines if define.startswith("NVFP4_ID_")]
    assert ids == [tactic.id for tactic in CUTLASS_TACTICS]
    assert sum(1 for unit in units("121a") if unit.kernels == 4) == 8


def test_an_unknown_architecture_is_one_sentence() -> None:
    with pytest.raises(BuildError, match="121a") as caught:
        units("86")
    assert caught.value.code == "unknown-architecture"


def test_another_compiler_or_cutlass_makes_another_build_id(tmp_path: Path) -> None:
    ids = {
        build(tmp_path).build_id,
        build(tmp_path, replace(COMPILER, release="13.1.0")).build_id,
        build(tmp_path, replace(COMPILER, host="c++ 13")).build_id,
        build(tmp_path, headers=replace(HEADERS, version="4.6.0")).build_id,
        build(tmp_path, headers=replace(HEADERS, sha256="b" * 64)).build_id,
    }
    assert len(ids) == 5
    assert build(tmp_path).build_id in ids


def test_a_cutlass_without_small_tiles_is_refused_and_the_sentence_says_why(tmp_path: Path) -> None:
    header = tmp_path / "include" / "cutlass" / "version.h"
    header.parent.mkdir(parents=True)
    header.write_text("#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 2\n#define CUTLASS_PATCH 0\n")
    with pytest.raises(BuildError, match=r"N below 128 need CUTLASS 4.5") as caught:
        toolchain.find_headers({"CUTLASS_DIR": str(tmp_path)})
    assert caught.value.code == "old-cutlass"


def test_a_folder_that_is_no_cutlass_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError) as caught:
        toolchain.find_headers({"CUTLASS_DIR": str(tmp_path)})
    assert caught.value.code == "no-cutlass"


def test_a_machine_without_nvcc_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "find_tool", lambda *_: None)
    with pytest.raises(BuildError, match="cuda-build") as caught:
        toolchain.find_compiler({})
    assert caught.value.code == "no-nvcc"


@pytest.fixture(scope="module")
def foreign_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared library that says what a real one says, for another card; it needs a C compiler only."""
    compiler = shutil.which("cc")
    assert compiler, "the tests need a C compiler, as CI installs one"
    folder = tmp_path_factory.mktemp("library")
    facts = (
        f'{{"architecture": "90a", "sources": "{source_digest("90a")}", "build_id": "b", "cutlass_version": "4.5.0"}}'
    )
    source = folder / "build.c"
    escaped = facts.replace('"', '\\"')
    source.write_text(f'const char *nvfp4_build(void) {{ return "{escaped}"; }}\n')
    path = folder / "libnvfp4_90a.so"
    subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(path)], check=True)
    return path


def test_a_library_for_another_gpu_is_refused_before_any_call(foreign_library: Path) -> None:
    with pytest.raises(DeviceError, match=r"sm_90a, and GB10 has compute capability 12.1") as caught:
        library.open_library(foreign_library, Device(0, "GB10", (12, 1), 48))
    assert caught.value.code == "wrong-gpu"


def test_a_library_of_other_sources_is_refused(foreign_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "source_digest", lambda _: "other")
    with pytest.raises(DeviceError, match="build --arch 90a") as caught:
        library.open_library(foreign_library, Device(0, "H200", (9, 0), 132))
    assert caught.value.code == "stale-library"


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "libnvfp4_90a.so"
    path.write_bytes(b"not ELF")
    with pytest.raises(DeviceError) as caught:
        library.open_library(path, Device(0, "H200", (9, 0), 132))
    assert caught.value.code == "no-library"


def test_a_gpu_without_kernels_and_a_missing_library_are_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def device(capability: tuple[int, int]) -> None:
        monkeypatch.setattr(library, "find_device", lambda _: Device(0, "card", capability, 1))

    device((8, 6))
    with pytest.raises(DeviceError) as caught:
        library.load(env={})
    assert caught.value.code == "unsupported-gpu"
    device((12, 1))
    with pytest.raises(DeviceError, match=r"kernels.build --arch 121a") as caught:
        library.load(env={library.FOLDER: str(tmp_path)})
    assert caught.value.code == "no-library"
