"""`python -m harness.telemetry.probe`: which GPUs NVML knows, asked in a process of its own.

Prints one JSON object: `devices`, driver and library version, or `code` and `message` where there is no answer.
"""

from __future__ import annotations

import sys
from typing import Any

from harness import canonical
from harness.errors import HarnessError
from harness.telemetry.nvml import Nvml

__all__ = ["main"]


def main() -> int:
    answer: dict[str, Any]
    try:
        answer = Nvml().identity()
    except HarnessError as error:
        answer = {"code": error.code, "message": error.message}
    sys.stdout.write(canonical.dumps(answer).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
