"""A whole run without its engine: what it goes through, what it refuses, and that nothing of it can pass for a run."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from harness import axes, canonical, controller, floor_store, leg, prerequisites, transport
from harness.agent.values import Prepared
from harness.config import Config
from harness.engines.reference import plans_said
from harness.errors import EXIT_PASS, EXIT_USAGE, HarnessError, UsageError
from harness.plan import LegPlan, Plan
from harness.rehearsal import offline
from harness.rehearsal.machine import KINDS, Made
from harness.rehearsal.run import Rehearsed
from harness.report import command
from harness.settings import compose_config
from harness.transport.base import Transport
from harness.transport.local import Local
from harness.verify import verify

PLACES = ("engine.options.executable=/opt/e/bin/program", "engine.options.model=/models/m")
ENGINES: Mapping[str, Sequence[str]] = {
    "reference": (),
    "llama_cpp": (),
    "vllm_cpu": (),
    "vllm": PLACES,
    "vllm_cpp": (*PLACES, "engine.options.build=/opt/build"),
    "sglang": PLACES,
    "tensorrt_llm": PLACES,
    "openai": (
        "engine.options.model=m",
        "engine.candidate.flags.url=http://one:8000",
        "engine.baseline.flags.url=http://two:8000",
    ),
}
GATES: Mapping[str, Sequence[str]] = {
    "g1": (),
    "g2": (),
    "g3": (),
    "g4": ("workload=rehearsal", "gate.repetitions=1", "gate.concurrencies=[2]"),
    "g5": ("workload=grid-short", "gate.repetitions=1", "gate.concurrencies=[1,2]"),
}
WITH_SUITES = ("reference",)
WITH_STRUCTURE = ("reference", "vllm_cpp")
NEVER = "this is a rehearsal against made processes: nothing was measured"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporary folders are this test's own, so that what is left behind is seen."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


def config(tmp_path: Path, *overrides: str) -> Config:
    places = [f"host.{name}={tmp_path / name}" for name in ("lease_path", "state_dir", "cache_dir")]
    return compose_config([*places, *overrides])


def rehearsed(tmp_path: Path, *overrides: str) -> tuple[Rehearsed, str]:
    said = io.StringIO()
    console = Console(file=said, width=400)
    done = controller.run(config(tmp_path, "rehearse=true", *overrides), tmp_path, console)
    assert isinstance(done, Rehearsed)
    return done, said.getvalue()


def left(tmp_path: Path) -> list[str]:
    return sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.name != "temporary")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("gate", GATES)
def test_every_gate_is_rehearsed_for_every_engine_that_is_shipped(tmp_path: Path, gate: str, engine: str) -> None:
    asked = [f"gate={gate}", *GATES[gate], f"engine={engine}", *ENGINES[engine]]
    if gate == "g1" and engine not in WITH_SUITES:
        with pytest.raises(UsageError) as caught:
            rehearsed(tmp_path, *asked)
        assert caught.value.code == "no-suites"
    elif gate == "g3" and engine not in WITH_STRUCTURE:
        with pytest.raises(UsageError) as caught:
            rehearsed(tmp_path, *asked)
        assert caught.value.code == ("not-owned" if engine == "openai" else "no-structure")
    else:
        done, said = rehearsed(tmp_path, *asked)
        assert NEVER in done.verdict["not_binding_because"]
        assert not done.verdict["binding"]
        assert done.verdict["outcome"] in ("PASS", "FAIL")
        assert done.exit_code == EXIT_PASS
        assert said.startswith("rehearsed in ")
        assert_complete(config(tmp_path, *asked), done)
    assert left(tmp_path) == []


def assert_complete(asked: Config, done: Rehearsed) -> None:
    """As many requests and axes as the gate has for this engine; what it cannot give is named."""
    able = set(offline.prepared(asked).capabilities)
    points, repetitions = asked.gate.concurrencies, asked.gate.repetitions
    timed = asked.gate.name in ("g4", "g5")
    requests = 2 * repetitions * sum(asked.workload.points[point] for point in points) if timed else 0
    assert done.verdict["totals"]["requests"] == requests
    wanted = axes.axes_of(points, "gpu" in able, "external" not in able, asked.gate.name == "g5") if timed else []
    assert sum(done.verdict["counts"][kind]["of"] for kind in ("timing", "memory")) == len(wanted)
    named = {item["what"] for item in done.verdict["not_applicable"]}
    if asked.gate.name != "g1":
        assert ("plan control" in named) == ("fp4_plans" not in able)
        assert ("arm activation proof" in named) == ("arm_counters" not in able)


def test_the_whole_grid_is_rehearsed_with_the_seeds_workload(tmp_path: Path) -> None:
    done, said = rehearsed(tmp_path, "gate=g5", "engine=sglang", *PLACES)
    assert done.legs == 38
    assert "38 legs, 2,016 requests, 124 axes" in said


def test_a_sanitizer_that_is_on_the_host_is_rehearsed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.tools.find", lambda name: f"/opt/{name}")
    done, _ = rehearsed(tmp_path, "gate=g2", "engine.options.backend=cuda")
    clean = [check for check in done.verdict["checks"] if check["code"] == "sanitizer-clean"]
    assert len(clean) == 4
    assert done.verdict["outcome"] == "PASS"


def test_a_trace_that_is_given_is_judged_in_rehearsal_and_plans_of_vllm_cpp_are_held_to_the_oracle(
    tmp_path: Path,
) -> None:
    events = [{"cat": "kernel", "name": "cutlass_e2m1"}] * 417
    (tmp_path / "a.json").write_text(json.dumps({"traceEvents": events}))
    trace = ("gate.traces.candidate.path=a.json", "gate.traces.candidate.forwards=2")
    done, said = rehearsed(tmp_path, "gate=g3", "engine=vllm_cpp", *ENGINES["vllm_cpp"], *trace)
    assert done.verdict["failed"] == ["kernels-fp4_gemm"]
    assert "does not hold even in rehearsal: kernels-fp4_gemm" in said
    oracle = [check for check in done.verdict["checks"] if check["code"] == "plan-oracle"]
    assert len(oracle) == 4
    assert all(check["ok"] and check["required"].startswith("the 64 plans of vLLM 0.25.0") for check in oracle)
    (tmp_path / "a.json").unlink()


def test_the_vllm_clients_result_is_read_by_the_code_that_reads_the_real_one(tmp_path: Path) -> None:
    done, _ = rehearsed(tmp_path, "client=vllm_bench", "engine=vllm_cpu", "workload.tokenizer=engine", *GATES["g4"])
    assert "client lag" in {item["what"] for item in done.verdict["not_applicable"]}
    with pytest.raises(UsageError, match=r"set workload\.tokenizer"):
        rehearsed(tmp_path, "client=vllm_bench", "engine=vllm_cpu", *GATES["g4"])


def test_a_given_plan_document_is_the_one_that_every_leg_loads(tmp_path: Path) -> None:
    document = tmp_path / "plans.json"
    document.write_bytes(plans_said("seed", None).document or b"")
    done, _ = rehearsed(tmp_path, *GATES["g4"], f"engine.plan={document}", "rehearse_dir=kept")
    assert done.kept is not None
    plan = Plan.from_bytes((done.kept / "plan.json").read_bytes())
    assert plan.frozen_plan_sha256 == canonical.sha256_file(document)
    assert done.verdict["plan_control"] == "PASS"


@pytest.mark.parametrize("text", ["no JSON", "[]", '{"_metadata": {"format": "other"}, "plans": []}'])
def test_whether_a_plan_document_fits_is_for_the_engine_to_say(tmp_path: Path, text: str) -> None:
    (tmp_path / "plans.json").write_text(text)
    done, _ = rehearsed(tmp_path, *GATES["g4"], "engine.plan=plans.json")
    assert done.exit_code == EXIT_PASS


def test_every_kind_of_leg_can_be_rehearsed() -> None:
    assert set(leg.RUNNERS) == KINDS


def test_a_kind_that_cannot_is_refused_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HarnessError) as caught:
        Made().begin(LegPlan("00-new", "brand-new", "A"))
    assert caught.value.code == "no-rehearsal"
    monkeypatch.setattr("harness.rehearsal.machine.KINDS", KINDS - {"timed"})
    with pytest.raises(UsageError, match=r"the rehearsal failed in the checks: no-rehearsal .*'timed'"):
        rehearsed(tmp_path, *GATES["g4"])


# Before a lease is taken.


@dataclass
class Recording:
    """The local transport, whose `prepare` is the made one, and which starts nothing."""

    where: str = "a far host"
    poll_s: float = 0.1
    calls: list[str] = field(default_factory=list)
    sent: dict[str, Any] = field(default_factory=dict)

    def call(self, command: str, request: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        self.calls.append(command)
        if command == "prepare":
            found: Prepared = offline.prepared(controller.settings.load(request["config"]))
            return found.to_json()
        if command == "start":
            self.sent = dict(request)
            raise UsageError("enough", "it would start now")
        return Local().call(command, request, timeout_s=timeout_s)

    def close(self) -> None:
        pass


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Recording:
    found = Recording()

    def connect(_: object) -> Transport:
        return found  # type: ignore[return-value]

    monkeypatch.setattr(transport, "connect", connect)
    return found


def ask(tmp_path: Path, *overrides: str) -> tuple[UsageError, str]:
    """A real run, as far as it gets."""
    said = io.StringIO()
    with pytest.raises(UsageError) as caught:
        controller.run(config(tmp_path, *GATES["g4"], *overrides), tmp_path, Console(file=said, width=400))
    return caught.value, said.getvalue()


def test_a_run_is_rehearsed_first_wherever_its_host_is(tmp_path: Path, link: Recording) -> None:
    error, said = ask(tmp_path, "host=dgx", f"host.state_dir={tmp_path / 'state'}")
    assert error.code == "enough"
    assert link.calls == ["prepare", "find", "start"]
    assert "rehearsed in " in said
    assert "rehearsal" not in json.loads(link.sent["plan"])


@pytest.mark.parametrize("finaliser", ["page", "seal", "summary"])
def test_a_finaliser_that_fails_stops_the_run_before_the_lease(
    tmp_path: Path, link: Recording, monkeypatch: pytest.MonkeyPatch, finaliser: str
) -> None:
    def broken(*_: object, **__: object) -> str:
        raise ZeroDivisionError("out of numbers")

    targets = {"page": "harness.report.html.render", "seal": "harness.bundle.seal"}
    monkeypatch.setattr(targets.get(finaliser, "harness.rehearsal.run.summary"), broken)
    error, said = ask(tmp_path)
    assert (error.code, error.exit_code) == ("rehearsal", EXIT_USAGE)
    assert "ZeroDivisionError: out of numbers" in error.message
    assert "nothing was started" in error.message
    assert link.calls == ["prepare", "find"]
    assert not (tmp_path / "lease_path").exists()
    assert not (tmp_path / "evidence").exists()
    kept = Path(error.message.rpartition(" in ")[2])
    assert "ZeroDivisionError" in (kept / "traceback.txt").read_text()
    assert "rehearsed in" not in said


def test_a_check_that_would_void_the_run_stops_it(
    tmp_path: Path, link: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.rehearsal.load.LAG_NS", 10**9)
    error, _ = ask(tmp_path)
    assert error.code == "rehearsal"
    assert "client-lag" in error.message
    assert link.calls == ["prepare", "find"]


def test_a_run_without_a_rehearsal_says_so_in_its_plan_and_binds_as_any_other(tmp_path: Path, link: Recording) -> None:
    error, said = ask(tmp_path, "rehearse=false")
    assert error.code == "enough"
    assert "not rehearsed: rehearse=false" in said
    plan = Plan.from_bytes(link.sent["plan"].encode())
    assert plan.rehearsal is False
    assert not [reason for reason in plan.unbinding() if "rehears" in reason and "workload" not in reason]


# What is kept can never pass for a run.


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("kept")
    done, said = rehearsed(root, *GATES["g4"], "rehearse_dir=kept")
    assert done.kept is not None
    assert f"the rehearsed bundle is {done.kept}" in said
    return done.kept


def test_a_kept_rehearsal_verifies_and_says_what_it_is(kept: Path) -> None:
    found = verify(kept)
    assert found.outcome in ("PASS", "FAIL")
    assert found.verdict is not None
    assert NEVER in found.verdict["not_binding_because"]
    assert "**A rehearsal against made processes" in (kept / "report.md").read_text()
    assert not (kept.parents[2] / "evidence").exists()


def test_another_rehearsal_gives_the_same_figures(kept: Path, tmp_path: Path) -> None:
    assert rehearsed(tmp_path, *GATES["g4"])[0].verdict == canonical.loads((kept / "verdict.json").read_bytes())


def test_a_rehearsal_is_no_prerequisite_and_no_floor(kept: Path, tmp_path: Path) -> None:
    asked = config(tmp_path, "gate=g5", f"gate.prerequisites=[{kept}]")
    with pytest.raises(UsageError, match="is a rehearsal of G4: nothing was measured"):
        prerequisites.read(asked.gate, tmp_path)
    with pytest.raises(UsageError, match="is a rehearsal: nothing was measured"):
        floor_store.read_run(kept)


def test_a_plan_that_claims_to_be_measured_is_not_the_one_that_was_sealed(kept: Path, tmp_path: Path) -> None:
    forged = tmp_path / "forged"
    for path in sorted(kept.rglob("*")):
        if path.is_file():
            target = forged / path.relative_to(kept)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    (forged / "plan.json").write_bytes((forged / "plan.json").read_bytes().replace(b'"rehearsal":true,', b""))
    found = verify(forged)
    assert found.outcome == "TAMPERED"
    assert found.faults[0].startswith("plan.json: ")


def test_a_report_can_be_made_again_and_has_the_same_bytes(kept: Path, tmp_path: Path) -> None:
    pages = []
    for number in range(2):
        names = {name: tmp_path / f"{number}.{name}" for name in ("html", "junit", "markdown")}
        assert command.run(SimpleNamespace(bundle=kept, compare=None, join=None, json=None, **names)) == EXIT_PASS  # type: ignore[arg-type]
        pages.append({name: path.read_bytes() for name, path in names.items()})
    assert pages[0] == pages[1]
    assert {name: text.encode() for name, text in command.pages(kept).items()} == {
        "report.html": pages[0]["html"],
        "junit.xml": pages[0]["junit"],
        "report.md": pages[0]["markdown"],
    }
