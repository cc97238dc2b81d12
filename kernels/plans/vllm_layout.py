"""Where vLLM keeps FlashInfer's files: `…/<FlashInfer>/<architecture>/<hash>/` with one file, or one for each rank.

vLLM 0.25 writes `autotune_configs.json`; 0.33 writes `autotune_configs_dp{D}_rank{R}.json` and skips tuning only if all
ranks have one. It compares their metadata and number of entries; here they must hold the same plans.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from kernels.errors import PlanDocumentError, shown
from kernels.plans import store
from kernels.plans.directories import names
from kernels.plans.flashinfer_file import MAX_BYTES, parse_upstream
from kernels.plans.upstream import UpstreamDocument

__all__ = ["MAX_RANKS", "SINGLE", "placed", "read_directory"]

SINGLE = "autotune_configs.json"
MAX_RANKS = 256
_RANK = re.compile(r"autotune_configs_dp(0|[1-9][0-9]{0,4})_rank(0|[1-9][0-9]{0,4})\.json")
_HASH = re.compile(r"[0-9a-f]{64}")


def read_directory(directory: Path) -> UpstreamDocument:
    """The document of a vLLM directory. PlanDocumentError refuses it whole.

    Codes: `no-document`, `ambiguous` (both layouts), `too-many-entries`, `ranks-differ` (the differing rank and the
    first difference are named), and those of `parse_upstream`.
    """
    found = names(directory)
    ranks = sorted((int(rank[1]), int(rank[2])) for rank in map(_RANK.fullmatch, found) if rank)
    if SINGLE in found and ranks:
        text = f"{directory} has {SINGLE} and files of ranks; they are of two vLLM versions, give one file"
        raise PlanDocumentError("ambiguous", text)
    if SINGLE in found:
        return placed(_read(directory / SINGLE), directory / SINGLE)
    if not ranks:
        text = f"{directory} holds no plan document: neither {SINGLE}, files of ranks, nor a managed store"
        raise PlanDocumentError("no-document", f"{text}; give the file or its directory")
    if len(ranks) > MAX_RANKS:
        text = f"{directory} has files of {len(ranks)} ranks, {MAX_RANKS} are allowed"
        raise PlanDocumentError("too-many-entries", text)
    return _agreed(directory, ranks)


def placed(document: UpstreamDocument, path: Path) -> UpstreamDocument:
    """`document` with the layout that its place tells, and a note where the place names another version."""
    rank = _RANK.fullmatch(path.name)
    if path.name != SINGLE and rank is None:
        return document
    notes = [*_version_note(document, path)]
    if rank is not None:
        notes.append("the file of one rank; give the directory to have all ranks compared")
    return replace(document, layout="vllm-0.25" if rank is None else "vllm-0.33", notes=(*document.notes, *notes))


def _agreed(directory: Path, ranks: list[tuple[int, int]]) -> UpstreamDocument:
    documents = [_read(directory / _file(*rank)) for rank in ranks]
    first = documents[0]
    for rank, document in zip(ranks, documents, strict=True):
        difference = _difference(first, document)
        if difference is not None:
            text = f"{directory}: {_file(*rank)} differs from {_file(*ranks[0])}: {difference}"
            raise PlanDocumentError("ranks-differ", f"{text}; ranks must run the same plans, so tune again together")
    path = directory / _file(*ranks[0])
    listed = ", ".join(f"dp{dp} rank{rank}" for dp, rank in ranks)
    notes = (*first.notes, *_version_note(first, path), f"{len(ranks)} ranks with the same plans: {listed}")
    files = tuple(file for document in documents for file in document.files)
    return replace(first, layout="vllm-0.33", notes=notes, files=files)


def _difference(first: UpstreamDocument, other: UpstreamDocument) -> str | None:
    if first.metadata != other.metadata:
        return f"_metadata {shown(dict(other.metadata or {}))}, not {shown(dict(first.metadata or {}))}"
    for shape in sorted(first.plans.keys() | other.plans.keys()):
        one, two = first.plans.get(shape), other.plans.get(shape)
        if one != two:
            m, n, k = shape
            return (
                f"M={m} N={n} K={k} tactic={'absent' if two is None else two}, not {'absent' if one is None else one}"
            )
    if first.policies != other.policies:
        return "the same plans, measured under other policies"
    if first.foreign != other.foreign:
        return f"{other.foreign} entries of other operations, not {first.foreign}"
    return None


def _version_note(document: UpstreamDocument, path: Path) -> list[str]:
    """vLLM names the directory two above the hash after FlashInfer's version."""
    parts = path.absolute().parts
    if len(parts) < 4 or not _HASH.fullmatch(parts[-2]) or parts[-4] in (document.version, "*"):
        return []
    return [f"lies in a directory of FlashInfer {shown(parts[-4])}, but was written by {shown(document.version)}"]


def _file(dp: int, rank: int) -> str:
    return f"autotune_configs_dp{dp}_rank{rank}.json"


def _read(path: Path) -> UpstreamDocument:
    data = store.read(path, MAX_BYTES)
    if data is None:
        raise PlanDocumentError("absent", f"{path} does not exist any more")
    return parse_upstream(data, str(path))
