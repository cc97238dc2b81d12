"""`python -m harness.keeper STATE_DIR [--detach] -- ARGV…`: holds the lease until nothing of the run is left.

A tiny process between lock and engine: leader of its own session, subreaper, parent of the supervisor ARGV. An
inherited descriptor alone would not do, since workers started by spawn close it. It outlives the controller, ends what
a killed supervisor left behind, and never signals what it did not adopt. SIGTERM asks for an orderly stop, a second
one for an immediate stop. A supervisor that somebody stopped (SIGSTOP) is waited for `stall_s`, then ended: a run that
makes no progress may not hold the GPU for ever. The supervisor wakes a stopped keeper in return, when it ends.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from harness import canonical, lease, process, watchdog
from harness.errors import EXIT_BUG, HarnessError, UsageError
from harness.holder import HolderRecord, utc
from harness.process import Exit, Owned
from harness.telemetry import procfs
from harness.telemetry.procfs import ProcessId
from harness.telemetry.tree import descendants

__all__ = ["LEASE_FD", "KeeperPlan", "KeeperState", "launch", "main", "parse_state", "read_state", "wake"]

LEASE_FD = "NVFP4_GATES_LEASE_FD"  # the supervisor passes this descriptor on to every process that uses the GPU
PLAN, STATE, LOG, SUPERVISOR_LOG = "keeper.json", "keeper.state.json", "keeper.log", "supervisor.log"
LOOK_S = 1.0  # how often the supervisor is looked at: one read of /proc/PID/stat, 20 µs
KILL_S = 10.0  # after this long what did not die of KILL is named as a survivor; it is still waited for


@dataclass(frozen=True)
class KeeperPlan:
    """STATE_DIR/keeper.json. `stop_s` is how long the supervisor may take over an orderly stop, `grace_s` the time
    between TERM and KILL for what is left after it, `stall_s` how long a supervisor may stay stopped (SIGSTOP)."""

    lease_path: str
    lease_timeout_s: float
    run_id: str
    grace_s: float = 30.0
    stop_s: float = 120.0
    stall_s: float = 60.0
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "."

    @classmethod
    def read(cls, state_dir: Path) -> KeeperPlan:
        data = canonical.loads((state_dir / PLAN).read_bytes(), PLAN)
        unknown = sorted(data.keys() - {one.name for one in fields(cls)})
        if unknown:
            raise UsageError("keeper-plan", f"{PLAN} has unknown fields: {', '.join(unknown)}")
        return cls(**data)


@dataclass(frozen=True)
class KeeperState:
    """STATE_DIR/keeper.state.json, replaced as a whole at each change. Stamps are UTC.

    `phase`: waiting | held | draining | released | failed. `failed` carries `code` and `message`; the lease is then
    not held. `survivors` are what KILL has not ended yet: while there are any the phase stays `draining`.
    """

    pid: int
    start_ticks: int
    boot_id: str | None
    run_id: str
    phase: str
    since: str
    code: str | None = None
    message: str | None = None
    lease_path: str | None = None
    token: str | None = None
    supervisor: list[int] | None = None
    supervisor_exit: dict[str, int | None] | None = None
    stop_asked: bool = False
    drained: int = 0
    killed: bool = False
    survivors: list[list[int]] = field(default_factory=list)

    def alive(self) -> bool:
        """Whether this keeper still runs, on this very boot."""
        return self.boot_id == procfs.boot_id() and procfs.is_alive(ProcessId(self.pid, self.start_ticks))

    def ended(self) -> bool:
        """Whether it said itself that it is done."""
        return self.phase in ("released", "failed")

    def rebooted(self, now: str | None) -> bool:
        """Whether a restart of the host, whose boot is `now`, cut it short. An unknown boot proves nothing."""
        return not self.ended() and self.boot_id is not None and now is not None and self.boot_id != now

    def exit(self) -> Exit | None:
        return None if self.supervisor_exit is None else Exit.from_json(self.supervisor_exit)


def read_state(state_dir: Path) -> KeeperState | None:
    """None before the keeper has written it. Unknown fields of a later version are left out."""
    try:
        data = canonical.loads((state_dir / STATE).read_bytes(), STATE)
    except FileNotFoundError:
        return None
    return parse_state(data)


def parse_state(data: Mapping[str, Any]) -> KeeperState:
    return KeeperState(**{one.name: data[one.name] for one in fields(KeeperState) if one.name in data})


class _Stopped(Exception):
    """SIGTERM came while waiting for the lease."""


def _signals() -> tuple[signal.Signals, ...]:
    return signal.SIGCHLD, signal.SIGTERM, signal.SIGINT


class _Keeper:
    def __init__(self, state_dir: Path, plan: KeeperPlan) -> None:
        self.dir = state_dir
        self.plan = plan
        self.me = HolderRecord.mine(plan.run_id)
        self.supervisor: Owned | None = None
        self.stops = 0
        self.stopped_since: float | None = None
        self.held: lease.Lease | None = None
        self.state = KeeperState(
            self.me.pid, self.me.start_ticks, self.me.boot_id, plan.run_id, "waiting", utc(), lease_path=plan.lease_path
        )

    def note(self, **changes: Any) -> None:
        """Write the state. A full disk must not keep the lease from being released, so failure is only logged."""
        self.state = replace(self.state, **changes)
        fresh = self.dir / f"{STATE}.new"
        try:
            with fresh.open("wb") as file:
                file.write(canonical.dumps(asdict(self.state)))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self.dir / STATE)
        except OSError as error:
            print(f"{utc()} state not written: {error}", file=sys.stderr, flush=True)

    def enter(self, phase: str, **changes: Any) -> None:
        self.note(phase=phase, since=utc(), **changes)

    def run(self, argv: Sequence[str]) -> int:
        try:
            held = lease.acquire(
                Path(self.plan.lease_path),
                self.plan.lease_timeout_s,
                self.me,
                lambda sentence: self.note(message=sentence),
                pause=self._pause,
            )
        except HarnessError as error:
            self.enter("failed", code=error.code, message=error.message)
            return error.exit_code
        except _Stopped:
            self.enter("failed", code="stopped", message="stopped while waiting for the lease", stop_asked=True)
            return 128 + signal.SIGTERM
        self.held = held
        with held:
            code = self._hold(held, argv)
        self.enter("failed" if self.state.code else "released")
        return code

    def _pause(self, seconds: float) -> None:
        if self._next_signal(seconds) in (signal.SIGTERM, signal.SIGINT):
            raise _Stopped

    def _next_signal(self, seconds: float) -> int | None:
        info = signal.sigtimedwait(_signals(), max(0.0, seconds))
        return None if info is None else info.si_signo

    def _hold(self, held: lease.Lease, argv: Sequence[str]) -> int:
        """With the lease: the supervisor's life, then the drain, whatever happens."""
        code = 0
        try:
            environment = {**self.plan.env, LEASE_FD: str(held.fd)}
            log = self.dir / SUPERVISOR_LOG
            self.supervisor = process.start(argv, environment, Path(self.plan.cwd), log, pass_fds=(held.fd,))
            token, identity = str(held.holder.token), self.supervisor.identity.to_json()
            self.enter("held", supervisor=identity, token=token, message=held.note)
            self._watch(self.supervisor)
        except HarnessError as error:
            code = error.exit_code
            self.note(code=error.code, message=error.message)
        except Exception as error:
            code = EXIT_BUG
            self.note(code="keeper-bug", message=f"{type(error).__name__}: {error}")
            traceback.print_exc()
        while True:
            try:
                self._drain()
                return code
            except Exception:  # whatever it is (no descriptors, no memory): the lease is not given back before the end
                traceback.print_exc()
                time.sleep(1)

    def _watch(self, supervisor: Owned) -> None:
        """Until the supervisor ends, does not end in time when asked to, is asked twice, or stays stopped."""
        give_up = float("inf")
        while supervisor.poll() is None and time.monotonic() < give_up and self.stops < 2:
            number = self._next_signal(min(LOOK_S, give_up - time.monotonic()))
            if number in (signal.SIGTERM, signal.SIGINT):
                self.stops += 1
                give_up = min(give_up, time.monotonic() + self.plan.stop_s)
                process.send(supervisor.identity, signal.SIGTERM)
                self.note(stop_asked=True)
            self._reap()
            if self._stands_still(supervisor):
                return

    def _stands_still(self, supervisor: Owned) -> bool:
        """Whether it has been stopped for too long. The first look at it is told, since the run then hangs."""
        if not watchdog.stopped(supervisor.identity):
            if self.stopped_since is not None:
                self.stopped_since = None
                self.note(message="the supervisor goes on")
            return False
        name = f"the supervisor (pid {supervisor.pid}) was stopped by a signal"
        if self.stopped_since is None:
            self.stopped_since = time.monotonic()
            self.note(message=f"{name}; the run makes no progress and ends in {self.plan.stall_s:g} s unless continued")
        if time.monotonic() - self.stopped_since < self.plan.stall_s:
            return False
        self.note(code="supervisor-stopped", message=f"{name} and not continued within {self.plan.stall_s:g} s")
        return True

    def _reap(self) -> None:
        """Collect every ended child, adopted orphans included."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self.supervisor is not None and pid == self.supervisor.pid:
                self.supervisor.ended(Exit.from_status(status))

    def _left(self) -> tuple[ProcessId, ...]:
        self._reap()
        return descendants(procfs.scan(), os.getpid())

    def _drain(self) -> None:
        """End what is left and wait for it without bound: the lock means that the GPU is in use."""
        left = self._left()
        self.enter("draining", drained=len(left), supervisor_exit=self._supervisor_exit())
        ending = process.terminate(self._left, self.plan.grace_s, KILL_S, reap=self._reap)
        self.note(killed=ending.kill_at_ns is not None, supervisor_exit=self._supervisor_exit())
        survivors = ending.survivors
        while survivors:
            self._report(survivors)
            process.wait_gone(survivors, 60.0, first=True)
            survivors = self._left()
        self._report(())
        self.note(supervisor_exit=self._supervisor_exit())

    def _report(self, survivors: Sequence[ProcessId]) -> None:
        """Into the state and into the lease's record: a killed keeper must not make a dirty host look clean."""
        self.note(survivors=[one.to_json() for one in survivors])
        if self.held is not None and (survivors or self.held.holder.survivors):
            self.held.report(survivors)

    def _supervisor_exit(self) -> dict[str, int | None] | None:
        how = None if self.supervisor is None else self.supervisor.poll()
        return None if how is None else how.to_json()


