from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import subprocess
import threading
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from kernels.errors import PlanDocumentError
from kernels.plans import store
from kernels.plans.sidelock import LIMIT_S, lock_path
from kernels.plans.system import BUSY, REAL, System
from kernels.plans.temporary import temporary_path


def refusal(path: Path, limit: int = store.MAX_BYTES) -> str:
    with pytest.raises(PlanDocumentError, match=path.name) as caught:
        store.read(path, limit)
    return caught.value.code


def contents(folder: Path) -> dict[str, bytes]:
    """What lies in a folder, the empty lock files apart."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith(".lock")}


def refused(path: Path, data: bytes = b"x", system: System = REAL) -> str:
    with pytest.raises(PlanDocumentError) as caught:
        store.publish(path, data, system=system)
    return caught.value.code


def failing(error: int, times: int, call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, but the first `times` calls of it fail."""
    left = [times]

    def attempt(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(error, os.strerror(error))
        return call(*arguments)

    return attempt


def recording(journal: list[tuple[str, str]]) -> System:
    """The real calls, each with its name and the path it acts on written to `journal`."""
    names: dict[int, str] = {}

    def recorded(name: str) -> Callable[..., Any]:
        call = getattr(REAL, name)

        def act(*arguments: Any) -> Any:
            subject = arguments[0]
            label = names.get(subject, "?") if isinstance(subject, int) else Path(subject).name
            journal.append((name, "TEMPORARY" if label.endswith(".tmp") else label))
            result = call(*arguments)
            if name == "open":
                names[result] = label
            return result

        return act

    return System(**{field.name: recorded(field.name) for field in fields(System)})


def test_what_is_published_is_read_and_parents_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "plans.json"
    store.publish(path, b"one")
    store.publish(path, b"two")
    assert store.read(path) == b"two"
    assert contents(path.parent) == {"plans.json": b"two"}


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
        assert refused(path) == "not-a-file"
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
    assert refused(path) == "unreadable"


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


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
def test_a_failed_replacement_leaves_the_old_document_and_no_temporary_file(tmp_path: Path, call: str) -> None:
    path = tmp_path / "plans.json"
    store.publish(path, b"old")
    real = getattr(REAL, call)

    def full_disk(target: Any, *rest: Any) -> Any:
        if call == "open" and not str(target).endswith(".tmp"):
            return real(target, *rest)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(PlanDocumentError, match="No space left on device"):
        store.publish(path, b"new", system=replace(REAL, **{call: full_disk}))
    assert contents(tmp_path) == {"plans.json": b"old"}


def test_a_short_write_is_continued(tmp_path: Path) -> None:
    system = replace(REAL, write=lambda descriptor, data: os.write(descriptor, data[:3]))
    store.publish(tmp_path / "plans.json", b"0123456789", system=system)
    assert contents(tmp_path) == {"plans.json": b"0123456789"}


def test_the_file_is_synced_before_the_rename_and_the_directory_after_it_and_then_it_is_read_back(
    tmp_path: Path,
) -> None:
    path = tmp_path / "new" / "plans.json"
    journal: list[tuple[str, str]] = []
    store.publish(path, b"x", system=recording(journal))
    kept = [item for item in journal if item[0] not in ("stat", "fstat", "close", "listdir")]
    assert kept == [
        ("mkdir", "new"),
        ("open", ".plans.json.lock"),
        ("open", ".plans.json.lock"),
        ("flock", ".plans.json.lock"),
        ("open", "TEMPORARY"),
        ("write", "TEMPORARY"),
        ("fsync", "TEMPORARY"),
        ("replace", "TEMPORARY"),
        ("open", "new"),
        ("fsync", "new"),
        ("open", tmp_path.name),
        ("fsync", tmp_path.name),
        ("open", "plans.json"),
        ("read", "plans.json"),
        ("read", "plans.json"),
        ("flock", ".plans.json.lock"),
    ]
    closed = journal.index(("close", "TEMPORARY"))
    assert journal.index(("fsync", "TEMPORARY")) < closed < journal.index(("replace", "TEMPORARY"))


@pytest.mark.parametrize("error", sorted(BUSY))
@pytest.mark.parametrize("call", ["stat", "read", "fsync", "replace"])
def test_a_busy_file_system_is_asked_again(tmp_path: Path, error: int, call: str) -> None:
    path = tmp_path / "plans.json"
    store.publish(path, b"old")
    waits: list[float] = []
    system = replace(REAL, sleep=waits.append, **{call: failing(error, 3, getattr(REAL, call))})
    store.publish(path, b"new", system=system)
    assert contents(tmp_path) == {"plans.json": b"new"}
    assert len(waits) == 3


def test_a_file_system_that_stays_busy_is_given_up_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    store.publish(path, b"old")
    waits: list[float] = []
    system = replace(REAL, sleep=waits.append, replace=failing(errno.EBUSY, 1000, os.replace))
    with pytest.raises(PlanDocumentError, match=os.strerror(errno.EBUSY)):
        store.publish(path, b"new", system=system)
    assert contents(tmp_path) == {"plans.json": b"old"}
    assert sum(waits) < 1


def test_a_foreign_writer_between_rename_and_read_back_is_merged_and_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    intrusions = [b"foreign"]

    def replaced_by_another(source: Path, target: Path) -> None:
        Path(source).replace(target)
        if intrusions:
            Path(target).write_bytes(intrusions.pop())

    system = replace(REAL, replace=replaced_by_another)
    assert store.update(path, lambda prior: (prior or b"") + b"+ours", system=system) == b"foreign+ours"


def test_a_file_that_never_holds_what_was_written_is_an_error(tmp_path: Path) -> None:
    def lost(source: Path, target: Path) -> None:
        Path(source).unlink()
        Path(target).write_bytes(b"rot")

    assert refused(tmp_path / "plans.json", system=replace(REAL, replace=lost)) == "read-back-differs"


def test_a_document_that_would_not_change_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    store.publish(path, b"same")
    journal: list[tuple[str, str]] = []
    assert store.update(path, lambda prior: prior or b"", system=recording(journal)) == b"same"
    assert {name for name, _ in journal} == {"stat", "open", "fstat", "read", "close"}


def test_a_refused_change_writes_nothing(tmp_path: Path) -> None:
    def refuse(prior: bytes | None) -> bytes:
        raise PlanDocumentError("bad-json", f"{prior!r}")

    with pytest.raises(PlanDocumentError, match=r"^None$"):
        store.update(tmp_path / "plans.json", refuse)
    assert list(tmp_path.iterdir()) == []


def test_a_document_too_large_to_be_read_back_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_BYTES", 4)
    assert refused(tmp_path / "plans.json", b"12345") == "too-large"
    assert contents(tmp_path) == {}


def test_a_loop_of_links_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    opened: list[Any] = []
    with pytest.raises(PlanDocumentError) as caught:
        store.read(tmp_path / "a", system=replace(REAL, open=opened.append))
    assert (caught.value.code, opened) == ("symlink-loop", [])
    assert refused(tmp_path / "a") == "symlink-loop"
    assert (tmp_path / "a").is_symlink()


def test_the_lock_is_a_file_beside_the_document_and_writers_wait_for_it(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    store.publish(path, b"old")
    lock = os.open(lock_path(path), os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    waited = threading.Event()

    def wait(seconds: float) -> None:
        waited.set()
        os.sched_yield()

    writer = threading.Thread(target=store.publish, args=(path, b"new"), kwargs={"system": replace(REAL, sleep=wait)})
    try:
        writer.start()
        assert waited.wait(30)
        assert store.read(path) == b"old"
    finally:
        os.close(lock)
        writer.join(30)
    assert contents(tmp_path) == {"plans.json": b"new"}


def test_a_lock_that_is_never_freed_is_an_error_after_a_bounded_wait(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    waits: list[float] = []
    system = replace(REAL, sleep=waits.append, flock=failing(errno.EAGAIN, 10**9, fcntl.flock))
    assert refused(path, system=system) == "locked"
    assert LIMIT_S <= sum(waits) < LIMIT_S + 1
    assert contents(tmp_path) == {}


def test_a_lock_file_that_was_deleted_meanwhile_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    removals = [1, 1]

    def locked_then_deleted(descriptor: int, operation: int) -> None:
        fcntl.flock(descriptor, operation)
        if removals:
            removals.pop()
            lock_path(path).unlink()

    store.publish(path, b"x", system=replace(REAL, flock=locked_then_deleted))
    assert contents(tmp_path) == {"plans.json": b"x"}
    assert lock_path(path).exists()


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_still_gets_whole_documents(tmp_path: Path, error: int) -> None:
    path = tmp_path / "plans.json"
    system = replace(REAL, flock=failing(error, 10**9, fcntl.flock))
    store.publish(path, b"one", system=system)
    assert store.update(path, lambda prior: (prior or b"") + b"two", system=system) == b"onetwo"
    assert contents(tmp_path) == {"plans.json": b"onetwo"}


def test_temporary_files_of_dead_writers_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    own = temporary_path(path)
    with subprocess.Popen(["/bin/true"]) as ended:
        pass
    pid, start, place, _ = own.name.removeprefix(".plans.json.").split("-")
    dead = tmp_path / f".plans.json.{ended.pid}-1-{place}-00000001.tmp"
    reused = tmp_path / f".plans.json.{pid}-{int(start) - 1}-{place}-00000002.tmp"
    elsewhere = tmp_path / f".plans.json.{pid}-{start}-000000000001-00000003.tmp"
    forgotten = tmp_path / f".plans.json.{pid}-{start}-000000000001-00000004.tmp"
    others = [tmp_path / name for name in (f".other.json.{dead.name[12:]}", ".plans.json.Xb3k2q", "plans.json.tmp")]
    for file in (own, dead, reused, elsewhere, forgotten, *others):
        file.write_bytes(b"half")
    os.utime(forgotten, (0, 0))
    store.publish(path, b"x")
    assert set(contents(tmp_path)) == {"plans.json", own.name, elsewhere.name, *(file.name for file in others)}


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
    assert set(contents(tmp_path)) == {"plans.json"}


def test_a_file_that_becomes_a_fifo_before_it_is_opened_does_not_block(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    path.write_bytes(b"x")

    def swap_then_open(name: Path, flags: int) -> int:
        path.unlink()
        os.mkfifo(path)
        return os.open(name, flags)

    codes: list[str] = []

    def read() -> None:
        with pytest.raises(PlanDocumentError) as caught:
            store.read(path, system=replace(REAL, open=swap_then_open))
        codes.append(caught.value.code)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(30)
    assert codes == ["not-a-file"]
