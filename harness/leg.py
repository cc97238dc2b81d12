"""One leg: a fresh server, its load, its end, and the files it leaves. Runs on the GPU host, inside the lease."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

from harness import canonical, machine, sanitizer_log, watchdog
from harness.bundle import write_new
from harness.campaign import shown
from harness.context import Context
from harness.engines.base import Address, Launch, Suite, WithSanitizer, WithSuites
from harness.errors import HarnessError
from harness.plan import LegPlan, partition
from harness.process import Owned
from harness.records import SuiteReport
from harness.series import Series, log_end, run_series
from harness.structure import END, READY
from harness.telemetry import procfs, record

__all__ = ["run_leg"]

POLL_S = 0.1
PROOF_TIMEOUT_S = 300.0
PAGE_TIMEOUT_S = 120.0  # vLLM collects the versions of everything for its page, by programs of its own
PROMPT_TOKENS = 8  # of the completion that proves readiness
SAMPLER_END_S = 10.0
NOT_OWNED = "not owned"  # how a server ended that this run did not start


def run_leg(context: Context, leg: LegPlan) -> None:
    """Run one leg and write its folder; `leg.json` is written last, so a folder without it is an interrupted leg."""
    folder = context.state.bundle / "legs" / leg.name
    folder.mkdir(parents=True)
    context.deadline = watchdog.Deadline(context.config.client.leg_deadline_s)
    context.tell({"phase": "starting", "name": leg.name})
    context.machine.begin(leg)
    RUNNERS[leg.kind](context, leg, folder)


def _write(folder: Path, name: str, value: Any) -> None:
    write_new(folder / name, canonical.dumps(value))


def _launch(context: Context, launch: Launch, folder: Path) -> Owned:
    """Start a process of the engine inside the lease; its command is recorded beside the plan, not in its digest."""
    _write(
        folder,
        "command.json",
        {
            "argv": list(launch.argv),
            "env": {name: shown(name, value) for name, value in launch.env.items()},
            "cwd": str(launch.cwd),
        },
    )
    fds = () if context.lease_fd is None else (context.lease_fd,)
    log = folder / "engine.log"
    return context.machine.start(
        machine.ENGINE, launch.argv, launch.env, launch.cwd, log, pass_fds=fds, reaper=context.keeper_pid
    )


def _frozen_sha(context: Context) -> str | None:
    return canonical.sha256_file(context.frozen) if context.frozen is not None and context.frozen.is_file() else None


@contextmanager
def _server(
    context: Context, leg: LegPlan, folder: Path, *, read_only: bool = True, sample: bool = False
) -> Iterator[Owned]:
    """A ready server of the leg's arm. On the way out, whatever happened, it and all it started are gone.

    `sample` starts the memory sampler right after the process, since peaks arise while weights are loaded.
    """
    port = context.config.host.port
    context.machine.require_free(port, "host.port")
    owned = _launch(context, context.engine.launch(context.arm(leg.arm), port, context.frozen, read_only), folder)
    sampler: Owned | None = None
    try:
        sampler = _start_sampler(context, owned, folder) if sample else None
        with watchdog.autopsied(folder, {"engine": owned}, {"engine.log": folder / "engine.log"}):
            _await_ready(context, owned, folder / "engine.log")
        yield owned
        context.metrics[leg.name] = _metrics(context, port)
    finally:
        seen_end = _end(context, owned, sampler)
    _judge_sampler(sampler, seen_end, context.state.root / f"{folder.name}.sampler.log")
    context.deadline.check("being stopped")


def _end(context: Context, owned: Owned, sampler: Owned | None) -> bool:
    """Stop the engine, then its sampler; whether that saw the end of the engine. `engine-survives` outweighs all."""
    context.tell({"phase": "stopping"})
    try:
        report = context.machine.stop(owned, context.config.host.stop_grace_s)
        patience = 0.0 if sampler is not None and watchdog.stopped(sampler.identity) else SAMPLER_END_S
        seen_end = sampler is None or sampler.wait(patience) is not None
    finally:
        if sampler is not None:
            context.machine.stop(sampler, 1.0)
    if report.survivors:
        names = ", ".join(f"{one.pid} ({procfs.command(one.pid)})" for one in report.survivors)
        raise HarnessError("engine-survives", f"processes {names} outlived KILL; the host is dirty, look at them first")
    return seen_end


def _judge_sampler(sampler: Owned | None, seen_end: bool, log: Path) -> None:
    """Its rows are whole only if it ended by itself, after the engine."""
    if not seen_end:
        raise HarnessError("sampler-hangs", "the memory sampler did not see the end of the engine")
    ended = None if sampler is None else sampler.poll()
    if ended is not None and str(ended) != "exit code 0":
        raise HarnessError("sampler-died", f"the memory sampler ended with {ended}, not by itself; {log_end(log)}")


def _metrics(context: Context, port: int) -> str:
    """What the engine says of itself at the end of its load: /metrics, and what else its adapter asks for."""
    pages = [context.machine.get(port, path, PAGE_TIMEOUT_S) for path in context.engine.proof_paths()]
    answers = [context.machine.get(port, "/metrics"), *pages]
    return "\n".join(answer.text() for answer in answers if answer.status == HTTPStatus.OK)


def _await_ready(context: Context, owned: Owned, log: Path) -> None:
    first = context.engine.first_token
    context.tell({"phase": "loading"})
    context.machine.await_ready(
        owned,
        context.config.host.port,
        context.engine.served_model(),
        range(first, first + PROMPT_TOKENS),
        log=log,
        timeout_s=context.config.host.ready_timeout_s,
        check=lambda: _check(context, "loading"),
    )


def _check(context: Context, doing: str) -> None:
    context.check()
    context.deadline.check(doing)


def _start_sampler(context: Context, owned: Owned, folder: Path) -> Owned:
    argv = [
        *(sys.executable, "-m", "harness.telemetry.sampler"),
        *("--pid", str(owned.pid), "--start", str(owned.start_ticks)),
        *("--period", str(context.config.host.sample_period_s), "--out", str(folder / "memory.jsonl")),
        *("--gpu", str(folder / "gpu.jsonl"), "--summary", str(folder / "sampler.json")),
    ]
    if context.keeper_pid is not None:
        argv += ["--reaper", str(context.keeper_pid)]
    log = context.state.root / f"{folder.name}.sampler.log"
    return context.machine.start(machine.SAMPLER, argv, {}, context.state.root, log)


def _leg_head(context: Context, leg: LegPlan, owned: Owned, **more: Any) -> dict[str, Any]:
    log = (context.state.bundle / "legs" / leg.name / "engine.log").read_text("utf-8", "replace")
    said = (context.arm(leg.arm), log, context.metrics.get(leg.name, ""))
    head: dict[str, Any] = {**asdict(leg), "exit": str(owned.poll() or "not reaped"), **more}
    found = {"arm_proof": context.engine.arm_proof(*said), "server": context.engine.server_report(*said)}
    return head | {name: asdict(value) for name, value in found.items() if value is not None}


def _write_plans(context: Context, leg: LegPlan, folder: Path, before: str | None) -> None:
    log = (folder / "engine.log").read_text("utf-8", "replace")
    report = context.engine.plan_report(log, context.metrics.get(leg.name, ""))
    if report is not None:
        after = _frozen_sha(context)
        sha = {"before": before, "after": after or "absent"} if before else None
        _write(folder, "plans.json", {"report": report.to_json(), "document_sha256": sha})


def _seed(context: Context, leg: LegPlan, folder: Path) -> None:
    """The one read-write process: it tunes, saves the document that everything after it is frozen to, and ends."""
    assert context.frozen is not None
    context.frozen.parent.mkdir(parents=True, exist_ok=True)
    with _server(context, leg, folder, read_only=False) as owned:
        pass
    _write_plans(context, leg, folder, None)
    if not context.frozen.is_file():
        raise HarnessError("no-plan-document", f"the seed saved no plans; {log_end(folder / 'engine.log')}")
    shutil.copyfile(context.frozen, context.state.bundle / "frozen-plans.json")
    _write(folder, "leg.json", _leg_head(context, leg, owned))


def _model_gate(context: Context, leg: LegPlan, folder: Path) -> None:
    launch = context.engine.model_gate_argv(context.arm(leg.arm), context.frozen)
    assert launch is not None, "the plan holds a model gate only for engines that have one"
    before = _frozen_sha(context)
    owned = _launch(context, launch, folder)
    try:
        with watchdog.autopsied(folder, {"model gate": owned}, {"engine.log": folder / "engine.log"}):
            _await_end(context, owned, PROOF_TIMEOUT_S, f"the model gate of arm {leg.arm}", "in its model gate")
    finally:
        context.machine.stop(owned, context.config.host.stop_grace_s)
    _write_plans(context, leg, folder, before)
    report = context.engine.model_gate_report((folder / "engine.log").read_text("utf-8", "replace"))
    head = {**asdict(leg), "exit": str(owned.poll()), "model_gate": None if report is None else asdict(report)}
    _write(folder, "leg.json", head)


def _await_end(context: Context, owned: Owned, limit_s: float, what: str, doing: str) -> None:
    deadline = time.monotonic() + limit_s
    while owned.wait(POLL_S) is None:
        _check(context, doing)
        if time.monotonic() > deadline:
            raise HarnessError("timeout", f"{what} did not end within {limit_s:g} s")


def _suite(context: Context, leg: LegPlan, folder: Path) -> None:
    """A command of the engine's own to its end, with what its log says; how it ends is judged later, not here."""
    suites = _own_commands(context, leg)
    launch = next(suite.launch for suite in suites if leg.name.endswith(f"-{suite.name}") and suite.kind == leg.kind)
    owned = _launch(context, launch, folder)
    try:
        context.tell({"phase": "running the engine's own tests"})
        _await_end(context, owned, context.config.client.leg_deadline_s, leg.name, "in its own tests")
    finally:
        context.machine.stop(owned, context.config.host.stop_grace_s)
    log = (folder / "engine.log").read_text("utf-8", "replace")
    report = _own_report(context, leg, log)
    head = {**asdict(leg), "exit": str(owned.poll()), "suite": None if report is None else asdict(report)}
    _write(folder, "leg.json", head)


