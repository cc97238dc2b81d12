"""Kernel launches out of a profiler's file: an Nsight Systems SQLite export, or a torch profiler's Chrome trace.

A trace too large for a bundle is kept as the table of its launches, which is read here, too. Standard library only.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from harness import canonical
from harness.errors import HarnessError
from harness.records import Trace

if TYPE_CHECKING:  # some Pythons are built without it, and only an SQLite export needs it
    import sqlite3

__all__ = ["NSYS", "TABLE", "form", "read", "read_nsys", "read_table", "read_torch", "table"]

# A file's form by its suffix, as bundles name their traces.
NSYS, TORCH, TORCH_GZ, TABLE = ".sqlite", ".pt.trace.json", ".pt.trace.json.gz", ".kernels.json"
FORMAT = "nvfp4-gates-kernels-v1"
SQLITE = b"SQLite format 3\x00"

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
GZIP = b"\x1f\x8b"


def form(data: bytes) -> str:
    """The suffix under which a trace with these first bytes is kept."""
    return NSYS if data.startswith(SQLITE) else TORCH_GZ if data.startswith(GZIP) else TORCH


def read(path: Path) -> Trace:
    """A trace of any form, told by the file's suffix as bundles name it. HarnessError `bad-trace`."""
    if path.name.endswith(TABLE):
        return read_table(path)
    return read_nsys(path) if path.name.endswith(NSYS) else read_torch(path)


def table(trace: Trace) -> bytes:
    """The launches of a trace without their times, as canonical JSON."""
    return canonical.dumps({"format": FORMAT, **asdict(trace), "faults": list(trace.faults)})


def read_table(path: Path) -> Trace:
    """What `table` wrote. HarnessError `bad-trace`."""
    document = canonical.loads(path.read_bytes(), path.name)
    try:
        if document["format"] != FORMAT:
            raise ValueError(f"its format is {document['format']!r}, not {FORMAT!r}")
        kernels = {str(name): int(count) for name, count in document["kernels"].items()}
        launches, nodes = document["graph_launches"], int(document["graph_nodes"])
        return Trace(kernels, None if launches is None else int(launches), nodes, tuple(map(str, document["faults"])))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HarnessError("bad-trace", f"{path.name} is no table of kernels: {error!r}") from error


def read_nsys(path: Path) -> Trace:
    """Kernels of an `nsys export --type sqlite` file. HarnessError `bad-trace` where it is none or holds no kernels."""
    import sqlite3

    try:
        # immutable: no lock, no journal, nothing is written beside a file of a bundle
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as link:
            return _nsys(link, path)
    except sqlite3.Error as error:
        raise HarnessError("bad-trace", f"{path.name}: {error}; give an `nsys export --type sqlite` file") from error


def _nsys(link: sqlite3.Connection, path: Path) -> Trace:
    tables = {str(row[0]) for row in link.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    graphs = link.execute(f"SELECT COUNT(*) FROM {GRAPHS}").fetchone()[0] if GRAPHS in tables else 0
    if KERNELS not in tables and not graphs:
        raise HarnessError("bad-trace", f"{path.name} has no table {KERNELS}: no CUDA kernel was traced")
    kernels: dict[str, int] = {}
    nodes = 0
    if KERNELS in tables:
        names = f"FROM {KERNELS} k JOIN StringIds s ON s.id = k.demangledName GROUP BY s.value"
        kernels = {str(name): int(count) for name, count in link.execute(f"SELECT s.value, COUNT(*) {names}")}
        columns = {str(row[1]) for row in link.execute(f"PRAGMA table_info({KERNELS})")}
        if "graphNodeId" in columns:
            nodes = int(link.execute(f"SELECT COUNT(*) FROM {KERNELS} WHERE graphNodeId > 0").fetchone()[0])
    return Trace(kernels, int(graphs), nodes, _lost(link, tables))


def _lost(link: sqlite3.Connection, tables: set[str]) -> tuple[str, ...]:
    """What the profiler itself says that it did not collect."""
    if "DIAGNOSTIC_EVENT" not in tables:
        return ()
    said = link.execute("SELECT text FROM DIAGNOSTIC_EVENT WHERE text LIKE '%might have been%'")
    return tuple(sorted({str(row[0]) for row in said}))


def read_torch(path: Path) -> Trace:
    """Kernels of a torch profiler's Chrome trace, plain or gzip. HarnessError `bad-trace` where it is none."""
    try:
        data = path.read_bytes()
        document = json.loads(gzip.decompress(data) if data.startswith(GZIP) else data)
        events = [event for event in document["traceEvents"] if event.get("cat") == "kernel"]
        kernels = Counter(str(event["name"]) for event in events)
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise HarnessError("bad-trace", f"{path.name}: {error!r}; give the trace of a torch profiler") from error
    return Trace(dict(kernels))
