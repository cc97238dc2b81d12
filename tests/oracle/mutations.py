"""Documents that FlashInfer may meet, each one change away from the 64 plans of the oracle, and each with a name.

`mutations(version)` builds them for the environment of that FlashInfer version. The change falls on the entry of
REFERENCE unless the name says otherwise.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kernels.plans import oracle

__all__ = ["OTHER_RUNNER", "REFERENCE", "RUNNER", "Mutation", "metadata", "mutations"]

REFERENCE = (1, 5120, 6144)
OPERATION = "fp4_gemm"
RUNNER = "CutlassFp4GemmRunner"
OTHER_RUNNER = "CudnnFp4GemmRunner"
Change = tuple[str, bytes]
Entries = dict[str, Any]


@dataclass(frozen=True)
class Mutation:
    name: str
    data: bytes


def metadata(version: str) -> dict[str, str]:
    """The environment in which the oracle's documents load, with the seventh field that 0.7 added."""
    fields: dict[str, str] = json.loads(oracle.document_bytes())["_metadata"] | {"flashinfer_version": version}
    newer = {} if version.startswith("0.6") else {"cutlass_dsl_version": "4.5.0"}
    return {**{name: value for name, value in fields.items() if name != "gpu"}, **newer, "gpu": fields["gpu"]}


def mutations(version: str) -> tuple[Mutation, ...]:
    """All of them, the unchanged document first."""
    base = _Base(version)
    groups = (_metadata, _json, _duplicates, _values, _tactics, _keys, _profiles, _sets)
    found = [Mutation("nothing", base.text().encode())]
    for group in groups:
        found += [Mutation(name, data) for name, data in group(base)]
    return tuple(found)