def _own_commands(context: Context, leg: LegPlan) -> Sequence[Suite]:
    if leg.kind == "sanitizer":
        assert isinstance(context.engine, WithSanitizer), "the plan holds this leg only for engines that have it"
        return context.engine.sanitizers()
    assert isinstance(context.engine, WithSuites), "the plan holds suites only for engines that have them"
    return context.engine.suites(context.config.gate.architectures)


def _own_report(context: Context, leg: LegPlan, log: str) -> SuiteReport | None:
    if leg.kind == "sanitizer":
        return sanitizer_log.parse(log)
    return context.engine.suite_report(log) if isinstance(context.engine, WithSuites) and leg.kind != "build" else None


def _sequential(context: Context, leg: LegPlan, folder: Path) -> None:
    """The first partition's prompts, one at a time (the same shapes in both arms, so the tokens must be the same) or
    all at once."""
    before = _frozen_sha(context)
    few = _few_prompts(context, leg)
    at_once = context.config.gate.sequential_requests if leg.kind == "concurrent" else 1
    series = Series(few, concurrency=at_once, warmups=0, keep_text=True)
    address = _attached(context, leg)
    if address is not None:
        load = run_series(context, series, None, folder, address)
        _write(folder, "leg.json", {**asdict(leg), "exit": NOT_OWNED, "load": load})
        return
    with _server(context, leg, folder) as owned:
        load = run_series(context, series, owned, folder)
    _write_plans(context, leg, folder, before)
    _write(folder, "leg.json", _leg_head(context, leg, owned, load=load))


