"""A server that knows its callers by other means than keys, as Tailscale's does; OpenSSH cannot be one."""

from __future__ import annotations

import base64
import socket
import threading
from pathlib import Path

import paramiko

from harness.transport.ssh_config import SshTarget
from harness.transport.ssh_connection import Connection


class Keyless(paramiko.ServerInterface):
    def check_auth_none(self, username: str) -> int:
        return paramiko.AUTH_SUCCESSFUL if username == "known" else paramiko.AUTH_FAILED


def test_a_server_that_asks_for_no_key_is_given_none(tmp_path: Path) -> None:
    host_key = paramiko.ECDSAKey.generate()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        known = tmp_path / "known_hosts"
        blob = base64.b64encode(host_key.asbytes()).decode()
        known.write_text(f"[127.0.0.1]:{port} {host_key.get_name()} {blob}\n")
        servers: list[paramiko.Transport] = []

        def serve() -> None:
            servers.append(paramiko.Transport(listener.accept()[0]))
            servers[0].add_server_key(host_key)
            servers[0].start_server(server=Keyless())

        thread = threading.Thread(target=serve)
        thread.start()
        absent = tmp_path / "absent"
        with Connection.open(SshTarget("127.0.0.1", port, "known", (absent,), (known,))) as connection:
            assert connection.alive() and servers[0].is_authenticated()
        thread.join(60)
        servers[0].close()
