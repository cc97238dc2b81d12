"""Two real OpenSSH servers, the keys to them, and a proxy whose link breaks on demand."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.transport.ssh_connection import Connection
from tests.servers.openssh import Sshd, find_sshd, generate
from tests.servers.tcp_proxy import TcpProxy


@pytest.fixture(scope="session")
def ssh_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_sshd() is None or shutil.which("ssh-keygen") is None:
        pytest.skip("no OpenSSH server on this machine: install openssh-server to run the tests over SSH")
    return tmp_path_factory.mktemp("ssh")


@pytest.fixture(scope="session")
def key(ssh_folder: Path) -> Path:
    """The key that both servers accept."""
    return generate(ssh_folder / "right")


@pytest.fixture(scope="session")
def _server(ssh_folder: Path, key: Path) -> Iterator[Sshd]:
    server = Sshd(ssh_folder / "gpu", [key])
    yield server
    server.stop()


@pytest.fixture
def server(_server: Sshd) -> Sshd:
    """The GPU host, with all of its host keys known."""
    _server.trust(*_server.host_keys)
    return _server


@pytest.fixture
def start(tmp_path: Path, key: Path) -> Iterator[Callable[..., Sshd]]:
    """Starts a further server with options of its own."""
    servers: list[Sshd] = []

    def launch(*options: str) -> Sshd:
        servers.append(Sshd(tmp_path / f"sshd{len(servers)}", [key], options))
        return servers[-1]

    yield launch
    for one in servers:
        one.stop()


@pytest.fixture
def proxy(server: Sshd) -> Iterator[TcpProxy]:
    with TcpProxy(server.port) as found:
        yield found


@pytest.fixture
def connection(server: Sshd, key: Path) -> Iterator[Connection]:
    with Connection.open(server.target(key)) as found:
        yield found


@pytest.fixture
def brittle(server: Sshd, key: Path, proxy: TcpProxy) -> Iterator[Connection]:
    """A connection by way of the proxy that gives up after two seconds of silence."""
    with Connection.open(server.target(key, port=proxy.port), silence_s=2) as found:
        yield found
