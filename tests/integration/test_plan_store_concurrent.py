"""Many processes on one path: nobody loses a plan, nobody reads half a document (jobs that share a home do this)."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import replace
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

import pytest

from kernels.plans import document, store
from kernels.plans.document import key_for
from kernels.plans.key import PlanKey
from kernels.plans.metadata import Metadata
from kernels.plans.system import REAL
from kernels.tactics import CUTLASS_TACTICS

PROCESSES, ROUNDS, KEYS = 4, 50, 16
TIMEOUT_S = 120
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
SHARED = key_for(METADATA, 1, 16, 16)
FORK = multiprocessing.get_context("fork")


def plans_of(writer: int, round_: int) -> dict[PlanKey, int]:
    """16 keys of this writer alone, with other tactics each round."""
    return {
        key_for(METADATA, 2 ** (1 + writer), 128, 16 * (1 + index)): (writer + round_) % 32 for index in range(KEYS)
    }


def parsed(data: bytes | None) -> dict[PlanKey, int]:
    return {} if data is None else document.parse(data, METADATA, CUTLASS_TACTICS, "plans.json")


def save(path: Path, plans: dict[PlanKey, int]) -> None:
    def merged(prior: bytes | None) -> bytes:
        return document.serialise(METADATA, CUTLASS_TACTICS, document.merge(plans, parsed(prior)))

    store.update(path, merged)


def write_rounds(path: Path, writer: int, barrier: Barrier) -> None:
    for round_ in range(ROUNDS):
        barrier.wait(TIMEOUT_S)
        save(path, {**plans_of(writer, round_), SHARED: writer})
        barrier.wait(TIMEOUT_S)
        barrier.wait(TIMEOUT_S)  # the parent has looked


def poll(path: Path, done: Event, seen: multiprocessing.SimpleQueue[int]) -> None:
    """Every document that can be read is whole: a whole one holds each writer's plans or none of them."""
    looks = 0
    while not done.is_set():
        found = parsed(store.read(path))
        own = [sum(key.m_bucket == 2 ** (1 + writer) for key in found) for writer in range(PROCESSES)]
        assert all(count in (0, KEYS) for count in own), own
        looks += 1
    seen.put(looks)


def die_before_the_rename(path: Path) -> None:
    def killed(source: Path, target: Path) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def change(prior: bytes | None) -> bytes:
        lost = document.merge({key_for(METADATA, 4096, 16, 16): 0}, parsed(prior))
        return document.serialise(METADATA, CUTLASS_TACTICS, lost)

    store.update(path, change, system=replace(REAL, replace=killed))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "plans.json"


def test_four_processes_lose_nothing_in_fifty_rounds_and_a_killed_fifth_changes_nothing(path: Path) -> None:
    barrier, done, seen = FORK.Barrier(PROCESSES + 1), FORK.Event(), FORK.SimpleQueue()
    writers = [FORK.Process(target=write_rounds, args=(path, writer, barrier)) for writer in range(PROCESSES)]
    reader = FORK.Process(target=poll, args=(path, done, seen))
    processes = [*writers, reader]
    try:
        for process in processes:
            process.start()
        for round_ in range(ROUNDS):
            barrier.wait(TIMEOUT_S)
            victim = FORK.Process(target=die_before_the_rename, args=(path,))
            if round_ % 10 == 0:
                victim.start()
            barrier.wait(TIMEOUT_S)
            if round_ % 10 == 0:
                victim.join(TIMEOUT_S)
                assert victim.exitcode == -signal.SIGKILL
            found = parsed(store.read(path))
            assert found.pop(SHARED) in range(PROCESSES)
            assert found == {key: t for writer in range(PROCESSES) for key, t in plans_of(writer, round_).items()}
            if round_ % 2:
                path.unlink()
            barrier.wait(TIMEOUT_S)
        done.set()
        for process in processes:
            process.join(TIMEOUT_S)
            assert process.exitcode == 0
        assert seen.get() > 0
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
    save(path, {SHARED: 9})
    assert sorted(file.name for file in path.parent.iterdir()) == [".plans.json.lock", "plans.json"]
