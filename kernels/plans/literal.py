"""A reader of Python literals made of tuples: integers, single-quoted texts, True, False, None. Nothing is evaluated.

Bounded in length, depth and digits. Every step moves forward, so time is linear in the text's length.
"""

from __future__ import annotations

from typing import Any

from kernels.errors import shown

__all__ = ["MAX_CHARACTERS", "LiteralError", "read_tuple"]

# FlashInfer's keys for FP4 are at most 150 characters and 3 levels deep, their integers at most 10 digits.
MAX_CHARACTERS = 512
_MAX_DEPTH = 4
_MAX_DIGITS = 10
_WORDS = {"True": True, "False": False, "None": None}


class LiteralError(ValueError):
    """The text is outside the grammar; the message says where."""


def read_tuple(text: str) -> tuple[Any, ...]:
    """The tuple that `text` is, whole. LiteralError says what was seen where something else is required."""
    if len(text) > MAX_CHARACTERS:
        raise LiteralError(f"it has {len(text)} characters, {MAX_CHARACTERS} are allowed")
    reader = _Reader(text)
    value = reader.value(0)
    reader.end()
    if not isinstance(value, tuple):
        raise LiteralError("it is no tuple")
    return value


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def end(self) -> None:
        if self._at != len(self._text):
            raise self._unexpected("the end")

    def value(self, depth: int) -> Any:
        first = self._peek()
        if first == "(":
            return self._tuple(depth + 1)
        if first == "'":
            return self._string()
        if first == "-" or "0" <= first <= "9":
            return self._integer()
        for word, value in _WORDS.items():
            if self._text.startswith(word, self._at):
                self._at += len(word)
                return value
        raise self._unexpected("a tuple, text or integer")

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip_blanks(self) -> None:
        while self._peek() == " ":
            self._at += 1

    def _unexpected(self, wanted: str) -> LiteralError:
        return LiteralError(f"{shown(self._peek())} at character {self._at} where {wanted} is required")

    def _tuple(self, depth: int) -> tuple[Any, ...]:
        if depth > _MAX_DEPTH:
            raise LiteralError(f"it nests deeper than {_MAX_DEPTH} levels")
        self._at += 1
        items: list[Any] = []
        while True:
            self._skip_blanks()
            if self._peek() == ")" and len(items) < 2:
                break
            items.append(self.value(depth))
            self._skip_blanks()
            if self._peek() == ")" and len(items) > 1:
                break
            if self._peek() != ",":
                raise self._unexpected("a comma")
            self._at += 1
        self._at += 1
        return tuple(items)

    def _string(self) -> str:
        end = self._text.find("'", self._at + 1)
        value = self._text[self._at + 1 : end]
        if end < 0 or "\\" in value:
            raise self._unexpected("a closed text without escapes")
        self._at = end + 1
        return value

    def _integer(self) -> int:
        start = self._at
        self._at += self._peek() == "-"
        digits = self._at
        while "0" <= self._peek() <= "9":
            self._at += 1
        text = self._text[digits : self._at]
        if not text or len(text) > _MAX_DIGITS or (text[0] == "0" and (text != "0" or digits > start)):
            self._at = start
            raise self._unexpected(f"an integer of at most {_MAX_DIGITS} digits without leading zeros")
        return int(self._text[start : self._at])
