"""The line that a login shell gets, given to every login shell that this machine has."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.transport.ssh_exec import command_line

SHOW = "import os, sys; print(ascii([os.fsencode(a) for a in sys.argv[1:]]), os.environ['NVFP4_GATES_RUN'])"
SHELLS = [name for name in ("sh", "bash", "dash", "zsh", "ksh", "fish", "csh", "tcsh", "busybox") if shutil.which(name)]
ODD = [
    "",
    " ",
    "a b",
    "'",
    '"',
    "\\",
    "\\0101",
    "\\c",
    "$HOME",
    "`id`",
    "!x",
    "*",
    "-n",
    "é\n\t",
    "%d%n",
    "\udcb1",
    "x\n\n",
]


def through(shell: str, arguments: list[str]) -> str:
    line = command_line([sys.executable, "-c", SHOW, *arguments], "t0ken")
    argv = [shell, "sh", "-c", line] if shell == "busybox" else [shell, "-c", line]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_program_gets_its_arguments_byte_by_byte_through_any_login_shell(shell: str) -> None:
    assert through(shell, ODD) == f"{[argument.encode('utf-8', 'surrogateescape') for argument in ODD]!a} t0ken"


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"])), max_size=4))
def test_any_text_is_carried(arguments: list[str]) -> None:
    assert through("sh", arguments) == f"{[argument.encode() for argument in arguments]!a} t0ken"


@pytest.mark.parametrize(("code", "returned"), [("raise SystemExit(137)", 137), ("os.kill(os.getpid(), 9)", -9)])
def test_the_program_takes_the_shell_s_place_so_137_and_a_kill_differ(code: str, returned: int) -> None:
    line = command_line([sys.executable, "-c", f"import os\n{code}"], "t0ken")
    assert subprocess.run(["/bin/sh", "-c", line], check=False).returncode == returned


@pytest.mark.parametrize(
    ("argv", "said"), [([], "empty command"), (["x", "a\0b"], "NUL byte"), (["x", "y" * 100_000], "standard input")]
)
def test_what_no_program_can_be_given_is_a_sentence(argv: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        command_line(argv, "t0ken")
    assert caught.value.code == "remote-command"
