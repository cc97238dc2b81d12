"""The native plan document, format `vllm.cpp_nvfp4_autotune_v1`: strict, all or nothing.

Top level: `_metadata` (every field of `Metadata`) and `plans`. Anything missing, of the wrong type, out of range,
doubled or bound to another runtime rejects the whole document.

Unknown fields, which a later version may write, are tolerated. A merge keeps those of the top level and those of each
plan whose tactic stays; it drops those of a plan whose tactic changes, since they describe the other tactic, and those
of `_metadata`: what this version cannot check, it must not vouch for.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any

from kernels.buckets import MAX_M, hybrid_m_bucket, tuning_buckets
from kernels.errors import PlanDocumentError, shown
from kernels.json_strict import loads_object
from kernels.plans.key import PlanKey
from kernels.plans.metadata import FORMAT, Metadata
from kernels.tactics import TacticSet

__all__ = [
    "FORMAT",
    "Document",
    "Metadata",
    "check_shape",
    "check_tactic",
    "key_for",
    "merge",
    "merge_document",
    "parse",
    "parse_document",
    "serialise",
    "serialise_document",
]

_I32_MAX = 2**31 - 1
_U32_MAX = 2**32 - 1
_PLAN_INTEGERS = (
    ("architecture", -(2**31), _I32_MAX),
    ("device_ordinal", 0, _I32_MAX),
    ("k", -(2**31), _I32_MAX),
    ("m_bucket", 0, _U32_MAX),
    ("n", -(2**31), _I32_MAX),
    ("output_dtype", 0, 255),
    ("tactic_id", -(2**63), 2**63 - 1),
    ("tactic_set_version", 0, _U32_MAX),
)
_PLAN_TEXTS = ("fp4_layout", "runner", "scale_layout")
_SHAPE_FIELDS = ("m_bucket", "n", "k", "tactic_id")
_RUNTIME_FIELDS = ("device_ordinal", "architecture", "output_dtype", "tactic_set_version")
_LAYOUT_FIELDS = ("fp4_layout", "scale_layout", "runner")
_PLAN_FIELDS = (*_SHAPE_FIELDS, *_RUNTIME_FIELDS, *_LAYOUT_FIELDS)
_PLAN_TYPES = (int,) * 8 + (str,) * 3
_PLAN_VALUES = itemgetter(*_PLAN_FIELDS)
_BUCKETS = frozenset(tuning_buckets(MAX_M))


@dataclasses.dataclass(frozen=True)
class Document:
    """A document's plans, sorted by key, and the fields in it that this version does not know."""

    plans: Mapping[PlanKey, int]
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of the top level
    plan_fields: Mapping[PlanKey, Mapping[str, Any]] = dataclasses.field(default_factory=dict)


def key_for(metadata: Metadata, m_bucket: int, n: int, k: int) -> PlanKey:
    """The key of a shape on the runtime that `metadata` describes."""
    return PlanKey(
        m_bucket,
        n,
        k,
        metadata.device_ordinal,
        metadata.architecture,
        metadata.output_dtype_id,
        metadata.tactic_set_version,
    )


def check_shape(m_bucket: int, n: int, k: int, where: str) -> None:
    """PlanDocumentError `bad-shape` unless M is its own hybrid bucket, N > 0, and K > 0 a multiple of 16."""
    if not 0 < m_bucket <= MAX_M or hybrid_m_bucket(m_bucket) != m_bucket:
        mend = "M must be a hybrid bucket"
    elif not 0 < n <= _I32_MAX:
        mend = "N must be a positive int32"
    elif not 0 < k <= _I32_MAX or k % 16:
        mend = "K must be a positive int32 divisible by 16"
    else:
        return
    shape = f"M={shown(m_bucket)} N={shown(n)} K={shown(k)}"
    raise PlanDocumentError("bad-shape", f"invalid NVFP4 persistent plan shape/bucket: {where} has {shape}; {mend}")


def check_tactic(runner: str, tactic_id: int, tactics: TacticSet, where: str) -> int:
    """The id within `tactics` of a runner's own id. PlanDocumentError `unknown-runner` or `unknown-tactic` unless
    `tactics` has it."""
    text = "unknown NVFP4 persistent plan runner/tactic"
    if runner not in tactics.runners:
        known = " and ".join(tactics.runners)
        raise PlanDocumentError("unknown-runner", f"{text}: {where} names {shown(runner)}, known is {known}")
    found = tactics.find(runner, tactic_id)
    if found is None:
        ids = sorted(own for name, own in (tactics.named(tactic.id) for tactic in tactics) if name == runner)
        seen = f"{where} has tactic {shown(tactic_id)}"
        raise PlanDocumentError("unknown-tactic", f"{text}: {seen}, {runner} has {ids[0]}..{ids[-1]}")
    return found


