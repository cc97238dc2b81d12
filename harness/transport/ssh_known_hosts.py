"""Host keys that may be believed: known_hosts files as sshd(8) describes them, read only, never added to."""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UsageError
from harness.transport.ssh_config import SshTarget

__all__ = ["KnownKey", "check", "fingerprint", "key_types", "lookup"]


@dataclass(frozen=True)
class KnownKey:
    """One line of a file that speaks of the host asked for."""

    kind: str
    blob: bytes
    file: Path
    line: int
    revoked: bool = False


def fingerprint(blob: bytes) -> str:
    """`SHA256:…` as ssh-keygen -l prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def lookup(files: Iterable[Path], host: str, port: int) -> list[KnownKey]:
    """Every line for this host and port. Lines with @cert-authority are passed over: certificates are not supported."""
    name = _name(host, port)
    return [key for file in files for key, names in _read(file) if _matches(names, name)]


def key_types(target: SshTarget) -> tuple[str, ...]:
    """Key types that are known for the target, so that the server can be asked for one of them first."""
    return tuple(dict.fromkeys(key.kind for key in _candidates(target) if not key.revoked))


def check(target: SshTarget, kind: str, blob: bytes) -> None:
    """Nothing, or UsageError: `ssh-host-key-unknown`, `ssh-host-key-changed` or `ssh-host-key-revoked`."""
    found = _candidates(target)
    for key in found:
        if key.revoked and hmac.compare_digest(key.blob, blob):
            raise UsageError(
                "ssh-host-key-revoked",
                f"{target}: its key {fingerprint(blob)} is marked @revoked in {key.file}, line {key.line}; "
                "ask who runs the host for a new key",
            )
    trusted = [key for key in found if not key.revoked]
    if any(hmac.compare_digest(key.blob, blob) for key in trusted):
        return
    exact = [key for key in lookup(target.known_hosts, target.host, target.port) if not key.revoked]
    if exact:
        raise _changed(target, kind, blob, next((key for key in exact if key.kind == kind), exact[0]))
    raise _unknown(target, kind, blob)


def _candidates(target: SshTarget) -> list[KnownKey]:
    """Lines for `[host]:port`; where there are none, those for the bare name, as ssh(1) does."""
    found = lookup(target.known_hosts, target.host, target.port)
    return found or lookup(target.known_hosts, target.host, 22)


def _changed(target: SshTarget, kind: str, blob: bytes, key: KnownKey) -> UsageError:
    name = _name(target.host, target.port)
    return UsageError(
        "ssh-host-key-changed",
        f"{target} shows the {kind} key {fingerprint(blob)}, but {key.file}, line {key.line} has the {key.kind} key "
        f"{fingerprint(key.blob)}. Somebody may be listening in. If the host was set up anew, ask who runs it for the "
        f"fingerprint, then: ssh-keygen -R {shlex.quote(name)} -f {shlex.quote(str(key.file))}",
    )


def _unknown(target: SshTarget, kind: str, blob: bytes) -> UsageError:
    file = target.known_hosts[0] if target.known_hosts else Path("~/.ssh/known_hosts")
    line = f"{_name(target.host, target.port)} {kind} {base64.b64encode(blob).decode()}"
    return UsageError(
        "ssh-host-key-unknown",
        f"{target} is in no known_hosts file ({', '.join(map(str, target.known_hosts)) or 'none is named'}). It shows "
        f"the {kind} key {fingerprint(blob)}. If that is the host's own (there: ssh-keygen -lf /etc/ssh/ssh_host_*.pub)"
        f", add it: echo {shlex.quote(line)} >> {shlex.quote(str(file))}",
    )


def _name(host: str, port: int) -> str:
    return host.lower() if port == 22 else f"[{host.lower()}]:{port}"


def _read(file: Path) -> Iterator[tuple[KnownKey, str]]:
    try:
        text = file.read_text("utf-8", "replace")
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise UsageError("ssh-known-hosts", f"{file}: {error.strerror}; mend its mode or owner") from error
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else None
        if len(words) < 3 or words[0].startswith("#") or marker not in (None, "@revoked"):
            continue
        try:
            blob = base64.b64decode(words[2], validate=True)
        except binascii.Error:
            continue
        yield KnownKey(words[1], blob, file, number, marker is not None), words[0]


def _matches(names: str, name: str) -> bool:
    """Whether the first field of a line, hashed or a list of patterns, speaks of `name`."""
    if names.startswith("|1|"):
        return _hashed(names, name)
    found = False
    for pattern in names.lower().split(","):
        if pattern.startswith("!") and _glob(pattern[1:], name):
            return False
        found = found or _glob(pattern, name)
    return found


def _glob(pattern: str, name: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))  # a bracket is part of `[host]:port`, never a class


def _hashed(field: str, name: str) -> bool:
    try:
        _, _, salt, wanted = field.split("|")
        digest = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()
        return hmac.compare_digest(digest, base64.b64decode(wanted))
    except ValueError:
        return False
