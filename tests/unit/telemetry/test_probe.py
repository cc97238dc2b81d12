"""No GPU is an answer; a GPU that cannot be asked is a failure; neither is zero."""

from __future__ import annotations

import pytest

from harness.errors import HarnessError
from harness.telemetry.probe import ask, read_answer


def test_no_device_is_an_answer_with_its_reason() -> None:
    answer = read_answer({"code": "no-nvml", "message": "no driver here"})
    assert (answer.identity, answer.processes, answer.reason) == (None, (), "no driver here")


def test_a_broken_driver_is_a_failure_and_not_an_idle_gpu() -> None:
    with pytest.raises(HarnessError) as caught:
        read_answer({"code": "nvml-version-mismatch", "message": "reboot"})
    assert caught.value.code == "nvml-version-mismatch"


def test_an_unreadable_process_list_is_not_an_empty_one() -> None:
    answer = read_answer({"identity": {"devices": []}, "processes": None, "reason": "no permission"})
    assert answer.processes is None
    assert answer.reason == "no permission"


def test_processes_keep_an_unknown_size_as_unknown() -> None:
    document = {"identity": {"devices": []}, "processes": [[7, 4096], [8, None]], "reason": None}
    assert read_answer(document).processes == ((7, 4096), (8, None))


def test_the_probe_answers_on_this_machine() -> None:
    answer = ask()
    assert answer.identity is not None or answer.reason
