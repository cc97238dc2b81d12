"""`plans audit`: what the real FlashInfer would do with a file, entry by entry, and what this project does."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from typing import Any

from harness import canonical
from harness.errors import EXIT_FAIL, EXIT_PASS, UsageError
from harness.plans.loading import read_bytes
from harness.plans.rendering import aligned, emit, fields
from kernels.plans.audit import METADATA_FIELDS, Audit, Row, assumed_environment
from kernels.plans.audit import audit as audited
from kernels.plans.flashinfer import GB10_ORACLE

__all__ = ["audit"]

_SHOWN = 24
_KEY_WIDTH = 60


def audit(options: argparse.Namespace) -> int:
    """0 where every FP4 entry is a hit on both sides, 1 otherwise. KernelError for a file that cannot be read."""
    if options.file.is_dir():
        text = f"{options.file} is a directory; audit takes the file that FlashInfer opens"
        raise UsageError("is-a-directory", f"{text}, such as {options.file / 'autotune_configs.json'}")
    data = read_bytes(options.file)
    found = audited(data, options.version, _environment(options, data), str(options.file), options.runners)
    emit(options, _document(options, data, found), _lines(options, found))
    return EXIT_PASS if found.agreed else EXIT_FAIL


def _environment(options: argparse.Namespace, data: bytes) -> dict[str, str]:
    names = METADATA_FIELDS[options.version]
    assumed = assumed_environment(data, options.version)
    if options.target == "gb10":
        assumed |= {name: value for name, value in GB10_ORACLE.stated().items() if name != "flashinfer_version"}
    unknown = sorted(name for name, _ in options.env if name not in names)
    if unknown:
        raise UsageError("unknown-field", f"--env {unknown[0]}: FlashInfer {options.version} has {', '.join(names)}")
    return {**assumed, **dict(options.env)}


def _document(options: argparse.Namespace, data: bytes, found: Audit) -> dict[str, Any]:
    prediction = found.prediction
    return {
        "agreed": found.agreed,
        "counts": found.counts(),
        "duplicates": list(prediction.duplicates),
        "entries": [_entry(row) for row in found.rows],
        "environment": dict(found.environment),
        "file": str(options.file),
        "file_sha256": canonical.sha256_bytes(data),
        "installed": len(prediction.installed),
        "load": prediction.load,
        "load_detail": prediction.detail,
        "load_error": prediction.error,
        "refusal": None if found.refusal is None else {"code": found.refusal[0], "message": found.refusal[1]},
        "runners": list(prediction.runners),
        "summary": found.summary(),
        "version": prediction.version,
    }


def _entry(row: Row) -> dict[str, Any]:
    shape = row.entry.shape
    return {
        "detail": row.entry.detail,
        "fate": row.entry.fate,
        "fp4": row.entry.fp4,
        "key": row.entry.key,
        "ours": row.ours,
        "reason": row.reason,
        "shape": None if shape is None else dict(zip(("m", "n", "k"), shape, strict=True)),
        "value": _value(row),
    }


def _value(row: Row) -> str:
    """The value as JSON text, so that NaN and what else FlashInfer reads can be shown."""
    return json.dumps(row.entry.value)


def _lines(options: argparse.Namespace, found: Audit) -> Iterable[str]:
    prediction = found.prediction
    outcome = {
        "loaded": f"loads {prediction.detail}",
        "ignored": "ignores the whole file",
        "raises": f"raises {prediction.error}",
    }[prediction.load]
    head = [
        ("file", options.file),
        (f"FlashInfer {prediction.version}", outcome),
        ("this project", "takes it" if found.refusal is None else f"refuses it, {found.refusal[0]}"),
        ("runners", ", ".join(prediction.runners)),
    ]
    lines = fields(head)
    groups = _groups(row for row in found.rows if _remarkable(row))
    if groups:
        table = [_cells(rows) for rows in groups[:_SHOWN]]
        lines += ["", *aligned(("entry", "value", f"FlashInfer {prediction.version}", "this project"), table, range(4))]
    if len(groups) > _SHOWN:
        lines.append(f"and {sum(map(len, groups[_SHOWN:]))} further entries that are no hit (--json lists all)")
    counts = ", ".join(f"{count} {fate}" for fate, count in found.counts().items()) or "no FP4 entry"
    return [*lines, "", f"FP4 entries: {counts}", found.summary()]


def _remarkable(row: Row) -> bool:
    # What befalls every entry alike is said once, in the summary.
    return row.entry.fate not in ("hit", "foreign", "ignored", "not-loaded") or row.reason is not None


def _groups(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows with the same to say, together: one line of the table each."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault((row.entry.fate, row.entry.detail, row.ours, row.reason or ""), []).append(row)
    return list(found.values())


def _cells(rows: list[Row]) -> tuple[str, str, str, str]:
    row, entry = rows[0], rows[0].entry
    name = _short(entry.key) if entry.shape is None else "M={} N={} K={}".format(*entry.shape)
    if len(rows) > 1:
        name = f"{name} and {len(rows) - 1} more"
    fate = f"{entry.fate}: {entry.detail}" if entry.detail else entry.fate
    ours = row.ours if row.reason is None else f"{row.ours}: {row.reason}"
    return name, _short(_value(row)), fate, ours


def _short(text: str) -> str:
    return text if len(text) <= _KEY_WIDTH else f"{text[: _KEY_WIDTH - 1]}…"
