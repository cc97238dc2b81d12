"""The loop: documents made, checked, counted by outcome; what breaks a parser's word is kept in the corpus."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from kernels.errors import shown
from tests.fuzz import mutations
from tests.fuzz.targets import Target

__all__ = ["CORPUS", "Result", "fault_of", "run"]

CORPUS = Path(__file__).parent / "corpus"
# Processor time, so that a busy machine makes no finds; the documents have at most some kilobytes.
LIMIT_S = 0.5


@dataclass
class Result:
    """How the documents ended, by code; what broke a target's word, by the file that keeps it."""

    outcomes: Counter[str] = field(default_factory=Counter)
    finds: dict[Path, str] = field(default_factory=dict)


def fault_of(target: Target, data: bytes, clock: Callable[[], float] = time.process_time) -> tuple[str, str | None]:
    """The outcome of one document, and what is wrong with the target, if something is."""
    begin = clock()
    try:
        outcome = target.check(data)
    except Exception as error:  # whatever is not a typed refusal is a find
        return "find", f"{type(error).__name__}: {shown(str(error))}"
    spent = clock() - begin
    return outcome, f"took {spent:.2f} s, {LIMIT_S} s are allowed" if spent > LIMIT_S else None


def run(target: Target, seed: int, count: int, corpus: Path = CORPUS) -> Result:
    """`count` documents, the same ones for the same seed. Each distinct fault keeps its shortest document."""
    random = Random(f"{target.name}-{seed}")
    result = Result()
    shortest: dict[str, bytes] = {}
    for _ in range(count):
        data = mutations.document(random, target.seeds)
        outcome, fault = fault_of(target, data)
        result.outcomes[outcome] += 1
        if fault is not None and len(data) < len(shortest.get(fault, data + b" ")):
            shortest[fault] = data
    for fault, data in shortest.items():
        path = corpus / target.name / hashlib.sha256(data).hexdigest()[:16]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        result.finds[path] = fault
    return result
