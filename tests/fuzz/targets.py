"""What is attacked: for each parser its seeds, and a check that says how it ended or raises Find.

A parser may refuse with a typed error or accept. What it accepts is held against the standard library: nothing else
may be true of the document than what the parser says.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kernels.buckets import hybrid_m_bucket
from kernels.errors import PlanDocumentError
from kernels.json_strict import loads_object
from kernels.plans import document, log
from kernels.plans.flashinfer import GB10_ORACLE, Environment, export_flashinfer, match, parse_upstream
from kernels.plans.flashinfer_key import OPERATION, RUNNER, claims_fp4, key_text, read_key
from kernels.plans.metadata import Metadata
from kernels.plans.selected import selected, selected_lines
from kernels.tactics import CUTLASS_TACTICS

__all__ = ["TARGETS", "Find", "Target"]

METADATA = Metadata(
    architecture=121,
    build_id="b",
    cuda_driver="13000",
    cuda_runtime="13000",
    cutlass_version="4.5.0",
    delay_microseconds=5000,
    device_ordinal=0,
    gpu="NVIDIA GB10",
    tactic_descriptor_digest=CUTLASS_TACTICS.digest,
    tactic_set_version=2,
)
PLANS = {(1, 5120, 6144): 4, (16, 5120, 17408): 0, (2048, 34816, 5120): 31}
SERVICE = ("_metadata", "_records", "_generation")


class Find(Exception):
    """A parser broke its word."""


@dataclass(frozen=True)
class Target:
    """`check` takes a document and returns `accepted` or the code of the refusal."""

    name: str
    seeds: tuple[bytes, ...]
    check: Callable[[bytes], str]


def demand(truth: bool, text: str) -> None:
    if not truth:
        raise Find(text)


def refusing(check: Callable[[bytes], None]) -> Callable[[bytes], str]:
    def ended(data: bytes) -> str:
        try:
            check(data)
        except PlanDocumentError as error:
            demand("\n" not in error.message, "an error text has more than one line")
            return error.code
        return "accepted"

    return ended


def check_json(data: bytes) -> None:
    value = loads_object(data, "x")
    doubled: list[str] = []

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in found]
        doubled.extend(name for name in names if names.count(name) > 1)
        return dict(found)

    demand(value == json.loads(data, object_pairs_hook=pairs), "not what json reads")
    demand(not doubled, f"doubled {doubled}")
    again = json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    demand(loads_object(again, "x") == value, "does not survive being written")


def check_native(data: bytes) -> None:
    found = document.parse_document(data, METADATA, CUTLASS_TACTICS, "x")
    entries = json.loads(data)["plans"]
    shapes = {(item["m_bucket"], item["n"], item["k"]): item["tactic_id"] for item in entries}
    demand({key[:3]: tactic for key, tactic in found.plans.items()} == shapes, "plans differ from the entries")
    demand(len(entries) == len(shapes), "a doubled shape was accepted")
    check_plans({key[:3]: tactic for key, tactic in found.plans.items()})
    again = document.serialise_document(METADATA, CUTLASS_TACTICS, found)
    demand(document.parse_document(again, METADATA, CUTLASS_TACTICS, "x") == found, "does not survive being written")


def check_flashinfer(data: bytes) -> None:
    found = parse_upstream(data, "x")
    keys = [key for key in json.loads(data) if key not in SERVICE]
    claimed = sum(map(claims_fp4, keys))
    demand((len(found.plans), found.foreign) == (claimed, len(keys) - claimed), "an entry was passed over in silence")
    plans = match(found, environment(str(found.version)), "x")
    demand(dict(plans) == dict(found.plans), "the match has other plans")
    check_plans(dict(plans))


def check_key(data: bytes) -> None:
    key = data.decode("utf-8", "replace")
    (m, n, k), _, _ = read_key(key, "x")
    value = ast.literal_eval(key)
    demand(value[:2] == (OPERATION, RUNNER) and value[3] == (), "another operation, runner or variant")
    demand(value[2][:2] == ((m, k // 2), (k // 2, n)), "not the shape that Python reads")
    demand(value[2][5:] == ((0,), (-1, n), (0,), (0,), (-1,)), "not the inputs of mm_fp4")


def check_log(data: bytes) -> str:
    found = log.parse_log(data.decode("utf-8", "replace"))
    shapes = [row[:3] for row in found.selected]
    demand(len(shapes) == len(set(shapes)), "a shape was selected twice")
    return "unexpected" if found.unexpected else "read"


def check_plans(plans: dict[tuple[int, int, int], int]) -> None:
    demand(list(plans) == sorted(plans), "plans are not sorted")
    for (m, n, k), tactic in plans.items():
        good = hybrid_m_bucket(m) == m and n > 0 and k > 0 and k % 16 == 0 and tactic in CUTLASS_TACTICS
        demand(good, f"a plan that cannot be: {m, n, k, tactic}")


def log_seed() -> bytes:
    key = document.key_for(METADATA, 16, 5120, 6144)
    plans = selected(PLANS)
    counts = {"loaded": 3, "rejected": 0, "selected": 3, "metadata": METADATA.fingerprint()}
    prepared = {**counts, "loaded": (3, 0), "native": None, "flashinfer": "/a b/c.json", "delay_us": 5000}
    lines = [
        "INFO engine: up",
        log.prepared_line(mode="read-only", **prepared),  # type: ignore[arg-type]
        log.complete_line(mode="read-only", tuned=0, saved=0, **counts),  # type: ignore[arg-type]
        *selected_lines(plans).splitlines(),
        log.warmup_line(2048, 0, 0, 3),
        log.lazy_miss_line(9, key),
        log.tuned_line(key, 4),
    ]
    return "\n".join([*lines, ""]).encode()


def native_seed(count: int) -> bytes:
    plans = {document.key_for(METADATA, *shape): tactic for shape, tactic in list(PLANS.items())[:count]}
    return document.serialise(METADATA, CUTLASS_TACTICS, plans)


def environment(version: str) -> Environment:
    later = "4.2" if version.startswith("0.7") else None
    return replace(GB10_ORACLE, flashinfer_version=version, cutlass_dsl_version=later)


def flashinfer_seed(version: str, count: int) -> bytes:
    return export_flashinfer(dict(list(PLANS.items())[:count]), environment(version), version)


NATIVE = (native_seed(1), native_seed(3), native_seed(0))
_SEALED = tuple(flashinfer_seed(version, count) for version in ("0.6.13", "0.6.18", "0.7.4") for count in (1, 3))
# A changed content no longer has the digest that `_generation` states: without it, other faults get their turn.
FLASHINFER = (*_SEALED, *(re.sub(rb',\s*"_generation": "\w+"', b"", data) for data in _SEALED))
SMALL = (b'{"a": [1, {"b": "x", "c": null}], "d": -1.5e3}', b'{"a": "\\ud83d\\ude00 \\"]:{"}', b"{}")

TARGETS = {
    target.name: target
    for target in (
        Target("json", (*SMALL, *SMALL, NATIVE[2], FLASHINFER[0]), refusing(check_json)),
        Target("native", NATIVE, refusing(check_native)),
        Target("flashinfer", FLASHINFER, refusing(check_flashinfer)),
        Target("key", tuple(key_text(*shape).encode() for shape in PLANS), refusing(check_key)),
        Target("log", (log_seed(),), check_log),
    )
}
