"""The keys of FlashInfer's autotuner for NVFP4: read by a bounded grammar, never evaluated, and written.

FlashInfer has no parser of its own keys: it writes `repr` of a 4-tuple and compares strings. Here a key must be exactly
the tuple that mm_fp4 builds for the CUTLASS runner with scales of 16 values, so that M, N and K are derived without
guessing. Two details may differ, because they depend on how the caller keeps its tensors and not on the kernel:

* scales as K/16 and N, or as swizzled buffers are allocated, with K/16 padded to 4 and N to 128;
* alpha as a 0-d tensor `()` or as one of one element `(1,)`. None, `(0,)`, is refused: this runner takes a tensor only.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from kernels.errors import PlanDocumentError, shown
from kernels.plans.document import check_shape
from kernels.plans.literal import MAX_CHARACTERS, LiteralError, read_tuple

__all__ = [
    "OPERATION",
    "RUNNER",
    "CommonKeys",
    "PlanName",
    "Shape",
    "claims_fp4",
    "key_text",
    "profile",
    "read_common",
    "read_key",
]

OPERATION = "fp4_gemm"
RUNNER = "CutlassFp4GemmRunner"
Shape = tuple[int, int, int]  # M bucket, N, K in FP4 values
_KEY_PARTS = ("operation", "runner", "profile", "extras")
_INPUTS = ("a", "b", "a_descale", "b_descale", "alpha", "out_dtype", "out", "block_size", "use_nvfp4", "workspace")
_ALPHAS = ((), (1,))
# M, K/2, K/2, N, scales of a, scales of b, N of b's scales, one-element alpha, N of out; blanks stand for " *".
_INTEGER = "(0|[1-9][0-9]{0,9})"
_TOKENS = (
    rf"\( '{OPERATION}' , '{RUNNER}' , \( \( {_INTEGER} , {_INTEGER} \) , \( {_INTEGER} , {_INTEGER} \) , "
    rf"\( -1 , {_INTEGER} \) , \( {_INTEGER} , {_INTEGER} \) , \( (1 , )?\) , \( 0 , \) , \( -1 , {_INTEGER} \) , "
    r"\( 0 , \) , \( 0 , \) , \( -1 , \) \) , \( \) \)"
)
_HEAD = f"('{OPERATION}', '{RUNNER}', (("
# Reading by characters takes 60 us a key, this 3 us. It only ever accepts what the reader accepts.
_COMMON = re.compile(_TOKENS.replace(" ", " *+"))


class PlanName(NamedTuple):
    """What a key says: the shape, and whether scales are padded and alpha has one element."""

    shape: Shape
    padded: bool
    alpha_1d: bool


def claims_fp4(key: str) -> bool:
    """Whether a key claims to be an FP4 GEMM: by its first string or by its runner, so that a damaged operation name
    is a malformed entry and not somebody else's."""
    if key.startswith(f"('{OPERATION}'") or RUNNER in key:
        return True
    return key.replace(" ", "").startswith(f"('{OPERATION}'")


def profile(m: int, n: int, k: int) -> tuple[tuple[int, ...], ...]:
    """The ten input shapes of mm_fp4 as FlashInfer files them, with scales as swizzled buffers are allocated."""
    packed, scales, rows = k // 2, _padded(k // 16, 4), _padded(n, 128)
    return (m, packed), (packed, n), (-1, scales), (scales, rows), (), (0,), (-1, n), (0,), (0,), (-1,)


def key_text(m: int, n: int, k: int) -> str:
    """The key under which FlashInfer looks for a shape; byte for byte what it writes for a 0-d alpha."""
    return repr((OPERATION, RUNNER, profile(m, n, k), ()))


def read_key(key: str, where: str) -> PlanName:
    """The plan a key names. PlanDocumentError `bad-key` or `unknown-runner` with the reason; M is not yet judged."""
    return read_common(key) or _explained(key, where)


def read_common(key: str) -> PlanName | None:
    """The same in a twentieth of the time for a key that is right; None says nothing about one that is not."""
    found = _COMMON.fullmatch(key) if len(key) <= MAX_CHARACTERS else None
    if found is None:
        return None
    m, packed, rows, n, a_scales, b_scales, columns, alpha, out = found.groups()
    half, scales = int(packed), int(b_scales)
    if rows != packed or out != n or a_scales != b_scales or half % 8:
        return None
    shape = (int(m), int(n), 2 * half)
    if scales * 8 == half and columns == n:
        return PlanName(shape, False, alpha is not None)
    padded = (scales, int(columns)) == _scale_forms(half, shape[1])[1]
    return PlanName(shape, True, alpha is not None) if padded else None


