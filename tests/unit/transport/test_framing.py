from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import HarnessError
from harness.transport.framing import LogText, frame, new_marker, unframe

MARKER = "0123456789abcdef" * 2
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def refused(data: bytes) -> HarnessError:
    with pytest.raises(HarnessError) as caught:
        unframe(data, MARKER)
    return caught.value


@given(st.lists(st.tuples(st.binary(max_size=60), JSON), min_size=1, max_size=3), st.binary(max_size=60))
def test_documents_come_back_whatever_stands_around_them(parts: list[tuple[bytes, Any]], after: bytes) -> None:
    data = b"".join(foreign + frame(document, MARKER) for foreign, document in parts) + after
    found = unframe(data, MARKER)
    assert found.documents == tuple(document for _, document in parts)
    assert len(found.warnings) == sum(bool(part.strip()) for part in [*(foreign for foreign, _ in parts), after])


def test_a_greeting_that_looks_like_json_is_a_warning() -> None:
    found = unframe(b"Welcome {gpu}\n{}" + frame({"pid": 7}, MARKER) + b"\xb1bye\n", MARKER)
    assert found.documents == ({"pid": 7},)
    assert found.warnings == (
        "16 bytes of other output: 'Welcome {gpu}\\n{}'",
        "5 bytes of other output: '\ufffdbye'",
    )


def test_output_without_the_marker_is_an_error_that_shows_the_output() -> None:
    error = refused(b"bash: python3: command not found\n")
    assert error.code == "no-frame" and "33 bytes" in error.message and "command not found" in error.message
    assert refused(b"").message.endswith("it reads: nothing")


def test_another_conversation_s_marker_does_not_count() -> None:
    assert refused(frame({}, new_marker())).code == "no-frame"


@pytest.mark.parametrize("kept", [-1, -20, -45])
def test_a_document_that_was_cut_is_not_read(kept: int) -> None:
    assert refused(frame({"text": "abc"}, MARKER)[:kept]).code == "cut-frame"


def test_a_line_written_into_the_middle_of_a_document_is_noticed() -> None:
    data = frame({"text": "xyz"}, MARKER)
    assert refused(data.replace(b"xyz", b"x\nwarning\nyz")).code == "cut-frame"


def test_a_document_may_quote_its_own_marker() -> None:
    document = [frame({}, MARKER).decode()]
    assert unframe(frame(document, MARKER), MARKER).documents == (document,)


def test_another_version_is_named() -> None:
    error = refused(frame({}, MARKER).replace(b" 1 3\n", b" 2 3\n"))
    assert error.code == "frame-version" and "version 2" in error.message


def test_a_doubled_key_is_not_taken_for_a_document() -> None:
    body = b'{"a":1,"a":2}\n'
    data = frame({}, MARKER).replace(b" 3\n{}\n", b" %d\n%s" % (len(body), body))
    assert refused(data).code == "bad-json"


def test_a_marker_that_nobody_drew_is_refused() -> None:
    with pytest.raises(HarnessError, match="is not a marker"):
        frame({}, "{}")
    assert new_marker() != new_marker()


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=6))
def test_a_log_reads_the_same_however_it_is_cut(data: bytes, cuts: list[int]) -> None:
    log, text, start = LogText(), "", 0
    for cut in [*sorted(cuts), len(data)]:
        text += log.feed(data[start:cut])
        start = max(start, cut)
    assert text + log.finish() == data.decode("utf-8", "replace")
    assert (log.sha256, log.size) == (hashlib.sha256(data).hexdigest(), len(data))


def test_a_character_cut_at_a_block_s_end_is_one_character_and_a_foreign_byte_is_replaced() -> None:
    log = LogText()
    euro = "€".encode()
    assert log.feed(b"x" * 32767 + euro[:1]) == "x" * 32767
    assert log.feed(euro[1:] + b"\xb1.") == "€\ufffd."
    assert log.feed(euro[:2]) == "" and log.finish() == "\ufffd"
    assert log.sha256 == hashlib.sha256(b"x" * 32767 + euro + b"\xb1." + euro[:2]).hexdigest()
