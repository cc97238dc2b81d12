"""`plans diff` and `plans merge`: two documents as maps."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.errors import EXIT_FAIL, EXIT_PASS, UsageError
from harness.plans.loading import Native, PlanFile, Shape, load, rows
from harness.plans.output import refuse_existing, refuse_source, write
from harness.plans.rendering import aligned, emit
from kernels.errors import shown
from kernels.plans import document as native
from kernels.plans.flashinfer_file import GENERATION, METADATA, generation, parse_upstream
from kernels.plans.flashinfer_key import RUNNER, claims_fp4, read_key

__all__ = ["Difference", "compare", "diff", "merge"]

RECORDS = "_records"


@dataclass(frozen=True)
class Difference:
    """Two maps by (M, N, K): shapes with another id (A's, B's), and those that only one of them has."""

    changed: Mapping[Shape, tuple[int, int]]
    only_a: Mapping[Shape, int]
    only_b: Mapping[Shape, int]
    same: int

    @property
    def equal(self) -> bool:
        return not (self.changed or self.only_a or self.only_b)


def compare(a: Mapping[Shape, int], b: Mapping[Shape, int]) -> Difference:
    both = sorted(a.keys() & b.keys())
    changed = {shape: (a[shape], b[shape]) for shape in both if a[shape] != b[shape]}
    only_a = {shape: a[shape] for shape in sorted(a.keys() - b.keys())}
    only_b = {shape: b[shape] for shape in sorted(b.keys() - a.keys())}
    return Difference(changed, only_a, only_b, len(both) - len(changed))


def diff(options: argparse.Namespace) -> int:
    a, b = load(options.a), load(options.b)
    _same_numbering(a, b)
    found = compare(a.plans, b.plans)
    changed = [{"a": x, "b": y, "k": k, "m": m, "n": n} for (m, n, k), (x, y) in found.changed.items()]
    document = {
        "a": _side(a),
        "b": _side(b),
        "changed": changed,
        "equal": found.equal,
        "only_a": rows(found.only_a),
        "only_b": rows(found.only_b),
        "same": found.same,
    }
    emit(options, document, _difference_lines(a, b, found))
    return EXIT_PASS if found.equal else EXIT_FAIL


def merge(options: argparse.Namespace) -> int:
    refuse_existing(options.out, options.force)
    refuse_source(options.out, options.a, options.b)
    a, b = load(options.a), load(options.b)
    _same_metadata(a, b)
    if a.native is not None and b.native is not None:
        data = _merged_native(a.native, b.native)
    else:
        data = _merged_upstream(a.data or b"", b.data or b"")
        parse_upstream(data, f"{a.path} with {b.path}")  # nothing is written that could not be read
    write(options.out, data, force=options.force)
    found = load(options.out)
    difference = compare(a.plans, b.plans)
    counts = {
        "plan_count": len(found.plans),
        "a_kept": len(difference.changed),
        "only_a": len(difference.only_a),
        "only_b": len(difference.only_b),
        "same": difference.same,
    }
    text = (
        f"{options.out}: {len(found.plans)} plans ({difference.same} equal in both, {len(difference.only_a)} only in A"
    )
    text += f", {len(difference.only_b)} only in B, {len(difference.changed)} different and taken from A)"
    document = {"a": _side(a), "b": _side(b), "map_sha256": found.map_sha256, "out": str(options.out), **counts}
    emit(options, document, [text, f"selected-map SHA-256 {found.map_sha256}"])
    return EXIT_PASS


def _side(found: PlanFile) -> dict[str, Any]:
    return {
        "file": str(found.path),
        "format": found.format,
        "map_sha256": found.map_sha256,
        "plan_count": len(found.plans),
    }


def _difference_lines(a: PlanFile, b: PlanFile, found: Difference) -> list[str]:
    lines = [f"{name} {side.path}: {side.title}, {len(side.plans)} plans" for name, side in (("A", a), ("B", b))]
    if found.equal:
        return [*lines, f"equal: {found.same} plans, selected-map SHA-256 {a.map_sha256}"]
    table: list[tuple[Shape, object, object]] = [(shape, x, y) for shape, (x, y) in found.changed.items()]
    table += [(shape, x, "-") for shape, x in found.only_a.items()]
    table += [(shape, "-", y) for shape, y in found.only_b.items()]
    lines += aligned(
        ("M", "N", "K", "A", "B"), [(*shape, x, y) for shape, x, y in sorted(table, key=lambda row: row[0])]
    )
    counts = f"{len(found.changed)} ids differ, {len(found.only_a)} only in A, {len(found.only_b)} only in B"
    return [*lines, f"different: {counts}, {found.same} equal"]


def _same_numbering(a: PlanFile, b: PlanFile) -> None:
    """UsageError `different-tactics`: ids of two tactic lists are not comparable."""
    runners = [RUNNER if found.native is None else found.native.tactics.runner for found in (a, b)]
    if runners[0] != runners[1]:
        text = f"{a.path} numbers tactics of {runners[0]}, {b.path} of {runners[1]}"
        raise UsageError("different-tactics", f"{text}; their ids cannot be compared")


def _same_metadata(a: PlanFile, b: PlanFile) -> None:
    for found in (a, b):
        if found.data is None:
            raise UsageError("is-a-directory", f"{found.path} is a directory ({found.title}); merge takes single files")
    if a.format != b.format:
        text = f"{a.path} is {a.title}, {b.path} is {b.title}"
        raise UsageError("different-formats", f"{text}; merge takes one format, import or export one of them first")
    first, second = dict(a.metadata or {}), dict(b.metadata or {})
    differing = [
        f"{name} ({shown(first.get(name))} in A, {shown(second.get(name))} in B)"
        for name in sorted(first.keys() | second.keys())
        if first.get(name) != second.get(name) or (name in first) != (name in second)
    ]
    if differing or (a.metadata is None) != (b.metadata is None):
        text = f"{a.path} and {b.path} were tuned in different environments: {', '.join(differing) or '_metadata'}"
        raise UsageError("metadata-differs", f"{text}; plans of two environments are never merged")


def _merged_native(a: Native, b: Native) -> bytes:
    plans = native.merge(a.document.plans, b.document.plans)
    # Unknown fields of a plan describe its tactic, so B's stay only where B's tactic does.
    of_b = {key: extra for key, extra in b.document.plan_fields.items() if plans[key] == b.document.plans[key]}
    merged = native.Document(plans, {**b.document.fields, **a.document.fields}, {**of_b, **a.document.plan_fields})
    return native.serialise_document(a.metadata, a.tactics, merged)


def _merged_upstream(a: bytes, b: bytes) -> bytes:
    """Everything of both files, other operations too; keys sorted as FlashInfer sorts them, no final newline."""
    first, second = json.loads(a), json.loads(b)
    beside = {}
    for name in (METADATA, RECORDS, GENERATION):
        sides = [side.pop(name) for side in (second, first) if name in side]
        if sides:
            beside[name] = {**sides[0], **sides[-1]} if isinstance(sides[-1], dict) else sides[-1]
    ours = {_identity(key) for key in first}
    kept = {key: value for key, value in second.items() if _identity(key) not in ours}
    entries = dict(sorted({**kept, **first}.items()))
    document = {**({METADATA: beside[METADATA]} if METADATA in beside else {}), **entries}
    if RECORDS in beside:
        document[RECORDS] = beside[RECORDS]
    if GENERATION in beside:
        document[GENERATION] = generation(document)
    return json.dumps(document, indent=2).encode()


def _identity(key: str) -> object:
    """A plan's shape: two spellings of one key are one plan. Anybody else's key as it is."""
    return read_key(key, "merge").shape if claims_fp4(key) else key
