"""What a run does to its host, in one place: processes, sockets, page cache, GPU, canary.

A rehearsal (`harness.rehearsal`) puts a made machine here and runs everything else as it is.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from harness import ports, process, readiness
from harness.engines.base import Address
from harness.plan import LegPlan
from harness.ports import PortOwner
from harness.process import Owned, StopReport
from harness.readiness import Answer
from harness.records import Canary
from harness.telemetry import canary, host, pagecache, probe
from harness.telemetry.host import ReturnCheck
from harness.telemetry.pagecache import DropReport
from harness.telemetry.probe import GpuAnswer

__all__ = ["CLIENT", "ENGINE", "SAMPLER", "Machine"]

ENGINE, CLIENT, SAMPLER = "engine", "client", "sampler"  # what a started process is for; an engine may be a program


class Machine:
    """The real host. Each method is the function of the same meaning that it calls."""

    def begin(self, leg: LegPlan) -> None:
        """The next leg starts."""

    def on_term(self, action: Callable[[int, FrameType | None], None]) -> None:
        signal.signal(signal.SIGTERM, action)

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def start(
        self,
        _role: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        log: Path,
        *,
        pass_fds: Sequence[int] = (),
        reaper: int | None = None,
    ) -> Owned:
        return process.start(argv, env, cwd, log, pass_fds=pass_fds, reaper=reaper)

    def stop(self, owned: Owned, grace_s: float) -> StopReport:
        return process.stop(owned, grace_s)

    def require_free(self, port: int, key: str) -> None:
        ports.require_free(port, key)

    def port_owner(self, port: int) -> PortOwner | None:
        return ports.owner(port)

    def await_ready(
        self,
        owned: Owned,
        port: int,
        model: str,
        prompt: Sequence[int],
        *,
        log: Path,
        timeout_s: float,
        check: Callable[[], None],
    ) -> None:
        readiness.await_ready(owned, port, model, prompt, log=log, timeout_s=timeout_s, check=check)

    def require_answer(self, address: Address, model: str, prompt: Sequence[int], *, timeout_s: float) -> None:
        readiness.require_answer(address, model, prompt, timeout_s=timeout_s)

    def get(self, port: int, path: str, timeout_s: float = readiness.ANSWER_TIMEOUT_S) -> Answer:
        return readiness.get(port, path, timeout_s)

    def drop(self, roots: Sequence[Path]) -> DropReport:
        return pagecache.drop(roots)

    def gpus(self) -> GpuAnswer:
        return probe.ask()

    def sing(self, gpu: bool) -> Canary:
        return canary.sing(gpu)

    def snapshot(self, paths: Mapping[str, Path]) -> dict[str, Any]:
        return host.snapshot(paths)

    def settle(self) -> None:
        host.settle()

    def wait_returned(self, baseline_kib: int | None, drop_kib: int | None, timeout_s: float) -> ReturnCheck:
        return host.wait_returned(baseline_kib, drop_kib, timeout_s)
