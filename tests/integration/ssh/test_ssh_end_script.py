"""The script that ends a program and proves it gone, in every POSIX shell that this machine has; needs no server."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest

from harness.transport.ssh_exec import END, RUN

SHELLS = [name for name in ("sh", "dash", "bash", "busybox", "ksh", "mksh") if shutil.which(name)]
CHILD = (
    "import os, signal, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN if sys.argv[1] == 'deaf' else signal.SIG_DFL)\n"
    "print(flush=True); time.sleep(600)"
)


def end(shell: str, token: str) -> str:
    argv = [shell, "sh"] if shell == "busybox" else [shell]
    done = subprocess.run([*argv, "-c", END, "sh", f"{RUN}={token}", "3"], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout


def started(manner: str, token: str, **options: object) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", CHILD, manner]
    env = {**os.environ, RUN: token}
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, env=env, **options)  # type: ignore[call-overload]
    assert process.stdout.readline() == b"\n"
    return process


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(("manner", "number"), [("polite", signal.SIGTERM), ("deaf", signal.SIGKILL)])
def test_a_program_is_asked_first_and_killed_when_it_does_not_listen(shell: str, manner: str, number: int) -> None:
    process = started(manner, f"{shell}-{manner}", start_new_session=True)
    assert end(shell, f"{shell}-{manner}") == "gone\n"
    assert process.wait(60) == -number


@pytest.mark.parametrize("shell", SHELLS)
def test_a_group_is_ended_only_where_the_program_leads_it(shell: str) -> None:
    """A server that gives programs no session of their own would be killed with them otherwise; so would this test."""
    process = started("polite", f"{shell}-member", start_new_session=False)
    assert end(shell, f"{shell}-member") == "gone\n"
    assert process.wait(60) == -signal.SIGTERM


@pytest.mark.parametrize("shell", SHELLS)
def test_where_there_is_nothing_to_end_that_is_said(shell: str) -> None:
    assert end(shell, "nobody-has-this-token") == "gone\n"
