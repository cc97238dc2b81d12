"""One SSH connection: programs and files on a host. What it means to lose it is said in each result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.transport import ssh_library
from harness.transport.ssh_config import SshTarget

if TYPE_CHECKING:
    from harness.transport.ssh_exec import Outcome
    from harness.transport.ssh_link import Link

__all__ = ["Connection"]


class Connection:
    """An authenticated link, closed on leaving the context. Runs and transfers may overlap in threads."""

    def __init__(self, link: Link) -> None:
        self._link = link

    @classmethod
    def open(cls, target: SshTarget, *, connect_timeout_s: float = 15, silence_s: float = 30) -> Connection:
        """Connect hop by hop: host key checked, then logged in; each step of each hop within `connect_timeout_s`.

        A link on which nothing was heard for `silence_s` is given up, whatever is being done on it. UsageError
        `paramiko-missing`, `ssh-host-key-…`, `ssh-known-hosts`, `ssh-auth`; HarnessError `ssh-unreachable`.
        """
        ssh_library.paramiko()
        from harness.transport.ssh_link import Link

        return cls(Link(target, connect_timeout_s, silence_s))

    @property
    def target(self) -> SshTarget:
        return self._link.target

    @property
    def host_key(self) -> str:
        """Type and fingerprint of the target's key, which known hosts has."""
        return self._link.host_key

    def alive(self) -> bool:
        """Whether the link stands, as far as anybody can know: a cut is noticed within `silence_s`."""
        return self._link.alive()

    def close(self) -> None:
        self._link.close()

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float,
        stdout: Path | None = None,
        stderr: Path | None = None,
        limit: int = 1 << 20,
        grace_s: float = 3.0,
    ) -> Outcome:
        """Run a program (no shell reads `argv`) and wait for its end. See `ssh_exec.run` and `Outcome`."""
        from harness.transport import ssh_exec

        return ssh_exec.run(
            self._link,
            argv,
            stdin=stdin,
            timeout_s=timeout_s,
            stdout=stdout,
            stderr=stderr,
            limit=limit,
            grace_s=grace_s,
        )

    def put(self, data: bytes | Path, remote: str, *, mode: int = 0o600) -> str:
        """Write a remote file whole or not at all; returns its SHA-256. See `ssh_files.put`."""
        from harness.transport import ssh_files

        return ssh_files.put(self._link, data, remote, mode=mode)

    def get(self, remote: str, local: Path, *, sha256: str | None = None, size: int | None = None) -> str:
        """Fetch a remote file whole or not at all; returns its SHA-256. See `ssh_files.get`."""
        from harness.transport import ssh_files

        return ssh_files.get(self._link, remote, local, sha256=sha256, size=size)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
