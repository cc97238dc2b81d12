"""What the decoder does between its projections, where the device decides how: plain array operations, or the library's
kernels on a GPU, which a graph can hold (CuPy refuses cuBLAS while a stream is captured)."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_float, c_int, c_void_p
from typing import Any, Protocol

import numpy as np

from kernels.backends.base import Backend
from kernels.backends.cuda import CudaBackend
from kernels.errors import KernelError
from kernels.nvfp4 import F32, namespace
from kernels.serve.attention import Cache, decode_attention

__all__ = ["ArrayOperations", "CudaOperations", "Operations", "operations"]


class Operations(Protocol):
    def place(self, slots: Sequence[int], positions: Sequence[int]) -> Any:
        """Where the rows of a decode step stand, in the form that `decode` takes: one slot and position a row."""

    def norm(self, values: F32, weight: F32, epsilon: float) -> F32:
        """RMSNorm of (rows, hidden)."""

    def head(self, weight: Any) -> Any:
        """The head (vocabulary, hidden) as `logits` multiplies it."""

    def logits(self, hidden: F32, head: Any) -> F32:
        """(rows, vocabulary)."""

    def decode(self, queries: F32, keys: F32, values: F32, cache: Cache, place: Any) -> F32:
        """Store one token a row and attend from it. `queries` (rows, heads, size), `keys` and `values` (rows, kv heads,
        size); the result has the shape of `queries`."""


class ArrayOperations:
    """NumPy: the CPU backend's."""

    def place(self, slots: Sequence[int], positions: Sequence[int]) -> tuple[list[int], list[int]]:
        return list(slots), list(positions)

    def norm(self, values: F32, weight: F32, epsilon: float) -> F32:
        xp = namespace(values)
        square = xp.einsum("ij,ij->i", values, values)  # one pass without a squared temporary
        square *= 1.0 / values.shape[1]
        square += epsilon
        result: F32 = values * (1.0 / xp.sqrt(square))[:, None]
        result *= weight
        return result

    def head(self, weight: Any) -> Any:
        return namespace(weight).ascontiguousarray(weight.T)

    def logits(self, hidden: F32, head: Any) -> F32:
        result: F32 = hidden @ head
        return result

    def decode(self, queries: F32, keys: F32, values: F32, cache: Cache, place: tuple[list[int], list[int]]) -> F32:
        slots, positions = place
        for row, (slot, position) in enumerate(zip(slots, positions, strict=True)):
            cache.store(slot, position, keys[row : row + 1], values[row : row + 1])
        return decode_attention(queries, cache, slots, [position + 1 for position in positions])


class CudaOperations:
    """The library's kernels on CuPy arrays. `place` takes device arrays too, which a graph reads anew each time."""

    def __init__(self, backend: CudaBackend) -> None:
        self._backend = backend
        self._xp = backend.xp
        self._stream = backend.stream.ptr
        pointers, integers = (c_void_p,) * 8, (c_int,) * 5
        function = backend.library.function
        self._norm = function("nvfp4_rms_norm", *pointers[:3], c_int, c_int, c_float, c_void_p)
        self._logits = function("nvfp4_logits", *pointers[:3], *integers[:3], c_void_p)
        self._attend = function("nvfp4_decode_attention", *pointers, *integers, c_void_p)

    def place(self, slots: Any, positions: Any) -> tuple[Any, Any]:
        return self._xp.asarray(slots, dtype=np.int64), self._xp.asarray(positions, dtype=np.int64)

    def norm(self, values: Any, weight: Any, epsilon: float) -> Any:
        values = self._xp.ascontiguousarray(values)
        out = self._xp.empty_like(values)
        rows, hidden = values.shape
        pointers = (values.data.ptr, weight.data.ptr, out.data.ptr)
        self._backend.library.check(self._norm(*pointers, rows, hidden, epsilon, self._stream), "RMSNorm")
        return out

    def head(self, weight: Any) -> Any:
        return self._xp.ascontiguousarray(weight)

    def logits(self, hidden: Any, head: Any) -> Any:
        rows, k = hidden.shape
        out = self._xp.empty((rows, len(head)), dtype=np.float32)
        pointers = (hidden.data.ptr, head.data.ptr, out.data.ptr)
        self._backend.library.check(self._logits(*pointers, rows, len(head), k, self._stream), "the head")
        return out

    def decode(self, queries: Any, keys: Any, values: Any, cache: Cache, place: tuple[Any, Any]) -> Any:
        xp = self._xp
        queries, keys, values = (xp.ascontiguousarray(array) for array in (queries, keys, values))
        out = xp.empty_like(queries)
        rows, heads, size = queries.shape
        kv_heads, limit = keys.shape[1], cache.positions
        arrays = (queries, keys, values, cache.keys, cache.values, *place, out)
        pointers = (array.data.ptr for array in arrays)
        status = self._attend(*pointers, rows, heads, kv_heads, size, limit, self._stream)
        self._backend.library.check(status, "decode attention")
        return out


def operations(backend: Backend) -> Operations:
    """Those of the backend's device. KernelError `no-operations` for a device that has none."""
    if isinstance(backend, CudaBackend):
        return CudaOperations(backend)
    if backend.xp is np:
        return ArrayOperations()
    raise KernelError("no-operations", f"{type(backend).__name__} has neither NumPy arrays nor kernels for the decoder")
