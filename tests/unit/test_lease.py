from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from harness import holder, lease
from harness.errors import HarnessError, UsageError
from harness.holder import HolderRecord
from harness.telemetry import procfs
from harness.telemetry.procfs import ProcessId


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gpu"


def mine(run: str = "run-1") -> HolderRecord:
    return HolderRecord.mine(run)


def take(path: Path, run: str = "run-1") -> lease.Lease:
    return lease.acquire(path, 0, mine(run), lambda sentence: None)


def descriptors() -> list[str]:
    return sorted(entry.name for entry in Path("/proc/self/fd").iterdir())


def start_of(pid: int) -> int:
    found = procfs.identify(pid)
    assert found is not None
    return found.start_ticks


def refusal(path: Path) -> UsageError:
    with pytest.raises(UsageError) as caught:
        take(path)
    assert caught.value.exit_code == 64
    return caught.value


def test_a_new_lock_file_may_be_used_by_every_user_whatever_the_umask(path: Path) -> None:
    old = os.umask(0o077)
    try:
        take(path).release()
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o666
    assert holder.record_path(path).stat().st_mode & 0o777 == 0o666


def test_a_second_taker_is_told_who_holds_it_and_since_when(path: Path) -> None:
    with take(path, "run-7"):
        error = refusal(path)
    assert error.code == "lease-held"
    assert f"run run-7 ({holder.user_name(os.getuid())}, pid {os.getpid()} on {socket.gethostname()}) since 20" in str(
        error
    )


def test_a_released_lease_is_free_and_its_file_stays(path: Path) -> None:
    with take(path) as first:
        inode = path.stat().st_ino
    take(path).release()
    assert path.stat().st_ino == inode
    assert first.fd == -1


def test_release_may_be_called_twice(path: Path) -> None:
    held = take(path)
    held.release()
    again = take(path)
    held.release()
    assert lease.describe(path).held
    again.release()


def test_a_descriptor_that_a_child_has_keeps_the_lease(path: Path) -> None:
    held = take(path)
    copy = os.dup(held.fd)
    held.release()
    assert refusal(path).code == "lease-held"
    os.close(copy)
    take(path).release()


def test_the_token_grows_even_if_the_clock_went_back(path: Path) -> None:
    with take(path) as first:
        future = replace(first.holder, token=first.holder.token + 10**18)
    holder.write_record(path, future)
    with take(path) as second:
        assert second.holder.token == future.token + 1


STALE = {
    "another start time": {"start_ticks": 1},
    "another boot": {"boot_id": "0c1d"},
    "a dead pid": {"pid": 2**22 + 1},
    "another host": {"host": "elsewhere", "boot_id": "0c1d"},
}


@pytest.mark.parametrize("change", STALE.values(), ids=STALE)
def test_the_kernel_lock_decides_and_a_stale_record_only_informs(path: Path, change: dict[str, object]) -> None:
    path.touch()
    values = {**mine("old").to_json(), "since": "2026-07-01T00:00:00Z", "token": "5", "inode": "1:1"}
    # The pid of a living process that has nothing to do with the lease.
    values.update({"pid": os.getppid(), "start_ticks": start_of(os.getppid())}, **change)
    holder.write_record(path, HolderRecord.from_json(values))
    state = lease.describe(path)
    assert state.held is False and "last held by run old" in state.sentence
    take(path).release()


@pytest.mark.parametrize("text", [b"", b"1234\n", b"{", b"[]\n", b'{"run_id":1}\n', b"\xff\xfe"])
def test_text_that_is_no_record_stops_nobody(path: Path, text: bytes) -> None:
    path.write_bytes(text)
    holder.record_path(path).write_bytes(text)
    with take(path) as held:
        assert holder.read_record(path) == held.holder
    assert path.read_bytes() == text


def test_a_link_at_the_records_place_is_not_followed(path: Path) -> None:
    victim = path.with_name("victim")
    victim.write_text("precious")
    holder.record_path(path).symlink_to(victim)
    with take(path) as held:
        assert held.note is not None and "cannot be written" in held.note
    assert victim.read_text() == "precious"


def test_a_second_name_of_another_file_is_not_written(path: Path) -> None:
    victim = path.with_name("victim")
    victim.write_text("precious")
    holder.record_path(path).hardlink_to(victim)
    take(path).release()
    assert victim.read_text() == "precious"


def test_a_symbolic_link_is_refused(path: Path) -> None:
    path.symlink_to(path.with_name("target"))
    error = refusal(path)
    assert (error.code, "symbolic link" in str(error)) == ("lease-path", True)
    assert not path.with_name("target").exists()


def test_a_folder_is_refused(path: Path) -> None:
    path.mkdir()
    assert "is a folder" in str(refusal(path))


def test_a_pipe_is_refused_without_waiting_for_its_writer(path: Path) -> None:
    os.mkfifo(path)
    assert "not a regular file" in str(refusal(path))


