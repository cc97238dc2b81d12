"""cuBLASLt through ctypes: bfloat16 products of row-major operands, by the algorithms its heuristics rank for a shape.

CuPy's own cuBLAS calls have a hidden workspace and are refused while a graph is captured; here workspace and algorithm
are the caller's. Only algorithms that sum in float32 in a fixed order are asked for.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable, Iterator
from ctypes import POINTER, byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.errors import DeviceError

__all__ = ["NOT_SUPPORTED", "WORKSPACE", "Algorithm", "CublasLt", "find_library"]

WORKSPACE = 32 << 20  # bytes that an algorithm may ask for
NOT_SUPPORTED = 15  # CUBLAS_STATUS_NOT_SUPPORTED
_NAMES = ("libcublasLt.so.13", "libcublasLt.so.12")
_COMPUTE_32F, _R_32F, _R_16BF, _TRANSPOSED = 68, 0, 14, 1  # of cublas_api.h and library_types.h
_DESC_TRANSA = 3
_PREFER_WORKSPACE, _PREFER_REDUCTIONS, _COMPUTE_TYPE = 1, 3, 2  # reductions of a split K: none, or in float32


class _Result(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t, 96 bytes."""

    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


_POINTERS = (c_void_p,) * 3
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "Create": (POINTER(c_void_p),),
    "MatmulDescCreate": (POINTER(c_void_p), c_int, c_int),
    "MatmulDescSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "MatrixLayoutCreate": (POINTER(c_void_p), c_int, c_uint64, c_uint64, c_int64),
    "MatmulPreferenceCreate": (POINTER(c_void_p),),
    "MatmulPreferenceSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "MatmulAlgoGetHeuristic": (*(c_void_p,) * 7, c_int, POINTER(_Result), POINTER(c_int)),
    "Matmul": (*_POINTERS, *_POINTERS, *_POINTERS, *_POINTERS, *_POINTERS[:2], c_size_t, c_void_p),
}


@dataclass(frozen=True)
class Algorithm:
    """One algorithm for one shape, and the bytes of workspace it takes."""

    result: _Result
    layouts: tuple[c_void_p, c_void_p, c_void_p]

    @property
    def workspace(self) -> int:
        return int(self.result.workspace)


class CublasLt:
    """One handle. DeviceError `no-cublaslt` where the library is missing or answers an error. Descriptors live as long
    as the process: there is one a shape."""

    def __init__(self, path: Path | str | None = None) -> None:
        self._library = _loaded(path)
        self._library.cublasLtGetVersion.restype = c_size_t
        self.version = int(self._library.cublasLtGetVersion())
        self._call = {name: self._function(name, types) for name, types in _FUNCTIONS.items()}
        self._matmul = self._call["Matmul"]
        self._handle = self._made("Create")
        self._operation = self._made("MatmulDescCreate", _COMPUTE_32F, _R_32F)
        self._set("MatmulDescSetAttribute", self._operation, _DESC_TRANSA, c_int32(_TRANSPOSED))
        self._preference = self._made("MatmulPreferenceCreate")
        self._set("MatmulPreferenceSetAttribute", self._preference, _PREFER_WORKSPACE, c_uint64(WORKSPACE))
        self._set("MatmulPreferenceSetAttribute", self._preference, _PREFER_REDUCTIONS, c_uint32(_COMPUTE_TYPE))
        self._zero = c_float(0)

    def algorithms(self, m: int, n: int, k: int, most: int) -> tuple[Algorithm, ...]:
        """At most `most` algorithms for (m, k) . (n, k)^T, the one that cuBLAS expects to be fastest first; none where
        it takes no such shape. The same ones every time, for one release on one GPU."""
        # cuBLAS counts columns first: it is asked for the transpose, whose operands are ours as they lie.
        layouts = (self._layout(k, n), self._layout(k, m), self._layout(n, m))
        found, count = (_Result * most)(), c_int()
        weight, activation, out = layouts
        operands = (self._handle, self._operation, weight, activation, out, out, self._preference)
        status = self._call["MatmulAlgoGetHeuristic"](*operands, most, found, byref(count))
        if status not in (0, NOT_SUPPORTED):
            raise DeviceError("no-cublaslt", f"cuBLASLt ranks no algorithm for M={m} N={n} K={k}: status {status}")
        return tuple(Algorithm(result, layouts) for result in found[: count.value] if result.state == 0)

    def matmul(
        self,
        algorithm: Algorithm,
        operands: tuple[int, int, int],
        alpha: float,
        workspace: int | None,
        stream: int,
    ) -> int:
        """Enqueue out (m, n) = alpha * a (m, k) . weight (n, k)^T; the status. `operands` are the device addresses of
        out, a and weight, all bfloat16."""
        out, a, weight = operands
        lay_weight, lay_a, lay_out = algorithm.layouts
        result = algorithm.result
        return self._matmul(
            *(self._handle, self._operation, byref(c_float(alpha))),
            *(weight, lay_weight, a, lay_a, byref(self._zero), out, lay_out, out, lay_out),
            *(byref(result.algorithm), workspace, result.workspace, stream),
        )

    def _layout(self, rows: int, columns: int) -> c_void_p:
        return self._made("MatrixLayoutCreate", _R_16BF, rows, columns, rows)

    def _made(self, name: str, *arguments: Any) -> c_void_p:
        """What a function creates through its first argument."""
        made = c_void_p()
        _require(self._call[name](byref(made), *arguments), name)
        return made

    def _set(self, name: str, subject: c_void_p, attribute: int, value: Any) -> None:
        _require(self._call[name](subject, attribute, byref(value), ctypes.sizeof(value)), name)

    def _function(self, name: str, types: tuple[Any, ...]) -> Callable[..., int]:
        function = getattr(self._library, f"cublasLt{name}")
        function.argtypes, function.restype = types, c_int
        call: Callable[..., int] = function
        return call


def find_library() -> Iterator[str]:
    """Where cuBLASLt may be: in the wheel `nvidia-cublas` of any folder Python imports from, then where the loader
    looks."""
    found = importlib.util.find_spec("nvidia")
    for place in (found.submodule_search_locations if found else None) or ():
        for name in _NAMES:
            yield from map(str, sorted(Path(place).glob(f"*/lib/{name}")))
    yield from _NAMES


def _loaded(path: Path | str | None) -> ctypes.CDLL:
    tried = []
    for name in [str(path)] if path else find_library():
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            tried.append(str(error))
    text = f"cuBLASLt cannot be loaded ({tried[-1]}): pip install nvidia-cublas, which CuPy needs as well"
    raise DeviceError("no-cublaslt", f"{text}, or set NVFP4_GATES_EXPAND=0 to go without its tactics")


def _require(status: int, what: str) -> None:
    if status:
        raise DeviceError("no-cublaslt", f"cublasLt{what} answers status {status}; is the driver older than cuBLAS?")
