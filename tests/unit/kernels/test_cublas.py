"""cuBLASLt's calls against a library of the same entry points that multiplies on the CPU as cublasLt.h specifies."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels.backends.cpu import random_operand
from kernels.backends.cublas import WORKSPACE, CublasLt
from kernels.backends.runners import cublas_tactics
from kernels.errors import DeviceError
from kernels.nvfp4 import bf16_round, dequantise

# Column-major with op(A) = A^T and op(B) = B, sums in float64. Two algorithms: the second one wants a workspace.
SOURCE = r"""
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
typedef struct { int type; uint64_t rows, columns; int64_t ld; } Layout;
typedef struct { uint64_t algorithm[8]; size_t workspace; int state; float waves; int reserved[4]; } Result;
static int compute, scale, transposed = -1;
static uint64_t most;
static uint32_t reductions;
size_t cublasLtGetVersion(void) { return 130100; }
int cublasLtCreate(void **handle) { *handle = &compute; return 0; }
int cublasLtMatmulDescCreate(void **made, int c, int s) { compute = c; scale = s; *made = &transposed; return 0; }
int cublasLtMatmulDescSetAttribute(void *desc, int name, const void *value, size_t size) {
  if (desc != &transposed || name != 3 || size != 4) return 7;
  memcpy(&transposed, value, 4);
  return 0;
}
int cublasLtMatrixLayoutCreate(void **made, int type, uint64_t rows, uint64_t columns, int64_t ld) {
  Layout *layout = malloc(sizeof(Layout));
  *layout = (Layout){type, rows, columns, ld};
  *made = layout;
  return 0;
}
int cublasLtMatmulPreferenceCreate(void **made) { *made = &most; return 0; }
int cublasLtMatmulPreferenceSetAttribute(void *preference, int name, const void *value, size_t size) {
  if (preference != &most) return 7;
  if (name == 1 && size == 8) memcpy(&most, value, 8);
  else if (name == 3 && size == 4) memcpy(&reductions, value, 4);
  else return 7;
  return 0;
}
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *desc, Layout *a, Layout *b, Layout *c, Layout *d, void *wanted,
                                   int requested, Result *results, int *count) {
  if (handle != &compute || desc != &transposed || wanted != &most || reductions != 2 || c != d) return 7;
  if (d->rows % 8) { *count = 0; return 15; }
  *count = requested < 3 ? requested : 3;
  for (int i = 0; i < *count; i++) {
    memset(&results[i], 0, sizeof(Result));
    results[i].algorithm[0] = 100 + i;
    results[i].workspace = i == 1 ? most : 0;
    results[i].state = i == 2;
  }
  return 0;
}
static double value(uint16_t bits) { uint32_t word = (uint32_t)bits << 16; float f; memcpy(&f, &word, 4); return f; }
int cublasLtMatmul(void *handle, void *desc, const float *alpha, const uint16_t *a, Layout *la, const uint16_t *b,
                   Layout *lb, const float *beta, const void *c, Layout *lc, float *d, Layout *ld, const uint64_t *algo,
                   void *workspace, size_t bytes, void *stream) {
  if (compute != 68 || scale != 0 || transposed != 1 || *beta != 0 || (void *)d != c || lc != ld) return 7;
  if (la->type != 14 || lb->type != 14 || ld->type != 14 || stream != (void *)0x77) return 7;
  if (la->rows != lb->rows || la->columns != ld->rows || lb->columns != ld->columns) return 7;
  if (algo[0] == 101 && (workspace == NULL || bytes != most)) return 7;
  for (uint64_t j = 0; j < ld->columns; j++)
    for (uint64_t i = 0; i < ld->rows; i++) {
      double sum = 0;
      for (uint64_t p = 0; p < la->rows; p++) sum += value(a[i * la->ld + p]) * value(b[j * lb->ld + p]);
      float out = (float)(*alpha * sum);
      uint32_t word;
      memcpy(&word, &out, 4);
      ((uint16_t *)d)[j * ld->ld + i] = (word + 0x7FFF + (word >> 16 & 1)) >> 16;
    }
  return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    assert compiler, "the tests need a C compiler, as CI installs one"
    source = tmp_path_factory.mktemp("cublas") / "lt.c"
    source.write_text(SOURCE)
    path = source.with_suffix(".so")
    subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(path)], check=True)
    return path


def expanded(values: NDArray[np.float64]) -> NDArray[np.uint16]:
    return np.ascontiguousarray((values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16))


def test_the_product_is_that_of_the_operands_as_they_lie(library: Path) -> None:
    m, n, k = 3, 24, 32
    a, weight = dequantise(random_operand(1, m, k)), dequantise(random_operand(2, n, k))
    wide_a, wide_weight = expanded(a), expanded(weight)
    out = np.zeros((m, n), dtype=np.uint16)
    cublas = CublasLt(library)
    first, second = cublas.algorithms(m, n, k, 8)
    assert (first.workspace, second.workspace) == (0, WORKSPACE)
    room = np.zeros(8, dtype=np.uint8)
    exact = bf16_round((np.float64(np.float32(0.25)) * (a @ weight.T)).astype(np.float32))
    for algorithm, workspace in ((first, None), (second, room.ctypes.data)):
        out.fill(0x7FC0)
        operands = (out.ctypes.data, wide_a.ctypes.data, wide_weight.ctypes.data)
        assert cublas.matmul(algorithm, operands, 0.25, workspace, 0x77) == 0
        np.testing.assert_array_equal(out.astype(np.uint32) << 16, exact.view(np.uint32))
    assert cublas.matmul(second, operands, 0.25, None, 0x77) == 7


def test_a_shape_that_cublas_does_not_take_has_no_algorithms(library: Path) -> None:
    assert CublasLt(library).algorithms(1, 20, 32, 8) == ()


def test_a_missing_library_is_one_sentence_with_its_mend(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"pip install nvidia-cublas.*NVFP4_GATES_EXPAND=0") as caught:
        CublasLt(tmp_path / "libcublasLt.so.13")
    assert caught.value.code == "no-cublaslt"


def test_another_release_is_another_tactic_set() -> None:
    ours = cublas_tactics(130100)
    assert ours.digest != cublas_tactics(130101).digest
    assert [tactic.id for tactic in ours] == list(range(8))
