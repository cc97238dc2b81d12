"""Import of FlashInfer 0.6.13 autotune documents: bounded, literal, all or nothing; the source is never modified.

FlashInfer has no parser of its own keys: it writes `repr` of a 4-tuple and compares strings. Here a key is read by a
small literal reader (integers, quoted strings, True/False/None, tuples; never `eval`) and must be exactly the tuple
that mm_fp4 builds for NVFP4, so M, N and K are derived without guessing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from kernels.errors import KernelError, PlanDocumentError, shown
from kernels.json_strict import loads_object
from kernels.plans.document import check_shape, check_tactic
from kernels.tactics import CUTLASS_TACTICS, Tactic, TacticSet

__all__ = ["GB10_ORACLE", "OPERATION", "RUNNER", "Environment", "FlashInferDocument", "parse"]

OPERATION = "fp4_gemm"
RUNNER = "CutlassFp4GemmRunner"
_KEY_PARTS = ("operation", "runner", "profile", "extras")
_INPUTS = ("a", "b", "a_descale", "b_descale", "alpha", "out_dtype", "out", "block_size", "use_nvfp4", "workspace")
# Real keys are at most 150 characters, 3 levels deep, their integers at most 10 digits.
_MAX_KEY = 512
_MAX_DEPTH = 4
_MAX_DIGITS = 10
_WORDS = {"True": True, "False": False, "None": None}
# include/flashinfer/gemm/fp4_gemm_cutlass_template_sm120.h:187-221, tile K in bytes of two FP4 values.
_UPSTREAM_TILES = "128x32x64 128x32x128 128x64x64 128x64x128 128x128x64 128x128x128 256x128x64 128x256x64"


@dataclass(frozen=True)
class Environment:
    """The six strings a FlashInfer 0.6 document is bound to. In a document, `*` in a field's place matches anything."""

    flashinfer_version: str
    cuda_version: str
    cublas_version: str
    cudnn_version: str
    cudnn_frontend_version: str
    gpu: str


GB10_ORACLE = Environment(
    flashinfer_version="0.6.13",
    cuda_version="13.0",
    cublas_version="13.1.0",
    cudnn_version="91900",
    cudnn_frontend_version="1.26.0",
    gpu="NVIDIA GB10",
)


@dataclass(frozen=True)
class FlashInferDocument:
    """`plans` maps (M bucket, N, K) to the tactic id, sorted; `foreign` counts entries of other operations."""

    plans: Mapping[tuple[int, int, int], int]
    foreign: int
    metadata: Mapping[str, str]


def parse(data: bytes, environment: Environment, name: str, tactics: TacticSet = CUTLASS_TACTICS) -> FlashInferDocument:
    """Read a document for a backend that runs `tactics`. PlanDocumentError rejects it whole, naming the entry.

    Codes: `metadata-mismatch`, `bad-key`, `bad-value`, `unknown-runner`, `unknown-tactic`, `foreign-tactic` (the local
    tactic of that id is another configuration), `bad-shape`, `duplicate-plan`, and those of `json_strict`.
    """
    document = loads_object(data, name)
    metadata = _metadata(document.pop("_metadata", None), environment, name)
    plans: dict[tuple[int, int, int], int] = {}
    foreign = 0
    for key, value in document.items():
        if not _is_fp4(key):
            foreign += 1
            continue
        where = f"{name} entry {shown(key)}"
        shape = _shape(key, where)
        tactic = _tactic(value, tactics, where)
        check_shape(*shape, where)
        if shape in plans:
            raise PlanDocumentError(
                "duplicate-plan", f"duplicate NVFP4 persistent plan key: {where} has the same shape as an earlier entry"
            )
        plans[shape] = tactic
    return FlashInferDocument(dict(sorted(plans.items())), foreign, metadata)


def _metadata(saved: Any, environment: Environment, name: str) -> dict[str, str]:
    if not isinstance(saved, dict):
        text = f"FlashInfer cache metadata mismatch for _metadata: {name} has {shown(saved)}, needs an object"
        raise PlanDocumentError("metadata-mismatch", text)
    wanted = asdict(environment)
    differing = [
        f"{field} ({shown(saved[field]) if field in saved else 'absent'} in the document, {own!r} here)"
        for field, own in wanted.items()
        if saved.get(field) not in (own, "*")
    ]
    if differing:
        raise PlanDocumentError(
            "metadata-mismatch",
            f"FlashInfer cache metadata mismatch for {', '.join(differing)}: {name} was tuned in another environment",
        )
    return {field: saved[field] for field in wanted}


def _is_fp4(key: str) -> bool:
    """Whether a key claims to be an FP4 GEMM: by its first string or by its runner, so that a damaged operation name
    is a malformed entry and not somebody else's."""
    head = key.replace(" ", "")[: len(OPERATION) + 3]
    return head == f"('{OPERATION}'" or RUNNER in key