def _inertness(context: Context, leg: LegPlan, folder: Path) -> None:
    """The sequential proof of the second model: a change made for the first one must leave its tokens alone."""
    assert context.second is not None, "the plan holds this leg only where engine.second names a model"
    _sequential(replace(context, engine=context.second), leg, folder)


def _few_prompts(context: Context, leg: LegPlan) -> Path:
    """A file with the first gate.sequential_requests prompts of the first partition."""
    prompts = context.state.corpus / f"{partition(context.plan.concurrencies[0], 1)}.jsonl"
    rows = prompts.read_bytes().splitlines(keepends=True)[: context.config.gate.sequential_requests]
    few = context.state.root / f"{leg.name}.prompts.jsonl"
    few.write_bytes(b"".join(rows))
    return few


def _structure(context: Context, leg: LegPlan, folder: Path) -> None:
    """A fresh read-only process under a few prompts, with its counters as they are once it is ready and afterwards."""
    assert leg.concurrency is not None
    before = _frozen_sha(context)
    series = Series(_few_prompts(context, leg), leg.concurrency, warmups=0)
    with _server(context, leg, folder) as owned:
        _keep_counters(context, folder / READY)
        load = run_series(context, series, owned, folder)
        _keep_counters(context, folder / END)
    _write_plans(context, leg, folder, before)
    _write(folder, "leg.json", _leg_head(context, leg, owned, load=load))


def _keep_counters(context: Context, path: Path) -> None:
    """/metrics as it is; nothing where the engine has none."""
    answer = context.machine.get(context.config.host.port, "/metrics")
    write_new(path, answer.text().encode() if answer.status == HTTPStatus.OK else b"")


def _replay(context: Context, leg: LegPlan, folder: Path) -> None:
    """A fresh read-only process that gives its one completion of readiness and ends."""
    before = _frozen_sha(context)
    with _server(context, leg, folder) as owned:
        pass
    _write_plans(context, leg, folder, before)
    _write(folder, "leg.json", _leg_head(context, leg, owned))


