"""`harness doctor [KEY=VALUE …]`: the table for this host, or its rows and facts as JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from harness import canonical
from harness.config import Config
from harness.doctor.facts import Request, facts
from harness.doctor.table import BAD, Limits, Row, rows
from harness.engines import registry
from harness.engines.base import Engine
from harness.errors import EXIT_FAIL, EXIT_PASS, UsageError
from harness.settings import compose_config
from harness.state import cache_dir, state_dir

__all__ = ["doctor", "limits_of", "request_of", "show"]

COLOURS = {"ok": "green", "warn": "yellow", "bad": "red"}


def request_of(config: Config, engine: Engine) -> Request:
    """What to ask of the host of `config`, where `engine` keeps its weights."""
    host = config.host
    return Request(host.port, Path(host.lease_path), state_dir(host), tuple(engine.cache_roots()))


def limits_of(config: Config, engine: Engine) -> Limits:
    host = config.host
    return Limits(
        host.min_mem_available_mib, host.min_disk_free_mib, host.max_load_average, "gpu" in engine.capabilities
    )


def doctor(overrides: Sequence[str], as_json: bool) -> int:
    """Exit code 1 when a row is bad. Bad configuration is UsageError as everywhere."""
    config = compose_config(overrides)
    if config.host.transport != "local":
        mend = "run it there, or `python -m harness.doctor.facts` there for its facts"
        raise UsageError("doctor-local", f"doctor looks at this machine alone, not at host {config.host.name}; {mend}")
    engine = registry.create(config.engine.name, config.engine.options, cache_dir(config.host))
    document = facts(request_of(config, engine))
    table = rows(document, limits_of(config, engine))
    if as_json:
        answer = {"rows": [asdict(row) for row in table], "facts": document}
        sys.stdout.write(canonical.dumps(answer).decode())
    else:
        show(table, config.host.name)
    return EXIT_FAIL if any(row.verdict == BAD for row in table) else EXIT_PASS


def show(table: Sequence[Row], host: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(title=f"host {host}", title_justify="left", box=None, pad_edge=False)
    for head in ("what", "seen", "", "what to do"):
        made.add_column(head, overflow="fold")
    for row in table:
        made.add_row(Text(row.what), Text(row.seen), Text(row.verdict, COLOURS[row.verdict]), Text(row.do))
    console = Console()
    console.print(made)
    counts = {name: sum(row.verdict == name for row in table) for name in COLOURS}
    console.print(f"{counts['ok']} ok, {counts['warn']} to know, {counts['bad']} to mend before a run")