class CommonKeys:
    """Reads the right keys of one document. Everything behind M is the same text for all M of a weight, so it is read
    once and remembered: 100,000 entries of 6,250 weights in 0.2 s instead of 0.6."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._tails: dict[str, tuple[int, int, bool, bool]] = {}

    def read(self, key: str) -> PlanName | None:
        """The plan of a key that is right and whose shape can be a plan's; None says nothing about any other."""
        if not key.startswith(_HEAD):
            return self._checked(key)
        rows, _, tail = key[len(_HEAD) :].partition(", ")
        m, behind = self._rows.get(rows), self._tails.get(tail)
        if m is not None and behind is not None:
            n, k, padded, alpha_1d = behind
            return PlanName((m, n, k), padded, alpha_1d)
        found = self._checked(key)
        if found is not None and rows == str(found.shape[0]):
            m, n, k = found.shape
            self._rows[rows], self._tails[tail] = m, (n, k, found.padded, found.alpha_1d)
        return found

    @staticmethod
    def _checked(key: str) -> PlanName | None:
        found = read_common(key)
        try:
            if found is not None:
                check_shape(*found.shape, key)
        except PlanDocumentError:
            return None
        return found


def _explained(key: str, where: str) -> PlanName:
    try:
        parts = read_tuple(key)
    except LiteralError as error:
        raise _bad_key(where, str(error)) from None
    if len(parts) != len(_KEY_PARTS):
        need = f"{len(_KEY_PARTS)} are required: {', '.join(_KEY_PARTS)}"
        raise _bad_key(where, f"it has {len(parts)} parts, {need} (FlashInfer before 0.6.13 wrote 3)")
    operation, runner, inputs, extras = parts
    if operation != OPERATION:
        raise _bad_key(where, f"operation {shown(operation)} is not {OPERATION!r}")
    if runner != RUNNER:
        text = f"unknown NVFP4 persistent plan runner/tactic: {where} has runner {shown(runner)}, not {RUNNER}"
        raise PlanDocumentError("unknown-runner", text)
    if extras != ():
        raise _bad_key(where, f"extras {shown(extras)} are not (): it is a plan of another kernel variant")
    return _from_inputs(inputs, where)


def _from_inputs(inputs: Any, where: str) -> PlanName:
    if not isinstance(inputs, tuple) or len(inputs) != len(_INPUTS):
        raise _bad_key(where, f"profile {shown(inputs)} does not have the {len(_INPUTS)} inputs of mm_fp4")
    m, packed = _pair(inputs[0], "a", where)
    _, n = _pair(inputs[1], "b", where)
    if packed % 8:
        raise _bad_key(where, f"K/2={packed} is no multiple of 8, so no whole number of 16-value scale blocks")
    forms = _scale_forms(packed, n)
    _check_scales(inputs[2], packed, forms, where)
    wanted = (
        ((m, packed),),
        ((packed, n),),
        tuple((-1, scales) for scales, _ in forms),
        tuple(form for form in forms if (-1, form[0]) == inputs[2]),
        _ALPHAS,
        ((0,),),
        ((-1, n),),
        ((0,),),
        ((0,),),
        ((-1,),),
    )
    for name, seen, allowed in zip(_INPUTS, inputs, wanted, strict=True):
        # By text, because (False,) equals (0,) in Python.
        if repr(seen) not in map(repr, allowed):
            need = " or ".join(dict.fromkeys(map(repr, allowed)))
            raise _bad_key(where, f"input {name} is {shown(seen)}, must be {need} for M={m} K/2={packed} N={n}")
    return PlanName((m, n, 2 * packed), inputs[3] != forms[0], inputs[4] == (1,))


def _check_scales(seen: Any, packed: int, forms: tuple[tuple[int, int], ...], where: str) -> None:
    if packed and packed % 16 == 0 and seen == (-1, packed // 16) and seen[1] not in {scales for scales, _ in forms}:
        raise _bad_key(where, f"input a_descale is {seen}: one scale for 32 values, which is MXFP4 and not NVFP4")


def _scale_forms(packed: int, n: int) -> tuple[tuple[int, int], tuple[int, int]]:
    scales = packed // 8
    return (scales, n), (_padded(scales, 4), _padded(n, 128))


def _padded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _pair(value: Any, name: str, where: str) -> tuple[int, int]:
    if not isinstance(value, tuple) or [type(item) for item in value] != [int, int]:
        raise _bad_key(where, f"input {name} is {shown(value)}, must be two integers")
    return value


def _bad_key(where: str, reason: str) -> PlanDocumentError:
    return PlanDocumentError("bad-key", f"malformed FlashInfer FP4 key: {where}: {reason}")
