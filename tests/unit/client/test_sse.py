from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.client.sse import SseEvent, SseReader
from harness.errors import HarnessError

TEXTS = ["plain", "between\u2028lines", "next\u0085line", "人 🚀 é", ""]


def stream(ending: bytes) -> bytes:
    return b"".join(b"data: " + text.encode() + ending + ending for text in TEXTS)


def read(*reads: bytes) -> list[SseEvent]:
    reader = SseReader()
    return [event for data in reads for event in reader.feed(data)]


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 10_000])
def test_every_line_ending_gives_the_same_events_at_every_read_size(ending: bytes, size: int) -> None:
    data = stream(ending)
    events = read(*(data[at : at + size] for at in range(0, len(data), size)))
    assert [event.text() for event in events] == TEXTS


def test_a_crlf_cut_by_the_socket_is_one_line_end() -> None:
    assert read(b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n") == [SseEvent(b"", b"a\nb")]


def test_a_blank_line_that_ends_in_cr_completes_its_event_without_the_next_read() -> None:
    reader = SseReader()
    assert reader.feed(b"data: a\r\n\r") == [SseEvent(b"", b"a")]
    assert reader.feed(b"\ndata: b\r\n\r\n") == [SseEvent(b"", b"b")]


def test_an_empty_read_between_cr_and_lf_changes_nothing() -> None:
    assert read(b"data: a\r", b"", b"\n\r\n") == [SseEvent(b"", b"a")]


def test_two_events_in_one_read_come_apart_in_order() -> None:
    assert [event.data for event in read(b"data: a\n\ndata: b\n\nda")] == [b"a", b"b"]


def test_an_event_of_300_kb_comes_whole_from_reads_of_any_size() -> None:
    payload = b"x" * 300_000
    data = b"data: " + payload + b"\n\n"
    assert read(*(data[at : at + 1] for at in range(len(data)))) == [SseEvent(b"", payload)]
    assert read(*(data[at : at + 65_536] for at in range(0, len(data), 65_536))) == [SseEvent(b"", payload)]


def test_only_one_blank_after_the_colon_is_taken_off_and_none_is_needed() -> None:
    assert [event.data for event in read(b"data:a\n\ndata: b\n\ndata:  c\n\n")] == [b"a", b"b", b" c"]


def test_comments_ids_and_blank_lines_make_no_event() -> None:
    assert read(b": ping\n\n\n\nid: 7\nretry: 10\n\n:\n\ndata: a\n: inside\n\n") == [SseEvent(b"", b"a")]


def test_a_data_field_without_value_is_an_event_with_empty_data() -> None:
    assert read(b"data\n\n") == [SseEvent(b"", b"")]


def test_an_event_name_belongs_to_its_event_alone() -> None:
    assert read(b"event: error\ndata: x\n\ndata: y\n\n") == [SseEvent(b"error", b"x"), SseEvent(b"", b"y")]


def test_an_error_named_without_data_is_still_an_event() -> None:
    assert read(b"event: error\n\nevent: ping\n\n") == [SseEvent(b"error", b"")]


def test_a_byte_order_mark_at_the_start_is_no_part_of_the_first_field() -> None:
    assert read(b"\xef", b"\xbb\xbfdata: a\n\n") == [SseEvent(b"", b"a")]


def test_a_character_cut_by_a_read_is_whole_again() -> None:
    rocket = "🚀".encode()
    assert read(b"data: " + rocket[:1], rocket[1:3], rocket[3:] + b"\n\n")[0].text() == "🚀"


def test_bytes_that_are_not_utf8_fail_with_their_place() -> None:
    event = read(b"data: ab\xff\n\n")[0]
    with pytest.raises(HarnessError, match="not UTF-8 at byte 2 of 3") as caught:
        event.text()
    assert caught.value.code == "bad-utf8"


def test_closing_hands_out_the_event_that_lacks_its_blank_line() -> None:
    reader = SseReader()
    assert reader.feed(b"data: [DONE]") == []
    assert reader.pending
    assert reader.close() == SseEvent(b"", b"[DONE]")
    assert not reader.pending
    assert reader.close() is None


@given(st.lists(st.text(alphabet=st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]))), st.data())
def test_any_cut_of_any_stream_gives_the_same_events(texts: list[str], data: st.DataObject) -> None:
    ending = data.draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    whole = b"".join(b"data: " + text.encode() + ending + ending for text in texts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)))))
    edges = [0, *cuts, len(whole)]
    events = read(*(whole[a:b] for a, b in itertools.pairwise(edges)))
    assert [event.text() for event in events] == texts
