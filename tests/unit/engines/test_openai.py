from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness import campaign
from harness.axes import axes_of
from harness.engines.base import Address, Engine
from harness.engines.openai import OpenAi
from harness.errors import UsageError
from harness.settings import compose_config

HERE: dict[str, Any] = {"flags": {"url": "http://10.1.2.3:9000/v1"}, "env": {}}


def test_an_arm_is_a_url_and_nothing_else(tmp_path: Path) -> None:
    engine: Engine = OpenAi({"model": "m"}, tmp_path)
    assert engine.attached(HERE) == Address("10.1.2.3", 9000, "")
    assert OpenAi({"model": "m"}, tmp_path).attached({"flags": {"url": "http://h/a/b/"}}) == Address("h", 80, "/a/b")


@pytest.mark.parametrize(
    ("options", "arm", "words"),
    [
        ({}, HERE, "engine.options.model"),
        ({"model": "m", "port": 1}, HERE, "engine.options.port"),
        ({"model": "m", "vocabulary": 4}, HERE, "must be above first_token"),
        ({"model": "m"}, {"flags": {"url": "https://h"}}, "must be http://HOST:PORT"),
        ({"model": "m"}, {"flags": {"url": "http://user:pw@h"}}, "nothing secret"),
        ({"model": "m"}, {"flags": {"url": "http://h:x"}}, "arm.flags.url"),
        ({"model": "m"}, {"flags": {}}, "arm.flags.url=None"),
        ({"model": "m"}, {"flags": {"url": "http://h", "slots": 2}}, "arm.slots"),
        ({"model": "m"}, {"flags": {"url": "http://h"}, "env": {"A": "1"}}, "arm.A"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    options: dict[str, Any], arm: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"engine|arm") as caught:
        OpenAi(options, tmp_path).launch(arm, 8001, None, True)
    assert words in caught.value.message


def test_without_a_process_there_is_no_memory_axis_and_the_run_does_not_bind() -> None:
    urls = ("engine.candidate.flags.url=http://a:1", "engine.baseline.flags.url=http://b:1")
    config = compose_config(["engine=openai", "engine.options.model=m", *urls])
    plan = campaign.plan(
        config,
        subject={},
        capabilities=sorted(OpenAi.capabilities),
        host={},
        gpu=True,
        corpus={},
        frozen_plan_sha256=None,
    )
    assert {item.what for item in plan.not_applicable} >= {"memory axes", "peak GPU memory", "arm activation proof"}
    assert any("memory axes: null" in reason for reason in plan.unbinding())
    assert {axis.kind for axis in axes_of((2, 16), False, memory=False)} == {"timing"}
    assert len(axes_of((2, 16), False, memory=False)) == 40
