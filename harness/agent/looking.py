"""`facts` and `inspect`: a host and files on it, looked at and left as they are. No lease, nothing executed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import inspect as evidence
from harness import settings
from harness.config import Config
from harness.doctor import facts as doctor
from harness.engines import registry
from harness.engines.base import Engine
from harness.state import cache_dir, state_dir

__all__ = ["facts", "inspect", "request_of"]


def facts(request: Mapping[str, Any]) -> dict[str, Any]:
    """Request: `config`. The document of `harness.doctor.facts`, and whether the engine computes on a GPU."""
    config = settings.load(request["config"])
    engine = registry.create(config.engine.name, config.engine.options, cache_dir(config.host))
    return {"facts": doctor.facts(request_of(config, engine)), "gpu": "gpu" in engine.capabilities}


def request_of(config: Config, engine: Engine) -> doctor.Request:
    """What to ask of the host of `config`, where `engine` keeps its weights."""
    host = config.host
    return doctor.Request(host.port, Path(host.lease_path), state_dir(host), tuple(engine.cache_roots()))


def inspect(request: Mapping[str, Any]) -> dict[str, Any]:
    """Request: `wanted` (path, sha256, size), `match`. Behind SSH a relative path begins in the home directory."""
    wanted = [evidence.Expectation(**one) for one in request["wanted"]]
    return {"files": [one.to_json() for one in evidence.look(wanted, request["match"])]}
