"""G3's predicates on synthetic evidence and on recorded lines: each one can fail, and says what it saw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gates import g3, kernel_traces
from harness import campaign, canonical, controller, settings, trace_files, traces, verdict, verify
from harness.engines.reference import Reference, read_oracle, read_plans
from harness.engines.vllm_cpp import VllmCpp
from harness.errors import HarnessError, UsageError
from harness.prerequisites import read as read_proofs
from harness.records import Check, Leg, Structure, Trace
from harness.report.summary import summary
from harness.structure import counter, document_rows, first_tactics
from kernels.serve.engine import _first_tactics
from kernels.tactics import CUTLASS_TACTICS, TacticFamily
from tests.builders import (
    ALL,
    COUNTED,
    SHA,
    frozen_document,
    good_legs,
    load_report,
    plan_report,
    small_config,
    small_plan,
    write_bundle,
)
from tests.unit.test_kernel_traces import nsys

PLAN = small_plan("gate=g3")
OK = [Check("run-ended", "journal", "end", "end", True)]
IDLE = {"candidates": 0, "warmups": 0, "delays": 0, "timed": 0}
SELECTED = plan_report().selected


def judged(change: Callable[[Leg], Leg] = lambda leg: leg, name: str = "") -> dict[str, Any]:
    legs = good_legs(PLAN)
    assert not name or any(name in leg.name for leg in legs)
    return verdict.compute(PLAN, [change(leg) if name and name in leg.name else leg for leg in legs], OK)


def counted(moment: int, **changes: int | None) -> dict[str, Any]:
    """A leg's counters with some of them changed, at readiness (0) or after the load (1)."""
    both = [dict(COUNTED[0]), dict(COUNTED[1])]
    both[moment] |= changes  # type: ignore[arg-type]
    return {"structure": Structure(both[0], both[1], SELECTED)}


def selecting(*rows: tuple[int, int, int, int]) -> dict[str, Any]:
    return {"plans": plan_report({row[:3]: row[3] for row in rows}, tuning=IDLE)}


def test_the_plan_seeds_once_and_loads_each_arm_one_at_a_time_and_at_once() -> None:
    assert [(leg.name, leg.arm, leg.concurrency) for leg in PLAN.legs] == [
        ("00-seed-plans", "B", None),
        ("01-structure-c1-A", "A", 1),
        ("02-structure-c1-B", "B", 1),
        ("03-structure-c2-A", "A", 2),
        ("04-structure-c2-B", "B", 2),
    ]
    given = campaign.legs(small_config("gate=g3", "engine.plan=x.json"), ALL)
    assert {leg.kind for leg in given} == {"structure"}
    assert "model gate: switched off by gate.model_gate=false" not in PLAN.unbinding()


def test_a_healthy_run_passes_and_says_that_no_kernel_could_be_traced() -> None:
    found = judged()
    assert (found["outcome"], found["axes"], found["failed"]) == ("PASS", [], [])
    assert found["plan_control"] == "PASS"
    assert summary(found)[1] == f"{len(found['checks'])} of {len(found['checks'])} checks hold"
    assert any(reason.startswith("kernel trace: the engine computes on the CPU") for reason in PLAN.unbinding())
    (said,) = {check["required"] for check in found["checks"] if check["code"] == "plan-oracle"}
    assert said.startswith(f"the 2 plans of {g3.OWN}")


