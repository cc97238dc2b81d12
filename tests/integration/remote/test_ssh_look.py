"""`doctor` and `inspect` over a real sshd: what is told of a host in whatever state it is, and that nothing changes."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import canonical, lease
from harness.errors import EXIT_FAIL, EXIT_PASS, EXIT_USAGE
from harness.holder import HolderRecord
from tests.integration.remote.conftest import Host, believe

Rows = dict[str, dict[str, Any]]


def doctor(host: Host, cwd: Path, *more: str) -> tuple[int, Rows]:
    """Exit code and rows by their names; of several with one name the last."""
    done = host.run("doctor", "--json", *more, cwd=cwd)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)["rows"]
    assert all(row["do"] for row in found if row["verdict"] == "bad"), found
    return done.returncode, {row["what"]: row for row in found}


def fingerprint(host: Host) -> str:
    key = host.root / "host_key.pub"
    return subprocess.run(["ssh-keygen", "-lf", str(key)], capture_output=True, text=True, check=True).stdout.split()[1]


def test_a_prepared_host_is_told_from_its_host_key_to_its_lease(host: Host, tmp_path: Path) -> None:
    with lease.acquire(host.lease, 1.0, HolderRecord.mine("another-run"), lambda _: None):
        code, rows = doctor(host, tmp_path)
    assert fingerprint(host) in rows["host key"]["seen"]
    for what in ("reachability", "host key", "clock skew", "this project there", "Python", "packages"):
        assert rows[what]["verdict"] == "ok", rows[what]
    for what in ("nvcc", "compute-sanitizer", "nsys", "nvidia-smi", "free disk", "MemAvailable", "load"):
        assert what in rows
    assert "another-run" in rows["lease"]["seen"]
    assert any(what.startswith("driver") for what in rows)
    assert str(host.home) in rows["free disk"]["seen"]
    assert code == (EXIT_FAIL if any(row["verdict"] == "bad" for row in rows.values()) else EXIT_PASS)
    shown = host.run("doctor", cwd=tmp_path).stdout
    assert f"host {host.name}" in shown and "clock skew" in shown


def test_a_host_on_which_nothing_is_tells_what_it_can_and_how_to_go_on(bare: Host, tmp_path: Path) -> None:
    before = sorted(bare.home.rglob("*"))
    code, rows = doctor(bare, tmp_path)
    assert code == EXIT_FAIL
    assert rows["this project there"]["do"] == "run: python -m harness host prepare host=bench"
    assert rows["lease"]["verdict"] == "ok" and "is free" in rows["lease"]["seen"]
    for what in ("Python", "nvcc", "nsys", "driver", "free disk", "MemAvailable", "load", "clock source"):
        assert what in rows
    assert rows["NVML, port, page cache"]["seen"] == "not looked at"
    with lease.acquire(bare.lease, 1.0, HolderRecord.mine("another-run"), lambda _: None):
        held = doctor(bare, tmp_path)[1]["lease"]
    assert held["verdict"] == "warn" and "is locked" in held["seen"] and "another-run" in held["seen"]
    assert sorted(bare.home.rglob("*")) == before


def test_each_step_of_the_way_that_fails_is_a_row(bare: Host, tmp_path: Path) -> None:
    code, rows = doctor(replace(bare, remote_python="/nowhere/python3"), tmp_path)
    assert code == EXIT_FAIL and rows["reachability"]["verdict"] == "ok"
    assert rows["Python"]["verdict"] == "bad" and "/nowhere/python3" in rows["Python"]["seen"]
    bare.stop()
    code, rows = doctor(bare, tmp_path)
    assert code == EXIT_FAIL and list(rows) == ["reachability"] and rows["reachability"]["verdict"] == "bad"
    (bare.root / "host_key").rename(bare.root / "old_key")
    believe(bare)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(bare.root / "host_key")], check=True)
    bare.start()
    code, rows = doctor(bare, tmp_path)
    assert code == EXIT_FAIL and list(rows) == ["host key"] and fingerprint(bare) in rows["host key"]["seen"]


def test_files_of_the_host_are_inspected_there_while_somebody_holds_the_lease(host: Host, tmp_path: Path) -> None:
    data = b"start\n[VT_FP4_CACHE] loaded=12\n\xb1 end"
    (host.home / "engine.log").write_bytes(data)
    name = str(host.home / "engine.log")
    good = canonical.sha256_bytes(data)
    with lease.acquire(host.lease, 1.0, HolderRecord.mine("another-run"), lambda _: None):
        done = host.run("inspect", "--match=VT_FP4", f"--expect-sha256={good}", name, cwd=tmp_path)
    assert done.returncode == EXIT_PASS, done.stdout + done.stderr
    assert f"{len(data)} bytes, 3 lines, SHA-256 {good}" in done.stdout
    assert f"{name}:2: [VT_FP4_CACHE] loaded=12" in done.stdout
    done = host.run("inspect", "--expect-size=1", "--expect-size=1", "--json", name, "absent", cwd=tmp_path)
    found = json.loads(done.stdout)["files"]
    assert done.returncode == EXIT_FAIL
    assert [one["faults"] for one in found] == [[f"{len(data)} bytes, expected 1"], ["No such file or directory"]]
    assert list(host.state.iterdir()) == [] if host.state.exists() else True


@pytest.mark.parametrize("words", [("--match=(", "file"), ()])
def test_an_inspection_that_cannot_be_meant_is_refused_before_anything_is_connected(
    bare: Host, tmp_path: Path, words: tuple[str, ...]
) -> None:
    bare.stop()
    done = bare.run("inspect", *words, cwd=tmp_path)
    assert done.returncode == EXIT_USAGE and "usage: " in done.stderr, done.stderr


def test_an_inspection_of_a_host_that_was_not_prepared_or_is_away_is_a_sentence(bare: Host, tmp_path: Path) -> None:
    done = bare.run("inspect", "file", cwd=tmp_path)
    assert done.returncode == EXIT_USAGE and "host prepare host=bench" in done.stderr
    bare.stop()
    done = bare.run("inspect", "file", cwd=tmp_path)
    assert done.returncode == EXIT_USAGE and done.stderr.startswith("unreachable"), done.stderr
