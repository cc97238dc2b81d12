"""Strict JSON for documents that strangers write: one meaning or none, bounded in depth, duplicates are errors."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from kernels.errors import PlanDocumentError, shown

__all__ = ["MAX_DEPTH", "loads_object"]

# Native documents nest 3 deep, FlashInfer's 0.6 and 0.7 at most 8.
MAX_DEPTH = 32
# Possessive, so that a long or unclosed string costs one pass and no backtracking.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
# No string with an escape, bracket or colon in it: then brackets and colons can be counted without cutting strings out.
_PLAIN_STRINGS = re.compile(rb'[^"]*+(?:"[^"\\\[\]{}:]*+"[^"]*+)*+')
_SQUARE = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def loads_object(data: bytes, name: str) -> dict[str, Any]:
    """Decode one JSON object. PlanDocumentError with a code of its own for each way in which `data` is not one."""
    if not data.strip():
        raise PlanDocumentError("empty-document", f"{name} is empty; delete it or restore it from a copy")
    if data.startswith(b"\xef\xbb\xbf"):
        raise PlanDocumentError("byte-order-mark", f"{name} starts with a byte order mark; save it as plain UTF-8")
    plain = _PLAIN_STRINGS.fullmatch(data) is not None
    _refuse_depth(data if plain else _STRING.sub(b"", data), name)
    try:
        text = data.decode("utf-8")
        value = _decoded(text)
        # Half the time of the other way for a large document. A member has one colon; a doubled one leaves no member.
        if not plain or data.count(b":") != _members(value):
            value = _decoded(text, object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        raise PlanDocumentError("not-utf8", f"{name} is not UTF-8 at byte {error.start}") from error
    except _DuplicateKey as error:
        raise PlanDocumentError("duplicate-field", f"{name} has the key {error} twice; keep one of them") from error
    except (ValueError, RecursionError) as error:
        raise PlanDocumentError("bad-json", f"{name} is not valid JSON: {error}") from error
    if b"\\u" in data:
        _refuse_surrogates(value, name)
    if not isinstance(value, dict):
        kind = "null" if value is None else type(value).__name__
        raise PlanDocumentError("not-an-object", f"{name} holds {kind} where a JSON object is required")
    return value


def _decoded(text: str, **hooks: Any) -> Any:
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, **hooks)


def _members(value: Any) -> int:
    """The members of all objects in a decoded value."""
    count = 0
    containers = [value]
    while containers:
        inner = containers.pop()
        if type(inner) is dict:
            count += len(inner)
            inner = inner.values()
        elif type(inner) is not list:
            continue
        containers += [item for item in inner if type(item) is dict or type(item) is list]
    return count


class _DuplicateKey(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        raise _DuplicateKey(shown(next(name for name in names if names.count(name) > 1)))
    return result


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{shown(text)} is too large a number")
    return value


def _refuse_surrogates(value: Any, name: str) -> None:
    # Half a UTF-16 pair has no UTF-8 form: what holds one could be read but never written again.
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise PlanDocumentError("bad-json", f"{name} holds a text with half a surrogate pair") from error


def _refuse_depth(structure: bytes, name: str) -> None:
    brackets = structure.translate(_SQUARE, _NOT_BRACKETS)
    # Each pass removes the innermost level everywhere, at the speed of bytes.replace: a loop over the brackets in
    # Python took 17 s for 16 MiB of them.
    for _ in range(MAX_DEPTH):
        brackets = brackets.replace(b"[]", b"")
    # What is left without a pair is unbalanced and json's to refuse, unless it alone is too deep for its recursion.
    if b"[]" in brackets or brackets.count(b"[") > MAX_DEPTH:
        raise PlanDocumentError("too-deep", f"{name} nests deeper than {MAX_DEPTH} levels; that is no plan document")
