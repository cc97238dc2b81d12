"""Rehearse one plan: made legs under the real supervisor, then every real step that follows the last leg."""

from __future__ import annotations

import contextlib
import copy
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harness import canonical, floor_store, keeper, single_file, trace_files
from harness.agent.preparing import prompts_folder
from harness.agent.starting import lay_out
from harness.agent.values import Packed, pack_document
from harness.config import Config
from harness.context import Context
from harness.errors import EXIT_PASS, EXITS, HarnessError, UsageError
from harness.holder import utc
from harness.keeper import KeeperState
from harness.plan import Plan
from harness.process import Exit
from harness.rehearsal import understudy
from harness.rehearsal.machine import BOOT, NOBODY, Made
from harness.rehearsal.offline import made_prompts
from harness.report import command
from harness.report.summary import failed_lines, reason_lines, summary
from harness.sealing import Sealed, seal_run
from harness.state import RunState, state_dir
from harness.supervisor import Supervisor
from harness.transport.local import Local
from harness.verify import verify

__all__ = ["Rehearsed", "rehearse"]

ALONE_S = 300.0  # for the single file
PREFIX = "nvfp4-gates-rehearsal-"
PACK_S = 60.0


@dataclass(frozen=True)
class Rehearsed:
    """A rehearsal that went through to its end. `kept` is the bundle's folder where it was asked to be kept."""

    verdict: Mapping[str, Any]
    legs: int
    seconds: float
    kept: Path | None

    exit_code = EXIT_PASS  # whatever the made verdict is

    @property
    def told(self) -> str:
        return f"rehearsed in {self.seconds:.1f} s"

    def lines(self) -> list[str]:
        """For a person: what was gone through, how long it took, and what could not hold."""
        counts, totals = self.verdict["counts"], self.verdict["totals"]
        axes = counts["timing"]["of"] + counts["memory"]["of"]
        size = f"{self.legs} legs, {totals['requests']:,} requests, {axes} axes, {len(self.verdict['checks'])} checks"
        done = "sealed, verified (as one file, too), reported as Markdown, HTML and JUnit"
        said = [f"rehearsed in {self.seconds:.1f} s against made processes: {size}; {done}"]
        if "failed" in self.verdict:
            said += [f"does not hold even in rehearsal: {line}" for line in failed_lines(self.verdict)]
        return said + ([f"the rehearsed bundle is {self.kept}"] if self.kept else [])


class _Rehearsing(Supervisor):
    """The supervisor on the made machine, with an understudy of the engine."""

    def __init__(self, state: RunState, made: Made) -> None:
        super().__init__(state, lambda: BOOT, made)
        self._made = made

    def _context(self, plan: Plan) -> Context:
        found = super()._context(plan)
        second = None if found.second is None else understudy.of(found.second, plan)
        self._made.context = replace(found, engine=understudy.of(found.engine, plan), second=second)
        return self._made.context


def rehearse(
    config: Config,
    plan: Plan,
    *,
    document: bytes | None,
    traces: Mapping[str, trace_files.Given],
    floors: Sequence[Any],
    invoked_in: Path,
) -> Rehearsed:
    """Go through `plan` from its first leg to the report.

    UsageError `rehearsal` says in which step it failed and why; the files are then left where the sentence says.
    """
    begun = time.monotonic()
    counts = {concurrency: plan.requests(concurrency) for concurrency in plan.concurrencies}
    prompts, digests = made_prompts(counts, plan.repetitions)
    plan = replace(plan, rehearsal=True, corpus=digests)
    place = _place(config, invoked_in)
    steps = _Steps(place, _at(config, place), plan)
    with steps.told("the legs"):
        steps.lay_out(prompts, document, traces, floors)
        steps.legs()
    with steps.told("sealing"):
        sealed = steps.seal()
    if sealed.verdict["outcome"] == "VOID":
        raise _failed("the checks", "; ".join(reason_lines(sealed.verdict)), place)
    with steps.told("verify and the reports"):
        steps.read_again(sealed)
    with steps.told("verify as one file"):
        steps.verify_alone(sealed)
    if config.rehearse_dir is None:
        shutil.rmtree(place, ignore_errors=True)
    kept = None if config.rehearse_dir is None else sealed.path
    return Rehearsed(sealed.verdict, len(plan.legs), time.monotonic() - begun, kept)


def _place(config: Config, invoked_in: Path) -> Path:
    if config.rehearse_dir is None:
        return Path(tempfile.mkdtemp(prefix=PREFIX))
    root = (invoked_in / config.rehearse_dir).resolve()
    try:
        root.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
    except OSError as error:
        raise UsageError("bad-value", f"rehearse_dir={root}: {error.strerror}; name a folder to write in") from error


