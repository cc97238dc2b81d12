from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.buckets import hybrid_m_bucket
from kernels.errors import PlanDocumentError
from kernels.plans import oracle
from kernels.plans.flashinfer import GB10_ORACLE, Environment, FlashInferDocument, parse
from kernels.tactics import CUTLASS_TACTICS, Tactic, TacticSet

KEY = (
    "('fp4_gemm', 'CutlassFp4GemmRunner', ((16, 1280), (1280, 4096), (-1, 160), (160, 4096), (), (0,), (-1, 4096), "
    "(0,), (0,), (-1,)), ())"
)
RUNNER = "CutlassFp4GemmRunner"
ORACLE_ITEMS = [(k, v) for k, v in json.loads(oracle.document_bytes()).items() if k != "_metadata"]


def document(entries: dict[str, Any], metadata: object = None) -> bytes:
    return json.dumps({"_metadata": GB10_ORACLE.stated() if metadata is None else metadata, **entries}).encode()


def read(data: bytes, environment: Environment = GB10_ORACLE) -> FlashInferDocument:
    return parse(data, environment, "tuned.json")


def refusal(data: bytes) -> PlanDocumentError:
    with pytest.raises(PlanDocumentError) as caught:
        read(data)
    return caught.value


def test_one_entry_gives_one_plan_with_k_in_values() -> None:
    assert read(document({KEY: [RUNNER, 5]})).plans == {(16, 4096, 2560): 5}


@given(
    st.integers(1, 2**31).map(hybrid_m_bucket), st.integers(1, 2**31 - 1), st.integers(1, 2**27 - 1), st.integers(0, 31)
)
def test_every_key_that_flashinfer_can_write_is_read(m: int, n: int, blocks: int, tactic: int) -> None:
    packed = 8 * blocks
    profile = ((m, packed), (packed, n), (-1, blocks), (blocks, n), (), (0,), (-1, n), (0,), (0,), (-1,))
    key = repr(("fp4_gemm", RUNNER, profile, ()))
    assert read(document({key: [RUNNER, tactic]})).plans == {(m, n, 2 * packed): tactic}


@given(st.data())
def test_blanks_between_tokens_do_not_matter(data: st.DataObject) -> None:
    tokens = re.findall(r"'[^']*'|-?\d+|[(),]", KEY)
    gaps = data.draw(st.lists(st.sampled_from(["", " ", "   "]), min_size=len(tokens) - 1, max_size=len(tokens) - 1))
    key = "".join(token + gap for token, gap in zip(tokens, [*gaps, ""], strict=True))
    assert read(document({key: [RUNNER, 5]})).plans == {(16, 4096, 2560): 5}


@settings(max_examples=300)
@given(st.integers(0, 63), st.integers(0, 255), st.data())
def test_no_single_byte_can_change_in_a_key_of_the_oracle_unnoticed(entry: int, byte: int, data: st.DataObject) -> None:
    key, value = ORACLE_ITEMS[entry]
    at = data.draw(st.integers(0, len(key) - 1))
    changed = key[:at] + chr(byte) + key[at + 1 :]
    raw = document({}).decode()[:-1]
    entries = [(k, v) if k != key else (changed, value) for k, v in ORACLE_ITEMS]
    text = raw + "".join(f", {json.dumps(k)}: {json.dumps(v)}" for k, v in entries) + "}"
    if changed.replace(" ", "") == key.replace(" ", ""):
        assert read(text.encode()).plans == oracle.plans()
    else:
        with pytest.raises(PlanDocumentError):
            read(text.encode())


@given(st.text(max_size=200))
def test_any_text_behind_the_prefix_is_read_or_refused_cleanly(tail: str) -> None:
    assert refusal(document({"('fp4_gemm'" + tail: [RUNNER, 5]})).code in {"bad-key", "unknown-runner"}


