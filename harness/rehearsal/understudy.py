"""An adapter without its engine: what would read the engine's files is made up, all else is the adapter's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from harness.engines.base import Engine, Launch, Said, Suite, WithSuites
from harness.plan import Plan
from harness.records import SuiteReport

__all__ = ["of"]


class Understudy:
    """Stands in for `engine` in a run of `plan`."""

    first_token, vocabulary = 0, 1 << 15

    def __init__(self, engine: Engine, plan: Plan) -> None:
        self._engine = engine
        self._legs = plan.legs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def suites(self, architectures: Sequence[str]) -> Sequence[Suite]:
        return self._commands("collect", "suite", "build")

    def sanitizers(self) -> Sequence[Suite]:
        return self._commands("sanitizer")

    def _commands(self, *kinds: str) -> Sequence[Suite]:
        """Those of the plan: a compiler or test runner that is on the host alone need not be here."""
        launch = Launch(["rehearsed"], {}, Path("/"))
        return [Suite(leg.name.partition("-")[2], leg.kind, launch) for leg in self._legs if leg.kind in kinds]

    def not_tested(self, architectures: Sequence[str]) -> Mapping[str, str]:
        return {}

    def not_sanitized(self) -> Mapping[str, str]:
        return {}

    def suite_report(self, log: str) -> SuiteReport | None:
        return self._engine.suite_report(log) if isinstance(self._engine, WithSuites) else None

    def rehearsed(self, kind: str, arm: Mapping[str, Any], plan: Path | None) -> Said:
        say = getattr(self._engine, "rehearsed", None)
        return Said() if say is None else cast(Said, say(kind, arm, plan))


def of(engine: Engine, plan: Plan) -> Engine:
    return cast(Engine, Understudy(engine, plan))
