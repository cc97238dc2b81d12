"""Damaged documents: a seed with one to four faults, or text put together from a parser's own tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random

__all__ = ["document"]

_NUMBER = re.compile(rb"-?\d+")
_LINE = re.compile(rb"[^\n]*\n")
_TEXT = re.compile(rb'"[^"\n]*"')
_NUMBERS = tuple(
    str(value).encode()
    for value in (-1, 0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 255, 256, 4096, 2**31 - 1, 2**31, 2**32, 2**63, 2**64, 10**40)
)
_VALUES = (
    *(b"null", b"true", b"false", b"NaN", b"Infinity", b"1e400", b"4.0", b"4.5", b"-0", b"04", b'"4"', b'""', b"[]"),
    *(
        b"{}",
        b"[[]]",
        b'{"a": 1}',
        b'"*"',
        b"()",
        b"None",
        b"True",
        b"(0,)",
        b"(-1,)",
        b"(1,)",
        b'"\\ud800"',
        b'"\\u0061"',
    ),
)
_PIECES = (
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b"(",
        b")",
        b":",
        b",",
        b'"',
        b"'",
        b"\\",
        b" ",
        b"\n",
        b"\r",
        b"\0",
        b"\xff",
        b"\xef\xbb\xbf",
    ),
    *(
        b'"a"',
        b'"a": 1',
        b'"_metadata"',
        b'"plans"',
        b"fp4_gemm",
        b"CutlassFp4GemmRunner",
        b"\xc3\xa9",
        b"\xe2\x80\xa8",
    ),
    *(
        b"[VT_FP4_CACHE] ",
        b"[VT_FP4_AUTOTUNE] ",
        b"selected M=1 N=16 K=16 tactic=4",
        b"[" * 40,
        b'{"a":' * 40,
        b"9" * 500,
    ),
)
_Fault = Callable[[Random, bytes], bytes]


def document(random: Random, seeds: Sequence[bytes]) -> bytes:
    """The next document to try."""
    if random.random() < 0.05:
        return b"".join(random.choices((*_PIECES, *_VALUES, *_NUMBERS), k=random.randint(0, 24)))
    data = random.choice(seeds)
    for _ in range(random.choice((1, 1, 1, 2, 3, 4))):
        data = random.choice(_FAULTS)(random, data)
    if random.random() < 0.05:
        other = random.choice(seeds)
        data = data[: random.randint(0, len(data))] + other[random.randint(0, len(other)) :]
    return data


def _span(random: Random, data: bytes) -> tuple[int, int]:
    start = random.randint(0, len(data))
    return start, min(len(data), start + random.choice((0, 1, 1, 2, 4, 16, 64)))


def _flip(random: Random, data: bytes) -> bytes:
    if not data:
        return b"\0"
    at = random.randrange(len(data))
    return data[:at] + bytes((data[at] ^ 1 << random.randrange(8),)) + data[at + 1 :]


def _cut(random: Random, data: bytes) -> bytes:
    start, end = _span(random, data)
    return data[:start] + data[end:]


def _truncate(random: Random, data: bytes) -> bytes:
    return data[: random.randint(0, len(data))]


def _insert(random: Random, data: bytes) -> bytes:
    at = random.randint(0, len(data))
    return data[:at] + random.choice(_PIECES) + data[at:]


def _again(random: Random, data: bytes) -> bytes:
    start, end = _span(random, data)
    return data[:end] + data[start:end] * random.choice((1, 1, 2, 9)) + data[end:]


def _at_token(token: re.Pattern[bytes], new: Callable[[Random, bytes], bytes]) -> _Fault:
    """Replace one token of the kind, looked for from a random place on."""

    def fault(random: Random, data: bytes) -> bytes:
        found = token.search(data, random.randint(0, len(data))) or token.search(data)
        if found is None:
            return data
        return data[: found.start()] + new(random, found.group()) + data[found.end() :]

    return fault


# Faults of the text mostly end in broken JSON, which is refused at the first gate; those of a token get further.
_TEXT_FAULTS: tuple[_Fault, ...] = (_flip, _cut, _truncate, _insert, _again)
_TOKEN_FAULTS: tuple[_Fault, ...] = (
    _at_token(_NUMBER, lambda random, _: random.choice(_NUMBERS)),
    _at_token(_NUMBER, lambda random, old: b"%d" % (int(old[:30]) + random.choice((-1, 1, 16, 128)))),
    _at_token(_NUMBER, lambda random, _: random.choice(_VALUES)),
    _at_token(_TEXT, lambda random, _: random.choice(_VALUES)),
    _at_token(_TEXT, lambda random, old: old + random.choice((b"", b" ", b": 1, ")) + old),
    _at_token(_LINE, lambda random, old: old * random.choice((0, 2, 3))),
    _at_token(_LINE, lambda random, old: old.replace(b"\n", random.choice((b"", b" ", b"\r", b",\n")))),
)
_FAULTS = _TEXT_FAULTS + 3 * _TOKEN_FAULTS