def _shape(key: str, where: str) -> tuple[int, int, int]:
    parts = _Reader(key, where).whole()
    if len(parts) != len(_KEY_PARTS):
        need = f"{len(_KEY_PARTS)} are required: {', '.join(_KEY_PARTS)}"
        raise _bad_key(where, f"it has {len(parts)} parts, {need} (FlashInfer before 0.6.13 wrote 3)")
    operation, runner, profile, extras = parts
    if operation != OPERATION:
        raise _bad_key(where, f"operation {shown(operation)} is not {OPERATION!r}")
    if runner != RUNNER:
        text = f"unknown NVFP4 persistent plan runner/tactic: {where} has runner {shown(runner)}, not {RUNNER}"
        raise PlanDocumentError("unknown-runner", text)
    if extras != ():
        raise _bad_key(where, f"extras {shown(extras)} are not (): it is a plan of another kernel variant")
    return _dimensions(profile, where)


def _dimensions(profile: Any, where: str) -> tuple[int, int, int]:
    if not isinstance(profile, tuple) or len(profile) != len(_INPUTS):
        raise _bad_key(where, f"profile {shown(profile)} does not have the {len(_INPUTS)} inputs of mm_fp4")
    m, packed_k = _pair(profile[0], "a", where)
    _, n = _pair(profile[1], "b", where)
    scales = packed_k // 8
    wanted = ((m, packed_k), (packed_k, n), (-1, scales), (scales, n), (), (0,), (-1, n), (0,), (0,), (-1,))
    for name, seen, need in zip(_INPUTS, profile, wanted, strict=True):
        # By text, because (False,) equals (0,) in Python.
        if repr(seen) != repr(need):
            raise _bad_key(where, f"input {name} is {shown(seen)}, must be {need} for M={m} K/2={packed_k} N={n}")
    if packed_k % 8:
        raise _bad_key(where, f"K/2={packed_k} is no multiple of 8, so no whole number of 16-value scale blocks")
    return m, n, 2 * packed_k


def _pair(value: Any, name: str, where: str) -> tuple[int, int]:
    if not isinstance(value, tuple) or [type(item) for item in value] != [int, int]:
        raise _bad_key(where, f"input {name} is {shown(value)}, must be two integers")
    return value


def _tactic(value: Any, tactics: TacticSet, where: str) -> int:
    if not isinstance(value, list) or len(value) != 2:
        raise PlanDocumentError("bad-value", f"{where} has the value {shown(value)}, must be [runner, tactic]")
    runner, tactic = value
    if not isinstance(runner, str):
        raise PlanDocumentError("bad-value", f"{where} has the runner {shown(runner)}, must be a text")
    if type(tactic) is not int:
        raise PlanDocumentError("bad-value", f"{where} has the tactic {shown(tactic)}, must be one integer")
    check_tactic(runner, tactic, tactics, where)
    local, upstream = tactics.by_id(tactic).descriptor, _UPSTREAM.get(tactic)
    if local != upstream:
        raise PlanDocumentError("foreign-tactic", f"{where} means {upstream}, here tactic {tactic} is {local}")
    return tactic


def _upstream() -> dict[int, str]:
    order = product(_UPSTREAM_TILES.split(), (False, True), (True, False))
    found = {}
    for index, (tile, stream_k, swap) in enumerate(order):
        m, n, packed = (int(size) for size in tile.split("x"))
        found[index] = Tactic(index, m, n, 2 * packed, swap, stream_k).descriptor
    return found


_UPSTREAM = _upstream()


def _bad_key(where: str, reason: str) -> PlanDocumentError:
    return PlanDocumentError("bad-key", f"malformed FlashInfer FP4 key: {where}: {reason}")


class _Reader:
    """Reads one Python literal of tuples. Every step moves forward, so time is linear in the key's length."""

    def __init__(self, text: str, where: str) -> None:
        self._text = text
        self._where = where
        self._at = 0

    def whole(self) -> tuple[Any, ...]:
        if len(self._text) > _MAX_KEY:
            raise _bad_key(self._where, f"it has {len(self._text)} characters, {_MAX_KEY} are allowed")
        value = self._value(0)
        if self._at != len(self._text):
            raise self._unexpected("the end")
        if not isinstance(value, tuple):
            raise _bad_key(self._where, "it is no tuple")
        return value

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip_blanks(self) -> None:
        while self._peek() == " ":
            self._at += 1

    def _unexpected(self, wanted: str) -> KernelError:
        return _bad_key(self._where, f"{shown(self._peek())} at character {self._at} where {wanted} is required")

    def _value(self, depth: int) -> Any:
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

    def _tuple(self, depth: int) -> tuple[Any, ...]:
        if depth > _MAX_DEPTH:
            raise _bad_key(self._where, f"it nests deeper than {_MAX_DEPTH} levels")
        self._at += 1
        items: list[Any] = []
        while True:
            self._skip_blanks()
            if self._peek() == ")" and len(items) < 2:
                break
            items.append(self._value(depth))
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
