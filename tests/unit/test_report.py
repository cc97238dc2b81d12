"""`harness report`: pages of real and synthetic bundles, with a floor, without one, and void."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from harness import canonical, index
from harness.cli import main
from harness.errors import UsageError
from harness.plan import Plan
from harness.records import Leg
from harness.report import chart, compare, evidence, html, junit, pull_request
from harness.report.chart import Scale
from harness.report.evidence import Evidence
from harness.verify import verify
from tests.builders import good_legs, plan_report, small_plan, write_bundle
from tests.unit import test_g2
from tests.unit.test_interpretation import FLOOR, FLOORED, PLAN, noisy

EXAMPLE = Path(__file__).resolve().parents[2] / "evidence" / "example"
EMPTY = {"meta", "link", "br", "hr", "img", "input"}
ATTEMPT = {"run": "g4-before", "outcome": "VOID", "binding": False, "utc": "2026-12-01T00:00:00+00:00"}


class Page(HTMLParser):
    """Tags that open and close in step, ids, links and whatever would be fetched."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.add(tag)
        self.ids += [values["id"] or ""] if "id" in values else []
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def made(root: Path, plan: Plan = PLAN, legs: Sequence[Leg] | None = None, floor: Any = None) -> Evidence:
    if floor is not None:
        root.mkdir(parents=True)
        (root / "floor.json").write_bytes(canonical.dumps({"floors": [floor]}))
    return read(write_bundle(root, plan, good_legs(plan) if legs is None else legs))


def read(root: Path) -> Evidence:
    found = verify(root)
    assert found.verdict is not None, found.faults
    return evidence.read(root, found.verdict, found.digest)


@pytest.fixture(scope="module")
def example() -> Evidence:
    return read(EXAMPLE)


def test_the_page_is_whole_fetches_nothing_and_every_link_leads_somewhere(example: Evidence) -> None:
    page = Page(html.render(example, [ATTEMPT]))
    assert page.open == []
    assert "script" not in page.tags
    assert page.links
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert all(link.startswith("#") for link in page.links)
    assert len(page.ids) == len(set(page.ids))
    assert "url(" not in html.render(example)


def test_the_page_has_every_axis_check_leg_and_digest(example: Evidence) -> None:
    text = html.render(example, [])
    for name in {row.name for row in example.rows} | {check["code"] for check in example.verdict["checks"]}:
        assert name in text
    assert all(leg.name in text for leg in example.timed)
    assert text.count('class="forest-row"') == len(example.rows) == 46
    assert example.digest in text
    assert example.plan.digest() in text


def test_the_same_values_give_the_same_bytes(example: Evidence) -> None:
    assert html.render(example, [ATTEMPT]) == html.render(read(EXAMPLE), [ATTEMPT])


@pytest.mark.parametrize("render", [html.render, pull_request.render])
def test_every_page_says_outcome_binding_and_why_not(example: Evidence, render: Any) -> None:
    text = render(example, None)
    assert "FAIL" in text
    assert "Not binding: peak GPU memory: no NVML device on this host; workload rehearsal is a rehearsal." in text
    assert "cannot be told" in text  # the example is from before interpretations


def test_misses_come_first_and_the_worst_of_them_first(example: Evidence) -> None:
    lines = pull_request.render(example, None).splitlines()
    table = [line for line in lines if line.startswith("| c")]
    assert table[0].startswith("| c16 p99_itl_ms | −35.2 % |")
    assert lines.index(table[0]) < 10
    assert len(lines) < 100


def test_with_a_floor_each_miss_has_label_interval_and_pairs(tmp_path: Path) -> None:
    found = made(tmp_path / "run", FLOORED, noisy(PLAN, 99, 1.05), FLOOR)
    assert found.interpretation is not None
    assert found.interpretation["floor"]["status"] == "used"
    text, page = pull_request.render(found), html.render(found)
    assert re.search(r"\| c2 request_throughput \| −4\.\d\d % \| REAL \| −\S+ % to −\S+ % \|", text)
    assert "as request_throughput" in text
    assert "p = " in text
    assert page.count('class="band"') == len(found.rows)
    assert 'class="badge real"' in page


def test_without_a_floor_it_says_what_it_cannot_tell_and_draws_no_band(tmp_path: Path) -> None:
    found = made(tmp_path / "run", legs=noisy(PLAN, 99, 1.05))
    for text in (pull_request.render(found), html.render(found)):
        assert "NO-FLOOR (none): the plan names no floor." in text
        assert "It cannot be told whether any miss or pass differs" in text
    assert 'class="band"' not in html.render(found)
    assert "No floor, so there are no bands" in html.render(found)


