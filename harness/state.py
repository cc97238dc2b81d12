"""Where a run lives while it runs: one folder, written by the supervisor, read by the controller."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.config import HostConfig

__all__ = ["RunState", "cache_dir", "state_dir", "write_atomic"]

APPLICATION = "nvfp4-gates"


def _base(variable: str, fallback: str, environ: Mapping[str, str]) -> Path:
    root = environ.get(variable)
    return (Path(root) if root else Path(environ.get("HOME", "/")) / fallback) / APPLICATION


def state_dir(host: HostConfig, environ: Mapping[str, str] = os.environ) -> Path:
    return Path(host.state_dir).resolve() if host.state_dir else _base("XDG_STATE_HOME", ".local/state", environ)


def cache_dir(host: HostConfig, environ: Mapping[str, str] = os.environ) -> Path:
    return Path(host.cache_dir).resolve() if host.cache_dir else _base("XDG_CACHE_HOME", ".cache", environ)


def write_atomic(path: Path, value: Any) -> None:
    """Replace a small JSON file whole, so that a reader never sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(value))
    temporary.replace(path)


@dataclass(frozen=True)
class RunState:
    """The folder of one run. `run.json` holds what is of this host alone: absolute paths, the port, secrets."""

    root: Path

    @property
    def bundle(self) -> Path:
        return self.root / "bundle"

    @property
    def journal(self) -> Path:
        return self.bundle / "journal.jsonl"

    @property
    def plan(self) -> Path:
        return self.bundle / "plan.json"

    @property
    def run(self) -> Path:
        return self.root / "run.json"

    @property
    def progress(self) -> Path:
        return self.root / "progress.json"

    @property
    def stop(self) -> Path:
        """Exists once somebody asked to stop: its text is `after-leg` or `now`."""
        return self.root / "stop"

    @property
    def frozen_plans(self) -> Path:
        return self.root / "plans" / "frozen.json"

    @property
    def corpus(self) -> Path:
        return self.root / "corpus"

    def read(self, path: Path) -> dict[str, Any] | None:
        """A JSON object of this run, or None while it is not there."""
        try:
            document = json.loads(path.read_text())
        except (FileNotFoundError, ValueError):
            return None
        return document if isinstance(document, dict) else None

    def stop_request(self) -> str | None:
        try:
            return self.stop.read_text().strip()
        except FileNotFoundError:
            return None
