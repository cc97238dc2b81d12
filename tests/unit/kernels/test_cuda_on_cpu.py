"""The CUDA sources that need no CUTLASS, compiled for the CPU: what they compute, on machines without a GPU.

Only what is no C++ is rewritten: launches, dynamic shared memory and PTX. `cuda_on_cpu/cuda_runtime.h` has the rest. It
says nothing of races between blocks, memory order or speed: those need a GPU (`python -m benchmarks.gpu_check`).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from ctypes import CDLL, c_float, c_int, c_int64, c_void_p
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels.backends.cpu import random_operand
from kernels.backends.runners import fused_tactics
from kernels.cuda.library import _SUPPORT, GEMM
from kernels.cuda.units import SOURCES
from kernels.nvfp4 import Producer, dequantise, reference_gemm, swizzled_bytes, unswizzle

HERE = Path(__file__).with_name("cuda_on_cpu")
POISON = 0x7FC0
_PTX = re.compile(r"__device__ __forceinline__ \w+ (?:multiply|mma|stream16|stream8)\(.*?\n}\n", re.DOTALL)
_ASM = re.compile(r"asm volatile\(.*?\);", re.DOTALL)
_LAUNCH = re.compile(r"(\w+(?:<[\w, ]+>)?)\s*<<<(.*?)>>>\((.*?)\);", re.DOTALL)
_SHARED = re.compile(r"extern __shared__ (\w+) (\w+)\[\];")


def rewritten(source: str) -> str:
    source = _ASM.sub("", _PTX.sub("", source))
    source = _LAUNCH.sub(r"cpu::run({\2}, [&] { \1(\3); });", source)
    source = _SHARED.sub(r"auto *\2 = reinterpret_cast<\1 *>(cpu::shared.data());", source)
    return source.replace("__attribute__((always_inline))", "")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> CDLL:
    compiler = shutil.which("g++")
    assert compiler, "the tests need a C++ compiler, as CI installs one"
    folder = tmp_path_factory.mktemp("on_cpu")
    sources = []
    for path in (SOURCES / "csrc" / "support.cu", SOURCES / "csrc" / "model.cu", SOURCES / "hopper_fused" / "fused.cu"):
        sources.append(folder / f"{path.stem}.cpp")
        sources[-1].write_text(rewritten(path.read_text(encoding="utf-8")), encoding="utf-8")
    built = folder / "on_cpu.so"
    flags = ["-std=c++20", "-O0", "-w", "-ffp-contract=off", "-shared", "-fPIC", "-pthread"]
    include = ["-I", str(HERE), "-I", str(SOURCES / "csrc")]
    subprocess.run([compiler, *flags, *include, *map(str, sources), "-o", str(built)], check=True)
    loaded = CDLL(str(built))
    loaded.nvfp4_fused_packed_bytes.restype = loaded.nvfp4_fused_workspace.restype = c_int64
    loaded.nvfp4_fused_pack.argtypes = (*(c_void_p,) * 3, c_int, c_int, c_void_p)
    loaded.nvfp4_fused_run.argtypes = (c_int, *GEMM)
    for name, types in _SUPPORT.items():
        getattr(loaded, f"nvfp4_{name}").argtypes = types
    return loaded


def at(array: NDArray[Any]) -> int:
    assert array.flags.c_contiguous
    address: int = array.ctypes.data
    return address


def bf16(values: NDArray[np.float64]) -> NDArray[np.uint16]:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def widened(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "composed"])
@pytest.mark.parametrize(("rows", "k"), [(1, 64), (3, 80), (33, 2064)])
def test_quantised_bytes_are_the_cpu_producers(library: CDLL, rows: int, k: int, direct: bool) -> None:
    random = np.random.default_rng(rows)
    values = (random.standard_normal((rows, k)) * np.exp2(random.integers(-9, 9, (rows, 1)))).astype(np.float32)
    values[0, :16] = 0
    expected = Producer().quantise(values, 168.0)
    packed, wide = np.full((rows, k // 2), 0xAA, np.uint8), np.full((rows, k), POISON, np.uint16)
    made = np.full(swizzled_bytes(rows, k) if direct else (rows, k // 16), 0xAA, np.uint8)
    status = library.nvfp4_quantise(at(values), at(packed), at(made), at(wide), rows, k, 168.0, 0, 0, direct, None)
    scales = made
    if not direct:
        scales = np.full(swizzled_bytes(rows, k), 0xAA, np.uint8)
        assert library.nvfp4_swizzle(at(made), at(scales), rows, k, None) == 0
    assert status == 0
    assert np.array_equal(packed, expected.packed)
    assert np.array_equal(scales, expected.scales)  # its padding too
    exact = dequantise(replace(expected, global_scale=1.0))
    assert np.array_equal(widened(wide), exact)
    again = np.full((rows, k), POISON, np.uint16)
    assert library.nvfp4_expand(at(packed), at(scales), at(again), rows, k, None) == 0
    assert np.array_equal(again, wide)


@pytest.mark.parametrize("half", [True, False], ids=["bfloat16", "float32"])
def test_silu_and_quantisation_in_one_kernel(library: CDLL, half: bool) -> None:
    rows, k = 5, 128
    gate_up = widened(bf16(np.random.default_rng(1).standard_normal((rows, 2 * k))))
    values = bf16(gate_up.astype(np.float64)) if half else gate_up
    packed, scales = np.zeros((rows, k // 2), np.uint8), np.zeros(swizzled_bytes(rows, k), np.uint8)
    arrays = (at(values), at(packed), at(scales), None)
    assert library.nvfp4_quantise(*arrays, rows, k, 168.0, half, 1, 1, None) == 0
    expected = Producer().swiglu(gate_up, 168.0)
    assert np.mean(packed != expected.packed) < 0.01  # the two exponentials may differ in the last place
    assert np.mean(unswizzle(scales, rows, k) != unswizzle(expected.scales, rows, k)) < 0.05


@pytest.mark.parametrize(("m", "n", "k", "sms"), [(3, 128, 192, 3), (17, 64, 128, 1), (9, 192, 64, 5)])
def test_every_fused_tactic_is_right_and_leaves_its_counters_zero(
    library: CDLL, m: int, n: int, k: int, sms: int
) -> None:
    a, b = random_operand(m, m, k), random_operand(n + 1, n, k)
    packed = np.zeros(library.nvfp4_fused_packed_bytes(n, k), np.uint8)
    assert library.nvfp4_fused_pack(at(b.packed), at(b.scales), at(packed), n, k, None) == 0
    alpha = np.array([0.37], np.float32)
    expected = np.float64(alpha[0]) * reference_gemm(a, b)
    sizes = [library.nvfp4_fused_workspace(tactic.id, m, n, k, sms) for tactic in fused_tactics()]
    workspace = np.zeros(max(sizes), np.uint8)  # one for all of them
    for tactic, size in zip(fused_tactics(), sizes, strict=True):
        out = np.full((m, n), POISON, np.uint16)
        operands = (at(out), at(a.packed), at(packed), at(a.scales), None, at(alpha))
        assert library.nvfp4_fused_run(tactic.id, *operands, m, n, k, at(workspace), size, sms, None) == 0
        error = np.linalg.norm(widened(out) - expected) / np.linalg.norm(expected)
        assert error < 2.5e-3, tactic.descriptor
        assert not workspace[: 4 << 20].any(), tactic.descriptor


def test_the_fused_kernels_refuse_what_they_do_not_cut(library: CDLL) -> None:
    assert library.nvfp4_fused_packed_bytes(80, 64) == -1
    assert library.nvfp4_fused_workspace(0, 1, 64, 80, 132) == -1
    assert library.nvfp4_fused_workspace(0, 1 << 20, 1 << 14, 64, 132) == -1  # more groups than counters
    assert library.nvfp4_fused_run(0, *(None,) * 6, 1, 80, 64, None, 0, 132, None) == 1000
    assert library.nvfp4_fused_run(0, *(None,) * 6, 1, 64, 64, None, 0, 132, None) == 2000


def test_the_norm_and_the_head_are_what_they_are_called(library: CDLL) -> None:
    random = np.random.default_rng(2)
    values, weight = (random.standard_normal(shape).astype(np.float32) for shape in ((11, 300), (300,)))
    out = np.full((11, 300), np.nan, np.float32)
    library.nvfp4_rms_norm.argtypes = (*(c_void_p,) * 3, c_int, c_int, c_float, c_void_p)
    assert library.nvfp4_rms_norm(at(values), at(weight), at(out), 11, 300, 1e-5, None) == 0
    exact = values.astype(np.float64)
    exact = exact / np.sqrt((exact**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(out, exact, rtol=2e-6)
    head, logits = random.standard_normal((37, 300)).astype(np.float32), np.full((11, 37), np.nan, np.float32)
    library.nvfp4_logits.argtypes = (*(c_void_p,) * 3, c_int, c_int, c_int, c_void_p)
    assert library.nvfp4_logits(at(values), at(head), at(logits), 11, 37, 300, None) == 0
    np.testing.assert_allclose(logits, values.astype(np.float64) @ head.astype(np.float64).T, atol=2e-5)


def test_decode_attention_stores_a_token_and_sees_those_before_it(library: CDLL) -> None:
    rows, heads, kv_heads, size, limit = 3, 4, 2, 32, 40
    random = np.random.default_rng(3)

    def drawn(*shape: int) -> NDArray[np.float32]:
        return random.standard_normal(shape).astype(np.float32)

    queries, keys, values = drawn(rows, heads, size), drawn(rows, kv_heads, size), drawn(rows, kv_heads, size)
    key_cache, value_cache = drawn(5, kv_heads, size, limit), drawn(5, kv_heads, limit, size)
    slots, positions = np.array([0, 4, 2]), np.array([0, 39, 17])
    before = key_cache.copy(), value_cache.copy()
    out = np.full((rows, heads, size), np.nan, np.float32)
    library.nvfp4_decode_attention.argtypes = (*(c_void_p,) * 8, *(c_int,) * 5, c_void_p)
    arrays = (queries, keys, values, key_cache, value_cache, slots, positions, out)
    assert library.nvfp4_decode_attention(*map(at, arrays), rows, heads, kv_heads, size, limit, None) == 0
    for row, (slot, position) in enumerate(zip(slots, positions, strict=True)):
        before[0][slot, :, :, position], before[1][slot, :, position] = keys[row], values[row]
        for head in range(heads):
            seen = before[0][slot, head // 2, :, : position + 1].astype(np.float64)
            score = queries[row, head].astype(np.float64) @ seen / np.sqrt(size)
            weight = np.exp(score - score.max())
            exact = weight @ before[1][slot, head // 2, : position + 1].astype(np.float64) / weight.sum()
            np.testing.assert_allclose(out[row, head], exact, atol=1e-5)
    assert np.array_equal(key_cache, before[0])
    assert np.array_equal(value_cache, before[1])
