"""GPU memory of a tree as the sampler reads it, also when NVML stops answering."""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Iterator

import pytest

from harness.telemetry import procfs
from harness.telemetry.gpu import HANGS, Gpu
from harness.telemetry.procfs import ProcessId
from tests.unit.telemetry.nvml_driver import MIB, Driver, Info, Row


@pytest.fixture
def forever() -> Iterator[threading.Event]:
    """Not set before the test's end, so that the stuck thread does not outlive it."""
    event = threading.Event()
    yield event
    event.set()


def me() -> ProcessId:
    found = procfs.identify(os.getpid())
    assert found is not None
    return found


def test_nvml_that_hangs_is_given_up_once_and_the_reason_stays(forever: threading.Event) -> None:
    answers = iter([[Row(os.getpid(), 7 * MIB)]])

    def compute() -> list[Row]:
        found = next(answers, None)
        if found is None:
            forever.wait()
        return found or []

    out = io.BytesIO()
    gpu = Gpu(out, Driver(compute=compute), read_s=0.05)
    assert gpu.read(1, [me()]) == (7, None)
    assert [gpu.read(t_ns, [me()]) for t_ns in (2, 3)] == [(None, HANGS)] * 2
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [row.get("reason") for row in rows] == [None, None, HANGS] and rows[2]["t_ns"] == "2"


def test_memory_of_others_and_of_the_host_is_never_the_engines() -> None:
    """C02: 30 GiB of another process and a device that counts page cache as used leave an idle engine at 0."""
    driver = Driver(compute=lambda: [Row(1, 30 * 1024 * MIB)], info=lambda: Info(119 * 1024 * MIB, 100 * 1024 * MIB))
    assert Gpu(None, driver).read(1, [me()]) == (0, None)


def test_the_method_is_named_where_there_is_a_device() -> None:
    assert Gpu(None, Driver()).method == "per-process-sum"
    assert Gpu(None, Driver(devices=0)).method is None
