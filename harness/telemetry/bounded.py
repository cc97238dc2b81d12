"""A question asked in a process of its own that may never answer: a driver call can hang, even beyond KILL."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

__all__ = ["Unanswered", "python"]

KILL_WAIT_S = 2.0  # a process stuck in its driver ignores KILL until the driver lets go; it is not waited for longer


class Unanswered(Exception):
    """No answer: the text says whether it took too long (`hung`) or how it ended."""

    def __init__(self, reason: str, hung: bool) -> None:
        super().__init__(reason)
        self.hung = hung


def python(module: str, *argv: str, timeout_s: float, env: Mapping[str, str] | None = None) -> bytes:
    """What `python -m module` prints, within `timeout_s` and 2 s more. `env` is added to this process's environment."""
    asked = subprocess.Popen(
        [sys.executable, "-m", module, *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **(env or {})},
    )
    try:
        out, error = asked.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _give_up(asked)
        raise Unanswered(f"no answer within {timeout_s:g} s", True)
    if asked.returncode:
        last = error.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise Unanswered(f"it ended with {asked.returncode}" + "".join(f": {line[:300]}" for line in last), False)
    return out


def _give_up(asked: subprocess.Popen[bytes]) -> None:
    asked.kill()
    try:
        asked.wait(KILL_WAIT_S)
    except subprocess.TimeoutExpired:
        return
    finally:
        for stream in (asked.stdout, asked.stderr):
            if stream is not None:
                stream.close()
