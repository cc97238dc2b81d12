"""The runners' side of a launch, on a kernel library of C functions that note what they were handed."""

from __future__ import annotations

import shutil
import subprocess
from ctypes import CDLL, c_int64
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernels.backends.cpu import random_operand
from kernels.backends.cublas import NOT_SUPPORTED
from kernels.backends.runners import (
    CudaWeight,
    ExpandedMatrix,
    HopperCublas,
    HopperFused,
    cublas_tactics,
    fused_tactics,
    tactic_set,
)
from kernels.cuda.device import Device
from kernels.cuda.library import Library
from kernels.errors import DeviceError
from kernels.nvfp4 import Fp4Matrix
from kernels.tactics import HOPPER_EXPANDED

H200 = Device(0, "H200", (9, 0), 132)
SOURCE = r"""
#include <stddef.h>
#include <stdint.h>
int64_t seen[16];
const char *nvfp4_error_text(int code) { return "an error"; }
int nvfp4_quantise(void) { return 0; }
int nvfp4_swizzle(void) { return 0; }
int nvfp4_widen(void) { return 0; }
int nvfp4_delay(void) { return 0; }
int nvfp4_versions(void) { return 0; }
int nvfp4_expand(void *packed, void *scales, void *out, int rows, int k, void *stream) { seen[15]++; return 0; }
int nvfp4_fused_tactics(void) { return COUNT; }
int64_t nvfp4_fused_packed_bytes(int n, int k) { return n % 64 || k % 64 ? -1 : (int64_t)n * k / 16 * 9; }
int nvfp4_fused_pack(void *b, void *sfb, void *out, int n, int k, void *stream) { return 0; }
int64_t nvfp4_fused_workspace(int tactic, int m, int n, int k, int sms) { return n % 64 || k % 64 ? -1 : 4096 + m; }
int nvfp4_fused_run(int tactic, void *d, void *a, void *b, void *sfa, void *sfb, void *alpha, int m, int n, int k,
                    void *ws, size_t bytes, int sms, void *stream) {
  int64_t all[] = {tactic, (int64_t)d, (int64_t)a, (int64_t)b, (int64_t)sfa, (int64_t)sfb, (int64_t)alpha,
                   m, n, k, (int64_t)ws, (int64_t)bytes, sms, (int64_t)stream};
  for (int i = 0; i < 14; i++) seen[i] = all[i];
  return 0;
}
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    assert compiler, "the tests need a C compiler, as CI installs one"
    source = tmp_path_factory.mktemp("runners") / "noted.c"
    source.write_text(SOURCE)
    built = source.with_suffix(".so")
    count = f"-DCOUNT={len(fused_tactics())}"
    subprocess.run([compiler, "-shared", "-fPIC", count, str(source), "-o", str(built)], check=True)
    return built


class Placed(np.ndarray[Any, Any]):
    """A host array with a device array's address."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(ptr=self.ctypes.data)


