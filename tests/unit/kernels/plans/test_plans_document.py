from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.buckets import hybrid_m_bucket
from kernels.errors import PlanDocumentError, SettingsError
from kernels.plans.document import (
    _plan,
    _PlanReader,
    key_for,
    merge,
    merge_document,
    parse,
    parse_document,
    serialise,
    serialise_document,
)
from kernels.plans.key import PlanKey
from kernels.plans.metadata import Metadata
from kernels.tactics import CUTLASS_TACTICS

METADATA = Metadata(
    architecture=121,
    build_id="build-1",
    cuda_driver="13000",
    cuda_runtime="13000",
    cutlass_version="4.5.0",
    delay_microseconds=5000,
    device_ordinal=0,
    gpu="NVIDIA GB10",
    tactic_descriptor_digest=CUTLASS_TACTICS.digest,
    tactic_set_version=2,
)
PLANS = {key_for(METADATA, 2, 5120, 6144): 4, key_for(METADATA, 16, 5120, 6144): 0}
DATA = serialise(METADATA, CUTLASS_TACTICS, PLANS)


def read(data: bytes, expected: Metadata = METADATA) -> dict[PlanKey, int]:
    return parse(data, expected, CUTLASS_TACTICS, "plans.json")


def edited(edit: Callable[[dict[str, Any]], object]) -> bytes:
    document = json.loads(DATA)
    edit(document)
    return json.dumps(document).encode()


SHAPES = st.tuples(
    st.integers(1, 2**31).map(hybrid_m_bucket),
    st.integers(1, 2**31 - 1),
    st.integers(1, 2**27 - 1).map(lambda k: 16 * k),
)


@given(st.dictionaries(SHAPES, st.integers(0, 31), max_size=20))
def test_a_document_reads_back_sorted_and_always_has_the_same_bytes(shapes: dict[tuple[int, int, int], int]) -> None:
    plans = {key_for(METADATA, *shape): tactic for shape, tactic in shapes.items()}
    data = serialise(METADATA, CUTLASS_TACTICS, plans)
    assert list(read(data).items()) == sorted(plans.items())
    assert serialise(METADATA, CUTLASS_TACTICS, dict(reversed(plans.items()))) == data


def test_the_written_form_is_indented_sorted_and_ends_with_a_line_feed() -> None:
    document = json.loads(DATA)
    assert (json.dumps(document, indent=2, sort_keys=True) + "\n").encode() == DATA
    assert list(document) == ["_metadata", "plans"]
    assert document["plans"][0]["runner"] == "CutlassFp4GemmRunner"
    assert [plan["m_bucket"] for plan in document["plans"]] == [2, 16]


def test_unknown_fields_are_tolerated_everywhere() -> None:
    def add(document: dict[str, Any]) -> None:
        document["later"] = document["_metadata"]["later"] = document["plans"][0]["later"] = {"x": [1]}

    assert read(edited(add)) == PLANS


def test_a_merge_keeps_what_a_later_version_wrote_wherever_it_stays_true() -> None:
    first, second = PLANS

    def add(document: dict[str, Any]) -> None:
        document["later"] = {"x": [1.5, None]}
        document["_metadata"]["later"] = "unchecked"
        for plan in document["plans"]:
            plan["time_us"] = 20.5

    prior = parse_document(edited(add), METADATA, CUTLASS_TACTICS, "x")
    new = key_for(METADATA, 1, 5120, 6144)
    data = serialise_document(METADATA, CUTLASS_TACTICS, merge_document({new: 1, first: 31, second: 0}, prior))
    written = json.loads(data)
    assert written["later"] == {"x": [1.5, None]}
    assert "later" not in written["_metadata"]
    assert [(plan["tactic_id"], plan.get("time_us")) for plan in written["plans"]] == [(1, None), (31, None), (0, 20.5)]
    assert serialise_document(METADATA, CUTLASS_TACTICS, parse_document(data, METADATA, CUTLASS_TACTICS, "x")) == data


def test_unknown_fields_cannot_stand_in_for_known_ones() -> None:
    prior = parse_document(DATA, METADATA, CUTLASS_TACTICS, "x")
    forged = replace(prior, fields={"plans": [], "_metadata": {}}, plan_fields={key: {"tactic_id": 9} for key in PLANS})
    assert serialise_document(METADATA, CUTLASS_TACTICS, forged) == DATA


def test_plans_of_another_runtime_are_never_written_under_this_ones_name() -> None:
    other = replace(METADATA, device_ordinal=1)
    with pytest.raises(PlanDocumentError) as caught:
        serialise(METADATA, CUTLASS_TACTICS, {key_for(other, 1, 5120, 6144): 0})
    assert caught.value.code == "runtime-mismatch"


