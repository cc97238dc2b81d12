"""Which GPUs NVML knows, who computes on them, how they do: `python -m harness.telemetry.probe`, a process of its own.

Its own process, since NVML must not be initialised where something is forked later, and may hang with its driver.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness import canonical
from harness.errors import HarnessError
from harness.records import GpuLook, GpuState
from harness.telemetry import bounded
from harness.telemetry.nvml import Nvml, owner

__all__ = ["GpuAnswer", "answer", "ask", "main", "read_answer"]

TIMEOUT_S = 30.0


@dataclass(frozen=True)
class GpuAnswer:
    """`identity` is None where there is no device. `processes` are (pid, bytes or None); None: not readable."""

    identity: Mapping[str, Any] | None
    processes: tuple[tuple[int, int | None], ...] | None
    reason: str | None
    boards: tuple[GpuState, ...] = ()

    def look(self) -> GpuLook:
        """The part that is recorded around a leg."""
        return GpuLook(self.identity, self.boards, self.reason if self.identity is None else None)


def ask(timeout_s: float = TIMEOUT_S) -> GpuAnswer:
    """Run the probe. HarnessError `nvml-…` for a broken driver, `nvml-hangs` when it does not answer in time."""
    return read_answer(answer(timeout_s))


def answer(timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """The probe's document; one without an answer has `code` and `message` as one that failed."""
    try:
        document = canonical.loads(bounded.python("harness.telemetry.probe", timeout_s=timeout_s), "the NVML probe")
    except bounded.Unanswered as error:
        code = "nvml-hangs" if error.hung else "nvml-failed"
        return {"code": code, "message": f"the NVML probe: {error}; look at dmesg and nvidia-smi"}
    assert isinstance(document, dict)
    return document


def read_answer(document: Mapping[str, Any]) -> GpuAnswer:
    """What the probe printed, as a value. No driver or no device is an answer; any other failure is HarnessError."""
    code = document.get("code")
    if code == "no-nvml":
        return GpuAnswer(None, (), str(document["message"]))
    if code is not None:
        raise HarnessError(code, str(document["message"]))
    listed = document["processes"]
    processes = None if listed is None else tuple((int(pid), used) for pid, used in listed)
    boards = tuple(GpuState.from_json(item) for item in document.get("boards", ()))
    return GpuAnswer(document["identity"], processes, document["reason"], boards)


def main() -> int:
    found: dict[str, Any]
    try:
        nvml = Nvml()
        nvml.require_one_release()
        reading = nvml.read()
        listed = None if reading.processes is None else [[one.pid, one.used_bytes] for one in reading.processes]
        found = {
            "identity": {**nvml.identity(), "binding": owner()},
            "processes": listed,
            "reason": reading.reason,
            "device_total_mib": reading.device_total_mib,
            "device_used_mib": reading.device_used_mib,
            "boards": [board.to_json() for board in nvml.boards()],
            "warnings": nvml.warnings(),
        }
    except HarnessError as error:
        found = {"code": error.code, "message": error.message}
    sys.stdout.write(canonical.dumps(found).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
