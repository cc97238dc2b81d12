from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kernels.serve.scheduler import Batch, Limits, Scheduler, Sequence


def shape(batch: Batch) -> list[tuple[int, int, int]]:
    return [(piece.sequence.slot, piece.start, piece.count) for piece in batch.pieces]


def scheduler(seqs: int, tokens: int, *prompts: int, max_tokens: int = 3) -> Scheduler:
    result = Scheduler(Limits(seqs, tokens, 100))
    for length in prompts:
        result.add(Sequence(list(range(length)), max_tokens))
    return result


def advance(subject: Scheduler, batch: Batch) -> list[tuple[Sequence, int]]:
    return subject.advance(batch, [7] * sum(piece.samples for piece in batch.pieces))


def test_a_long_prompt_is_cut_into_chunks_of_the_budget_and_only_the_last_one_samples() -> None:
    subject = scheduler(4, 4, 10)
    seen = []
    for _ in range(3):
        batch = subject.next_batch()
        seen.append([(p.start, p.count, p.samples, list(p.tokens())) for p in batch.prefills])
        advance(subject, batch)
    assert seen == [[(0, 4, False, [0, 1, 2, 3])], [(4, 4, False, [4, 5, 6, 7])], [(8, 2, True, [8, 9])]]


def test_decoding_sequences_come_first_and_prompts_share_what_is_left_in_arrival_order() -> None:
    subject = scheduler(4, 8, 3, 9, 9)
    assert shape(subject.next_batch()) == [(0, 0, 3), (1, 0, 5)]
    subject = scheduler(4, 8, 3, 9, 9)
    advance(subject, subject.next_batch())
    batch = subject.next_batch()
    assert shape(batch) == [(0, 3, 1), (1, 5, 4), (2, 0, 3)]
    assert list(batch.decodes[0].tokens()) == [7]


def test_no_more_sequences_run_than_there_are_slots_and_a_freed_slot_is_taken_lowest_first() -> None:
    subject = scheduler(2, 100, 2, 2, 2, max_tokens=1)
    batch = subject.next_batch()
    assert shape(batch) == [(0, 0, 2), (1, 0, 2)]
    advance(subject, batch)
    assert shape(subject.next_batch()) == [(0, 0, 2)]


def test_a_sequence_ends_at_its_stop_token_or_at_its_last_allowed_token() -> None:
    subject = Scheduler(Limits(2, 10, 100))
    stopping, limited = Sequence([1], 5, stop_token=7), Sequence([1], 1)
    subject.add(stopping)
    subject.add(limited)
    advance(subject, subject.next_batch())
    assert (stopping.finish_reason, limited.finish_reason) == ("stop", "length")
    assert not subject.has_work()


def test_an_aborted_sequence_frees_its_slot_whether_it_ran_waited_or_had_ended() -> None:
    subject = scheduler(1, 10, 2, 2, 2)
    first, second = subject.waiting[0], subject.waiting[1]
    advance(subject, subject.next_batch())
    subject.abort(second)
    subject.abort(first)
    subject.abort(first)
    assert first.finish_reason == second.finish_reason == "abort"
    batch = subject.next_batch()
    assert shape(batch) == [(0, 0, 2)]
    assert batch.prefills[0].sequence not in (first, second)


@given(
    st.integers(1, 5),
    st.integers(1, 20),
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 6)), min_size=1, max_size=12),
)
def test_every_token_is_computed_once_in_order_and_no_limit_is_exceeded(
    seqs: int, budget: int, requests: list[tuple[int, int]]
) -> None:
    subject = Scheduler(Limits(seqs, budget, 100))
    sequences = [Sequence(list(range(prompt)), count) for prompt, count in requests]
    for sequence in sequences:
        subject.add(sequence)
    computed = dict.fromkeys(sequences, 0)
    while subject.has_work():
        batch = subject.next_batch()
        assert 0 < sum(piece.count for piece in batch.pieces) <= budget
        slots = [piece.sequence.slot for piece in batch.pieces]
        assert len(set(slots)) == len(slots)
        assert all(0 <= slot < seqs for slot in slots)
        for piece in batch.pieces:
            assert piece.start == computed[piece.sequence]
            assert len(piece.tokens()) == piece.count
            computed[piece.sequence] += piece.count
        advance(subject, batch)
    for sequence, (prompt, count) in zip(sequences, requests, strict=True):
        assert (len(sequence.output), sequence.finish_reason) == (count, "length")
        assert computed[sequence] == prompt + count - 1
