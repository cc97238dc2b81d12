"""What the supervisor asks between legs, and how it says why a run is void."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness import journal, settings, supervisor
from harness.errors import HarnessError
from harness.state import RunState, write_atomic
from harness.supervisor import Supervisor
from harness.telemetry import probe


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    (tmp_path / "gpu").touch()
    return tmp_path / "gpu"


class Boots:
    def __init__(self) -> None:
        self.now: str | None = "this-boot"

    def __call__(self) -> str | None:
        return self.now


@pytest.fixture
def boots() -> Boots:
    return Boots()


@pytest.fixture
def state(tmp_path: Path) -> RunState:
    made = RunState(tmp_path / "run")
    made.bundle.mkdir(parents=True)
    return made


@pytest.fixture
def one(state: RunState, lock: Path, boots: Boots) -> Iterator[Supervisor]:
    config = settings.dump(settings.compose_config([f"host.lease_path={lock}"]))
    write_atomic(state.run, {"config": config, "earlier": [], "nonce": "0"})
    before = signal.getsignal(signal.SIGTERM)
    yield Supervisor(state, boots)
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def context(lock: Path) -> Iterator[Any]:
    descriptor = os.open(lock, os.O_RDONLY)
    yield SimpleNamespace(lease_fd=descriptor)
    os.close(descriptor)


def test_on_the_same_boot_and_under_its_own_lock_a_leg_may_begin(one: Supervisor, context: Any) -> None:
    one._check_ground(context, "this-boot")


@pytest.mark.parametrize("again", [None, "touch", "mkdir"])
def test_a_lock_that_was_removed_or_replaced_voids_the_run(
    one: Supervisor, context: Any, lock: Path, again: str | None
) -> None:
    lock.unlink()
    if again is not None:
        getattr(lock, again)()
    with pytest.raises(HarnessError, match="removed or replaced") as caught:
        one._check_ground(context, "this-boot")
    assert caught.value.code == "lease-lost"


@pytest.mark.parametrize("now", ["another-boot", None])
def test_another_boot_voids_the_run(one: Supervisor, context: Any, boots: Boots, now: str | None) -> None:
    boots.now = now
    with pytest.raises(HarnessError, match="restarted") as caught:
        one._check_ground(context, "this-boot")
    assert caught.value.code == "boot-id"


def test_a_boot_that_cannot_be_told_is_not_taken_for_the_same(one: Supervisor, context: Any, boots: Boots) -> None:
    boots.now = None
    with pytest.raises(HarnessError):
        one._check_ground(context, None)


@pytest.mark.parametrize(
    "error", [subprocess.CalledProcessError(-6, "probe"), OSError("no memory"), KeyError("processes"), AssertionError()]
)
def test_a_probe_that_gives_no_usable_answer_has_not_said_idle(
    one: Supervisor, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def ask() -> probe.GpuAnswer:
        raise error

    monkeypatch.setattr(probe, "ask", ask)
    with pytest.raises(HarnessError) as caught:
        one._ask_gpu()
    assert caught.value.code == "nvml-failed"


def test_a_probe_that_hangs_keeps_its_own_code(one: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask() -> probe.GpuAnswer:
        raise HarnessError("nvml-hangs", "no answer")

    monkeypatch.setattr(probe, "ask", ask)
    with pytest.raises(HarnessError) as caught:
        one._ask_gpu()
    assert caught.value.code == "nvml-hangs"


def test_on_a_full_disk_the_journal_still_says_so_after_a_cut_line(
    one: Supervisor, state: RunState, monkeypatch: pytest.MonkeyPatch
) -> None:
    one._journal.write("start")
    one._ballast.write_bytes(bytes(64))
    with state.journal.open("ab") as file:
        file.write(b'{"cut":')
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=4096))
    one._void("internal-error", "02-c2-A-r1", "OSError(28)")
    assert not one._ballast.exists()
    events = journal.parse(state.journal.read_bytes())
    assert [event["event"] for event in events] == ["start", "void"]
    assert events[-1]["code"] == "disk-full" and "internal-error: OSError(28)" in events[-1]["message"]


def test_a_full_disk_does_not_keep_an_engine_from_being_stopped(
    one: Supervisor, state: RunState, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, value: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(supervisor, "write_atomic", full)
    one.tell({"phase": "stopping"})
