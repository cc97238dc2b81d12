"""Failures that people reported of verdicts, configuration and evidence, as small inputs with the right behaviour."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import canonical, controller, verdict
from harness.agent.values import Prepared
from harness.cli import main
from harness.config import Config
from harness.display import Display, terminal
from harness.plan import Plan, partition, prompts_digest
from harness.records import Check, Leg, RequestRecord
from harness.verify import verify
from tests.builders import SHA, good_legs, small_config, small_plan, write_bundle
from tests.servers.streams import DONE, chunk, replay, spread, tokens, usage

ENDED = [Check("run-ended", "journal", "end", "end", True)]
ATTRIBUTES = Path(__file__).resolve().parents[2] / ".gitattributes"


def plan_of(requests: int, tokens_out: int) -> Plan:
    made = small_plan(
        f"workload.points={{2: {requests}}}", f"workload.output_tokens={tokens_out}", "gate.sequential_requests=0"
    )
    corpus = {partition(2, number): prompts_digest([SHA] * requests) for number in (1, 2, 3)}
    return replace(made, corpus=corpus)


def judged(plan: Plan, records: Sequence[RequestRecord]) -> dict[str, Any]:
    """The verdict on a run of which every timed leg has `records`."""
    own = [replace(item, index=index, prompt_sha256=SHA) for index, item in enumerate(records)]
    asked = [replace(item, prompt_tokens=plan.input_tokens) for item in own]
    legs: list[Leg] = [replace(leg, requests=tuple(asked)) if leg.kind == "timed" else leg for leg in good_legs(plan)]
    return verdict.compute(plan, legs, ENDED)


def test_b02_three_streams_without_a_token_are_failures_and_void_the_leg() -> None:
    silent = [chunk("", role="assistant"), chunk("", finish="stop"), usage(0), DONE]
    records = [replay(tokens(3, first, 10)).record for first in (100, 120)]
    found = judged(plan_of(5, 3), [*records, *[replay(spread(silent)).record] * 3])
    assert found["outcome"] == "VOID"
    assert "failed-requests" in found["void"]
    seen = {check["seen"] for check in found["checks"] if check["code"] == "failed-requests"}
    assert len(seen) == 1
    assert seen.pop().startswith("3 failed, first: no-token: ")
    assert found["axes"] == []


def test_b06_a_leg_of_single_tokens_has_no_tpot_and_is_void_for_that_alone() -> None:
    found = judged(plan_of(3, 1), [replay(tokens(1, 80, 10)).record] * 3)
    assert found["void"] == ["axis-null"]
    null = {check["where"] for check in found["checks"] if not check["ok"]}
    assert null == {f"c2 {name}_{kind}_ms" for name in ("mean", "median", "p90", "p99") for kind in ("tpot", "itl")}


@pytest.mark.parametrize("chdir", ["hydra.job.chdir=true", "hydra.job.chdir=false", None])
@pytest.mark.parametrize("start", ["one", "two"])
def test_f01_a_relative_path_is_taken_from_where_the_command_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], chdir: str | None, start: str
) -> None:
    (tmp_path / start).mkdir()
    monkeypatch.chdir(tmp_path / start)
    words = [*([chdir] if chdir else []), "engine.plan=fixtures/plan.json", f"host.state_dir={tmp_path / 'state'}"]
    assert main(["run", *words]) == 64
    assert f"engine.plan={tmp_path / start / 'fixtures' / 'plan.json'}: No such file" in capsys.readouterr().err
    assert list((tmp_path / start).iterdir()) == []


class Link:
    """Keeps what it is asked for."""

    where = "nowhere"

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def call(self, verb: str, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        self.asked.append({"verb": verb, **request})
        return {}


def started(config: Config, plan: Plan, invoked_in: Path, link: Any) -> str:
    prepared = Prepared({}, (), {}, False, {}, "prompts")
    order = controller._Order(config, plan, prepared, None, {}, [], link, invoked_in)
    return controller._start(order, Display(terminal()))


def test_f01_f02_runs_of_one_second_have_names_of_their_own_and_places_are_no_part_of_the_plan(tmp_path: Path) -> None:
    link, config, plan = Link(), small_config(), small_plan()
    names = [started(config, plan, tmp_path / folder, link) for folder in ("one", "one", "two", "two")]
    assert len(set(names)) == 4
    assert {name.rsplit("-", 1)[0] for name in names} == {f"g4-{plan.digest()[:12]}"}
    assert len({request["places"]["invoked_in"] for request in link.asked}) == 2
    assert len({request["plan"] for request in link.asked}) == 1
    assert str(tmp_path) not in link.asked[0]["plan"]


def test_f07_a_whole_number_and_a_float_of_its_size_keep_their_forms_and_their_digests() -> None:
    one, two = canonical.dumps({"t": 20}), canonical.dumps({"t": 20.0})
    assert (one, two) == (b'{"t":20}\n', b'{"t":20.0}\n')
    for data in (one, two):
        assert canonical.sha256_bytes(canonical.dumps(canonical.loads(data))) == canonical.sha256_bytes(data)


def git(folder: Path, *words: str) -> None:
    own = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "core.autocrlf=true"]
    subprocess.run(["git", *own, *words], cwd=folder, check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_f08_a_checkout_that_turns_line_ends_leaves_evidence_as_it_was_sealed(tmp_path: Path) -> None:
    source, clone = tmp_path / "source", tmp_path / "clone"
    plan = small_plan()
    write_bundle(source / "evidence" / "run", plan, good_legs(plan))
    shutil.copy(ATTRIBUTES, source / ".gitattributes")
    (source / "other.txt").write_bytes(b"a\nb\n")
    git(source, "init", "-q")
    git(source, "add", "-A")
    git(source, "commit", "-q", "-m", "x")
    git(tmp_path, "clone", "-q", str(source), str(clone))
    assert (clone / "other.txt").read_bytes() == b"a\r\nb\r\n"  # so the setting is at work
    assert verify(clone / "evidence" / "run").faults == ()
    page = clone / "evidence" / "run" / "plan.json"
    page.write_bytes(page.read_bytes().replace(b"\n", b"\r\n"))
    assert verify(clone / "evidence" / "run").faults[0].endswith("differs only by line endings")
