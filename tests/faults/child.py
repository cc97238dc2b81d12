"""The harness's own programs with what a fault matrix may inject and a user may not.

`python -m tests.faults.child run …` is `python -m harness run …` with the engine `faulty`; it starts the keeper with
the supervisor `python -m tests.faults.child STATE`. FAULTS_INJECT names what that one is told wrongly.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import keeper
from harness.engines import registry
from harness.records import Canary
from harness.state import RunState
from harness.telemetry import canary, probe, procfs
from tests.faults.engine import FOLDER, INJECT, Faulty

FAKE_NVML = "FAULTS_NVML"
PASSED_ON = (INJECT, FOLDER)
PROBE_S = 3.0
DAY_S = 86400.0
GIB_KIB = 1 << 20


def register() -> None:
    def faulty(options: Mapping[str, Any], cache_dir: Path) -> Faulty:
        return Faulty(options, cache_dir)

    registry.ENGINES = {**registry.ENGINES, "faulty": faulty}


def control(argv: Sequence[str]) -> int:
    from harness import cli

    if os.environ.get(INJECT, "").startswith("nvml-"):
        _nvml("nvml-idle", Path(os.environ[FOLDER]))
    launch = keeper.launch

    def with_faults(state_dir: Path, plan: keeper.KeeperPlan, argv: Sequence[str]) -> keeper.KeeperState:
        env = {**plan.env, **{name: os.environ[name] for name in PASSED_ON if name in os.environ}}
        changed = replace(plan, env=env, stall_s=1.5, stop_s=10.0)
        return launch(state_dir, changed, [sys.executable, "-m", "tests.faults.child", argv[-1]])

    keeper.launch = with_faults
    return cli.main(list(argv))


def supervise(state: Path) -> int:
    from harness.supervisor import Supervisor

    kind, folder = os.environ.get(INJECT, ""), Path(os.environ[FOLDER])
    tripped = folder / "tripped"  # made by the matrix at the right moment

    def boot_id() -> str | None:
        return "another-boot" if kind == "reboot" and tripped.exists() else procfs.boot_id()

    _steady_host()
    if kind.startswith("nvml-"):
        _nvml(kind, tripped)
    if kind.startswith("clock-"):
        _clock(DAY_S if kind == "clock-forward" else -DAY_S, tripped)
    return Supervisor(RunState(state), boot_id).run()


def _steady_host() -> None:
    """Cells run side by side, so free memory and the canary's times are not one cell's own: both are told as steady.

    Memory is a GiB above what is there, so that every leg's drop is a drop.
    """
    seen = procfs.meminfo()
    steady = replace(seen, available_kib=(seen.available_kib or 0) + GIB_KIB)
    procfs.meminfo = lambda: steady
    sung = Canary(
        {"cpu_copy": 1, "cpu_gemv": 1}, dict.fromkeys(("gpu_copy", "gpu_gemv"), "not sung in the fault matrix")
    )
    canary.sing = lambda gpu: sung


def _nvml(kind: str, tripped: Path) -> None:
    """From the moment on, the probe process meets another `pynvml`. A GPU is there in the plan's eyes."""
    real = probe.ask

    def ask(*arguments: Any, **more: Any) -> probe.GpuAnswer:
        name = kind if tripped.exists() else "nvml-idle"
        os.environ["PYTHONPATH"] = os.pathsep.join((str(Path(__file__).parent / "nvml"), _plain_path()))
        os.environ[FAKE_NVML] = name
        return real(PROBE_S)

    probe.ask = ask


def _plain_path() -> str:
    return os.environ.setdefault("FAULTS_PATH", os.environ.get("PYTHONPATH", ""))


def _clock(step_s: float, tripped: Path) -> None:
    """The wall clock as this process sees it; CLOCK_MONOTONIC is never touched."""
    import datetime as module

    from harness import journal

    real = time.time
    time.time = lambda: real() + (step_s if tripped.exists() else 0.0)

    class Stepped(module.datetime):
        @classmethod
        def now(cls, tz: module.tzinfo | None = None) -> Stepped:
            return cls.fromtimestamp(time.time(), tz)

    journal.datetime = Stepped  # type: ignore[misc]


def main() -> int:
    register()
    if sys.argv[1] in ("run", "status"):
        return control(sys.argv[1:])
    return supervise(Path(sys.argv[1]))


if __name__ == "__main__":
    sys.exit(main())
