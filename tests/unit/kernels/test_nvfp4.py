from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import nvfp4
from kernels.nvfp4 import Producer, dequantise, e2m1_encode, swizzle, swizzled_bytes, ue4m3_encode, unswizzle

E2M1 = [Fraction(value) for value in (0, 0.5, 1, 1.5, 2, 3, 4, 6)]
UE4M3 = [Fraction(m, 8) / 64 for m in range(8)] + [
    Fraction(8 + m, 8) * Fraction(2) ** (e - 7) for e in range(1, 16) for m in range(8)
]
UE4M3 = UE4M3[:127]


def nearest_even(value: float, grid: list[Fraction]) -> int:
    """Rounding by exact fractions: the nearest grid point, the even code of two equally near ones."""
    exact = Fraction(value)
    return min(range(len(grid)), key=lambda code: (abs(grid[code] - exact), code % 2))


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_an_e2m1_code_is_the_nearest_with_ties_to_even_and_the_sign_kept(value: float) -> None:
    array = np.full(2, value, dtype=np.float32)
    sign = 8 if np.signbit(array[0]) else 0
    assert e2m1_encode(array).tolist() == [nearest_even(abs(value), E2M1) | sign] * 2


@given(st.floats(min_value=0, width=32, allow_infinity=False))
def test_a_scale_byte_is_the_nearest_ue4m3_value_with_ties_to_even(value: float) -> None:
    assert ue4m3_encode(np.full(1, value, dtype=np.float32)).tolist() == [nearest_even(value, UE4M3)]


def test_every_midpoint_and_its_neighbours_round_as_exact_fractions_do() -> None:
    for grid, encode in ((E2M1, e2m1_encode), (UE4M3, ue4m3_encode)):
        midpoints = np.array([float((low + high) / 2) for low, high in pairwise(grid)], np.float32)
        for values in (midpoints, np.nextafter(midpoints, np.float32(0)), np.nextafter(midpoints, np.float32(1e9))):
            assert encode(values).tolist() == [nearest_even(float(value), grid) for value in values]


def test_two_codes_share_a_byte_with_the_even_column_in_the_low_nibble() -> None:
    codes = np.array([[1, 2, 15, 0]], dtype=np.uint8)
    packed = nvfp4.pack(codes)
    assert packed.tolist() == [[0x21, 0x0F]]
    assert nvfp4.unpack(packed).tolist() == codes.tolist()
    assert nvfp4.decode_pairs(packed).tolist() == [[0.5, 1.0, -6.0, 0.0]]


@pytest.mark.parametrize("rows", [1, 32, 33, 127, 128, 129, 300])
@pytest.mark.parametrize("columns", [1, 3, 4, 5, 16])
def test_the_swizzled_layout_puts_each_scale_where_the_tile_formula_says_and_zero_elsewhere(
    rows: int, columns: int
) -> None:
    linear = np.random.default_rng(rows).integers(1, 127, (rows, columns), dtype=np.uint8)
    tiles = -(-columns // 4)
    expected = np.zeros(-(-rows // 128) * 128 * tiles * 4, dtype=np.uint8)
    for row in range(rows):
        for column in range(columns):
            tile = row // 128 * tiles + column // 4
            expected[tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + column % 4] = linear[row, column]
    assert swizzle(linear).tobytes() == expected.tobytes()
    assert len(expected) == swizzled_bytes(rows, columns * 16)
    assert np.array_equal(unswizzle(expected, rows, columns * 16), linear)


@pytest.mark.parametrize("rows", [1, 5, 32, 33, 129, 256, 257, 700])
@pytest.mark.parametrize("k", [16, 80, 256])
def test_the_direct_and_the_composed_producer_write_the_same_bytes(rows: int, k: int) -> None:
    values = np.random.default_rng(k + rows).standard_normal((rows, k)).astype(np.float32) * 3
    direct, composed = Producer(direct=True), Producer(direct=False)
    one, other = direct.quantise(values, 100.0), composed.quantise(values, 100.0)
    assert one.packed.tobytes() == other.packed.tobytes()
    assert one.scales.tobytes() == other.scales.tobytes()
    assert (direct.standalone_swizzles, composed.standalone_swizzles) == (0, 1)


@given(st.integers(1, 40), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_dequantised_values_lie_within_half_a_code_step_of_the_input(rows: int, blocks: int, seed: int) -> None:
    values = np.random.default_rng(seed).standard_normal((rows, blocks * 16)).astype(np.float32)
    result = dequantise(Producer().quantise(values, 168.0))
    largest = np.abs(values).reshape(rows, blocks, 16).max(axis=2, keepdims=True)
    # Half the widest step, 1 of 6, and the scale's own rounding of at most 1/16, or 2^-10 below its normal range.
    bound = largest * (1 / 6) + np.maximum(largest / 16, 6 * 2**-10 / 168) + 1e-6
    assert (np.abs(result - values).reshape(rows, blocks, 16) <= bound).all()


def test_a_block_of_zeros_stays_zero() -> None:
    assert not dequantise(Producer().quantise(np.zeros((3, 32), np.float32), 168.0)).any()


@given(st.lists(st.floats(width=32, allow_nan=False, max_value=2.0**120, min_value=-(2.0**120)), min_size=1))
def test_bfloat16_rounding_is_to_nearest_even(values: list[float]) -> None:
    rounded = nvfp4.bf16_round(np.array(values, dtype=np.float32))
    for value, result in zip(values, rounded, strict=True):
        low = int(np.float32(value).view(np.uint32)) & 0xFFFF0000
        around = [np.uint32(low).view(np.float32), np.uint32(low + 0x10000).view(np.float32)]
        distance = [abs(Fraction(float(near)) - Fraction(value)) for near in around]
        even = (low >> 16) % 2
        best = around[even] if distance[0] == distance[1] else around[distance[0] > distance[1]]
        assert result == best


def test_the_reference_product_is_that_of_the_dequantised_operands() -> None:
    random = np.random.default_rng(0)
    a, b = (Producer().quantise(random.standard_normal((5, 32)).astype(np.float32), 50.0) for _ in range(2))
    left, right = dequantise(a), dequantise(b)
    expected = [[sum(x * y for x, y in zip(row, column, strict=True)) for column in right] for row in left]
    assert np.allclose(nvfp4.reference_gemm(a, b), expected, rtol=1e-12)


def test_an_array_that_does_not_name_its_library_is_found_by_its_module() -> None:
    """CuPy's arrays have no __array_namespace__."""

    class Nameless:
        __module__ = "numpy"

    assert nvfp4.namespace(Nameless()) is np
    assert nvfp4.namespace(np.zeros(1)) is np
