"""One error base with a reason code; the text says what was wrong, where, and what to do."""

from __future__ import annotations

__all__ = [
    "EXITS",
    "EXIT_BUG",
    "EXIT_FAIL",
    "EXIT_PASS",
    "EXIT_TAMPERED",
    "EXIT_USAGE",
    "EXIT_VOID",
    "HarnessError",
    "UsageError",
]

EXIT_PASS = 0
EXIT_FAIL = 1
EXIT_VOID = 2
EXIT_TAMPERED = 3
EXIT_USAGE = 64
EXIT_BUG = 70

EXITS = {"PASS": EXIT_PASS, "FAIL": EXIT_FAIL, "VOID": EXIT_VOID, "TAMPERED": EXIT_TAMPERED}


class HarnessError(Exception):
    """A measurement that cannot be valid. `code` is stable and machine-readable; the message is for a person."""

    exit_code = EXIT_VOID

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class UsageError(HarnessError):
    """Bad configuration or usage, found before anything was started. Exit 64."""

    exit_code = EXIT_USAGE
