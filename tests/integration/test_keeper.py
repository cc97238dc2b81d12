"""A real keeper, supervisors that fork, and kills. Programs speak through a named pipe; no test waits by the clock."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import canonical, keeper, lease, process, watchdog
from harness.errors import UsageError
from harness.holder import HolderRecord
from harness.keeper import KeeperPlan, KeeperState
from harness.process import Exit
from harness.telemetry import procfs
from harness.telemetry.procfs import ProcessId

REPOSITORY = Path(keeper.__file__).parents[1]
SAY = (
    "import os, signal, sys, time, json\n"
    "def say(x):\n"
    " with open(sys.argv[1], 'w') as pipe: pipe.write(json.dumps(x) + '\\n')\n"
    "def stay():\n"
    " while True: signal.pause()\n"
    "def on_term(f): signal.signal(signal.SIGTERM, f)\n"
)
PLAIN = SAY + "say([os.getpid()]); stay()\n"
POLITE = SAY + "on_term(lambda *_: sys.exit(7)); say([os.getpid()]); stay()\n"
DEAF = SAY + "on_term(signal.SIG_IGN); say([os.getpid()]); stay()\n"
# A worker in its own session that says when TERM reached it and stays, as one stuck in a driver does.
WORKER = SAY + (
    "if os.fork() == 0:\n os.setsid(); on_term(lambda *_: say('term')); say([os.getppid(), os.getpid()]); stay()\n"
    "stay()\n"
)
# The same, and a daemon whose parents have both gone.
FAMILY = SAY + (
    "r, w = os.pipe()\n"
    "if os.fork() == 0:\n os.setsid()\n if os.fork(): os._exit(0)\n os.write(w, f'{os.getpid()}\\n'.encode()); stay()\n"
    "os.wait(); daemon = int(os.read(r, 9))\n"
    "worker = os.fork()\nif worker == 0:\n os.setsid(); on_term(signal.SIG_IGN); os.write(w, b'!'); stay()\n"
    "os.read(r, 1); say([os.getpid(), worker, daemon]); stay()\n"
)


class Host:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = folder / "gpu"
        self.pipe = folder / "pipe"
        os.mkfifo(self.pipe)
        self.ears = os.fdopen(os.open(self.pipe, os.O_RDWR))
        self.keepers: list[ProcessId] = []
        self.seen: list[ProcessId] = []

    def plan(self, run: str, **changes: Any) -> KeeperPlan:
        return replace(KeeperPlan(str(self.lock), 60, run, grace_s=60, cwd=str(self.folder)), **changes)

    def argv(self, code: str) -> list[str]:
        return [sys.executable, "-c", code, str(self.pipe)]

    def launch(self, code: str, run: str = "run-1", **changes: Any) -> ProcessId:
        (self.folder / run).mkdir()
        state = keeper.launch(self.folder / run, self.plan(run, **changes), self.argv(code))
        self.keepers.append(ProcessId(state.pid, state.start_ticks))
        return self.keepers[-1]

    def heard(self) -> Any:
        assert select.select([self.ears], [], [], 60)[0], "nobody spoke for a minute"
        said = json.loads(self.ears.readline())
        if isinstance(said, list):
            found = [procfs.identify(pid) for pid in said]
            self.seen += [one for one in found if one is not None]
            assert len(self.seen) >= len(said)
            return self.seen[-len(said) :]
        return said

    def state(self, run: str = "run-1") -> KeeperState:
        found = keeper.read_state(self.folder / run)
        assert found is not None
        return found

    def ended(self, run: str = "run-1") -> KeeperState:
        state = self.state(run)
        assert process.wait_gone([ProcessId(state.pid, state.start_ticks)], 60)
        return self.state(run)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    one = Host(tmp_path)
    yield one
    for found in (*one.keepers, *one.seen):
        process.send(found, signal.SIGKILL)
    process.wait_gone([*one.keepers, *one.seen], 60)
    one.ears.close()


def test_the_end_of_the_supervisor_gives_the_lease_back(host: Host) -> None:
    host.launch(SAY + "say([os.getpid()]); sys.exit(3)")
    state = host.ended()
    assert (state.phase, state.exit(), state.drained, state.survivors) == ("released", Exit(3, None), 0, [])
    assert lease.describe(host.lock).held is False


def test_while_the_supervisor_runs_the_lease_is_held_and_the_keeper_named(host: Host) -> None:
    pid = host.launch(PLAIN).pid
    host.heard()
    seen = lease.describe(host.lock)
    assert seen.held and seen.holder_alive and seen.survivors == ()
    assert seen.holder is not None and (seen.holder.run_id, seen.holder.pid) == ("run-1", pid)


def test_the_keeper_leads_a_session_of_its_own(host: Host) -> None:
    pid = host.launch(PLAIN).pid
    host.heard()
    assert os.getsid(pid) == pid


def test_the_supervisor_gets_the_lease_and_the_clean_environment(host: Host) -> None:
    code = SAY + "say({'env': dict(os.environ), 'lock': os.readlink(f'/proc/self/fd/{os.environ[\"" + keeper.LEASE_FD
    host.launch(code + "\"]}')})", env={"VT_FP4_PLAN_CACHE": "1"})
    said = host.heard()
    assert said["lock"] == str(host.lock)
    descriptor = said["env"][keeper.LEASE_FD]
    assert said["env"] == process.clean_environment({"VT_FP4_PLAN_CACHE": "1", keeper.LEASE_FD: descriptor})


def test_a_killed_supervisor_leaves_no_worker_and_no_daemon(host: Host) -> None:
    host.launch(FAMILY, grace_s=0.05)
    supervisor, worker, daemon = host.heard()
    process.send(supervisor, signal.SIGKILL)
    state = host.ended()
    assert (state.phase, state.exit()) == ("released", Exit(None, signal.SIGKILL))
    assert (state.drained, state.killed, state.survivors) == (2, True, [])
    assert not procfs.is_alive(worker) and not procfs.is_alive(daemon)
    assert lease.describe(host.lock).held is False


def test_the_lease_is_held_until_the_last_descendant_is_gone(host: Host) -> None:
    host.launch(WORKER, grace_s=3600)
    supervisor, worker = host.heard()
    process.send(supervisor, signal.SIGKILL)
    assert host.heard() == "term"
    assert host.state().phase == "draining"
    assert lease.describe(host.lock).held
    process.send(worker, signal.SIGKILL)
    state = host.ended()
    assert (state.phase, state.killed) == ("released", False)
    assert lease.describe(host.lock).held is False


def test_a_killed_keeper_takes_the_supervisor_along_and_the_survivor_keeps_the_lease(host: Host) -> None:
    found = host.launch(WORKER)
    supervisor, worker = host.heard()
    process.send(found, signal.SIGKILL)
    assert process.wait_gone([found, supervisor], 60)
    seen = lease.describe(host.lock)
    assert seen.held and not seen.holder_alive
    assert [one.process for one in seen.survivors] == [worker]
    with pytest.raises(UsageError, match=rf"pid {worker.pid} .*the recorded holder is gone: run run-1") as caught:
        lease.acquire(host.lock, 0, HolderRecord.mine("run-2"), lambda sentence: None)
    assert caught.value.code == "lease-held"
    assert procfs.is_alive(worker)
    process.send(worker, signal.SIGKILL)
    assert process.wait_gone([worker], 60)
    lease.acquire(host.lock, 60, HolderRecord.mine("run-2"), lambda sentence: None).release()


def test_a_dying_controller_changes_nothing(host: Host) -> None:
    (host.folder / "run-1").mkdir()
    code = (
        "import json, signal, sys\nfrom pathlib import Path\nfrom harness import keeper\n"
        "plan = keeper.KeeperPlan(**json.loads(sys.argv[2]))\n"
        "keeper.launch(Path(sys.argv[1]), plan, json.loads(sys.argv[3]))\nprint(flush=True)\nsignal.pause()\n"
    )
    texts = json.dumps(vars(host.plan("run-1"))), json.dumps(host.argv(POLITE))
    argv = [sys.executable, "-c", code, str(host.folder / "run-1"), *texts]
    with subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.PIPE, start_new_session=True) as controller:
        assert controller.stdout is not None
        controller.stdout.readline()
        os.killpg(controller.pid, signal.SIGKILL)
    (supervisor,) = host.heard()
    state = host.state()
    assert (state.phase, state.alive(), procfs.is_alive(supervisor)) == ("held", True, True)
    process.send(ProcessId(state.pid, state.start_ticks), signal.SIGTERM)
    assert host.ended().exit() == Exit(7, None)


def test_term_to_the_keeper_stops_the_supervisor_in_order(host: Host) -> None:
    found = host.launch(POLITE)
    host.heard()
    process.send(found, signal.SIGTERM)
    state = host.ended()
    assert (state.phase, state.exit(), state.stop_asked) == ("released", Exit(7, None), True)


def test_a_supervisor_that_does_not_stop_in_time_is_killed(host: Host) -> None:
    found = host.launch(DEAF, stop_s=0.05, grace_s=0.05)
    host.heard()
    process.send(found, signal.SIGTERM)
    state = host.ended()
    assert (state.phase, state.exit(), state.killed) == ("released", Exit(None, signal.SIGKILL), True)


def test_a_stopped_supervisor_is_killed_too(host: Host) -> None:
    found = host.launch(PLAIN, stop_s=0.05, grace_s=0.05)
    (supervisor,) = host.heard()
    process.send(supervisor, signal.SIGSTOP)
    # Of two pending signals the kernel delivers TERM first, so the stop has to be seen before.
    while (stat := procfs.read_stat(supervisor.pid)) and stat.state != "T":
        process.wait_gone([supervisor], 0.001)
    process.send(found, signal.SIGTERM)
    assert host.ended().exit() == Exit(None, signal.SIGKILL)


def test_a_second_keeper_says_who_has_the_lease(host: Host) -> None:
    host.launch(PLAIN)
    host.heard()
    host.launch(PLAIN, "run-2", lease_timeout_s=0)
    state = host.ended("run-2")
    assert (state.phase, state.code, state.supervisor) == ("failed", "lease-held", None)
    assert state.message is not None and "held by run run-1" in state.message


def test_a_waiting_keeper_starts_its_supervisor_when_the_first_is_done(host: Host) -> None:
    first = host.launch(POLITE)
    (one,) = host.heard()
    host.launch(POLITE, "run-2")
    process.send(first, signal.SIGTERM)
    (two,) = host.heard()
    assert not procfs.is_alive(one) and procfs.is_alive(two)
    tokens = [host.state(run).token for run in ("run-1", "run-2")]
    assert None not in tokens and int(str(tokens[0])) < int(str(tokens[1]))


def test_a_waiting_keeper_can_be_stopped(host: Host) -> None:
    host.launch(PLAIN)
    host.heard()
    process.send(host.launch(PLAIN, "run-2"), signal.SIGTERM)
    state = host.ended("run-2")
    assert (state.phase, state.code) == ("failed", "stopped")
    assert lease.describe(host.lock).held


def test_a_supervisor_that_cannot_start_gives_the_lease_back(host: Host) -> None:
    (host.folder / "run-1").mkdir()
    keeper.launch(host.folder / "run-1", host.plan("run-1"), ["/no/such/supervisor"])
    state = host.ended()
    assert (state.phase, state.code) == ("failed", "cannot-start")
    assert lease.describe(host.lock).held is False


def test_a_state_folder_serves_one_run_only(host: Host) -> None:
    host.launch(SAY + "say([os.getpid()])")
    host.ended()
    command = [sys.executable, "-m", "harness.keeper", str(host.folder / "run-1"), "--", "true"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 64 and "give each run its own folder" in done.stderr


def see_stopped(found: ProcessId) -> None:
    process.send(found, signal.SIGSTOP)
    while not watchdog.stopped(found):
        process.wait_gone([found], 0.001)


def test_a_supervisor_that_stays_stopped_is_ended_and_the_state_says_so(host: Host) -> None:
    host.launch(PLAIN, stall_s=0.05, grace_s=0.05)
    (supervisor,) = host.heard()
    see_stopped(supervisor)
    state = host.ended()
    assert (state.phase, state.code, state.exit()) == ("failed", "supervisor-stopped", Exit(None, signal.SIGKILL))
    assert state.message is not None and f"pid {supervisor.pid}" in state.message
    assert lease.describe(host.lock).held is False


def test_a_supervisor_that_is_continued_in_time_goes_on(host: Host) -> None:
    code = SAY + "on_term(lambda *_: sys.exit(7)); say([os.getpid()])\nstay()\n"
    found = host.launch(code, stall_s=3600)
    (supervisor,) = host.heard()
    see_stopped(supervisor)
    while "makes no progress" not in (host.state().message or ""):
        process.wait_gone([found], 0.01)
    process.send(supervisor, signal.SIGCONT)
    while host.state().message != "the supervisor goes on":
        process.wait_gone([found], 0.01)
    process.send(found, signal.SIGTERM)
    state = host.ended()
    assert (state.phase, state.code, state.exit()) == ("released", None, Exit(7, None))


def test_a_stopped_keeper_is_woken_by_the_run_that_ends(host: Host) -> None:
    found = host.launch(POLITE)
    (supervisor,) = host.heard()
    assert not keeper.wake(host.folder / "run-1")
    see_stopped(found)
    process.send(supervisor, signal.SIGTERM)
    assert keeper.wake(host.folder / "run-1")
    assert (host.ended().phase, lease.describe(host.lock).held) == ("released", False)


# A worker that was spawned, so that it has no descriptor of the lease, and that no signal of the keeper's reaches: as
# one does that is stuck in a driver.
SPAWNER = SAY + (
    "import subprocess\n"
    "worker = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'], start_new_session=True)\n"
    "say([os.getpid(), worker.pid]); stay()\n"
)
STUCK = (
    "import sys\nfrom harness import keeper, process\n"
    "process.send = lambda found, number: False\nkeeper.KILL_S = 0.01\nsys.exit(keeper.main(sys.argv[1:]))\n"
)


def test_what_outlives_kill_makes_the_host_dirty_for_the_next_run_even_if_the_keeper_is_killed(host: Host) -> None:
    folder = host.folder / "run-1"
    folder.mkdir()
    (folder / keeper.PLAN).write_bytes(canonical.dumps(vars(host.plan("run-1", grace_s=0.01))))
    argv = [sys.executable, "-c", STUCK, str(folder), "--", *host.argv(SPAWNER)]
    with subprocess.Popen(argv, cwd=REPOSITORY, start_new_session=True) as running:
        supervisor, worker = host.heard()
        process.send(supervisor, signal.SIGKILL)
        while not host.state().survivors:
            process.wait_gone([worker], 0.01)
        assert (host.state().phase, lease.describe(host.lock).held) == ("draining", True)
        running.kill()
    with pytest.raises(UsageError, match=rf"host is dirty: pid {worker.pid} .*outlived KILL in run run-1") as caught:
        lease.acquire(host.lock, 0, HolderRecord.mine("run-2"), lambda sentence: None)
    assert (caught.value.code, procfs.is_alive(worker)) == ("host-dirty", True)
    process.send(worker, signal.SIGKILL)
    assert process.wait_gone([worker], 60)
    lease.acquire(host.lock, 0, HolderRecord.mine("run-2"), lambda sentence: None).release()
