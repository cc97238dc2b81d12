"""The reference engine's tokenizer: 1,024 pieces, none empty, no file. Ids 0-255 are the Latin-1 characters, 256-1023
are two-letter pieces; a text is cut greedily, longest piece first."""

from __future__ import annotations

from string import ascii_lowercase, ascii_uppercase

from kernels.errors import KernelError

__all__ = ["END_OF_TEXT", "VOCABULARY", "decode", "encode", "piece"]

VOCABULARY = 1024
END_OF_TEXT = 0  # ends a completion unless `ignore_eos`; its text is U+0000, so that even it is one visible chunk

_PAIRS = [first + second for first in ascii_lowercase for second in ascii_lowercase]
_PAIRS += [" " + letter for letter in ascii_lowercase]
_PAIRS += [letter + " " for letter in ascii_lowercase]
_PAIRS += [capital + vowel for capital in ascii_uppercase for vowel in "aeo"][: VOCABULARY - 256 - len(_PAIRS)]
_PIECES = tuple([chr(code) for code in range(256)] + _PAIRS)
_IDS = {text: token for token, text in enumerate(_PIECES)}


def piece(token: int) -> str:
    """The text of one token, never empty."""
    return _PIECES[token]


def decode(tokens: list[int]) -> str:
    return "".join(_PIECES[token] for token in tokens)


def encode(text: str) -> list[int]:
    """Token ids of `text`. KernelError `not-latin-1` names the first character that has no piece."""
    tokens = []
    position = 0
    while position < len(text):
        token = _IDS.get(text[position : position + 2]) if position + 1 < len(text) else None
        if token is None:
            token = _IDS.get(text[position])
            if token is None:
                raise KernelError(
                    "not-latin-1",
                    f"character {text[position]!r} at position {position} has no token: "
                    "prompts are Latin-1 text or lists of token ids",
                )
            position += 1
        else:
            position += 2
        tokens.append(token)
    return tokens
