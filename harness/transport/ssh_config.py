"""Where an alias leads, by the rules of ssh_config(5): address, user, keys, known hosts and the hops before it."""

from __future__ import annotations

import getpass
import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from harness.transport import ssh_library

__all__ = ["SshTarget", "resolve"]

MAX_HOPS = 8  # a chain that names itself is found here; nobody has been seen with more than three
MAX_INCLUDES = 16  # OpenSSH's own limit
SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
SYSTEM_KNOWN_HOSTS = (Path("/etc/ssh/ssh_known_hosts"), Path("/etc/ssh/ssh_known_hosts2"))
IDENTITIES = ("id_ed25519", "id_ecdsa", "id_rsa")


@dataclass(frozen=True)
class SshTarget:
    """One host and how to get there. `jumps` are the hops before it, nearest first, themselves without jumps.

    `agent` False means IdentitiesOnly: of the agent's keys only those of `identity_files` are offered.
    """

    host: str
    port: int
    user: str
    identity_files: tuple[Path, ...]
    known_hosts: tuple[Path, ...]
    jumps: tuple[SshTarget, ...] = ()
    agent: bool = True

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.user}@{host}:{self.port}"


def resolve(
    alias: str,
    *,
    user: str | None = None,
    port: int | None = None,
    identity_file: Path | None = None,
    config_file: Path | None = None,
    known_hosts: Path | None = None,
) -> SshTarget:
    """The target that `alias` means. Arguments win over the file.

    Without `config_file`, ~/.ssh/config and then the system's file are read, if there. `known_hosts` and nothing
    else is then believed, on each hop. UsageError `ssh-config` for what cannot be read or is not supported.
    """
    config = _config(config_file)
    target = _lookup(config, alias, known_hosts, depth=0)
    return replace(
        target,
        user=user or target.user,
        port=_port(str(port), alias) if port is not None else target.port,
        identity_files=(identity_file.expanduser(),) if identity_file is not None else target.identity_files,
    )


def _lookup(config: Any, alias: str, known_hosts: Path | None, depth: int) -> SshTarget:
    if depth > MAX_HOPS:
        raise UsageError("ssh-config", f"ProxyJump of {alias}: more than {MAX_HOPS} hops; the chain names itself")
    try:
        options = config.lookup(alias)
    except Exception as error:  # a Match exec raises whatever its missing helper raises
        raise UsageError("ssh-config", f"the SSH configuration cannot be applied to {alias}: {error}") from error
    return SshTarget(
        host=options["hostname"],
        port=_port(options.get("port", "22"), alias),
        user=options.get("user") or getpass.getuser(),
        identity_files=_identities(options.get("identityfile")),
        known_hosts=(known_hosts.expanduser(),) if known_hosts else _known_hosts(options.get("userknownhostsfile")),
        jumps=_jumps(config, options, alias, known_hosts, depth),
        agent=options.get("identitiesonly", "no").lower() != "yes",
    )


def _jumps(config: Any, options: Any, alias: str, known_hosts: Path | None, depth: int) -> tuple[SshTarget, ...]:
    """Hops in order. The first follows its own ProxyJump, the others are reached through the one before."""
    value = options.get("proxyjump")
    if value is None or value.lower() == "none":
        if value is None and options.get("proxycommand"):
            raise UsageError("ssh-config", f"Host {alias}: ProxyCommand is not supported; write it as ProxyJump")
        return ()
    hops: list[SshTarget] = []
    for item in value.split(","):
        name, user, port = _split(item.strip(), alias)
        hop = _lookup(config, name, known_hosts, depth + 1)
        before = () if hops else hop.jumps
        hops += [*before, replace(hop, user=user or hop.user, port=port or hop.port, jumps=())]
    if len(hops) > MAX_HOPS:
        raise UsageError("ssh-config", f"ProxyJump of {alias}: more than {MAX_HOPS} hops")
    return tuple(hops)


def _split(item: str, alias: str) -> tuple[str, str | None, int | None]:
    """`[user@]host[:port]`, with or without `ssh://`; an IPv6 address stands in brackets when a port follows."""
    user, at, place = item.removeprefix("ssh://").rstrip("/").rpartition("@")
    host, port = place, ""
    if place.startswith("["):
        host, _, port = place[1:].partition("]")
        port = port.removeprefix(":")
    elif place.count(":") == 1:
        host, _, port = place.partition(":")
    if not host or (at and not user):
        raise UsageError("ssh-config", f"ProxyJump of {alias}: {item!r} is not [user@]host[:port]")
    return host, user or None, _port(port, alias) if port else None


def _port(text: str, alias: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise UsageError("ssh-config", f"Host {alias}: {text!r} is not a port (1 to 65535)")
    return int(text)


def _identities(values: list[str] | None) -> tuple[Path, ...]:
    """The named files; when none are named, those of OpenSSH's default names that exist."""
    if values is None:
        return tuple(path for name in IDENTITIES if (path := Path.home() / ".ssh" / name).is_file())
    return tuple(Path(value).expanduser() for value in values if value.lower() != "none")


def _known_hosts(value: str | None) -> tuple[Path, ...]:
    if value is None:
        folder = Path.home() / ".ssh"
        return (folder / "known_hosts", folder / "known_hosts2", *SYSTEM_KNOWN_HOSTS)
    own = () if value.lower() == "none" else tuple(Path(_home(name)).expanduser() for name in value.split())
    return (*own, *SYSTEM_KNOWN_HOSTS)


def _home(name: str) -> str:
    return name.strip('"').replace("%d", str(Path.home()))


def _config(config_file: Path | None) -> Any:
    paramiko = ssh_library.paramiko()
    if config_file is not None:
        files = [config_file.expanduser()]
    else:
        files = [path for path in (Path.home() / ".ssh" / "config", SYSTEM_CONFIG) if path.is_file()]
    config = paramiko.SSHConfig()
    for path in files:
        try:
            config.parse(io.StringIO("\n".join(_lines(path, 0))))
        except paramiko.ConfigParseError as error:
            raise UsageError("ssh-config", f"{path}: {error}") from error
    return config


def _lines(path: Path, depth: int) -> list[str]:
    """A file's lines with each Include put in its place, which paramiko's parser would pass over in silence."""
    if depth > MAX_INCLUDES:
        raise UsageError("ssh-config", f"{path}: Include more than {MAX_INCLUDES} deep; it includes itself")
    try:
        text = path.read_text("utf-8", "replace")
    except OSError as error:
        raise UsageError("ssh-config", f"{path}: {error.strerror}; name another SSH configuration file") from error
    found: list[str] = []
    block = "Host *"
    for line in text.splitlines():
        words = line.replace("=", " ", 1).split()
        keyword = words[0].lower() if words else ""
        if keyword in ("host", "match"):
            block = line
        if keyword != "include":
            found.append(line)
            continue
        for name in (one for pattern in words[1:] for one in _included(path, pattern)):
            found += _lines(name, depth + 1)
            found.append(block)  # a Host line inside the included file must not swallow what follows
    return found


def _included(path: Path, pattern: str) -> list[Path]:
    """Files of an Include; relative names are those of ~/.ssh, or of the system's folder for its own file."""
    folder = SYSTEM_CONFIG.parent if path.parent.is_relative_to(SYSTEM_CONFIG.parent) else Path.home() / ".ssh"
    wanted = folder / Path(pattern.strip('"')).expanduser()
    return sorted(Path(wanted.anchor).glob(str(wanted.relative_to(wanted.anchor))))
