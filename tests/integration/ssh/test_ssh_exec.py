"""Programs over a real sshd: how they end, what they write, and that nothing of them is left."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.errors import HarnessError
from harness.transport import framing
from harness.transport.ssh_connection import Connection
from harness.transport.ssh_exec import Outcome
from tests.servers.openssh import Sshd
from tests.servers.tcp_proxy import TcpProxy

MIB8 = 8 << 20
# Says its pid, then waits for a byte that never comes.
STAY = "import os, sys, time; open(sys.argv[1], 'w').write(f'{os.getpid()}\\n'); time.sleep(600)"


def python(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, arguments)]


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Callable[[], psutil.Process]]:
    """Hears the pid of a remote program (it is this machine, after all); whoever is left at the end is killed."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    found: list[psutil.Process] = []

    def hear() -> psutil.Process:
        found.append(psutil.Process(int(path.read_text().split()[0])))
        return found[-1]

    hear.path = path  # type: ignore[attr-defined]
    yield hear
    for one in found:
        if one.is_running():
            one.kill()


def in_background(connection: Connection, argv: list[str], **options: Any) -> Callable[[], Outcome]:
    """Start `run` in a thread; the returned function waits for its outcome."""
    results: list[Outcome | HarnessError] = []

    def work() -> None:
        try:
            results.append(connection.run(argv, **{"timeout_s": 60, **options}))
        except HarnessError as error:
            results.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def result() -> Outcome:
        thread.join(60)
        (found,) = results
        if isinstance(found, HarnessError):
            raise found
        return found

    return result


@pytest.mark.parametrize("code", [0, 3, 128, 137, 255])
def test_an_exit_code_is_an_exit_code(connection: Connection, code: int) -> None:
    found = connection.run(python(f"print('out'); raise SystemExit({code})"), timeout_s=60)
    assert found == Outcome("exit", code, None, b"out\n", b"")


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGSEGV", "SIGABRT"])
def test_a_program_ended_by_a_signal_is_told_apart_from_one_that_exits(connection: Connection, name: str) -> None:
    found = connection.run(python(f"import os, signal; os.kill(os.getpid(), signal.{name})"), timeout_s=60)
    assert (found.kind, found.code, found.signal) == ("signal", None, name)


def test_a_program_that_is_not_there_is_the_shell_s_127(connection: Connection) -> None:
    found = connection.run(["/no/such/program"], timeout_s=60)
    assert (found.kind, found.code) == ("exit", 127) and b"/no/such/program" in found.stderr


def test_a_server_that_hangs_up_is_a_lost_link(start: Callable[..., Sshd], key: Path, pipe: Any) -> None:
    server = start()
    with Connection.open(server.target(key)) as connection:
        outcome = in_background(connection, python(STAY, pipe.path))
        pipe()
        server.hang_up()
        found = outcome()
        assert (found.kind, found.code, found.signal) == ("lost", None, None) and not connection.alive()
        assert connection.run(["true"], timeout_s=60).kind == "lost"


def test_eight_megabytes_on_both_streams_reach_files(connection: Connection, tmp_path: Path) -> None:
    code = (
        f"import sys\nfor _ in range({MIB8 // 65536}):\n for s in (sys.stdout, sys.stderr):\n"
        "  s.buffer.write(s.fileno() * b'x' + b'y' * (65536 - s.fileno()))"
    )
    found = connection.run(python(code), timeout_s=60, stdout=tmp_path / "out", stderr=tmp_path / "err")
    assert found == Outcome("exit", 0, None, b"", b"")
    for number, name in ((1, "out"), (2, "err")):
        wanted = (number * b"x" + b"y" * (65536 - number)) * (MIB8 // 65536)
        assert hashlib.sha256((tmp_path / name).read_bytes()).digest() == hashlib.sha256(wanted).digest()


def test_memory_is_bounded_and_says_so(connection: Connection) -> None:
    found = connection.run(python(f"print('y' * {MIB8}, end='')"), timeout_s=60, limit=1000)
    assert (found.kind, found.stdout, found.cut) == ("exit", b"y" * 1000, True)


def test_a_file_that_cannot_be_written_is_named(connection: Connection, tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match=f"{tmp_path}/no/out") as caught:
        connection.run(["true"], timeout_s=60, stdout=tmp_path / "no" / "out")
    assert caught.value.code == "ssh-output"
    with pytest.raises(HarnessError, match="No space left"):
        connection.run(["echo", "text"], timeout_s=60, stdout=Path("/dev/full"))


def test_standard_input_arrives_whole_and_need_not_be_read(connection: Connection) -> None:
    data = os.urandom(MIB8)
    assert connection.run(["cat"], stdin=data, timeout_s=60, limit=2 * MIB8).stdout == data
    assert connection.run(["true"], stdin=data, timeout_s=60).code == 0
    assert connection.run(["cat"], timeout_s=60).stdout == b""


def test_a_daemon_that_keeps_the_streams_open_holds_nobody_up_and_lives(connection: Connection, pipe: Any) -> None:
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {STAY!r}, sys.argv[1]]); print('started')"
    outcome = in_background(connection, python(code, pipe.path))
    daemon = pipe()
    found = outcome()
    assert (found.kind, found.stdout) == ("exit", b"started\n")
    connection.close()
    assert daemon.is_running()


