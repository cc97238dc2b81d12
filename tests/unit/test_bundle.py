"""Bundles: what is sealed is what is verified."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import bundle, canonical
from harness.errors import HarnessError, UsageError
from harness.journal import Journal, parse
from harness.report.summary import NEWCOMER, NEWCOMER_AT_FIRST
from harness.verify import verify
from tests.builders import good_legs, small_plan, write_bundle

PLAN = small_plan()


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("bundle") / "run", PLAN, good_legs(PLAN, scale_a=1.05))


@pytest.fixture
def copy(sealed: Path, tmp_path: Path) -> Iterator[Path]:
    yield Path(shutil.copytree(sealed, tmp_path / "run"))


def files(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def test_verify_gives_the_outcome_that_was_sealed(sealed: Path) -> None:
    found = verify(sealed)
    assert found.outcome == "FAIL"
    assert found.faults == ()
    assert found.digest == canonical.sha256_file(sealed / "manifest.json")


def test_a_flipped_byte_of_any_non_empty_file_is_tampered_and_names_the_file(sealed: Path, copy: Path) -> None:
    names = [name for name in files(sealed) if (sealed / name).stat().st_size]
    assert len(names) > 20
    for name in names:
        original = (sealed / name).read_bytes()
        for position in {0, len(original) // 2, len(original) - 1}:
            altered = bytearray(original)
            altered[position] ^= 1
            (copy / name).write_bytes(altered)
            found = verify(copy)
            assert found.outcome == "TAMPERED", (name, position)
            assert any(fault.startswith(f"{name}:") for fault in found.faults), (name, position, found.faults)
        (copy / name).write_bytes(original)
    assert verify(copy).outcome == "FAIL"


def test_a_removed_and_an_added_file_are_named(copy: Path) -> None:
    (copy / "legs" / PLAN.legs[-1].name / "requests.jsonl.gz").unlink()
    (copy / "extra.txt").write_text("x")
    found = verify(copy)
    assert found.outcome == "TAMPERED"
    assert any("requests.jsonl.gz: missing" in fault for fault in found.faults)
    assert any("extra.txt: not part" in fault for fault in found.faults)


def test_a_link_in_a_bundle_is_refused(copy: Path) -> None:
    target = copy / "legs" / PLAN.legs[0].name / "leg.json"
    moved = copy.parent / "elsewhere.json"
    target.rename(moved)
    target.symlink_to(moved)
    found = verify(copy)
    assert found.outcome == "TAMPERED"
    assert "link" in found.faults[0]


def test_a_forged_verdict_with_a_fresh_seal_is_found_by_recomputation(copy: Path) -> None:
    forged = (copy / "verdict.json").read_bytes().replace(b'"outcome":"FAIL"', b'"outcome":"PASS"')
    (copy / "verdict.json").write_bytes(forged)
    for name in bundle.SEAL:
        (copy / name).unlink()
    bundle.seal(copy)
    found = verify(copy)
    assert found.outcome == "TAMPERED"
    assert any(fault.startswith("verdict.json:") for fault in found.faults)


def test_an_unsealed_folder_is_bad_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no seal"):
        verify(tmp_path)


def test_nothing_in_a_bundle_is_overwritten(tmp_path: Path) -> None:
    bundle.write_new(tmp_path / "a.json", b"1\n")
    with pytest.raises(HarnessError) as caught:
        bundle.write_new(tmp_path / "a.json", b"2\n")
    assert caught.value.code == "would-overwrite"
    assert (tmp_path / "a.json").read_bytes() == b"1\n"


def test_a_run_that_was_killed_between_legs_is_void_and_its_legs_stay_readable(tmp_path: Path) -> None:
    root = write_bundle(tmp_path / "run", PLAN, good_legs(PLAN)[:4])
    found = verify(root)
    assert found.outcome == "VOID"
    assert found.verdict is not None
    assert "legs-complete" in found.verdict["void"]
    assert len(bundle.read_legs(root, PLAN)) == 4


def test_a_journal_line_cut_by_a_crash_is_told_from_a_changed_one(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    writer = Journal(path)
    for name in ("start", "leg", "end"):
        writer.write(name)
    data = path.read_bytes()
    assert [event["event"] for event in parse(data)] == ["start", "leg", "end"]
    with pytest.raises(HarnessError) as cut:
        parse(data[:-5])
    assert cut.value.code in ("cut-line", "bad-json")
    lines = data.splitlines(keepends=True)
    with pytest.raises(HarnessError) as chain:
        parse(lines[0] + lines[2])
    assert chain.value.code == "journal-chain"


def test_the_report_says_what_a_reviewer_needs(sealed: Path) -> None:
    report = (sealed / "report.md").read_text()
    assert "FAIL (non-binding)" in report
    assert "env VT_FP4_DIRECT_SF: 1 against 0" in report
    assert NEWCOMER in report
    assert "**miss**" in report
    assert "workload rehearsal is a rehearsal" in report


def test_a_report_in_the_words_of_the_first_bundles_is_as_it_was_sealed_and_one_in_other_words_is_not(
    sealed: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(sealed, tmp_path / "copy"))
    page = copy / "report.md"
    page.write_text(page.read_text().replace(NEWCOMER, NEWCOMER_AT_FIRST))
    assert verify(copy).faults == ()
    page.write_text(page.read_text().replace("about 3 pass", "about 9 pass"))
    assert verify(copy).faults == ("report.md: is not what the verdict gives",)


def test_processes_that_the_keeper_had_to_end_void_the_run(tmp_path: Path) -> None:
    found = verify(write_bundle(tmp_path / "run", PLAN, good_legs(PLAN), drained=2))
    assert found.outcome == "VOID"
    assert found.verdict is not None
    assert found.verdict["void"] == ["lease-released"]
