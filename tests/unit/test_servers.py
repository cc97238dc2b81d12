"""The servers' own arguments as predicates: gates/servers.py on synthetic evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from harness import verdict
from harness.records import Check, Leg, ServerReport
from harness.report.markdown import render
from tests.builders import good_legs, small_plan

PLAN = replace(small_plan(), capabilities=(*small_plan().capabilities, "server_arguments"))
OK = [Check("run-ended", "journal", "end", "end", True)]


def server(seqs: str = "16", *, said: str | None = None, scheduling: str = "false") -> ServerReport:
    resolved: Mapping[str, str | None] = {"max_num_seqs": seqs if said is None else said}
    configuration = {"async_scheduling": scheduling, "prefix_caching": "false", "capacity": None, "dtype": "bfloat16"}
    return ServerReport({"max_num_seqs": seqs}, resolved, configuration, "log")


def legs(**by_arm: ServerReport | None) -> list[Leg]:
    return [replace(leg, server=by_arm[leg.arm]) for leg in good_legs(PLAN)]


def judged(found: list[Leg]) -> dict[str, Any]:
    return verdict.compute(PLAN, found, OK)


def test_arguments_as_planned_pass_and_the_configuration_of_both_arms_is_recorded() -> None:
    result = judged(legs(A=server(), B=server("1")))
    assert result["outcome"] == "PASS"
    assert result["engine_configuration"]["arms"]["A"]["dtype"] == "bfloat16"
    assert result["engine_configuration"]["differences"] == []


def test_an_argument_that_the_server_resolved_otherwise_voids_the_run_by_name() -> None:
    result = judged(legs(A=server(said="256"), B=server("1")))
    assert (result["outcome"], result["void"]) == ("VOID", ["server-arguments"])
    check = next(item for item in result["checks"] if item["code"] == "server-arguments" and not item["ok"])
    assert (check["seen"], check["required"]) == ("max_num_seqs=256", "max_num_seqs=16")


def test_a_server_that_says_nothing_voids_the_run() -> None:
    assert "server-arguments" in judged(legs(A=None, B=server("1")))["void"]


def test_a_difference_of_scheduling_is_named_and_voids_nothing() -> None:
    result = judged(legs(A=server(scheduling="true"), B=server("1")))
    assert result["outcome"] == "PASS"
    line = "engine-configuration difference: async_scheduling is true in A, false in B"
    assert result["engine_configuration"]["differences"] == [line]
    assert line in render(PLAN, [], result)


def test_an_arm_whose_processes_differ_among_themselves_voids_the_run() -> None:
    found = legs(A=server(), B=server("1"))
    last = max(index for index, leg in enumerate(found) if leg.arm == "A")
    found[last] = replace(found[last], server=server(scheduling="true"))
    assert judged(found)["void"] == ["server-configuration"]


def test_engines_that_say_nothing_back_are_not_asked_and_have_no_such_part() -> None:
    plain = small_plan()
    result = verdict.compute(plain, good_legs(plain), OK)
    assert "engine_configuration" not in result
    assert not [item for item in result["checks"] if item["code"].startswith("server-")]