EXTRA, OTHER = (4, 64, 32, 1), (2, 64, 32, 5)
FAILING: list[tuple[str, str, dict[str, Any], str]] = [
    ("plan-oracle", "c1-A", selecting(*SELECTED, EXTRA), "1 extra (M=4 N=64 K=32), 0 missing"),
    ("plan-oracle", "c1-B", selecting(SELECTED[0]), "0 extra, 1 missing (M=2 N=64 K=32)"),
    ("plan-oracle", "c2-A", selecting(SELECTED[0], OTHER), "1 with another tactic (M=2 N=64 K=32)"),
    ("plan-oracle", "c2-B", {"plans": None}, "no plan lines"),
    ("plan-oracle", "c2-B", {"structure": Structure(*COUNTED, None)}, "no oracle"),
    ("plan-map", "c2-B", selecting(SELECTED[0], OTHER), "1 differ"),
    ("plan-frozen", "c1-B", {"plans": plan_report(tuned=1, tuning=IDLE)}, "1 tuned"),
    ("plan-frozen", "c1-B", {"plans": plan_report(lazy_misses=1, tuning=IDLE)}, "1 lazy"),
    ("plan-document", "c1-A", {"plan_sha256": (SHA, "b" * 64)}, "b" * 64),
    ("plan-same-document", "c1-A", {"plan_sha256": ("b" * 64, "b" * 64)}, "bbbb"),
    ("plan-tuned-nothing", "c1-A", {"plans": plan_report(tuning={**IDLE, "timed": 10})}, "10 timed"),
    ("plan-parses", "c2-A", counted(1, parses=2), "1 at readiness, 2 after the load"),
    ("plan-parses", "c2-A", counted(0, parses=0), "0 at readiness"),
    ("plan-parses", "c2-A", counted(1, parses=None), "not counted after the load"),
    ("plan-misses", "c1-B", counted(1, misses=1), "1 after the load"),
    ("gemms-per-forward", "c1-A", counted(1, gemms=97), "97 GEMMs in 12 forwards"),
    ("gemms-per-forward", "c1-A", counted(0, gemms=15), "15 GEMMs in 2 forwards"),
    ("gemms-per-forward", "c1-A", counted(1, gemms=16, forwards=2), "16 GEMMs in 2 forwards / 16 GEMMs in 2 forwards"),
    ("gemms-per-forward", "c1-A", counted(1, forwards=None), "in None forwards"),
    ("gemms-equal", "c2-B", counted(1, gemms=84), "A 8 / B 7, 8"),
    ("structure-load", "c2-B", {"load": load_report(1, 2)}, "1 in flight"),
    ("structure-load", "c2-B", {"requests": ()}, "0 completions"),
    ("arm-active", "c1-A", {"arm_proof": None}, "no proof"),
    ("clean-exit", "c2-A", {"exit": "SIGKILL"}, "SIGKILL"),
]


@pytest.mark.parametrize(("code", "name", "change", "seen"), FAILING)
def test_what_does_not_hold_fails_g3_by_its_name(code: str, name: str, change: dict[str, Any], seen: str) -> None:
    found = judged(lambda leg: replace(leg, **change), name)
    assert found["outcome"] == "FAIL"
    assert code in found["failed"]
    told = [check["seen"] for check in found["checks"] if check["code"] == code and not check["ok"]]
    assert any(seen in text for text in told), told


def test_a_run_that_was_cut_short_is_void() -> None:
    found = verdict.compute(PLAN, good_legs(PLAN)[:-1], OK)
    assert (found["outcome"], found["void"]) == ("VOID", ["legs-complete"])


# vllm.cpp: its 64 plans, in lines as it prints them.


def printed(rows: list[list[int]]) -> str:
    meta = "2e429d4cd3977f0f"
    lines = [
        f"[VT_FP4_CACHE] prepared mode=read-only native=/plans.json flashinfer= loaded={len(rows)} (flashinfer=0 "
        f"native={len(rows)}) rejected=0 delay_us=5000 metadata={meta} selected={len(rows)}",
        f"[VT_FP4_CACHE] complete mode=read-only loaded={len(rows)} tuned=0 rejected=0 saved=0 selected={len(rows)} "
        f"metadata={meta}",
        *(f"[VT_FP4_CACHE] selected M={m} N={n} K={k} tactic={tactic}" for m, n, k, tactic in rows),
        "[VT_FP4_AUTOTUNE] pre-serve warmup complete max_tokens=2048 profiles_requested=0 profiles_tuned=0 "
        f"cached_plans={len(rows)}",
    ]
    return "\n".join(lines) + "\n"


def vllm_cpp(tmp_path: Path, **options: Any) -> VllmCpp:
    return VllmCpp({"oracle": "gb10_27b", **options}, tmp_path)


def against_the_oracle(tmp_path: Path, rows: list[list[int]]) -> dict[str, Any]:
    """The verdict on a run of vllm.cpp that printed these plans."""
    told = vllm_cpp(tmp_path).structure()
    plan = replace(PLAN, structure={"counters": {}, "requests": 2, **told}, engine="vllm_cpp")
    oracle = tuple(sorted((m, n, k, tactic) for m, n, k, tactic in told["oracle"]))
    report = read_plans(printed(rows), "")
    legs = [
        leg if leg.kind == "seed" else replace(leg, plans=report, structure=Structure({}, {}, oracle))
        for leg in good_legs(plan)
    ]
    return verdict.compute(plan, legs, OK)