def parse(data: bytes, expected: Metadata, tactics: TacticSet, name: str) -> dict[PlanKey, int]:
    """The plans of a document, sorted by key; raises as `parse_document` does."""
    return dict(parse_document(data, expected, tactics, name).plans)


def parse_document(data: bytes, expected: Metadata, tactics: TacticSet, name: str) -> Document:
    """Read a document for the runtime that `expected` describes. PlanDocumentError (codes below) rejects it whole.

    `metadata-mismatch` lists each differing field with both values; `missing-field`, `wrong-type`, `out-of-range`,
    `layout-disagrees`, `key-disagrees`, `unknown-runner`, `unknown-tactic`, `bad-shape`, `duplicate-plan` name the
    field and the plan's index; the codes of `json_strict` cover what is not a JSON object.
    """
    document = loads_object(data, name)
    _check_metadata(_member(document, "_metadata", dict, name), expected, name)
    plans: dict[PlanKey, int] = {}
    plan_fields: dict[PlanKey, Mapping[str, Any]] = {}
    read = _PlanReader(expected, tactics, name)
    for index, entry in enumerate(_member(document, "plans", list, name)):
        key, tactic = read(entry, index)
        if key in plans:
            shape = f"M={key.m_bucket} N={key.n} K={key.k}"
            raise PlanDocumentError("duplicate-plan", f"duplicate NVFP4 persistent plan key: {name} has {shape} twice")
        plans[key] = tactic
        if len(entry) > len(_PLAN_FIELDS):
            plan_fields[key] = _without(entry, _PLAN_FIELDS)
    return Document(dict(sorted(plans.items())), _without(document, ("_metadata", "plans")), plan_fields)


def serialise(metadata: Metadata, tactics: TacticSet, plans: Mapping[PlanKey, int]) -> bytes:
    """The bytes of a document of these plans and nothing else."""
    return serialise_document(metadata, tactics, Document(plans))


