"""Files of the three formats, and whether they match an environment."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import PlanDocumentError
from kernels.plans import flashinfer_file, oracle
from kernels.plans.flashinfer import GB10_ORACLE, KNOWN_VERSIONS, match, mismatches, parse_upstream
from kernels.plans.flashinfer_file import generation
from kernels.plans.flashinfer_key import RUNNER, key_text
from kernels.plans.upstream import FORMAT_06, FORMAT_0618, FORMAT_07, Environment, UpstreamDocument
from kernels.tactics import CUTLASS_TACTICS, Tactic, TacticSet

KEY = key_text(16, 4096, 2560)
OTHER = key_text(32, 4096, 2560)
POLICY = ["cuda_graph_profile_replays", 10, "l2_cache_policy", "cold"]
SELECTION = {"time_ms": 0.012, "runner_up_ms": None, "margin": None, "candidates": 1}
HERE_07 = replace(GB10_ORACLE, flashinfer_version="0.7.4", cutlass_dsl_version="4.6.1")
HERE_0618 = replace(GB10_ORACLE, flashinfer_version="0.6.18")


def file(entries: dict[str, Any], here: Environment = GB10_ORACLE, *, signed: bool = False, **beside: Any) -> bytes:
    document = {"_metadata": here.stated(), **beside, **entries}
    if signed:
        document["_generation"] = generation(document)
    return json.dumps(document, indent=2).encode()


def read(data: bytes) -> UpstreamDocument:
    return parse_upstream(data, "tuned.json")


def refusal(data: bytes, here: Environment | None = None) -> PlanDocumentError:
    with pytest.raises(PlanDocumentError) as caught:
        document = read(data)
        if here is not None:
            match(document, here, "tuned.json")
    return caught.value


def test_the_oracle_is_a_document_of_0_6_13() -> None:
    document = read(oracle.document_bytes())
    assert (document.format, document.version, document.layout) == (FORMAT_06, "0.6.13", "file")
    assert (document.plans, document.foreign, document.notes) == (oracle.plans(), 0, ())
    assert [(file.path, file.size) for file in document.files] == [("tuned.json", 11_948)]
    assert document.files[0].sha256 == oracle.manifest()["document"]["sha256"]
    assert match(document, GB10_ORACLE, "x") == oracle.plans()


def test_a_document_of_0_6_18_has_a_generation_that_covers_its_content() -> None:
    data = file({KEY: [RUNNER, 5]}, HERE_0618, signed=True, _records={"moe": {"a": 1}})
    document = read(data)
    assert (document.format, document.version) == (FORMAT_0618, "0.6.18")
    assert (document.plans, document.foreign) == ({(16, 4096, 2560): 5}, 0)
    assert "1 namespaces of _records are no tactic plans and were ignored" in document.notes
    assert match(document, HERE_0618, "x") == document.plans


def test_one_other_tactic_under_an_old_generation_is_refused_with_the_mend() -> None:
    data = file({KEY: [RUNNER, 5]}, HERE_0618, signed=True)
    error = refusal(data.replace(b"    5\n", b"    6\n"))
    assert error.code == "generation-mismatch" and "remove _generation" in error.message
    edited = json.loads(data.replace(b"    5\n", b"    6\n"))
    del edited["_generation"]
    assert read(json.dumps(edited).encode()).plans == {(16, 4096, 2560): 6}


@pytest.mark.parametrize("value", ["x", "", None, 1, "A" * 64])
def test_a_generation_of_another_kind_is_refused(value: object) -> None:
    assert refusal(file({KEY: [RUNNER, 5]}, _generation=value)).code == "generation-mismatch"


@pytest.mark.parametrize("records", [[], None, "x", 1])
def test_records_that_are_no_object_are_refused(records: object) -> None:
    assert refusal(file({KEY: [RUNNER, 5]}, HERE_0618, _records=records)).code == "bad-records"


def test_a_document_of_0_7_keeps_the_policies() -> None:
    entries = {KEY: [RUNNER, 5, POLICY, SELECTION], OTHER: [RUNNER, 6]}
    document = read(file(entries, HERE_07, signed=True))
    assert (document.format, document.version) == (FORMAT_07, "0.7.4")
    assert document.plans == {(16, 4096, 2560): 5, (32, 4096, 2560): 6}
    assert document.policies == {(16, 4096, 2560): tuple(POLICY)}
    assert any("1 plans carry no measurement policy" in note for note in document.notes)
    assert match(document, HERE_07, "x") == document.plans


def test_three_parts_without_a_selection_are_what_0_7_2_writes() -> None:
    here = replace(HERE_07, flashinfer_version="0.7.2.post1")
    document = read(file({KEY: [RUNNER, 5, POLICY]}, here))
    assert match(document, here, "x") == {(16, 4096, 2560): 5}


VALUES = [
    [RUNNER, 5, "policy"],
    [RUNNER, 5, None],
    [RUNNER, 5, {"a": 1}],
    [RUNNER, 5, [True]],
    [RUNNER, 5, [1.5]],
    [RUNNER, 5, [["a"]]],
    [RUNNER, 5, ["a"] * 17],
    [RUNNER, 5, POLICY, None],
    [RUNNER, 5, POLICY, [1]],
    [RUNNER, 5, POLICY, {"time_ms": "1"}],
    [RUNNER, 5, POLICY, {"time_ms": True}],
    [RUNNER, 5, POLICY, SELECTION, 1],
    [RUNNER],
    [],
]


@pytest.mark.parametrize("value", VALUES)
def test_a_value_that_0_7_does_not_write_refuses_the_document(value: list[Any]) -> None:
    error = refusal(file({OTHER: [RUNNER, 6, POLICY], KEY: value}, HERE_07))
    assert error.code == "bad-value" and "(16, 1280)" in error.message


def test_a_policy_in_a_document_of_0_6_is_refused() -> None:
    assert "writes [runner, tactic]" in refusal(file({KEY: [RUNNER, 5, POLICY]})).message


@pytest.mark.parametrize("version", [None, "*"])
def test_without_a_version_the_content_tells_the_format(version: str | None) -> None:
    metadata = {**GB10_ORACLE.stated(), "flashinfer_version": version}
    for value, kind in ([RUNNER, 5], FORMAT_06), ([RUNNER, 5, POLICY], FORMAT_07):
        document = read(json.dumps({"_metadata": metadata, KEY: value}).encode())
        assert (document.format, document.version) == (kind, version)


def test_a_document_without_metadata_can_be_read_but_not_matched() -> None:
    for data in json.dumps({KEY: [RUNNER, 5]}), json.dumps({"_metadata": None, KEY: [RUNNER, 5]}):
        document = read(data.encode())
        assert document.metadata is None and document.plans == {(16, 4096, 2560): 5}
        assert any("no _metadata" in note for note in document.notes)
        assert len(mismatches(document, GB10_ORACLE)) == 6
        assert refusal(data.encode(), GB10_ORACLE).code == "metadata-mismatch"


def test_another_device_can_be_read_but_not_matched() -> None:
    data = file({KEY: [RUNNER, 5]}, replace(GB10_ORACLE, gpu="NVIDIA RTX PRO 6000"))
    assert read(data).plans == {(16, 4096, 2560): 5}
    error = refusal(data, GB10_ORACLE)
    assert error.code == "metadata-mismatch"
    assert "gpu ('NVIDIA RTX PRO 6000' in the document, 'NVIDIA GB10' here)" in error.message


def test_every_differing_field_is_named_at_once() -> None:
    document = read(file({}, replace(GB10_ORACLE, gpu="x", cuda_version="12.9", cudnn_version="*")))
    assert [item.field for item in mismatches(document, GB10_ORACLE)] == ["cuda_version", "gpu"]


def test_a_star_is_said_in_the_notes() -> None:
    document = read(file({}, replace(GB10_ORACLE, gpu="*", cuda_version="*")))
    assert document.notes == ("made to match anything in: cuda_version, gpu",)


def test_0_7_binds_the_dsl_version_and_0_6_does_not() -> None:
    data = file({KEY: [RUNNER, 5]}, HERE_07)
    assert "cutlass_dsl_version" in refusal(data, replace(HERE_07, cutlass_dsl_version="4.7")).message
    assert "'not stated' here" in refusal(data, replace(HERE_07, cutlass_dsl_version=None)).message
    anything = file({KEY: [RUNNER, 5]}, replace(HERE_07, flashinfer_version="*"))
    assert match(read(anything), GB10_ORACLE, "x") == {(16, 4096, 2560): 5}


@pytest.mark.parametrize("version", KNOWN_VERSIONS)
def test_ids_of_a_version_whose_list_was_compared_are_taken(version: str) -> None:
    here = replace(HERE_07, flashinfer_version=version)
    assert match(read(file({KEY: [RUNNER, 31]}, here)), here, "x") == {(16, 4096, 2560): 31}
    assert refusal(file({KEY: [RUNNER, 32]}, here)).code == "unknown-tactic"


@pytest.mark.parametrize("version", ["0.6.14", "0.7.0rc3", "0.8.0", "0.6.13+cu130", "main"])
def test_ids_of_another_version_are_shown_but_not_taken(version: str) -> None:
    here = replace(HERE_07, flashinfer_version=version)
    data = file({KEY: [RUNNER, 47]}, here)
    document = read(data)
    assert document.plans == {(16, 4096, 2560): 47}
    assert any("number tactics differently" in note for note in document.notes)
    error = refusal(data, here)
    assert error.code == "unknown-version" and version in error.message and "0.6.13" in error.message


def test_the_first_plan_that_means_something_else_here_is_named() -> None:
    tactics = tuple(tactic for tactic in CUTLASS_TACTICS if isinstance(tactic, Tactic))
    swapped = (replace(tactics[0], id=1), replace(tactics[1], id=0), *tactics[2:])
    document = read(file({KEY: [RUNNER, 2], OTHER: [RUNNER, 1]}))
    with pytest.raises(PlanDocumentError, match="M=32 N=4096 K=2560 means 1:") as caught:
        match(document, GB10_ORACLE, "x", TacticSet(RUNNER, 2, swapped))
    assert caught.value.code == "foreign-tactic"


def test_an_id_that_the_local_set_lacks_is_unknown() -> None:
    tactics = TacticSet(RUNNER, 2, CUTLASS_TACTICS.tactics[:8])
    document = read(file({KEY: [RUNNER, 8]}))
    with pytest.raises(PlanDocumentError, match="of which 8 are here") as caught:
        match(document, GB10_ORACLE, "x", tactics)
    assert caught.value.code == "unknown-tactic"
    assert match(read(file({KEY: [RUNNER, 7]})), GB10_ORACLE, "x", tactics) == {(16, 4096, 2560): 7}


def test_the_fallback_id_is_no_plan() -> None:
    assert "-1 is the fallback" in refusal(file({KEY: [RUNNER, -1]})).message


def test_padded_scales_and_one_element_alphas_are_counted_in_the_notes() -> None:
    one = KEY.replace("4096), (), ", "4096), (1,), ")
    notes = read(file({one: [RUNNER, 5], key_text(16, 5000, 2560): [RUNNER, 5]})).notes
    assert notes == (
        "1 plans have scales padded to 4 and 128 in their keys",
        "1 plans were tuned with a one-element alpha",
    )


def test_two_forms_of_one_shape_are_one_plan_too_many() -> None:
    for changed in KEY.replace("4096), (), ", "4096), (1,), "), KEY.replace(", ", ","):
        assert refusal(file({KEY: [RUNNER, 5], changed: [RUNNER, 5]})).code == "duplicate-plan"


def test_more_entries_than_allowed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flashinfer_file, "MAX_ENTRIES", 65)
    assert len(read(oracle.document_bytes()).plans) == 64
    monkeypatch.setattr(flashinfer_file, "MAX_ENTRIES", 64)
    assert refusal(oracle.document_bytes()).code == "too-many-entries"


def test_documents_of_other_kinds_are_called_by_their_name() -> None:
    native = {"_metadata": {"format": "vllm.cpp_nvfp4_autotune_v1"}, "plans": []}
    entry = {"key": KEY, "runner": RUNNER, "tactic": 4}
    manifest = {**HERE_07.stated(), "cache_schema": "v2"}
    for document, word in (native, "native"), (entry, "managed store"), (manifest, "managed store"):
        error = refusal(json.dumps(document).encode())
        assert error.code == "not-flashinfer" and word in error.message


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.sampled_from([RUNNER]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
VALUE = JSON | st.tuples(st.just(RUNNER), JSON, JSON, JSON).map(list) | st.tuples(st.just(RUNNER), JSON).map(list)
METADATA = st.dictionaries(st.sampled_from(list(HERE_07.stated())), JSON | st.just("*") | st.just("0.7.4"))
NAMES = st.sampled_from(
    [KEY, OTHER, "_records", "_generation", "key", "plans", "cache_schema", "('fp4_gemm'", "\ud800"]
)


@settings(max_examples=500)
@given(JSON | METADATA, st.dictionaries(NAMES | st.text(max_size=5), VALUE, max_size=6))
def test_any_json_object_is_read_or_refused_cleanly(metadata: object, entries: dict[str, Any]) -> None:
    data = json.dumps({"_metadata": metadata, **entries}).encode()
    try:
        document = read(data)
        assert set(document.plans) <= {(16, 4096, 2560), (32, 4096, 2560)}
        match(document, HERE_07, "x")
    except PlanDocumentError as error:
        assert error.message.isprintable()


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_cleanly(data: bytes) -> None:
    try:
        read(data)
    except PlanDocumentError as error:
        assert error.code
