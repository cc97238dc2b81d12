"""G1's predicates on synthetic evidence, its parser on real logs of pytest, and what is refused before a start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import bundle, campaign, canonical, pytest_log, verdict
from harness.agent import preparing
from harness.engines import reference
from harness.engines.base import Suite, WithSuites
from harness.errors import UsageError
from harness.plan import Plan
from harness.records import Check, Leg, SuiteReport
from harness.report.summary import summary
from tests.builders import ALL, SHA, small_config

OK = [Check("run-ended", "journal", "end", "end", True)]
SUITES = [["collect", "collect"], ["suite", "tests"], ["suite", "tests-dev"], ["build", "build-121a"]]
ONE_SKIPPED = ("tests/test_a.py::test_b - needs a GPU",)
RAN = SuiteReport({"passed": 9, "skipped": 1}, ONE_SKIPPED, ())


def planned(suites: list[list[str]] = SUITES, **not_tested: str) -> Plan:
    return campaign.plan(
        small_config("gate=g1"),
        subject={"weights_sha256": SHA},
        capabilities=ALL,
        host={"hostname": "testhost"},
        gpu=False,
        corpus={},
        frozen_plan_sha256=None,
        suites=suites,
        not_tested=not_tested,
    )


PLAN = planned()


def legs() -> list[Leg]:
    """What a healthy G1 leaves behind."""
    reports = {"collect": SuiteReport({"collected": 10}, (), ()), "suite": RAN, "build": None}
    return [Leg(leg.name, leg.kind, leg.arm, None, None, "exit code 0", suite=reports[leg.kind]) for leg in PLAN.legs]


def judged(change: Callable[[Leg], Leg] = lambda leg: leg, name: str = "") -> dict[str, Any]:
    assert any(name in leg.name for leg in legs())
    return verdict.compute(PLAN, [change(leg) if name and name in leg.name else leg for leg in legs()], OK)


def test_the_plan_is_the_engines_own_commands_in_their_order() -> None:
    assert [(leg.name, leg.kind) for leg in PLAN.legs] == [
        ("00-collect", "collect"),
        ("01-tests", "suite"),
        ("02-tests-dev", "suite"),
        ("03-build-121a", "build"),
    ]
    assert PLAN.unbinding() == ["workload rehearsal is a rehearsal"]
    assert "CUDA build: none named" in planned(**{"CUDA build": "none named"}).unbinding()


def test_a_healthy_run_passes_and_says_nothing_of_plans() -> None:
    found = judged()
    assert (found["outcome"], found["axes"], found["failed"]) == ("PASS", [], [])
    assert found["plan_control"] == "not-applicable"
    assert summary(found)[1] == f"{len(found['checks'])} of {len(found['checks'])} checks hold"


def report(**counts: int) -> dict[str, SuiteReport]:
    return {"suite": SuiteReport(counts, ONE_SKIPPED[: counts.get("skipped", 0)], ())}


@pytest.mark.parametrize(
    ("code", "name", "change"),
    [
        ("clean-exit", "build", {"exit": "exit code 1"}),
        ("clean-exit", "01-tests", {"exit": "signal 9"}),
        ("suite-collected", "collect", {"suite": None}),
        ("suite-collected", "collect", report(collected=0)),
        ("suite-collected", "collect", report(collected=10, errors=1)),
        ("suite-counts", "collect", report(collected=11)),
        ("suite-counts", "collect", {"suite": None}),
        ("suite-counts", "01-tests", report(passed=8, skipped=1)),
        ("suite-counts", "01-tests", report(passed=10, skipped=1)),
        ("suite-counts", "01-tests", report(passed=8, skipped=1, failed=1)),
        ("suite-counts", "02-tests-dev", report(passed=9, skipped=1, errors=1)),
        ("suite-counts", "02-tests-dev", report(passed=9, skipped=1, xpassed=1)),
        ("suite-counts", "02-tests-dev", report(passed=8, skipped=1, xfailed=1)),
        ("suite-counts", "02-tests-dev", {"suite": None}),
        ("suite-counts", "01-tests", {"suite": SuiteReport({"skipped": 10}, ONE_SKIPPED * 10, ())}),
        ("suite-counts", "01-tests", {"suite": replace(RAN, failed=("tests/test_a.py::test_c",))}),
        ("suite-skipped-named", "01-tests", {"suite": replace(RAN, skipped=())}),
        ("suite-skipped-named", "01-tests", {"suite": None}),
        ("suites-equal", "02-tests-dev", {"suite": SuiteReport({"passed": 10}, (), ())}),
        ("suites-equal", "02-tests-dev", {"suite": replace(RAN, skipped=("tests/test_a.py::test_z - other",))}),
        ("suites-equal", "02-tests-dev", {"suite": None}),
    ],
)
def test_what_does_not_hold_fails_the_gate_by_its_name(code: str, name: str, change: dict[str, Any]) -> None:
    found = judged(lambda leg: replace(leg, **change), name)
    assert found["outcome"] == "FAIL"
    assert code in found["failed"]
    assert any(line.startswith(f"failed {code} at ") for line in summary(found))


def test_a_run_that_was_cut_short_is_void() -> None:
    found = verdict.compute(PLAN, legs()[:-1], OK)
    assert (found["outcome"], found["void"]) == ("VOID", ["legs-complete"])


def test_a_failed_test_and_a_skipped_one_are_named_in_the_verdict() -> None:
    change = {"suite": SuiteReport({"passed": 8, "skipped": 1, "failed": 1}, ONE_SKIPPED, ("tests/t.py::test_c",))}
    found = judged(lambda leg: replace(leg, **change), "01-tests")["checks"]
    said = {check["code"]: check["seen"] for check in found if check["where"] == "01-tests"}
    assert said["suite-counts"] == "1 failed, 8 passed, 1 skipped: tests/t.py::test_c"
    assert said["suite-skipped-named"] == f"1 skipped: {ONE_SKIPPED[0]}"


def test_the_record_comes_back_from_leg_json(tmp_path: Path) -> None:
    head = {
        "exit": "exit code 0",
        "suite": {"counts": {"passed": 9, "skipped": 1}, "skipped": ONE_SKIPPED, "failed": []},
    }
    bundle.write_new(tmp_path / "leg.json", canonical.dumps(head))
    assert bundle.read_leg(tmp_path, PLAN.legs[1]).suite == RAN


TESTS = """
import pytest