KEY_FAULTS = [
    (KEY[: -len(", ())")] + ")", "3 parts"),
    (KEY[: -len("())")] + "(True,))", r"extras \(True,\)"),
    (KEY[: -len("())")] + "(0,))", r"extras \(0,\)"),
    (KEY + " ", "the end is required"),
    (KEY + ")", "the end is required"),
    (KEY[:-1], "a comma is required"),
    (KEY.replace("16", "017"), "leading zeros"),
    (KEY.replace("-1, 160", "-0, 160"), "leading zeros"),
    (KEY.replace("16,", "1" * 11 + ","), "10 digits"),
    (KEY.replace("(16, 1280)", "(16, 1280, 1)"), "input a is"),
    (KEY.replace("(16, 1280)", "(True, 1280)"), "input a is"),
    (KEY.replace("(16, 1280)", "16"), "input a is"),
    (KEY.replace("(1280, 4096)", "(1281, 4096)"), "input b is"),
    (KEY.replace("(-1, 160)", "(-1, 161)"), "input a_descale is"),
    (KEY.replace("(160, 4096)", "(160, 4095)"), "input b_descale is"),
    (KEY.replace("4096), (), ", "4096), (0,), "), "input alpha is"),
    (KEY.replace("(), (0,)", "(), (False,)"), "input out_dtype is"),
    (KEY.replace("(-1, 4096)", "(-1, 4097)"), "input out is"),
    (KEY.replace("(-1,))", "(-1))"), "a comma is required"),
    (KEY.replace("(-1,))", "(-2,))"), "input workspace is"),
    (KEY.replace("(0,), (0,), (-1,)", "(0,), (-1,)"), "10 inputs"),
    (KEY.replace("1280", "1281"), "no multiple of 8"),
    (KEY.replace("'fp4_gemm'", "'fp4_gemn'"), "operation 'fp4_gemn'"),
    (KEY.replace("'", '"'), "a tuple, text or integer is required"),
    (KEY.replace("'fp4_gemm'", "'fp4_gemm\\'"), "without escapes"),
    (KEY.replace("()", "f()"), "a tuple, text or integer is required"),
    (KEY.replace("()", "(lambda: 0)()"), "a tuple, text or integer is required"),
    ("('fp4_gemm', " + "(" * 3000, "512 are allowed"),
    ("('fp4_gemm', " + "(" * 300, "nests deeper than 4"),
    ("('fp4_gemm', " + " " * 3000, "512 are allowed"),
    ("('fp4_gemm'", "a comma is required"),
]


@pytest.mark.parametrize(("key", "reason"), KEY_FAULTS)
def test_a_key_outside_the_grammar_refuses_the_document_with_a_reason(key: str, reason: str) -> None:
    error = refusal(document({KEY.replace("16,", "32,"): [RUNNER, 5], key: [RUNNER, 5]}))
    assert error.code == "bad-key"
    assert re.search(reason, error.message), error.message
    assert "tuned.json entry" in error.message


@pytest.mark.parametrize("m", [0, -16, 3, 17, 2000, 2**31 + 1])
def test_rows_that_are_no_bucket_are_refused(m: int) -> None:
    error = refusal(document({KEY.replace("(16,", f"({m},"): [RUNNER, 5]}))
    assert error.code == "bad-shape" and f"M={m}" in error.message