FAMILY = """
import os, signal, subprocess, sys, time
def child(setup, environment):
    code = f"import os, signal, time; {setup}; os.write({w}, f'{{os.getpid()}} '.encode()); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", code], env=environment, pass_fds=[w])
r, w = os.pipe()
deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
child("pass", None)
child(deaf, None)
child(deaf, {})                                     # cleaned its environment
child(deaf + "; os.setsid()", None)                 # left the session
child(deaf + "; os.setsid(); os.fork() and os._exit(0)", None)  # and its parent
exec(deaf if sys.argv[2] == "deaf" else "pass")
pids = b""
while len(pids.split()) < 5 or not pids.endswith(b" "): pids += os.read(r, 99)
print("partial", flush=True)
open(sys.argv[1], "wb").write(b"%d " % os.getpid() + pids)
time.sleep(600)
"""


@pytest.mark.parametrize("parent", ["polite", "deaf"])
def test_after_a_timeout_nothing_of_the_program_is_left(connection: Connection, tmp_path: Path, parent: str) -> None:
    path = tmp_path / "pids"
    found = connection.run(python(FAMILY, path, parent), timeout_s=4, grace_s=1)
    assert (found.kind, found.code, found.signal, found.stdout) == ("timeout", None, None, b"partial\n")
    pids = [int(pid) for pid in path.read_text().split()]
    assert len(pids) == 6 and not [pid for pid in pids if psutil.pid_exists(pid) and not zombie(pid)]
    assert connection.run(["echo", "next"], timeout_s=60).stdout == b"next\n"


def zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_polite_program_may_clean_up_after_a_timeout(connection: Connection, tmp_path: Path) -> None:
    code = (
        "import signal, sys, time\n"
        "def end(*_): open(sys.argv[1], 'w').write('cleaned'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end); time.sleep(600)"
    )
    assert connection.run(python(code, tmp_path / "said"), timeout_s=2).kind == "timeout"
    assert (tmp_path / "said").read_text() == "cleaned"


def test_a_timeout_that_comes_before_the_program_is_there_ends_it_too(connection: Connection, tmp_path: Path) -> None:
    code = "import sys, time; open(sys.argv[1], 'w'); time.sleep(600)"
    assert connection.run(python(code, tmp_path), timeout_s=0).kind == "timeout"
    running = [one for one in psutil.process_iter(["cmdline"]) if str(tmp_path) in (one.info["cmdline"] or [])]
    assert not [one for one in running if one.pid != os.getpid() and not zombie(one.pid)]


def test_others_are_never_touched_by_a_timeout(connection: Connection, pipe: Any) -> None:
    outcome = in_background(connection, python(STAY, pipe.path))
    neighbour = pipe()
    assert connection.run(["sleep", "600"], timeout_s=0.5).kind == "timeout"
    assert neighbour.is_running()
    neighbour.send_signal(signal.SIGTERM)
    assert outcome().signal == "SIGTERM"