def test_a_lock_without_its_folder_is_refused(path: Path) -> None:
    error = refusal(path / "gpu")
    assert (error.code, "No such file" in str(error)) == ("lease-path", True)


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        *((kind, "NFS") for kind in ("nfs", "nfs4")),
        *(("cifs", "CIFS"), ("9p", "9p"), ("virtiofs", "virtiofs"), ("fuse.sshfs", "fuse.sshfs"), ("fuse", "fuse")),
        *((kind, None) for kind in ("ext4", "tmpfs", "overlay", "btrfs", "fuse.fuse-overlayfs", "fuseblk", None)),
    ],
)
def test_file_systems_of_other_hosts_are_refused_and_local_ones_are_not(kind: str | None, word: str | None) -> None:
    found = lease.remote_filesystem(kind)
    assert found is None if word is None else word in str(found)


MOUNTS = """\
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 27 0:44 / /home rw,relatime - nfs4 server:/home rw,vers=4.2
41 27 0:44 / /home2 rw,relatime shared:7 master:3 - fuse.sshfs me@there:/ rw
42 27 0:45 / /odd\\040name rw - fuse.fuse-overlayfs fuse-overlayfs rw
cut off
"""


@pytest.mark.parametrize(
    ("mount_id", "device", "kind"),
    [
        ("40", os.makedev(0, 99), "nfs4"),
        ("42", os.makedev(254, 0), "fuse.fuse-overlayfs"),
        (None, os.makedev(254, 0), "ext4"),
        (None, os.makedev(0, 44), "fuse.sshfs"),
        ("77", os.makedev(0, 77), None),
    ],
)
def test_a_file_system_is_found_by_its_mount_and_else_by_its_device(
    mount_id: str | None, device: int, kind: str | None
) -> None:
    assert lease.filesystem_type(MOUNTS, mount_id, device) == kind


def test_a_lease_on_a_network_file_system_is_refused_with_the_mend(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "_filesystem", lambda descriptor: "nfs4")
    before = descriptors()
    error = refusal(path)
    assert (error.code, "NFS" in str(error), "local disk" in str(error)) == ("lease-remote", True, True)
    assert descriptors() == before


def survivor_of(pid: int) -> tuple[tuple[int, int], ...]:
    return ((pid, start_of(pid)),)


def test_a_host_with_a_process_that_outlived_kill_is_dirty_and_nobody_starts_on_it(path: Path) -> None:
    held = take(path, "run-7")
    held.report([ProcessId(os.getppid(), start_of(os.getppid()))])
    assert holder.read_record(path) == held.holder
    held.release()
    error = refusal(path)
    assert error.code == "host-dirty"
    assert f"pid {os.getppid()} (" in str(error) and "run run-7" in str(error) and "reboot" in str(error)
    assert "host is dirty" in lease.describe(path).sentence


@pytest.mark.parametrize("change", [{"boot_id": "another"}, {"survivors": [[1, 1]]}, {"survivors": []}])
def test_a_host_is_clean_again_after_a_reboot_and_once_the_survivor_is_gone(
    path: Path, change: dict[str, object]
) -> None:
    path.touch()
    dirty = replace(mine("old"), since="x", released="y", survivors=survivor_of(os.getppid()))
    holder.write_record(path, HolderRecord.from_json({**dirty.to_json(), **change}))
    with take(path) as held:
        assert held.holder.survivors == ()


@pytest.mark.parametrize("survivors", [1, [1], [[1]], [["1", 2]], [[1, True]]])
def test_survivors_that_are_no_pairs_of_numbers_are_no_record(survivors: object) -> None:
    with pytest.raises(HarnessError, match="survivors"):
        HolderRecord.from_json({**mine().to_json(), "survivors": survivors})


def test_the_record_of_a_later_holder_is_not_overwritten_by_a_release(path: Path) -> None:
    first = take(path, "run-7")
    later = replace(first.holder, run_id="run-8", token=first.holder.token + 1)
    holder.write_record(path, later)
    first.release()
    assert holder.read_record(path) == later


def test_an_unlinked_lock_is_not_mistaken_for_the_lock(path: Path) -> None:
    with take(path) as held:
        assert held.intact()
        path.unlink()
        path.touch()
        assert not held.intact()


def test_describe_creates_nothing(path: Path) -> None:
    state = lease.describe(path)
    assert (state.held, state.holder, state.survivors) == (False, None, ())
    assert list(path.parent.iterdir()) == []


def test_describe_says_why_a_path_cannot_be_a_lease(path: Path) -> None:
    path.mkdir()
    state = lease.describe(path)
    assert state.held is None and "is a folder" in state.sentence


def test_waiting_names_the_holder_once_and_ends_when_it_releases(path: Path) -> None:
    held = take(path, "run-7")
    told: list[str] = []
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            held.release()

    lease.acquire(path, 3600, mine("run-8"), told.append, pause=pause).release()
    assert len(pauses) == 3 and all(seconds == lease.POLL_S for seconds in pauses)
    assert len(told) == 1 and "held by run run-7" in told[0] and "waiting up to 3600 s" in told[0]


def test_what_raises_while_waiting_leaves_no_descriptor(path: Path) -> None:
    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    with take(path):
        before = descriptors()
        with pytest.raises(KeyboardInterrupt):
            lease.acquire(path, 3600, mine(), lambda sentence: None, pause=stop)
        assert descriptors() == before


def test_a_record_survives_json() -> None:
    record = replace(mine(), token=2**63, since="2026-07-24T00:00:00Z", inode="1:2")
    assert HolderRecord.from_json(record.to_json()) == record
