"""How a run's host is reached: this machine, or one behind SSH."""

from __future__ import annotations

from harness.config import HostConfig
from harness.transport.base import Transport

__all__ = ["connect"]


def connect(host: HostConfig) -> Transport:
    """The transport that `host.transport` names. A remote one connects with its first command."""
    if host.transport == "ssh":
        from harness.transport.ssh import Ssh

        return Ssh(host)
    from harness.transport.local import Local

    return Local()
