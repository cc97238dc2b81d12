"""Canonical JSON: the bytes that are hashed are the bytes that are stored.

UTF-8, keys sorted by code point, compact separators, a final LF, no NaN or Infinity, floats in Python's shortest
round-trip form. Standard library only, since `verify` runs on any machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from harness.errors import HarnessError

__all__ = ["dumps", "line_ending_hint", "loads", "loads_lines", "sha256_bytes", "sha256_file"]


def dumps(value: Any) -> bytes:
    """Encode `value`. Raises HarnessError `non-canonical` for NaN, Infinity or a key that is not text."""
    _refuse_foreign_keys(value, "$")
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise HarnessError("non-canonical", f"value cannot be written as canonical JSON: {error}") from error
    return text.encode("utf-8") + b"\n"


def _refuse_foreign_keys(value: Any, where: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise HarnessError("non-canonical", f"key {key!r} at {where} is not text; write it as a string")
            _refuse_foreign_keys(item, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _refuse_foreign_keys(item, f"{where}[{index}]")


def loads(data: bytes, name: str = "document") -> Any:
    """Decode JSON strictly: duplicate keys, NaN and bytes that are not UTF-8 are errors (code `bad-json`)."""
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise HarnessError("bad-json", f"{name} is not valid JSON: {error}") from error


def loads_lines(data: bytes, name: str) -> Iterator[Any]:
    """Decode JSON lines. A last line without its LF was cut off while being written: HarnessError `cut-line`."""
    if data and not data.endswith(b"\n"):
        raise HarnessError("cut-line", f"{name} ends inside a line: the writer was interrupted")
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        yield loads(line, f"{name} line {number}")


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"duplicate key {key!r}")
        result[key] = value
    return result


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def sha256_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def line_ending_hint(data: bytes, expected_sha256: str) -> str | None:
    """Why `data` has another digest, where it is only line endings or the final newline (a converting checkout)."""
    plain = data.replace(b"\r\n", b"\n")
    variants = {
        "line endings": (plain, data.replace(b"\n", b"\r\n")),
        "a final newline": (data + b"\n", data.removesuffix(b"\n")),
        "line endings and a final newline": (plain + b"\n", plain.removesuffix(b"\n")),
    }
    for name, candidates in variants.items():
        if any(sha256_bytes(candidate) == expected_sha256 for candidate in candidates):
            return f"differs only by {name}"
    return None
