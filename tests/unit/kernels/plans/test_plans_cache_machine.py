"""The cache against a dictionary: hypothesis looks for a history of calls after which the two disagree."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kernels.errors import CaptureMissError, FrozenMissError, KernelError, TuningError
from kernels.plans import document, store
from kernels.plans.cache import PlanCache
from kernels.plans.document import key_for
from kernels.plans.key import PlanKey
from kernels.plans.metadata import Metadata
from kernels.tactics import CUTLASS_TACTICS

METADATA = Metadata(
    architecture=121,
    build_id="build-1",
    cuda_driver="13000",
    cuda_runtime="13000",
    cutlass_version="4.5.0",
    delay_microseconds=5000,
    device_ordinal=0,
    gpu="NVIDIA GB10",
    tactic_descriptor_digest=CUTLASS_TACTICS.digest,
    tactic_set_version=2,
)
KEYS = st.sampled_from([key_for(METADATA, m, 5120, 6144) for m in (1, 2, 4, 8)])
TACTICS = st.integers(0, 31)


def never() -> NoReturn:
    raise AssertionError("tuned where nothing may be tuned")


class _Tuning:
    """A tuning that another thread has begun and that waits for its answer."""

    def __init__(self, cache: PlanCache, key: PlanKey, pool: ThreadPoolExecutor) -> None:
        self._answer: Future[int] = Future()
        begun = threading.Event()

        def tune() -> int:
            begun.set()
            return self._answer.result(30)

        self.outcome = pool.submit(cache.get, key, tune)
        assert begun.wait(30)

    def end(self, answer: int | None) -> None:
        if answer is None:
            self._answer.set_exception(ValueError("no tactic runs"))
        else:
            self._answer.set_result(answer)
        self.outcome.exception(30)


class WatchedCache(PlanCache):
    """Tells of each caller that has joined a tuning: from there on it gets that tuning's outcome."""

    def __init__(self) -> None:
        super().__init__()
        self.boarded = threading.Semaphore(0)

    def _board(self, key: PlanKey, owner: int | None) -> Any:
        found = super()._board(key, owner)
        self.boarded.release()
        return found


class CacheMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = ThreadPoolExecutor(8)
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "plans.json"
        self.saved: dict[PlanKey, int] = {}
        self.tunings: dict[PlanKey, _Tuning] = {}
        self.start()

    def start(self) -> None:
        self.cache = WatchedCache()
        self.model: dict[PlanKey, int] = {}
        self.frozen = False

    def teardown(self) -> None:
        for tuning in self.tunings.values():
            tuning.end(0)
        self.pool.shutdown()
        self.folder.cleanup()

    @rule(key=KEYS, tactic=TACTICS)
    def insert_ready(self, key: PlanKey, tactic: int) -> None:
        if key in self.tunings:
            with pytest.raises(KernelError, match="is being tuned"):
                self.cache.insert_ready(key, tactic)
            return
        assert self.cache.insert_ready(key, tactic) is (key not in self.model)
        self.model.setdefault(key, tactic)

    @rule(key=KEYS, tactic=TACTICS, capturing=st.booleans(), asynchronous=st.booleans())
    def get(self, key: PlanKey, tactic: int, capturing: bool, asynchronous: bool) -> None:
        def ask() -> int:
            tune = never if key in self.model or self.frozen or capturing else lambda: tactic
            if asynchronous:
                return asyncio.run(self.cache.get_async(key, tune, capturing=capturing))
            return self.cache.get(key, tune, capturing=capturing)

        if key in self.model:
            assert ask() == self.model[key]
        elif self.frozen or capturing:
            with pytest.raises(FrozenMissError if self.frozen else CaptureMissError):
                ask()
        elif key not in self.tunings:
            assert ask() == tactic
            self.model[key] = tactic

    @rule(key=KEYS)
    def fail_to_tune(self, key: PlanKey) -> None:
        def fail() -> int:
            raise TuningError("no-valid-tactic", "none ran")

        if key not in self.model and key not in self.tunings and not self.frozen:
            with pytest.raises(TuningError, match="none ran"):
                self.cache.get(key, fail)

    @precondition(lambda self: not self.frozen)
    @rule(key=KEYS)
    def begin_tuning(self, key: PlanKey) -> None:
        if key not in self.model and key not in self.tunings:
            self.tunings[key] = _Tuning(self.cache, key, self.pool)

    @precondition(lambda self: self.tunings)
    @rule(data=st.data(), answer=st.none() | TACTICS)
    def end_tuning(self, data: st.DataObject, answer: int | None) -> None:
        key = data.draw(st.sampled_from(sorted(self.tunings)))
        self.cache.boarded = threading.Semaphore(0)
        waiting = [] if self.frozen else [self.pool.submit(self.cache.get, key, never) for _ in range(2)]
        for _ in waiting:
            assert self.cache.boarded.acquire(timeout=30)
        self.tunings.pop(key).end(answer)
        for future in waiting:
            assert isinstance(future.exception(30), ValueError) if answer is None else future.result(30) == answer
        if answer is not None:
            self.model[key] = answer

    @rule()
    def freeze(self) -> None:
        self.cache.freeze()
        self.frozen = True

    @rule()
    def save(self) -> None:
        def merged(prior: bytes | None) -> bytes:
            held = {} if prior is None else document.parse(prior, METADATA, CUTLASS_TACTICS, "plans.json")
            return document.serialise(METADATA, CUTLASS_TACTICS, document.merge(self.cache.snapshot(), held))

        store.update(self.path, merged)
        self.saved = {**self.saved, **self.model}

    @precondition(lambda self: not self.tunings)
    @rule()
    def begin_a_new_process_and_load(self) -> None:
        self.start()
        data = store.read(self.path)
        loaded = {} if data is None else document.parse(data, METADATA, CUTLASS_TACTICS, "plans.json")
        assert loaded == self.saved
        assert self.cache.install(loaded) == len(loaded)
        self.model.update(loaded)

    @invariant()
    def ready_plans_are_those_of_the_model_in_order(self) -> None:
        assert list(self.cache.snapshot().items()) == sorted(self.model.items())
        assert len(self.cache) == len(self.model)


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