def _at(config: Config, place: Path) -> Config:
    """The same configuration on this machine, with every folder of a run under `place`."""
    found = copy.deepcopy(config)
    found.host.transport = "local"
    for name in ("state_dir", "cache_dir", "lease_path"):
        setattr(found.host, name, str(place / name))
    found.evidence.root = str(place / "evidence")
    found.signing.key = None
    return found


def _failed(step: str, why: str, place: Path) -> UsageError:
    return UsageError(
        "rehearsal", f"the rehearsal failed in {step}: {why}; nothing was started, and its files are in {place}"
    )


@dataclass
class _Steps:
    """The steps of a run in their order. `config` has every folder under `place`."""

    place: Path
    config: Config
    plan: Plan

    def __post_init__(self) -> None:
        self.name = f"{self.plan.gate}-{self.plan.digest()[:12]}-rehearsal"
        self.state = RunState(state_dir(self.config.host) / self.name)

    @contextlib.contextmanager
    def told(self, step: str) -> Iterator[None]:
        """Whatever goes wrong in `step` becomes one sentence; its traceback is kept with the files."""
        try:
            yield
        except Exception as error:
            (self.place / "traceback.txt").write_text(traceback.format_exc(), encoding="utf-8")
            raise _failed(step, _why(error), self.place) from error

    def lay_out(
        self,
        prompts: Mapping[str, bytes],
        document: bytes | None,
        traces: Mapping[str, trace_files.Given],
        floors: Sequence[Any],
    ) -> None:
        """The run's folder as the agent makes it, and the keeper's word that it holds the lease."""
        folder = prompts_folder(self.config.host, "rehearsed")
        folder.mkdir(parents=True)
        for partition, data in prompts.items():
            (folder / f"{partition}.jsonl").write_bytes(data)
        self.state.root.parent.mkdir(parents=True)
        request: dict[str, Any] = {
            "plan": self.plan.to_bytes().decode(),
            "prompts": folder.name,
            "document": None if document is None else pack_document(document),
            "traces": trace_files.packed(traces),
            "earlier": [],
            "nonce": "rehearsal",
            "floor": floor_store.packed(floors).decode() if floors else None,
            "places": {},
        }
        lay_out(self.state, self.config, request)
        (self.state.root / "plans").mkdir(exist_ok=True)
        self._keeper("held")

    def _keeper(self, phase: str, **more: Any) -> None:
        word = KeeperState(
            NOBODY.pid, NOBODY.start_ticks, BOOT, self.name, phase, utc(), token="rehearsed", drained=0, **more
        )
        (self.state.root / keeper.STATE).write_bytes(canonical.dumps(asdict(word)))

    def legs(self) -> None:
        """Every leg. What the supervisor prints goes where it goes in a run."""
        path = self.state.root / keeper.SUPERVISOR_LOG
        with path.open("w", encoding="utf-8") as log, contextlib.redirect_stderr(log):
            code = _Rehearsing(self.state, Made()).run()
        self._keeper("released", supervisor_exit=Exit(code, None).to_json())

    def seal(self) -> Sealed:
        link = Local()
        request = {"host": asdict(self.config.host), "run": self.name}
        packed = Packed.from_json(link.call("pack", request, timeout_s=PACK_S))
        return seal_run(self.name, packed, link, Path(self.config.evidence.root))

    def read_again(self, sealed: Sealed) -> None:
        """The verdict from the raw files, and every page made from it."""
        found = verify(sealed.path)
        if found.verdict != sealed.verdict:
            raise HarnessError("tampered", f"verify does not find what was sealed: {'; '.join(found.faults)}")
        summary(sealed.verdict)
        for name, text in command.pages(sealed.path).items():
            (self.place / name).write_text(text, encoding="utf-8")

    def verify_alone(self, sealed: Sealed) -> None:
        """By the one file that a reviewer gets, without this installation."""
        script = self.place / "verify.py"
        single_file.write(script)
        argv = [sys.executable, "-I", str(script), str(sealed.path)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=ALONE_S, check=False)
        if done.returncode != EXITS[sealed.verdict["outcome"]]:
            raise HarnessError("tampered", f"exit {done.returncode}: {(done.stdout + done.stderr).strip()[-400:]}")


def _why(error: Exception) -> str:
    """The error, and the line of ours in which it arose where it is a bug."""
    if isinstance(error, HarnessError):
        return error.message
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "harness" in frame.filename]
    where = f" in {Path(frames[-1].filename).name} line {frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
