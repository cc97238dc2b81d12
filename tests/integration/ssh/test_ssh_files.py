"""Files over a real SFTP server: whole and checked, or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.errors import HarnessError
from harness.transport.ssh_connection import Connection
from tests.servers.openssh import SFTP_SERVER, Sshd
from tests.servers.tcp_proxy import TcpProxy


def refused(call: Callable[[], object]) -> HarnessError:
    with pytest.raises(HarnessError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize("size", [0, 1, 32768, 5_000_001])
def test_a_file_goes_there_and_back(connection: Connection, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    digest = hashlib.sha256(data).hexdigest()
    there = tmp_path / "it's there"
    assert connection.put(data, str(there), mode=0o640) == digest
    assert there.read_bytes() == data and there.stat().st_mode & 0o7777 == 0o640
    assert connection.get(str(there), tmp_path / "back", sha256=digest, size=size) == digest
    assert (tmp_path / "back").read_bytes() == data
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "it's there"]


def test_a_local_file_is_sent_as_it_is_and_replaces_what_was_there(connection: Connection, tmp_path: Path) -> None:
    (tmp_path / "new").write_bytes(b"new")
    (tmp_path / "there").write_bytes(b"old and longer")
    assert connection.put(tmp_path / "new", str(tmp_path / "there")) == hashlib.sha256(b"new").hexdigest()
    assert (tmp_path / "there").read_bytes() == b"new" and (tmp_path / "there").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("wanted", [{"sha256": "0" * 64}, {"size": 4}])
def test_a_file_that_is_not_the_expected_one_replaces_nothing(
    connection: Connection, tmp_path: Path, wanted: dict[str, object]
) -> None:
    (tmp_path / "there").write_bytes(b"other")
    (tmp_path / "here").write_bytes(b"mine")
    error = refused(lambda: connection.get(str(tmp_path / "there"), tmp_path / "here", **wanted))  # type: ignore[arg-type]
    assert error.code == "transfer-corrupt" and str(tmp_path / "there") in error.message
    assert (tmp_path / "here").read_bytes() == b"mine" and len(list(tmp_path.iterdir())) == 2


def test_errors_of_the_host_and_of_this_machine_name_the_file(connection: Connection, tmp_path: Path) -> None:
    missing = str(tmp_path / "no" / "file")
    for call in (lambda: connection.put(b"", missing), lambda: connection.get(missing, tmp_path / "x")):
        error = refused(call)
        assert error.code == "remote-file" and missing in error.message and "No such file" in error.message
    assert refused(lambda: connection.put(tmp_path / "absent", str(tmp_path / "x"))).code == "local-file"
    (tmp_path / "there").write_bytes(b"x")
    assert refused(lambda: connection.get(str(tmp_path / "there"), tmp_path / "no" / "x")).code == "local-file"
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_host_without_sha256sum_is_read_back(start: Callable[..., Sshd], key: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "env").symlink_to(str(shutil.which("env")))
    with Connection.open(start(f"SetEnv PATH={folder}").target(key)) as connection:
        assert connection.run(["sha256sum"], timeout_s=60).code == 127
        digest = connection.put(b"text" * 20_000, str(tmp_path / "there"))
    assert digest == hashlib.sha256((tmp_path / "there").read_bytes()).hexdigest()


def test_a_half_open_link_leaves_no_short_file(brittle: Connection, proxy: TcpProxy, tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"old")
    proxy.black_hole(after_bytes=1 << 20)
    error = refused(lambda: brittle.put(os.urandom(8 << 20), str(tmp_path / "there")))
    assert error.code == "ssh-lost" and (tmp_path / "there").read_bytes() == b"old"


def test_a_half_open_link_leaves_no_short_file_here(brittle: Connection, proxy: TcpProxy, tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(os.urandom(8 << 20))
    proxy.black_hole(after_bytes=1 << 20)
    assert refused(lambda: brittle.get(str(tmp_path / "there"), tmp_path / "here")).code == "ssh-lost"
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_link_that_is_half_open_before_sftp_starts_is_given_up(brittle: Connection, proxy: TcpProxy) -> None:
    proxy.black_hole()
    assert refused(lambda: brittle.put(b"", "/tmp/never")).code == "ssh-lost"


def test_a_cut_link_is_a_lost_link(brittle: Connection, proxy: TcpProxy, tmp_path: Path) -> None:
    proxy.cut()
    assert refused(lambda: brittle.get("/etc/hostname", tmp_path / "x")).code == "ssh-lost"


def test_a_slow_link_carries_files(brittle: Connection, proxy: TcpProxy, tmp_path: Path) -> None:
    data = os.urandom(1 << 20)
    proxy.delay(0.1)
    brittle.put(data, str(tmp_path / "there"))
    brittle.get(str(tmp_path / "there"), tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data


def test_a_start_file_that_prints_into_sftp_is_named(start: Callable[..., Sshd], key: Path, tmp_path: Path) -> None:
    program = tmp_path / "sftp"
    program.write_text(f"#!/bin/sh\necho Welcome to gpu\nexec {SFTP_SERVER}\n")
    program.chmod(0o755)
    with Connection.open(start(f"Subsystem sftp {program}").target(key)) as connection:
        error = refused(lambda: connection.put(b"x", str(tmp_path / "there")))
    assert error.code == "sftp-polluted" and "Welcome to gpu" in error.message


def test_a_server_without_sftp_is_a_sentence(start: Callable[..., Sshd], key: Path, tmp_path: Path) -> None:
    with Connection.open(start("Subsystem sftp /bin/false").target(key)) as connection:
        error = refused(lambda: connection.put(b"x", str(tmp_path / "there")))
    assert error.code == "ssh-channel" and str(tmp_path / "there") in error.message


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small tmpfs cannot be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_there_replaces_nothing_and_leaves_no_rest(connection: Connection, small_disk: Path) -> None:
    (small_disk / "there").write_bytes(b"old")
    error = refused(lambda: connection.put(os.urandom(1 << 20), str(small_disk / "there")))
    assert error.code in ("remote-file", "transfer-corrupt") and str(small_disk / "there") in error.message
    assert [path.name for path in small_disk.iterdir()] == ["there"]
    assert (small_disk / "there").read_bytes() == b"old"


def test_a_full_disk_here_is_said_to_be_here(connection: Connection, small_disk: Path, tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(os.urandom(1 << 20))
    error = refused(lambda: connection.get(str(tmp_path / "there"), small_disk / "here"))
    assert error.code == "local-file" and "No space left" in error.message and not list(small_disk.iterdir())
