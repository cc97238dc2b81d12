"""Output whose reader has gone (`… | head`), which is nobody's fault. Standard library only."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from typing import TextIO

__all__ = ["EXIT_UNREAD", "quietly", "unread"]

EXIT_UNREAD = 141  # 128 + SIGPIPE: what a shell says of a program that a closed pipe ended


def quietly(work: Callable[[], int]) -> int:
    """Run `work` and hand over all that it printed; EXIT_UNREAD, without a word, where nobody reads that any more.

    A BrokenPipeError of another pipe goes on.
    """
    try:
        try:
            return work()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
    except BrokenPipeError as error:
        if not unread(error):
            raise
        _drop(_deserted())
        return EXIT_UNREAD


def unread(error: BaseException) -> bool:
    """Whether `error` comes of a reader of stdout or stderr that has gone."""
    return isinstance(error, BrokenPipeError) and bool(_deserted())


def _deserted() -> list[TextIO]:
    return [stream for stream in (sys.stdout, sys.stderr) if _is_deserted(stream)]


def _is_deserted(stream: TextIO) -> bool:
    try:
        number = stream.fileno()
    except (OSError, ValueError):  # a test's stand-in, or closed
        return False
    if not hasattr(select, "poll"):  # Windows has none, and no pipe of its own that could have broken instead
        return True
    poll = select.poll()
    poll.register(number, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _drop(streams: list[TextIO]) -> None:
    """What is still buffered goes nowhere, so that the interpreter's own flush at its end finds nothing wrong."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(nowhere, stream.fileno())