class _Base:
    """The unchanged document in its parts."""

    def __init__(self, version: str) -> None:
        document = json.loads(oracle.document_bytes())
        document.pop("_metadata")
        self.meta = metadata(version)
        self.entries: Entries = document
        self.key = self.key_of(*REFERENCE)
        self.value = document[self.key]

    @staticmethod
    def profile(m: int, n: int, k: int) -> list[Any]:
        packed, scales = k // 2, k // 16
        return [(m, packed), (packed, n), (-1, scales), (scales, n), (), (0,), (-1, n), (0,), (0,), (-1,)]

    def key_of(self, m: int, n: int, k: int) -> str:
        return repr((OPERATION, RUNNER, tuple(self.profile(m, n, k)), ()))

    def text(self, meta: Any = None, entries: Entries | None = None) -> str:
        document = {"_metadata": self.meta if meta is None else meta, **(entries or self.entries)}
        return json.dumps(document, indent=2)

    def generation(self) -> str:
        """The digest that 0.6.18 and later append to the unchanged document."""
        compact = json.dumps(json.loads(self.text()), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(compact.encode()).hexdigest()

    def bare(self, entries: Entries) -> bytes:
        """A document with metadata and exactly these entries."""
        return json.dumps({"_metadata": self.meta, **entries}, indent=2).encode()

    def with_meta(self, **changes: Any) -> bytes:
        return self.text({**self.meta, **changes}).encode()

    def with_value(self, value: Any) -> bytes:
        return self.text(entries={**self.entries, self.key: value}).encode()

    def with_raw_tactic(self, literal: str) -> bytes:
        """The reference entry's tactic written as this text."""
        return self.with_value([RUNNER, "@"]).replace(b'"@"', literal.encode())

    def with_key(self, key: str) -> bytes:
        """The reference entry under another key."""
        renamed = {key if old == self.key else old: value for old, value in self.entries.items()}
        return self.text(entries=renamed).encode()

    def with_profile(self, profile: Sequence[Any]) -> bytes:
        """The reference entry under the key of another profile."""
        return self.with_key(repr((OPERATION, RUNNER, tuple(profile), ())))


def _metadata(base: _Base) -> Iterator[Change]:
    for name, own in base.meta.items():
        rest = {field: value for field, value in base.meta.items() if field != name}
        yield f"metadata: {name} of another machine", base.with_meta(**{name: f"{own}.1"})
        yield f"metadata: {name} is the wildcard", base.with_meta(**{name: "*"})
        yield f"metadata: {name} absent", base.text(rest).encode()
        yield f"metadata: {name} null", base.with_meta(**{name: None})
        yield f"metadata: {name} unknown", base.with_meta(**{name: "unknown"})
    yield "metadata: every field is the wildcard", base.text(dict.fromkeys(base.meta, "*")).encode()
    yield "metadata: cudnn_version is an integer", base.with_meta(cudnn_version=91900)
    yield "metadata: gpu is a list with the wildcard", base.with_meta(gpu=["*"])
    yield "metadata: gpu is a pattern", base.with_meta(gpu="NVIDIA*")
    yield "metadata: gpu ends in a blank", base.with_meta(gpu=base.meta["gpu"] + " ")
    yield "metadata: gpu in small letters", base.with_meta(gpu=base.meta["gpu"].lower())
    yield (
        "metadata: flashinfer_version with a local part",
        base.with_meta(flashinfer_version=base.meta["flashinfer_version"] + "+cu130"),
    )
    yield "metadata: an unknown field", base.with_meta(driver="580.95")
    yield "metadata: fields in another order", base.text(dict(reversed(base.meta.items()))).encode()
    yield "metadata: absent", json.dumps(base.entries, indent=2).encode()
    for name, literal in (("null", "null"), ("a list", "[]"), ("a text", '"*"'), ("a number", "7"), ("true", "true")):
        yield f"metadata: {name}", base.text("@").replace('"@"', literal).encode()
    yield "metadata: an empty object", base.text({}).encode()
    yield "metadata: at the end of the file", json.dumps({**base.entries, "_metadata": base.meta}, indent=2).encode()
    yield "metadata: under the key _Metadata", base.text().replace('"_metadata"', '"_Metadata"').encode()
    foreign = json.dumps({**base.meta, "gpu": "NVIDIA B200"})
    for name, first, second in (("good, then another machine's", 0, 1), ("another machine's, then good", 1, 0)):
        both = (json.dumps(base.meta), foreign)
        text = json.dumps({"_metadata": "@", **base.entries}, indent=2)
        yield f"metadata: twice, {name}", text.replace('"@"', f'{both[first]}, "_metadata": {both[second]}').encode()


def _json(base: _Base) -> Iterator[Change]:
    text = base.text()
    yield "json: empty file", b""
    yield "json: only blanks", b" \n\t\n"
    yield "json: cut in half", text[: len(text) // 2].encode()
    yield "json: last brace missing", text[:-1].encode()
    yield "json: text after the end", (text + "\nextra").encode()
    yield "json: a second document after the end", (text + text).encode()
    yield "json: comma before the last brace", (text[:-2] + ",\n}").encode()
    yield "json: a comment", text.replace("{", "{ // plans", 1).encode()
    yield "json: single quotes", text.replace('"', "'").encode()
    for name, literal in (("a list", "[]"), ("a text", '"x"'), ("a number", "1"), ("null", "null"), ("true", "true")):
        yield f"json: top level is {name}", literal.encode()
    yield "json: empty object", b"{}"
    yield "json: metadata and no entry", base.bare({})
    yield "json: byte order mark", b"\xef\xbb\xbf" + text.encode()
    yield "json: UTF-16", text.encode("utf-16")
    yield "json: a byte that is no UTF-8", text.replace("NVIDIA", "NVIDI\xc1", 1).encode("latin-1")
    yield "json: NUL byte inside", (text[:40] + "\0" + text[40:]).encode()
    yield "json: NUL bytes at the end", text.encode() + b"\0" * 16
    yield "json: CRLF line ends", text.replace("\n", "\r\n").encode()
    yield "json: compact", json.dumps(json.loads(text), separators=(",", ":")).encode()
    yield "json: final newline", text.encode() + b"\n"
    yield "json: blank lines at the end", text.encode() + b"\n\n  \n"
    yield "json: key written with escapes", text.replace("('fp4_gemm'", "\\u0028'fp4_gemm'", 1).encode()
    yield "json: a control character in a key", text.replace("('fp4_gemm'", "\x01('fp4_gemm'", 1).encode()
    other = "('other_op', 'R', ((1, 2),), ())"
    yield (
        "json: a lone surrogate in a foreign value",
        base.text(entries={**base.entries, other: ["R\ud800", 1]}).encode(),
    )
    for depth in (40, 100_000):
        deep = base.text(entries={**base.entries, other: ["R", "@"]})
        yield f"json: a foreign tactic nested {depth} deep", deep.replace('"@"', "[" * depth + "]" * depth).encode()


def _duplicates(base: _Base) -> Iterator[Change]:
    entry = f"{json.dumps(base.key)}: [\n    {json.dumps(RUNNER)},\n    {base.value[1]}\n  ]"
    text = base.text()
    if entry not in text:
        raise AssertionError("the reference entry is written in another way")
    other = entry.replace(f"{base.value[1]}\n  ]", "9\n  ]")
    for name, pair in (
        ("the same tactic", (entry, entry)),
        ("another tactic first", (other, entry)),
        ("another tactic last", (entry, other)),
    ):
        yield f"duplicate: the entry twice, {name}", text.replace(entry, ", ".join(pair)).encode()
    foreign = "\"('other_op', 'R', ((1, 2),), ())\": [\"R\", 1], "
    yield "duplicate: a foreign entry twice", text.replace(entry, foreign * 2 + entry).encode()
    spaced = base.key.replace("', '", "',  '", 1)
    yield (
        "duplicate: the same shape under a key with another blank",
        base.text(entries={**base.entries, spaced: [RUNNER, 9]}).encode(),
    )


def _values(base: _Base) -> Iterator[Change]:
    policy = ["cuda_graph_profile_replays", 1, "l2_cache_policy", "cold"]
    selection = {"time_ms": 0.1, "runner_up_ms": 0.2, "margin": 1.0, "candidates": 32}
    values: dict[str, Any] = {
        "null": None,
        "a number": 4,
        "true": True,
        "an empty list": [],
        "only the runner": [RUNNER],
        "a third element": [RUNNER, 4, 1],
        "a text of two letters": "ab",
        "an object": {"runner": RUNNER, "tactic": 4},
        "an object with the keys 0 and 1": {"0": RUNNER, "1": 4},
        "a list in a list": [[RUNNER, 4]],
        "tactic before runner": [4, RUNNER],
        "with 0.7's policy": [RUNNER, 4, policy],
        "with 0.7's policy and selection": [RUNNER, 4, policy, selection],
        "with a null policy": [RUNNER, 4, None],
    }
    for name, value in values.items():
        yield f"value: {name}", base.with_value(value)
    runners: dict[str, Any] = {
        "another known one": OTHER_RUNNER,
        "unknown": "FutureFp4GemmRunner",
        "in small letters": RUNNER.lower(),
        "with a final blank": f"{RUNNER} ",
        "empty": "",
        "null": None,
        "a number": 1,
        "a list": [RUNNER],
        "very long": "R" * 10_000,
    }
    for name, runner in runners.items():
        yield f"value: runner {name}", base.with_value([runner, 4])
    middle = list(base.entries)[31]
    for name, key in (("32nd", middle), ("last", list(base.entries)[-1]), ("first", next(iter(base.entries)))):
        yield f"value: null at the {name} entry", base.text(entries={**base.entries, key: None}).encode()


def _tactics(base: _Base) -> Iterator[Change]:
    literals = ("-1", "-2", "31", "32", "9223372036854775808", "1e400", "NaN", "Infinity", "-Infinity", "4.0", "4.5")
    more = ("4e0", "-0", '"4"', '""', "true", "null", "[4, 5]", "[4]", "[]", "{}", "04", "0x4", "+4", "4_0")
    for literal in (*literals, *more):
        yield f"tactic: {literal}", base.with_raw_tactic(literal)
    yield "tactic: 5,000 digits", base.with_raw_tactic("1" * 5_000)


def _keys(base: _Base) -> Iterator[Change]:
    key = base.key
    parts = (OPERATION, RUNNER, tuple(base.profile(*REFERENCE)))
    changed = {
        "one letter of the operation": key.replace("fp4_gemm", "fp4_gemn", 1),
        "operation in capitals": key.replace("fp4_gemm", "FP4_GEMM", 1),
        "operation of another kernel": key.replace("fp4_gemm", "bf16_gemm", 1),
        "another known runner": key.replace(RUNNER, OTHER_RUNNER),
        "an unknown runner": key.replace(RUNNER, "FutureFp4GemmRunner"),
        "double quotes": key.replace("'", '"'),
        "blank before": f" {key}",
        "blank after": f"{key} ",
        "newline after": f"{key}\n",
        "no blanks": key.replace(" ", ""),
        "two blanks": key.replace(", ", ",  ", 1),
        "a tabulator for a blank": key.replace(", ", ",\t", 1),
        "as a list": f"[{key[1:-1]}]",
        "a last parenthesis missing": key[:-1],
        "a parenthesis too many": f"{key})",
        "comma after the last part": f"{key[:-1]},)",
        "three parts, as before 0.6.13": repr(parts),
        "five parts": repr((*parts, (), ())),
        "extras with a value": repr((*parts, (1,))),
        "extras with a dtype": repr((*parts, "@")).replace("'@'", "(torch.bfloat16,)"),
        "extras None": repr((*parts, None)),
        "empty": "",
        "words": "no key at all",
        "half of it": key[: len(key) // 2],
        "a call in it": key.replace("(-1,)", "(__import__('os').getpid(),)"),
        "50,000 characters": key.replace("(-1,)", f"({'1' * 50_000},)"),
        "in JSON": '["fp4_gemm"]',
        "an escaped quote in the runner": key.replace(RUNNER, "Cutlass\\'Fp4GemmRunner"),
    }
    for name, other in changed.items():
        yield f"key: {name}", base.with_key(other)
    yield "key: one bit flipped", base.with_key(key[:60] + chr(ord(key[60]) ^ 1) + key[61:])


def _profiles(base: _Base) -> Iterator[Change]:
    m, n, k = REFERENCE
    packed, scales = k // 2, k // 16
    changed: dict[str, tuple[int, Any]] = {
        "M between buckets": (0, (3, packed)),
        "M zero": (0, (0, packed)),
        "M negative": (0, (-1, packed)),
        "M of 2**40": (0, (2**40, packed)),
        "M a float": (0, (1.0, packed)),
        "M a bool": (0, (True, packed)),
        "M a text": (0, ("1", packed)),
        "a with three dimensions": (0, (1, 1, packed)),
        "K/2 of a differs": (0, (m, packed + 8)),
        "K/2 of b differs": (1, (packed + 8, n)),
        "N of b differs": (1, (packed, n + 128)),
        "rows of a_descale kept": (2, (128, scales)),
        "columns of a_descale differ": (2, (-1, scales + 4)),
        "rows of b_descale differ": (3, (scales + 4, n)),
        "columns of b_descale differ": (3, (scales, n + 128)),
        "alpha of one element": (4, (1,)),
        "alpha None": (4, (0,)),
        "out_dtype a tensor": (5, (1,)),
        "rows of out kept": (6, (m, n)),
        "columns of out differ": (6, (-1, n + 128)),
        "block_size a tensor": (7, ()),
        "workspace of a fixed size": (9, (33_554_432,)),
    }
    own = base.profile(*REFERENCE)
    for name, (at, value) in changed.items():
        yield f"profile: {name}", base.with_profile([*own[:at], value, *own[at + 1 :]])
    yield "profile: nine inputs", base.with_profile(own[:-1])
    yield "profile: eleven inputs", base.with_profile([*own, (0,)])
    # K/2 = 3076 is 384.5 blocks of 16 values.
    yield "profile: K is no whole number of scale blocks", base.with_profile(base.profile(1, 5120, 6152))
    for name, literal in (
        ("with a leading zero", "01"),
        ("with a sign", "+1"),
        ("in hexadecimal", "0x1"),
        ("with an underscore", "1_0"),
        ("in another script's digit", "\u0661"),
        ("as a sum", "0+1"),
    ):
        yield f"profile: M {name}", base.with_key(base.key.replace("((1,", f"(({literal},", 1))


def _sets(base: _Base) -> Iterator[Change]:
    entries = base.entries
    without = {key: value for key, value in entries.items() if key != base.key}
    other = "('other_op', 'OtherRunner', ((1, 2),), ())"
    yield "set: the reference entry absent", base.bare(without)
    yield "set: only the reference entry", base.bare({base.key: base.value})
    yield "set: entries reversed", base.bare(dict(reversed(entries.items())))
    yield (
        "set: M in numeric order",
        base.bare({base.key_of(*shape): entries[base.key_of(*shape)] for shape in oracle.plans()}),
    )
    padded = base.profile(1, 1000, 1040)
    padded[2:4] = (-1, 68), (68, 1024)
    additions: dict[str, tuple[str, Any]] = {
        "a fifth shape": (base.key_of(1, 1024, 1024), [RUNNER, 0]),
        "a shape of unaligned N and K, scales padded": (repr((OPERATION, RUNNER, tuple(padded), ())), [RUNNER, 0]),
        "a shape of unaligned N and K, scales as they are": (base.key_of(1, 1000, 1040), [RUNNER, 0]),
        "a bucket of 4,096 rows": (base.key_of(4096, 5120, 6144), [RUNNER, 0]),
        "a row count between buckets": (base.key_of(300, 5120, 6144), [RUNNER, 0]),
        "a foreign entry": (other, ["OtherRunner", [64, 1, 2]]),
        "a foreign entry of an integer cuDNN plan": (
            "('bf16_gemm', 'CudnnBf16GemmRunner', ((1, 2),), ())",
            ["CudnnBf16GemmRunner", 3],
        ),
        "a foreign entry without a value": (other, None),
        "a foreign entry of only a runner": (other, ["OtherRunner"]),
        "a foreign key that is no tuple": ("note", ["x", "y"]),
        "a key _note with a text": ("_note", "tuned by hand"),
        "a key _note with an object": ("_note", {}),
        "0.6.18's empty _records": ("_records", {}),
        "0.6.18's _records": ("_records", {"moe": {"key": {"value": 1}}}),
        "_records that is a list": ("_records", ["a", "b"]),
        "a _generation of other content": ("_generation", "ab" * 32),
        "0.6.18's _generation": ("_generation", base.generation()),
        "_generation that is null": ("_generation", None),
    }
    for name, (key, value) in additions.items():
        yield f"set: with {name}", base.bare({**entries, key: value})
    yield "set: only foreign entries", base.bare({other: ["OtherRunner", 1]})
