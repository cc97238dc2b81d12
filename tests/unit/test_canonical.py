"""One digest for equal content, whatever the order, the locale or the trip through JSON."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import canonical
from harness.errors import HarnessError

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_reading_and_writing_again_gives_the_same_bytes(value: object) -> None:
    once = canonical.dumps(value)
    assert canonical.dumps(canonical.loads(once)) == once


def test_key_order_and_number_spelling_do_not_change_the_digest() -> None:
    one = canonical.dumps({"b": 1e-5, "a": 0.1 + 0.2, "k": {"1": 0, "10": 0, "2": 0}})
    two = canonical.dumps({"k": {"2": 0, "10": 0, "1": 0}, "a": 0.30000000000000004, "b": 0.00001})
    assert one == two
    assert canonical.dumps(json.loads(one)) == one


def test_the_locale_does_not_change_the_digest() -> None:
    value = "{'č': 1.5, 'h': 1e-5, 'ch': 'ž'}"
    program = f"from harness import canonical; print(canonical.sha256_bytes(canonical.dumps({value})))"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"LC_ALL": locale, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for locale in ("cs_CZ.UTF-8", "C", "C.UTF-8")
    }
    assert len(digests) == 1


@pytest.mark.parametrize("value", [{1: 0}, {"a": {2: 0}}, [{None: 1}], float("nan"), {"a": float("inf")}])
def test_what_has_no_canonical_form_is_refused(value: object) -> None:
    with pytest.raises(HarnessError) as caught:
        canonical.dumps(value)
    assert caught.value.code == "non-canonical"


@pytest.mark.parametrize("text", [b'{"a":1,"a":2}', b"[NaN]", b"\xff", b"[" * 100_000, b"", b'{"a":1} x'])
def test_what_is_not_strict_json_is_refused(text: bytes) -> None:
    with pytest.raises(HarnessError) as caught:
        canonical.loads(text)
    assert caught.value.code == "bad-json"


def test_a_line_cut_by_a_crash_is_reported() -> None:
    assert list(canonical.loads_lines(b'{"a":1}\n{"b":2}\n', "x")) == [{"a": 1}, {"b": 2}]
    with pytest.raises(HarnessError) as caught:
        list(canonical.loads_lines(b'{"a":1}\n{"b":', "x"))
    assert caught.value.code == "cut-line"


def test_unicode_line_separators_inside_text_do_not_cut_lines() -> None:
    data = canonical.dumps({"a": "x\u2028y\x85z"})
    assert list(canonical.loads_lines(data, "x")) == [{"a": "x\u2028y\x85z"}]


def test_a_digest_that_differs_only_by_line_endings_is_explained_and_still_differs() -> None:
    lf, crlf, none = b'{"a":1}\n', b'{"a":1}\r\n', b'{"a":1}'
    digests = [canonical.sha256_bytes(data) for data in (lf, crlf, none)]
    assert [digest[:8] for digest in digests] == ["e3464320", "34ca028e", "015abd7f"]
    assert canonical.line_ending_hint(crlf, digests[0]) == "differs only by line endings"
    assert canonical.line_ending_hint(none, digests[0]) == "differs only by a final newline"
    assert canonical.line_ending_hint(lf, digests[2]) == "differs only by a final newline"
    assert canonical.line_ending_hint(b'{"a":2}\n', digests[0]) is None