def test_a_void_run_has_its_reasons_and_no_figure_of_a_leg(tmp_path: Path) -> None:
    legs = good_legs(PLAN)
    broken = [replace(leg, requests=leg.requests[:-1]) if leg.name == legs[-1].name else leg for leg in legs]
    found = made(tmp_path / "run", legs=broken)
    page, text = html.render(found), pull_request.render(found)
    assert found.void
    for said in (page, text):
        assert "VOID" in said
        assert "request-count" in said
        assert "Not binding: " in said
        assert "the measurement is not valid" in said
    assert "<svg" not in page
    assert not re.search(r"\d+(\.\d+)? (ms|tok/s|req/s|KiB)\b", text)
    assert found.rows == []


def test_what_a_bundle_says_is_text_and_never_markup(tmp_path: Path) -> None:
    plan = replace(small_plan(), host={"hostname": "<script>alert(1)</script>|x"})
    found = made(tmp_path / "run", plan)
    assert "<script>" not in html.render(found, [{**ATTEMPT, "run": "<b>"}])
    assert "<script>" not in pull_request.render(found)
    assert "&lt;b&gt;" in html.render(found, [{**ATTEMPT, "run": "<b>"}])


def test_attempts_are_told_apart_from_never_having_looked(example: Evidence) -> None:
    assert "Earlier attempts" not in html.render(example, None)
    assert "None recorded at this subject" in pull_request.render(example, [])
    many = [{**ATTEMPT, "run": f"g4-{number}"} for number in range(300)]
    text = pull_request.render(example, many)
    assert "Earlier attempts: 300" in text
    assert "g4-299" in text
    assert len(text.splitlines()) < 100


def test_scales_and_ticks() -> None:
    scale = Scale(1, 100, 0, 100, log=True)
    assert scale(10) == pytest.approx(50)
    assert (scale(1000), Scale(2, 2, 0, 10)(2)) == (100, 5)
    assert chart.niced(0, 10, 5) == [0, 2, 4, 6, 8, 10]
    assert chart.decades(Scale(0.9, 60, 0, 100, log=True), 10) == [1, 2, 5, 10, 20, 50]
    assert chart.decades(Scale(0.9, 60, 0, 100, log=True), 17) == [1, 3, 10, 30]
    assert chart.decades(Scale(1, 1e9, 0, 100, log=True), 17) == [1, 100, 10_000, 1e6, 1e8]


# ------------------------------------------------------------------------------------------------ the verb


def test_the_verb_writes_the_page_prints_markdown_and_adds_to_the_step_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert main(["report", str(EXAMPLE), "--html", str(tmp_path / "new" / "report.html")]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("# G4 of reference: FAIL")
    assert summary.read_text() == f"before\n{printed}"
    assert (tmp_path / "new" / "report.html").read_text().startswith("<!DOCTYPE html>")


def test_an_altered_bundle_gets_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = Path(shutil.copytree(EXAMPLE, tmp_path / "copy"))
    (copy / "plan.json").write_bytes(b"{}\n")
    assert main(["report", str(copy), "--html", str(tmp_path / "report.html")]) == 3
    assert "plan.json" in capsys.readouterr().out
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [([], "usage: "), (["/nowhere"], "no-bundle: "), ([str(EXAMPLE), "--html", "/proc/none/x"], "report-unwritable: ")],
)
def test_bad_input_is_one_sentence(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *arguments]) == 64
    error = capsys.readouterr().err
    assert error.startswith(said)
    assert error.count("\n") == 1


# ------------------------------------------------------------------------------------------------ JUnit XML


def test_junit_has_a_case_for_every_code_and_axis_and_fails_where_they_do(example: Evidence, tmp_path: Path) -> None:
    assert main(["report", str(EXAMPLE), "--junit", str(tmp_path / "j.xml"), "--markdown", str(tmp_path / "m.md")]) == 0
    tree = ElementTree.parse(tmp_path / "j.xml").getroot()
    codes = {check["code"] for check in example.verdict["checks"]}
    cases = tree.findall(".//testcase")
    failures = [case.get("name") for case in cases if case.find("failure") is not None]
    assert len(cases) == int(tree.get("tests", "")) == len(codes) + 46
    assert len(failures) == int(tree.get("failures", "")) == 40
    assert "c16 p99_itl_ms" in failures
    values = {item.get("name"): item.get("value") for item in tree.findall(".//property")}
    assert values["outcome"] == "FAIL"
    assert values["bundle SHA-256"] == example.digest


