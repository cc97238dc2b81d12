"""The run on this machine: the agent's commands in this very process."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import canonical
from harness.agent.commands import answer
from harness.agent.values import PROTOCOL, FileRow, reply
from harness.errors import HarnessError

__all__ = ["Local"]


class Local:
    """Transport to this machine. No link, so never LinkLost."""

    where = "this machine"
    poll_s = 0.2

    def call(self, command: str, request: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        return reply(answer(command, {**request, "protocol": PROTOCOL}))

    def fetch(self, folder: str, rows: Sequence[FileRow], into: Path) -> None:
        for row in rows:
            target = into / row.path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path(folder) / row.path, target)
            if (target.stat().st_size, canonical.sha256_file(target)) != (row.size, row.sha256):
                raise HarnessError("fetch", f"{row.path} changed while it was copied; see who writes in {folder}")

    def close(self) -> None:
        pass
