"""Evidence looked at and nothing else: digests, sizes and lines of files that may be anything."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from harness.cli import main
from harness.errors import UsageError
from harness.inspect import MAX_LINE, MAX_MATCHES, Expectation, expectations, inspect, lines_of, pattern_of

LOG = b"start\n[VT_FP4_CACHE] loaded=12\nnoise\n[VT_FP4_CACHE] saved=0\nlast line without its end"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "engine.log"
    path.write_bytes(LOG)
    return path


def test_a_file_is_told_by_size_digest_and_the_numbers_of_its_lines(log: Path) -> None:
    found = inspect(Expectation(str(log)), pattern_of(r"VT_FP4_CACHE\] (loaded|saved)"))
    assert (found.size, found.sha256, found.lines) == (len(LOG), hashlib.sha256(LOG).hexdigest(), 5)
    assert [(match.number, match.text) for match in found.matches] == [
        (2, "[VT_FP4_CACHE] loaded=12"),
        (4, "[VT_FP4_CACHE] saved=0"),
    ]
    assert found.faults == ()


def test_each_expectation_that_is_not_met_is_a_fault_of_its_own(log: Path) -> None:
    found = inspect(Expectation(str(log), "0" * 64, 3), pattern_of("absent"))
    assert len(found.faults) == 3
    assert found.faults[1] == f"{len(LOG)} bytes, expected 3"


def test_the_exit_code_tells_whether_all_is_as_expected(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = hashlib.sha256(LOG).hexdigest()
    assert main(["inspect", str(log), "--expect-sha256", good.upper(), "--expect-size", str(len(LOG))]) == 0
    assert main(["inspect", str(log), "--expect-size", "1"]) == 1
    assert f"FAULT: {len(LOG)} bytes, expected 1" in capsys.readouterr().out
    assert main(["inspect", str(log), "--match", "noise", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["files"][0]["matches"] == [{"number": 3, "text": "noise"}]


def test_a_missing_file_a_folder_and_a_fifo_are_findings_and_do_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    reasons = [inspect(Expectation(str(tmp_path / name)), None).faults for name in ("none", "", "fifo")]
    assert reasons == [("No such file or directory",), ("not a regular file",), ("not a regular file",)]


def test_bytes_that_are_not_text_and_lines_without_end_are_read_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "odd"
    path.write_bytes(b"\xff\xfe\n" + b"x" * (MAX_LINE + 5) + b"needle\nneedle\n")
    found = inspect(Expectation(str(path)), pattern_of("needle"))
    assert [match.number for match in found.matches] == [2, 3]
    assert (found.lines, found.size) == (3, path.stat().st_size)


def test_many_matches_are_counted_and_some_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"hit\n" * (MAX_MATCHES + 7))
    found = inspect(Expectation(str(path)), pattern_of("hit"))
    assert (found.matched, len(found.matches)) == (MAX_MATCHES + 7, MAX_MATCHES)
    assert lines_of(found)[-1].endswith("7 more lines match")


@pytest.mark.parametrize(
    ("files", "sha256", "sizes", "word"),
    [
        (["a", "b"], ["0" * 64], [], "1 times for 2 files"),
        (["a"], ["xyz"], [], "64 hexadecimal"),
        (["a"], [], [-1], "0 or more"),
    ],
)
def test_expectations_that_cannot_be_meant_are_usage_errors(
    files: list[str], sha256: list[str], sizes: list[int], word: str
) -> None:
    with pytest.raises(UsageError, match=word):
        expectations(files, sha256, sizes)


def test_a_pattern_that_is_none_is_a_usage_error(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(log), "--match", "("]) == 64
    assert "not a regular expression" in capsys.readouterr().err
