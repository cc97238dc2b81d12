"""Kernel counts out of traces, what a trace must show, and how a profiler in a timed process is seen."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gates import kernel_traces
from harness import traces
from harness.errors import HarnessError
from harness.records import Trace

GEMM = "void cutlass::device_kernel<nvfp4_gemm>(Params)"
FAMILY = kernel_traces.Family("fp4_gemm", "nvfp4_gemm", kernel_traces.SEED_27B["fp4_gemm"])


def failed(trace: Trace, forwards: int = 2) -> set[str]:
    return {check.code for check in kernel_traces.checks(trace, [FAMILY], forwards, "trace") if not check.ok}


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
    assert whole == Trace({GEMM: 416}, 2, 416)
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
    assert failed(Trace({}), forwards=1) == {"trace-kernels", "kernels-fp4_gemm"}
    assert failed(Trace({GEMM: 416, "matmul_fp4_naive": 1})) == {"kernels-forbidden"}


def test_what_is_no_trace_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"not a trace at all")
    for read in (traces.read_nsys, traces.read_torch):
        with pytest.raises(HarnessError, match="bad: "):
            read(tmp_path / "bad")


def test_a_trace_file_in_a_timed_root_is_found() -> None:
    assert kernel_traces.untraced(["legs/a/leg.json", "legs/a/requests.jsonl.gz"], "run").ok
    for name in ("legs/a/run.nsys-rep", "x.sqlite", "w.pt.trace.json.gz"):
        check = kernel_traces.untraced(["plan.json", name], "run")
        assert (check.ok, check.seen) == (False, name)


def test_a_table_of_launches_says_what_the_trace_said(tmp_path: Path) -> None:
    trace = traces.read_nsys(nsys(tmp_path / "run.sqlite", 416))
    (tmp_path / f"trace-A{traces.TABLE}").write_bytes(traces.table(trace))
    assert traces.read(tmp_path / f"trace-A{traces.TABLE}") == trace
    (tmp_path / f"bad{traces.TABLE}").write_bytes(b'{"format":"another"}\n')
    with pytest.raises(HarnessError, match=r"is no table of kernels: .*another"):
        traces.read(tmp_path / f"bad{traces.TABLE}")


def test_reading_an_export_writes_nothing_beside_it(tmp_path: Path) -> None:
    path = nsys(tmp_path / "wal.sqlite", 2)
    with closing(sqlite3.connect(path)) as link:
        link.execute("PRAGMA journal_mode=WAL")
    before = sorted(tmp_path.iterdir())
    assert traces.read(path).kernels == {GEMM: 2}
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("argv", "env", "seen"),
    [
        (["/opt/nsys", "profile", "server"], {}, ["/opt/nsys"]),
        (["server", "--cuda-profile-graph-replays", "4"], {}, ["--cuda-profile-graph-replays"]),
        (["server"], {"VLLM_TORCH_PROFILER_DIR": "/tmp/t"}, ["VLLM_TORCH_PROFILER_DIR"]),
        (["server"], {"NVTX_INJECTION64_PATH": "/x.so"}, ["NVTX_INJECTION64_PATH"]),
        (
            ["server"],
            {"LD_PRELOAD": "/opt/nsys/libToolsInjection64.so"},
            ["LD_PRELOAD=/opt/nsys/libToolsInjection64.so"],
        ),
        (["server", "--port", "1"], {"VLLM_TORCH_PROFILER_DIR": "", "LD_PRELOAD": "/libjemalloc.so"}, []),
    ],
)
def test_a_profiler_is_seen_by_its_word_or_its_variable(argv: list[str], env: dict[str, str], seen: list[str]) -> None:
    assert kernel_traces.profilers(argv, env) == seen