@pytest.mark.parametrize(("old", "new"), [("4096", "0"), ("4096", "2147483648"), ("1280", "0"), ("1280", "1073741824")])
def test_dimensions_outside_int32_are_refused(old: str, new: str) -> None:
    scales = str(int(new) // 8) if old == "1280" else "160"
    key = KEY.replace(old, new).replace("160", scales)
    assert refusal(document({key: [RUNNER, 5]})).code == "bad-shape"


@pytest.mark.parametrize("extras", ["(True,)", "(0,)", "(False,)"])
def test_a_variant_beside_a_plain_entry_refuses_both(extras: str) -> None:
    variant = KEY[: -len("())")] + extras + ")"
    assert "extras" in refusal(document({KEY: [RUNNER, 5], variant: [RUNNER, 5]})).message


VALUE_FAULTS: list[tuple[Any, str]] = [
    (["CutlassFp4GemmRunnerX", 7], "unknown-runner"),
    ([RUNNER, 32], "unknown-tactic"),
    ([RUNNER, -1], "unknown-tactic"),
    ([RUNNER, 2**63], "unknown-tactic"),
    ([0, 7], "bad-value"),
    ([None, 7], "bad-value"),
    ([RUNNER, [7, 1]], "bad-value"),
    ([RUNNER, True], "bad-value"),
    ([RUNNER, 4.0], "bad-value"),
    ([RUNNER, "4"], "bad-value"),
    ([RUNNER, None], "bad-value"),
    ([RUNNER], "bad-value"),
    ([RUNNER, 4, ["policy"], {"time_ms": 1}], "bad-value"),
    ("ab", "bad-value"),
    (None, "bad-value"),
    ({"runner": RUNNER, "tactic": 4}, "bad-value"),
]


@pytest.mark.parametrize(("value", "code"), VALUE_FAULTS)
def test_a_value_that_is_no_plan_refuses_the_document_and_names_the_entry(value: object, code: str) -> None:
    error = refusal(document({KEY.replace("16,", "32,"): [RUNNER, 5], KEY: value}))
    assert error.code == code
    assert "((16, 1280)" in error.message


@pytest.mark.parametrize("runner", ["CudnnFp4GemmRunner", "cutlassfp4gemmrunner", ""])
def test_another_runner_in_the_key_is_refused(runner: str) -> None:
    assert refusal(document({KEY.replace(RUNNER, runner): [RUNNER, 5]})).code == "unknown-runner"


def test_entries_of_other_operations_are_counted_and_ignored() -> None:
    entries = {
        "('trtllm_moe', 'MoERunner', ((1, 2),), ())": ["MoERunner", [1, 2]],
        "_note": "x",
        KEY: [RUNNER, 5],
    }
    found = read(document(entries))
    assert (found.foreign, len(found.plans)) == (2, 1)


@pytest.mark.parametrize("tactic", [5, 6])
def test_the_same_key_twice_is_refused_byte_for_byte_and_by_blanks(tactic: int) -> None:
    entry = f'{json.dumps(KEY)}: ["{RUNNER}", {tactic}]'
    exact = document({KEY: [RUNNER, 5]})[:-1] + f", {entry}}}".encode()
    assert refusal(exact).code == "duplicate-field"
    assert refusal(document({KEY: [RUNNER, 5], KEY.replace(" ", ""): [RUNNER, tactic]})).code == "duplicate-plan"


FIELDS = list(GB10_ORACLE.stated())


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", ["12.9", "NVIDIA GB10 ", "", None, 13, ["*"], "absent"])
def test_another_environment_is_refused_naming_the_field(field: str, value: object) -> None:
    metadata: dict[str, object] = {**GB10_ORACLE.stated(), field: value}
    if value == "absent":
        del metadata[field]
    error = refusal(document({KEY: [RUNNER, 5]}, metadata))
    assert error.code == "metadata-mismatch"
    assert error.message.startswith(f"FlashInfer cache metadata mismatch for {field} (")


@pytest.mark.parametrize("field", FIELDS)
def test_a_star_matches_any_value_and_extra_fields_are_ignored(field: str) -> None:
    metadata = {**replace(GB10_ORACLE, **{field: "*"}).stated(), "cutlass_dsl_version": "x"}
    found = read(document({KEY: [RUNNER, 5]}, metadata))
    assert len(found.plans) == 1 and found.metadata[field] == "*"


@pytest.mark.parametrize("metadata", [[], "x", 1, {}])
def test_metadata_that_says_nothing_is_refused(metadata: object) -> None:
    assert refusal(document({KEY: [RUNNER, 5]}, metadata)).code == "metadata-mismatch"


def test_a_document_without_metadata_is_refused() -> None:
    assert refusal(json.dumps({KEY: [RUNNER, 5]}).encode()).code == "metadata-mismatch"
    assert refusal(json.dumps({"_metadata": None, KEY: [RUNNER, 5]}).encode()).code == "metadata-mismatch"


def test_an_id_maps_only_while_the_local_descriptor_is_upstreams() -> None:
    tactics = tuple(tactic for tactic in CUTLASS_TACTICS if isinstance(tactic, Tactic))
    edited = TacticSet(RUNNER, 2, (*tactics[:5], replace(tactics[5], tile_n=64), *tactics[6:]))
    with pytest.raises(PlanDocumentError) as caught:
        parse(document({KEY: [RUNNER, 5]}), GB10_ORACLE, "x", edited)
    assert caught.value.code == "foreign-tactic"
    assert parse(document({KEY: [RUNNER, 6]}), GB10_ORACLE, "x", edited).plans == {(16, 4096, 2560): 6}


@dataclass(frozen=True)
class Own:
    id: int
    descriptor: str


def test_a_backend_with_another_runner_takes_none_of_these_plans() -> None:
    with pytest.raises(PlanDocumentError, match="known is OwnRunner"):
        parse(document({KEY: [RUNNER, 5]}), GB10_ORACLE, "x", TacticSet("OwnRunner", 1, (Own(5, "5:x;"),)))
