"""`plans freeze`: a read-only copy of a document, byte for byte, with its provenance beside it."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path

from harness import __version__, canonical
from harness.errors import EXIT_PASS, UsageError
from harness.plans.loading import load
from harness.plans.output import refuse_existing, refuse_source, write
from harness.plans.rendering import emit, fields

__all__ = ["PROVENANCE", "freeze"]

PROVENANCE = ".provenance.json"
MODE = 0o444


def freeze(options: argparse.Namespace) -> int:
    out: Path = options.out
    beside = out.with_name(out.name + PROVENANCE)
    for path in (out, beside):
        refuse_existing(path, options.force)
        refuse_source(path, options.file)
    found = load(options.file)
    if found.data is None:
        raise UsageError("is-a-directory", f"{options.file} is a directory ({found.title}); freeze takes a single file")
    provenance = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "document": out.name,
        "foreign": found.foreign,
        "format": found.format,
        "map_sha256": found.map_sha256,
        "metadata": None if found.metadata is None else dict(found.metadata),
        "plan_count": len(found.plans),
        "source_name": options.file.name,
        "source_sha256": canonical.sha256_bytes(found.data),
        "source_size": len(found.data),
        "tool": f"nvfp4-gates {__version__}",
    }
    # The provenance first: a document without one would look frozen, a provenance without its document cannot.
    write(beside, canonical.dumps(provenance), force=options.force, mode=MODE)
    write(out, found.data, force=options.force, mode=MODE)
    lines = fields(
        [
            ("frozen", out),
            ("provenance", beside),
            ("plans", len(found.plans)),
            ("SHA-256", provenance["source_sha256"]),
            ("selected-map SHA-256", found.map_sha256),
        ]
    )
    emit(options, {"file": str(options.file), "out": str(out), "provenance": str(beside), **provenance}, lines)
    return EXIT_PASS
