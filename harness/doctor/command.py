"""`harness doctor [KEY=VALUE …]`: the table for this host or one behind SSH, or its rows and facts as JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

from harness import bootstrap, canonical, settings, tools, transport
from harness.config import Config
from harness.doctor import link
from harness.doctor.facts import TOOLS
from harness.doctor.table import BAD, OK, Limits, Row, bare_rows, rows
from harness.engines import registry
from harness.errors import EXIT_FAIL, EXIT_PASS, HarnessError
from harness.state import cache_dir
from harness.transport.remote import Remote

__all__ = ["doctor", "show"]

COLOURS = {"ok": "green", "warn": "yellow", "bad": "red"}
FACTS_S = 300.0  # a driver that hangs is waited for

Looked = tuple[list[Row], Mapping[str, Any] | None]


def doctor(overrides: Sequence[str], as_json: bool) -> int:
    """Exit code 1 when a row is bad. Bad configuration is UsageError as everywhere."""
    config = settings.compose_config(overrides)
    table, document = _far(config) if config.host.transport == "ssh" else _facts(config)
    if as_json:
        answer = {"rows": [asdict(row) for row in table], "facts": document}
        sys.stdout.write(canonical.dumps(answer).decode())
    else:
        show(table, config.host.name)
    return EXIT_FAIL if any(row.verdict == BAD for row in table) else EXIT_PASS


def _facts(config: Config) -> Looked:
    """The agent's answer, from this machine or from a prepared host, judged."""
    with closing(transport.connect(config.host)) as connected:
        answer = connected.call("facts", {"config": settings.dump(config)}, timeout_s=FACTS_S)
    return rows(answer["facts"], _limits(config, answer["gpu"])), answer["facts"]


def _limits(config: Config, gpu: bool) -> Limits:
    host = config.host
    return Limits(host.min_mem_available_mib, host.min_disk_free_mib, host.max_load_average, gpu)


def _far(config: Config) -> Looked:
    """First the way there, then the host. Each step that fails is a row, and the steps behind it are not taken."""
    with closing(Remote(config.host)) as remote:
        begun = time.monotonic()
        try:
            with remote.connection() as opened:
                reached = link.Reached(str(opened.target), time.monotonic() - begun, opened.host_key)
        except HarnessError as error:
            return link.refused(error), None
        before = time.time_ns()
        try:
            found = remote.ask("facts", _question(config))
        except HarnessError as error:
            return [*reached.rows(), link.unasked(error)], None
        clock = link.Clock(before, int(found["utc_ns"]), time.time_ns())
    ours = bootstrap.sources()
    there = link.prepared(found, ours.name, ours.sha256, config.host.name)
    way = [*reached.rows(), clock.row(), there]
    if there.verdict != OK:
        gpu = registry.create(config.engine.name, config.engine.options, cache_dir(config.host)).capabilities
        return [*way, *bare_rows(found, _limits(config, "gpu" in gpu))], found
    table, document = _facts(config)
    return [*way, *table], document


def _question(config: Config) -> dict[str, Any]:
    return {
        "sources": bootstrap.sources().name,
        "tools": TOOLS,
        "tool_folders": tools.FOLDERS,
        "lease_path": config.host.lease_path,
        "state_dir": config.host.state_dir,
    }


def show(table: Sequence[Row], host: str) -> None:
    from rich.table import Table
    from rich.text import Text

    from harness.display import terminal

    made = Table(title=f"host {host}", title_justify="left", box=None, pad_edge=False)
    for head in ("what", "seen", "", "what to do"):
        made.add_column(head, overflow="fold")
    for row in table:
        made.add_row(Text(row.what), Text(row.seen), Text(row.verdict, COLOURS[row.verdict]), Text(row.do))
    console = terminal()
    console.print(made)
    counts = {name: sum(row.verdict == name for row in table) for name in COLOURS}
    console.print(f"{counts['ok']} ok, {counts['warn']} to know, {counts['bad']} to mend before a run")
