"""What can go wrong in the plan cache runtime: a stable code, and a text that says what, where and the mend."""

from __future__ import annotations

from typing import Any

__all__ = [
    "BuildError",
    "CaptureMissError",
    "DeviceError",
    "FrozenMissError",
    "KernelError",
    "PlanDocumentError",
    "SettingsError",
    "TuningError",
    "shown",
]

_SHOWN_CHARACTERS = 160


class KernelError(Exception):
    """Base of every error of this package. `code` is stable and machine-readable; the message is for a person."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class PlanDocumentError(KernelError):
    """A plan document was refused as a whole, or could not be read or published. No plan of it is used."""


class FrozenMissError(KernelError):
    """A plan is missing and tuning is forbidden (VT_FP4_AUTOTUNE_CACHE_READONLY=1). Nothing was tuned."""


class SettingsError(KernelError):
    """An environment variable or the process's own metadata is wrong; found before anything was loaded."""


class CaptureMissError(KernelError):
    """A plan is missing while a graph is being captured, where timing is impossible. Nothing was tuned."""


class BuildError(KernelError):
    """The GPU kernels could not be built. Nothing was installed; objects that compiled are kept for the next try."""


class DeviceError(KernelError):
    """This machine's GPU, or the library for it, cannot run the kernels. Found before any kernel was called."""


class TuningError(KernelError):
    """No tactic could be selected for a key. The key stays open and can be tried again."""


def shown(value: Any) -> str:
    """`value` for an error text: one line, escaped, at most 160 characters of it."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}… ({len(text)} characters)"
