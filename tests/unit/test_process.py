from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness import process
from harness.process import Exit
from harness.telemetry.procfs import ProcessId


def test_exit_codes_and_signals_are_told_apart() -> None:
    assert (str(Exit(9, None)), str(Exit(None, 9))) == ("exit code 9", "killed by SIGKILL")
    assert str(Exit(None, 70)) == "killed by signal 70"


def test_a_wait_status_becomes_an_exit() -> None:
    assert Exit.from_status(3 << 8) == Exit(3, None)
    assert Exit.from_status(signal.SIGTERM) == Exit(None, 15)


@pytest.mark.parametrize("how", [Exit(0, None), Exit(None, 11)])
def test_an_exit_survives_json(how: Exit) -> None:
    assert Exit.from_json(how.to_json()) == how


def test_nothing_of_the_operators_shell_gets_through(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VT_FP4_FULL_TACTICS", "LD_PRELOAD", "PYTHONPATH", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "hostile")
    for name in ("PATH", "HOME", "TMPDIR", "LANG", "TZ"):
        monkeypatch.setenv(name, "/hostile")
    environment = process.clean_environment({"VT_FP4_PLAN_CACHE": "1"})
    assert set(environment) == {"HOME", "PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "VT_FP4_PLAN_CACHE"}
    assert not any("hostile" in value for value in environment.values())


def test_an_engine_may_set_its_own_path() -> None:
    assert process.clean_environment({"PATH": "/opt/venv/bin"})["PATH"] == "/opt/venv/bin"


def test_the_tail_is_bounded_in_lines_and_in_bytes(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_bytes(b"x" * 100_000 + b"\none\n\xf8two\nthree\n")
    assert process.tail(log, lines=2) == "�two\nthree"
    assert process.tail(log, lines=99, limit_bytes=11) == "�two\nthree"


def test_the_tail_of_a_log_that_was_never_written_is_empty(tmp_path: Path) -> None:
    assert process.tail(tmp_path / "absent.log") == ""


def test_a_pid_with_another_start_time_is_never_signalled() -> None:
    assert not process.send(ProcessId(os.getpid(), 1), signal.SIGKILL)


def test_a_stranger_counts_as_gone() -> None:
    assert process.wait_gone([ProcessId(os.getpid(), 1)], 0)


def test_every_module_of_this_room_is_importable_without_linux() -> None:
    code = (
        "import sys, signal, os\n"
        "for name in ('fcntl', 'pwd', 'grp', 'resource', 'termios', 'psutil', 'pynvml', 'mmap'):"
        " sys.modules[name] = None\n"
        "for name in ('SIGKILL', 'SIGCHLD', 'SIGHUP', 'SIGPIPE', 'pthread_sigmask', 'sigtimedwait'):"
        " delattr(signal, name)\n"
        "for name in ('O_NOFOLLOW', 'O_CLOEXEC', 'pidfd_open', 'fork', 'getuid', 'posix_fadvise', 'sysconf', 'nice'):"
        " delattr(os, name)\n"
        "from harness import holder, keeper, lease, ports, process\n"
        "from harness.telemetry import host, nvml, pagecache, procfs, sampler, tree\n"
    )
    repository = Path(process.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
