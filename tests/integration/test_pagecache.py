"""The real page cache. Files lie on the disk that holds pytest's folder; on tmpfs nothing can be dropped."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import HarnessError
from harness.telemetry import pagecache

SIZE = 3 * 1024 * 1024 + 17  # a last page that is only partly used


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "model.bin").write_bytes(os.urandom(SIZE))
    return folder


def resident(path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return pagecache.resident_bytes(descriptor)
    finally:
        os.close(descriptor)


def test_dirty_pages_are_written_and_then_dropped(weights: Path) -> None:
    pages = -(-SIZE // mmap.PAGESIZE) * mmap.PAGESIZE
    report = pagecache.drop([weights])
    assert (report.resident_before_bytes, report.resident_after_bytes, report.succeeded) == (pages, 0, True)
    assert (report.file_count, report.logical_bytes, report.failures()) == (1, SIZE, "")
    assert resident(weights / "model.bin") == 0


def test_reading_brings_pages_back_and_looking_does_not(weights: Path) -> None:
    pagecache.drop([weights])
    assert resident(weights / "model.bin") == resident(weights / "model.bin") == 0
    (weights / "model.bin").read_bytes()
    assert resident(weights / "model.bin") >= SIZE


def test_a_mapped_file_is_not_dropped_and_its_user_is_named(weights: Path) -> None:
    with (weights / "model.bin").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        sum(mapped[:: mmap.PAGESIZE])
        report = pagecache.drop([weights], pause=lambda seconds: None)
    assert not report.succeeded and report.resident_after_bytes
    (one,) = report.files
    assert (one.mapped_by, one.attempts) == ((os.getpid(),), 3)
    assert f"still-resident: {one.resident_after_bytes} bytes, mapped by pid {os.getpid()}" in report.failures()


def test_links_are_followed_and_an_inode_counts_once(weights: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "model.safetensors").symlink_to(weights / "model.bin")
    (snapshot / "again").hardlink_to(weights / "model.bin")
    (snapshot / "loop").symlink_to(snapshot)
    report = pagecache.drop([snapshot, weights])
    assert (report.file_count, report.duplicate_inode_count, report.logical_bytes) == (1, 2, SIZE)
    assert [(one.root, one.path) for one in report.files] == [(0, "again")]
    assert report.succeeded


def test_the_inventory_digest_knows_names_and_sizes_but_not_where_they_lie(weights: Path, tmp_path: Path) -> None:
    first = pagecache.drop([weights]).inventory_sha256
    moved = weights.rename(tmp_path / "elsewhere")
    assert pagecache.drop([moved]).inventory_sha256 == first
    (moved / "log.txt").write_text("an output under a dropped root")
    assert pagecache.drop([moved]).inventory_sha256 != first


def test_a_single_file_may_be_a_root(weights: Path) -> None:
    report = pagecache.drop([weights / "model.bin"])
    assert [one.path for one in report.files] == ["model.bin"]


def test_an_empty_file_is_no_obstacle(weights: Path) -> None:
    (weights / "empty").touch()
    report = pagecache.drop([weights])
    assert report.succeeded and report.file_count == 2


@pytest.mark.parametrize("broken", [False, True])
def test_a_missing_file_or_a_broken_link_is_named(weights: Path, broken: bool) -> None:
    absent = weights / "absent"
    if broken:
        absent.symlink_to("nowhere")
    with pytest.raises(HarnessError, match="absent from the page cache") as caught:
        pagecache.drop([weights if broken else absent])
    assert caught.value.code == "cache-root"


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_a_file_whose_residency_is_not_told_is_unknown_and_not_claimed(weights: Path) -> None:
    code = (
        "import os, sys, json\nfrom pathlib import Path\nfrom harness.telemetry import pagecache\n"
        "pagecache.drop([Path(sys.argv[1])])\nfolder = os.open(sys.argv[1], os.O_RDONLY)\nos.fchdir(folder)\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "print(json.dumps(pagecache.drop([Path('model.bin')]).to_json()))\n"
    )
    repository = Path(pagecache.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code, str(weights)], cwd=repository, capture_output=True, text=True, check=True
    )
    assert '"resident_after_bytes": null' in done.stdout and '"succeeded": false' in done.stdout
    assert "mincore-not-permitted" in done.stdout


def test_whether_a_drop_would_be_proven_is_told_without_dropping(weights: Path) -> None:
    (weights / "model.bin").read_bytes()
    before = resident(weights / "model.bin")
    assert pagecache.droppable(weights) == pagecache.Droppable(1, True, ())
    with (weights / "model.bin").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        assert pagecache.droppable(weights).mapped_by == (os.getpid(),)
    assert resident(weights / "model.bin") == before > 0
