"""`find` and `start`: a run's folder on the host, and the keeper that takes it from there.

One lock makes both a single step, so that a folder without a keeper is certainly one whose starter died, and a `start`
that is repeated because its answer was lost finds the run instead of starting a second.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import bundle, canonical, keeper, ports, settings
from harness.agent.preparing import prompts_folder
from harness.agent.values import unpack_document
from harness.config import Config, HostConfig
from harness.errors import UsageError
from harness.keeper import KeeperPlan
from harness.state import RunState, cache_dir, state_dir, write_atomic

__all__ = ["find", "lay_out", "start"]

GIVEN = "given.json"  # the user's plan document, as it was when the run was started


def find(request: Mapping[str, Any]) -> dict[str, Any]:
    """Request: `host`, `prefix`. The runs of that prefix that were started; what was never started is removed."""
    host = HostConfig(**request["host"])
    with _lock(host) as folder:
        found = []
        for root in sorted(folder.glob(f"{request['prefix']}-*")):
            if keeper.read_state(root) is not None:
                found.append(root.name)
            else:
                shutil.rmtree(root, ignore_errors=True)
    return {"runs": found}


def start(request: Mapping[str, Any]) -> dict[str, Any]:
    """Request: `run` (its name), `config`, `plan`, `prompts`, `document`, `traces`, `earlier`, `nonce`,
    `places`.

    UsageError when the port is taken or the lease path cannot be used. A run of that name that was started stays.
    """
    config = settings.load(request["config"])
    with _lock(config.host) as folder:
        state = RunState(folder / request["run"])
        if keeper.read_state(state.root) is None:
            ports.require_free(config.host.port, "host.port")
            shutil.rmtree(state.root, ignore_errors=True)
            try:
                lay_out(state, config, request)
                _launch(state, config.host)
            except BaseException:
                if keeper.read_state(state.root) is None:
                    shutil.rmtree(state.root, ignore_errors=True)
                raise
    return {}


@contextmanager
def _lock(host: HostConfig) -> Iterator[Path]:
    import fcntl

    folder = state_dir(host)
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield folder
    finally:
        os.close(descriptor)


def lay_out(state: RunState, config: Config, request: Mapping[str, Any]) -> None:
    """The folder of a run, as `start` leaves it to the keeper; `request` is that of `start`."""
    state.root.mkdir(mode=0o700)  # run.json holds the arms' secrets
    state.bundle.mkdir()
    prompts = prompts_folder(config.host, request["prompts"])
    if not prompts.is_dir():
        raise UsageError("prompts-gone", f"{prompts} was removed between prepare and start; run the same command again")
    shutil.copytree(prompts, state.corpus)
    bundle.write_new(state.plan, request["plan"].encode())
    bundle.write_new(state.bundle / "command.json", canonical.dumps({**_places(config), **request["places"]}))
    if request.get("floor") is not None:
        bundle.write_new(state.bundle / "floor.json", request["floor"].encode())
    for name, packed in request["traces"].items():
        bundle.write_new(state.bundle / Path(name).name, unpack_document(packed))
    if request["document"] is not None:
        given = state.root / "plans" / GIVEN
        given.parent.mkdir()
        given.write_bytes(unpack_document(request["document"]))
        config = replace(config, engine=replace(config.engine, plan=str(given)))
    run = {"config": settings.dump(config), "earlier": request["earlier"], "nonce": request["nonce"]}
    write_atomic(state.run, run)


def _places(config: Config) -> dict[str, Any]:
    """What is of this host alone: recorded beside the plan, not in its digest."""
    return {
        "python": sys.executable,
        "state_dir": str(state_dir(config.host)),
        "cache_dir": str(cache_dir(config.host)),
        "lease_path": config.host.lease_path,
        "port": config.host.port,
    }


def _launch(state: RunState, host: HostConfig) -> None:
    """Start keeper and supervisor, detached. UsageError when the lease path cannot be used."""
    plan = KeeperPlan(
        lease_path=str(Path(host.lease_path)),
        lease_timeout_s=host.lease_timeout_s,
        run_id=state.root.name,
        grace_s=host.stop_grace_s,
        cwd=str(state.root),
        env={"PYTHONPATH": str(Path(__file__).resolve().parents[2]), **_cache_variables()},
    )
    keeper.launch(state.root, plan, [sys.executable, "-m", "harness.supervisor", str(state.root)])


def _cache_variables() -> dict[str, str]:
    """Where the supervisor finds weights and environments: the same places as this process."""
    return {name: os.environ[name] for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "HOME") if name in os.environ}
