"""Kernel launches out of a profiler's file: an Nsight Systems SQLite export, or a torch profiler's Chrome trace."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

from gates.g3 import Trace
from harness.errors import HarnessError

__all__ = ["read_nsys", "read_torch"]

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
GZIP = b"\x1f\x8b"


def read_nsys(path: Path) -> Trace:
    """Kernels of an `nsys export --type sqlite` file. HarnessError `bad-trace` where it is none or holds no kernels."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as link:
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
