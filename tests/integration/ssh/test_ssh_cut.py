"""A link that is really cut: the server lives in a network namespace of its own, and its cable is pulled."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.errors import HarnessError
from harness.transport.ssh_connection import Connection
from tests.servers.openssh import Sshd

# Of the network for benchmarks (RFC 2544). Not of 192.0.2.0/24: a sandbox was seen whose own address lies there.
HERE, THERE = f"198.18.{os.getpid() % 256}.1", f"198.18.{os.getpid() % 256}.2"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@dataclass
class Cable:
    server: Sshd
    name: str

    def pull(self) -> None:
        ip("link", "set", self.name, "down")

    def plug(self) -> None:
        ip("link", "set", self.name, "up")


@pytest.fixture
def cable(key: Path, tmp_path: Path) -> Iterator[Cable]:
    space, near, far = (f"{letter}{os.getpid()}" for letter in "snf")
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("a cable can be pulled by root with iproute2 only")
    if " 198.18." in subprocess.run(["ip", "-4", "addr"], capture_output=True, text=True, check=True).stdout:
        pytest.skip("this machine has an address in 198.18.0.0/16, where the cable's two ends would lie")
    try:
        ip("netns", "add", space)
        ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", space)
    except subprocess.CalledProcessError as error:
        subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
        pytest.skip(f"no network namespace with a veth pair can be made here: {error.stderr.decode().strip()}")
    try:
        ip("addr", "add", f"{HERE}/30", "dev", near)
        ip("link", "set", near, "up")
        ip("-n", space, "addr", "add", f"{THERE}/30", "dev", far)
        ip("-n", space, "link", "set", far, "up")
        server = Sshd(tmp_path / "sshd", [key], address=THERE, prefix=("nsenter", f"--net=/run/netns/{space}"))
        yield Cable(server, near)
        server.stop()
    finally:
        ip("link", "del", near)
        ip("netns", "del", space)


def test_a_pulled_cable_is_a_lost_link_and_a_plugged_one_is_reached_again(
    cable: Cable, key: Path, tmp_path: Path
) -> None:
    target = cable.server.target(key)
    with Connection.open(target, silence_s=2) as connection:
        connection.put(b"before", str(tmp_path / "there"))
        cable.pull()
        assert connection.run(["true"], timeout_s=60).kind == "lost" and not connection.alive()
        with pytest.raises(HarnessError) as caught:
            connection.put(b"after", str(tmp_path / "there"))
        assert caught.value.code == "ssh-lost"
    with pytest.raises(HarnessError) as caught:
        Connection.open(target, connect_timeout_s=1)
    assert caught.value.code == "ssh-unreachable"
    cable.plug()
    with Connection.open(target) as connection:
        assert connection.run(["cat", str(tmp_path / "there")], timeout_s=60).stdout == b"before"


def test_a_cable_that_is_plugged_in_again_at_once_loses_nothing(cable: Cable, key: Path) -> None:
    with Connection.open(cable.server.target(key), silence_s=30) as connection:
        cable.pull()
        cable.plug()
        assert connection.run(["echo", "still"], timeout_s=60).stdout == b"still\n"
