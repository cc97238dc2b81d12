"""G4, the same-plan component A/B: what must hold before a ratio may be looked at.

Nothing here looks at a timing or a memory figure, and nothing compares completions of timed legs: batched output
depends on the batch's shape, so text equality across legs is a diagnostic and never a predicate (the seed voided a good
run by it).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from gates import kernel_traces, servers, telemetry
from harness.plan import Plan, partition, prompts_digest
from harness.records import Check, Leg

__all__ = [
    "PLAN_CONTROL",
    "checks",
    "leg_checks",
    "same_model_gates",
    "same_plans",
    "second_model_equality",
    "sequential_equality",
    "structure",
]

PLAN_CONTROL = "plan-"  # checks with this prefix make up the plan-control verdict
OTHER_PLANS = ("seed", "inertness", "sanitizer")  # makes the plans; a model of other shapes; no plan at all
MIN_SAMPLES = 2
LAGS_UNKNOWN = "vllm_bench"  # this client does not measure how late its loop is: not-applicable in the plan


def checks(plan: Plan, legs: Sequence[Leg]) -> list[Check]:
    """Every validity check of the gate, passed or not, in the order a reader wants them."""
    found = list(structure(plan, legs))
    for leg in legs:
        found += leg_checks(plan, leg)
    found += [*_arms_comparable(legs), *telemetry.checks(plan, legs), *servers.checks(plan, legs)]
    if "fp4_plans" in plan.capabilities:
        found += same_plans(plan, legs)
    if any(leg.kind == "model-gate" for leg in plan.legs):
        found += same_model_gates(legs)
    found += sequential_equality(plan, legs)
    return found


def leg_checks(plan: Plan, leg: Leg) -> list[Check]:
    """What one leg must show by itself; the supervisor looks at it before it starts the next one."""
    found = list(_process(plan, leg))
    if leg.kind == "timed":
        found += _counts(plan, leg)
    if leg.kind == "timed" and plan.memory:
        found += _lifecycle(leg)
    found += [*telemetry.leg_checks(plan, leg), *servers.leg_checks(plan, leg)]
    if leg.kind == "model-gate":
        found.append(_model_gate(leg))
    if leg.kind in ("sequential", "inertness"):
        found.append(_sequential_counts(plan, leg))
    if "fp4_plans" in plan.capabilities and leg.kind not in OTHER_PLANS:
        found += _frozen_plans(leg)
    return found


def _check(code: str, where: str, seen: object, required: object, ok: bool) -> Check:
    return Check(code, where, str(seen), str(required), ok)


def _equal(code: str, where: str, seen: object, required: object) -> Check:
    return _check(code, where, seen, required, seen == required)


def structure(plan: Plan, legs: Sequence[Leg]) -> Iterator[Check]:
    planned, seen = [leg.name for leg in plan.legs], [leg.name for leg in legs]
    missing = [name for name in planned if name not in seen]
    yield _check(
        "legs-complete",
        "run",
        f"{len(seen)} legs" + (f", missing {missing[0]}" if missing else ""),
        f"{len(planned)} legs in the planned order",
        planned == seen,
    )
    levers = len(plan.difference)
    yield _check(
        "one-lever",
        "plan",
        "; ".join(plan.difference) or "no difference",
        "no difference between the arms of an A/A campaign"
        if plan.aa is not None
        else "one difference between the arms, unless gate.stacked=true",
        levers == 0 if plan.aa is not None else levers == 1 or (plan.stacked and levers > 0),
    )


def _process(plan: Plan, leg: Leg) -> Iterator[Check]:
    if plan.memory:
        yield _equal("clean-exit", leg.name, leg.exit, "exit code 0")
    if plan.memory and plan.unprofiled and leg.kind == "timed":
        yield _unprofiled(leg)
    if "arm_counters" in plan.capabilities and leg.kind in ("timed", "sequential", "inertness", "structure"):
        proof = leg.arm_proof
        yield _check(
            "arm-active",
            leg.name,
            proof.seen if proof else "no proof",
            proof.required if proof else "a proof",
            proof is not None and proof.active,
        )


def _unprofiled(leg: Leg) -> Check:
    """A profiler slows what it looks at, and not both arms alike."""
    command = leg.command
    found = None if command is None else kernel_traces.profilers(command["argv"], command["env"])
    seen = "no command recorded" if found is None else ", ".join(found) or "none"
    return _check("unprofiled", leg.name, seen, "no profiler in its command or environment", found == [])


def _counts(plan: Plan, leg: Leg) -> Iterator[Check]:
    """Exact requests, tokens and concurrency of one timed leg."""
    assert leg.concurrency is not None
    wanted = plan.requests(leg.concurrency)
    failed = [record for record in leg.requests if record.error is not None]
    yield _equal("request-count", leg.name, len(leg.requests), wanted)
    yield _check(
        "failed-requests",
        leg.name,
        f"{len(failed)} failed" + (f", first: {failed[0].error}" if failed else ""),
        "0 failed",
        not failed,
    )
    for code, want, values in (
        ("input-tokens", plan.input_tokens, [record.prompt_tokens for record in leg.requests]),
        ("output-tokens", plan.output_tokens, [record.output_tokens for record in leg.requests]),
    ):
        wrong = sorted({str(value) for value in values if value != want})
        yield _check(
            code,
            leg.name,
            f"{sum(value or 0 for value in values)}" + (f" with {', '.join(wrong)}" if wrong else ""),
            f"{wanted} x {want}",
            not wrong and len(values) == wanted,
        )
    assert leg.repetition is not None
    sent = prompts_digest([record.prompt_sha256 for record in sorted(leg.requests, key=lambda item: item.index)])
    yield _equal("prompts", leg.name, sent[:12], plan.corpus[partition(leg.concurrency, leg.repetition)][:12])
    peak = leg.load.peak_in_flight if leg.load else None
    yield _equal("peak-concurrency", leg.name, peak, min(leg.concurrency, wanted))
    if leg.load is not None and plan.client["name"] != LAGS_UNKNOWN:
        lag_ns = leg.load.loop_lag_p99_ns
        lag, bound = math.inf if lag_ns is None else lag_ns / 1e6, float(plan.client["max_loop_lag_ms"])
        yield _check("client-lag", leg.name, f"p99 {lag:.3f} ms", f"at most {bound:g} ms", lag <= bound)


def _lifecycle(leg: Leg) -> Iterator[Check]:
    """Samples, page-cache drops and the return of memory around one timed leg."""
    alive = [sample for sample in leg.memory if sample.alive]
    ended = bool(leg.memory) and not leg.memory[-1].alive
    yield _check(
        "memory-samples",
        leg.name,
        f"{len(alive)} live samples" + ("" if ended else ", end not seen"),
        f"at least {MIN_SAMPLES} and the end of the process",
        len(alive) >= MIN_SAMPLES and ended,
    )
    for when, drop in (("before", leg.cache_before), ("after", leg.cache_after)):
        seen = "no report" if drop is None else f"{drop.file_count} files, {drop.resident_after_bytes} bytes resident"
        good = drop is not None and drop.succeeded and drop.file_count > 0 and drop.resident_after_bytes == 0
        yield _check("cache-drop", f"{leg.name} {when}", seen, "every file of the roots, 0 bytes resident", good)
    if leg.cache_before and leg.cache_after:
        yield _equal("cache-inventory", leg.name, leg.cache_after.inventory_sha256, leg.cache_before.inventory_sha256)
    back = leg.memory_return
    yield _check(
        "memory-return",
        leg.name,
        "not measured" if back is None else f"{back.final_kib} KiB available",
        "a measurement" if back is None else f"{back.baseline_kib} KiB less {back.tolerance_kib} KiB",
        back is not None and back.returned,
    )


def _arms_comparable(legs: Sequence[Leg]) -> Iterator[Check]:
    timed = [leg for leg in legs if leg.kind == "timed" and leg.load is not None]
    for concurrency in sorted({leg.concurrency for leg in timed if leg.concurrency is not None}):
        loads = [leg.load for leg in timed if leg.concurrency == concurrency and leg.load is not None]
        for code, values in (
            ("same-warmups", {load.warmups for load in loads}),
            ("same-itl-basis", {load.itl_basis for load in loads}),
            ("same-stamps", {load.stamp_source for load in loads}),
        ):
            yield _check(
                code, f"c{concurrency}", ", ".join(sorted(map(str, values))), "one value in every leg", len(values) == 1
            )


def _frozen_plans(leg: Leg) -> Iterator[Check]:
    """Nothing tuned, nothing missed, the document as it was."""
    report = leg.plans
    if report is None:
        yield _check("plan-report", leg.name, "no plan lines in the log", "a plan report", False)
        return
    changed = report.tuned or report.lazy_misses or report.rejected or report.saved
    yield _check(
        "plan-frozen",
        leg.name,
        f"{report.mode}, {report.tuned} tuned, {report.lazy_misses} lazy, {report.rejected} rejected, "
        f"{report.saved} saved",
        "read-only, 0 tuned, 0 lazy, 0 rejected, 0 saved",
        report.mode == "read-only" and not changed,
    )
    seen = f"{report.loaded} loaded, {len(report.selected)} selected"
    all_loaded = report.loaded == len(report.selected) > 0
    yield _check("plan-loaded", leg.name, seen, "all selected plans loaded", all_loaded)
    expected = "only the expected plan-cache lines"
    yield _check("plan-log", leg.name, "; ".join(report.faults) or "clean", expected, not report.faults)
    if leg.plan_sha256 is not None:
        yield _equal("plan-document", leg.name, leg.plan_sha256[1], leg.plan_sha256[0])


def same_plans(plan: Plan, legs: Sequence[Leg]) -> Iterator[Check]:
    """One frozen document, the planned one where it was given, and one map in every process after the seed."""
    frozen = [leg for leg in legs if leg.kind not in OTHER_PLANS]
    yield _single("plan-map", (leg.plans.map_sha256 for leg in frozen if leg.plans), _map_difference(frozen))
    yield _single("plan-metadata", (leg.plans.metadata for leg in frozen if leg.plans))
    documents = {leg.plan_sha256[0] for leg in frozen if leg.plan_sha256}
    if plan.frozen_plan_sha256 is not None:
        documents.add(plan.frozen_plan_sha256)
    yield _single("plan-same-document", documents)


def _single(code: str, values: Iterable[str], detail: str = "") -> Check:
    distinct = sorted(set(values))
    seen = " / ".join(value[:12] for value in distinct) or "none"
    return _check(
        code, "run", seen + (f" ({detail})" if detail else ""), "one value in every process", len(distinct) == 1
    )


def _map_difference(legs: Sequence[Leg]) -> str:
    """How the first differing map differs from the first one: missing keys and keys with another tactic."""
    maps = [(leg.name, {row[:3]: row[3] for row in leg.plans.selected}) for leg in legs if leg.plans]
    for name, other in maps[1:]:
        first = maps[0][1]
        missing, extra = first.keys() - other.keys(), other.keys() - first.keys()
        changed = sorted(key for key in first.keys() & other.keys() if first[key] != other[key])
        if missing or extra or changed:
            example = "".join(
                f"; M={m} N={n} K={k}: {first[m, n, k]} against {other[m, n, k]}" for m, n, k in changed[:1]
            )
            return f"{name}: {len(missing)} keys missing, {len(extra)} extra, {len(changed)} differ{example}"
    return ""


def _model_gate(leg: Leg) -> Check:
    report = leg.model_gate
    if report is None:
        return _check("model-gate", leg.name, "no counts in its output", "parsed counts", False)
    counts = f"{report.assertions} assertions, {report.failed} failed, {report.skipped} skipped"
    good = report.failed == 0 and report.skipped == 0 and report.assertions > 0 and report.tokens == report.of > 0
    seen = f"{counts}, {report.tokens}/{report.of} tokens"
    return _check("model-gate", leg.name, seen, "0 failed, 0 skipped, every token exact", good)


def same_model_gates(legs: Sequence[Leg]) -> Iterator[Check]:
    gates = [leg for leg in legs if leg.kind == "model-gate"]
    shapes = {(leg.model_gate.cases, leg.model_gate.assertions, leg.model_gate.of) for leg in gates if leg.model_gate}
    yield _check(
        "model-gate-counts",
        "run",
        " / ".join(map(str, sorted(shapes))) or "none",
        "the same cases, assertions and tokens in both arms",
        len(shapes) == 1 and {leg.arm for leg in gates} == {"A", "B"},
    )


def _sequential_counts(plan: Plan, leg: Leg) -> Check:
    bad = [record for record in leg.requests if record.error is not None or record.output_tokens != plan.output_tokens]
    return _check(
        "sequential-counts",
        leg.name,
        f"{len(leg.texts)} completions, {len(bad)} wrong",
        f"every completion with {plan.output_tokens} tokens",
        bool(leg.texts) and not bad,
    )


def sequential_equality(plan: Plan, legs: Sequence[Leg]) -> Iterator[Check]:
    """The same prompts, one at a time: the arms must agree token for token when the shapes are the same."""
    yield from _equal_texts(plan, legs, "sequential", "sequential-equal")


def second_model_equality(plan: Plan, legs: Sequence[Leg]) -> Iterator[Check]:
    """The same of the second model, which the change is not about."""
    yield from _equal_texts(plan, legs, "inertness", "second-model-inert")


def _equal_texts(plan: Plan, legs: Sequence[Leg], kind: str, code: str) -> Iterator[Check]:
    if not any(item.kind == kind for item in plan.legs):
        return
    proofs = {leg.arm: leg.texts for leg in legs if leg.kind == kind}
    first, second = proofs.get("A", ()), proofs.get("B", ())
    same = sum(one == two for one, two in zip(first, second, strict=False))
    total = max(len(first), len(second))
    good = total > 0 and same == total == len(first) == len(second)
    seen, required = f"{same} of {total} equal", f"all of {total or 'the'} completions equal"
    yield _check(code, "A against B", seen, required, good)