def wake(state_dir: Path) -> bool:
    """Continue this run's keeper if somebody stopped it, so that the lease is given back. Whether that was needed."""
    found = read_state(state_dir)
    if found is None or found.boot_id != procfs.boot_id():
        return False
    process_id = ProcessId(found.pid, found.start_ticks)
    return watchdog.stopped(process_id) and process.send(process_id, signal.SIGCONT)


def launch(state_dir: Path, plan: KeeperPlan, argv: Sequence[str]) -> KeeperState:
    """Start a detached keeper and return its first state. `state_dir` exists and serves one run only."""
    (state_dir / PLAN).write_bytes(canonical.dumps(asdict(plan)))
    command = [sys.executable, "-m", "harness.keeper", str(state_dir), "--detach", "--", *argv]
    package = {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    done = subprocess.run(
        command,
        env=process.clean_environment(package),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    state = read_state(state_dir)
    if done.returncode != 0 or state is None:
        raise HarnessError("keeper-start", f"the lease keeper did not start: {done.stderr.decode('utf-8', 'replace')}")
    return state


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.keeper", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("state_dir", type=Path)
    parser.add_argument("--detach", action="store_true", help="return as soon as the keeper has written its state")
    parser.add_argument("argv", nargs="+", help="the supervisor's command line, after --")
    options = parser.parse_args(argv)
    state_dir = options.state_dir.resolve()
    try:
        plan = KeeperPlan.read(state_dir)
        if (state_dir / STATE).exists():
            raise UsageError("keeper-state", f"{state_dir} has been used by a keeper; give each run its own folder")
    except (HarnessError, OSError, TypeError) as error:
        print(f"keeper: {error}", file=sys.stderr)
        return 64
    ready = _detach() if options.detach or _leads_group_only() else None
    return _serve(state_dir, plan, options.argv, ready)


def _leads_group_only() -> bool:
    """A shell's job cannot become a session leader without a fork."""
    return os.getpgid(0) == os.getpid() != os.getsid(0)


def _detach() -> int:
    """Go on in a child; the parent exits once the child has closed the returned descriptor, or has died."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(reading)
        return writing
    os.close(writing)
    os.read(reading, 1)
    raise SystemExit(0)


def _serve(state_dir: Path, plan: KeeperPlan, argv: Sequence[str], ready: int | None) -> int:
    if os.getsid(0) != os.getpid():
        os.setsid()
    signal.pthread_sigmask(signal.SIG_BLOCK, _signals())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    process.become_subreaper()
    _redirect(state_dir / LOG)
    keeper = _Keeper(state_dir, plan)
    keeper.enter("waiting")
    if ready is not None:
        os.close(ready)
    return keeper.run(argv)


def _redirect(log: Path) -> None:
    """No stream of the controller's stays open: a closed terminal must not stop the keeper."""
    null = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(out)


if __name__ == "__main__":
    sys.exit(main())
