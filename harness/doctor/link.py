"""What `harness doctor` says of the way to a host behind SSH: values in, rows out. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.doctor.table import BAD, OK, WARN, Row
from harness.errors import HarnessError

__all__ = ["Clock", "Reached", "prepared", "refused", "unasked"]

SKEW_S = 2.0


@dataclass(frozen=True)
class Reached:
    """A link that was opened: to whom, how long it took, and the key that the host showed."""

    where: str
    seconds: float
    host_key: str

    def rows(self) -> list[Row]:
        return [
            Row("reachability", f"{self.where}, logged in within {self.seconds:.2f} s", OK),
            Row("host key", f"{self.host_key}, as in known hosts", OK),
        ]


@dataclass(frozen=True)
class Clock:
    """Wall clocks in nanoseconds: here before the question and after the answer, there in between."""

    before_ns: int
    there_ns: int
    after_ns: int

    def row(self) -> Row:
        """The host's clock less ours lies between two bounds, as wide apart as the question took."""
        low, high = (self.there_ns - self.after_ns) / 1e9, (self.there_ns - self.before_ns) / 1e9
        seen = f"between {low:+.2f} s and {high:+.2f} s"
        if low > SKEW_S or high < -SKEW_S:
            return Row("clock skew", seen, WARN, "set both clocks (NTP): the journal's stamps are the host's")
        return Row("clock skew", seen, OK)


def refused(error: HarnessError) -> list[Row]:
    """The rows of a link that was not opened; the message of an SSH error holds its own mend."""
    if error.code.startswith(("ssh-host-key", "ssh-known-hosts")):
        return [Row("host key", error.message, BAD, "compare the fingerprint with whoever runs the host, first")]
    if error.code == "ssh-auth":
        return [Row("reachability", error.message, BAD, "`ssh` must work without a question: mend key or agent")]
    return [Row("reachability", error.message, BAD, "look at address, network and sshd; nothing was started")]


def unasked(error: HarnessError) -> Row:
    """The host is reached and its Python is not, or is too old."""
    return Row("Python", error.message, BAD, "install Python 3.11 to 3.13 there or set host.remote_python")


def prepared(found: Mapping[str, Any], sources: str, sha256: str, host: str) -> Row:
    """Whether these very sources are there, by the host's own record."""
    record, what = found["record"], "this project there"
    if record is not None and record["sources_sha256"] == sha256:
        return Row(what, f"sources {sources}, prepared {record['utc']}", OK)
    seen = f"other sources than these ({sources})" if found["others"] else f"nothing in {found['base']}"
    return Row(what, seen, BAD, f"run: python -m harness host prepare host={host}")
