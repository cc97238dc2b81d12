"""Kernel counts out of traces, and what a trace must show."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gates import g3
from harness import traces
from harness.errors import HarnessError

GEMM = "void cutlass::device_kernel<nvfp4_gemm>(Params)"
FAMILY = g3.Family("fp4_gemm", "nvfp4_gemm", g3.SEED_27B["fp4_gemm"])


def failed(trace: g3.Trace, forwards: int = 2) -> set[str]:
    return {check.code for check in g3.checks(trace, [FAMILY], forwards, "trace") if not check.ok}


def nsys(path: Path, gemms: int, *, node: int | None = 7, graphs: int = 2, said: str = "all well") -> Path:
    """An export with the tables and columns that are read; real ones have more."""
    with closing(sqlite3.connect(path)) as link:
        link.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        link.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, demangledName INTEGER, graphNodeId INTEGER)"
        )
        link.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER)")
        link.execute("CREATE TABLE DIAGNOSTIC_EVENT (text TEXT)")
        link.execute("INSERT INTO StringIds VALUES (1, ?)", (GEMM,))
        rows = [(number, 1, node) for number in range(gemms)]
        link.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?)", rows)
        link.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (?)", [(n,) for n in range(graphs)])
        link.execute("INSERT INTO DIAGNOSTIC_EVENT VALUES (?)", (said,))
        link.commit()
    return path


def test_208_gemms_a_forward_pass_and_one_less_does_not(tmp_path: Path) -> None:
    whole = traces.read_nsys(nsys(tmp_path / "whole.sqlite", 416))
    assert whole == g3.Trace({GEMM: 416}, 2, 416)
    assert failed(whole) == set()
    assert failed(traces.read_nsys(nsys(tmp_path / "short.sqlite", 415))) == {"kernels-fp4_gemm"}
    assert failed(whole, forwards=0) == {"kernels-fp4_gemm"}


def test_a_trace_of_graphs_without_their_nodes_or_with_lost_events_fails(tmp_path: Path) -> None:
    hidden = traces.read_nsys(nsys(tmp_path / "hidden.sqlite", 416, node=None))
    assert failed(hidden) == {"trace-nodes"}
    words = "Not all CUDA events might have been collected."
    assert failed(traces.read_nsys(nsys(tmp_path / "lost.sqlite", 416, said=words))) == {"trace-whole"}


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_torch_trace_counts_kernels_alone(tmp_path: Path, pack: type[bytes]) -> None:
    events = [{"cat": "kernel", "name": GEMM}] * 3 + [{"cat": "cpu_op", "name": GEMM}, {"name": "x"}]
    (tmp_path / "t.json").write_bytes(pack(json.dumps({"traceEvents": events}).encode()))
    assert traces.read_torch(tmp_path / "t.json").kernels == {GEMM: 3}


def test_an_empty_trace_and_a_naive_kernel_fail() -> None:
    assert failed(g3.Trace({}), forwards=1) == {"trace-kernels", "kernels-fp4_gemm"}
    assert failed(g3.Trace({GEMM: 416, "matmul_fp4_naive": 1})) == {"kernels-forbidden"}


def test_what_is_no_trace_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"not a trace at all")
    for read in (traces.read_nsys, traces.read_torch):
        with pytest.raises(HarnessError, match="bad: "):
            read(tmp_path / "bad")


def test_a_trace_file_in_a_timed_root_is_found() -> None:
    assert g3.untraced(["legs/a/leg.json", "legs/a/requests.jsonl.gz"], "run").ok
    for name in ("legs/a/run.nsys-rep", "x.sqlite", "w.pt.trace.json.gz"):
        check = g3.untraced(["plan.json", name], "run")
        assert (check.ok, check.seen) == (False, name)
