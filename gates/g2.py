"""G2, correctness: tuning is counted, a loaded plan launches nothing, and both arms give the same tokens.

A gate of checks: nothing is timed and no axis exists. What fails here fails the gate; only a run that was cut short or
that did not do what was planned is void.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gates import g4
from harness.plan import Plan
from harness.records import Check, Leg

__all__ = ["VOIDING", "checks"]

VOIDING = frozenset({"legs-complete", "one-lever"})  # the run did not do what was planned, so nothing is known
WARMUPS, REPEATS = 3, 10
SHARED_TOKENS = 16  # as many as a model gate looks at: state that is corrupted by neighbours shows before


def checks(plan: Plan, legs: Sequence[Leg]) -> list[Check]:
    """Every check of the gate, passed or not."""
    found = list(g4.structure(plan, legs))
    for leg in legs:
        found += g4.leg_checks(plan, leg)
    if "fp4_plans" in plan.capabilities:
        found += [*_miss(legs), *_hits(legs), *g4.same_plans(plan, legs), *_replays(plan, legs)]
    if any(leg.kind == "model-gate" for leg in plan.legs):
        found += g4.same_model_gates(legs)
    found += g4.sequential_equality(plan, legs)
    found += _concurrent(plan, legs)
    found += g4.second_model_equality(plan, legs)
    found += _sanitized(legs)
    return found


def _miss(legs: Sequence[Leg]) -> Iterator[Check]:
    """The seed tuned every plan it selected, each candidate with exactly 3 warm-ups and 10 timed launches."""
    for leg in legs:
        if leg.kind != "seed":
            continue
        report = leg.plans
        if report is None:
            yield Check("tuning-complete", leg.name, "no plan lines in the log", "a plan report", False)
            continue
        seen = f"{report.tuned} tuned, {report.saved} saved, {report.loaded} loaded, {len(report.selected)} selected"
        whole = report.tuned == report.saved == len(report.selected) > 0 == report.loaded
        yield Check("tuning-complete", leg.name, seen, "every selected plan tuned and saved, none loaded", whole)
        counts = report.tuning or {}
        candidates = counts.get("candidates", 0)
        delays = candidates if report.delay_us else 0
        required = {"candidates": candidates, "warmups": WARMUPS * candidates, "delays": delays}
        required["timed"] = REPEATS * candidates
        yield Check(
            "tuning-counts",
            leg.name,
            _counted(counts),
            f"{WARMUPS} warm-ups, {1 if delays else 0} delays and {REPEATS} timed launches for each candidate",
            candidates >= report.tuned > 0 and counts == required,
        )


def _hits(legs: Sequence[Leg]) -> Iterator[Check]:
    """A process that loads its plans times nothing."""
    for leg in legs:
        if leg.kind in ("sequential", "concurrent", "replay"):
            counts = leg.plans.tuning if leg.plans is not None else None
            good = counts is not None and not any(counts.values())
            yield Check("hit-launches-nothing", leg.name, _counted(counts), "0 candidates timed", good)


def _sanitized(legs: Sequence[Leg]) -> Iterator[Check]:
    """Each tool ran to its summary and counted nothing."""
    for leg in legs:
        if leg.kind == "sanitizer":
            counts = {} if leg.suite is None else dict(leg.suite.counts)
            yield Check(
                "sanitizer-clean", leg.name, _counted(counts), "0 errors", bool(counts) and not any(counts.values())
            )


def _counted(counts: object) -> str:
    if not isinstance(counts, dict) or not counts:
        return "not counted"
    return ", ".join(f"{value} {name}" for name, value in sorted(counts.items()))


def _replays(plan: Plan, legs: Sequence[Leg]) -> Iterator[Check]:
    """The fresh processes said the same of their plans, line for line but for their pids."""
    planned = [leg.name for leg in plan.legs if leg.kind == "replay"]
    reports = [leg.plans for leg in legs if leg.kind == "replay" and leg.plans is not None]
    distinct = [report for number, report in enumerate(reports) if report not in reports[:number]]
    arms = {leg.arm for leg in legs if leg.kind == "replay"}
    yield Check(
        "replays-equal",
        "run",
        f"{len(reports)} reports, {len(distinct)} distinct, arms {', '.join(sorted(arms)) or 'none'}",
        f"{len(planned)} equal reports of fresh processes, both arms",
        len(reports) == len(planned) > 1 and len(distinct) == 1 and arms == {"A", "B"},
    )


def _concurrent(plan: Plan, legs: Sequence[Leg]) -> Iterator[Check]:
    """The sequential prompts at once: what one request does to another's state shows as another text.

    A batch of another shape may round otherwise, so completions need not stay equal; they must begin alike.
    """
    alone = {leg.arm: leg for leg in legs if leg.kind == "sequential"}
    for leg in legs:
        if leg.kind != "concurrent":
            continue
        bad = [item for item in leg.requests if item.error is not None or item.output_tokens != plan.output_tokens]
        peak = leg.load.peak_in_flight if leg.load else None
        yield Check(
            "concurrent-counts",
            leg.name,
            f"{len(leg.texts)} completions, {len(bad)} wrong, {peak} in flight",
            f"{leg.concurrency} completions with {plan.output_tokens} tokens, all in flight at once",
            len(leg.texts) == leg.concurrency == peak and not bad,
        )
        twin = alone.get(leg.arm)
        texts = twin.texts if twin is not None else ()
        pieces = [len(text) * SHARED_TOKENS // max(plan.output_tokens, 1) for text in texts]
        same = sum(one[:n] == two[:n] for one, two, n in zip(texts, leg.texts, pieces, strict=False))
        yield Check(
            "concurrent-begins-alike",
            leg.name,
            f"{same} of {len(leg.texts)} begin as when sent alone",
            f"all of them, over the first {SHARED_TOKENS} tokens' length of text",
            0 < same == len(leg.texts) == len(texts),
        )
