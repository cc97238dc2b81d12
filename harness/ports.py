"""TCP ports of this host: whether somebody listens, and who."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from harness.errors import UsageError

__all__ = ["PortOwner", "free_port", "listening", "owner", "require_free"]


@dataclass(frozen=True)
class PortOwner:
    """Who listens. Unknown parts are None: another user's process is visible to root alone."""

    port: int
    pid: int | None
    command: str | None
    user: str | None

    def who(self) -> str:
        if self.pid is None:
            return "a process that this user may not see"
        return f"pid {self.pid} ({self.command or 'unknown command'}, user {self.user or 'unknown'})"


def owner(port: int) -> PortOwner | None:
    """The process that listens on `port` at any local address, or None."""
    import psutil

    found: PortOwner | None = None
    for entry in psutil.net_connections("tcp"):
        if entry.status != psutil.CONN_LISTEN or not entry.laddr or entry.laddr.port != port:
            continue
        found = _named(port, entry.pid)
        if found.pid is not None:
            break
    return found


def _named(port: int, pid: int | None) -> PortOwner:
    import psutil

    if pid is None:
        return PortOwner(port, None, None, None)
    try:
        process = psutil.Process(pid)
        return PortOwner(
            port, pid, " ".join(" ".join(process.cmdline()).split())[:200] or process.name(), process.username()
        )
    except psutil.Error:
        return PortOwner(port, pid, None, None)


def listening(port: int) -> bool:
    return owner(port) is not None


def require_free(port: int, key: str) -> None:
    """UsageError `port-in-use` naming the stranger; `key` is the configuration key that set the port."""
    stranger = owner(port)
    if stranger is not None:
        raise UsageError("port-in-use", f"{key}={port}: {stranger.who()} listens there; stop it or set another {key}")


def free_port() -> int:
    """A port of 127.0.0.1 that nobody has at this moment. Only a server that binds soon after can rely on it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
