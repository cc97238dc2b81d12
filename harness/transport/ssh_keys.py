"""Proving to a hop who we are: key files first, then the agent, and a sentence about each try that failed."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import HarnessError, UsageError
from harness.transport import ssh_known_hosts, ssh_library
from harness.transport.ssh_config import SshTarget

__all__ = ["authenticate"]

MAX_AGENT_KEYS = 20  # sshd hangs up after MaxAuthTries, 6 unless set; this bounds a server that never does


@dataclass
class _Tries:
    """What was offered to one hop and what came of it; names and fingerprints only, never key material."""

    methods: str = "publickey"
    notes: list[str] = field(default_factory=list)
    offered: set[bytes] = field(default_factory=set)


def authenticate(transport: Any, hop: SshTarget) -> None:
    """Log in at `hop` over its own transport, whose host key was checked. UsageError `ssh-auth` names hop and tries.
    HarnessError `ssh-unreachable`: the link broke meanwhile.

    IdentityFile comes before the agent, because a server counts each wrong key and hangs up (MaxAuthTries).
    """
    paramiko = ssh_library.paramiko()
    tries = _Tries()
    if _without_key(transport, hop, tries):
        return
    agent = _agent(tries)
    try:
        keys = {key.asbytes(): key for key in agent.get_keys()} if agent is not None else {}
        for name, key in _candidates(hop, keys, tries):
            if key.asbytes() in tries.offered:
                continue
            tries.offered.add(key.asbytes())
            shown = f"{name} ({key.get_name()} {ssh_known_hosts.fingerprint(key.asbytes())})"
            try:
                missing = transport.auth_publickey(hop.user, key)
            except (paramiko.SSHException, OSError) as error:
                _require_link(transport, hop, error)
                tries.notes.append(f"{shown}: {_reason(error)}")
                if not transport.is_active():
                    said = f"the server hung up after that ({transport.farewell})"
                    tries.notes.append(f"{said}; IdentitiesOnly yes keeps other keys back")
                    break
                continue
            if not missing:
                return
            tries.notes.append(
                f"{shown}: accepted, but {' and '.join(missing)} is wanted as well, which needs a person"
            )
        raise _failed(hop, tries)
    finally:
        if agent is not None:
            agent.close()


def _without_key(transport: Any, hop: SshTarget, tries: _Tries) -> bool:
    """Whether the hop asks for no key, as Tailscale's does; else its methods are noted. OpenSSH counts no try."""
    paramiko = ssh_library.paramiko()
    try:
        return not transport.auth_none(hop.user)
    except paramiko.BadAuthenticationType as error:
        tries.methods = ", ".join(error.allowed_types)
        if "publickey" not in error.allowed_types:
            raise UsageError(
                "ssh-auth", f"{hop} takes {tries.methods or 'no method at all'}; a run nobody watches needs publickey"
            ) from error
    except (paramiko.SSHException, OSError) as error:
        _require_link(transport, hop, error)
        tries.notes.append(f"no key: {_reason(error)}")
    return False


def _require_link(transport: Any, hop: SshTarget, error: Exception) -> None:
    """HarnessError `ssh-unreachable` when it was the link that failed, which a later try may find mended."""
    if "timeout" in str(error).lower() or not (transport.is_active() or transport.farewell):
        raise HarnessError("ssh-unreachable", f"{hop}: the link broke while logging in ({error})") from error


def _failed(hop: SshTarget, tries: _Tries) -> UsageError:
    return UsageError(
        "ssh-auth",
        f"{hop} accepted no key of ours (it takes {tries.methods}). "
        f"Tried: {'; '.join(tries.notes) or 'nothing, there is no key'}. Name the key as "
        "IdentityFile in ~/.ssh/config, or load it with ssh-add, and see that the host has its public half",
    )


def _reason(error: Exception) -> str:
    allowed = getattr(error, "allowed_types", None)
    return (
        f"refused (the server takes {', '.join(allowed)})" if allowed else str(error).rstrip(".").lower() or "refused"
    )


def _agent(tries: _Tries) -> Any:
    """The agent of SSH_AUTH_SOCK, or None."""
    if not os.environ.get("SSH_AUTH_SOCK"):
        return None
    paramiko = ssh_library.paramiko()
    try:
        return paramiko.Agent()
    except (OSError, paramiko.SSHException) as error:
        tries.notes.append(f"the agent of SSH_AUTH_SOCK cannot be used ({error})")
        return None


def _candidates(hop: SshTarget, agent: dict[bytes, Any], tries: _Tries) -> Iterator[tuple[str, Any]]:
    for path in hop.identity_files:
        held = agent.get(_public(path) or b"")
        key = held if held is not None else _load(path, tries)
        if key is not None:
            yield f"{path}{' by the agent' if held is not None else ''}", key
    if hop.agent:
        for key in list(agent.values())[:MAX_AGENT_KEYS]:
            yield f"agent key {key.comment!r}", key


def _public(path: Path) -> bytes | None:
    """The public half beside a private key, so that an agent may hold the encrypted one."""
    file = path if path.suffix == ".pub" else path.with_name(f"{path.name}.pub")
    try:
        return base64.b64decode(file.read_text("ascii").split()[1], validate=True)
    except (OSError, ValueError, IndexError, binascii.Error):
        return None


def _load(path: Path, tries: _Tries) -> Any:
    paramiko = ssh_library.paramiko()
    if path.suffix == ".pub":
        tries.notes.append(f"{path}: a public key, and the agent does not hold its private half")
        return None
    try:
        return paramiko.PKey.from_path(path)
    except OSError as error:
        tries.notes.append(f"{path}: {error.strerror}")
    except (TypeError, paramiko.PasswordRequiredException):  # cryptography says TypeError for "no password given"
        tries.notes.append(f"{path}: encrypted, and no agent holds it; run ssh-add {path}")
    except Exception as error:  # the parsers below paramiko raise many kinds; none may show the file's content
        tries.notes.append(f"{path}: not a private key that can be read ({type(error).__name__})")
    return None
