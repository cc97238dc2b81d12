"""Carries out a plan on the GPU host: owns the processes, writes the journal, never talks to a network.

`python -m harness.supervisor STATE` is started by the keeper, which holds the lease. It goes on when the controller is
gone, and ends with the journal saying what happened: exit 0 when every leg ran, 2 when the run became void.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from harness import bundle, keeper, lease, settings, verdict, witnesses
from harness.context import Context
from harness.engines import registry
from harness.errors import EXIT_BUG, EXIT_PASS, EXIT_VOID, HarnessError
from harness.journal import Journal, whole_lines
from harness.leg import run_leg
from harness.machine import Machine
from harness.plan import LegPlan, Plan
from harness.state import RunState, cache_dir, write_atomic
from harness.telemetry import procfs
from harness.telemetry.probe import GpuAnswer

__all__ = ["main"]

IDLE_POLL_S = 1.0
BALLAST = "ballast"
BALLAST_BYTES = 1 << 18  # given back on a full disk, so that the journal can still say why the run is void
DISK_FULL_MIB = 1
LEG_WORTH = 8  # for the time left: a server's start and end take about as long as eight requests of the seed's workload


class Supervisor:
    """One run from its lease to its last leg."""

    def __init__(
        self, state: RunState, boot_id: Callable[[], str | None] = procfs.boot_id, machine: Machine | None = None
    ) -> None:
        """`boot_id` tells this boot from the next: a host that restarts gives the lock away and may clear /tmp."""
        run = state.read(state.run)
        assert run is not None, "the controller writes run.json before it starts the keeper"
        self._run = run
        self._state = state
        self._config = settings.load(run["config"])
        self._journal = Journal(state.journal)
        self._boot_id = boot_id
        self._machine = machine or Machine()
        self._terminated = False
        self._last_told = 0.0
        self._progress: dict[str, Any] = {}
        self._machine.on_term(self._on_term)

    def _on_term(self, _number: int, _frame: FrameType | None) -> None:
        self._terminated = True

    def check(self) -> None:
        """Raises HarnessError `interrupted` once somebody asked to stop now."""
        if self._terminated or self._state.stop_request() == "now":
            raise HarnessError("interrupted", "stopped on request; the leg in flight is void")

    def tell(self, news: Mapping[str, Any]) -> None:
        """Publish progress, at most about ten times a second. A full disk is met elsewhere."""
        self._progress.update(news)
        now = time.monotonic()
        if "phase" in news or now - self._last_told > 0.1:
            self._last_told = now
            with contextlib.suppress(OSError):
                write_atomic(self._state.progress, self._progress)

    def run(self) -> int:
        plan = Plan.from_bytes(self._state.plan.read_bytes())
        self._ballast.write_bytes(bytes(BALLAST_BYTES))
        context = self._context(plan)
        booted = self._boot_id()
        self._journal.write(
            "start",
            boot_id=booted,
            lease=self._lease(),
            earlier=self._run["earlier"],
            nonce=self._run["nonce"],
            host=self._machine.snapshot({"state": self._state.root}),
        )
        code = self._legs(plan, context, booted)
        self._end()
        return code

    def _legs(self, plan: Plan, context: Context, booted: str | None) -> int:
        where = "run"
        try:
            self._check_host(plan)
            for number, leg in enumerate(plan.legs):
                where = leg.name
                self._before_leg(number, leg, plan)
                self._check_ground(context, booted)
                self._await_idle_gpu(plan)
                run_leg(context, leg)
                self._journal.write("leg", leg=leg.name, files=self._files("legs", leg.name))
                self._judge(plan, leg)
        except HarnessError as error:
            self._void(error.code, where, error.message)
            return EXIT_VOID
        except (
            Exception
        ) as error:  # a bug of ours or a full disk: the bundle must say so, and the engine is down by now
            traceback.print_exc()
            self._void("internal-error", where, repr(error))
            return EXIT_BUG
        return EXIT_PASS

    def _void(self, code: str, where: str, message: str) -> None:
        """Say why. On a full disk nearly anything can have failed, so that is the reason then."""
        free = shutil.disk_usage(self._state.root).free >> 20
        if free < DISK_FULL_MIB:
            code, message = "disk-full", f"the disk of host.state_dir is full; {code}: {message}"
        self._ballast.unlink(missing_ok=True)
        whole, cut = whole_lines(self._state.journal.read_bytes())
        if cut:  # a line that the full disk cut off
            os.truncate(self._state.journal, len(whole))
            self._journal = Journal(self._state.journal)
        self._journal.write("void", code=code, where=where, message=message)

    def _end(self) -> None:
        """The last line of the journal. A keeper that somebody stopped is woken: it alone gives the lease back."""
        left = [f"port {self._config.host.port} is open"] if self._machine.port_owner(self._config.host.port) else []
        self._ballast.unlink(missing_ok=True)
        woken = keeper.wake(self._state.root)
        self._journal.write("end", boot_id=self._boot_id(), left_behind=left, keeper_woken=woken, files=self._files())
        self.tell({"phase": "done"})

    @property
    def _ballast(self) -> Path:
        return self._state.root / BALLAST

    def _check_ground(self, context: Context, booted: str | None) -> None:
        """What a leg stands on: the lock that others look at is still ours, and it is still the same boot."""
        path = Path(self._config.host.lease_path)
        if context.lease_fd is not None and not lease.is_current(context.lease_fd, path):
            raise HarnessError(
                "lease-lost",
                f"{path} was removed or replaced during the run, so others may use the GPU; never delete it",
            )
        now = self._boot_id()
        if now != booted or now is None:
            raise HarnessError("boot-id", f"the host has restarted during the run: boot id {booted}, now {now}")

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
            second=registry.second(self._config.engine, cache_dir(self._config.host)),
            state=self._state,
            frozen=frozen,
            lease_fd=int(lease_fd) if lease_fd else None,
            keeper_pid=os.getppid(),
            check=self.check,
            tell=self.tell,
            machine=self._machine,
        )

    def _check_host(self, plan: Plan) -> None:
        """A free lock proves nothing: the host must be fit for a measurement, too."""
        limits = self._config.host
        self._machine.require_free(limits.port, "host.port")
        snapshot = self._machine.snapshot({"state": self._state.root})
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
            answer = self._ask_gpu()
            if answer.identity is None or answer.processes is None:
                raise HarnessError("gpu-unreadable", f"whether the GPU is idle cannot be told: {answer.reason}")
            if not answer.processes:
                return
            if time.monotonic() > deadline:
                pids = ", ".join(str(pid) for pid, _ in answer.processes)
                raise HarnessError("gpu-busy", f"compute processes {pids} use the GPU and are not this run's; end them")
            self.check()
            time.sleep(IDLE_POLL_S)

    def _ask_gpu(self) -> GpuAnswer:
        """The probe's answer; one that died or printed no answer has told nothing, and nothing is not `idle`."""
        try:
            return self._machine.gpus()
        except HarnessError:
            raise
        except Exception as error:
            said = f"the NVML probe gave no usable answer: {error!r}; try nvidia-smi"
            raise HarnessError("nvml-failed", said) from error

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
        if leg.kind in ("sequential", "concurrent", "inertness", "structure"):
            return self._config.gate.sequential_requests
        return self._config.workload.points[leg.concurrency] if leg.concurrency is not None else 0

    def _files(self, *folder: str) -> dict[str, str]:
        """SHA-256 of each file in a folder of the bundle, so that the journal's chain holds the files, too."""
        return witnesses.of_folder(self._state.bundle.joinpath(*folder))


def main(argv: list[str]) -> int:
    return Supervisor(RunState(Path(argv[0]))).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
