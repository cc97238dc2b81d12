"""How a tactic is timed on a stream, and how one is chosen: 3 warm-ups, a synchronisation, one delay kernel, 10
launches between two events. Behind the delay the launches lie queued, so that the host's pace does not show."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from kernels.tactics import TacticSet

__all__ = ["REPEATS", "WARMUPS", "Candidate", "Choice", "Counts", "choose", "measure"]

WARMUPS, REPEATS = 3, 10


class Candidate(Protocol):
    """One tactic on one set of operands, on a stream."""

    def launch(self) -> None: ...

    def synchronise(self) -> None: ...

    def delay(self, microseconds: int) -> None: ...

    def record(self) -> Any: ...

    def elapsed(self, start: Any, end: Any) -> float:
        """Seconds between two recorded events; waits for the second."""

    def finite(self) -> bool:
        """Whether the last result holds neither infinity nor NaN."""


@dataclass
class Counts:
    """What measuring did: after n undisturbed candidates exactly 3 n warm-ups, n delays and 10 n timed launches."""

    candidates: int = 0
    warmups: int = 0
    synchronisations: int = 0
    delays: int = 0
    timed: int = 0


@dataclass(frozen=True)
class Choice:
    """The winner, its mean seconds, and the best of the others; `failed` gives the reason by tactic id."""

    tactic: int
    seconds: float
    runner_up: int | None
    runner_up_seconds: float
    seconds_of: Mapping[int, float]
    failed: Mapping[int, str] = field(default_factory=dict)

    @property
    def margin(self) -> float | None:
        """How much slower the runner-up is, as a fraction of the winner's time; None without one."""
        return None if self.runner_up is None else self.runner_up_seconds / self.seconds - 1

    def fields(self, tactics: TacticSet) -> dict[str, Any]:
        """What a document says of a plan beside the tactic: its time, and who came second by how much."""
        found: dict[str, Any] = {"time_us": round(self.seconds * 1e6, 3)}
        if self.runner_up is not None and self.margin is not None:
            runner, own = tactics.named(self.runner_up)
            found |= {"runner_up": runner, "runner_up_tactic_id": own, "runner_up_margin": round(self.margin, 5)}
        return found


def measure(candidate: Candidate, delay_us: int, counts: Counts) -> float:
    """Mean seconds of a launch. Without a delay (0) no delay kernel is launched."""
    counts.candidates += 1
    for _ in range(WARMUPS):
        candidate.launch()
        counts.warmups += 1
    candidate.synchronise()
    counts.synchronisations += 1
    if delay_us:
        candidate.delay(delay_us)
        counts.delays += 1
    start = candidate.record()
    for _ in range(REPEATS):
        candidate.launch()
        counts.timed += 1
    return candidate.elapsed(start, candidate.record()) / REPEATS


def choose(tactics: Iterable[int], timed: Callable[[int], float]) -> Choice | None:
    """The fastest of `tactics`; equal times keep the lowest id. `timed` raises ArithmeticError, or answers infinity or
    NaN, for one that failed: it counts as infinitely slow and is reported. None when all failed."""
    seconds: dict[int, float] = {}
    failed: dict[int, str] = {}
    for tactic in sorted(tactics):
        try:
            seconds[tactic] = timed(tactic)
        except ArithmeticError as error:
            seconds[tactic], failed[tactic] = math.inf, str(error)
        if not math.isfinite(seconds[tactic]):
            seconds[tactic] = math.inf
            failed.setdefault(tactic, "its time is not finite")
    ranked = sorted((time, tactic) for tactic, time in seconds.items() if math.isfinite(time))
    if not ranked:
        return None
    (best, winner), runner_up = ranked[0], ranked[1] if len(ranked) > 1 else None
    second, second_time = (runner_up[1], runner_up[0]) if runner_up else (None, math.inf)
    return Choice(winner, best, second, second_time, seconds, failed)
