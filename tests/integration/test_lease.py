"""Leases between real processes and real users."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import lease, process
from harness.errors import UsageError
from harness.holder import HolderRecord, record_path
from harness.telemetry import procfs

REPOSITORY = Path(lease.__file__).parents[1]
NOBODY = 65534
# Acquires, says so, does what it is told to, and stays until it is killed. Modules are loaded before the user changes.
TAKER = """
import fcntl, json, os, pwd, signal, subprocess, sys
from pathlib import Path
from harness import lease
from harness.errors import UsageError
path, user, timeout, then = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
lease.describe(path.with_name('absent'))
lease._filesystem(0)
if user: os.setgroups([]); os.setgid(user); os.setuid(user)
try:
    tell = lambda sentence: print(json.dumps(sentence), flush=True)
    held = lease.acquire(path, timeout, lease.HolderRecord.mine(then), tell)
except UsageError as error:
    print(json.dumps([error.code, error.message]), flush=True); sys.exit(64)
child = subprocess.Popen(['sleep', '300'], pass_fds=(held.fd,), start_new_session=True).pid if then == 'sleep' else 0
print(json.dumps({'child': child, 'note': held.note}), flush=True)
signal.pause()
"""


class Takers:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "gpu"
        self.running: list[subprocess.Popen[str]] = []

    def start(self, then: str = "stay", user: int = 0, timeout: float = 0) -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", TAKER, str(self.path), str(user), str(timeout), then]
        one = subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
        self.running.append(one)
        return one

    def take(self) -> lease.Lease:
        return lease.acquire(self.path, 0, HolderRecord.mine("mine"), lambda sentence: None)


def heard(one: subprocess.Popen[str]) -> object:
    assert one.stdout is not None
    return json.loads(one.stdout.readline())


@pytest.fixture
def takers() -> Iterator[Takers]:
    # pytest's own folders admit one user only; this one is like /tmp.
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o1777)
        one = Takers(Path(name))
        yield one
        for taker in one.running:
            taker.kill()
            taker.wait()
            assert taker.stdout is not None
            taker.stdout.close()


def test_a_waiting_process_names_the_holder_and_gets_the_lease_when_it_is_killed(takers: Takers) -> None:
    first = takers.start("run-7")
    heard(first)
    second = takers.start("run-8", timeout=600)
    assert "held by run run-7 (" in str(heard(second))
    first.kill()
    assert heard(second) == {"child": 0, "note": None}
    holder = lease.describe(takers.path).holder
    assert holder is not None and (holder.run_id, holder.pid) == ("run-8", second.pid)


def test_of_many_takers_one_at_a_time_has_the_lease(takers: Takers) -> None:
    many = [takers.start(f"run-{number}") for number in range(4)]
    said = [heard(one) for one in many]
    assert sum(isinstance(one, dict) for one in said) == 1
    assert sum(isinstance(one, list) and one[0] == "lease-held" for one in said) <= 3


def test_a_child_that_inherited_the_lease_is_named_and_neither_killed_nor_ignored(takers: Takers) -> None:
    holder = takers.start("sleep")
    said = heard(holder)
    assert isinstance(said, dict)
    sleeper = procfs.identify(said["child"])
    assert sleeper is not None
    try:
        holder.kill()
        holder.wait()
        with pytest.raises(UsageError, match=rf"held by pid {sleeper.pid} \(sleep 300, started 2.*Z\)") as caught:
            takers.take()
        assert caught.value.code == "lease-held" and procfs.is_alive(sleeper)
        assert [one.process for one in lease.describe(takers.path).survivors] == [sleeper]
    finally:
        process.send(sleeper, signal.SIGKILL)
    assert process.wait_gone([sleeper], 60)
    takers.take().release()


def test_a_lock_taken_by_a_shell_excludes_us_and_is_named(takers: Takers) -> None:
    takers.path.touch()
    shell = subprocess.Popen(["flock", takers.path, "-c", "echo; exec sleep 300"], stdout=subprocess.PIPE, text=True)
    takers.running.append(shell)
    assert shell.stdout is not None
    shell.stdout.readline()
    seen = lease.describe(takers.path)
    try:
        assert seen.held and seen.holder is None and shell.pid in [one.process.pid for one in seen.survivors]
        with pytest.raises(UsageError, match="flock"):
            takers.take()
    finally:
        for one in seen.survivors:
            process.send(one.process, signal.SIGKILL)


def test_a_removed_lock_still_excludes_while_its_holder_lives(takers: Takers) -> None:
    holder = takers.start("run-7")
    heard(holder)
    takers.path.unlink()
    with pytest.raises(UsageError, match="was removed or replaced while run run-7"):
        takers.take()
    holder.kill()
    holder.wait()
    takers.take().release()


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")


@needs_root
def test_two_users_share_a_lease_in_a_sticky_folder(takers: Takers) -> None:
    first = takers.start("run-7", user=NOBODY)
    assert heard(first) == {"child": 0, "note": None}
    assert takers.path.stat().st_uid == NOBODY
    with pytest.raises(UsageError, match="held by run run-7"):
        takers.take()
    first.kill()
    first.wait()
    with takers.take() as mine:
        assert mine.note is None and json.loads(record_path(takers.path).read_bytes())["run_id"] == "mine"
        refused = heard(takers.start(user=NOBODY))
        assert isinstance(refused, list) and refused[0] == "lease-held" and "run mine (root" in refused[1]
    assert heard(takers.start("run-9", user=NOBODY)) == {"child": 0, "note": None}


@needs_root
def test_another_users_record_that_cannot_be_written_weakens_no_lock(takers: Takers) -> None:
    record_path(takers.path).touch(mode=0o644)
    said = heard(takers.start(user=NOBODY))
    assert isinstance(said, dict) and "cannot be written (Permission denied)" in said["note"]
    with pytest.raises(UsageError, match="is held by pid"):
        takers.take()


@needs_root
def test_a_lock_that_another_user_may_not_open_is_explained(takers: Takers) -> None:
    takers.path.touch(mode=0o600)
    said = heard(takers.start(user=NOBODY))
    assert isinstance(said, list) and said[0] == "lease-path" and f"chmod 0666 {takers.path}" in said[1]


@needs_root
def test_a_holder_that_may_not_be_seen_is_not_called_free(takers: Takers) -> None:
    with takers.take():
        record_path(takers.path).unlink()
        said = heard(takers.start(user=NOBODY))
    assert isinstance(said, list) and "held by a process that this user may not see" in said[1]


@needs_root
def test_the_file_system_under_a_lease_is_told_by_its_mount(tmp_path: Path) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(tmp_path)], check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        with lease.acquire(tmp_path / "gpu", 0, HolderRecord.mine("mine"), lambda sentence: None) as held:
            assert lease._filesystem(held.fd) == "tmpfs"
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
