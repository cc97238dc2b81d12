from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import pytest

from kernels.errors import CaptureMissError, FrozenMissError, KernelError, TuningError
from kernels.plans.cache import PlanCache
from kernels.plans.key import PlanKey
from kernels.plans.table import ABSENT, PLACE_OF

KEY = PlanKey(8, 5120, 6144, 0, 121, 0, 2)
OTHER = KEY._replace(m_bucket=4)


class Boarding:
    """Counts callers that have joined a tuning: from there on they get its outcome, however late they look."""

    def __init__(self, cache: PlanCache, monkeypatch: pytest.MonkeyPatch) -> None:
        self._joined = threading.Semaphore(0)
        board = cache._board

        def counted(key: PlanKey, owner: int | None) -> object:
            found = board(key, owner)
            self._joined.release()
            return found

        monkeypatch.setattr(cache, "_board", counted)

    def wait(self, callers: int) -> None:
        for _ in range(callers):
            assert self._joined.acquire(timeout=30)


def never() -> NoReturn:
    raise AssertionError("tuned where nothing may be tuned")


def test_a_missing_plan_is_tuned_once_and_then_hit() -> None:
    cache = PlanCache()
    assert cache.get(KEY, lambda: 4) == 4
    assert cache.get(KEY, never) == 4
    assert KEY in cache and OTHER not in cache and len(cache) == 1


class Forbidden:
    """A lock that nobody may take."""

    def __enter__(self) -> NoReturn:
        raise AssertionError("a hit took the lock")

    acquire = __exit__ = __enter__


def test_a_hit_takes_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = PlanCache()
    cache.insert_ready(KEY, 4)
    monkeypatch.setattr(cache, "_lock", Forbidden())
    with pytest.raises(AssertionError, match="took the lock"):
        cache.get(OTHER, never)
    assert cache.get(KEY, never) == 4
    assert asyncio.run(cache.get_async(KEY, never)) == 4
    assert KEY in cache and len(cache) == 1 and cache.snapshot() == {KEY: 4}


def test_tactic_zero_is_a_plan_and_not_a_miss() -> None:
    cache = PlanCache()
    cache.insert_ready(KEY, 0)
    assert cache.get(KEY, never) == 0


def test_sixteen_callers_share_one_tuning_and_other_keys_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = PlanCache()
    boarding = Boarding(cache, monkeypatch)
    release = threading.Event()
    tunings: list[int] = []

    def tune() -> int:
        tunings.append(threading.get_ident())
        assert release.wait(30)
        return 7

    with ThreadPoolExecutor(16) as pool:
        results = [pool.submit(cache.get, KEY, tune) for _ in range(16)]
        boarding.wait(16)
        assert cache.get(OTHER, lambda: 3) == 3
        assert cache.snapshot() == {OTHER: 3}
        release.set()
        assert [result.result(30) for result in results] == [7] * 16
    assert len(tunings) == 1
    assert list(cache.snapshot().items()) == [(OTHER, 3), (KEY, 7)]


