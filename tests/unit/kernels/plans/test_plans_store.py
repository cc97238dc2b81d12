from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from kernels.errors import PlanDocumentError
from kernels.plans import store


def refusal(path: Path, limit: int = store.MAX_BYTES) -> str:
    with pytest.raises(PlanDocumentError, match=path.name) as caught:
        store.read(path, limit)
    return caught.value.code


def test_what_is_published_is_read_and_parents_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "plans.json"
    store.publish(path, b"one")
    store.publish(path, b"two")
    assert store.read(path) == b"two"
    assert [entry.name for entry in path.parent.iterdir()] == ["plans.json"]


def test_an_absent_file_is_none_and_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    assert store.read(tmp_path / "absent") is None
    assert store.read(tmp_path / "dangling") is None


def test_a_link_to_a_document_is_followed_when_reading_and_replaced_when_publishing(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert store.read(tmp_path / "link") == b"old"
    store.publish(tmp_path / "link", b"new")
    assert (tmp_path / "real").read_bytes() == b"old"
    assert not (tmp_path / "link").is_symlink()


def test_whatever_is_no_regular_file_is_refused_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    (tmp_path / "directory").mkdir()
    for path in (*tmp_path.iterdir(), Path("/dev/zero")):
        assert refusal(path) == "not-a-file"
        with pytest.raises(PlanDocumentError) as caught:
            store.publish(path, b"x")
        assert caught.value.code in {"not-a-file", "unwritable"}
    assert {entry.name for entry in tmp_path.iterdir()} == {"fifo", "link", "socket", "directory"}


def test_a_file_above_the_limit_is_refused_and_one_at_the_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "big"
    path.write_bytes(b"12345")
    assert store.read(path, 5) == b"12345"
    assert refusal(path, 4) == "too-large"


def test_a_huge_sparse_file_is_refused_without_being_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(2**40)
    assert refusal(path) == "too-large"


def test_a_path_below_a_file_is_unreadable_and_unwritable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    path = tmp_path / "file" / "plans.json"
    assert refusal(path) == "unreadable"
    with pytest.raises(PlanDocumentError) as caught:
        store.publish(path, b"x")
    assert caught.value.code == "unwritable"


@pytest.mark.parametrize("name", ["x\0y", "n" * 300])
def test_a_name_the_system_cannot_hold_is_an_error_of_ours(tmp_path: Path, name: str) -> None:
    with pytest.raises(PlanDocumentError):
        store.read(tmp_path / name)
    with pytest.raises(PlanDocumentError):
        store.publish(tmp_path / name, b"x")
    assert list(tmp_path.iterdir()) == []


def test_the_mode_follows_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        store.publish(tmp_path / "plans.json", b"x")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "plans.json").stat().st_mode) == 0o640


def test_a_failed_replacement_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plans.json"
    store.publish(path, b"old")

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(PlanDocumentError, match="No space left on device"):
        store.publish(path, b"new")
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("plans.json", b"old")]


def test_a_reader_sees_whole_documents_only(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    documents = (b"a" * 300_000, b"b" * 500_000)
    store.publish(path, documents[0])
    seen: set[bytes | None] = set()
    done = threading.Event()

    def read_on() -> None:
        while not done.is_set():
            seen.add(store.read(path))

    reader = threading.Thread(target=read_on)
    reader.start()
    try:
        for turn in range(20):
            store.publish(path, documents[turn % 2])
    finally:
        done.set()
        reader.join()
    assert seen <= set(documents)
    assert [entry.name for entry in tmp_path.iterdir()] == ["plans.json"]


def test_a_file_that_becomes_a_fifo_before_it_is_opened_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plans.json"
    path.write_bytes(b"x")
    really_open = os.open

    def swap_then_open(name: Path, flags: int) -> int:
        path.unlink()
        os.mkfifo(path)
        return really_open(name, flags)

    monkeypatch.setattr(os, "open", swap_then_open)
    codes: list[str] = []
    reader = threading.Thread(target=lambda: codes.append(refusal(path)), daemon=True)
    reader.start()
    reader.join(30)
    assert codes == ["not-a-file"]
