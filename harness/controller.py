"""A run seen from where it was asked for: check, plan, start, watch, fetch, judge, seal.

The supervisor on the host does the work and does not need this process, nor a link that holds.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from harness import campaign, canonical, floor_store, index, prerequisites, settings, signing, trace_files, transport
from harness.agent.values import Packed, Prepared, pack_document
from harness.config import Config
from harness.display import Display
from harness.ed25519 import PrivateKey, read_private
from harness.errors import HarnessError, UsageError
from harness.plan import Plan
from harness.rehearsal import offline
from harness.rehearsal.run import Rehearsed, rehearse
from harness.report.summary import summary
from harness.sealing import Sealed, seal_run
from harness.transport.base import LinkLost, Patient, Transport
from harness.watching import CALL_S, Refused, Watch

__all__ = ["PREPARE_S", "Sealed", "attach", "require_structure", "run"]

PREPARE_S = 3600.0  # weights of a large model may be written first
START_S = 300.0
NO_FLOOR = "no A/A floor fits: the strict verdict only; `python -m harness floor` makes one"
PACK_S = 900.0  # the SHA-256 of every raw file


@dataclass(frozen=True)
class _Order:
    """What is needed to start a run. `document` is the user's plan document."""

    config: Config
    plan: Plan
    prepared: Prepared
    document: bytes | None
    traces: Mapping[str, trace_files.Given]
    floors: list[Any]
    link: Transport
    invoked_in: Path


def run(config: Config, invoked_in: Path, console: Console, aa: Mapping[str, Any] | None = None) -> Sealed | Rehearsed:
    """Run one campaign to its sealed bundle, or rehearse it (`rehearse=true`). UsageError before anything is started.

    `aa` makes it a campaign of an A/A floor, as `campaign.plan` takes it.
    """
    if config.rehearse:
        return _only_rehearsed(config, invoked_in, console)
    root = _root(config, invoked_in)
    signer = _signer(config, invoked_in)
    with closing(transport.connect(config.host)) as link, Display(console) as display:
        display.note("checking the configuration and preparing weights and prompts")
        document = _document(config, invoked_in)
        proofs = _proofs(config, invoked_in, aa)
        traces = trace_files.read(config.gate, invoked_in)
        plan, prepared = _plan(config, document, traces, link, aa)
        if proofs is not None:
            plan = replace(plan, prerequisites=prerequisites.document(config.gate, proofs, plan))
        floors = [] if aa is not None else floor_store.choose(config.floor, root, invoked_in, plan)
        if floors:
            plan = replace(plan, floor={"digests": [floor["digest"] for floor in floors]})
        if config.rehearse is False:
            plan = replace(plan, rehearsal=False)
        display.note(f"candidate against baseline: {'; '.join(plan.difference) or 'identical arms'}")
        if aa is None:
            display.note(f"interpreted by {len(floors)} floor" if floors else NO_FLOOR)
        for gap in index.gaps(root):
            display.note(gap)
        for reason in plan.unbinding():
            display.note(f"this run will not bind: {reason}")
        name = _unfinished(config, plan, link, root)
        if name is not None:
            display.note(f"attaching to the unfinished run {name} of the same plan")
        else:
            order = _Order(config, plan, prepared, document, traces, floors, link, invoked_in)
            _rehearse(order, display)
            name = _start(order, display)
        sealed = _finish(config, name, link, display, root)
    return _closed(sealed, signer, console, invoked_in)


def _only_rehearsed(config: Config, invoked_in: Path, console: Console) -> Rehearsed:
    """Without the host: what it would say is made up, and so are the bundles of a grid that names none."""
    document = _document(config, invoked_in)
    traces = trace_files.read(config.gate, invoked_in)
    plan = _checked(_planned(config, document, traces, offline.prepared(config), None), None)
    if config.gate.name == "g5":
        prerequisites.read(config.gate, invoked_in)
        plan = replace(plan, prerequisites=offline.prerequisites(config.gate.second_model))
    done = rehearse(config, plan, document=document, traces=traces, floors=[], invoked_in=invoked_in)
    for line in done.lines():
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return done


