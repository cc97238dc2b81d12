"""The facts of this machine as the program prints them, and the table made of them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness.doctor import facts
from harness.errors import UsageError

REPOSITORY = Path(facts.__file__).parents[2]


def told(folder: Path, *more: object) -> dict[str, Any]:
    argv = [sys.executable, "-m", "harness.doctor.facts", "--lease", folder / "gpu", "--state-dir", folder / "state"]
    done = subprocess.run([*map(str, argv), *map(str, more)], capture_output=True, check=True, cwd=REPOSITORY)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def doctor(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    own = [f"host.lease_path={folder / 'gpu'}", f"host.state_dir={folder / 'state'}", f"host.cache_dir={folder / 'c'}"]
    argv = [sys.executable, "-m", "harness", "doctor", *own, *more]
    return subprocess.run(argv, capture_output=True, text=True, check=False, cwd=REPOSITORY)


def test_the_facts_are_one_document_and_asking_leaves_nothing_behind(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "w.bin").write_bytes(b"x" * 8192)
    before = sorted(tmp_path.rglob("*"))
    found = told(tmp_path, "--weights", weights, "--weights", tmp_path / "none")
    assert found["format"] == facts.FORMAT and found["lease"]["held"] is False
    assert found["weights"][0]["files"] == 1 and found["weights"][0]["told"] is True
    assert found["weights"][1]["reason"] == "not there yet"
    assert found["tools"].keys() == set(facts.TOOLS) and found["host"]["mem_available_kib"] > 0
    assert all(path is None or Path(path).is_absolute() for path in found["tools"].values())
    assert sorted(tmp_path.rglob("*")) == before


def test_a_port_that_somebody_has_is_a_bad_row_and_exit_code_1(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = doctor(tmp_path, f"host.port={port}", "--json")
    assert done.returncode == 1, done.stderr
    bad = [row for row in json.loads(done.stdout)["rows"] if row["verdict"] == "bad"]
    assert f"port {port}" in [row["what"] for row in bad] and all(row["do"] for row in bad)


def test_the_table_names_each_row_and_counts_what_is_to_mend(tmp_path: Path) -> None:
    done = doctor(tmp_path, "host.port=1")
    rows = json.loads(doctor(tmp_path, "host.port=1", "--json").stdout)["rows"]
    assert all(row["what"].split()[0] in done.stdout for row in rows)
    assert f"{sum(row['verdict'] == 'bad' for row in rows)} to mend before a run" in done.stdout


def test_a_bad_key_is_bad_usage(tmp_path: Path) -> None:
    assert doctor(tmp_path, "host.prot=1").returncode == UsageError.exit_code


def test_the_tightest_limit_of_all_groups_above_counts(tmp_path: Path) -> None:
    for folder, memory, cpu in (
        ("", "max", "max 100000"),
        ("a", "4096", "max 100000"),
        ("a/b", "8192", "150000 100000"),
    ):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "memory.max").write_text(memory)
        (tmp_path / folder / "cpu.max").write_text(cpu)
    assert facts.limits(tmp_path, "/a/b") == (4096, 1.5)
    assert facts.limits(tmp_path, "/gone/deeper") == (None, None)
