"""`poll`, `stop`, `pack`, `forget` and `list`: a run that goes on, or has ended, seen from outside.

Light on purpose: a poll of a host that measures imports no configuration library and costs it one short process.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import bundle, canonical, keeper, lease, process
from harness.agent.values import FileRow, Packed, RunLine, Seen
from harness.config import HostConfig
from harness.errors import HarnessError, UsageError
from harness.keeper import KeeperState
from harness.state import RunState, state_dir
from harness.telemetry import procfs

__all__ = ["forget", "listing", "pack", "poll", "stop"]

LOOK_S = 0.25
LISTED = "`python -m harness status` lists those that are there"
SHOWN = ("leg", "phase")  # a change of these is news at once; counts inside a leg come with the next poll


def poll(request: Mapping[str, Any]) -> dict[str, Any]:
    """Request: `host`, `run`, `since` (a stamp), `wait_s`. Answers when something changed, else after `wait_s`."""
    state = _state(request)
    give_up = time.monotonic() + float(request["wait_s"])
    while True:
        seen = _seen(state)
        if seen.stamp != request["since"] or not seen.alive or time.monotonic() >= give_up:
            return seen.to_json()
        time.sleep(LOOK_S)


def stop(request: Mapping[str, Any]) -> dict[str, Any]:
    """Request: `host`, `run`, `how`: `after-leg` or `now`. While the lease is waited for, the keeper itself ends."""
    state = _state(request)
    found = _keeper(state)
    state.stop.write_text(request["how"])
    if found.phase == "waiting" and found.alive():
        process.send(procfs.ProcessId(found.pid, found.start_ticks), signal.SIGTERM)
    return {"alive": found.alive()}


def pack(request: Mapping[str, Any]) -> dict[str, Any]:
    """Request: `host`, `run`. The raw files of a run that has ended. HarnessError `still-running`."""
    state = _state(request)
    found = _keeper(state)
    if found.alive():
        raise HarnessError("still-running", f"{state.root.name} goes on; its files are not whole yet")
    rows = [_row(state.bundle, path) for path in bundle.members(state.bundle)]
    said = process.tail(state.root / keeper.SUPERVISOR_LOG) or process.tail(state.root / keeper.LOG)
    told = state.read(state.root / keeper.STATE) or {}
    return Packed(str(state.bundle), rows, told, said, procfs.boot_id()).to_json()


def _row(root: Path, path: Path) -> FileRow:
    return FileRow(path.relative_to(root).as_posix(), path.stat().st_size, canonical.sha256_file(path))


def forget(request: Mapping[str, Any]) -> dict[str, Any]:
    """Request: `host`, `run`. Remove the folder of a run that has ended. Repeatable: it may be gone already."""
    state = _state(request, must_exist=False)
    found = keeper.read_state(state.root)
    if found is not None and found.alive() and not _refused(found):
        raise HarnessError("still-running", f"{state.root.name} goes on; it cannot be forgotten")
    shutil.rmtree(state.root, ignore_errors=True)
    return {}


def listing(request: Mapping[str, Any]) -> dict[str, Any]:
    """Request: `host`. Every run in the state folder, and what is known of the lease."""
    host = HostConfig(**request["host"])
    rows = []
    for root in sorted(state_dir(host).glob("*-*")):
        found = keeper.read_state(root)
        if found is not None:
            state, alive = RunState(root), found.alive()
            phase = (
                found.phase if alive or found.ended() else "rebooted" if found.rebooted(procfs.boot_id()) else "lost"
            )
            rows.append(RunLine(root.name, phase, found.since, alive, state.read(state.progress)).to_json())
    return {"runs": rows, "lease": lease.describe(Path(host.lease_path)).sentence}


def _state(request: Mapping[str, Any], *, must_exist: bool = True) -> RunState:
    name = request["run"]
    root = state_dir(HostConfig(**request["host"])) / name
    if Path(name).name != name or name.startswith("."):
        raise UsageError("no-such-run", f"{name!r} is not the name of a run; `python -m harness status` lists them")
    if must_exist and not root.is_dir():
        raise UsageError(
            "no-such-run", f"there is no run {name} in {root.parent}; `python -m harness status` lists them"
        )
    return RunState(root)


def _keeper(state: RunState) -> KeeperState:
    found = keeper.read_state(state.root)
    if found is None:
        raise UsageError("no-such-run", f"{state.root.name} was never started; run its command again")
    return found


def _refused(found: KeeperState) -> bool:
    """It never got the lease, so nothing was started."""
    return found.phase == "failed" and found.supervisor is None


def _seen(state: RunState) -> Seen:
    found = _keeper(state)
    progress = state.read(state.progress)
    shown = [None if progress is None else progress.get(name) for name in SHOWN]
    alive = found.alive()
    stamp = canonical.sha256_bytes(canonical.dumps([asdict(found), shown, alive]))[:16]
    waiting = found.message if found.phase in ("waiting", "held", "draining") else None
    refused = (found.code or "lease", found.message or "the lease was not acquired") if _refused(found) else None
    return Seen(stamp, alive, found.phase, waiting, progress, refused)