def test_the_64_plans_that_vllm_cpp_printed_are_the_oracles(tmp_path: Path) -> None:
    rows, _ = read_oracle()
    assert len(rows) == 64
    found = against_the_oracle(tmp_path, rows)
    assert (found["outcome"], found["failed"]) == ("PASS", [])
    need = {check["required"] for check in found["checks"] if check["code"] == "plan-oracle"}
    assert need == {
        "the 64 plans of vLLM 0.25.0 on a GB10, for a 27B model at 2,048 tokens a batch: "
        "no key more, none less, the same tactics"
    }


@pytest.mark.parametrize("variant", ["missing", "extra", "tactic"])
def test_one_plan_off_the_64_fails(tmp_path: Path, variant: str) -> None:
    rows, _ = read_oracle()
    changed = {
        "missing": rows[1:],
        "extra": [*rows, [1, 64, 32, 0]],
        "tactic": [[*rows[0][:3], rows[0][3] ^ 1], *rows[1:]],
    }[variant]
    found = against_the_oracle(tmp_path, changed)
    assert (found["outcome"], found["failed"]) == ("FAIL", ["plan-oracle"])


def test_on_another_gpu_and_for_another_model_the_frozen_document_is_the_oracle(tmp_path: Path) -> None:
    assert "oracle" in vllm_cpp(tmp_path).structure()
    elsewhere = vllm_cpp(tmp_path, architecture="120a").structure()
    assert "oracle" not in elsewhere
    assert [family["per_forward"] for family in elsewhere["families"]] == [208]
    assert vllm_cpp(tmp_path, oracle=None).structure() == {}
    with pytest.raises(UsageError, match=r"engine\.options\.oracle='other'"):
        vllm_cpp(tmp_path, oracle="other")


def test_the_reference_engine_says_its_gemms_by_the_sizes_in_its_weights(tmp_path: Path) -> None:
    engine = Reference({}, tmp_path)
    engine.prepare()
    told = engine.structure()
    assert (told["gemms_per_forward"], told["gemms_because"]) == (8, "2 layers x 4 projections")


# What is read from files.


def test_a_counter_is_read_once_and_exactly() -> None:
    text = '# TYPE a_total counter\na_total 12\na_total_more 3\nb{model="x"} 4.0\nc 1\nc 2\n'
    assert (counter(text, "a_total"), counter(text, "b"), counter(text, "c"), counter(text, "d")) == (12, 4, None, None)


def test_the_engine_says_where_each_runner_s_tactics_begin() -> None:
    family = TacticFamily.of("both", 1, CUTLASS_TACTICS, replace(CUTLASS_TACTICS, runner="second"))
    told = first_tactics(_first_tactics(family), "nvfp4_runner_first_tactic")
    assert told == {"CutlassFp4GemmRunner": 0, "second": 32}
    assert document_rows(frozen_document([(1, 64, 32, 3)]).replace(b'"R"', b'"second"'), told) == ((1, 64, 32, 35),)


def test_a_documents_rows_are_sorted_and_count_on_across_runners() -> None:
    rows = ((2, 64, 32, 1), (1, 64, 32, 0))
    assert document_rows(frozen_document(rows), {}) == ((1, 64, 32, 0), (2, 64, 32, 1))
    assert document_rows(frozen_document(rows), {"R": 32}) == ((1, 64, 32, 32), (2, 64, 32, 33))
    with pytest.raises(HarnessError, match="two plans for one shape"):
        document_rows(frozen_document((*rows, (1, 64, 32, 4))), {})
    with pytest.raises(HarnessError, match="is no native plan document"):
        document_rows(b"[]", {})


# Traces, from the file that a person gives to the verdict that is recomputed from the bundle.

GPU = (*ALL, "gpu")