def _rehearse(order: _Order, display: Display) -> None:
    """All of the plan against made processes, before a lease is asked for. UsageError `rehearsal` starts nothing."""
    if order.config.rehearse is False:
        display.note("not rehearsed: rehearse=false")
        return
    display.note("rehearsing the plan against made processes")
    done = rehearse(
        order.config,
        order.plan,
        document=order.document,
        traces=order.traces,
        floors=order.floors,
        invoked_in=order.invoked_in,
    )
    for line in done.lines():
        display.note(line)


def attach(config: Config, name: str, invoked_in: Path, console: Console) -> Sealed:
    """Watch the run `name` of the host and seal it. UsageError `no-such-run`."""
    signer = _signer(config, invoked_in)
    with closing(transport.connect(config.host)) as link, Display(console) as display:
        sealed = _finish(config, name, link, display, _root(config, invoked_in))
    return _closed(sealed, signer, console, invoked_in)


def _signer(config: Config, invoked_in: Path) -> PrivateKey | None:
    """The key that will sign, read before anything is started. UsageError `bad-key`."""
    return None if config.signing.key is None else read_private(invoked_in / config.signing.key)


def _closed(sealed: Sealed, signer: PrivateKey | None, console: Console, invoked_in: Path) -> Sealed:
    """Sign where that was asked for, and tell. What could not be signed now is sealed: `harness sign` does it later."""
    lines = _told(sealed, invoked_in)
    if signer is not None:
        signing.sign(sealed.path, signer)
        lines.append(f"signed by key {signer.public.keyid}")
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return sealed


def _root(config: Config, invoked_in: Path) -> Path:
    return (invoked_in / config.evidence.root).resolve()


def _told(sealed: Sealed, invoked_in: Path) -> list[str]:
    short = sealed.path.relative_to(invoked_in) if sealed.path.is_relative_to(invoked_in) else sealed.path
    return [*summary(sealed.verdict), f"bundle {short}", f"digest {sealed.digest}"]


def _document(config: Config, invoked_in: Path) -> bytes | None:
    """The plan document that the user gave; its path becomes absolute. UsageError when it is unreadable."""
    if config.engine.plan is None:
        return None
    path = (invoked_in / config.engine.plan).resolve()
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(
            "unreadable-plan", f"engine.plan={path}: {error.strerror}; give a native plan document"
        ) from error
    config.engine.plan = str(path)
    return data


def _proofs(config: Config, invoked_in: Path, aa: Mapping[str, Any] | None) -> list[prerequisites.Proof] | None:
    """The bundles that a grid stands on; None where none are asked for. UsageError `prerequisites` refuses the run."""
    if config.gate.name != "g5" or aa is not None:
        return None
    proofs = prerequisites.read(config.gate, invoked_in)
    prerequisites.demand(config.gate, proofs)
    return proofs


def _plan(
    config: Config,
    document: bytes | None,
    traces: Mapping[str, trace_files.Given],
    link: Transport,
    aa: Mapping[str, Any] | None,
) -> tuple[Plan, Prepared]:
    """The frozen plan: what was asked for, and what the host says of the subject and of itself."""
    try:
        answer = link.call("prepare", {"config": settings.dump(config)}, timeout_s=PREPARE_S)
    except LinkLost as error:
        raise UsageError("unreachable", f"{error.message}; nothing was started") from error
    prepared = Prepared.from_json(answer)
    return _checked(_planned(config, document, traces, prepared, aa), aa), prepared


def _planned(
    config: Config,
    document: bytes | None,
    traces: Mapping[str, trace_files.Given],
    prepared: Prepared,
    aa: Mapping[str, Any] | None,
) -> Plan:
    return campaign.plan(
        config,
        subject=prepared.subject,
        capabilities=prepared.capabilities,
        host=prepared.host,
        gpu=prepared.gpu,
        corpus=prepared.corpus,
        frozen_plan_sha256=None if document is None else canonical.sha256_bytes(document),
        aa=aa,
        suites=prepared.suites,
        not_tested=prepared.not_tested,
        structure=prepared.structure,
        traces={arm: given.named() for arm, given in traces.items()},
    )


