"""The model of FlashInfer against what the real packages were seen to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import KernelError, PlanDocumentError
from kernels.plans import oracle
from kernels.plans.audit import (
    METADATA_FIELDS,
    VERSIONS,
    Audit,
    Entry,
    Lookup,
    Prediction,
    assumed_environment,
    audit,
    predict,
)
from kernels.plans.flashinfer import GB10_ORACLE, parse

RUNNER = "CutlassFp4GemmRunner"
CUDNN = "CudnnFp4GemmRunner"
SOURCE = oracle.document_bytes()
SHAPE = (1, 5120, 6144)
KEY = (
    "('fp4_gemm', 'CutlassFp4GemmRunner', ((1, 3072), (3072, 5120), (-1, 384), (384, 5120), (), (0,), (-1, 5120), "
    "(0,), (0,), (-1,)), ())"
)
MISS = Lookup(False, 0, -1)
HERE = GB10_ORACLE.stated()
COLD = ["cuda_graph_profile_replays", 1, "l2_cache_policy", "cold"]
HOT = ["cuda_graph_profile_replays", 1, "l2_cache_policy", "hot"]

Change = Callable[[dict[str, Any]], object]


def environment(version: str) -> dict[str, str]:
    return {**{name: HERE.get(name, "dsl 4.3") for name in METADATA_FIELDS[version]}, "flashinfer_version": version}


def edited(change: Change, version: str = "0.6.13") -> bytes:
    document = json.loads(SOURCE)
    document["_metadata"] = environment(version)
    change(document)
    return json.dumps(document, indent=2).encode()


def seen(data: bytes, version: str = "0.6.13", runners: tuple[str, ...] = (RUNNER,)) -> Prediction:
    return predict(data, version, environment(version), runners)


def entry(found: Prediction, key: str = KEY) -> Entry:
    return next(item for item in found.entries if item.key == key)


def with_value(value: Any, version: str = "0.6.13") -> bytes:
    return edited(lambda document: document.update({KEY: value}), version)


def renamed(old: str, new: str) -> Change:
    def change(document: dict[str, Any]) -> None:
        entries = list(document.items())
        document.clear()
        document.update({key.replace(old, new) if key == KEY else key: value for key, value in entries})

    return change


def meta(**changes: Any) -> Change:
    return lambda document: document["_metadata"].update(changes)


def test_the_document_of_the_gb10_is_64_hits_in_its_own_environment() -> None:
    found = seen(SOURCE)
    assert (found.load, found.error, len(found.installed)) == ("loaded", None, 64)
    assert {item.fate for item in found.entries} == {"hit"}
    assert {item.shape: item.value[1] for item in found.entries} == oracle.plans()


def test_every_m_up_to_the_largest_bucket_hits_and_every_m_above_misses() -> None:
    found = seen(SOURCE)
    assert all(found.lookup(m, 5120, 6144).hit for m in range(2049))
    assert not any(found.lookup(m, 5120, 6144).hit for m in range(2049, 8300, 7))
    assert found.lookup(16, 5120, 6144) == Lookup(True, 0, 0)


# name, change, load, installed, look-up with [Cutlass], look-up with [Cudnn, Cutlass]; FlashInfer 0.6.13.
ROWS: list[tuple[str, Change, str, int, Lookup, Lookup]] = [
    ("gpu other", meta(gpu="NVIDIA RTX PRO 6000"), "False", 0, MISS, MISS),
    ("cuda other", meta(cuda_version="12.9"), "False", 0, MISS, MISS),
    ("gpu any", meta(gpu="*"), "True", 64, Lookup(True, 0, 4), Lookup(True, 1, 4)),
    ("gpu absent", lambda d: d["_metadata"].pop("gpu"), "False", 0, MISS, MISS),
    ("gpu null", meta(gpu=None), "False", 0, MISS, MISS),
    ("cudnn a number", meta(cudnn_version=91900), "False", 0, MISS, MISS),
    ("gpu a list of any", meta(gpu=["*"]), "False", 0, MISS, MISS),
    ("gpu with a blank", meta(gpu="NVIDIA GB10 "), "False", 0, MISS, MISS),
    ("further field", meta(driver="580"), "True", 64, Lookup(True, 0, 4), Lookup(True, 1, 4)),
    ("null metadata", lambda d: d.update(_metadata=None), "True", 64, Lookup(True, 0, 4), Lookup(True, 1, 4)),
    ("no metadata", lambda d: d.pop("_metadata"), "True", 64, Lookup(True, 0, 4), Lookup(True, 1, 4)),
    ("empty metadata", lambda d: d.update(_metadata={}), "False", 0, MISS, MISS),
    ("metadata a list", lambda d: d.update(_metadata=[]), "AttributeError", 0, MISS, MISS),
    ("metadata a number", lambda d: d.update(_metadata=1), "AttributeError", 0, MISS, MISS),
    ("empty object", lambda d: d.clear(), "True", 0, MISS, MISS),
    ("text of two letters", lambda d: d.update({KEY: "ab"}), "True", 64, Lookup(True, 0, "b"), Lookup(True, 0, "b")),
    ("policy of 0.7", lambda d: d.update({KEY: [RUNNER, 4, HOT]}), "True", 64, Lookup(True, 0, 4), Lookup(True, 1, 4)),
    ("tactic -1", lambda d: d.update({KEY: [RUNNER, -1]}), "True", 64, Lookup(True, 0, -1), Lookup(True, 1, -1)),
    ("tactic 31", lambda d: d.update({KEY: [RUNNER, 31]}), "True", 64, Lookup(True, 0, 31), Lookup(True, 1, 31)),
    ("2^63", lambda d: d.update({KEY: [RUNNER, 2**63]}), "True", 64, Lookup(True, 0, 2**63), Lookup(True, 1, 2**63)),
    ("tactic 4.5", lambda d: d.update({KEY: [RUNNER, 4.5]}), "True", 64, Lookup(True, 0, 4.5), Lookup(True, 1, 4.5)),
    ("true", lambda d: d.update({KEY: [RUNNER, True]}), "True", 64, Lookup(True, 0, True), Lookup(True, 1, True)),
    ("list", lambda d: d.update({KEY: [RUNNER, [4, 5]]}), "True", 64, Lookup(True, 0, (4, 5)), Lookup(True, 1, (4, 5))),
    ("runner of others", lambda d: d.update({KEY: [CUDNN, 4]}), "True", 64, Lookup(True, 0, 4), Lookup(True, 0, 4)),
    ("runner null", lambda d: d.update({KEY: [None, 4]}), "True", 64, Lookup(True, 0, 4), Lookup(True, 0, 4)),
    ("runner in other case", lambda d: d.update({KEY: [RUNNER.lower(), 4]}), "True", 64, *[Lookup(True, 0, 4)] * 2),
    ("unknown runner in the key", renamed(RUNNER, f"{RUNNER}X"), "True", 64, MISS, MISS),
    ("key is garbage", renamed("fp4_gemm", "garbage"), "True", 64, MISS, MISS),
    ("a note", lambda d: d.update(_note=["a", 1]), "True", 65, Lookup(True, 0, 4), Lookup(True, 1, 4)),
    ("generation of 0.7", lambda d: d.update(_generation="a1"), "True", 65, Lookup(True, 0, 4), Lookup(True, 1, 4)),
    ("double quotes", renamed("'", '"'), "True", 64, MISS, MISS),
    ("M=3 is no bucket", renamed("(1, 3072)", "(3, 3072)"), "True", 64, MISS, MISS),
    ("M negative", renamed("(1, 3072)", "(-1, 3072)"), "True", 64, MISS, MISS),
    ("two N", renamed("(-1, 5120)", "(-1, 5121)"), "True", 64, MISS, MISS),
    ("no extras", renamed(", ())", ")"), "True", 64, MISS, MISS),
    ("a leading blank", renamed("('fp4", " ('fp4"), "True", 64, MISS, MISS),
    ("63 entries", lambda d: d.pop(KEY), "True", 63, MISS, MISS),
    ("records of 0.7", lambda d: d.update(_records={}), "KeyError", 64, Lookup(True, 0, 4), Lookup(True, 1, 4)),
]


@pytest.mark.parametrize(
    ("change", "load", "installed", "alone", "after_cudnn"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_0613_loads_and_finds_as_it_was_seen_to(
    change: Change, load: str, installed: int, alone: Lookup, after_cudnn: Lookup
) -> None:
    found = seen(edited(change))
    assert {"loaded": "True", "ignored": "False"}.get(found.load, found.error) == load
    assert len(found.installed) == installed
    assert found.lookup(*SHAPE) == alone
    assert seen(edited(change), runners=(CUDNN, RUNNER)).lookup(*SHAPE) == after_cudnn


BYTES = [
    ("empty", b"", "JSONDecodeError"),
    ("cut in half", SOURCE[: len(SOURCE) // 2], "JSONDecodeError"),
    ("something behind it", SOURCE + b"x", "JSONDecodeError"),
    ("byte order mark", b"\xef\xbb\xbf" + SOURCE, "JSONDecodeError"),
    ("a NUL", SOURCE.replace(b'"_metadata"', b'"_meta\0data"', 1), "JSONDecodeError"),
    ("leading zero", SOURCE.replace(b"    4\n", b"    04\n", 1), "JSONDecodeError"),
    ("a list", b"[]", "TypeError"),
    ("a number", b"3", "AttributeError"),
    ("null", b"null", "AttributeError"),
    ("UTF-16", SOURCE.decode().encode("utf-16"), "UnicodeDecodeError"),
    ("200,000 brackets", b"[" * 200_000, "RecursionError"),
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("data", "error"), [row[1:] for row in BYTES], ids=[row[0] for row in BYTES])
def test_bytes_that_are_no_json_object_stop_every_version(data: bytes, error: str, version: str) -> None:
    found = seen(data, version)
    assert (found.load, found.error, found.installed, found.entries) == ("raises", error, {}, ())


@pytest.mark.parametrize("data", [SOURCE.replace(b"\n", b"\r\n"), SOURCE.rstrip()], ids=["CRLF", "no final LF"])
def test_line_ends_do_not_matter(data: bytes) -> None:
    assert len(seen(data).installed) == 64


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ([], "IndexError"),
        ([RUNNER], "IndexError"),
        (None, "TypeError"),
        (4, "TypeError"),
        ({}, "KeyError"),
        ("a", "IndexError"),
    ],
)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_bad_value_in_the_middle_leaves_the_entries_before_it(value: Any, error: str, version: str) -> None:
    key = list(json.loads(SOURCE))[32]
    found = seen(edited(lambda document: document.update({key: value}), version), version)
    assert (found.load, found.error, len(found.installed)) == ("raises", error, 31)
    fates = [item.fate for item in found.entries]
    assert fates[31:] == ["crash-at-load"] + ["not-loaded"] * 32
    assert set(fates[:31]) == {"hit" if version != "0.7.4" else "re-profiled"}
    assert "31 of 64" in found.detail


def test_a_key_written_twice_counts_with_its_last_value_and_is_named() -> None:
    text = SOURCE.decode().replace(f'"{KEY}"', f'"{KEY}": ["{RUNNER}", 9],\n  "{KEY}"')
    found = seen(text.encode())
    assert found.duplicates == (KEY,)
    assert found.lookup(*SHAPE) == Lookup(True, 0, 4)


# value, fate in 0.6.13, in 0.6.18 (0.7.4 is the same but for what was timed otherwise)
VALUES: list[tuple[Any, str, str]] = [
    ([RUNNER, 4], "hit", "hit"),
    ([f"{RUNNER}X", 7], "wrong-runner", "skipped"),
    ([CUDNN, 4], "wrong-runner", "skipped"),
    ([None, 4], "wrong-runner", "crash-at-load"),
    ([0, 7], "wrong-runner", "crash-at-load"),
    ([RUNNER, 32], "crash-at-gemm", "crash-at-gemm"),
    ([RUNNER, -1], "default-config", "default-config"),
    ([RUNNER, -2], "default-config", "default-config"),
    ([RUNNER, -(2**63)], "default-config", "default-config"),
    ([RUNNER, -(2**63) - 1], "crash-at-gemm", "crash-at-gemm"),
    ([RUNNER, 2**63], "crash-at-gemm", "crash-at-gemm"),
    ([RUNNER, True], "wrong-tactic", "wrong-tactic"),
    ([RUNNER, False], "wrong-tactic", "wrong-tactic"),
    ([RUNNER, 4.0], "crash-at-gemm", "crash-at-gemm"),
    ([RUNNER, "4"], "crash-at-gemm", "crash-at-gemm"),
    ([RUNNER, None], "crash-at-gemm", "crash-at-gemm"),
    ([RUNNER, [7, 1]], "crash-at-gemm", "crash-at-gemm"),
    ([RUNNER, float("nan")], "crash-at-gemm", "crash-at-gemm"),
]


@pytest.mark.parametrize(("value", "old", "new"), VALUES, ids=[json.dumps(row[0]) for row in VALUES])
def test_the_fate_of_a_value_by_version(value: Any, old: str, new: str) -> None:
    assert entry(seen(with_value(value))).fate == old
    assert entry(seen(with_value(value, "0.6.18"), "0.6.18")).fate == new
    timed = [*value, COLD] if new != "crash-at-load" else value
    assert entry(seen(with_value(timed, "0.7.4"), "0.7.4")).fate == new


def test_an_entry_that_moved_to_another_runner_is_a_miss_since_0618() -> None:
    found = seen(with_value([CUDNN, 4], "0.6.18"), "0.6.18", (CUDNN, RUNNER))
    assert found.lookup(*SHAPE) == MISS


def test_integer_tactics_of_cudnn_are_dropped_since_0618() -> None:
    cudnn = KEY.replace(RUNNER, CUDNN)
    for version, fate in (("0.6.13", "other-runner"), ("0.6.18", "skipped"), ("0.7.4", "skipped")):
        found = seen(edited(lambda document: document.update({cudnn: [CUDNN, 3]}), version), version)
        assert entry(found, cudnn).fate == fate
        assert len(found.installed) == (65 if version == "0.6.13" else 64)


def test_an_earlier_runners_entry_hides_ours() -> None:
    cudnn = KEY.replace(RUNNER, CUDNN)
    found = seen(edited(lambda document: document.update({cudnn: [CUDNN, 3]})), runners=(CUDNN, RUNNER))
    assert entry(found).fate == "never-matched"
    assert found.lookup(*SHAPE) == Lookup(True, 0, 3)


def test_an_old_entry_is_timed_again_by_07_and_a_cold_one_is_not() -> None:
    for value, tuning, fate in (
        ([RUNNER, 4], MISS, "re-profiled"),
        ([RUNNER, 4, HOT, {}], MISS, "re-profiled"),
        ([RUNNER, 4, COLD, {"margin": 0.1}], Lookup(True, 0, 4), "hit"),
    ):
        found = seen(with_value(value, "0.7.4"), "0.7.4")
        assert entry(found).fate == fate
        assert found.lookup(*SHAPE) == Lookup(True, 0, 4)
        assert found.lookup(*SHAPE, tuning=True) == tuning


def test_a_policy_that_is_no_sequence_stops_07_after_its_own_entry() -> None:
    found = seen(with_value([RUNNER, 4, 1], "0.7.4"), "0.7.4")
    before = [item.key for item in found.entries].index(KEY)
    assert (found.error, len(found.installed)) == ("TypeError", before + 1)


@pytest.mark.parametrize("version", ["0.6.18", "0.7.4"])
def test_metadata_that_is_not_definite_is_replaced_at_the_next_save(version: str) -> None:
    for value in (None, "unknown", "None"):
        assert "the next save replaces the file" in seen(edited(meta(cublas_version=value), version), version).detail
    for saved in ([], 3, "x", {}):
        found = seen(edited(lambda document, saved=saved: document.update(_metadata=saved), version), version)
        assert (found.load, "the next save replaces" in found.detail) == ("ignored", True)
    found = seen(edited(meta(gpu="NVIDIA H200"), version), version)
    assert (found.load, "never overwritten" in found.detail) == ("ignored", True)
    assert {item.fate for item in found.entries} == {"ignored"}


@pytest.mark.parametrize("version", ["0.6.18", "0.7.4"])
def test_records_and_generation_are_no_entries_since_0618(version: str) -> None:
    data = edited(lambda document: document.update(_records={}, _generation="a1"), version)
    assert len(seen(data, version).installed) == 64
    assert seen(edited(lambda document: document.update(_records=[]), version), version).error == "ValueError"


def test_a_file_of_0613_is_ignored_by_every_later_version() -> None:
    for version in ("0.6.18", "0.7.4"):
        found = predict(SOURCE, version, assumed_environment(SOURCE, version))
        assert (found.load, "flashinfer_version" in found.detail) == ("ignored", True)


def test_the_machine_that_wrote_the_file_is_assumed_and_open_fields_match_only_a_wildcard() -> None:
    assert assumed_environment(SOURCE, "0.6.13") == HERE
    anywhere = edited(meta(gpu="*"))
    assert predict(anywhere, "0.6.13", assumed_environment(anywhere, "0.6.13")).load == "loaded"
    unsaid = edited(lambda document: document["_metadata"].pop("gpu"))
    assert predict(unsaid, "0.6.13", assumed_environment(unsaid, "0.6.13")).load == "ignored"


@pytest.mark.parametrize(
    ("old", "new", "fate"),
    [
        ("5120), (), ", "5120), (1,), ", "hit"),
        ("5120), (), ", "5120), (-1,), ", "never-matched"),
        ("(384, 5120)", "(384, 5248)", "never-matched"),
        ("(1, 3072)", "(01, 3072)", "never-matched"),
        ("(-1, 384)", "(-1, 385)", "never-matched"),
        (", ())", ", (True,))", "never-matched"),
        (", ())", ")", "never-matched"),
    ],
)
def test_only_keys_that_a_call_can_build_are_ever_matched(old: str, new: str, fate: str) -> None:
    found = seen(edited(renamed(old, new)))
    assert entry(found, KEY.replace(old, new)).fate == fate


def test_scales_padded_as_vllm_allocates_them_are_found_for_shapes_that_are_not_aligned() -> None:
    key = (
        "('fp4_gemm', 'CutlassFp4GemmRunner', ((8, 40), (40, 100), (-1, 8), (8, 128), (), (0,), (-1, 100), (0,), "
        "(0,), (-1,)), ())"
    )
    found = seen(json.dumps({key: [RUNNER, 3]}).encode())
    assert found.entries[0].fate == "hit"
    assert found.lookup(7, 100, 80) == Lookup(True, 0, 3)


def test_an_unknown_version_is_refused_by_name() -> None:
    with pytest.raises(KernelError, match=r"0\.5\.0.*0\.6\.13"):
        predict(SOURCE, "0.5.0", {})


def both(data: bytes, version: str = "0.6.13") -> Audit:
    return audit(data, version, environment(version), "cache.json")


def test_both_sides_hit_every_entry_of_the_gb10_document() -> None:
    found = both(SOURCE)
    assert (found.agreed, found.refusal, found.counts()) == (True, None, {"hit": 64})
    assert {row.ours for row in found.rows} == {"hit"}
    assert "hits 64 of 64" in found.summary()
    assert "Nothing to do." in found.summary()


@pytest.mark.parametrize(("value", "old", "_"), VALUES[1:], ids=[json.dumps(row[0]) for row in VALUES[1:]])
def test_a_value_that_goes_wrong_upstream_is_refused_here_with_the_entry(value: Any, old: str, _: str) -> None:
    found = both(with_value(value))
    assert (found.agreed, found.counts()[old]) == (False, 1)
    row = next(row for row in found.rows if row.entry.key == KEY)
    assert row.ours == "refused"
    assert found.refusal is not None
    if value[1] == value[1]:  # NaN is refused with the whole text
        assert row.reason is not None
        assert KEY[:40] in found.refusal[1]
    assert {row.ours for row in found.rows} == {"refused"}


def test_entries_beside_a_faulty_one_are_refused_without_a_reason_of_their_own() -> None:
    rows = both(with_value([RUNNER, 32])).rows
    assert [row.entry.key for row in rows if row.reason is not None] == [KEY]


def test_a_file_without_metadata_loads_upstream_and_is_refused_here() -> None:
    found = both(edited(lambda document: document.pop("_metadata")))
    assert (found.agreed, found.counts(), found.refusal and found.refusal[0]) == (
        False,
        {"hit": 64},
        "metadata-mismatch",
    )


def test_a_key_written_twice_is_no_agreement() -> None:
    text = SOURCE.decode().replace(f'"{KEY}"', f'"{KEY}": ["{RUNNER}", 9],\n  "{KEY}"')
    found = both(text.encode())
    assert (found.agreed, found.refusal and found.refusal[0]) == (False, "duplicate-field")
    assert "1 keys stand twice" in found.summary()


def test_an_old_file_is_ignored_by_07_and_taken_here() -> None:
    found = audit(SOURCE, "0.7.4", assumed_environment(SOURCE, "0.7.4"), "cache.json")
    assert (found.agreed, found.refusal, found.counts()) == (False, None, {"ignored": 64})
    assert "ignores the whole file" in found.summary()


def test_a_cache_of_another_gpu_is_ignored_upstream_and_refused_here() -> None:
    found = both(edited(meta(gpu="NVIDIA RTX PRO 6000")))
    assert {row.entry.fate for row in found.rows} == {"ignored"}
    assert found.refusal is not None
    assert "NVIDIA RTX PRO 6000" in found.refusal[1]


def test_other_operations_are_nobodys_fault() -> None:
    found = both(edited(lambda document: document.update({"('moe', 'R', ((1,),), ())": ["R", [1, 2]]})))
    assert (found.agreed, found.counts()) == (True, {"hit": 64})
    assert [row.ours for row in found.rows].count("foreign") == 1


def test_another_operations_bad_value_stops_the_loading_of_ours() -> None:
    found = both(edited(lambda document: document.update({"('a_first', 'R', (), ())": None})))
    assert (found.agreed, found.prediction.error) == (False, "TypeError")
    assert "a_first" in found.summary()


@pytest.mark.parametrize("depth", [40, 400, 900, 990])
def test_a_deeply_nested_value_is_audited_or_refused_cleanly(depth: int) -> None:
    data = with_value([RUNNER, "here"]).replace(b'"here"', b"[" * depth + b"]" * depth)
    try:
        found = both(data)
    except PlanDocumentError as error:
        assert error.code == "too-deep"
    else:
        assert found.refusal is not None
        assert found.refusal[0] == "too-deep"
        assert not found.agreed


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30) | st.sampled_from([RUNNER, CUDNN]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300)
@given(st.sampled_from(VERSIONS), st.dictionaries(st.sampled_from([KEY, "_metadata", "_records", "x"]), JSON))
def test_what_both_sides_agree_on_is_imported_and_nothing_else_is_called_a_hit(
    version: str, changes: dict[str, Any]
) -> None:
    data = edited(lambda document: document.update(changes), version)
    found = both(data, version)
    plans = {row.entry.shape for row in found.rows if row.ours == "hit"}
    if found.agreed:
        assert plans == {row.entry.shape for row in found.rows if row.entry.fp4}
    if plans:
        assert found.refusal is None
        if version == "0.6.13":
            assert plans == parse(data, GB10_ORACLE, "cache.json").plans.keys()


@settings(max_examples=300)
@given(st.sampled_from(VERSIONS), st.integers(0, len(SOURCE) - 1), st.binary(max_size=4), st.integers(0, 4))
def test_no_damage_of_a_few_bytes_breaks_the_audit_or_is_agreed_on_with_another_map(
    version: str, at: int, inserted: bytes, removed: int
) -> None:
    data = SOURCE[:at] + inserted + SOURCE[at + removed :]
    found = audit(data, version, assumed_environment(data, version), "cache.json")
    assert found.summary()
    if found.agreed:
        hits = {row.entry.shape: row.entry.value[1] for row in found.rows if row.entry.fp4}
        assert hits == {shape: found.prediction.lookup(*shape).tactic for shape in hits if shape is not None}
