"""What a native plan document is bound to: the process, device and timing method that chose the plans."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from kernels.buckets import HYBRID_BUCKET_VERSION
from kernels.errors import SettingsError, shown
from kernels.tactics import TacticSet, fnv1a64

__all__ = ["FORMAT", "Metadata"]

FORMAT = "vllm.cpp_nvfp4_autotune_v1"
_I32 = (-(2**31), 2**31 - 1)
_U32 = (0, 2**32 - 1)
_BOUNDS: Mapping[str, tuple[int, int]] = {
    "architecture": _I32,
    "delay_microseconds": _U32,
    "device_ordinal": (0, _I32[1]),
    "hybrid_bucket_version": _U32,
    "output_dtype_id": (0, 255),
    "repeats": (1, _U32[1]),
    "tactic_set_version": _U32,
    "warmups": (1, _U32[1]),
}
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True)
class Metadata:
    """Every mandatory field of `_metadata`; a document is used only where all of them equal the process's own.

    `extra` holds further text, integer or boolean fields that are written and enter the fingerprint, but are never
    compared with a document (such as `timing_method` on a backend without a stream to delay). SettingsError
    `bad-metadata` names a field that is empty, of the wrong type or out of range.
    """

    architecture: int  # encoded SM, e.g. 121
    build_id: str
    cuda_driver: str
    cuda_runtime: str
    cutlass_version: str
    delay_microseconds: int
    device_ordinal: int
    gpu: str
    tactic_descriptor_digest: str
    tactic_set_version: int
    format: str = FORMAT
    fp4_layout: str = "e2m1_packed_k2"
    hybrid_bucket_version: int = HYBRID_BUCKET_VERSION
    output_dtype: str = "bf16"
    output_dtype_id: int = 0
    repeats: int = 10
    scale_layout: str = "cutlass_8x4"
    warmups: int = 3
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "extra", MappingProxyType(dict(self.extra)))
        for name in self.mandatory_names():
            self._check_field(name, getattr(self, name))
        for name, value in self.extra.items():
            if name in self.mandatory_names() or not isinstance(value, str | int):
                raise SettingsError(
                    "bad-metadata", f"extra metadata field {name}={shown(value)} is mandatory or no scalar"
                )

    @staticmethod
    def mandatory_names() -> tuple[str, ...]:
        return tuple(sorted(entry.name for entry in fields(Metadata) if entry.name != "extra"))

    @staticmethod
    def integer_bounds(name: str) -> tuple[int, int] | None:
        """Inclusive bounds of an integer field; None for a text field."""
        return _BOUNDS.get(name)

    def _check_field(self, name: str, value: Any) -> None:
        bounds = _BOUNDS.get(name)
        if bounds is None:
            good = isinstance(value, str) and value != "" and value.isprintable()
        else:
            good = type(value) is int and bounds[0] <= value <= bounds[1]
        if not good:
            need = "a printable text that is not empty" if bounds is None else f"an integer in {bounds[0]}..{bounds[1]}"
            raise SettingsError("bad-metadata", f"metadata field {name}={shown(value)} must be {need}")

    def check_tactics(self, tactics: TacticSet) -> None:
        """SettingsError `bad-metadata` unless digest and set version are those of `tactics`."""
        for name, own in (("tactic_descriptor_digest", tactics.digest), ("tactic_set_version", tactics.version)):
            if getattr(self, name) != own:
                seen = shown(getattr(self, name))
                raise SettingsError("bad-metadata", f"metadata field {name}={seen} but {tactics.runner} has {own!r}")

    def to_json(self) -> dict[str, Any]:
        return {**self.extra, **{name: getattr(self, name) for name in self.mandatory_names()}}

    def fingerprint(self) -> str:
        """FNV-1a 64 over the compact sorted JSON of all fields; 16 hexadecimal digits."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return fnv1a64(text.encode())

    def namespace(self) -> str:
        """The default path below the cache root, so that runtimes which cannot share plans do not share a file."""
        timing = (
            f"timing_w{self.warmups}-r{self.repeats}-d{self.delay_microseconds}-bucket_{self.hybrid_bucket_version}"
        )
        dtype = f"dtype_{self.output_dtype}-id_{self.output_dtype_id}"
        parts = (
            self.format,
            f"sm_{self.architecture}",
            f"device_{self.device_ordinal}-gpu_{self.gpu}",
            f"cuda_{self.cuda_runtime}-driver_{self.cuda_driver}",
            f"cutlass_{self.cutlass_version}",
            f"tactics_{self.tactic_descriptor_digest}-set_{self.tactic_set_version}",
            f"{dtype}-fp4_{self.fp4_layout}-sf_{self.scale_layout}",
            timing,
            f"build_{self.build_id}",
        )
        return "/".join((*(_UNSAFE.sub("_", part) for part in parts), "autotune_configs.json"))
