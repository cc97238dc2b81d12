"""`harness run -m`: one run for every combination, by Hydra's launchers (basic here; Ray, Slurm, joblib elsewhere).

Each job leaves its own `outcome.json`, so a job that failed is seen in its own folder and in the sweep's exit code.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console

from harness.errors import EXIT_BUG, EXIT_USAGE, HarnessError, UsageError
from harness.settings import conf_dir, register, search_path, typed

__all__ = ["job", "outcomes", "sweep"]

RECORD = "outcome.json"


def sweep(overrides: Sequence[str]) -> int:
    """Run all jobs; returns the worst exit code of any of them."""
    register()
    folder = Path("multirun") / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    folder.mkdir(parents=True)
    ours = [f"hydra.sweep.dir={folder.resolve()}", "hydra.job.chdir=false"]
    arguments, sys.argv = sys.argv, ["harness", "--multirun", *search_path(), *overrides, *ours]
    try:
        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(job)()
    except SystemExit as error:  # Hydra prints its sentence and exits 1 for a configuration it cannot compose
        if error.code:
            raise UsageError("bad-override", "the sweep could not be composed; see the lines above") from error
    finally:
        sys.argv = arguments
    found = outcomes(folder)
    for name, outcome in found.items():
        print(f"job {name}: exit {outcome['exit']} {outcome['message']}")
    return max((outcome["exit"] for outcome in found.values()), default=EXIT_USAGE)


def job(composed: DictConfig) -> int:
    """One job. Never raises: what went wrong is recorded in the job's own folder."""
    from harness.controller import run

    folder = Path(HydraConfig.get().runtime.output_dir)
    invoked_in = Path(HydraConfig.get().runtime.cwd)
    outcome: dict[str, Any]
    try:
        sealed = run(typed(composed), invoked_in, Console())
        outcome = {"exit": sealed.exit_code, "message": f"{sealed.verdict['outcome']} {sealed.path.name}"}
    except HarnessError as error:
        outcome = {"exit": error.exit_code, "message": f"{error.code}: {error.message}"}
    except Exception as error:
        outcome = {"exit": EXIT_BUG, "message": f"internal error: {error!r}"}
    (folder / RECORD).write_text(json.dumps(outcome))
    return int(outcome["exit"])


def outcomes(folder: Path) -> dict[str, dict[str, Any]]:
    """What each job left, by its number; a job without a record is an internal error."""
    found = {}
    for path in sorted(item for item in folder.iterdir() if item.is_dir() and not item.name.startswith(".")):
        record = path / RECORD
        missing = {"exit": EXIT_BUG, "message": "the job left no outcome; see its log"}
        found[path.name] = json.loads(record.read_text()) if record.is_file() else missing
    return found