@pytest.mark.parametrize("error", [RuntimeError("no tactic runs"), KeyboardInterrupt()])
def test_a_failed_tuning_wakes_all_that_wait_and_can_be_tried_again(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = PlanCache()
    boarding = Boarding(cache, monkeypatch)
    release = threading.Event()
    raised: list[BaseException] = []

    def fail() -> int:
        assert release.wait(30)
        raise error

    def ask(tune: Callable[[], int]) -> None:
        try:
            cache.get(KEY, tune)
        except BaseException as seen:
            raised.append(seen)

    threads = [threading.Thread(target=ask, args=(fail,))]
    threads[0].start()
    boarding.wait(1)
    threads += [threading.Thread(target=ask, args=(never,)) for _ in range(3)]
    for thread in threads[1:]:
        thread.start()
    boarding.wait(3)
    release.set()
    for thread in threads:
        thread.join(30)
    assert raised.count(error) == (4 if isinstance(error, Exception) else 1)
    assert all(isinstance(seen, TuningError) for seen in raised if seen is not error)
    assert len(raised) == 4
    assert cache.get(KEY, lambda: 5) == 5


def test_a_tuner_that_asks_for_its_own_plan_is_told_and_does_not_hang() -> None:
    cache = PlanCache()
    with pytest.raises(TuningError) as caught:
        cache.get(KEY, lambda: cache.get(KEY, never))
    assert caught.value.code == "tuning-recursion"
    assert cache.get(KEY, lambda: cache.get(OTHER, lambda: 1) + 1) == 2


def test_two_tunings_that_ask_for_each_other_are_told_and_do_not_hang() -> None:
    cache = PlanCache()
    both = threading.Barrier(2)

    def ask(own: PlanKey, other: PlanKey) -> int:
        def tune() -> int:
            both.wait(30)
            try:
                return cache.get(other, never) + 1
            except TuningError as error:
                assert error.code == "tuning-recursion"
                return 10

        return cache.get(own, tune)

    with ThreadPoolExecutor(2) as pool:
        results = [pool.submit(ask, KEY, OTHER), pool.submit(ask, OTHER, KEY)]
        assert sorted(result.result(30) for result in results) == [10, 11]
    assert cache._waiting == {}


def test_a_loaded_plan_fills_a_gap_and_never_replaces() -> None:
    cache = PlanCache()
    assert cache.insert_ready(KEY, 4) is True
    assert cache.insert_ready(KEY, 5) is False
    assert cache.snapshot() == {KEY: 4}


def test_loading_over_a_tuning_in_progress_is_an_error_and_leaves_it_alone() -> None:
    cache = PlanCache()

    def tune() -> int:
        with pytest.raises(KernelError) as caught:
            cache.insert_ready(KEY, 1)
        assert caught.value.code == "tuner-active"
        assert cache.insert_ready(OTHER, 1)
        return 9

    assert cache.get(KEY, tune) == 9


def test_a_document_is_installed_whole_or_not_at_all() -> None:
    cache = PlanCache()
    third = KEY._replace(m_bucket=16)
    cache.insert_ready(third, 1)

    def tune() -> int:
        with pytest.raises(KernelError) as caught:
            cache.install({OTHER: 2, KEY: 3})
        assert caught.value.code == "tuner-active"
        assert cache.snapshot() == {third: 1}
        return 9

    assert cache.get(KEY, tune) == 9
    assert cache.install({OTHER: 2, KEY: 3, third: 4}) == 1
    assert cache.snapshot() == {OTHER: 2, KEY: 9, third: 1}


def test_plans_of_one_runtime_are_seen_live_by_shape() -> None:
    cache = PlanCache()
    table = cache.table(KEY[3:])
    cache.insert_ready(KEY, 4)
    cache.insert_ready(KEY._replace(device_ordinal=1), 5)
    assert table.plans == {(8, 5120, 6144): 4}
    assert table.rows[5120][6144][PLACE_OF[7]] == 4
    assert table.rows[5120][6144][PLACE_OF[9]] == ABSENT


@pytest.mark.parametrize(("key", "tactic"), [(KEY, ABSENT), (KEY, 2**40), (KEY._replace(m_bucket=7), 1)])
def test_a_plan_that_fits_no_row_is_found_by_its_key(key: PlanKey, tactic: int) -> None:
    cache = PlanCache()
    cache.insert_ready(key, tactic)
    assert cache.get(key, never) == tactic
    assert cache.table(KEY[3:]).rows == {}


def test_coroutines_and_threads_share_one_tuning_and_the_loop_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = PlanCache()
    boarding = Boarding(cache, monkeypatch)
    release = threading.Event()
    tuners: list[int] = []

    def tune() -> int:
        tuners.append(threading.get_ident())
        assert release.wait(30)
        return 7

    async def ask() -> list[int]:
        waiting = [asyncio.create_task(cache.get_async(KEY, tune)) for _ in range(8)]
        threads = [asyncio.create_task(asyncio.to_thread(cache.get, KEY, tune)) for _ in range(2)]
        await asyncio.to_thread(boarding.wait, 10)
        assert await cache.get_async(OTHER, lambda: 3) == 3
        release.set()
        return await asyncio.gather(*waiting, *threads)

    assert asyncio.run(ask()) == [7] * 10
    assert len(tuners) == 1 and tuners[0] != threading.get_ident()


def test_a_coroutine_waits_for_a_tuning_that_a_thread_began(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = PlanCache()
    boarding = Boarding(cache, monkeypatch)
    release = threading.Event()

    def tune() -> int:
        assert release.wait(30)
        return 7

    async def ask() -> int:
        task = asyncio.create_task(cache.get_async(KEY, never))
        await asyncio.to_thread(boarding.wait, 1)
        release.set()
        return await task

    with ThreadPoolExecutor(1) as pool:
        thread = pool.submit(cache.get, KEY, tune)
        boarding.wait(1)
        assert asyncio.run(ask()) == thread.result(30) == 7


@pytest.mark.parametrize("cancelled", [0, 1])
def test_a_cancelled_coroutine_harms_nobody_even_if_it_began_the_tuning(
    cancelled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = PlanCache()
    boarding = Boarding(cache, monkeypatch)
    release = threading.Event()

    def tune() -> int:
        assert release.wait(30)
        return 7

    async def ask() -> int:
        tasks = []
        for _ in range(2):
            tasks.append(asyncio.create_task(cache.get_async(KEY, tune)))
            await asyncio.to_thread(boarding.wait, 1)
        tasks.pop(cancelled).cancel()
        thread = asyncio.create_task(asyncio.to_thread(cache.get, KEY, never))
        await asyncio.to_thread(boarding.wait, 1)
        release.set()
        assert await thread == 7
        return await tasks[0]

    assert asyncio.run(ask()) == 7
    assert cache.get(KEY, never) == 7


@pytest.mark.parametrize("error", [RuntimeError("no tactic runs"), SystemExit(3)])
def test_a_failed_tuning_reaches_every_coroutine_and_can_be_tried_again(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = PlanCache()
    boarding = Boarding(cache, monkeypatch)
    release = threading.Event()

    def fail() -> int:
        assert release.wait(30)
        raise error

    async def ask() -> list[BaseException | int]:
        tasks = [asyncio.create_task(cache.get_async(KEY, fail)) for _ in range(3)]
        await asyncio.to_thread(boarding.wait, 3)
        release.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    wanted = type(error) if isinstance(error, Exception) else TuningError
    assert [type(seen) for seen in asyncio.run(ask())] == [wanted] * 3
    assert asyncio.run(cache.get_async(KEY, lambda: 5)) == 5


def test_a_coroutine_that_finds_no_worker_says_so_and_the_plan_can_be_tried_again() -> None:
    cache = PlanCache()

    async def ask() -> None:
        loop = asyncio.get_running_loop()
        pool = ThreadPoolExecutor(1)
        pool.shutdown()
        loop.set_default_executor(pool)
        with pytest.raises(RuntimeError, match="shutdown"):
            await cache.get_async(KEY, lambda: 1)

    asyncio.run(ask())
    assert cache.get(KEY, lambda: 5) == 5


def test_coroutines_are_refused_where_threads_are() -> None:
    cache = PlanCache()
    with pytest.raises(CaptureMissError):
        asyncio.run(cache.get_async(KEY, never, capturing=True))
    with pytest.raises(TuningError) as caught:
        asyncio.run(cache.get_async(KEY, lambda: cache.get(KEY, never)))
    assert caught.value.code == "tuning-recursion"
    cache.freeze()
    with pytest.raises(FrozenMissError, match="M=7 bucket=8"):
        asyncio.run(cache.get_async(KEY, never, m=7))


def test_a_miss_during_capture_is_refused_before_tuning_and_a_hit_is_served() -> None:
    cache = PlanCache()
    with pytest.raises(CaptureMissError, match="bucket=8 N=5120 K=6144"):
        cache.get(KEY, never, capturing=True)
    cache.get(KEY, lambda: 4)
    assert cache.get(KEY, never, capturing=True) == 4


def test_a_frozen_cache_serves_and_loads_but_never_tunes() -> None:
    cache = PlanCache()
    cache.freeze()
    text = "NVFP4 frozen persistent cache miss before readiness: M=7 bucket=8 N=5120 K=6144 device=0 sm=121"
    for capturing in (False, True):
        with pytest.raises(FrozenMissError) as caught:
            cache.get(KEY, never, capturing=capturing, m=7)
        assert caught.value.message == text
    cache.insert_ready(KEY, 4)
    assert cache.frozen and cache.get(KEY, never) == 4


def test_keys_sort_by_rows_then_columns_then_depth_then_runtime() -> None:
    fields = list(KEY)
    for position in range(len(fields)):
        larger = PlanKey(*(value + (index == position) - (index > position) for index, value in enumerate(fields)))
        assert larger > KEY
