from __future__ import annotations

import os
import socket

import pytest

from harness import ports
from harness.errors import UsageError


def test_the_process_that_listens_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = ports.owner(port)
        assert found is not None and found.pid == os.getpid() and found.user and "python" in str(found.command)
        with pytest.raises(UsageError, match=rf"engine.port={port}: pid {os.getpid()} ") as caught:
            ports.require_free(port, "engine.port")
        assert (caught.value.code, caught.value.exit_code) == ("port-in-use", 64)
    assert not ports.listening(port)
    ports.require_free(port, "engine.port")


def test_a_listener_on_ipv6_counts_too() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        assert ports.listening(server.getsockname()[1])


def test_a_connection_is_not_a_listener() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert ports.owner(client.getsockname()[1]) is None


def test_a_free_port_can_be_bound() -> None:
    with socket.create_server(("127.0.0.1", ports.free_port())) as server:
        assert ports.listening(server.getsockname()[1])


def test_an_owner_that_cannot_be_seen_is_still_said() -> None:
    assert ports.PortOwner(8001, None, None, None).who() == "a process that this user may not see"
