"""`python -m harness.agent COMMAND MARKER`: a request on stdin, the reply framed with the marker on stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from harness import canonical
from harness.agent.commands import answer
from harness.transport import framing

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    command, marker = argv
    request = canonical.loads(sys.stdin.buffer.read(), "the request")
    os.umask(0o077)  # run.json and the arms' logs are nobody else's business on a shared host
    sys.stdout.buffer.write(framing.frame(answer(command, request), marker))
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
