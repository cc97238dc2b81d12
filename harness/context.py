"""What every leg of a run needs, and what stops it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness.config import Config
from harness.engines.base import Engine
from harness.machine import Machine
from harness.plan import Plan
from harness.state import RunState
from harness.watchdog import Deadline

__all__ = ["Context"]


@dataclass
class Context:
    """`second` is the adapter of engine.second; `frozen` is the plan document every process reads; `check` raises when
    somebody asked to stop; `tell` publishes progress; `metrics` keeps each leg's last /metrics text by the leg's name;
    `deadline` is the present leg's; `machine` is the host that is acted upon."""

    plan: Plan
    config: Config
    engine: Engine
    second: Engine | None
    state: RunState
    frozen: Path | None
    lease_fd: int | None
    keeper_pid: int | None
    check: Callable[[], None]
    tell: Callable[[Mapping[str, Any]], None]
    machine: Machine = field(default_factory=Machine)
    deadline: Deadline = field(default_factory=lambda: Deadline(math.inf))
    metrics: dict[str, str] = field(default_factory=dict)

    def arm(self, letter: str) -> dict[str, Any]:
        """The arm with its real values; the plan shows secrets as such."""
        return asdict(self.config.engine.candidate if letter == "A" else self.config.engine.baseline)
