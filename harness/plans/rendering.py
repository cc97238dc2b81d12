"""What verbs print: plain aligned text for people, canonical JSON for programs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness import canonical
from harness.plans.loading import Shape

__all__ = ["aligned", "emit", "fields", "printable", "tactic_table"]


def emit(options: argparse.Namespace, document: Mapping[str, Any], lines: Iterable[str]) -> None:
    """Print `document` as canonical JSON if --json was typed, and `lines` otherwise."""
    if options.json:
        _write(canonical.dumps(_writable({"command": options.verb, **document})))
        return
    text = "".join(f"{printable(line)}\n" for line in lines)
    _write(text.encode(sys.stdout.encoding or "utf-8", "backslashreplace"))


def _write(data: bytes) -> None:
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # The reader has seen enough (`| head`); what the interpreter still flushes at exit must not fail either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _writable(value: Any) -> Any:
    """Half a surrogate pair has no UTF-8 form: FlashInfer reads it in a key, the system in a path."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {_writable(key): _writable(item) for key, item in value.items()}
    return [_writable(item) for item in value] if isinstance(value, list | tuple) else value


def printable(text: str) -> str:
    """`text` with control and unprintable characters escaped: a file's content must not steer a terminal."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def fields(values: Iterable[tuple[str, object]]) -> list[str]:
    """Names and values in two columns."""
    listed = [(name, str(value)) for name, value in values]
    width = max((len(name) for name, _ in listed), default=0)
    return [f"{name:<{width}}  {value}".rstrip() for name, value in listed]


def aligned(header: Sequence[str], rows: Iterable[Sequence[object]], left: Sequence[int] = ()) -> list[str]:
    """Columns as wide as they need be: numbers to the right, the columns in `left` to the left."""
    table = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(header))]

    def cell(text: str, column: int) -> str:
        return text.ljust(widths[column]) if column in left else text.rjust(widths[column])

    return ["  ".join(cell(text, column) for column, text in enumerate(line)).rstrip() for line in table]


def tactic_table(plans: Mapping[Shape, int], columns: int = 8) -> list[str]:
    """One line for each M bucket, one column for each (N, K), tactic ids inside; `-` where there is no plan.

    More than `columns` shapes become several tables, each with the M buckets that it has plans for.
    """
    shapes = sorted({shape[1:] for shape in plans})
    by_shape: dict[tuple[int, int], list[int]] = {}
    for m, n, k in sorted(plans):
        by_shape.setdefault((n, k), []).append(m)
    lines: list[str] = []
    for start in range(0, len(shapes), columns):
        some = shapes[start : start + columns]
        buckets = sorted({m for shape in some for m in by_shape[shape]})
        body = [[m, *(plans.get((m, *shape), "-") for shape in some)] for m in buckets]
        lines += [*([""] if start else []), *aligned(["M \\ N,K", *(f"{n},{k}" for n, k in some)], body)]
    return lines