def traced(tmp_path: Path, gemms: int = 416, keep: int = trace_files.KEEP_BYTES) -> tuple[Any, Mapping[str, Any]]:
    paths = [nsys(tmp_path / f"{arm}.sqlite", gemms if arm == "A" else 416) for arm in "AB"]
    overrides = [
        "gate=g3",
        "gate.families=[{name: fp4_gemm, pattern: nvfp4_gemm, per_forward: 208}]",
        *(f"gate.traces.{name}.path={path.name}" for name, path in zip(("candidate", "baseline"), paths, strict=True)),
        *(f"gate.traces.{name}.forwards=2" for name in ("candidate", "baseline")),
    ]
    given = trace_files.read(small_config(*overrides).gate, tmp_path, keep)
    named = {arm: one.named() for arm, one in given.items()}
    return small_plan(*overrides, capabilities=GPU, traces=named), given


def traced_bundle(tmp_path: Path, gemms: int = 416, keep: int = trace_files.KEEP_BYTES) -> Path:
    plan, given = traced(tmp_path, gemms, keep)
    files = {one.file: one.data for one in given.values()}
    return write_bundle(
        tmp_path / "run", plan, good_legs(plan), extra={**files, "frozen-plans.json": frozen_document()}
    )


@pytest.mark.parametrize(("keep", "file"), [(1 << 20, "trace-A.sqlite"), (1, "trace-A.kernels.json")])
def test_a_trace_is_kept_whole_or_as_its_launches_and_judged_again_offline(
    tmp_path: Path, keep: int, file: str
) -> None:
    root = traced_bundle(tmp_path, keep=keep)
    assert (root / file).is_file()
    found = verify.verify(root)
    assert (found.outcome, found.faults) == ("PASS", ())
    assert found.verdict is not None
    assert found.verdict["not_binding_because"] == ["workload rehearsal is a rehearsal"]
    held = {check["code"] for check in found.verdict["checks"] if check["where"] == f"{file} (A)"}
    assert held == {
        *("trace-file", "trace-kernels", "trace-nodes", "trace-whole", "kernels-fp4_gemm", "kernels-forbidden"),
    }


@pytest.mark.parametrize("keep", [1 << 20, 1])
def test_one_gemm_too_many_in_a_trace_fails(tmp_path: Path, keep: int) -> None:
    found = verify.verify(traced_bundle(tmp_path, gemms=417, keep=keep))
    assert found.verdict is not None
    assert (found.outcome, found.verdict["failed"]) == ("FAIL", ["kernels-fp4_gemm"])


def test_a_trace_that_is_not_the_one_that_was_named_fails_and_one_that_is_gone_too() -> None:
    named = {"file": "trace-A.sqlite", "sha256": SHA, "forwards": 2, "source": {}}
    families = [{"name": "fp4_gemm", "pattern": "g", "per_forward": 8}]
    plan = replace(PLAN, structure={**(PLAN.structure or {}), "traces": {"A": named}, "families": families})
    trace = Trace({"g": 16})
    for sha256, failed in ((SHA, []), ("b" * 64, ["trace-file"]), (None, ["trace-file"])):
        shown = Structure(*COUNTED, SELECTED, None if sha256 is None else trace, sha256)
        legs = [replace(leg, structure=shown) if leg.name == "01-structure-c1-A" else leg for leg in good_legs(plan)]
        assert verdict.compute(plan, legs, OK)["failed"] == failed