class Memory:
    """Scratch in host memory, and what was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self._held: list[Any] = []

    def __call__(self, name: str, size: int) -> int:
        self.asked.append((name, size))
        self._held.append(np.zeros(size, dtype=np.uint8))
        address: int = self._held[-1].ctypes.data
        return address


def placed(matrix: Fp4Matrix) -> Fp4Matrix:
    return Fp4Matrix(matrix.packed.view(Placed), matrix.scales.view(Placed), matrix.rows, matrix.k, matrix.global_scale)


class HostArrays:
    uint8, uint16 = np.uint8, np.uint16

    def empty(self, shape: Any, dtype: Any) -> Any:
        return np.empty(shape, dtype=dtype).view(Placed)


def fused(path: Path, memory: Memory) -> tuple[HopperFused, CDLL]:
    library = CDLL(str(path))
    return HopperFused(Library(path, H200, library, {}), memory, 0x77), library


def test_a_fused_launch_hands_over_each_argument_in_its_place(path: Path) -> None:
    memory = Memory()
    runner, library = fused(path, memory)
    weight, a = CudaWeight(placed(random_operand(1, 128, 64))), placed(random_operand(2, 5, 64))
    runner.prepare(weight, HostArrays())
    for _ in range(2):
        assert runner.launch(3, a, weight, 0x1000, 0x2000) == 0
    assert memory.asked == [("fused", 4096 + 5)]  # reserved once, and so found again in a captured graph
    seen = list((c_int64 * 16).in_dll(library, "seen"))[:14]
    packed = weight.forms["hopper_fused_w4a4"].data.ptr
    addresses = [0x1000, a.packed.data.ptr, packed, a.scales.data.ptr, 0, 0x2000]  # type: ignore[attr-defined]
    assert seen[:10] == [3, *addresses, 5, 128, 64]
    assert seen[11:] == [4096 + 5, 132, 0x77]


@pytest.mark.parametrize(("n", "k"), [(80, 64), (128, 80)])
def test_a_shape_that_the_fused_kernels_do_not_cut_is_refused_by_status(path: Path, n: int, k: int) -> None:
    runner, _ = fused(path, Memory())
    weight = CudaWeight(placed(random_operand(1, n, k)))
    runner.prepare(weight, HostArrays())
    assert weight.forms == {}
    assert not runner.offers(0, 1, n, k)
    assert runner.launch(0, placed(random_operand(2, 1, k)), weight, 0x1000, 0x2000) == 1000


class Ranked:
    """In place of cuBLASLt: two algorithms, of which the second takes memory; notes the products."""

    version = 130100

    def __init__(self) -> None:
        self.products: list[tuple[Any, ...]] = []

    def algorithms(self, m: int, n: int, k: int, most: int) -> tuple[Any, ...]:
        return (SimpleNamespace(workspace=0), SimpleNamespace(workspace=512))

    def matmul(self, algorithm: Any, operands: Any, alpha: float, workspace: Any, stream: int) -> int:
        self.products.append((algorithm.workspace, operands, alpha, workspace, stream))
        return 13 if alpha < 0 else 0


def test_cublas_reads_expanded_operands_and_only_expands_what_is_not(path: Path) -> None:
    memory, ranked, library = Memory(), Ranked(), CDLL(str(path))
    expansions = (c_int64 * 16).in_dll(library, "seen")
    runner = HopperCublas(Library(path, H200, library, {}), memory, 0x77, lambda: ranked)  # type: ignore[arg-type, return-value]
    matrix = random_operand(1, 128, 64)
    weight = CudaWeight(placed(Fp4Matrix(matrix.packed, matrix.scales, 128, 64, 4.0)))
    runner.prepare(weight, HostArrays())
    runner.prepare(weight, HostArrays())
    assert expansions[15] == 1  # the form is shared
    plain = placed(random_operand(2, 5, 64))
    wide = HostArrays().empty((5, 64), np.uint16)
    already = ExpandedMatrix(plain.packed, plain.scales, 5, 64, 2.0, wide)
    assert [runner.launch(1, a, weight, 0x1000, 0) for a in (plain, already)] == [0, 0]
    assert expansions[15] == 2
    assert [(alpha, stream) for _, _, alpha, _, stream in ranked.products] == [(0.25, 0x77), (0.125, 0x77)]
    assert ranked.products[1][1] == (0x1000, wide.data.ptr, weight.forms["bfloat16"].data.ptr)
    assert memory.asked == [("workspace", 512), ("activation", 2 * 5 * 64)]
    assert [runner.offers(tactic, 5, 128, 64) for tactic in (1, 2)] == [True, False]
    assert runner.launch(2, plain, weight, 0x1000, 0) == 1000 + NOT_SUPPORTED
    assert runner.launch(0, ExpandedMatrix(plain.packed, plain.scales, 5, 64, -1.0, wide), weight, 0, 0) == 4013


def test_the_family_keeps_the_numbers_of_the_first_members(path: Path) -> None:
    members = (HOPPER_EXPANDED, fused_tactics(), cublas_tactics(130100))
    family = tactic_set(tuple(SimpleNamespace(tactics=one) for one in members))  # type: ignore[arg-type]
    assert family.named(32) == ("hopper_fused_w4a4", 0)
    assert family.named(54) == ("hopper_cublas_bf16", 0)
    assert family.version == 2


def test_a_library_with_another_number_of_fused_tactics_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.backends.runners.fused_tactics", lambda: cublas_tactics(1))
    with pytest.raises(DeviceError) as caught:
        fused(path, Memory())
    assert caught.value.code == "stale-library"
