"""`harness run -m`: one run for every combination, by Hydra's launchers (one after another; or Ray, Slurm).

Each job leaves its own `outcome.json`, so a job that failed is seen in its own folder and in the sweep's exit code.
Where jobs run on other machines, the folder of the sweep and the evidence lie on a file system that they share.
"""

from __future__ import annotations

import json
import secrets
import socket
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from harness import pipe
from harness.errors import EXIT_BUG, EXIT_USAGE, HarnessError, UsageError
from harness.settings import conf_dir, register, search_path, typed

__all__ = ["job", "outcomes", "sweep"]

RECORD = "outcome.json"
LOST = "the job left no outcome: it died, or goes on without this command; see its log"
LAUNCHERS = {  # launcher: the distribution that brings it, and the extra of ours that pins it
    **dict.fromkeys(("ray", "ray_cluster"), ("hydra-ray-launcher", "ray")),
    **dict.fromkeys(("slurm", "submitit_slurm", "submitit_local"), ("hydra-submitit-launcher", "slurm")),
}


def sweep(overrides: Sequence[str]) -> int:
    """Run all jobs; returns the worst exit code of any of them. UsageError before any job was started."""
    _demand_launcher(overrides)
    register()
    folder = Path("multirun") / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    folder.mkdir(parents=True)
    ours = [f"hydra.sweep.dir={folder.resolve()}", "hydra.job.chdir=false"]
    arguments, sys.argv = sys.argv, ["harness", "--multirun", *search_path(), *overrides, *ours]
    gave_up = False
    try:
        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(job)()
    except SystemExit as error:  # Hydra prints its sentence and exits 1, also for a launcher that raises
        gave_up = bool(error.code)
    finally:
        sys.argv = arguments
    return _tell(folder, gave_up)


def _demand_launcher(overrides: Sequence[str]) -> None:
    """UsageError `missing-extra` where the launcher that is asked for is not installed."""
    for word in overrides:
        group, _, name = word.lstrip("+").partition("=")
        if group != "hydra/launcher" or name not in LAUNCHERS:
            continue
        distribution, extra = LAUNCHERS[name]
        try:
            metadata.version(distribution)
        except metadata.PackageNotFoundError:
            mend = f"pip install 'nvfp4-gates[{extra}]' (in a checkout: pip install -e '.[{extra}]')"
            raise UsageError("missing-extra", f"{word} needs {distribution}, which is not installed; {mend}") from None


def _tell(folder: Path, gave_up: bool) -> int:
    """Print each job's outcome; the sweep's exit code. UsageError where the launcher gave up before the first job."""
    found = outcomes(folder)
    if gave_up and not found:
        why = "it could not be composed, or its launcher could not start; see the lines above"
        raise UsageError("sweep-not-started", f"no job was started: {why}")
    for name, outcome in found.items():
        print(f"job {name}: exit {outcome['exit']} {outcome['message']}")
    if gave_up:
        print("the launcher gave up before every job had ended; see the lines above", file=sys.stderr)
    codes = [int(outcome["exit"]) for outcome in found.values()] + ([EXIT_BUG] if gave_up else [])
    return max(codes, default=EXIT_USAGE)


def job(composed: DictConfig) -> int:
    """One job. Never raises: what went wrong is recorded in the job's own folder."""
    from harness.controller import run
    from harness.display import terminal

    folder = Path(HydraConfig.get().runtime.output_dir)
    invoked_in = Path(HydraConfig.get().runtime.cwd)
    outcome: dict[str, Any]
    began = _now()
    try:
        done = run(typed(composed), invoked_in, terminal())
        outcome = {"exit": done.exit_code, "message": done.told}
    except HarnessError as error:
        outcome = {"exit": error.exit_code, "message": f"{error.code}: {error.message}"}
    except Exception as error:
        if pipe.unread(error):
            outcome = {"exit": pipe.EXIT_UNREAD, "message": "nobody reads the output; what was started goes on"}
        else:
            outcome = {"exit": EXIT_BUG, "message": f"internal error: {error!r}"}
    seen = {"began": began, "ended": _now(), "machine": socket.gethostname()}
    (folder / RECORD).write_text(json.dumps({**outcome, **seen}))
    return int(outcome["exit"])


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def outcomes(folder: Path) -> dict[str, dict[str, Any]]:
    """What each job left, by its number; a job without a record is an internal error."""
    found = {}
    for path in sorted(item for item in folder.iterdir() if item.is_dir() and not item.name.startswith(".")):
        record = path / RECORD
        missing = {
            "exit": EXIT_BUG,
            "message": "the job left no outcome: it died, or goes on without this command; see its log",
        }
        found[path.name] = json.loads(record.read_text()) if record.is_file() else missing
    return found
