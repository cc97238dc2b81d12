"""A run seen from where it was asked for: check, plan, start, watch, fetch, judge, seal.

The supervisor does the work and does not need this process; everything after the raw files is a pure function.
"""

from __future__ import annotations

import secrets
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from harness import bundle, campaign, canonical, corpus, index, journal, keeper, ports, process, settings, verify
from harness.config import Config
from harness.display import Display
from harness.engines import registry
from harness.engines.base import Engine
from harness.errors import EXITS, HarnessError, UsageError
from harness.plan import Plan
from harness.report import markdown
from harness.report.summary import summary
from harness.state import RunState, cache_dir, state_dir, write_atomic
from harness.transport.local import Local

__all__ = ["Sealed", "run", "seal_run"]

POLL_S = 0.2


@dataclass(frozen=True)
class Sealed:
    """A finished run: where its bundle lies, its digest and its verdict."""

    path: Path
    digest: str
    verdict: dict[str, Any]

    @property
    def exit_code(self) -> int:
        return EXITS[self.verdict["outcome"]]


def run(config: Config, invoked_in: Path, console: Console) -> Sealed:
    """Run one campaign to its sealed bundle. UsageError before anything is started."""
    root = (invoked_in / config.evidence.root).resolve()
    transport = Local(config.host)
    with Display(console) as display:
        display.note("checking the configuration and preparing weights and prompts")
        plan, folder = _plan(config, invoked_in, transport)
        display.note(f"candidate against baseline: {'; '.join(plan.difference)}")
        for reason in plan.unbinding():
            display.note(f"this run will not bind: {reason}")
        unfinished = _unfinished(config, plan, transport)
        if unfinished is not None:
            display.note(f"attaching to the unfinished run {unfinished.root.name} of the same plan")
            state = unfinished
        else:
            ports.require_free(config.host.port, "host.port")
            state = _new_state(config, plan, folder, root, invoked_in)
            transport.start(state)
        try:
            _watch(state, transport, display)
        except UsageError:  # the lease was never held, so nothing was started and nothing needs to be kept
            shutil.rmtree(state.root, ignore_errors=True)
            raise
    sealed = seal_run(state, root)
    for line in summary(sealed.verdict):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(f"bundle {_short(sealed.path, invoked_in)}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"digest {sealed.digest}", highlight=False, markup=False, soft_wrap=True)
    return sealed


def _short(path: Path, base: Path) -> Path:
    return path.relative_to(base) if path.is_relative_to(base) else path


def _plan(config: Config, invoked_in: Path, transport: Local) -> tuple[Plan, Path]:
    """The frozen plan and the folder of its prompts."""
    engine = registry.create(config.engine.name, config.engine.options, cache_dir(config.host))
    frozen = _frozen_document(config, invoked_in, engine)
    for arm in (config.engine.candidate, config.engine.baseline):
        engine.launch(asdict(arm), config.host.port, None, True)  # refuses flags that the engine does not know
    engine.prepare()
    counts = {concurrency: config.workload.points[concurrency] for concurrency in config.gate.concurrencies}
    prompts = corpus.build(
        seed=config.workload.seed,
        tokens=config.workload.input_tokens,
        counts=counts,
        repetitions=config.gate.repetitions,
        first_token=engine.first_token,
        vocabulary=engine.vocabulary,
    )
    folder = cache_dir(config.host) / "corpus" / canonical.sha256_bytes(canonical.dumps(dict(prompts.digests)))[:16]
    corpus.write(prompts, folder)
    identity = transport.identity()
    plan = campaign.plan(
        config,
        subject=engine.identity(),
        capabilities=sorted(engine.capabilities),
        host=identity.facts,
        gpu=identity.gpu,
        corpus=prompts.digests,
        frozen_plan_sha256=frozen,
    )
    if not plan.difference:
        raise UsageError("same-arms", "engine.candidate and engine.baseline are the same; set what the change is")
    if len(plan.difference) > 1 and not plan.stacked:
        raise UsageError(
            "stacked",
            f"the arms differ in {len(plan.difference)} levers ({'; '.join(plan.difference)}); "
            "change one, or say gate.stacked=true",
        )
    return plan, folder


def _frozen_document(config: Config, invoked_in: Path, engine: Engine) -> str | None:
    """SHA-256 of a plan document that the user gave; its path becomes absolute. UsageError when it is unreadable."""
    if config.engine.plan is None:
        return None
    if "fp4_plans" not in engine.capabilities:
        raise UsageError(
            "bad-value", f"engine.plan={config.engine.plan}: {engine.name} keeps no FP4 plans; leave it null"
        )
    path = (invoked_in / config.engine.plan).resolve()
    try:
        digest = canonical.sha256_file(path)
    except OSError as error:
        raise UsageError(
            "unreadable-plan", f"engine.plan={path}: {error.strerror}; give a native plan document"
        ) from error
    config.engine.plan = str(path)
    return digest


def _unfinished(config: Config, plan: Plan, transport: Local) -> RunState | None:
    """A run of the same plan that goes on, or that ended unseen: it is an attempt, too, and must not be lost."""
    digest = plan.digest()
    for folder in sorted(state_dir(config.host).glob(f"{plan.gate}-{digest[:12]}-*")):
        state = RunState(folder)
        if transport.started(state):
            return state
        shutil.rmtree(folder, ignore_errors=True)  # its controller died before it started anything
    return None


def _new_state(config: Config, plan: Plan, prompts: Path, root: Path, invoked_in: Path) -> RunState:
    nonce = secrets.token_hex(4)
    state = RunState(state_dir(config.host) / f"{plan.gate}-{plan.digest()[:12]}-{nonce}")
    state.root.parent.mkdir(parents=True, exist_ok=True)
    state.root.mkdir(mode=0o700)  # run.json holds the arms' secrets
    state.bundle.mkdir()
    shutil.copytree(prompts, state.corpus)
    bundle.write_new(state.plan, plan.to_bytes())
    bundle.write_new(state.bundle / "command.json", canonical.dumps(_places(config, root, invoked_in)))
    write_atomic(
        state.run,
        {
            "config": settings.dump(config),
            "earlier": index.earlier(root, index.subject_key(plan)),
            "evidence_root": str(root),
            "invoked_in": str(invoked_in),
            "nonce": nonce,
        },
    )
    return state


def _places(config: Config, root: Path, invoked_in: Path) -> dict[str, Any]:
    """What is of this host and this call alone: recorded beside the plan, not in its digest."""
    host = config.host
    return {
        "python": sys.executable,
        "invoked_in": str(invoked_in),
        "evidence_root": str(root),
        "state_dir": str(state_dir(host)),
        "cache_dir": str(cache_dir(host)),
        "lease_path": host.lease_path,
        "port": host.port,
        "plan_document": config.engine.plan,
    }


def _watch(state: RunState, transport: Local, display: Display) -> None:
    """Show progress until the run has ended. Ctrl-C once: stop after this leg; twice: stop now."""
    asked = 0
    while True:
        try:
            for line in transport.waiting(state):
                display.note(line)
            news = state.read(state.progress)
            if news:
                display.show(news)
            if not transport.alive(state):
                return
            time.sleep(POLL_S)
        except KeyboardInterrupt:
            asked += 1
            transport.stop(state, "after-leg" if asked == 1 else "now")
            display.note("stopping after this leg; press Ctrl-C again to stop now" if asked == 1 else "stopping now")


def _close_journal(path: Path, state: RunState) -> None:
    """A supervisor that died left no end. What it wrote stays, a cut line is set aside, and the run becomes void."""
    data = path.read_bytes() if path.exists() else b""
    whole, cut = journal.whole_lines(data)
    if whole and journal.parse(whole)[-1]["event"] == "end":
        return
    if cut:
        path.with_name("journal.cut").write_bytes(cut)
    path.write_bytes(whole)
    said = process.tail(state.root / keeper.SUPERVISOR_LOG) or process.tail(state.root / keeper.LOG)
    message = f"the supervisor ended without closing its journal; it said:\n{said}"
    journal.Journal(path).write("void", code="supervisor-died", where="run", message=message)


def seal_run(state: RunState, root: Path) -> Sealed:
    """Copy the raw files under the evidence root, judge them, seal them, and record the attempt.

    UsageError `evidence-unwritable` keeps the raw files where they are: the same command seals them later.
    """
    try:
        sealed = _seal(state, root)
    except OSError as error:
        raise UsageError(
            "evidence-unwritable",
            f"evidence.root={root}: {error.strerror}; the run's files are kept in {state.root}, so mend that and run "
            "the same command again",
        ) from error
    shutil.rmtree(state.root, ignore_errors=True)
    return sealed


def _seal(state: RunState, root: Path) -> Sealed:
    final = root / state.root.name
    partial = root / f".{state.root.name}.partial"
    root.mkdir(parents=True, exist_ok=True)
    if final.exists():
        raise HarnessError("would-overwrite", f"{final} exists already; nothing is ever overwritten")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(state.bundle, partial)
    _close_journal(partial / "journal.jsonl", state)
    bundle.write_new(partial / "keeper.json", canonical.dumps(state.read(state.root / keeper.STATE) or {}))
    verdict = verify.assess(partial)
    bundle.write_new(partial / "verdict.json", canonical.dumps(verdict))
    digest = bundle.seal(partial)
    for name, data in markdown.derived(partial, verdict).items():
        bundle.write_new(partial / name, data)
    partial.rename(final)
    plan = Plan.from_bytes((final / "plan.json").read_bytes())
    index.append(root, run=final.name, plan=plan, digest=digest, verdict=verdict)
    return Sealed(final, digest, verdict)
