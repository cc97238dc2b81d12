"""The run on this machine: start the keeper, look at its state, ask it to stop. Nothing else."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import keeper, process
from harness.config import HostConfig
from harness.errors import HarnessError, UsageError
from harness.keeper import KeeperPlan
from harness.state import RunState
from harness.telemetry import host, probe, procfs

__all__ = ["HostIdentity", "Local"]

IDENTITY = ("hostname", "kernel", "machine", "cpu_model", "cores", "usable_cores", "mem_total_kib", "python")


@dataclass(frozen=True)
class HostIdentity:
    """What of a host belongs to a run's identity, and whether it has a GPU that NVML knows."""

    facts: Mapping[str, Any]
    gpu: bool


class Local:
    """Transport to this machine."""

    def __init__(self, config: HostConfig) -> None:
        self._config = config
        self._last_message: str | None = None

    def identity(self) -> HostIdentity:
        """Facts that do not change between runs. NVML is asked in its own process, as everywhere."""
        try:
            gpu = probe.ask().identity
        except HarnessError as error:
            raise UsageError(error.code, error.message) from error
        facts = {name: value for name, value in host.snapshot().items() if name in IDENTITY}
        return HostIdentity(facts if gpu is None else {**facts, "gpu": gpu}, gpu=gpu is not None)

    def start(self, state: RunState) -> None:
        """Start keeper and supervisor, detached. UsageError when the lease path cannot be used."""
        plan = KeeperPlan(
            lease_path=str(Path(self._config.lease_path)),
            lease_timeout_s=self._config.lease_timeout_s,
            run_id=state.root.name,
            grace_s=self._config.stop_grace_s,
            cwd=str(state.root),
            env={"PYTHONPATH": str(Path(__file__).resolve().parents[2]), **_cache_variables()},
        )
        keeper.launch(state.root, plan, [sys.executable, "-m", "harness.supervisor", str(state.root)])

    def started(self, state: RunState) -> bool:
        """Whether a keeper was ever started for this run."""
        return keeper.read_state(state.root) is not None

    def alive(self, state: RunState) -> bool:
        """Whether the run's keeper still runs. UsageError when it never got the lease: nothing was started then."""
        found = keeper.read_state(state.root)
        if found is None:
            return False
        if found.phase == "failed" and found.supervisor is None:
            raise UsageError(found.code or "lease", found.message or "the lease was not acquired")
        return found.alive()

    def waiting(self, state: RunState) -> Iterator[str]:
        """New sentences about who holds the lease, while it is being waited for."""
        found = keeper.read_state(state.root)
        message = found.message if found is not None and found.phase == "waiting" else None
        if message is not None and message != self._last_message:
            self._last_message = message
            yield message

    def stop(self, state: RunState, how: str) -> None:
        """Ask the supervisor to end: `after-leg` or `now`. While the lease is waited for, the keeper itself ends."""
        state.stop.write_text(how)
        found = keeper.read_state(state.root)
        if found is not None and found.phase == "waiting" and found.alive():
            process.send(procfs.ProcessId(found.pid, found.start_ticks), signal.SIGTERM)


def _cache_variables() -> dict[str, str]:
    """Where the supervisor finds weights and environments: the same places as this process."""
    return {name: os.environ[name] for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "HOME") if name in os.environ}
