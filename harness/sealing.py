"""From an ended run's raw files on its host to a sealed bundle here. Everything after the fetch is a pure function."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import bundle, canonical, index, journal, keeper, verify
from harness.agent.values import Packed
from harness.derived import derived
from harness.errors import EXITS, HarnessError, UsageError
from harness.plan import Plan
from harness.transport.base import Transport

__all__ = ["Sealed", "seal_run"]


@dataclass(frozen=True)
class Sealed:
    """A finished run: where its bundle lies, its digest and its verdict."""

    path: Path
    digest: str
    verdict: dict[str, Any]

    @property
    def exit_code(self) -> int:
        return EXITS[self.verdict["outcome"]]

    @property
    def told(self) -> str:
        return f"{self.verdict['outcome']} {self.path.name}"


def seal_run(name: str, packed: Packed, transport: Transport, root: Path) -> Sealed:
    """Fetch the raw files under the evidence root, judge them, seal them, and record the attempt.

    UsageError `evidence-unwritable` leaves the raw files where they are: the same command seals them later. LinkLost
    may be followed by another call, which goes on with the file that was cut.
    """
    final, partial = root / name, root / f".{name}.partial"
    try:
        root.mkdir(parents=True, exist_ok=True)
        if (final / "seal.json").is_file():
            return _sealed_already(final, root)
        if final.exists():
            raise HarnessError("would-overwrite", f"{final} exists already and is no bundle; move it away")
        raw = partial / "raw"
        transport.fetch(packed.folder, packed.files, raw)
        return _seal(name, packed, raw, root)
    except OSError as error:
        raise UsageError(
            "evidence-unwritable",
            f"evidence.root={root}: {error.strerror}; the run's files are kept in {Path(packed.folder).parent} on "
            f"{transport.where}, so mend that and run the same command again",
        ) from error


def _sealed_already(final: Path, root: Path) -> Sealed:
    """Another controller of the same run was faster; both get the same bundle."""
    found = verify.verify(final)
    if found.verdict is None:
        raise HarnessError("would-overwrite", f"{final} exists already and is tampered with: {found.faults[0]}")
    return _listed(Sealed(final, found.digest, found.verdict), root)


def _listed(sealed: Sealed, root: Path) -> Sealed:
    """Also for one that another controller sealed: it may have died before it got to the index."""
    plan = Plan.from_bytes((sealed.path / "plan.json").read_bytes())
    index.append(root, run=sealed.path.name, plan=plan, digest=sealed.digest, verdict=sealed.verdict)
    return sealed


def _seal(name: str, packed: Packed, raw: Path, root: Path) -> Sealed:
    """In a copy beside `raw`, so that a seal that fails half way is begun anew from what was fetched."""
    final, work = root / name, raw.with_name("sealed")
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(raw, work)
    _close_journal(work / "journal.jsonl", packed)
    bundle.write_new(work / "keeper.json", canonical.dumps(dict(packed.keeper)))
    verdict = verify.assess(work)
    bundle.write_new(work / "verdict.json", canonical.dumps(verdict))
    digest = bundle.seal(work)
    for file, data in derived(work, verdict, digest).items():
        bundle.write_new(work / file, data)
    work.rename(final)
    shutil.rmtree(raw.parent, ignore_errors=True)
    return _listed(Sealed(final, digest, verdict), root)


def _close_journal(path: Path, packed: Packed) -> None:
    """A supervisor that died left no end. What it wrote stays, a cut line is set aside, and the run becomes void."""
    data = path.read_bytes() if path.exists() else b""
    whole, cut = journal.whole_lines(data)
    if whole and journal.parse(whole)[-1]["event"] == "end":
        return
    if cut:
        path.with_name("journal.cut").write_bytes(cut)
    path.write_bytes(whole)
    journal.Journal(path).write("void", where="run", **_why_no_end(packed))


def _why_no_end(packed: Packed) -> dict[str, str | None]:
    """Reason code, sentence and last known boot: the host was started anew under the run, or the supervisor died."""
    said = f"it said:\n{packed.said}"
    held = keeper.parse_state(packed.keeper) if packed.keeper else None
    if held is not None and held.rebooted(packed.boot_id):
        boots = f"boot {held.boot_id} of the run, {packed.boot_id} now"
        message = f"the host was started anew while the run went on ({boots}); {said}"
        return {"code": "boot-id", "message": message, "boot_id": packed.boot_id}
    boot = held.boot_id if held is not None and held.ended() else packed.boot_id
    message = f"the supervisor ended without closing its journal; {said}"
    return {"code": "supervisor-died", "message": message, "boot_id": boot}
