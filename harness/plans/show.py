"""`plans show`: what a document says, whatever machine it is of."""

from __future__ import annotations

import argparse

from harness.errors import EXIT_PASS
from harness.plans.loading import PlanFile, load
from harness.plans.rendering import emit, fields, tactic_table

__all__ = ["describe", "show"]


def show(options: argparse.Namespace) -> int:
    found = load(options.file)
    emit(options, {"file": str(options.file), **found.to_json()}, describe(found))
    return EXIT_PASS


def describe(found: PlanFile) -> list[str]:
    """Format, counts, digest, metadata and the plans as a table of M against (N, K)."""
    shapes = {shape[1:] for shape in found.plans}
    buckets = {shape[0] for shape in found.plans}
    head = [
        ("file", found.path),
        ("format", found.title),
        ("plans", f"{len(found.plans)} ({len(buckets)} M buckets x {len(shapes)} shapes)"),
        ("foreign entries", found.foreign),
        ("selected-map SHA-256", found.map_sha256),
        *(("source SHA-256", f"{file.sha256}  {file.size} bytes  {file.path}") for file in found.files[:8]),
    ]
    if len(found.files) > 8:
        head.append(("", f"and {len(found.files) - 8} further files (--json lists them)"))
    stated = [("none", "")] if found.metadata is None else sorted((k, v) for k, v in found.metadata.items())
    lines = [*fields(head), *(f"note: {note}" for note in found.notes), "", "metadata"]
    lines += [f"  {line}" for line in fields(stated)]
    return [*lines, "", "tactic of each M bucket and N,K", *tactic_table(found.plans)] if found.plans else lines