def _timed(context: Context, leg: LegPlan, folder: Path) -> None:
    assert leg.concurrency is not None
    assert leg.repetition is not None
    before = _frozen_sha(context)
    prompts = context.state.corpus / f"{partition(leg.concurrency, leg.repetition)}.jsonl"
    warmups = context.config.client.warmups
    series = Series(prompts, leg.concurrency, leg.concurrency if warmups is None else warmups)
    address = _attached(context, leg)
    if address is not None:
        _timed_elsewhere(context, leg, folder, series, address)
        return
    baseline = _before(context, folder)
    with _server(context, leg, folder, sample=True) as owned:
        ready_ns = context.machine.now_ns()
        load = run_series(context, series, owned, folder)
    _after(context, folder, baseline)
    _write_plans(context, leg, folder, before)
    _write(folder, "leg.json", _leg_head(context, leg, owned, load=load, **record.peaks(folder, ready_ns)))


def _attached(context: Context, leg: LegPlan) -> Address | None:
    """The arm's server where somebody else runs it, once it has given a token; None where this run starts its own."""
    address = context.engine.attached(context.arm(leg.arm))
    if address is not None:
        first, limit_s = context.engine.first_token, context.config.host.ready_timeout_s
        prompt = range(first, first + PROMPT_TOKENS)
        context.machine.require_answer(address, context.engine.served_model(), prompt, timeout_s=limit_s)
    return address


def _timed_elsewhere(context: Context, leg: LegPlan, folder: Path, series: Series, address: Address) -> None:
    """The load alone, and this host's canary around it: there is no process to start, to sample or to end."""
    state = {"state": context.state.root}
    _write(folder, "host-before.json", {**context.machine.snapshot(state), **record.before(context.machine)})
    load = run_series(context, series, None, folder, address)
    looked = record.after(folder / "host-before.json", context.machine)
    _write(folder, "host-after.json", {**context.machine.snapshot(state), **looked})
    _write(folder, "leg.json", {**asdict(leg), "exit": NOT_OWNED, "load": load})


def _roots(context: Context) -> list[Path]:
    """What is dropped from the page cache: weights, corpus and plan document; never interpreter, libraries, outputs."""
    roots = [*context.engine.cache_roots(), context.state.corpus]
    return roots if context.frozen is None else [*roots, context.frozen]


def _before(context: Context, folder: Path) -> int | None:
    """Drop the cache, look at host and GPU, then read the MemAvailable from which the leg's own drop is counted."""
    context.tell({"phase": "dropping the page cache"})
    drop = context.machine.drop(_roots(context))
    looked = record.before(context.machine)
    # Pages that ended processes free reach MemAvailable seconds late: too low a baseline hides the drop.
    context.machine.settle()
    snapshot = context.machine.snapshot({"state": context.state.root})
    _write(folder, "host-before.json", {**snapshot, **looked, "cache_drop": drop.to_json()})
    available = snapshot["mem_available_kib"]
    floor = context.config.host.min_mem_available_mib * 1024
    if available is not None and available < floor:
        raise HarnessError("low-memory", f"{available} KiB available, host.min_mem_available_mib asks for {floor} KiB")
    return None if available is None else int(available)


def _after(context: Context, folder: Path, baseline: int | None) -> None:
    context.tell({"phase": "waiting for memory to come back"})
    drop = context.machine.drop(_roots(context))
    returned = _await_memory(context, folder, baseline)
    snapshot = context.machine.snapshot({"state": context.state.root})
    looked = record.after(folder / "host-before.json", context.machine)
    _write(folder, "host-after.json", {**snapshot, **looked, "cache_drop": drop.to_json(), "memory_return": returned})


def _await_memory(context: Context, folder: Path, baseline: int | None) -> dict[str, Any] | None:
    """Wait until MemAvailable is back; the tolerance follows from the leg's own drop."""
    rows = (json.loads(line) for line in (folder / "memory.jsonl").read_bytes().splitlines())
    lowest = min((row["mem_available_kib"] for row in rows if row["mem_available_kib"] is not None), default=None)
    drop = None if baseline is None or lowest is None else baseline - lowest
    limit_s = context.config.host.memory_return_timeout_s
    return context.machine.wait_returned(baseline, drop, limit_s).to_json()


RUNNERS = {
    "seed": _seed,
    "model-gate": _model_gate,
    "sequential": _sequential,
    "inertness": _inertness,
    "concurrent": _sequential,
    "replay": _replay,
    "structure": _structure,
    "collect": _suite,
    "suite": _suite,
    "build": _suite,
    "sanitizer": _suite,
    "timed": _timed,
}
