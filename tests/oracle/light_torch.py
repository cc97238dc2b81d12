"""A stand-in for torch, just large enough that FlashInfer's autotuner runs as it is: shapes, and no device.

A tensor is its shape and dtype. Whatever needs a GPU raises, as torch does on a machine without one; the programs that
trace a measurement replace those calls in both this module and the real torch.
"""

from __future__ import annotations

import contextlib
import math
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

__all__ = ["install"]


class Size(tuple[int, ...]):
    pass


class DType:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"torch.{self._name}"


class Tensor:
    """Only what key building, profile generation and a timed call ask of a tensor."""

    def __init__(self, shape: Any, dtype: Any = None) -> None:
        self.shape = Size(shape)
        self.dtype = dtype
        self.device = "meta"

    def size(self) -> Size:
        return self.shape

    def numel(self) -> int:
        return math.prod(self.shape)

    def element_size(self) -> int:
        return 1

    def t(self) -> Tensor:
        return Tensor(self.shape[::-1], self.dtype)

    T = property(t)

    def to(self, dtype: Any) -> Tensor:
        return Tensor(self.shape, dtype)

    view = to

    def clone(self) -> Tensor:
        return Tensor(self.shape, self.dtype)

    def __mul__(self, _: object) -> Tensor:
        return self

    __sub__ = __mul__


def _tensor(*shape: Any, dtype: Any = None, device: Any = None) -> Tensor:
    del device
    return Tensor(shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape, dtype)


def _no_device(*_: Any, **__: Any) -> Any:
    raise RuntimeError("there is no device here")


def install() -> None:
    """Put the stand-in into sys.modules as `torch`."""
    torch = ModuleType("torch")
    names = ("uint8", "int8", "int64", "float16", "bfloat16", "float32", "float64", "float8_e4m3fn")
    vars(torch).update({name: DType(name) for name in names})
    cuda = SimpleNamespace(
        OutOfMemoryError=type("OutOfMemoryError", (RuntimeError,), {}),
        Stream=object,
        empty_cache=lambda: None,
        is_current_stream_capturing=lambda: False,
    )
    for name in ("Event", "CUDAGraph", "cudart", "current_device", "current_stream", "get_device_name", "graph"):
        setattr(cuda, name, _no_device)
    for name in ("get_device_properties", "stream", "synchronize"):
        setattr(cuda, name, _no_device)
    vars(torch).update(
        Size=Size,
        Tensor=Tensor,
        device=type("device", (), {}),
        dtype=DType,
        empty=_tensor,
        rand=_tensor,
        ones=_tensor,
        zeros=_tensor,
        randn=_tensor,
        inference_mode=contextlib.nullcontext,
        cuda=cuda,
        version=SimpleNamespace(cuda=None),
        backends=SimpleNamespace(cudnn=SimpleNamespace(version=lambda: None)),
    )
    sys.modules["torch"] = torch
