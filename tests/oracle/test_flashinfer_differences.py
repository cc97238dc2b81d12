"""The real loaders, our reader and our model of the real loaders over every mutated document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kernels.plans import oracle
from kernels.plans.audit_model import METADATA_FIELDS, Prediction, predict
from tests.oracle.differences import Ours, Theirs, differ, listed, ours, theirs
from tests.oracle.flashinfer_env import FIRST, LATER, Sources, encode
from tests.oracle.mutations import OTHER_RUNNER, REFERENCE, RUNNER, Mutation, metadata, mutations

VERSIONS = (FIRST, LATER)
Shape = tuple[int, int, int]
# A plan that another runner's class name or number runs is found by the look-up, under whatever fate it has.
FOUND = {"crash-at-gemm", "default-config", "hit", "re-profiled", "wrong-runner", "wrong-tactic"}


class Observed:
    """One version: each mutation, what we make of it, and what its loader made of it."""

    def __init__(self, sources: Sources, version: str) -> None:
        self.version = version
        self.mutations = mutations(version)
        self.ours: Mapping[str, Ours] = {mutation.name: ours(mutation, version) for mutation in self.mutations}
        self.answers: Mapping[str, dict[str, Any]] = dict(
            zip(self.ours, sources.ask(version, [self._probe(mutation) for mutation in self.mutations]), strict=True)
        )
        self.theirs: Mapping[str, Theirs] = {name: theirs(answer) for name, answer in self.answers.items()}

    def shapes(self, name: str) -> list[Shape]:
        """The shapes to look up: the reference first, then all of the oracle and whatever else we take from it."""
        others = sorted({*oracle.plans(), *self.ours[name].plans} - {REFERENCE})
        return [REFERENCE, *others]

    def _probe(self, mutation: Mutation) -> dict[str, Any]:
        request = {"do": "probe", "document": encode(mutation.data), "metadata": metadata(self.version)}
        return {**request, "shapes": self.shapes(mutation.name)}


@pytest.fixture(scope="module", params=VERSIONS)
def observed(sources: Sources, request: pytest.FixtureRequest) -> Observed:
    return Observed(sources, request.param)


def test_the_unchanged_document_is_taken_alike(observed: Observed) -> None:
    assert observed.ours["nothing"].plans == oracle.plans()
    assert observed.theirs["nothing"].found == {shape: str(tactic) for shape, tactic in oracle.plans().items()}
    assert observed.theirs["nothing"].wrong == ()


def test_the_two_sides_differ_exactly_where_the_list_says(observed: Observed) -> None:
    found = {name for name, own in observed.ours.items() if differ(observed.theirs[name], own)}
    deliberate = set(listed(observed.version))
    assert found - deliberate == set(), "not listed: decide, then add them to differences.json or mend the reader"
    assert deliberate - found == set(), "no differences any more: take them off differences.json"


def test_each_listed_difference_is_what_was_observed(observed: Observed) -> None:
    for name, row in listed(observed.version).items():
        seen = (observed.theirs[name].text(REFERENCE), observed.ours[name].text())
        assert seen == (row.theirs[observed.version], row.ours), name


def test_nothing_that_we_take_runs_otherwise_upstream(observed: Observed) -> None:
    """Beyond the list: of the documents that both load, no shared shape has two tactics."""
    for name, own in observed.ours.items():
        upstream = observed.theirs[name].found
        both = own.plans.keys() & upstream.keys()
        assert {shape: str(own.plans[shape]) for shape in both} == {shape: upstream[shape] for shape in both}, name


def test_the_metadata_that_is_compared_is_what_the_tuner_collects(sources: Sources) -> None:
    for version in VERSIONS:
        (collected,) = sources.ask(version, [{"do": "metadata"}])
        assert tuple(collected) == tuple(metadata(version)) == METADATA_FIELDS[version]


def predictions(observed: Observed, runners: tuple[str, ...]) -> dict[str, Prediction]:
    where = metadata(observed.version)
    return {mutation.name: predict(mutation.data, observed.version, where, runners) for mutation in observed.mutations}


def test_the_audit_foresees_what_loading_does(observed: Observed) -> None:
    for name, expected in predictions(observed, (RUNNER,)).items():
        outcome = {"loaded": True, "ignored": False, "raises": expected.error}[expected.load]
        assert (outcome, len(expected.installed)) == (observed.theirs[name].loaded, observed.theirs[name].installed), (
            name
        )


@pytest.mark.parametrize(("asked", "runners"), [("alone", (RUNNER,)), ("behind", (OTHER_RUNNER, RUNNER))])
def test_the_audit_foresees_every_look_up(observed: Observed, asked: str, runners: tuple[str, ...]) -> None:
    for name, expected in predictions(observed, runners).items():
        seen = {(m, n, k): (at, tactic) for m, n, k, at, tactic in observed.answers[name][asked]}
        for shape in observed.shapes(name):
            answer = expected.lookup(*shape)
            foreseen = (answer.runner_index, repr(answer.tactic)) if answer.hit else None
            if seen.get(shape, (0, ""))[1].startswith("raises"):
                continue  # judged by its fate below
            assert foreseen == seen.get(shape), (name, shape)


def test_the_audit_foresees_whether_a_tuning_run_times_the_reference_again(observed: Observed) -> None:
    for name, expected in predictions(observed, (RUNNER,)).items():
        answer = observed.answers[name]
        if expected.load == "raises":
            assert answer["entered"] == expected.error, name
            continue
        reference = observed.theirs[name].found.get(REFERENCE, "")
        assert answer["entered"] is True or reference == f"raises {answer['entered']}", name
        if reference.startswith("raises"):
            continue
        timed = 0 if expected.lookup(*REFERENCE, tuning=True).hit else 32
        assert timed == answer["timed"], name


def test_the_audit_names_a_fate_for_each_entry_that_the_look_ups_confirm(observed: Observed) -> None:
    for name, expected in predictions(observed, (RUNNER,)).items():
        found = observed.theirs[name].found
        for entry in expected.entries:
            if entry.fate == "crash-at-load":
                continue  # 0.7 has the entry in before its policy stops the loading, 0.6.13 has not
            # An entry of a shape that two entries claim, or of another alpha, is not what these look-ups ask for.
            if entry.shape in oracle.plans() and "alpha" not in name and "duplicate" not in name:
                assert (entry.fate in FOUND) == (entry.shape in found), (name, entry)
