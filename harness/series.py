"""One load series: the client in a process of its own, watched for the engine's death, a stall and a deadline."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import bench_client, machine, process, watchdog
from harness.bundle import write_new
from harness.context import Context
from harness.engines.base import Address
from harness.errors import HarnessError
from harness.process import Exit, Owned

__all__ = ["Series", "log_end", "run_series"]

POLL_S = 0.1
AFTER_S = 10.0  # the client ends by itself this long after the deadline; the watchdog acts at it
DEATH_S = 0.1  # a dying process closes its sockets a moment before its end can be seen
OUTPUTS = ("requests.jsonl.gz", "texts.jsonl", "vllm-bench.json")


@dataclass(frozen=True)
class Series:
    """What is sent: the rows of `prompts`, `concurrency` at a time, after `warmups` untimed requests."""

    prompts: Path
    concurrency: int
    warmups: int
    keep_text: bool = False


def run_series(
    context: Context, series: Series, owned: Owned | None, folder: Path, address: Address | None = None
) -> dict[str, Any]:
    """Run the client against the engine `owned`, or a server elsewhere at `address`.

    Its records go to the leg's `folder`, its report is returned. HarnessError `engine-died`, `engine-stalled`,
    `client-stalled`, `leg-deadline` or `client-failed`, each with the end of a log; before a leg that hangs is ended,
    its autopsy is saved.
    """
    out = context.state.root / f"{folder.name}.client"
    out.mkdir()
    (out / "spec.json").write_text(json.dumps(_spec(context, series, out, address)))
    argv = _client(context, out)
    load = context.machine.start(machine.CLIENT, argv, {}, context.state.root, out / "client.log")
    engine_log, client_log = folder / "engine.log", out / "client.log"
    watched = {"client": load} if owned is None else {"engine": owned, "client": load}
    try:
        with watchdog.autopsied(folder, watched, {"engine.log": engine_log, "client.log": client_log}):
            _watch(context, owned, load, engine_log, client_log)
    finally:
        context.machine.stop(load, 1.0)
    for name in OUTPUTS:
        if (out / name).is_file():
            write_new(folder / name, (out / name).read_bytes())
    report = json.loads((out / "load.json").read_bytes())
    assert isinstance(report, dict)
    return report


def _client(context: Context, out: Path) -> list[str]:
    spec = str(out / "spec.json")
    if context.config.client.name != bench_client.NAME:
        return [sys.executable, "-m", "harness.client", spec]
    (out / "bench.json").write_text(json.dumps(bench_client.call(context.config, context.engine)))
    return [sys.executable, "-m", "harness.client.vllm_bench_run", spec, str(out / "bench.json")]


def _spec(context: Context, series: Series, out: Path, address: Address | None) -> dict[str, Any]:
    where = address or Address("127.0.0.1", context.config.host.port)
    return {
        "host": where.host,
        "port": where.port,
        "path": f"{where.prefix}/v1/completions",
        "model": context.engine.served_model(),
        "prompts_file": str(series.prompts),
        "concurrency": series.concurrency,
        "warmups": series.warmups,
        "keep_text": series.keep_text,
        "running_usage": context.engine.running_usage,
        "max_tokens": context.plan.output_tokens,
        "extra_body": {"seed": context.config.workload.seed, "ignore_eos": True},
        "request_timeout_s": context.config.client.request_timeout_s,
        "deadline_s": max(0.0, context.deadline.left_s) + AFTER_S,
        "out_dir": str(out),
    }


def _watch(context: Context, owned: Owned | None, load: Owned, engine_log: Path, client_log: Path) -> None:
    client = context.config.client
    began = moved = time.monotonic()
    last: Mapping[str, Any] = {}
    while (ended := load.wait(POLL_S)) is None:
        context.check()
        _alive(None if owned is None else owned.poll(), engine_log)
        now, seen = time.monotonic(), _last_progress(client_log)
        if seen != last:
            last, moved = seen, now
            context.tell({"phase": "load", "seconds": now - began, **seen})
        # The vLLM client says nothing while it runs: a stall is seen at the leg's deadline.
        if now - moved > client.stall_timeout_s and client.name != bench_client.NAME:
            raise _stall(client.stall_timeout_s, load, engine_log)
        context.deadline.check("under load")
    context.check()  # who stops a run stops its client, too
    # A short load fails and ends before its engine's death is looked at.
    _alive(None if owned is None else owned.wait(DEATH_S), engine_log)
    if str(ended) != "exit code 0":
        raise HarnessError("client-failed", f"the load client ended with {ended}; {log_end(client_log)}")


def _alive(death: Exit | None, engine_log: Path) -> None:
    if death is not None:
        raise HarnessError("engine-died", f"the engine ended under load ({death}); {log_end(engine_log)}")


def _stall(limit_s: float, load: Owned, engine_log: Path) -> HarnessError:
    if watchdog.stopped(load.identity):
        return HarnessError("client-stalled", f"the load client was stopped by somebody for {limit_s:g} s")
    return HarnessError("engine-stalled", f"no new token for {limit_s:g} s; {log_end(engine_log)}")


def log_end(log: Path) -> str:
    """The last lines of a log, for a message."""
    return f"its log ends:\n{process.tail(log)}"


def _last_progress(log: Path) -> dict[str, Any]:
    """The client's newest progress line."""
    for line in reversed(process.tail(log, 3).splitlines()):
        if line.startswith("{"):
            try:
                return dict(json.loads(line))
            except ValueError:  # still being written
                continue
    return {}
