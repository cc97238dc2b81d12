"""What upstream and this project each make of a document, and the list of where they differ on purpose.

differences.json beside this module is the list; `python -m tests.oracle.differences` writes it out as
docs/flashinfer-differences.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.errors import PlanDocumentError
from kernels.plans import flashinfer, oracle
from kernels.tactics import CUTLASS_TACTICS
from tests.oracle.mutations import Mutation, metadata

__all__ = ["LIST", "Difference", "Ours", "Theirs", "differ", "listed", "ours", "render", "theirs"]

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "flashinfer-differences.md"
LIST = Path(__file__).with_name("differences.json")
Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Ours:
    """The plans this project takes from a document, or the code of its refusal."""

    plans: Mapping[Shape, int]
    refusal: str | None = None

    def text(self) -> str:
        return _count(len(self.plans)) if self.refusal is None else f"refused: {self.refusal}"


@dataclass(frozen=True)
class Theirs:
    """What the real loader did: True, False or an exception's name; what it left installed; what look-ups then find.

    `found` maps a shape to the tactic as Python writes it; `wrong` are the shapes that run another runner where the
    caller lists one before the CUTLASS runner.
    """

    loaded: bool | str
    installed: int
    found: Mapping[Shape, str]
    wrong: tuple[Shape, ...]

    def text(self, changed: Shape) -> str:
        if self.loaded is False:
            return "ignored"
        head = "loads" if self.loaded is True else f"{self.loaded}, keeps"
        tail = []
        if self.found.get(changed) is None and self.installed:
            tail.append("the plan is never found")
        elif self.installed and self.found[changed].startswith("raises"):
            tail.append(f"the look-up {self.found[changed]}")
        elif self.installed and self.found[changed] != str(oracle.plans()[changed]):
            tail.append(f"finds tactic {_short(self.found[changed])}")
        if self.wrong:
            tail.append("runs it on another runner that is listed first")
        return "; ".join([f"{head} {self.installed}", *tail])


@dataclass(frozen=True)
class Difference:
    """One row of the list: what each version does with the mutation of that name (where it differs), and we do."""

    name: str
    reason: str
    theirs: Mapping[str, str]
    ours: str


def ours(mutation: Mutation, version: str) -> Ours:
    """What this project takes from the document on the machine that the mutations assume."""
    try:
        return Ours(_plans(mutation.data, version))
    except PlanDocumentError as error:
        return Ours({}, error.code)


def _plans(data: bytes, version: str) -> Mapping[Shape, int]:
    environment = flashinfer.Environment(**metadata(version))
    return flashinfer.parse(data, environment, "document", CUTLASS_TACTICS).plans


def theirs(answer: Mapping[str, Any]) -> Theirs:
    """From the answer of run_flashinfer's probe."""
    found = {(m, n, k): tactic for m, n, k, _, tactic in answer["alone"]}
    wrong = tuple((m, n, k) for m, n, k, at, _ in answer["behind"] if at == 0)
    return Theirs(answer["loaded"], answer["installed"], found, wrong)


def differ(upstream: Theirs, own: Ours) -> bool:
    """Whether a process is left with other plans than ours, or with plans that run elsewhere.

    A document that leaves upstream's tuner empty and that is refused here does not differ, whatever either one says.
    """
    if own.refusal is not None:
        return upstream.loaded is True or upstream.installed > 0
    if upstream.loaded is not True or upstream.wrong:
        return True
    return dict(upstream.found) != {shape: repr(tactic) for shape, tactic in own.plans.items()}


def listed(version: str) -> dict[str, Difference]:
    """The deliberate differences from that version, by the mutation's name."""
    return {row.name: row for row in _rows(_content()) if version in row.theirs}


def render() -> str:
    """The list as the documentation page."""
    content = _content()
    lines = ["# Deliberate differences from FlashInfer's loader", "", *content["introduction"], ""]
    for reason, text in content["reasons"].items():
        rows = [row for row in _rows(content) if row.reason == reason]
        lines += [f"## {text['title']}", "", *text["text"], "", *_table(content["versions"], rows), ""]
    return "\n".join(lines)


def _content() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(LIST.read_text(encoding="utf-8"))
    return content


def _rows(content: Mapping[str, Any]) -> list[Difference]:
    return [Difference(**row) for row in content["differences"]]


def _table(versions: Sequence[str], rows: Sequence[Difference]) -> list[str]:
    head = f"| document | {' | '.join(f'FlashInfer {version}' for version in versions)} | here |"
    lines = [head, "|" + "---|" * (len(versions) + 2)]
    for row in rows:
        cells = [row.name, *(row.theirs.get(version, "no difference") for version in versions), row.ours]
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("_", "\\_")


def _count(number: int) -> str:
    return f"{number} plans" if number != 1 else "1 plan"


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"of {len(text)} characters"


if __name__ == "__main__":
    DOCUMENT.write_text(render(), encoding="utf-8")
