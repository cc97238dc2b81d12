"""`python -m harness host prepare`: sources, wheels and a private environment on a host, each checked and recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from harness import bootstrap, canonical
from harness.bootstrap import HostPython
from harness.config import HostConfig
from harness.errors import UsageError
from harness.state import cache_dir
from harness.transport.base import LinkLost
from harness.transport.remote import Remote

__all__ = ["prepare_host"]

INSTALL_S = 900.0
CHECK_S = 300.0


def prepare_host(
    config: HostConfig, note: Callable[[str], None], wheels: Sequence[Path] | None = None
) -> dict[str, Any]:
    """Prepare the host and return its record. Nothing is sent twice. UsageError says what failed and the mend.

    `wheels` are sent instead of those that pip finds for this installation's pins.
    """
    if config.transport != "ssh":
        raise UsageError(
            "bad-value",
            f"host={config.name} is this machine and needs no preparation; name one that is reached over SSH",
        )
    with closing(Remote(config)) as remote:
        try:
            return _prepare(remote, note, wheels)
        except LinkLost as error:
            raise UsageError("unreachable", f"{error.message}; run the same command again, it goes on") from error


def _prepare(remote: Remote, note: Callable[[str], None], wheels: Sequence[Path] | None) -> dict[str, Any]:
    ours = bootstrap.sources()
    found = remote.ask("probe", {"sources": ours.name})
    name = remote.config.name
    note(f"{name}: {found['implementation']} {found['python']} on {found['machine']}, glibc {found['glibc']}")
    if (record := found["record"]) is not None and record["sources_sha256"] == ours.sha256:
        note(f"{name} is prepared already: sources {ours.name} in {found['base']}")
        return dict(record)
    if wheels is None:
        wheels = _resolved(HostPython(found["python"], found["machine"], found["glibc"]), note)
    archive = f"sources/{ours.name}.tar"
    rows = {f"wheels/{canonical.sha256_file(path)[:12]}/{path.name}": path for path in wheels}
    files = [_row(path, name) for name, path in rows.items()]
    files.append({"path": archive, "size": len(ours.archive), "sha256": ours.sha256})
    _send(remote, found["base"], files, {**rows, archive: ours.archive}, note)
    request = {
        "sources": ours.name,
        "sources_sha256": ours.sha256,
        "archive": archive,
        "files": files,
        "imports": list(bootstrap.IMPORTS),
        "environment": canonical.sha256_bytes(canonical.dumps([found["python"], sorted(rows)]))[:16],
    }
    record = remote.ask("install", request, INSTALL_S)
    note(f"{name} is prepared: sources {ours.name}, Python {record['python']}, {len(rows)} wheels in {found['base']}")
    return record


def _resolved(host: HostPython, note: Callable[[str], None]) -> list[Path]:
    pins = bootstrap.pins()
    note(f"{len(pins)} pinned packages, resolved here for Python {host.short} on {host.machine}")
    return bootstrap.download(host, pins, cache_dir(HostConfig(name="here")) / "wheels")


def _row(path: Path, name: str) -> dict[str, Any]:
    return {"path": name, "size": path.stat().st_size, "sha256": canonical.sha256_file(path)}


def _send(
    remote: Remote,
    base: str,
    files: list[dict[str, Any]],
    contents: dict[str, Path | bytes],
    note: Callable[[str], None],
) -> None:
    missing = remote.ask("missing", {"files": files}, CHECK_S)["missing"]
    size = sum(row["size"] for row in files if row["path"] in missing)
    note(f"sending {len(missing)} of {len(files)} files, {size / 1e6:.1f} MB")
    for path in missing:
        remote.put(contents[path], f"{base}/{path}")
