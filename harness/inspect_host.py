"""`harness inspect host=NAME FILE …`: the same look at files of another machine; they are read there."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict

from harness import transport
from harness.config import HostConfig
from harness.errors import UsageError
from harness.inspect import Expectation, Finding, pattern_of
from harness.transport.base import LinkLost

__all__ = ["look"]

READ_S = 3600.0  # the SHA-256 of weights on a slow disk


def look(host: HostConfig, wanted: Sequence[Expectation], match: str | None) -> list[Finding]:
    """One finding a file. UsageError for a pattern that is none, and where the host cannot be asked."""
    pattern_of(match)  # a bad one is refused before anything is connected
    with closing(transport.connect(host)) as link:
        try:
            request = {"wanted": [asdict(one) for one in wanted], "match": match}
            answer = link.call("inspect", request, timeout_s=READ_S)
        except LinkLost as error:
            raise UsageError("unreachable", f"{error.message}; nothing was changed there") from error
    return [Finding.from_json(row) for row in answer["files"]]
