"""NVFP4: e2m1 codes, one ue4m3 scale for 16 of them, one float32 scale for the whole tensor.

A matrix (rows, K) becomes packed codes (rows, K/2) uint8, low nibble first, and scale bytes in one of two layouts:
linear (rows, K/16), or swizzled as the tensor cores read them, in tiles of 128 rows x 4 scales where byte
(row, column) of a tile lies at `row % 32 * 16 + row // 32 * 4 + column`. Rows are padded to 128, scales to 4, with 0.
Functions take their array namespace from their argument, so NumPy and CuPy arrays both do. Little-endian only.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BLOCK",
    "E2M1_MAX",
    "UE4M3_MAX",
    "Fp4Matrix",
    "Producer",
    "bf16_round",
    "decode_pairs",
    "dequantise",
    "e2m1_encode",
    "namespace",
    "pack",
    "reference_gemm",
    "swizzle",
    "swizzled_bytes",
    "swizzled_view",
    "ue4m3_decode",
    "ue4m3_encode",
    "unpack",
    "unswizzle",
]

BLOCK = 16
E2M1_MAX = 6.0
UE4M3_MAX = 448.0
E2M1_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]

_ROWS, _COLUMNS = 128, 4
_CHUNK_ROWS = 256  # 256 x 512 floats are 512 KiB: the temporaries of one chunk stay in a 2 MiB L2


def _ue4m3_table() -> F32:
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    value = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    return np.where(code < 127, value, np.nan).astype(np.float32)  # 127 is NaN, and an unsigned scale has no sign bit


UE4M3_VALUES = _ue4m3_table()
with np.errstate(divide="ignore"):
    _UE4M3_INVERSE = np.where(UE4M3_VALUES > 0, np.float32(1) / UE4M3_VALUES, np.float32(0)).astype(np.float32)
# One byte is two codes, and two float32 are one 8-byte item: a single gather decodes both.
_PAIRS = np.stack([E2M1_VALUES[np.arange(256) & 15], E2M1_VALUES[np.arange(256) >> 4]], axis=1).view(np.float64)[:, 0]


@dataclass(frozen=True)
class Fp4Matrix:
    """`packed` (rows, k/2) uint8 and `scales`, the swizzled bytes, flat. A value is code x scale / `global_scale`."""

    packed: U8
    scales: U8
    rows: int
    k: int
    global_scale: float


def namespace(array: Any) -> Any:
    """The array library of `array`: numpy, or CuPy, whose arrays do not name theirs (as of 14.2)."""
    try:
        return array.__array_namespace__()
    except AttributeError:
        return sys.modules[type(array).__module__]


def e2m1_encode(values: F32) -> U8:
    """Codes 0-15 of float32 values: to nearest, ties to the even code, beyond 6 saturated, the sign kept at zero.

    The codes of 0, .5, 1, 1.5, 2, 3, 4, 6 lie on the lines 2v, v+2 and v/2+4, whichever is lowest. Each line is rounded
    before its even offset is added: v+2 itself rounds in float32, and would carry 3.4999998 up to 5.5. Twelve array
    operations take 8 us for 2x256 values, seven comparisons and their sums 13 us.
    """
    xp = namespace(values)
    magnitude = xp.abs(values)
    xp.minimum(magnitude, E2M1_MAX, out=magnitude)
    code = magnitude * 2
    xp.rint(code, out=code)
    line = xp.rint(magnitude)
    line += 2
    xp.minimum(code, line, out=code)
    magnitude *= 0.5
    xp.rint(magnitude, out=magnitude)
    magnitude += 4
    xp.minimum(code, magnitude, out=code)
    result: U8 = code.astype(np.uint8)
    result |= (values.view(np.uint8)[..., 3::4] & 0x80) >> 4
    return result


def ue4m3_encode(values: F32) -> U8:
    """Scale bytes 0-126 of non-negative float32 values, to nearest, ties to even, beyond 448 saturated."""
    xp = namespace(values)
    values = xp.minimum(values, UE4M3_MAX)
    bits = values.view(np.uint32)
    normal = bits >> 20
    normal &= 1
    normal += bits
    normal += 0x7FFFF
    normal >>= 20
    normal -= (127 - 7) << 3
    subnormal = xp.rint(values * 512).astype(np.uint32)
    result: U8 = xp.where(values < 2.0**-6, subnormal, normal).astype(np.uint8)
    return result


def ue4m3_decode(codes: U8) -> F32:
    xp = namespace(codes)
    result: F32 = xp.take(xp.asarray(UE4M3_VALUES), codes)
    return result


def pack(codes: U8) -> U8:
    """Codes (..., K) to bytes (..., K/2), the even column in the low nibble."""
    words = codes.view(np.uint16)
    return (words | (words >> 4)).astype(np.uint8)


def unpack(packed: U8) -> U8:
    xp = namespace(packed)
    codes: U8 = xp.stack([packed & 15, packed >> 4], axis=-1)
    return codes.reshape(*packed.shape[:-1], -1)


def decode_pairs(packed: U8) -> F32:
    """The e2m1 values (rows, K) of packed codes (rows, K/2), without their scales."""
    xp = namespace(packed)
    values: F32 = xp.take(xp.asarray(_PAIRS), packed).view(np.float32)
    return values


def swizzled_bytes(rows: int, k: int) -> int:
    """Bytes of the swizzled scale layout of a (rows, k) matrix, padding included."""
    return -(-rows // _ROWS) * _ROWS * (-(-(k // BLOCK) // _COLUMNS) * _COLUMNS)


def swizzled_view(scales: U8, rows: int, k: int) -> U8:
    """The swizzled bytes seen as (row tile, row // 32 % 4, row % 32, column tile, column % 4): a view, no copy."""
    tiles = -(-rows // _ROWS), -(-(k // BLOCK) // _COLUMNS)
    return scales.reshape(*tiles, 32, 4, 4).transpose(0, 3, 2, 1, 4)


def _store(scales: U8, linear: U8, first: int, rows: int, k: int) -> None:
    """Put linear scale rows `first`... into the swizzled bytes. `first` is a multiple of 128."""
    view = swizzled_view(scales, rows, k)
    columns = linear.shape[1]
    if columns % _COLUMNS:
        padded = namespace(linear).zeros((len(linear), -(-columns // _COLUMNS) * _COLUMNS), dtype=np.uint8)
        padded[:, :columns] = linear
        linear = padded
    done = 0
    while done < len(linear):  # whole tiles first, then whole groups of 32 rows, then the rest
        tile, group = (first + done) // _ROWS, done % _ROWS // 32
        left = len(linear) - done
        if group == 0 and left >= _ROWS:
            whole = left // _ROWS
            count = whole * _ROWS
            source = linear[done : done + count].reshape(whole, 4, 32, -1, _COLUMNS)
            view[tile : tile + whole] = source
        else:
            count = min(32, left)
            view[tile, group, :count] = linear[done : done + count].reshape(count, -1, _COLUMNS)
        done += count


def swizzle(linear: U8) -> U8:
    """Linear scale bytes (rows, K/16) into the swizzled layout, flat, its padding zero."""
    rows, columns = linear.shape
    scales: U8 = namespace(linear).zeros(swizzled_bytes(rows, columns * BLOCK), dtype=np.uint8)
    _store(scales, linear, 0, rows, columns * BLOCK)
    return scales


def unswizzle(scales: U8, rows: int, k: int) -> U8:
    """The linear (rows, K/16) scale bytes of a swizzled buffer."""
    view = swizzled_view(scales, rows, k)
    if rows <= 32:
        return view[0, 0, :rows].reshape(rows, -1)[:, : k // BLOCK]
    return view.reshape(view.shape[0] * _ROWS, -1)[:rows, : k // BLOCK]


def _block_maximum(magnitudes: F32) -> F32:
    """The maximum of every 16 neighbours, flat. Four halvings of 256x512 take 90 us, a reduction over axis -1 1,080."""
    xp = namespace(magnitudes)
    flat = magnitudes.reshape(-1)
    for _ in range(4):
        flat = xp.maximum(flat[0::2], flat[1::2])
    return flat


def _quantise_rows(values: F32, global_scale: float) -> tuple[U8, U8]:
    """Packed codes and linear scale bytes of some rows."""
    xp = namespace(values)
    rows, k = values.shape
    largest = _block_maximum(xp.abs(values))
    scales = ue4m3_encode(largest * global_scale / E2M1_MAX)
    inverse = xp.asarray(_UE4M3_INVERSE)[scales] * global_scale
    codes = e2m1_encode((values.reshape(-1, BLOCK) * inverse[:, None]).reshape(rows, k))
    return pack(codes), scales.reshape(rows, k // BLOCK)


@dataclass
class Producer:
    """Quantises activations. `direct` writes scale bytes straight into the swizzled layout; the composed producer
    (`VT_FP4_DIRECT_SF=0`) writes them linearly and then runs a standalone swizzle. The bytes are equal.

    `standalone_swizzles` counts those second passes and the one-time layout of weights: it is what proves an arm.
    """

    direct: bool = True
    standalone_swizzles: int = field(default=0)

    def quantise(self, values: F32, global_scale: float) -> Fp4Matrix:
        """`values` (rows, k) float32, contiguous and finite, k a multiple of 16."""
        xp = namespace(values)
        rows, k = values.shape
        packed = xp.empty((rows, k // 2), dtype=np.uint8)
        if self.direct:
            scales = xp.zeros(swizzled_bytes(rows, k), dtype=np.uint8)
        else:
            linear = xp.empty((rows, k // BLOCK), dtype=np.uint8)
        for first in range(0, rows, _CHUNK_ROWS):
            part = slice(first, min(first + _CHUNK_ROWS, rows))
            packed[part], bytes_of_part = _quantise_rows(values[part], global_scale)
            if self.direct:
                _store(scales, bytes_of_part, first, rows, k)
            else:
                linear[part] = bytes_of_part
        if not self.direct:
            scales = self.layout(linear)
        return Fp4Matrix(packed, scales, rows, k, global_scale)

    def swiglu(self, gate_up: F32, global_scale: float) -> Fp4Matrix:
        """silu(gate) * up of `gate_up` (rows, 2 k), quantised."""
        xp = namespace(gate_up)
        half = gate_up.shape[1] // 2
        gate = gate_up[:, :half]
        values: F32 = xp.exp(-gate)
        values += 1.0
        xp.divide(gate, values, out=values)
        values *= gate_up[:, half:]
        return self.quantise(values, global_scale)

    def layout(self, linear: U8) -> U8:
        """One standalone swizzle, counted."""
        self.standalone_swizzles += 1
        return swizzle(linear)


def bf16_round(values: F32) -> F32:
    """Float32 rounded in place to the nearest bfloat16, ties to even. NaN may become Infinity: never finite."""
    bits = values.view(np.uint32)
    rounding = bits >> 16
    rounding &= 1
    rounding += 0x7FFF
    bits += rounding
    bits &= 0xFFFF0000
    return values


def dequantise(matrix: Fp4Matrix) -> NDArray[np.float64]:
    """The float64 values (rows, k) that a quantised matrix stands for."""
    codes = E2M1_VALUES.astype(np.float64)[unpack(matrix.packed)]
    scales = UE4M3_VALUES.astype(np.float64)[unswizzle(matrix.scales, matrix.rows, matrix.k)]
    result: NDArray[np.float64] = codes * np.repeat(scales, BLOCK, axis=1) / matrix.global_scale
    return result


def reference_gemm(a: Fp4Matrix, b: Fp4Matrix) -> NDArray[np.float64]:
    """Float64 a @ b.T of the dequantised operands, (a.rows, b.rows): what every tactic is held against."""
    result: NDArray[np.float64] = dequantise(a) @ dequantise(b).T
    return result
