"""Files across the link: a temporary name, size and SHA-256 checked on both sides, then a rename. Never half a file."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import paramiko

from harness.errors import HarnessError
from harness.transport import ssh_exec
from harness.transport.ssh_link import Link

__all__ = ["get", "put"]

CHUNK = 32768  # bytes; the largest block every SFTP server takes
AHEAD = 64  # blocks asked for ahead: 2 MiB in flight hides 200 ms at 10 MB/s
MAX_PACKET = 1 << 20  # bytes; ours are 32 KiB and a name, so more is text of a start file read as a length
HASH_TIMEOUT_S = 600.0


class _Guard:
    """The SFTP channel, with its first four bytes looked at: a start file that prints would be read as a length."""

    def __init__(self, link: Link, channel: Any) -> None:
        self._link = link
        self._channel = channel
        self._first = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def recv(self, count: int) -> bytes:
        block: bytes = self._channel.recv(count)
        if len(self._first) < 4:
            self._first += block
            if len(self._first) >= 4 and int.from_bytes(self._first[:4], "big") > MAX_PACKET:
                raise self._polluted()
        return block

    def _polluted(self) -> HarnessError:
        with contextlib.suppress(OSError):
            self._channel.settimeout(0.5)
            self._first += self._channel.recv(200)
        return HarnessError(
            "sftp-polluted",
            f"{self._link.target}: SFTP begins with the text {self._first.decode('utf-8', 'replace')!r}. A shell start "
            "file there prints; let it print only for interactive shells (case $- in *i*) … esac)",
        )


@contextlib.contextmanager
def _session(link: Link, what: str) -> Iterator[Any]:
    """An SFTP client whose every wait is bounded. `what` names the file in errors."""
    with link.channel() as channel:
        channel.settimeout(link.silence_s)
        try:
            with link.guarded(f"transferring {what}"):
                channel.invoke_subsystem("sftp")
                yield paramiko.SFTPClient(_Guard(link, channel))  # type: ignore[arg-type]
        except TimeoutError as error:
            raise HarnessError(
                "sftp-stalled",
                f"{link.target}: {what}: SFTP gave no answer for {link.silence_s:g} s though the link is alive",
            ) from error
        except OSError as error:
            raise HarnessError(
                "remote-file", f"{link.target}: {what}: {error.strerror or error or 'SFTP failed without a reason'}"
            ) from error


def put(link: Link, data: bytes | Path, remote: str, *, mode: int = 0o600) -> str:
    """Write `remote` whole or not at all; returns its SHA-256. A file of that name is replaced.

    HarnessError: `remote-file`, `transfer-corrupt`, `ssh-lost`, `sftp-stalled`, `sftp-polluted`. A link lost in the
    middle can leave `remote.part-…` behind, never a short `remote`.
    """
    part = f"{remote}.part-{secrets.token_hex(8)}"
    with _session(link, remote) as sftp, _opened(data) as source:
        try:
            size, digest = _send(sftp, source, part, mode)
            _check(remote, (size, digest), (sftp.stat(part).st_size, _remote_digest(link, sftp, part)))
            sftp.posix_rename(part, remote)
        except BaseException:
            with contextlib.suppress(Exception):
                sftp.remove(part)
            raise
    return digest


def get(link: Link, remote: str, local: Path, *, sha256: str | None = None, size: int | None = None) -> str:
    """Fetch `remote` to `local`, whole or not at all; returns its SHA-256. Errors as `put`, and `local-file`."""
    part = local.with_name(f".{local.name}.part-{secrets.token_hex(8)}")
    try:
        with _session(link, remote) as sftp:
            there = int(sftp.stat(remote).st_size or 0)
            found = _receive(sftp, remote, part, there)
        _check(remote, (there if size is None else size, sha256 or found[1]), found)
        with _locally(local):
            part.replace(local)
    finally:
        part.unlink(missing_ok=True)
    return found[1]


def _send(sftp: Any, source: BinaryIO, part: str, mode: int) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with sftp.open(part, "wx") as file:
        file.chmod(mode)
        file.set_pipelined(True)
        while block := source.read(CHUNK):
            file.write(block)
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


def _receive(sftp: Any, remote: str, part: Path, size: int) -> tuple[int, str]:
    digest, got = hashlib.sha256(), 0
    with sftp.open(remote, "rb") as file:
        file.prefetch(size, AHEAD)
        with _locally(part):
            target = part.open("xb")
        with target:
            while block := file.read(CHUNK):
                with _locally(part):
                    target.write(block)
                digest.update(block)
                got += len(block)
            with _locally(part):
                target.flush()
                os.fsync(target.fileno())
    return got, digest.hexdigest()


def _check(name: str, wanted: tuple[int, str], found: tuple[Any, str]) -> None:
    if wanted != found:
        raise HarnessError(
            "transfer-corrupt",
            f"{name}: {wanted[0]} bytes with SHA-256 {wanted[1]} wanted, {found[0]} bytes with {found[1]} found; "
            "nothing was replaced. Is the disk full, or is the file still being written?",
        )


def _remote_digest(link: Link, sftp: Any, part: str) -> str:
    """By sha256sum on the host; where there is none, by reading the file back."""
    path = part if part.startswith("/") else f"./{part}"
    done = ssh_exec.run(link, ["sha256sum", path], timeout_s=HASH_TIMEOUT_S)
    text = done.stdout.decode("ascii", "replace").lstrip("\\")
    if done.kind == "lost":
        raise link.lost_error(f"checking {part}")
    if done.code == 0 and text[64:65] == " ":
        return text[:64]
    digest = hashlib.sha256()
    with sftp.open(part, "rb") as file:
        while block := file.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()


def _opened(data: bytes | Path) -> BinaryIO:
    if isinstance(data, bytes):
        return io.BytesIO(data)
    with _locally(data):
        return data.open("rb")


@contextlib.contextmanager
def _locally(path: Path) -> Iterator[None]:
    """Tells this machine's errors from those of the host."""
    try:
        yield
    except OSError as error:
        raise HarnessError("local-file", f"{path}: {error.strerror or error}") from error
