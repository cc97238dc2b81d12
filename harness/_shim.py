"""Runs between fork and the program, by file path and with the standard library alone.

An exec'd shim and not a `preexec_fn`: the latter runs Python in a forked copy of a threaded process and may deadlock.
"""

from __future__ import annotations

import os
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), f"prctl({option})")


def die_with_parent(parent: int, number: int) -> None:
    """Ask the kernel for signal `number` when the parent *thread* ends; exit at once if that has happened already."""
    _prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def become_subreaper(on: bool = True) -> None:
    """Orphans below this process become its children instead of init's."""
    _prctl(PR_SET_CHILD_SUBREAPER, int(on))


def main(argv: list[str]) -> int:
    """`PARENT SIGNAL PROGRAM ARGS…`; signal 0 leaves the parent's death without effect."""
    parent, number, program = int(argv[0]), int(argv[1]), argv[2:]
    if number:
        die_with_parent(parent, number)
    # Python ignores these two, and the keeper blocks its signals; a program expects neither.
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.execvp(program[0], program)
    except OSError as error:
        print(f"cannot start {program[0]}: {error.strerror}", file=sys.stderr, flush=True)
    return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
