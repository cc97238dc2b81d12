"""Writing FlashInfer's files, reading them back, and what one changed byte does to them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.buckets import hybrid_m_bucket
from kernels.errors import PlanDocumentError
from kernels.plans import oracle
from kernels.plans.flashinfer import (
    EXPORT_VERSIONS,
    GB10_ORACLE,
    Environment,
    export_flashinfer,
    match,
    parse_upstream,
)
from kernels.plans.flashinfer_key import RUNNER, Shape
from kernels.plans.key import PlanKey
from kernels.plans.upstream import FORMAT_06, FORMAT_0618, FORMAT_07, Policy
from kernels.tactics import CUTLASS_TACTICS, Tactic, TacticSet

SHAPE: Shape = (16, 4096, 2560)
SHAPES = st.tuples(
    st.integers(1, 2**31).map(hybrid_m_bucket),
    st.integers(1, 2**31 - 1),
    st.integers(1, 2**27 - 1).map(lambda b: 16 * b),
)
PLANS = st.dictionaries(SHAPES, st.integers(0, 31), max_size=20)
POLICIES = st.lists(st.none() | st.integers(-(2**63), 2**63) | st.text(max_size=20), max_size=16).map(tuple)
FORMATS = {"0.6.13": FORMAT_06, "0.6.18": FORMAT_0618, "0.7.2.post1": FORMAT_07, "0.7.4": FORMAT_07}


def here(version: str) -> Environment:
    dsl = "4.6.1" if version.startswith("0.7") else None
    return replace(GB10_ORACLE, flashinfer_version=version, cutlass_dsl_version=dsl)


def refusal(version: str = "0.6.13", environment: Environment | None = None, plans: object = None) -> PlanDocumentError:
    with pytest.raises(PlanDocumentError) as caught:
        export_flashinfer(plans or {SHAPE: 5}, environment or here(version), version)  # type: ignore[arg-type, type-var]
    return caught.value


def test_the_oracle_is_exported_byte_for_byte_as_flashinfer_saved_it() -> None:
    data = export_flashinfer(oracle.plans(), GB10_ORACLE, "0.6.13")
    assert len(data) == 11_947
    assert hashlib.sha256(data).hexdigest() == "b41a8ecc18d69174b20263ee85be097d2dd5cf717efd65a03eb466c0c99cf677"


@given(PLANS, st.sampled_from(EXPORT_VERSIONS))
def test_whatever_is_exported_is_imported_again(plans: dict[Shape, int], version: str) -> None:
    document = parse_upstream(export_flashinfer(plans, here(version), version), "x")
    assert match(document, here(version), "x") == plans
    assert (document.format, document.version, document.foreign) == (FORMATS[version], version, 0)
    assert list(document.plans) == sorted(plans)


@given(st.dictionaries(SHAPES, st.tuples(st.integers(0, 31), POLICIES), max_size=8))
def test_policies_make_the_round_trip(entries: dict[Shape, tuple[int, Policy]]) -> None:
    plans = {shape: tactic for shape, (tactic, _) in entries.items()}
    policies = {shape: policy for shape, (_, policy) in entries.items()}
    document = parse_upstream(export_flashinfer(plans, here("0.7.4"), "0.7.4", policies=policies), "x")
    assert (document.plans, document.policies) == (plans, policies)


@given(PLANS, st.randoms())
def test_the_bytes_do_not_depend_on_the_order_given(plans: dict[Shape, int], random: object) -> None:
    rows = list(plans.items())
    random.shuffle(rows)  # type: ignore[attr-defined]
    assert export_flashinfer(dict(rows), GB10_ORACLE, "0.6.13") == export_flashinfer(plans, GB10_ORACLE, "0.6.13")


def test_keys_are_in_the_order_of_text_and_metadata_comes_first() -> None:
    plans = {(m, 4096, 2560): 1 for m in (1, 2, 16, 128, 1024)}
    text = export_flashinfer(plans, here("0.7.4"), "0.7.4").decode()
    document = json.loads(text)
    assert [key.split("((")[-1].split(",")[0] for key in list(document)[1:-1]] == ["1", "1024", "128", "16", "2"]
    assert (next(iter(document)), list(document)[-1], text[-1]) == ("_metadata", "_generation", "}")
    assert list(document["_metadata"])[-2:] == ["cutlass_dsl_version", "gpu"]
    assert document[list(document)[1]] == [RUNNER, 1]


def test_unaligned_shapes_are_filed_under_scales_as_they_are_allocated() -> None:
    text = export_flashinfer({(16, 5000, 6160): 1}, GB10_ORACLE, "0.6.13").decode()
    assert "((16, 3080), (3080, 5000), (-1, 388), (388, 5120), (), (0,), (-1, 5000)" in text


def test_plans_of_the_cache_are_exported_by_their_shape() -> None:
    key = PlanKey(*SHAPE, 0, 121, 0, 2)
    assert export_flashinfer({key: 5}, GB10_ORACLE, "0.6.13") == export_flashinfer({SHAPE: 5}, GB10_ORACLE, "0.6.13")
    assert refusal(plans={key: 5, key._replace(device_ordinal=1): 6}).code == "duplicate-plan"


@pytest.mark.parametrize("version", ["0.6.12", "0.6.14", "0.8.0", "", "0.7"])
def test_a_version_whose_tactics_are_unknown_is_not_written(version: str) -> None:
    error = refusal(version)
    assert error.code == "unknown-version" and "known are 0.6.13" in error.message


def test_a_file_that_its_reader_would_ignore_is_not_written() -> None:
    assert refusal("0.7.4", here("0.6.13")).code == "version-mismatch"
    error = refusal("0.7.4", replace(here("0.7.4"), cutlass_dsl_version=None))
    assert error.code == "no-dsl-version" and "* for any" in error.message


@pytest.mark.parametrize(
    ("shape", "code"), [((3, 64, 64), "bad-shape"), ((16, 0, 64), "bad-shape"), ((16, 64, 24), "bad-shape")]
)
def test_what_is_no_shape_of_a_plan_is_not_written(shape: Shape, code: str) -> None:
    assert refusal(plans={shape: 1}).code == code


@pytest.mark.parametrize("tactic", [-1, 32])
def test_what_is_no_tactic_is_not_written(tactic: int) -> None:
    assert refusal(plans={SHAPE: tactic}).code == "unknown-tactic"


@dataclass(frozen=True)
class Own:
    id: int
    descriptor: str


def test_plans_of_another_tactic_set_are_not_written() -> None:
    for tactics, code in (
        (TacticSet("CpuFp4", 1, (Own(5, "5:x;"),)), "unknown-runner"),
        (TacticSet(RUNNER, 2, (Own(5, "5:x;"),)), "foreign-tactic"),
    ):
        with pytest.raises(PlanDocumentError) as caught:
            export_flashinfer({SHAPE: 5}, GB10_ORACLE, "0.6.13", tactics=tactics)
        assert caught.value.code == code


def test_policies_belong_to_0_7_and_to_plans() -> None:
    for version, shape in ("0.6.13", SHAPE), ("0.7.4", (32, 4096, 2560)):
        with pytest.raises(PlanDocumentError) as caught:
            export_flashinfer({SHAPE: 5}, here(version), version, policies={shape: ("hot",)})
        assert caught.value.code == "no-policy"


def tactic_bytes(data: bytes) -> set[int]:
    """Where tactic ids stand, each with the blank before it, for `    4` can become `   14`.

    Nothing in a 0.6.13 document vouches for these bytes.
    """
    found: set[int] = set()
    for line in re.finditer(rb"\n    (\d+)\n", data):
        found.update(range(line.start(1) - 1, line.end(1)))
    return found


def check_mutation(source: bytes, plans: Mapping[Shape, int], at: int, byte: int) -> None:
    """Refused as a unit; or the same plans and only a blank changed; or one tactic id became another."""
    changed = source[:at] + bytes([byte]) + source[at + 1 :]
    try:
        found = match(parse_upstream(changed, "x"), GB10_ORACLE, "x")
    except PlanDocumentError:
        return
    if at in tactic_bytes(source):
        assert found.keys() == plans.keys()
        assert sum(found[shape] != plans[shape] for shape in plans) <= 1
        return
    assert found == plans
    blanks = bytes([byte, source[at]]).isspace()
    assert byte == source[at] or blanks, f"{source[at : at + 1]!r} became {bytes([byte])!r} at byte {at}"


SOURCE = oracle.document_bytes()


@settings(max_examples=1000)
@given(st.integers(0, len(SOURCE) - 1), st.integers(0, 255))
def test_one_changed_byte_is_refused_or_changes_nothing_but_blanks(at: int, byte: int) -> None:
    check_mutation(SOURCE, oracle.plans(), at, byte)


# All buckets of one weight, so that no M can become another one that is free: a quarter of the time of all 64.
COLUMN = {shape: tactic for shape, tactic in oracle.plans().items() if shape[1:] == (5120, 6144)}
SMALL = export_flashinfer(COLUMN, GB10_ORACLE, "0.6.13")
START = SMALL.index(b'  "(')
ENTRY = range(START, SMALL.index(b'  "(', START + 1))


@pytest.mark.parametrize("at", ENTRY)
def test_no_byte_of_an_entry_can_change_unnoticed(at: int) -> None:
    for byte in range(256):
        check_mutation(SMALL, COLUMN, at, byte)


def test_a_generation_also_covers_the_tactics() -> None:
    data = export_flashinfer(oracle.plans(), here("0.7.4"), "0.7.4")
    ids = [at for at, byte in enumerate(data) if byte == ord("\n") and data[at + 1 : at + 6].strip().isdigit()]
    assert len(ids) == 64
    for at in ids:
        digit = at + 5
        other = data[:digit] + (b"1" if data[digit : digit + 1] != b"1" else b"2") + data[digit + 1 :]
        with pytest.raises(PlanDocumentError) as caught:
            parse_upstream(other, "x")
        assert caught.value.code == "generation-mismatch"


def test_a_set_of_equal_descriptors_is_as_good_as_the_one_of_the_package() -> None:
    tactics = TacticSet(RUNNER, 2, tuple(tactic for tactic in CUTLASS_TACTICS if isinstance(tactic, Tactic))[:6])
    assert export_flashinfer({SHAPE: 5}, GB10_ORACLE, "0.6.13", tactics=tactics) == export_flashinfer(
        {SHAPE: 5}, GB10_ORACLE, "0.6.13"
    )
