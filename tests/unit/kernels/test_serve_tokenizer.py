from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.errors import KernelError
from kernels.serve import tokenizer

LATIN1 = st.text(st.characters(max_codepoint=255))


def test_there_are_1024_different_pieces_and_none_is_empty() -> None:
    pieces = [tokenizer.piece(token) for token in range(tokenizer.VOCABULARY)]
    assert len(set(pieces)) == 1024
    assert {len(piece) for piece in pieces[:256]} == {1}
    assert {len(piece) for piece in pieces[256:]} == {2}


@given(LATIN1)
def test_decoding_gives_back_the_encoded_text(text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(LATIN1)
def test_a_single_character_is_taken_only_where_no_longer_piece_fits(text: str) -> None:
    pieces = [tokenizer.piece(token) for token in tokenizer.encode(text)]
    known = {tokenizer.piece(token) for token in range(256, 1024)}
    for piece, following in pairwise(pieces):
        assert len(piece) == 2 or piece + following[0] not in known


def test_a_character_outside_latin1_is_named_with_its_position() -> None:
    with pytest.raises(KernelError, match="'€' at position 2") as error:
        tokenizer.encode("ab€")
    assert error.value.code == "not-latin-1"
