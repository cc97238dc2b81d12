"""FlashInfer's managed store (autotune_v2): `<root>/v2/<environment>/manifest.json` and `entries/<operation>.json`.

Both names are hashes: 16 digits of the SHA-256 of the canonical manifest, 24 of that of the key inside the entry.
FlashInfer takes a file that fails these for a miss; here it refuses the store, because a plan is gone or was moved.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kernels.errors import PlanDocumentError, shown
from kernels.json_strict import loads_object
from kernels.plans import store
from kernels.plans.directories import is_directory, names
from kernels.plans.flashinfer_file import MAX_BYTES, PlanEntries, policy
from kernels.plans.flashinfer_key import claims_fp4
from kernels.plans.literal import LiteralError, read_tuple
from kernels.plans.upstream import FORMAT_MANAGED, SourceFile, UpstreamDocument

__all__ = ["looks_managed", "read_managed"]

MANIFEST, ENTRIES, SCHEMA = "manifest.json", "entries", "v2"
_MAX_FILE_BYTES = 64 * 1024
_ENVIRONMENT = re.compile(r"[0-9a-f]{16}")
_POLICY_PREFIX = "measure_"


@dataclass
class _Files:
    """Reads the store's files, counting bytes against the bound that one file of another layout would have."""

    found: list[SourceFile]
    left: int = MAX_BYTES

    def read(self, path: Path) -> dict[str, Any]:
        data = store.read(path, min(_MAX_FILE_BYTES, self.left))
        if data is None:
            raise PlanDocumentError("absent", f"{path} does not exist: the store is incomplete")
        self.left -= len(data)
        self.found.append(SourceFile(str(path), len(data), hashlib.sha256(data).hexdigest()))
        return loads_object(data, str(path))


def looks_managed(directory: Path) -> bool:
    """Whether a directory is a managed store: its root, its `v2` or one environment."""
    found = names(directory)
    return not {MANIFEST, ENTRIES, SCHEMA}.isdisjoint(found) or bool(_environments(directory))


def read_managed(directory: Path) -> UpstreamDocument:
    """The one environment in `directory`. PlanDocumentError refuses the store whole, naming the file.

    Codes: `ambiguous` (several environments, named), `absent`, `bad-manifest`, `bad-name` (a name that is not the hash
    of what the file holds), `bad-value`, `too-many-entries`, and those of `parse_upstream` for keys and tactics.
    """
    home = _one_environment(directory)
    files = _Files([])
    manifest = files.read(home / MANIFEST)
    metadata = _metadata(manifest, home)
    version = metadata.get("flashinfer_version")
    entries = PlanEntries(version)
    paths, ignored = _entry_paths(home / ENTRIES)
    for path in paths:
        _add(entries, files.read(path), path)
    measured = sorted(f"{name}={value}" for name, value in manifest.items() if name.startswith(_POLICY_PREFIX))
    notes = entries.notes(metadata)
    notes += [f"measured with {', '.join(measured)}"] if measured else []
    notes += [f"{ignored} files in {ENTRIES} are no entries and were ignored"] if ignored else []
    return UpstreamDocument(
        format=FORMAT_MANAGED,
        version=version,
        metadata=MappingProxyType(metadata),
        plans=MappingProxyType(dict(sorted(entries.plans.items()))),
        foreign=entries.foreign,
        files=tuple(files.found),
        notes=tuple(notes),
        layout="managed-store",
        policies=MappingProxyType(dict(sorted(entries.policies.items()))),
    )


def _one_environment(directory: Path) -> Path:
    found = names(directory)
    if MANIFEST in found or ENTRIES in found:
        return directory
    above = directory / SCHEMA if SCHEMA in found else directory
    environments = _environments(above)
    if len(environments) != 1:
        named = ", ".join(environments[:8]) or "none"
        text = f"{above} holds {len(environments)} environments ({named}), one is required; give the directory of one"
        raise PlanDocumentError("ambiguous" if environments else "absent", text)
    return above / environments[0]


def _environments(directory: Path) -> list[str]:
    return [name for name in names(directory) if _ENVIRONMENT.fullmatch(name) and is_directory(directory / name)]


def _metadata(manifest: dict[str, Any], home: Path) -> dict[str, str]:
    name = str(home / MANIFEST)
    for field, value in manifest.items():
        if not isinstance(value, str):
            raise PlanDocumentError("bad-manifest", f"{name} has {shown(field)}={shown(value)}, must be a text")
    if manifest.get("cache_schema") != SCHEMA:
        seen = shown(manifest.get("cache_schema"))
        raise PlanDocumentError("bad-manifest", f"{name} has the cache_schema {seen}, known is {SCHEMA!r}")
    canonical = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    own = _digest(canonical)[:16]
    # The name as the file system has it: `.` or a link must not hide a directory that was renamed.
    seen_name = home.resolve().name
    if own != seen_name:
        text = f"{name} describes the environment {own}, but its directory is called {shown(seen_name)}"
        raise PlanDocumentError("bad-name", f"{text}: it was copied or changed; restore it")
    return {k: v for k, v in manifest.items() if k != "cache_schema" and not k.startswith(_POLICY_PREFIX)}


def _entry_paths(directory: Path) -> tuple[list[Path], int]:
    found = names(directory)
    entries = [directory / name for name in found if name.endswith(".json")]
    return entries, len(found) - len(entries)


def _add(entries: PlanEntries, entry: dict[str, Any], path: Path) -> None:
    key = entry.get("key")
    if not isinstance(key, str):
        raise PlanDocumentError("bad-key", f"malformed FlashInfer FP4 key: {path} has the key {shown(key)}, not a text")
    if path.stem != _digest(key)[:24]:
        text = f"{path} holds the key {shown(key)}, whose file is {_digest(key)[:24]}.json"
        raise PlanDocumentError("bad-name", f"{text}: it was copied or changed; remove or restore it")
    if not claims_fp4(key):
        entries.foreign += 1
        return
    where = f"{path} entry {shown(key)}"
    shape = entries.add_key(key, where)
    entries.plans[shape] = entries.managed_tactic(entry.get("runner"), entry.get("tactic"), where)
    if entry.get("profiling_policy") is not None:
        entries.policies[shape] = policy(entry["profiling_policy"], where)
    if "key_fields" in entry:
        _check_fields(entry["key_fields"], key, where)


def _check_fields(fields: Any, key: str, where: str) -> None:
    """FlashInfer preloads plans by this structural form, so one that says something else is another plan."""
    try:
        agrees = repr(_decoded(fields)) == repr(read_tuple(key))
    except (LiteralError, TypeError) as error:
        raise PlanDocumentError("bad-value", f"{where} has key_fields {shown(fields)}: {error}") from None
    if not agrees:
        raise PlanDocumentError("bad-value", f"{where} has key_fields of another plan: {shown(_decoded(fields))}")


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        items = value.get("__tuple__")
        if len(value) != 1 or not isinstance(items, list):
            raise TypeError(f"{shown(value)} is no tuple")
        return tuple(_decoded(item) for item in items)
    return value


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