OTHER = {
    field.name: 4242 if isinstance(getattr(METADATA, field.name), int) else "another"
    for field in fields(Metadata)
    if field.name != "extra"
} | {"output_dtype_id": 42}


@pytest.mark.parametrize("field", sorted(OTHER))
def test_a_document_of_another_runtime_is_refused_naming_the_field_and_both_values(field: str) -> None:
    data = edited(lambda document: document["_metadata"].update({field: OTHER[field]}))
    with pytest.raises(PlanDocumentError, match=f"^NVFP4 cache metadata mismatch for {field} ") as caught:
        read(data)
    assert caught.value.code == "metadata-mismatch"
    assert repr(OTHER[field]) in caught.value.message and repr(getattr(METADATA, field)) in caught.value.message


def test_a_mismatch_lists_every_field_that_differs() -> None:
    other = replace(METADATA, gpu="NVIDIA RTX PRO 6000", architecture=120)
    with pytest.raises(PlanDocumentError) as caught:
        read(serialise(other, CUTLASS_TACTICS, {}))
    assert "architecture (120 in" in caught.value.message and "gpu ('NVIDIA RTX PRO 6000' in" in caught.value.message


@pytest.mark.parametrize("field", sorted(OTHER))
@pytest.mark.parametrize("value", ["absent", None, True, 1.0, []])
def test_a_missing_or_mistyped_metadata_field_is_refused_by_name(field: str, value: object) -> None:
    def edit(document: dict[str, Any]) -> None:
        document["_metadata"][field] = value
        if value == "absent":
            del document["_metadata"][field]

    with pytest.raises(PlanDocumentError, match=field) as caught:
        read(edited(edit))
    assert caught.value.code == ("missing-field" if value == "absent" else "wrong-type")


PLAN_FAULTS = [
    ("m_bucket", 3, "bad-shape"),
    ("m_bucket", 0, "bad-shape"),
    ("m_bucket", 2**32 - 1, "bad-shape"),
    ("m_bucket", 2**32, "out-of-range"),
    ("n", 0, "bad-shape"),
    ("n", 2**31, "out-of-range"),
    ("k", 6136, "bad-shape"),
    ("k", -16, "bad-shape"),
    ("tactic_id", 32, "unknown-tactic"),
    ("tactic_id", -1, "unknown-tactic"),
    ("tactic_id", 2**63, "out-of-range"),
    ("tactic_id", True, "wrong-type"),
    ("tactic_id", 4.0, "wrong-type"),
    ("runner", "CutlassFp4GemmRunnerX", "unknown-runner"),
    ("fp4_layout", "e2m1", "layout-disagrees"),
    ("scale_layout", "linear", "layout-disagrees"),
    ("architecture", 120, "key-disagrees"),
    ("device_ordinal", 1, "key-disagrees"),
    ("output_dtype", 1, "key-disagrees"),
    ("output_dtype", 256, "out-of-range"),
    ("tactic_set_version", 1, "key-disagrees"),
]


@pytest.mark.parametrize(("field", "value", "code"), PLAN_FAULTS)
def test_one_bad_plan_refuses_the_document_and_is_named(field: str, value: object, code: str) -> None:
    with pytest.raises(PlanDocumentError, match=r"plans\[1\]") as caught:
        read(edited(lambda document: document["plans"][1].update({field: value})))
    assert caught.value.code == code


ENTRY = json.loads(DATA)["plans"][1]
VALUES = st.sampled_from([-1, 0, 1, 2, 16, 31, 32, 5120, 2**31, 2**63, True, None, 1.0, 16.0, "", "x", [], {}])


@given(st.dictionaries(st.sampled_from([*ENTRY, "later"]), VALUES, max_size=3), st.sets(st.sampled_from([*ENTRY])))
def test_the_fast_way_through_an_entry_ends_as_the_slow_one(changes: dict[str, Any], gone: set[str]) -> None:
    entry = {name: value for name, value in {**ENTRY, **changes}.items() if name not in gone or len(gone) > 2}

    def ended(read: Callable[[], object]) -> object:
        try:
            return read()
        except PlanDocumentError as error:
            return error.code, error.message

    fast = ended(lambda: _PlanReader(METADATA, CUTLASS_TACTICS, "x")(entry, 1))
    assert fast == ended(lambda: _plan(entry, METADATA, CUTLASS_TACTICS, "x plans[1]"))


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("tactic_id", 32, "unknown NVFP4 persistent plan runner/tactic"),
        ("runner", "x", "unknown NVFP4 persistent plan runner/tactic"),
        ("m_bucket", 3, "invalid NVFP4 persistent plan shape/bucket"),
        ("architecture", 1, "NVFP4 persistent plan key disagrees with metadata"),
        ("scale_layout", "x", "NVFP4 persistent plan layout disagrees with metadata"),
    ],
)
def test_error_texts_begin_as_vllm_cpp_words_them(field: str, value: object, text: str) -> None:
    with pytest.raises(PlanDocumentError, match=f"^{text}"):
        read(edited(lambda document: document["plans"][0].update({field: value})))


