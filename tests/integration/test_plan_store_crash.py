"""The crash matrix: a writer kills itself before and after each operating-system call of a publication."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from kernels.plans import document, store
from kernels.plans.document import key_for
from kernels.plans.metadata import Metadata
from kernels.plans.system import REAL, System
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
OLD, VICTIM, NEXT = ({key_for(METADATA, m, 5120, 6144): m % 32} for m in (1, 2, 4))


def parsed(data: bytes | None) -> dict[tuple[int, ...], int]:
    return {} if data is None else dict(document.parse(data, METADATA, CUTLASS_TACTICS, "plans.json"))


def adding(plans: dict[Any, int]) -> Callable[[bytes | None], bytes]:
    def change(prior: bytes | None) -> bytes:
        merged = {**parsed(prior), **plans}
        return document.serialise(METADATA, CUTLASS_TACTICS, merged)  # type: ignore[arg-type]

    return change


def watched(before: Callable[[str], object], after: Callable[[str], object]) -> System:
    def watch(name: str) -> Callable[..., Any]:
        call = getattr(REAL, name)

        def act(*arguments: Any) -> Any:
            before(name)
            try:
                return call(*arguments)
            finally:
                after(name)

        return act

    return System(**{field.name: watch(field.name) for field in fields(System)})


def calls_of_a_publication(path: Path) -> list[str]:
    calls: list[str] = []
    store.update(path, adding(VICTIM), system=watched(calls.append, lambda _: None))
    return calls


def deaths(count: int) -> Iterator[tuple[int, bool]]:
    return ((index, early) for index in range(count) for early in (True, False))


def die_at(path: Path, index: int, early: bool) -> None:
    """Publish in a child that kills itself around its call number `index`, and wait for its death."""
    child = os.fork()
    if child == 0:
        seen = {True: 0, False: 0}

        def count(now: bool) -> None:
            if now is early and seen[now] == index:
                os.kill(os.getpid(), signal.SIGKILL)
            seen[now] += 1

        try:
            store.update(path, adding(VICTIM), system=watched(lambda _: count(True), lambda _: count(False)))
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"call {index} was never made"
    assert os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.parametrize("existing", [True, False], ids=["over a document", "where no folder was"])
def test_a_writer_killed_anywhere_leaves_a_whole_document_and_the_next_writer_cleans_up(
    tmp_path: Path, existing: bool
) -> None:
    def prepared(name: str) -> Path:
        path = tmp_path / name / "deep" / "plans.json"
        if existing:
            store.update(path, adding(OLD))
        return path

    before = OLD if existing else {}
    calls = calls_of_a_publication(prepared("count"))
    renamed = calls.index("replace")
    assert renamed > calls.index("fsync") and "fsync" in calls[renamed:]
    for index, early in deaths(len(calls)):
        where = f"{'before' if early else 'after'} call {index}, {calls[index]}"
        path = prepared(f"{index}-{early}")
        die_at(path, index, early)
        new = index > renamed or (index == renamed and not early)
        expected = {**before, **VICTIM} if new else before
        assert parsed(store.read(path)) == expected, where
        store.update(path, adding(NEXT))
        assert parsed(store.read(path)) == {**expected, **NEXT}, where
        assert sorted(file.name for file in path.parent.iterdir()) == [".plans.json.lock", "plans.json"], where