def test_a_cut_link_is_lost_and_the_program_goes_on(brittle: Connection, proxy: TcpProxy, pipe: Any) -> None:
    outcome = in_background(brittle, python(STAY, pipe.path))
    program = pipe()
    proxy.cut()
    assert outcome().kind == "lost" and program.is_running()


def test_a_half_open_link_is_given_up_while_a_program_runs(brittle: Connection, proxy: TcpProxy, pipe: Any) -> None:
    outcome = in_background(brittle, python(STAY, pipe.path))
    program = pipe()
    proxy.black_hole()
    assert outcome().kind == "lost" and not brittle.alive() and program.is_running()


def test_a_half_open_link_is_given_up_while_a_channel_opens(brittle: Connection, proxy: TcpProxy) -> None:
    proxy.black_hole()
    assert brittle.run(["true"], timeout_s=60).kind == "lost"


def test_a_half_open_link_is_given_up_while_a_lot_is_being_sent(brittle: Connection, proxy: TcpProxy) -> None:
    proxy.black_hole(after_bytes=1 << 20)
    assert brittle.run(["cat"], stdin=os.urandom(MIB8), timeout_s=60).kind == "lost"


def test_a_link_lost_while_a_timeout_is_enforced_proves_nothing(
    brittle: Connection, proxy: TcpProxy, pipe: Any
) -> None:
    outcome = in_background(brittle, python(STAY, pipe.path), timeout_s=1)
    pipe()
    proxy.black_hole()
    assert outcome().kind == "lost"


def test_a_silent_program_on_a_living_link_is_waited_for(brittle: Connection) -> None:
    assert brittle.run(["sleep", "5"], timeout_s=60).code == 0  # the link is given up after two seconds of silence
    assert brittle.alive()


def test_a_slow_link_is_a_link(brittle: Connection, proxy: TcpProxy) -> None:
    proxy.delay(0.2)
    assert brittle.run(["echo", "late"], timeout_s=60).stdout == b"late\n"


def test_what_start_files_print_does_not_reach_the_document(start: Callable[..., Sshd], key: Path) -> None:
    polluted = start('ForceCommand printf "Welcome {gpu}\\261\\n"; eval "$SSH_ORIGINAL_COMMAND"; echo bye')
    marker = framing.new_marker()
    helper = (
        "import sys; from harness.transport.framing import frame; "
        "sys.stdout.buffer.write(frame({'pid': 7}, sys.argv[1]))"
    )
    with Connection.open(polluted.target(key)) as connection:
        found = connection.run(python(helper, marker), timeout_s=60)
        assert found.stdout.startswith(b"Welcome {gpu}\xb1\n")
        read = framing.unframe(found.stdout, marker)
        assert read.documents == ({"pid": 7},) and "Welcome {gpu}\ufffd" in read.warnings[0]


def test_a_run_in_one_thread_does_not_wait_for_another(connection: Connection, pipe: Any) -> None:
    outcome = in_background(connection, python(STAY, pipe.path))
    program = pipe()
    assert connection.run(["true"], timeout_s=60).code == 0 and program.is_running()
    program.kill()
    assert outcome().signal == "SIGKILL"


def test_a_killed_program_is_over_though_its_daemon_keeps_the_streams(connection: Connection, pipe: Any) -> None:
    code = (
        f"import os, subprocess, sys; subprocess.Popen([sys.executable, '-c', {STAY!r}, sys.argv[1]], "
        "start_new_session=True); input(); os.kill(os.getpid(), 9)"
    )
    outcome = in_background(connection, python(code, pipe.path), stdin=b"\n")
    daemon = pipe()
    found = outcome()
    assert (found.kind, found.signal) == ("signal", "SIGKILL") and daemon.is_running()


def test_a_host_without_the_tools_for_the_proof_is_not_believed(
    start: Callable[..., Sshd], key: Path, tmp_path: Path, pipe: Any
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "env").symlink_to(str(shutil.which("env")))
    with Connection.open(start(f"SetEnv PATH={folder}").target(key)) as connection:
        outcome = in_background(connection, python(STAY, pipe.path), timeout_s=2)
        program = pipe()
        with pytest.raises(HarnessError, match="yet the server says that it runs") as caught:
            outcome()
        assert caught.value.code == "remote-survivor" and program.is_running()
