"""Real processes: each program says over a pipe who it is, so that no test waits by the clock."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import process
from harness.errors import HarnessError, UsageError
from harness.process import Exit, Owned
from harness.telemetry import procfs

SAY = "import os, signal, sys, time, json\ndef say(x): os.write(int(sys.argv[1]), (json.dumps(x) + '\\n').encode())\n"
PLAIN = SAY + "say(os.getpid()); signal.pause()\n"
STUBBORN = SAY + "signal.signal(signal.SIGTERM, signal.SIG_IGN); say(os.getpid())\nwhile True: signal.pause()\n"
# An engine front whose worker has a session of its own and ignores TERM, as vLLM's EngineCore may.
FRONT = SAY + (
    "if os.fork() == 0:\n os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN); say(os.getpid())\n"
    " while True: signal.pause()\nsignal.pause()\n"
)
# A daemon: own session, both parents gone before it speaks.
DAEMON = SAY + (
    "me = os.getpid()\nif os.fork() == 0:\n os.setsid()\n if os.fork(): os._exit(0)\n"
    " while os.getppid() != int(sys.argv[2]): time.sleep(0.001)\n say(os.getpid())\n"
    " while True: signal.pause()\nos.wait(); signal.pause()\n"
)
# The first thread ends, the second lives on: the kernel shows a zombie that still holds everything.
HEADLESS = SAY + (
    "import ctypes, threading\nmain = os.getpid()\n"
    "def rest():\n while open(f'/proc/{main}/stat').read().rsplit(') ')[1][0] != 'Z': time.sleep(0.001)\n"
    " say(main)\n time.sleep(600)\n"
    "threading.Thread(target=rest).start()\nctypes.CDLL(None).pthread_exit(None)\n"
)


class Stage:
    """Starts programs with a pipe to hear them, and leaves nothing behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reading, self.writing = os.pipe()
        self.ears = os.fdopen(self.reading, "rb", buffering=0)  # buffered, a second line would hide from select
        self.owned: list[Owned] = []

    def start(self, code: str, *args: object, reaper: int | None = None, **env: str) -> Owned:
        argv = [sys.executable, "-c", code, str(self.writing), *map(str, args)]
        log = self.folder / f"{len(self.owned)}.log"
        one = process.start(argv, env, self.folder, log, pass_fds=(self.writing,), reaper=reaper)
        self.owned.append(one)
        return one

    def heard(self) -> object:
        assert select.select([self.ears], [], [], 60)[0], "nobody spoke for a minute"
        return json.loads(self.ears.readline())

    def heard_process(self) -> procfs.ProcessId:
        found = procfs.identify(int(str(self.heard())))
        assert found is not None
        return found


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    one = Stage(tmp_path)
    yield one
    for owned in one.owned:
        process.stop(owned, 0)
    os.close(one.writing)
    one.ears.close()


@pytest.fixture
def subreaper() -> Iterator[int]:
    process.become_subreaper()
    yield os.getpid()
    process.become_subreaper(False)