def test_junit_of_a_void_run_fails_its_code_and_skips_the_axes(tmp_path: Path) -> None:
    legs = good_legs(PLAN)
    found = made(tmp_path / "run", legs=[replace(legs[0], exit="killed \x00 by\n<signal> 9"), *legs[1:]])
    tree = ElementTree.fromstring(junit.render(found))
    failure = tree.find(".//testcase[@name='clean-exit']/failure")
    assert failure is not None
    assert "killed \ufffd by\n<signal> 9" in failure.get("message", "")
    assert tree.find(".//testsuite[@name='axes']/testcase/skipped") is not None


# ------------------------------------------------------------------------------------------------ two bundles


def test_two_runs_of_one_baseline_stand_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = replace(small_plan("engine.candidate.env.VT_FP4_DIRECT_SF=7"), floor=FLOORED.floor)
    made(tmp_path / "one", FLOORED, noisy(PLAN, 99, 1.05), FLOOR)
    made(tmp_path / "two", other, noisy(other, 98, 0.95), FLOOR)
    page = tmp_path / "both.html"
    assert main(["report", "--compare", str(tmp_path / "one"), str(tmp_path / "two"), "--html", str(page)]) == 0
    text = capsys.readouterr().out
    assert re.search(
        r"\| c2 request_throughput \| −4\.\d+ % miss \| REAL \| \+5\.\d+ % pass \| REAL \| \+1\d\.\d % \|", text
    )
    assert Page(page.read_text()).open == []


def test_runs_of_different_load_are_refused_with_field_and_both_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path / "one")
    made(tmp_path / "two", replace(PLAN, workload={**PLAN.workload, "seed": 7}))
    assert main(["report", "--compare", str(tmp_path / "one"), str(tmp_path / "two")]) == 64
    error = capsys.readouterr().err
    assert "not-comparable: workload.seed is 0 in one and 7 in two" in error
    assert error.count("\n") == 1


def test_a_void_or_altered_run_is_compared_with_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path / "good")
    made(tmp_path / "void", legs=[replace(leg, exit="signal 9") for leg in good_legs(PLAN)])
    assert main(["report", "--compare", str(tmp_path / "good"), str(tmp_path / "void")]) == 64
    assert "not-comparable: void is VOID" in capsys.readouterr().err
    (tmp_path / "good" / "plan.json").write_bytes(b"{}\n")
    assert main(["report", "--compare", str(tmp_path / "void"), str(tmp_path / "good")]) == 3


# ------------------------------------------------------------------------------------------------ attempts


def test_attempts_come_from_the_index_beside_the_bundle_and_a_gap_in_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = made(tmp_path / "one")
    verdict = {"outcome": "VOID", "binding": False, "void": ["canary-slow"]}
    for run, digest in (("zero", "a" * 64), ("one", found.digest), ("after", "b" * 64)):
        index.append(tmp_path, run=run, plan=found.plan, digest=digest, verdict=verdict)
    assert main(["report", str(tmp_path / "one")]) == 0
    text = capsys.readouterr().out
    assert "## Earlier attempts: 1\n" in text
    assert "zero: VOID, not binding, sealed" in text
    assert "(canary-slow)" in text
    lines = (tmp_path / "index.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "index.jsonl").write_bytes(b"".join(lines[1:]))
    assert main(["report", str(tmp_path / "one"), "--html", str(tmp_path / "r.html")]) == 0
    assert "the first lines are missing" in capsys.readouterr().out
    assert "the first lines are missing" in (tmp_path / "r.html").read_text()


def test_without_an_index_the_attempts_are_those_that_the_run_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(EXAMPLE)]) == 0
    assert "## Earlier attempts: 0" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------ a gate of checks


def test_a_gate_of_checks_names_what_does_not_hold_and_draws_no_axes(tmp_path: Path) -> None:
    good = made(tmp_path / "good", test_g2.PLAN, test_g2.legs())
    page, text = html.render(good, []), pull_request.render(good)
    assert "PASS" in text
    assert "checks hold" in text
    assert "every check holds" in page
    assert "Every axis" not in page
    legs = [
        replace(leg, plans=plan_report(lazy_misses=1)) if leg.kind == "concurrent" else leg for leg in test_g2.legs()
    ]
    bad = made(tmp_path / "bad", test_g2.PLAN, legs)
    assert bad.verdict["outcome"] == "FAIL"
    for code in bad.verdict["failed"]:
        assert f"{code} at " in html.render(bad)
        assert f"* {code} at " in pull_request.render(bad)
    assert ElementTree.fromstring(junit.render(bad)).get("failures") == str(len(bad.verdict["failed"]))
    with pytest.raises(UsageError, match="no axes to compare"):
        compare.refuse(good, bad)
