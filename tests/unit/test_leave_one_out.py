"""A real floor of a small engine on a two-core machine that others used: its own campaigns are not called REAL."""

from __future__ import annotations

from dataclasses import asdict

from harness.settings import compose_config
from harness.weighing import Terms
from tests.simulation.leave_one_out import FLOORS, leave_one_out


def test_a_campaign_left_out_of_a_real_floor_is_seldom_real() -> None:
    terms = Terms.from_json(asdict(compose_config([]).rule)["interpretation"])
    found = leave_one_out(FLOORS / "rehearsal-two-cores.json", terms)
    assert found.campaigns == 8
    assert found.any_real <= 1
    assert sum(found.labels.values()) == 8 * (2 * 20 - 2)