def serialise_document(metadata: Metadata, tactics: TacticSet, document: Document) -> bytes:
    """The document's bytes: indent 2, sorted fields, plans sorted by key, a final LF; equal for equal documents.

    PlanDocumentError `runtime-mismatch` for a plan of another runtime than `metadata` describes.
    """
    runtime = key_for(metadata, 1, 1, 16)[3:]
    foreign = sorted({key[3:] for key in document.plans} - {runtime})
    if foreign:
        text = f"plans of the runtime {shown(foreign[0])} do not belong into a document of {shown(runtime)}"
        raise PlanDocumentError("runtime-mismatch", text)
    rows = [
        {**document.plan_fields.get(key, {}), **_row(metadata, tactics, key, tactic)}
        for key, tactic in sorted(document.plans.items())
    ]
    whole = {**document.fields, "_metadata": metadata.to_json(), "plans": rows}
    text = json.dumps(whole, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8") + b"\n"


def merge(current: Mapping[PlanKey, int], prior: Mapping[PlanKey, int]) -> dict[PlanKey, int]:
    """Both maps as one, sorted; `current` wins. PlanDocumentError `runtime-mismatch` if they are of two runtimes."""
    runtimes = sorted({key[3:] for key in (*current, *prior)})
    if len(runtimes) > 1:
        raise PlanDocumentError("runtime-mismatch", f"plans of different runtimes cannot be merged: {shown(runtimes)}")
    return dict(sorted({**prior, **current}.items()))


def merge_document(current: Mapping[PlanKey, int], prior: Document) -> Document:
    """`merge`, with the unknown fields of `prior` that stay true."""
    plans = merge(current, prior.plans)
    kept = {key: extra for key, extra in prior.plan_fields.items() if plans[key] == prior.plans[key]}
    return Document(plans, prior.fields, kept)


def _without(parent: Mapping[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in parent.items() if name not in fields}


class _PlanReader:
    """Reads the entries of one document: a sound one at one go (3 us), any other field by field for its error."""

    def __init__(self, expected: Metadata, tactics: TacticSet, name: str) -> None:
        self._expected = expected
        self._tactics = tactics
        self._name = name
        self._runtime = key_for(expected, 1, 1, 16)[3:]
        self._fixed = (*self._runtime, expected.fp4_layout, expected.scale_layout)
        self._ids = {tactics.named(tactic.id): tactic.id for tactic in tactics}

    def __call__(self, entry: Any, index: int) -> tuple[PlanKey, int]:
        if type(entry) is dict and len(entry) >= len(_PLAN_FIELDS):
            try:
                values = _PLAN_VALUES(entry)
            except KeyError:
                values = ()
            # Types too: JSON true equals 1.
            if values[4:-1] == self._fixed and tuple(map(type, values)) == _PLAN_TYPES:
                m, n, k, own = values[:4]
                tactic = self._ids.get((values[-1], own))
                sound = m in _BUCKETS and 0 < n <= _I32_MAX and 0 < k <= _I32_MAX and k % 16 == 0
                if sound and tactic is not None:
                    return PlanKey(m, n, k, *self._runtime), tactic
        return _plan(entry, self._expected, self._tactics, f"{self._name} plans[{index}]")


def _row(metadata: Metadata, tactics: TacticSet, key: PlanKey, tactic: int) -> dict[str, Any]:
    runner, own_id = tactics.named(tactic)
    return {
        "architecture": key.architecture,
        "device_ordinal": key.device_ordinal,
        "fp4_layout": metadata.fp4_layout,
        "k": key.k,
        "m_bucket": key.m_bucket,
        "n": key.n,
        "output_dtype": key.output_dtype_id,
        "runner": runner,
        "scale_layout": metadata.scale_layout,
        "tactic_id": own_id,
        "tactic_set_version": key.tactic_set_version,
    }


def _member(parent: Mapping[str, Any], field: str, kind: type, where: str) -> Any:
    if field not in parent:
        raise PlanDocumentError("missing-field", f"{where} lacks {field}; it is not a complete {FORMAT} document")
    value = parent[field]
    # type() and not isinstance(): JSON true is an int to Python.
    if type(value) is not kind:
        wanted = {dict: "an object", list: "an array", int: "an integer", str: "a text"}[kind]
        raise PlanDocumentError("wrong-type", f"{where}: {field}={shown(value)} must be {wanted}")
    return value


def _integer(parent: Mapping[str, Any], field: str, low: int, high: int, where: str) -> int:
    value: int = _member(parent, field, int, where)
    if not low <= value <= high:
        raise PlanDocumentError("out-of-range", f"{where}: {field}={shown(value)} lies outside {low}..{high}")
    return value


def _check_metadata(saved: Mapping[str, Any], expected: Metadata, name: str) -> None:
    where = f"{name} _metadata"
    differing = []
    for field in Metadata.mandatory_names():
        bounds = Metadata.integer_bounds(field)
        value = _member(saved, field, str, where) if bounds is None else _integer(saved, field, *bounds, where)
        own = getattr(expected, field)
        if value != own:
            differing.append(f"{field} ({shown(value)} in the document, {shown(own)} here)")
    if differing:
        raise PlanDocumentError(
            "metadata-mismatch",
            f"NVFP4 cache metadata mismatch for {', '.join(differing)}: {name} belongs to another runtime; "
            "use another path or tune again",
        )


def _plan(entry: Any, expected: Metadata, tactics: TacticSet, where: str) -> tuple[PlanKey, int]:
    if not isinstance(entry, dict):
        raise PlanDocumentError("wrong-type", f"{where} is {shown(entry)}, must be an object")
    number = {field: _integer(entry, field, low, high, where) for field, low, high in _PLAN_INTEGERS}
    text = {field: _member(entry, field, str, where) for field in _PLAN_TEXTS}
    key = key_for(expected, number["m_bucket"], number["n"], number["k"])
    for field in ("fp4_layout", "scale_layout"):
        _agree("layout", field, text[field], getattr(expected, field), where)
    _agree("key", "device_ordinal", number["device_ordinal"], key.device_ordinal, where)
    _agree("key", "architecture", number["architecture"], key.architecture, where)
    _agree("key", "output_dtype", number["output_dtype"], key.output_dtype_id, where)
    _agree("key", "tactic_set_version", number["tactic_set_version"], key.tactic_set_version, where)
    tactic = check_tactic(text["runner"], number["tactic_id"], tactics, where)
    check_shape(key.m_bucket, key.n, key.k, where)
    return key, tactic


def _agree(what: str, field: str, seen: object, own: object, where: str) -> None:
    if seen != own:
        raise PlanDocumentError(
            f"{what}-disagrees",
            f"NVFP4 persistent plan {what} disagrees with metadata: {where} {field}={shown(seen)}, not {shown(own)}",
        )
