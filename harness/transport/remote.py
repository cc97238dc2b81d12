"""A host behind SSH, before and beside any run: one connection that is opened when needed, and framed answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import _onhost, canonical
from harness.config import HostConfig
from harness.errors import HarnessError, UsageError
from harness.transport import framing
from harness.transport.base import LinkLost
from harness.transport.ssh_config import resolve
from harness.transport.ssh_connection import Connection

__all__ = ["DEFAULT_DIR", "Remote"]

DEFAULT_DIR = ".local/share/nvfp4-gates"
PROBE_S = 60.0
PASSING = ("ssh-lost", "ssh-unreachable", "ssh-channel", "sftp-stalled")  # another connection may not meet them
SAID_LINES = 3
POLLUTED = "sftp-polluted"
COPY_S = 900.0
TAKE = 'cat > "$1.part" && mv "$1.part" "$1"'
GIVE = 'printf %s "$2"; exec cat "$1"'


class Remote:
    """Programs and files on the host of `config`. LinkLost where the link is the reason; UsageError where it is not."""

    def __init__(self, config: HostConfig) -> None:
        self.config = config
        assert config.address is not None, "settings demand host.address for host.transport=ssh"
        self._target = resolve(
            config.address,
            user=config.user,
            port=config.ssh_port,
            identity_file=_here(config.identity_file),
            config_file=_here(config.ssh_config),
            known_hosts=_here(config.known_hosts),
        )
        self._connection: Connection | None = None

    def close(self) -> None:
        """Let go of the connection; the next use opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """The open connection. What only this connection suffers from closes it and becomes LinkLost."""
        try:
            if self._connection is None or not self._connection.alive():
                self.close()
                timeout, silence = self.config.connect_timeout_s, self.config.silence_s
                self._connection = Connection.open(self._target, connect_timeout_s=timeout, silence_s=silence)
            yield self._connection
        except UsageError:
            raise
        except HarnessError as error:
            if error.code in PASSING:
                self.close()
                raise LinkLost(error.code, error.message) from error
            raise UsageError(error.code, error.message) from error  # never VOID: it is nothing that was measured

    def answer(self, argv: Callable[[str], Sequence[str]], request: Mapping[str, Any], timeout_s: float) -> Any:
        """The document that a program frames with the marker that `argv` is given.

        UsageError `host-program` where it framed none, with the end of what it said.
        """
        marker = framing.new_marker()
        with self.connection() as connection:
            command = argv(marker)
            done = connection.run(command, stdin=canonical.dumps(dict(request)), timeout_s=timeout_s, limit=1 << 24)
        if done.kind in ("lost", "timeout"):
            self.close()
            raise LinkLost("ssh-lost", f"{self._target}: no answer" + (" in time" if done.kind == "timeout" else ""))
        try:
            return framing.unframe(done.stdout, marker).documents[0]
        except HarnessError as error:
            lines = (done.stderr.decode("utf-8", "replace").strip() or "nothing").splitlines()[-SAID_LINES:]
            how = done.signal or f"status {done.code}"
            raise UsageError(
                "host-program",
                f"{self._target}: {command[0]} ended with {how}: {error.message}; it said: {' / '.join(lines)}",
            ) from error

    def ask(self, command: str, request: Mapping[str, Any], timeout_s: float = PROBE_S) -> dict[str, Any]:
        """One command of `_onhost`, which needs nothing of ours on the host. UsageError `host-setup`."""
        source = Path(_onhost.__file__).read_text(encoding="utf-8")
        python = self.config.remote_python
        folder = self.config.remote_dir or DEFAULT_DIR
        found = self.answer(
            lambda marker: [python, "-I", "-c", source, command, marker], {**request, "folder": folder}, timeout_s
        )
        if "failure" in found:
            raise UsageError("host-setup", f"{self.config.name} ({self._target}): {found['failure']}")
        return dict(found)

    def put(self, data: bytes | Path, path: str) -> None:
        """Write a file there, readable for all. Through the shell where a start file's output spoils SFTP."""
        with self.connection() as connection:
            try:
                connection.put(data, path, mode=0o644)
            except HarnessError as error:
                if error.code != POLLUTED:
                    raise
                raw = data if isinstance(data, bytes) else data.read_bytes()
                self._shell(connection, TAKE, path, stdin=raw)

    def get(self, path: str, target: Path, *, sha256: str, size: int) -> None:
        """Fetch a file whole, or not at all. Through the shell where a start file's output spoils SFTP."""
        with self.connection() as connection:
            try:
                connection.get(path, target, sha256=sha256, size=size)
            except HarnessError as error:
                if error.code != POLLUTED:
                    raise
                self._get_by_shell(connection, path, target, sha256)

    def _get_by_shell(self, connection: Connection, path: str, target: Path, sha256: str) -> None:
        marker = framing.new_marker()
        part = target.with_name(f".{target.name}.{marker[:8]}")
        try:
            self._shell(connection, GIVE, path, marker, stdout=part)
            body = part.read_bytes().partition(marker.encode())[2]
            part.write_bytes(body)
            if canonical.sha256_bytes(body) != sha256:
                raise UsageError("transfer-corrupt", f"{self._target}: {path} did not arrive whole; try again")
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)

    def _shell(
        self, connection: Connection, script: str, *words: str, stdin: bytes = b"", stdout: Path | None = None
    ) -> None:
        done = connection.run(
            ["/bin/sh", "-c", script, "sh", *words], stdin=stdin, timeout_s=COPY_S, stdout=stdout, limit=1 << 16
        )
        if done.kind in ("lost", "timeout"):
            self.close()
            raise LinkLost("ssh-lost", f"{self._target}: lost while a file was copied")
        if done.code != 0:
            said = done.stderr.decode("utf-8", "replace").strip()
            raise UsageError("remote-file", f"{self._target}: {words[0]} cannot be copied: {said or done.signal}")


def _here(path: str | None) -> Path | None:
    """A path of this machine, as a person types it."""
    return None if path is None else Path(path).expanduser()
