"""`… | head`: whoever reads the output closes it early. A real pipe, real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness import pipe
from harness.display import terminal

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "evidence" / "example"
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
VERBS = {
    "verify": ["-m", "harness", "verify", str(EXAMPLE)],
    "report": ["-m", "harness", "report", str(EXAMPLE)],
    "explain": ["-m", "harness", "explain"],
    "help": ["-m", "harness", "verify", "--help"],
    "doctor": ["-m", "harness", "doctor"],  # through rich
    "single file": ["-I", "-S", str(ROOT / "evidence" / "verify.py"), str(EXAMPLE)],
}


def unread(words: Sequence[str], *, both: bool = False, **env: str) -> tuple[int, str]:
    """Exit code and stderr of a program whose output has no reader from the start; with `both` stderr has none."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, *words],
            stdout=writer,
            stderr=writer if both else subprocess.PIPE,
            env={**BUFFERED, **env},
            cwd=ROOT,
            timeout=120,
            check=False,
        )
    finally:
        os.close(writer)
    return done.returncode, (done.stderr or b"").decode()


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_ends_quietly_with_the_exit_code_of_a_closed_pipe(verb: str) -> None:
    assert unread(VERBS[verb]) == (pipe.EXIT_UNREAD, "")


def test_it_makes_no_difference_whether_python_buffers() -> None:
    assert unread(VERBS["verify"], PYTHONUNBUFFERED="1") == (pipe.EXIT_UNREAD, "")


def test_an_error_that_nobody_reads_is_no_bug_either() -> None:
    assert unread(["-m", "harness", "verify", "no-such-folder"], both=True)[0] == pipe.EXIT_UNREAD


def test_head_gets_its_line_and_a_reader_of_everything_the_outcomes_exit_code() -> None:
    command = f"'{sys.executable}' -m harness verify '{EXAMPLE}' | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.startswith("FAIL: ")
    assert done.stdout.splitlines()[1] in ("1", str(pipe.EXIT_UNREAD))  # head may close before or after the last line
    assert done.stderr == ""


def test_a_pipe_to_something_else_that_broke_is_not_taken_for_the_readers() -> None:
    def work() -> int:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        pipe.quietly(work)


def test_a_console_hands_the_broken_pipe_on_instead_of_ending_with_the_exit_code_of_a_fail() -> None:
    with pytest.raises(BrokenPipeError):
        terminal().on_broken_pipe()