def test_a_file_that_is_no_trace_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{}")
    where = "gate.traces.candidate"
    for path, words in (("bad.json", "give the trace of a torch profiler"), ("none", "No such file")):
        config = small_config("gate=g3", f"{where}.path={path}", f"{where}.forwards=1")
        with pytest.raises(UsageError, match=words):
            trace_files.read(config.gate, tmp_path)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("gate.sequential_requests=1", "g3 sends at least 2 prompts"),
        ("gate.traces.baseline.path=x", "needs the number of whole forwards"),
        ("gate.families=[{name: f, pattern: x}]", "name: NAME, pattern: REGEX, per_forward: N"),
        ("gate.families=[{name: f, pattern: '[', per_forward: 1}]", "is no regular expression"),
        ("gate.families=[{name: f, pattern: x, per_forward: 0}]", "with N above 0"),
    ],
)
def test_bad_settings_of_g3_are_one_sentence(override: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        settings.compose_config(["gate=g3", override])


def test_a_gate_that_has_nothing_to_look_at_or_to_count_is_refused() -> None:
    blind = replace(PLAN, capabilities=("token_ids",), structure={"counters": {}, "traces": {}, "families": []})
    with pytest.raises(UsageError, match="has nothing to look at; give kernel traces"):
        controller.require_structure(blind)
    traced = {"counters": {}, "traces": {"A": {}}, "families": []}
    with pytest.raises(UsageError, match="nothing is known of the kernels"):
        controller.require_structure(replace(blind, structure=traced))
    controller.require_structure(PLAN)


# The bundle: sound, of use to a grid, and altered.


def bundle_of(tmp_path: Path, document: bytes | None = None) -> Path:
    extra = {"frozen-plans.json": frozen_document() if document is None else document}
    return write_bundle(tmp_path / "run", PLAN, good_legs(PLAN), extra=extra)


def test_a_sealed_pass_is_what_a_grid_can_stand_on(tmp_path: Path) -> None:
    root = bundle_of(tmp_path)
    assert verify.verify(root).outcome == "PASS"
    (proof,) = read_proofs(small_config("gate=g5", f"gate.prerequisites=[{root}]").gate, tmp_path)
    assert (proof.gate, proof.outcome, proof.binding) == ("g3", "PASS", False)


def test_the_map_is_compared_with_the_document_in_the_bundle(tmp_path: Path) -> None:
    found = verify.verify(bundle_of(tmp_path, frozen_document(((1, 64, 32, 0), (2, 64, 32, 7)))))
    assert found.verdict is not None
    assert (found.outcome, found.verdict["failed"]) == ("FAIL", ["plan-oracle"])


@pytest.mark.parametrize("name", ["frozen-plans.json", "legs/01-structure-c1-A/metrics-end.txt"])
def test_what_the_verdict_is_recomputed_from_cannot_be_altered(tmp_path: Path, name: str) -> None:
    root = bundle_of(tmp_path)
    path = root / name
    path.write_bytes(path.read_bytes().replace(b"2", b"3"))
    found = verify.verify(root)
    assert found.outcome == "TAMPERED"
    assert name in found.faults[0]


def test_plans_of_other_gates_keep_their_bytes() -> None:
    for gate in ("g1", "g2"):
        document = canonical.loads(small_plan(f"gate={gate}").to_bytes())
        assert not {"structure", "unprofiled"} & document.keys()


# A profiler in a timed root.


@pytest.mark.parametrize("gate", ["g4", "g5"])
def test_an_engine_that_a_profiler_started_is_void_and_no_figure_is_told(gate: str) -> None:
    plan = small_plan(f"gate={gate}", *(["gate.override=true"] if gate == "g5" else []))
    slow = {"argv": ["/usr/bin/nsys", "profile", "server"], "env": {}, "cwd": "/"}
    hit = next(leg.name for leg in plan.legs if leg.kind == "timed")
    legs = [replace(leg, command=slow) if leg.name == hit else leg for leg in good_legs(plan)]
    found = verdict.compute(plan, legs, OK)
    assert (found["outcome"], found["axes"]) == ("VOID", [])
    assert "unprofiled" in found["void"]
    assert "unprofiled" in {check.code for leg in legs for check in verdict.leg_checks(plan, leg) if not check.ok}
    older = verdict.compute(replace(plan, unprofiled=None), legs, OK)
    assert "unprofiled" not in older["void"], "bundles from before are judged as they were"


def test_a_trace_in_the_root_of_a_g4_voids_it_where_the_plan_asks(tmp_path: Path) -> None:
    extra = {"run.sqlite": b"x"}
    for number, (plan, outcome) in enumerate(
        ((small_plan(), "VOID"), (replace(small_plan(), unprofiled=None), "PASS"))
    ):
        root = write_bundle(tmp_path / str(number), plan, good_legs(plan), extra=extra)
        found = verify.verify(root)
        assert found.outcome == outcome, found
        assert found.verdict is not None
        assert ("untraced" in found.verdict["void"]) == (outcome == "VOID")


def test_the_gemm_families_of_a_forward_are_the_seeds() -> None:
    assert kernel_traces.SEED_27B["fp4_gemm"] == 208
    assert traces.form(b"{") == ".pt.trace.json"
