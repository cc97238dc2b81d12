from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.errors import PlanDocumentError
from kernels.json_strict import MAX_DEPTH, loads_object

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_what_json_writes_is_read_back(value: dict[str, Any]) -> None:
    assert loads_object(json.dumps(value).encode(), "x") == value


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "empty-document"),
        (b" \n", "empty-document"),
        (b"{", "bad-json"),
        (b'{"a": 1} trailing', "bad-json"),
        (b'{"a": 1,}', "bad-json"),
        (b'{"a": NaN}', "bad-json"),
        (b'{"a": 04}', "bad-json"),
        (b'{"a": ' + b"9" * 5000 + b"}", "bad-json"),
        (b'{"a": 1e400}', "bad-json"),
        (b'{"a": -1e400}', "bad-json"),
        (b'{"a": "\\ud800"}', "bad-json"),
        (b'{"\\udc00": 1}', "bad-json"),
        (b'{"a": 1, "a": 1}', "duplicate-field"),
        (b'{"x": {"a": 1, "\\u0061": 2}}', "duplicate-field"),
        (b"[]", "not-an-object"),
        (b"null", "not-an-object"),
        (b"\xef\xbb\xbf{}", "byte-order-mark"),
        (b'{"a": "\xff"}', "not-utf8"),
        ("{}".encode("utf-16-le"), "bad-json"),
        (b"[" * 2_000_000, "too-deep"),
        (b'{"a":' * 100 + b"1" + b"}" * 100, "too-deep"),
    ],
)
def test_each_way_of_not_being_a_document_has_its_code_and_names_the_file(data: bytes, code: str) -> None:
    with pytest.raises(PlanDocumentError, match=r"plans\.json") as caught:
        loads_object(data, "plans.json")
    assert caught.value.code == code


def test_brackets_inside_text_do_not_count_as_depth() -> None:
    text = '[{\\"' * 1000 + "\\\\"
    assert loads_object(f'{{"a": "{text}"}}'.encode(), "x")["a"].startswith('[{"[{"')


def test_depth_is_counted_beside_texts_with_brackets_and_escapes() -> None:
    deep = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    for text in (b'"]"', b'"\\"]"', b'"plain"'):
        with pytest.raises(PlanDocumentError) as caught:
            loads_object(b'{"a": ' + text + b', "b": ' + deep + b"}", "x")
        assert caught.value.code == "too-deep"


def test_a_whole_surrogate_pair_is_one_character() -> None:
    assert loads_object(b'{"a": "\\ud83d\\ude00"}', "x") == {"a": "\N{GRINNING FACE}"}


def test_the_deepest_allowed_nesting_is_read() -> None:
    depth = MAX_DEPTH - 1
    assert loads_object(b'{"a":' + b"[" * depth + b"]" * depth + b"}", "x")
