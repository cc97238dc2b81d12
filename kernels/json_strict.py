"""Strict JSON for documents that strangers write: one meaning or none, bounded in depth, duplicates are errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from kernels.errors import PlanDocumentError, shown

__all__ = ["MAX_DEPTH", "loads_object"]

# Native documents nest 3 deep, FlashInfer's 0.6 and 0.7 at most 8.
MAX_DEPTH = 32
# Possessive, so that a long or unclosed string costs one pass and no backtracking.
_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{\]}]', re.DOTALL)


def loads_object(data: bytes, name: str) -> dict[str, Any]:
    """Decode one JSON object. PlanDocumentError with a code of its own for each way in which `data` is not one."""
    if not data.strip():
        raise PlanDocumentError("empty-document", f"{name} is empty; delete it or restore it from a copy")
    if data.startswith(b"\xef\xbb\xbf"):
        raise PlanDocumentError("byte-order-mark", f"{name} starts with a byte order mark; save it as plain UTF-8")
    _refuse_depth(data, name)
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise PlanDocumentError("not-utf8", f"{name} is not UTF-8 at byte {error.start}") from error
    except _DuplicateKey as error:
        raise PlanDocumentError("duplicate-field", f"{name} has the key {error} twice; keep one of them") from error
    except (ValueError, RecursionError) as error:
        raise PlanDocumentError("bad-json", f"{name} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        kind = "null" if value is None else type(value).__name__
        raise PlanDocumentError("not-an-object", f"{name} holds {kind} where a JSON object is required")
    return value


class _DuplicateKey(ValueError):
    pass


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise _DuplicateKey(shown(key))
        result[key] = value
    return result


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _refuse_depth(data: bytes, name: str) -> None:
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(data):
        token = match.group()
        if token in b"[{":
            depth += 1
        elif token in b"]}":
            depth -= 1
        if depth > MAX_DEPTH:
            place = match.start()
            raise PlanDocumentError("too-deep", f"{name} nests deeper than {MAX_DEPTH} levels at byte {place}")