def _checked(plan: Plan, aa: Mapping[str, Any] | None) -> Plan:
    """The plan itself. UsageError where the arms are no comparison, or there is nothing to look at."""
    require_structure(plan)
    if aa is None and not plan.difference:
        raise UsageError("same-arms", "engine.candidate and engine.baseline are the same; set what the change is")
    if len(plan.difference) > 1 and not plan.stacked:
        raise UsageError(
            "stacked",
            f"the arms differ in {len(plan.difference)} levers ({'; '.join(plan.difference)}); "
            "change one, or say gate.stacked=true",
        )
    return plan


def require_structure(plan: Plan) -> None:
    """G3 has something to look at. UsageError `no-structure` where it has not: a pass would mean nothing."""
    if plan.structure is None:
        return
    if plan.structure["traces"] and not plan.structure["families"]:
        mend = "say gate.families=[{name: NAME, pattern: REGEX, per_forward: N}]"
        raise UsageError("no-families", f"gate.traces: nothing is known of the kernels of {plan.engine}; {mend}")
    if "fp4_plans" not in plan.capabilities and not plan.structure["counters"] and not plan.structure["traces"]:
        text = f"{plan.engine} keeps no FP4 plans and counts no GEMMs, so gate=g3 has nothing to look at"
        raise UsageError("no-structure", f"{text}; give kernel traces (gate.traces)")


def _unfinished(config: Config, plan: Plan, link: Transport, root: Path) -> str | None:
    """A run of the same plan that goes on, or that ended unseen: it is an attempt, too, and must not be lost."""
    request = {"host": asdict(config.host), "prefix": _prefix(plan)}
    try:
        found = link.call("find", request, timeout_s=CALL_S)["runs"]
    except LinkLost as error:
        raise UsageError("unreachable", f"{error.message}; nothing was started by this call") from error
    for name in found:
        if not (root / name).exists():
            return str(name)
        _forget(config, name, link)  # sealed already; the link was lost before its folder could be removed
    return None


def _prefix(plan: Plan) -> str:
    return f"{plan.gate}-{plan.digest()[:12]}"


def _start(order: _Order, display: Display) -> str:
    """Start the run and return its name. It is named here, so that asking twice does not start two."""
    config, plan = order.config, order.plan
    nonce = secrets.token_hex(4)
    name = f"{_prefix(plan)}-{nonce}"
    root = _root(config, order.invoked_in)
    places = {"invoked_in": str(order.invoked_in), "evidence_root": str(root), "plan_document": config.engine.plan}
    request = {
        "run": name,
        "config": settings.dump(config),
        "plan": plan.to_bytes().decode(),
        "prompts": order.prepared.prompts,
        "document": None if order.document is None else pack_document(order.document),
        "earlier": index.earlier(root, index.subject_key(plan)),
        "nonce": nonce,
        "traces": trace_files.packed(order.traces),
        "floor": floor_store.packed(order.floors).decode() if order.floors else None,
        "places": places,
    }
    patient = Patient(order.link.where, display.note)
    try:
        patient(lambda: order.link.call("start", request, timeout_s=START_S))
    except KeyboardInterrupt:
        where = f"interrupted while {name} was being started on {order.link.where}"
        raise UsageError("interrupted", f"{where}; if it was, the same command attaches to it") from None
    return name


def _finish(config: Config, name: str, link: Transport, display: Display, root: Path) -> Sealed:
    """Watch to the end, fetch, seal, and only then let the host forget it."""
    watch = Watch(config.host, name, link, display)
    try:
        watch.until_ended()
    except Refused:
        _forget(config, name, link)
        raise
    request = {"host": asdict(config.host), "run": name}
    try:
        packed = Packed.from_json(watch.patiently(lambda: link.call("pack", request, timeout_s=PACK_S)))
        sealed: Sealed = watch.patiently(lambda: seal_run(name, packed, link, root))
    except KeyboardInterrupt:
        raise UsageError("interrupted", f"{name} has ended and is not sealed yet; the same command seals it") from None
    _forget(config, name, link)
    return sealed


def _forget(config: Config, name: str, link: Transport) -> None:
    """Remove the run's folder on its host. A link that is lost now does no harm: the next call of the plan does it."""
    try:
        link.call("forget", {"host": asdict(config.host), "run": name}, timeout_s=CALL_S)
    except HarnessError as error:
        print(f"the folder of {name} stays on {link.where}: {error.message}", file=sys.stderr)
