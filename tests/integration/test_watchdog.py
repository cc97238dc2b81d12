"""The autopsy of real processes that hang: a server with an open socket, and its daemon in a session of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import canonical, process, watchdog
from harness.errors import HarnessError
from harness.process import Owned

# Listens, double-forks a daemon in its own session, says so in its log, and hangs.
SERVER = """
import os, signal, socket, sys
server = socket.create_server(('127.0.0.1', 0))
reading, writing = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    os.write(writing, str(os.getpid()).encode()); signal.pause()
os.wait()
print(server.getsockname()[1], os.read(reading, 9).decode(), flush=True)
signal.pause()
"""


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[tuple[Owned, int, int]]:
    process.become_subreaper()
    (tmp_path / "leg").mkdir()
    owned = process.start([sys.executable, "-c", SERVER], {}, tmp_path, tmp_path / "engine.log", reaper=os.getpid())
    try:
        with (tmp_path / "engine.log").open() as log:
            line = ""
            while not line.endswith("\n"):
                line += log.readline()
        port, daemon = map(int, line.split())
        yield owned, port, daemon
    finally:
        process.stop(owned, 0.0)
        process.become_subreaper(False)


def test_an_autopsy_holds_tree_sockets_threads_gpu_and_log(tmp_path: Path, hung: tuple[Owned, int, int]) -> None:
    owned, port, daemon = hung
    with socket.create_connection(("127.0.0.1", port)):
        found = watchdog.autopsy({"engine": owned}, {"engine.log": tmp_path / "engine.log"})
    rows = {row["pid"]: row for row in found["processes"]}
    assert {owned.pid, daemon} <= rows.keys()
    assert rows[owned.pid]["start_ticks"] == owned.start_ticks and rows[owned.pid]["role"] == "engine"
    assert rows[daemon]["session"] != rows[owned.pid]["session"]
    assert ("LISTEN", f"127.0.0.1:{port}") in [(row["status"], row["local"]) for row in found["sockets"]]
    threads = [row for row in found["threads"] if row["pid"] == owned.pid]
    assert [row["tid"] for row in threads] == [owned.pid] and "State:" in threads[0]["status"]
    assert {"wchan", "syscall", "stack"} <= threads[0].keys()
    assert str(port) in found["logs"]["engine.log"]
    assert "reason" in found["gpu"] and found["python_stacks"]
    assert json.loads(canonical.dumps(found)) == found


def test_a_late_leg_is_saved_while_its_processes_still_live(tmp_path: Path, hung: tuple[Owned, int, int]) -> None:
    owned, _, daemon = hung
    deadline = watchdog.Deadline(0.0)
    with (
        pytest.raises(HarnessError) as caught,
        watchdog.autopsied(tmp_path / "leg", {"engine": owned}, {"engine.log": tmp_path / "engine.log"}),
    ):
        deadline.check("loading")
    assert caught.value.code == "leg-deadline" and "still loading" in caught.value.message
    saved = json.loads((tmp_path / "leg" / watchdog.FILE).read_bytes())
    assert saved["code"] == "leg-deadline" and {owned.pid, daemon} <= {row["pid"] for row in saved["processes"]}
    assert owned.alive()


def test_the_innermost_autopsy_stays(tmp_path: Path, hung: tuple[Owned, int, int]) -> None:
    owned, _, _ = hung
    leg = tmp_path / "leg"
    with (
        pytest.raises(HarnessError),
        watchdog.autopsied(leg, {"outer": owned}, {}),
        watchdog.autopsied(leg, {"inner": owned}, {}),
    ):
        raise HarnessError("engine-stalled", "no new token")
    assert {row["role"] for row in json.loads((leg / watchdog.FILE).read_bytes())["processes"]} == {"inner"}


def test_an_engine_that_died_gets_no_autopsy(tmp_path: Path, hung: tuple[Owned, int, int]) -> None:
    with pytest.raises(HarnessError), watchdog.autopsied(tmp_path / "leg", {"engine": hung[0]}, {}):
        raise HarnessError("engine-died", "it ended under load")
    assert not (tmp_path / "leg" / watchdog.FILE).exists()


def test_a_process_that_was_stopped_by_a_signal_is_told_from_a_running_one(hung: tuple[Owned, int, int]) -> None:
    owned = hung[0]
    assert not watchdog.stopped(owned.identity)
    process.send(owned.identity, signal.SIGSTOP)
    os.waitid(os.P_PID, owned.pid, os.WSTOPPED | os.WNOWAIT)
    assert watchdog.stopped(owned.identity)
    process.send(owned.identity, signal.SIGCONT)
    os.waitid(os.P_PID, owned.pid, os.WCONTINUED | os.WNOWAIT)
    assert not watchdog.stopped(owned.identity)
