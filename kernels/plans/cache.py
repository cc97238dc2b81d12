"""Plans in memory: a hit takes no lock, a miss is tuned once however many ask, and some misses are refused.

Threads and coroutines share the tunings: whoever comes first tunes, in its own thread or, from a coroutine, in a worker
thread; the others wait for the result, each in its own way.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from kernels.errors import CaptureMissError, FrozenMissError, KernelError, TuningError
from kernels.plans.key import PlanKey
from kernels.plans.table import PlanTable

__all__ = ["PlanCache", "frozen_miss"]

Runtime = tuple[int, int, int, int]


@dataclass
class _Flight:
    """A tuning in progress: its thread (None: a worker that has not begun), and what the others wait for."""

    owner: int | None
    result: Future[int] = field(default_factory=Future)


class PlanCache:
    """Ready plans and tunings in flight. Safe for any number of threads and event loops."""

    def __init__(self) -> None:
        # By runtime, the last four fields of PlanKey. Read without the lock: tables and plans are only ever added, and
        # a dict read is atomic in CPython.
        self._tables: dict[Runtime, PlanTable] = {}
        self._flights: dict[PlanKey, _Flight] = {}
        self._waiting: dict[int | None, _Flight] = {}  # by thread
        self._lock = threading.Lock()
        self._frozen = False

    def get(self, key: PlanKey, tune: Callable[[], int], *, capturing: bool = False, m: int | None = None) -> int:
        """The tactic of `key`, tuned by `tune` if it is missing; `m` is the batch's own row count, for error texts.

        Raises FrozenMissError after `freeze`, CaptureMissError while a graph is captured, TuningError when `tune` asks
        for its own key or several tunings for each other's, and whatever `tune` raises, in the caller that ran it and
        in all that waited; nothing is kept then and the next call tunes again.
        """
        tactic = self._ready_or_refused(key, capturing, m)
        if tactic is not None:
            return tactic
        flight, mine = self._board(key, threading.get_ident())
        if mine:
            return self._fly(key, flight, tune)
        try:
            return flight.result.result()
        finally:
            del self._waiting[threading.get_ident()]

    async def get_async(
        self, key: PlanKey, tune: Callable[[], int], *, capturing: bool = False, m: int | None = None
    ) -> int:
        """`get` for a coroutine: `tune` runs in a worker thread and the event loop goes on.

        A caller that is cancelled stops waiting and harms nobody: the tuning goes on, its plan is kept, and the others
        get it. Raises as `get` does.
        """
        tactic = self._ready_or_refused(key, capturing, m)
        if tactic is not None:
            return tactic
        loop = asyncio.get_running_loop()
        flight, mine = self._board(key, None)
        if mine:
            try:
                loop.run_in_executor(None, self._fly_for_others, key, flight, tune)
            except BaseException as error:  # no worker to be had: without this the others would wait for ever
                self._crash(key, flight, error)
                raise
        await _landing(flight, loop)
        return flight.result.result()

    def insert_ready(self, key: PlanKey, tactic: int) -> bool:
        """Add a loaded plan; False where there is one already. KernelError `tuner-active` if the key is in tuning."""
        return self.install({key: tactic}) == 1

    def install(self, plans: Mapping[PlanKey, int]) -> int:
        """Add loaded plans where there are none yet and count those added. KernelError `tuner-active`, with none of
        them added, if one of the keys is being tuned."""
        with self._lock:
            for key in self._flights.keys() & plans.keys():
                raise KernelError("tuner-active", f"plan {_shape(key)} is being tuned; load documents before tuning")
            missing = [(key, tactic) for key, tactic in plans.items() if self._find(key) is None]
            for key, tactic in missing:
                self._add(key, tactic)
            return len(missing)

    def table(self, runtime: Runtime) -> PlanTable:
        """The ready plans of one runtime, live and to be read only: for a hot path that knows its own runtime."""
        with self._lock:
            return self._tables.setdefault(runtime, PlanTable())

    def __contains__(self, key: object) -> bool:
        return isinstance(key, PlanKey) and self._find(key) is not None

    def __len__(self) -> int:
        return sum(len(table.plans) for table in self._tables.copy().values())

    def snapshot(self) -> dict[PlanKey, int]:
        """The ready plans, sorted by key; tunings in flight are not in it."""
        ready = [
            (PlanKey(*shape, *runtime), tactic)
            for runtime, table in self._tables.copy().items()
            for shape, tactic in table.plans.copy().items()
        ]
        return dict(sorted(ready))

    def freeze(self) -> None:
        """From now on a miss is FrozenMissError, before any tuning. For good: a frozen process never thaws."""
        self._frozen = True

    @property
    def frozen(self) -> bool:
        return self._frozen

    def _find(self, key: PlanKey) -> int | None:
        table = self._tables.get(key[3:])
        return None if table is None else table.plans.get(key[:3])

    def _add(self, key: PlanKey, tactic: int) -> None:
        runtime = key[3:]
        if runtime not in self._tables:
            self._tables[runtime] = PlanTable()
        self._tables[runtime].add(key[:3], tactic)

    def _ready_or_refused(self, key: PlanKey, capturing: bool, m: int | None) -> int | None:
        """The ready plan; None for one that may be tuned now."""
        tactic = self._find(key)
        if tactic is not None:
            return tactic
        if self._frozen:
            raise frozen_miss(key, m)
        if capturing:
            raise CaptureMissError(
                "capture-miss", f"NVFP4 plan missing during graph capture: {_shape(key)}; warm it up first"
            )
        return None

    def _board(self, key: PlanKey, owner: int | None) -> tuple[_Flight, bool]:
        """The flight of `key` and whether this caller has to fly it; one that has landed if the plan came meanwhile.

        `owner` is the thread that will fly or wait, None for a coroutine.
        """
        with self._lock:
            tactic = self._find(key)
            flight = self._flights.get(key)
            if tactic is None and flight is None:
                flight = self._flights[key] = _Flight(owner)
                # Running from the start, so that no waiter's cancellation can cancel it for the others.
                flight.result.set_running_or_notify_cancel()
                return flight, True
            if flight is None:
                assert tactic is not None
                flight = _Flight(None)
                flight.result.set_result(tactic)
            elif self._waits_for_itself(flight):
                text = f"tuning of {_shape(key)} asked for its own plan, or for one whose tuning waits for this thread"
                raise TuningError("tuning-recursion", text)
            if owner is not None:
                self._waiting[owner] = flight
            return flight, False

    def _waits_for_itself(self, flight: _Flight | None) -> bool:
        """Whether `flight` can only land after something that this thread has yet to tune."""
        while flight is not None and not flight.result.done():
            if flight.owner == threading.get_ident():
                return True
            flight = self._waiting.get(flight.owner)
        return False

    def _fly(self, key: PlanKey, flight: _Flight, tune: Callable[[], int]) -> int:
        with self._crashing(key, flight):
            tactic = tune()
        # Published before the flight ends, so that no caller between the two tunes again.
        with self._lock:
            self._add(key, tactic)
            del self._flights[key]
        flight.result.set_result(tactic)
        return tactic

    def _fly_for_others(self, key: PlanKey, flight: _Flight, tune: Callable[[], int]) -> None:
        """In a worker thread. All who want the outcome, good or bad, have it from the flight."""
        flight.owner = threading.get_ident()
        with contextlib.suppress(BaseException):
            self._fly(key, flight, tune)

    @contextlib.contextmanager
    def _crashing(self, key: PlanKey, flight: _Flight) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._crash(key, flight, error)
            raise

    def _crash(self, key: PlanKey, flight: _Flight, error: BaseException) -> None:
        with self._lock:
            del self._flights[key]
        # A KeyboardInterrupt belongs to the thread that got it; the others only learn that nothing was chosen.
        stopped = TuningError("tuning-stopped", f"tuning of {_shape(key)} was stopped by {type(error).__name__}")
        flight.result.set_exception(error if isinstance(error, Exception) else stopped)


async def _landing(flight: _Flight, loop: asyncio.AbstractEventLoop) -> None:
    """Wait until the flight has ended, without holding it: asyncio's own bridge would pass a cancellation on to it."""
    ended = asyncio.Event()

    def tell(_: Future[int]) -> None:
        with contextlib.suppress(RuntimeError):  # this caller's loop was closed meanwhile
            loop.call_soon_threadsafe(ended.set)

    flight.result.add_done_callback(tell)
    await ended.wait()


def _shape(key: PlanKey) -> str:
    return f"bucket={key.m_bucket} N={key.n} K={key.k} device={key.device_ordinal} sm={key.architecture}"


def frozen_miss(key: PlanKey, m: int | None = None) -> FrozenMissError:
    """The error for a plan that may not be tuned; `m` is the batch's own row count, if there is a batch."""
    rows = key.m_bucket if m is None else m
    text = f"NVFP4 frozen persistent cache miss before readiness: M={rows} {_shape(key)}"
    return FrozenMissError("frozen-miss", text)