def test_a_started_process_leads_its_own_session_with_the_clean_environment(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VT_FP4_LEFTOVER", "1")
    code = SAY + "say([os.getpid(), os.getsid(0), os.getpgid(0), dict(os.environ), os.read(0, 1).decode()])\n"
    owned = stage.start(code, VT_FP4_PLAN_CACHE="1")
    pid, session, group, environment, stdin = json.loads(json.dumps(stage.heard()))
    assert owned.pid == pid == session == group == owned.pgid
    assert environment == process.clean_environment({"VT_FP4_PLAN_CACHE": "1"})
    assert stdin == ""


def test_a_program_gets_default_signals_back(tmp_path: Path) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        owned = process.start(["cat", "/proc/self/status"], {}, tmp_path, tmp_path / "log")
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    assert owned.wait(60) == Exit(0, None)
    fields = dict(line.split(":", 1) for line in process.tail(tmp_path / "log", lines=999).splitlines())
    assert (int(fields["SigBlk"], 16), int(fields["SigIgn"], 16)) == (0, 0)


@pytest.mark.parametrize(
    ("code", "how"), [("raise SystemExit(3)", Exit(3, None)), ("import os; os.kill(os.getpid(), 11)", Exit(None, 11))]
)
def test_the_end_of_a_process_tells_code_from_signal(stage: Stage, code: str, how: Exit) -> None:
    owned = stage.start(code)
    assert owned.wait(60) == how
    assert not owned.alive()


def test_both_streams_go_to_one_new_log(stage: Stage) -> None:
    owned = stage.start("import os; os.write(1, b'out\\n'); os.write(2, b'err\\n')")
    owned.wait(60)
    assert process.tail(stage.folder / "0.log") == "out\nerr"


def test_a_log_that_exists_is_never_written_to(stage: Stage) -> None:
    (stage.folder / "0.log").write_text("another's")
    with pytest.raises(HarnessError, match="one writer") as caught:
        stage.start("pass")
    assert caught.value.code == "log-exists"
    assert (stage.folder / "0.log").read_text() == "another's"


@pytest.mark.parametrize("program", ["no-such-program", "/no/such/program"])
def test_a_missing_program_is_named_before_anything_starts(tmp_path: Path, program: str) -> None:
    with pytest.raises(UsageError, match=program) as caught:
        process.start([program], {}, tmp_path, tmp_path / "log")
    assert caught.value.code == "cannot-start"
    assert not (tmp_path / "log").exists()


def test_stop_asks_with_term_first(stage: Stage) -> None:
    owned = stage.start(PLAIN)
    stage.heard()
    report = process.stop(owned, 60)
    assert report.exit == Exit(None, signal.SIGTERM)
    assert (report.kill_at_ns, report.survivors) == (None, ())


def test_stop_kills_what_ignores_term(stage: Stage) -> None:
    owned = stage.start(STUBBORN)
    stage.heard()
    report = process.stop(owned, 0.05)
    assert report.exit == Exit(None, signal.SIGKILL)
    assert report.term_at_ns is not None and report.kill_at_ns is not None and report.term_at_ns < report.kill_at_ns


def test_a_worker_in_its_own_session_that_ignores_term_is_gone_after_stop(stage: Stage) -> None:
    owned = stage.start(FRONT)
    worker = stage.heard_process()
    assert worker in owned.descendants()
    report = process.stop(owned, 0.05)
    assert report.survivors == () and report.kill_at_ns is not None
    assert not procfs.is_alive(worker)


def test_a_recorded_worker_is_stopped_after_its_front_was_killed(stage: Stage) -> None:
    owned = stage.start(FRONT)
    worker = stage.heard_process()
    owned.descendants()
    process.send(owned.identity, signal.SIGKILL)
    assert owned.wait(60) == Exit(None, signal.SIGKILL)
    assert owned.descendants() == (worker,)
    assert process.stop(owned, 0.05).survivors == ()
    assert not procfs.is_alive(worker)


def test_a_daemon_that_was_never_seen_is_found_at_the_subreaper(stage: Stage, subreaper: int) -> None:
    owned = stage.start(DAEMON, subreaper, reaper=subreaper)
    daemon = stage.heard_process()
    assert daemon in owned.descendants()
    assert process.stop(owned, 60).survivors == ()
    assert os.waitpid(daemon.pid, 0) == (daemon.pid, signal.SIGTERM)


def test_a_process_whose_first_thread_has_ended_is_still_there_and_is_stopped(stage: Stage) -> None:
    owned = stage.start(HEADLESS)
    stage.heard()
    assert owned.alive() and owned.descendants() == (owned.identity,)
    assert process.stop(owned, 0.05).exit is not None
    assert not owned.alive()


def test_a_descendant_of_somebody_else_is_left_alone(stage: Stage) -> None:
    ours, others = stage.start(PLAIN), stage.start(PLAIN)
    stage.heard(), stage.heard()
    process.stop(ours, 60)
    assert others.alive()


def test_a_process_dies_with_the_one_that_started_it(stage: Stage) -> None:
    code = SAY + (
        "from pathlib import Path\nfrom harness import process\n"
        "o = process.start([sys.executable, '-c', sys.argv[2], sys.argv[1]], {}, Path.cwd(), Path('inner.log'),"
        " pass_fds=(int(sys.argv[1]),))\nsignal.pause()\n"
    )
    outer = stage.start(code, PLAIN, PYTHONPATH=str(Path(process.__file__).parents[1]))
    inner = stage.heard_process()
    process.send(outer.identity, signal.SIGKILL)
    assert process.wait_gone([inner], 60)
    assert not procfs.is_alive(inner)


FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.mark.skipif(not os.access(FREEZER / "cgroup.procs", os.W_OK), reason="needs root and a cgroup v1 freezer")
def test_a_process_that_outlives_kill_is_reported_as_a_survivor(stage: Stage) -> None:
    owned = stage.start(PLAIN)
    stage.heard()
    group = FREEZER / f"nvfp4-gates-test-{owned.pid}"
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(owned.pid))
        (group / "freezer.state").write_text("FROZEN")
        report = process.stop(owned, 0.05, kill_s=0.05)
        assert report.survivors == (owned.identity,) and report.exit is None
        (group / "freezer.state").write_text("THAWED")
        assert owned.wait(60) is not None
    finally:
        (group / "freezer.state").write_text("THAWED")
        process.stop(owned, 0)
        group.rmdir()
