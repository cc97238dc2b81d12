from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness.canonical import loads, loads_lines
from harness.client.metrics import timing_axes
from harness.records import LoadReport, RequestRecord
from tests.servers.scripted import Request, ScriptedServer, Wire, complete


def write_spec(folder: Path, port: int, **changes: Any) -> Path:
    prompts = folder / "prompts.jsonl"
    rows = [{"index": i, "prompt_sha256": f"digest-{i}", "prompt_token_ids": [40_000 + i]} for i in range(6)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {
        "host": "127.0.0.1",
        "port": port,
        "path": "/v1/completions",
        "model": "gate",
        "prompts_file": str(prompts),
        "concurrency": 2,
        "warmups": 2,
        "max_tokens": 3,
        "out_dir": str(folder / "out"),
    }
    path = folder / "spec.json"
    path.write_text(json.dumps({**spec, **changes}))
    return path


def run_client(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness.client", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def answer(request: Request, wire: Wire) -> None:
    complete(wire)


def read_records(folder: Path) -> list[RequestRecord]:
    data = gzip.decompress((folder / "out" / "requests.jsonl.gz").read_bytes())
    return [RequestRecord.from_json(row) for row in loads_lines(data, "requests")]


def test_a_series_in_its_own_process_leaves_records_a_report_and_progress(tmp_path: Path) -> None:
    with ScriptedServer(answer) as server:
        done = run_client(str(write_spec(tmp_path, server.port, keep_text=True)))
    assert (done.returncode, done.stderr) == (0, "")
    progress = [json.loads(line) for line in done.stdout.splitlines()]
    assert progress[-1]["done"] == progress[-1]["total"] == 6
    records = read_records(tmp_path)
    report = LoadReport.from_json(loads((tmp_path / "out" / "load.json").read_bytes()))
    assert (len(records), report.requests, report.concurrency, report.warnings) == (6, 6, 2, ())
    assert all(axis.value is not None for axis in timing_axes(records, report.duration_ns).values())
    texts = list(loads_lines((tmp_path / "out" / "texts.jsonl").read_bytes(), "texts"))
    assert texts == [{"index": index, "text": " t0 t1 t2", "token_ids": None} for index in range(6)]


def test_neither_prompts_nor_paths_are_in_the_records(tmp_path: Path) -> None:
    with ScriptedServer(answer) as server:
        run_client(str(write_spec(tmp_path, server.port)))
    data = gzip.decompress((tmp_path / "out" / "requests.jsonl.gz").read_bytes())
    data += (tmp_path / "out" / "load.json").read_bytes()
    assert b"40000" not in data
    assert str(tmp_path).encode() not in data
    assert not (tmp_path / "out" / "texts.jsonl").exists()


def test_the_archive_carries_neither_time_nor_name(tmp_path: Path) -> None:
    with ScriptedServer(answer) as server:
        run_client(str(write_spec(tmp_path, server.port)))
    header = (tmp_path / "out" / "requests.jsonl.gz").read_bytes()[:10]
    assert header[3:8] == bytes(5)  # no optional fields, no time


def test_a_server_that_refuses_everything_is_a_series_carried_out(tmp_path: Path) -> None:
    def refuse(request: Request, wire: Wire) -> None:
        wire.raw(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")

    with ScriptedServer(refuse) as server:
        done = run_client(str(write_spec(tmp_path, server.port)))
    assert done.returncode == 0
    assert {record.error for record in read_records(tmp_path)} == {"http-503: Busy"}


def test_a_bad_spec_is_exit_64_with_a_sentence_and_nothing_is_sent(tmp_path: Path) -> None:
    with ScriptedServer(answer) as server:
        done = run_client(str(write_spec(tmp_path, server.port, concurrency="many")))
    assert done.returncode == 64
    assert done.stderr == "bad-spec: concurrency = 'many' in the client's spec must be of type int\n"
    assert server.requests == []


def test_no_spec_at_all_is_exit_64() -> None:
    done = run_client()
    assert done.returncode == 64
    assert "usage: python -m harness.client SPEC.json" in done.stderr


def test_the_client_runs_where_there_is_no_epoll_no_fcntl_and_no_kernel_stamp(tmp_path: Path) -> None:
    program = (
        "import select, sys\n"
        "sys.platform = 'elsewhere'\n"
        "sys.modules['fcntl'] = None\n"
        "del select.epoll\n"
        "from harness.client.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    with ScriptedServer(answer) as server:
        spec = write_spec(tmp_path, server.port)
        done = subprocess.run(
            [sys.executable, "-c", program, str(spec)], capture_output=True, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (0, "")
    report = LoadReport.from_json(loads((tmp_path / "out" / "load.json").read_bytes()))
    assert report.stamp_source == "loop"
    assert [record.error for record in read_records(tmp_path)] == [None] * 6
