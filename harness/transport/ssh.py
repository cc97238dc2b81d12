"""The run on a host behind SSH: the agent's commands there, out of sources and an environment put there before.

Nothing but the agent's answers and the bundle's files crosses the wire, and nothing there waits for this side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import bootstrap, canonical
from harness.agent.values import PROTOCOL, FileRow, reply
from harness.config import HostConfig
from harness.errors import HarnessError, UsageError
from harness.transport.remote import Remote

__all__ = ["Ssh"]


class Ssh:
    """Transport to a prepared host. Connects with its first call, and again with the first after a lost link."""

    def __init__(self, config: HostConfig) -> None:
        self.where = config.name
        self.poll_s = config.poll_s
        self._remote = Remote(config)
        self._record: dict[str, Any] | None = None

    def call(self, command: str, request: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        record = self._prepared()
        # -P: not the home directory first on the path.
        start = [record["interpreter"], "-P", "-m", "harness.agent", command]
        return reply(
            self._remote.answer(
                lambda marker: [*start, marker],
                {**request, "protocol": PROTOCOL},
                timeout_s,
            )
        )

    def fetch(self, folder: str, rows: Sequence[FileRow], into: Path) -> None:
        """By SFTP, each to a temporary name first. A file that an earlier call brought whole is not fetched again."""
        for row in rows:
            target = into / row.path
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.is_file() and (target.stat().st_size, canonical.sha256_file(target)) == (row.size, row.sha256):
                continue
            try:
                self._remote.get(f"{folder}/{row.path}", target, sha256=row.sha256, size=row.size)
            except HarnessError as error:
                if error.code == "local-file":
                    raise OSError(0, error.message) from error
                raise

    def close(self) -> None:
        self._remote.close()

    def _prepared(self) -> dict[str, Any]:
        """The host's own record of these very sources. UsageError `host-not-prepared` or `host-other-sources`."""
        if self._record is None:
            ours = bootstrap.sources()
            found = self._remote.ask("probe", {"sources": ours.name})
            record = found["record"]
            if record is None or record["sources_sha256"] != ours.sha256:
                raise self._unprepared(found, ours.name)
            self._record = record
        return self._record

    def _unprepared(self, found: Mapping[str, Any], name: str) -> UsageError:
        mend = f"run: python -m harness host prepare host={self.where}"
        if found["others"]:
            why = f"was prepared from other sources than these ({name}), so it would measure with other code; {mend}"
            return UsageError("host-other-sources", f"{self.where} {why}")
        return UsageError("host-not-prepared", f"{self.where} has nothing of this project in {found['base']}; {mend}")
