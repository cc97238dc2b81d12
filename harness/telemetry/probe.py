"""Which GPUs NVML knows and who computes on them, asked in a process of its own: `python -m harness.telemetry.probe`.

Its own process, since NVML must not be initialised where something is forked later, and may hang with its driver.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness import canonical
from harness.errors import HarnessError
from harness.telemetry.nvml import Nvml

__all__ = ["GpuAnswer", "ask", "main", "read_answer"]

TIMEOUT_S = 30.0


@dataclass(frozen=True)
class GpuAnswer:
    """`identity` is None where there is no device. `processes` are (pid, bytes or None); None: not readable."""

    identity: Mapping[str, Any] | None
    processes: tuple[tuple[int, int | None], ...] | None
    reason: str | None


def ask() -> GpuAnswer:
    """Run the probe. HarnessError `nvml-…` for a broken driver, `nvml-hangs` when it does not answer in time."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "harness.telemetry.probe"], capture_output=True, timeout=TIMEOUT_S, check=True
        )
    except subprocess.TimeoutExpired:
        raise HarnessError("nvml-hangs", f"NVML did not answer within {TIMEOUT_S:g} s; look at dmesg and nvidia-smi")
    return read_answer(canonical.loads(done.stdout, "the NVML probe"))


def read_answer(document: Mapping[str, Any]) -> GpuAnswer:
    """What the probe printed, as a value. No driver or no device is an answer; any other failure is HarnessError."""
    code = document.get("code")
    if code == "no-nvml":
        return GpuAnswer(None, (), str(document["message"]))
    if code is not None:
        raise HarnessError(code, str(document["message"]))
    listed = document["processes"]
    processes = None if listed is None else tuple((int(pid), used) for pid, used in listed)
    return GpuAnswer(document["identity"], processes, document["reason"])


def main() -> int:
    answer: dict[str, Any]
    try:
        nvml = Nvml()
        reading = nvml.read()
        listed = None if reading.processes is None else [[one.pid, one.used_bytes] for one in reading.processes]
        answer = {"identity": nvml.identity(), "processes": listed, "reason": reading.reason}
    except HarnessError as error:
        answer = {"code": error.code, "message": error.message}
    sys.stdout.write(canonical.dumps(answer).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
