"""Carries out a plan on the GPU host: owns the processes, writes the journal, never talks to a network.

`python -m harness.supervisor STATE` is started by the keeper, which holds the lease. It goes on when the controller is
gone, and ends with the journal saying what happened: exit 0 when every leg ran, 2 when the run became void.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from harness import bundle, canonical, keeper, ports, settings, verdict
from harness.context import Context
from harness.engines import registry
from harness.errors import EXIT_BUG, EXIT_PASS, EXIT_VOID, HarnessError
from harness.journal import Journal
from harness.leg import run_leg
from harness.plan import LegPlan, Plan
from harness.state import RunState, cache_dir, write_atomic
from harness.telemetry import host, probe, procfs

__all__ = ["main"]

IDLE_POLL_S = 1.0
LEG_WORTH = 8  # for the time left: a server's start and end take about as long as eight requests of the seed's workload


class Supervisor:
    """One run from its lease to its last leg."""

    def __init__(self, state: RunState) -> None:
        run = state.read(state.run)
        assert run is not None, "the controller writes run.json before it starts the keeper"
        self._run = run
        self._state = state
        self._config = settings.load(run["config"])
        self._journal = Journal(state.journal)
        self._terminated = False
        self._last_told = 0.0
        self._progress: dict[str, Any] = {}
        signal.signal(signal.SIGTERM, self._on_term)

    def _on_term(self, _number: int, _frame: FrameType | None) -> None:
        self._terminated = True

    def check(self) -> None:
        """Raises HarnessError `interrupted` once somebody asked to stop now."""
        if self._terminated or self._state.stop_request() == "now":
            raise HarnessError("interrupted", "stopped on request; the leg in flight is void")

    def tell(self, news: Mapping[str, Any]) -> None:
        """Publish progress, at most about ten times a second."""
        self._progress.update(news)
        now = time.monotonic()
        if "phase" in news or now - self._last_told > 0.1:
            self._last_told = now
            write_atomic(self._state.progress, self._progress)

    def run(self) -> int:
        plan = Plan.from_bytes(self._state.plan.read_bytes())
        context = self._context(plan)
        self._journal.write(
            "start",
            boot_id=procfs.boot_id(),
            lease=self._lease(),
            earlier=self._run["earlier"],
            nonce=self._run["nonce"],
            host=host.snapshot({"state": self._state.root}),
        )
        where = "run"
        code = EXIT_PASS
        try:
            self._check_host(plan)
            for number, leg in enumerate(plan.legs):
                where = leg.name
                self._before_leg(number, leg, plan)
                self._await_idle_gpu(plan)
                run_leg(context, leg)
                self._journal.write("leg", leg=leg.name, leg_sha256=self._leg_digest(leg))
                self._judge(plan, leg)
        except HarnessError as error:
            self._journal.write("void", code=error.code, where=where, message=error.message)
            code = EXIT_VOID
        except Exception as error:  # a bug of ours: the bundle must say so, and the engine is down by now
            self._journal.write("void", code="internal-error", where=where, message=repr(error))
            traceback.print_exc()
            code = EXIT_BUG
        left = [f"port {self._config.host.port} is open"] if ports.owner(self._config.host.port) else []
        self._journal.write("end", boot_id=procfs.boot_id(), left_behind=left)
        self.tell({"phase": "done"})
        return code

    def _lease(self) -> dict[str, Any] | None:
        """The keeper's word that it holds the lock: since when, with which fencing token."""
        found = keeper.read_state(self._state.root)
        return None if found is None or found.phase != "held" else {"since": found.since, "token": found.token}

    def _context(self, plan: Plan) -> Context:
        engine = registry.create(self._config.engine.name, self._config.engine.options, cache_dir(self._config.host))
        frozen = None
        if "fp4_plans" in engine.capabilities:
            frozen = Path(self._config.engine.plan) if self._config.engine.plan else self._state.frozen_plans
        if self._config.engine.plan is not None and frozen is not None:
            shutil.copyfile(frozen, self._state.bundle / "frozen-plans.json")
        lease_fd = os.environ.get(keeper.LEASE_FD)
        return Context(
            plan=plan,
            config=self._config,
            engine=engine,
            state=self._state,
            frozen=frozen,
            lease_fd=int(lease_fd) if lease_fd else None,
            keeper_pid=os.getppid(),
            check=self.check,
            tell=self.tell,
        )

    def _check_host(self, plan: Plan) -> None:
        """A free lock proves nothing: the host must be fit for a measurement, too."""
        limits = self._config.host
        ports.require_free(limits.port, "host.port")
        snapshot = host.snapshot({"state": self._state.root})
        load = snapshot["loadavg"][0] if snapshot["loadavg"] else None
        if limits.max_load_average is not None and (load is None or load > limits.max_load_average):
            raise HarnessError("busy-host", f"load average {load}, host.max_load_average={limits.max_load_average}")
        free = snapshot["disk_free_bytes"]["state"] // (1 << 20)
        if free < limits.min_disk_free_mib:
            raise HarnessError("low-disk", f"{free} MiB free, host.min_disk_free_mib={limits.min_disk_free_mib}")

    def _await_idle_gpu(self, plan: Plan) -> None:
        """No compute process may exist when a leg begins: a free lock proves nothing, and drivers free memory late."""
        deadline = time.monotonic() + self._config.host.memory_return_timeout_s
        while plan.gpu:
            answer = probe.ask()
            if answer.identity is None or answer.processes is None:
                raise HarnessError("gpu-unreadable", f"whether the GPU is idle cannot be told: {answer.reason}")
            if not answer.processes:
                return
            if time.monotonic() > deadline:
                pids = ", ".join(str(pid) for pid, _ in answer.processes)
                raise HarnessError("gpu-busy", f"compute processes {pids} use the GPU and are not this run's; end them")
            self.check()
            time.sleep(IDLE_POLL_S)

    def _judge(self, plan: Plan, leg: LegPlan) -> None:
        """A leg that voids the run ends it: hours of further legs could not make it valid again."""
        found = bundle.read_leg(self._state.bundle / "legs" / leg.name, leg)
        for check in verdict.leg_checks(plan, found):
            if not check.ok:
                raise HarnessError(check.code, f"{check.seen}; required: {check.required}")

    def _before_leg(self, number: int, leg: LegPlan, plan: Plan) -> None:
        self.check()
        if self._state.stop_request() == "after-leg":
            raise HarnessError("interrupted", f"stopped on request before {leg.name}")
        timed = [item for item in plan.legs if item.kind == "timed"]
        finished = [item for item in plan.legs[:number] if item.kind == "timed"]
        self._progress = {
            "leg": number + 1,
            "legs": len(plan.legs),
            "name": leg.name,
            "requests": self._requests(leg),
            "timed": leg.kind == "timed",
            "work_done": sum(LEG_WORTH + self._requests(item) for item in finished),
            "work_total": sum(LEG_WORTH + self._requests(item) for item in timed),
        }

    def _requests(self, leg: LegPlan) -> int:
        if leg.kind == "sequential":
            return self._config.gate.sequential_requests
        return self._config.workload.points[leg.concurrency] if leg.concurrency is not None else 0

    def _leg_digest(self, leg: LegPlan) -> str:
        return canonical.sha256_file(self._state.bundle / "legs" / leg.name / "leg.json")


def main(argv: list[str]) -> int:
    return Supervisor(RunState(Path(argv[0]))).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