@pytest.mark.parametrize("field", sorted(json.loads(DATA)["plans"][0]))
def test_a_plan_without_a_field_is_refused(field: str) -> None:
    with pytest.raises(PlanDocumentError, match=rf"plans\[0\] lacks {field}"):
        read(edited(lambda document: document["plans"][0].pop(field)))


@pytest.mark.parametrize("tactic", [4, 5])
def test_a_shape_given_twice_is_refused_whether_or_not_the_tactics_agree(tactic: int) -> None:
    data = edited(lambda document: document["plans"].append({**document["plans"][0], "tactic_id": tactic}))
    with pytest.raises(PlanDocumentError, match=r"^duplicate NVFP4 persistent plan key") as caught:
        read(data)
    assert caught.value.code == "duplicate-plan"


@pytest.mark.parametrize("plans", [None, {}, "x", [None], [[]]])
def test_plans_must_be_an_array_of_objects(plans: object) -> None:
    with pytest.raises(PlanDocumentError) as caught:
        read(edited(lambda document: document.update(plans=plans)))
    assert caught.value.code == "wrong-type"


def test_merging_keeps_prior_plans_and_lets_the_current_ones_win() -> None:
    shared, old, new = (key_for(METADATA, m, 5120, 6144) for m in (4, 1, 8))
    merged = merge({new: 3, shared: 2}, {shared: 1, old: 0})
    assert list(merged.items()) == [(old, 0), (shared, 2), (new, 3)]


def test_plans_of_two_runtimes_do_not_merge() -> None:
    other = replace(METADATA, device_ordinal=1)
    with pytest.raises(PlanDocumentError) as caught:
        merge(PLANS, {key_for(other, 1, 5120, 6144): 0})
    assert caught.value.code == "runtime-mismatch"


@pytest.mark.parametrize("field", sorted(OTHER))
def test_every_field_moves_the_fingerprint(field: str) -> None:
    other = replace(METADATA, **{field: OTHER[field]})
    assert other.fingerprint() != METADATA.fingerprint()


def test_namespaces_differ_wherever_two_runtimes_cannot_share_plans() -> None:
    others = [
        replace(METADATA, **{field: OTHER[field]}).namespace() for field in OTHER if field not in ("repeats", "warmups")
    ]
    assert len({METADATA.namespace(), *others}) == len(others) + 1


def test_the_namespace_has_the_published_form_and_only_safe_characters() -> None:
    assert METADATA.namespace() == (
        "vllm.cpp_nvfp4_autotune_v1/sm_121/device_0-gpu_NVIDIA_GB10/cuda_13000-driver_13000/cutlass_4.5.0/"
        "tactics_5f63ff989d840dfb-set_2/dtype_bf16-id_0-fp4_e2m1_packed_k2-sf_cutlass_8x4/"
        "timing_w3-r10-d5000-bucket_1/build_build-1/autotune_configs.json"
    )
    assert "/../" not in replace(METADATA, gpu="../../x").namespace()


def test_extra_fields_are_written_and_fingerprinted_but_never_compared() -> None:
    own = replace(METADATA, extra={"timing_method": "perf_counter"})
    assert json.loads(serialise(own, CUTLASS_TACTICS, {}))["_metadata"]["timing_method"] == "perf_counter"
    assert own.fingerprint() != METADATA.fingerprint()
    assert read(DATA, own) == PLANS


@pytest.mark.parametrize(
    "change",
    [
        {"gpu": ""},
        {"gpu": "a\nb"},
        {"device_ordinal": -1},
        {"warmups": 0},
        {"repeats": True},
        {"output_dtype_id": 256},
        {"delay_microseconds": 2**32},
        {"extra": {"gpu": "x"}},
        {"extra": {"x": [1]}},
    ],
)
def test_metadata_that_no_document_could_carry_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(SettingsError) as caught:
        replace(METADATA, **change)
    assert caught.value.code == "bad-metadata"
    assert next(iter(change)) in caught.value.message or "extra metadata" in caught.value.message


@pytest.mark.parametrize("change", [{"tactic_descriptor_digest": "0" * 16}, {"tactic_set_version": 1}])
def test_metadata_must_describe_the_tactics_in_use(change: dict[str, Any]) -> None:
    METADATA.check_tactics(CUTLASS_TACTICS)
    with pytest.raises(SettingsError, match=next(iter(change))):
        replace(METADATA, **change).check_tactics(CUTLASS_TACTICS)
