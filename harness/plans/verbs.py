"""Runs the verb that was typed; what the kernels package refuses reaches the user as a sentence with exit 64."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from harness.errors import UsageError
from harness.plans.audit import audit
from harness.plans.compare import diff, merge
from harness.plans.freeze import freeze
from harness.plans.rendering import emit
from harness.plans.show import show
from harness.plans.stability import stability
from harness.plans.transfer import export, import_
from kernels.errors import KernelError

__all__ = ["run"]

_VERBS: dict[str, Callable[[argparse.Namespace], int]] = {
    "audit": audit,
    "diff": diff,
    "export": export,
    "freeze": freeze,
    "import": import_,
    "merge": merge,
    "show": show,
    "stability": stability,
}


def run(options: argparse.Namespace) -> int:
    """The verb's exit code. UsageError for every refusal, with the kernels' own code and text."""
    try:
        return _VERBS[options.verb](options)
    except (KernelError, UsageError) as error:
        if options.json:
            emit(options, {"error": {"code": error.code, "message": error.message}}, ())
        raise UsageError(error.code, error.message) from error
