"""paramiko, imported at the first use: it costs 0.15 s or more, and a command that opens no link must not pay it."""

from __future__ import annotations

from types import ModuleType

from harness.errors import UsageError

__all__ = ["paramiko"]


def paramiko() -> ModuleType:
    """The package, or UsageError `paramiko-missing`."""
    try:
        import paramiko as package
    except ImportError as error:
        raise UsageError(
            "paramiko-missing",
            f"a run over SSH needs the package paramiko, and it cannot be imported ({error}); "
            "install this project again with pip, or run on this machine",
        ) from error
    return package
