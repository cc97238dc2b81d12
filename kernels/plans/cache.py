"""Plans in memory: a hit takes no lock, a miss is tuned once however many threads ask, and some misses are refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

from kernels.errors import CaptureMissError, FrozenMissError, KernelError, TuningError
from kernels.plans.key import PlanKey

__all__ = ["PlanCache", "frozen_miss"]


@dataclass(frozen=True)
class _Flight:
    """A tuning in progress: who does it, and the result the others wait for."""

    owner: int = field(default_factory=threading.get_ident)
    result: Future[int] = field(default_factory=Future)


class PlanCache:
    """Ready plans and tunings in flight. Safe for any number of threads."""

    def __init__(self) -> None:
        # Read without the lock: entries are only ever added, and a dict read is atomic in CPython.
        self._ready: dict[PlanKey, int] = {}
        self._flights: dict[PlanKey, _Flight] = {}
        self._lock = threading.Lock()
        self._frozen = False

    def get(self, key: PlanKey, tune: Callable[[], int], *, capturing: bool = False, m: int | None = None) -> int:
        """The tactic of `key`, tuned by `tune` if it is missing; `m` is the batch's own row count, for error texts.

        Raises FrozenMissError after `freeze`, CaptureMissError while a graph is captured, TuningError when `tune` asks
        for its own key, and whatever `tune` raises, in the caller that ran it and in all that waited; nothing is kept
        then and the next call tunes again.
        """
        tactic = self._ready.get(key)
        if tactic is not None:
            return tactic
        if self._frozen:
            raise frozen_miss(key, m)
        if capturing:
            raise CaptureMissError(
                "capture-miss", f"NVFP4 plan missing during graph capture: {_shape(key)}; warm it up first"
            )
        flight, mine = self._board(key)
        if flight is None:
            return self._ready[key]
        if not mine:
            return flight.result.result()
        with self._landing(key, flight):
            tactic = tune()
            # Published before the flight ends, so that no caller between the two tunes again.
            self._ready[key] = tactic
            flight.result.set_result(tactic)
        return tactic

    def insert_ready(self, key: PlanKey, tactic: int) -> bool:
        """Add a loaded plan; False where there is one already. KernelError `tuner-active` if the key is in tuning."""
        with self._lock:
            if key in self._flights:
                raise KernelError("tuner-active", f"plan {_shape(key)} is being tuned; load documents before tuning")
            if key in self._ready:
                return False
            self._ready[key] = tactic
            return True

    def __contains__(self, key: object) -> bool:
        return key in self._ready

    def __len__(self) -> int:
        return len(self._ready)

    def snapshot(self) -> dict[PlanKey, int]:
        """The ready plans, sorted by key; tunings in flight are not in it."""
        return dict(sorted(self._ready.copy().items()))

    def freeze(self) -> None:
        """From now on a miss is FrozenMissError, before any tuning. For good: a frozen process never thaws."""
        self._frozen = True

    @property
    def frozen(self) -> bool:
        return self._frozen

    def _board(self, key: PlanKey) -> tuple[_Flight | None, bool]:
        """The flight of `key` and whether this caller has to fly it; (None, False) if it landed meanwhile."""
        with self._lock:
            if key in self._ready:
                return None, False
            flight = self._flights.get(key)
            if flight is None:
                flight = self._flights[key] = _Flight()
                return flight, True
        if flight.owner == threading.get_ident() and not flight.result.done():
            raise TuningError("tuning-recursion", f"tuning of {_shape(key)} asked for its own plan")
        return flight, False

    @contextmanager
    def _landing(self, key: PlanKey, flight: _Flight) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            with self._lock:
                del self._flights[key]
            # A KeyboardInterrupt belongs to the thread that got it; the others only learn that nothing was chosen.
            stopped = TuningError("tuning-stopped", f"tuning of {_shape(key)} was stopped by {type(error).__name__}")
            flight.result.set_exception(error if isinstance(error, Exception) else stopped)
            raise
        with self._lock:
            del self._flights[key]


def _shape(key: PlanKey) -> str:
    return f"bucket={key.m_bucket} N={key.n} K={key.k} device={key.device_ordinal} sm={key.architecture}"


def frozen_miss(key: PlanKey, m: int | None = None) -> FrozenMissError:
    """The error for a plan that may not be tuned; `m` is the batch's own row count, if there is a batch."""
    rows = key.m_bucket if m is None else m
    text = f"NVFP4 frozen persistent cache miss before readiness: M={rows} {_shape(key)}"
    return FrozenMissError("frozen-miss", text)
