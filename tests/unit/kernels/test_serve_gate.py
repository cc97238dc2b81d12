from __future__ import annotations

import pytest

from kernels.serve.gate import Checks


def test_a_report_counts_cases_and_assertions_and_names_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    checks = Checks()
    checks.case("one")
    checks.check(True, "fine")
    checks.case("two")
    checks.check(True, "fine")
    checks.check(False, "six is not seven")
    assert capsys.readouterr().out == "FAILED two: six is not seven\n"
    assert checks.report().splitlines() == [
        "[doctest] test cases: 2 | 1 passed | 1 failed | 0 skipped",
        "[doctest] assertions: 3 | 2 passed | 1 failed",
        "[doctest] Status: FAILURE!",
    ]
