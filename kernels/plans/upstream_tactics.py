"""What a tactic id means to FlashInfer: the list of its SM120/SM121 CUTLASS runner, and the versions that have it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product

from kernels.errors import PlanDocumentError
from kernels.plans.flashinfer_key import RUNNER, Shape
from kernels.tactics import Tactic, TacticSet, fnv1a64

__all__ = ["FALLBACK", "FALLBACK_ID", "FIRST_OF_07", "KNOWN_VERSIONS", "UPSTREAM", "check_descriptors", "release"]

# The versions whose wheels were compared: fp4_gemm_cutlass_template_sm120.h (its getConfigs() is the list) and
# fp4_gemm_cutlass_sm120.cu (which turns an id into a configuration) are the same bytes in all four.
# The main branch has since put 128x8 and 128x16 before these tiles: 12 tiles, 48 ids, every id moved by 16.
KNOWN_VERSIONS = ("0.6.13", "0.6.18", "0.7.2.post1", "0.7.4")
FIRST_OF_07 = (0, 7)  # from here on metadata has cutlass_dsl_version and entries may have a policy
_RELEASE = re.compile(r"(\d{1,4})\.(\d{1,4})(?:\.|$)", re.ASCII)
# getConfigs() of that header, tile K in bytes of two FP4 values.
_TILES = "128x32x64 128x32x128 128x64x64 128x64x128 128x128x64 128x128x128 256x128x64 128x256x64"


def _descriptors() -> dict[int, str]:
    order = product(_TILES.split(), (False, True), (True, False))
    found = {}
    for index, (tile, stream_k, swap) in enumerate(order):
        m, n, packed = (int(size) for size in tile.split("x"))
        found[index] = Tactic(index, m, n, 2 * packed, swap, stream_k).descriptor
    return found


UPSTREAM: Mapping[int, str] = _descriptors()
# fp4_gemm_cutlass_sm120.cu runs CtaShape128x128x128B, not swapped, without stream-K for every id below 0.
FALLBACK, FALLBACK_ID = -1, 21
_DIGEST = fnv1a64("".join(UPSTREAM.values()).encode())


def release(version: str | None) -> tuple[int, int] | None:
    """Major and minor number of a version text; None where it has none."""
    found = _RELEASE.match(version or "")
    return None if found is None else (int(found[1]), int(found[2]))


def check_descriptors(plans: Mapping[Shape, int], tactics: TacticSet, name: str) -> None:
    """PlanDocumentError `unknown-tactic` or `foreign-tactic` unless every planned id is the same tactic on both sides.

    The first plan that is not so is named, in the order of `plans`.
    """
    if tactics.digest == _DIGEST and UPSTREAM.keys() >= set(plans.values()):
        return
    local = {tactic.id: tactic.descriptor for tactic in tactics}
    strange = {tactic for tactic in set(plans.values()) if local.get(tactic) != UPSTREAM.get(tactic, "")}
    for (m, n, k), tactic in plans.items():
        if tactic not in strange:
            continue
        where = f"{name} M={m} N={n} K={k}"
        if tactic not in local or tactic not in UPSTREAM:
            text = f"unknown NVFP4 persistent plan runner/tactic: {where} has tactic {tactic}"
            common = f"{RUNNER} has 0..{max(UPSTREAM)}, of which {len(local.keys() & UPSTREAM.keys())} are here"
            raise PlanDocumentError("unknown-tactic", f"{text}, {common}")
        raise PlanDocumentError("foreign-tactic", f"{where} means {UPSTREAM[tactic]}, here it is {local[tactic]}")