def test_good(): pass
@pytest.mark.parametrize("value", [1, 2])
def test_left_out(value): pytest.skip("not here")
"""
BAD = """
import pytest

def test_bad(): assert 0, "9 passed in 1.0s"
@pytest.fixture
def broken(): raise RuntimeError
def test_cannot_start(broken): pass
@pytest.mark.xfail
def test_known(): assert 0
"""


def pytest_said(folder: Path, text: str, *more: str) -> str:
    (folder / "test_it.py").write_text(text)
    argv = [sys.executable, *reference.PYTEST, *more, "test_it.py"]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # quicker
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False).stdout


def test_the_parser_reads_what_pytest_really_prints(tmp_path: Path) -> None:
    good = pytest_log.parse(pytest_said(tmp_path, TESTS))
    names = tuple(f"test_it.py::test_left_out[{value}] - Skipped: not here" for value in (1, 2))
    assert good == SuiteReport({"passed": 1, "skipped": 2}, names, ())
    assert pytest_log.parse(pytest_said(tmp_path, TESTS, "--collect-only", "-q")) == SuiteReport(
        {"collected": 3}, (), ()
    )
    bad = pytest_log.parse(pytest_said(tmp_path, BAD))
    assert bad is not None
    assert bad.counts == {"failed": 1, "errors": 1, "xfailed": 1}
    assert bad.failed == ("test_it.py::test_bad", "test_it.py::test_cannot_start")


def test_collecting_nothing_or_a_broken_file_is_read_as_such(tmp_path: Path) -> None:
    nothing = pytest_log.parse(pytest_said(tmp_path, "", "--collect-only", "-q"))
    assert nothing is not None
    assert nothing.counts == {"collected": 0}
    broken = pytest_log.parse(pytest_said(tmp_path, "import nowhere_at_all", "--collect-only", "-q"))
    assert broken is not None
    assert broken.counts.get("errors") == 1


@pytest.mark.parametrize("log", ["", "tests/test_a.py ....", "Traceback\nSegmentation fault", "12 beans in 3.0s"])
def test_a_log_without_a_closing_line_is_no_report(log: str) -> None:
    assert pytest_log.parse(log) is None


def engine(tmp_path: Path) -> reference.Reference:
    return reference.Reference({}, tmp_path)


def test_the_reference_engine_names_its_commands(tmp_path: Path) -> None:
    found = engine(tmp_path).suites([])
    assert isinstance(engine(tmp_path), WithSuites)
    assert [(suite.kind, suite.name) for suite in found] == [tuple(pair) for pair in SUITES[:3]]
    assert "--collect-only" in found[0].launch.argv
    assert found[2].launch.argv[1:5] == ["-X", "dev", "-W", "error"]
    assert {"CUDA build", "host code under ASan, UBSan and TSan"} == set(engine(tmp_path).not_tested([]))
    assert "CUDA build" not in engine(tmp_path).not_tested(["121a"])


def refusal(call: Callable[[], object]) -> UsageError:
    with pytest.raises(UsageError) as raised:
        call()
    assert "\n" not in raised.value.message
    return raised.value


def test_what_is_missing_is_refused_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(lambda: engine(tmp_path).suites(["99x"])).code == "bad-value"
    with monkeypatch.context() as patch:
        patch.setattr(reference, "TESTS", tmp_path / "nowhere")
        assert refusal(lambda: engine(tmp_path).suites([])).code == "no-tests"
    monkeypatch.setitem(sys.modules, "pytest", None)
    monkeypatch.setattr(reference.importlib.util, "find_spec", lambda _name: None)
    assert refusal(lambda: engine(tmp_path).suites([])).code == "no-pytest"


def test_an_architecture_is_compiled_where_there_is_a_compiler_and_refused_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernels.cuda import toolchain
    from kernels.errors import BuildError

    monkeypatch.setattr(toolchain, "find_compiler", lambda _env: None)
    built: Suite = engine(tmp_path).suites(["121a"])[-1]
    assert [built.kind, built.name] == SUITES[-1]
    assert built.launch.argv[1:] == ["-m", "kernels.build", "--arch", "121a", "--tiles", "0", "--jobs", "1"]

    def none(_env: object) -> None:
        raise BuildError("no-nvcc", "there is no nvcc")

    monkeypatch.setattr(toolchain, "find_compiler", none)
    assert refusal(lambda: engine(tmp_path).suites(["121a"])).code == "no-nvcc"


def test_an_engine_without_tests_of_its_own_is_refused_before_anything_starts(tmp_path: Path) -> None:
    from harness.engines.llama_cpp import LlamaCpp

    config = small_config("gate=g1", "engine=llama_cpp")
    assert preparing.suites_of(small_config("gate=g2"), engine(tmp_path)) == ([], {})
    assert refusal(lambda: preparing.suites_of(config, LlamaCpp({}, tmp_path))).code == "no-suites"
