"""`status`, `attach` and `stop`: runs that somebody started on a host, seen by their names."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from harness import controller, transport
from harness.agent.values import RunLine
from harness.config import Config
from harness.display import describe
from harness.errors import UsageError
from harness.transport.base import LinkLost, Transport
from harness.watching import CALL_S

__all__ = ["attach", "line", "status", "stop"]


def status(config: Config) -> list[str]:
    """Lines for a person: the lease, then every run in the host's state folder with its phase and leg k of n."""
    with closing(transport.connect(config.host)) as link:
        rows, lease = _list(config, link)
        none = f"no run in the state folder of {link.where}"
    return [f"{config.host.name}: {lease}", *([line(row) for row in rows] or [none])]


def line(row: RunLine) -> str:
    """One run as `status` prints it."""
    said = {
        "waiting": "waits for the lease",
        "held": "holds the lease",
        "draining": "ends its processes",
        "released": "ended; not sealed yet: `attach` seals it",
        "failed": "ended without success; not sealed yet: `attach` seals it",
        "lost": "its keeper is gone without a word (killed); `attach` seals it as VOID",
        "rebooted": "the host was started anew meanwhile; `attach` seals it as VOID",
    }
    where = f", {describe(row.progress, None)}" if row.alive and row.progress else ""
    return f"{row.run}  {row.phase} since {row.since}: {said.get(row.phase, row.phase)}{where}"


def attach(config: Config, name: str, invoked_in: Path, console: Console) -> controller.Sealed:
    """Watch a run and seal it. `name` may be cut, while it means one run."""
    with closing(transport.connect(config.host)) as link:
        full = _full(config, link, name)
    return controller.attach(config, full, invoked_in, console)


def stop(config: Config, name: str, how: str) -> str:
    """Ask a run to end, `after-leg` or `now`; returns a sentence. The run is sealed by `attach` or its own command."""
    with closing(transport.connect(config.host)) as link:
        full = _full(config, link, name)
        answer = link.call("stop", {"host": asdict(config.host), "run": full, "how": how}, timeout_s=CALL_S)
    if not answer["alive"]:
        return f"{full} has ended already; `python -m harness attach {full}` seals it"
    when = "now" if how == "now" else "after the leg in flight"
    return f"{full} stops {when}; `python -m harness attach {full}` follows and seals it"


def _list(config: Config, link: Transport) -> tuple[list[RunLine], str]:
    try:
        answer = link.call("list", {"host": asdict(config.host)}, timeout_s=CALL_S)
    except LinkLost as error:
        raise UsageError("unreachable", f"{error.message}; what runs there goes on") from error
    return [RunLine.from_json(row) for row in answer["runs"]], str(answer["lease"])


def _full(config: Config, link: Transport, name: str) -> str:
    found = [row.run for row in _list(config, link)[0] if row.run.startswith(name)]
    if len(found) != 1:
        which = f"names {len(found)} runs: {', '.join(found)}" if found else "names no run"
        mend = f"`python -m harness status host={config.host.name}` lists them"
        raise UsageError("no-such-run", f"{name!r} {which} on {link.where}; {mend}")
    return found[0]
