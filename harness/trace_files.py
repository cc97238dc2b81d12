"""Traces that a person gives to G3: read and counted before anything is started, kept whole or as their launches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import canonical, traces
from harness.agent.values import pack_document
from harness.config import GateConfig, TraceConfig
from harness.errors import HarnessError, UsageError

__all__ = ["KEEP_BYTES", "Given", "packed", "read"]

KEEP_BYTES = 16 << 20  # a larger trace is kept as its launches by kernel


@dataclass(frozen=True)
class Given:
    """One arm's trace: the file that the bundle gets, and what the plan says of it. `sha256` is of that file."""

    file: str
    data: bytes
    source_bytes: int
    source_sha256: str
    forwards: int

    def named(self) -> dict[str, Any]:
        source = {"bytes": self.source_bytes, "sha256": self.source_sha256}
        return {
            "file": self.file,
            "sha256": canonical.sha256_bytes(self.data),
            "forwards": self.forwards,
            "source": source,
        }


def read(gate: GateConfig, invoked_in: Path, keep_bytes: int = KEEP_BYTES) -> Mapping[str, Given]:
    """The traces of `gate.traces` by arm; empty for other gates. UsageError `bad-trace` names the file."""
    if gate.name != "g3":
        return {}
    asked = {"A": ("candidate", gate.traces.candidate), "B": ("baseline", gate.traces.baseline)}
    return {
        arm: _read(arm, name, one, invoked_in, keep_bytes) for arm, (name, one) in asked.items() if one.path is not None
    }


def packed(given: Mapping[str, Given]) -> dict[str, str]:
    """The files for the bundle by name, as text for a request."""
    return {one.file: pack_document(one.data) for one in given.values()}


def _read(arm: str, name: str, asked: TraceConfig, invoked_in: Path, keep_bytes: int) -> Given:
    path = (invoked_in / str(asked.path)).resolve()
    where = f"gate.traces.{name}.path={path}"
    try:
        data = path.read_bytes()
        form = traces.form(data)
        trace = traces.read_nsys(path) if form == traces.NSYS else traces.read_torch(path)
    except OSError as error:
        raise UsageError("bad-trace", f"{where}: {error.strerror}; give a profiler's file") from error
    except HarnessError as error:
        raise UsageError("bad-trace", f"{where}: {error.message}") from error
    kept = (form, data) if len(data) <= keep_bytes else (traces.TABLE, traces.table(trace))
    return Given(f"trace-{arm}{kept[0]}", kept[1], len(data), canonical.sha256_bytes(data), asked.forwards)
