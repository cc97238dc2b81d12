"""From words on a command line to a checked configuration: Hydra composes, the dataclasses type, this file explains.

Everything that is wrong is found here, before a lease, an engine or a file, and becomes a UsageError (exit 64).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.config import Config, GateConfig, HostConfig, SigningConfig
from harness.errors import UsageError

__all__ = [
    "compose_config",
    "conf_dir",
    "dump",
    "load",
    "register",
    "search_path",
    "typed",
    "user_conf_dir",
]

MAX_PORT = 65535
GATES = ("g1", "g2", "g3", "g4", "g5")


def conf_dir() -> Path:
    """The shipped configuration: inside the wheel, or beside the packages in a checkout."""
    here = Path(__file__).resolve().parent
    for candidate in (here / "_conf", here.parent / "conf"):
        if (candidate / "config.yaml").is_file():
            return candidate
    raise UsageError("conf-missing", f"no conf/config.yaml beside {here}; reinstall the distribution")


def user_conf_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where a user's own groups live: `$XDG_CONFIG_HOME/nvfp4-gates` (default `~/.config/nvfp4-gates`)."""
    root = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME", "/")) / ".config")
    return Path(root) / "nvfp4-gates"


def compose_config(overrides: Sequence[str]) -> Config:
    """Compose, resolve and type the configuration. UsageError names the key, the value and the mend."""
    register()
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(conf_dir()), version_base="1.3", job_name="harness"):
            composed = compose("config", overrides=[*search_path(), *overrides])
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError("bad-override", f"{_plain(error)}; {_explain()}") from error
    return typed(composed)


def dump(config: Config) -> str:
    """The configuration as YAML, which keeps keys that are numbers. Where a private key lies is no host's business."""
    return OmegaConf.to_yaml(OmegaConf.structured(replace(config, signing=SigningConfig())))


def load(text: str) -> Config:
    """What `dump` wrote."""
    return cast(Config, OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), OmegaConf.create(text))))


def register() -> None:
    """Give Hydra the typed keys under the name `schema`, so that every key exists and has its type."""
    ConfigStore.instance().store(name="schema", node=Config)


def search_path() -> list[str]:
    """The override that lets Hydra find a user's own groups, if that folder exists."""
    extra = user_conf_dir()
    return [f"hydra.searchpath=[file://{extra}]"] if extra.is_dir() else []


def _plain(error: BaseException) -> str:
    """Hydra's reasons on one line, without its traceback, its search path and its type chatter."""
    parts: list[str] = []
    link: BaseException | None = error
    while link is not None:
        lines = [line.strip() for line in str(link).splitlines()]
        keep = [
            line
            for line in lines
            if line
            and not line.startswith(("provider=", "Config search path", "See http", "object_type=", "reference_type="))
        ]
        text = " ".join(line.strip("\t ") for line in keep)
        if text and not any(text in part for part in parts):
            parts.append(text)
        link = link.__cause__
    return "; ".join(parts)


def typed(composed: DictConfig) -> Config:
    """Resolve every interpolation, demand every mandatory value, check relations, and return plain dataclasses."""
    _resolve_all(composed)
    missing = sorted(OmegaConf.missing_keys(composed))
    if missing:
        raise UsageError("missing-value", f"{missing[0]} has no value; give one, for example {missing[0]}=VALUE")
    unknown = sorted(str(item) for item in composed if str(item) not in Config.__dataclass_fields__)
    if unknown:
        raise UsageError("unknown-key", f"{unknown[0]} is not a configuration key; {_explain()}")
    try:
        result = cast(Config, OmegaConf.to_object(composed))
    except OmegaConfBaseException as error:
        raise UsageError("bad-value", f"{_plain(error)}; {_explain()}") from error
    _check(result)
    return result


def _resolve_all(composed: DictConfig) -> None:
    """Force every value once, so that a bad reference fails here and names its key."""
    for name, node in _leaves(composed, ""):
        try:
            OmegaConf.select(composed, name, throw_on_missing=False)
        except OmegaConfBaseException as error:
            reason = " ".join(str(error).splitlines()[0].split())
            raise UsageError(
                "bad-reference", f"{name} = {node}: {reason}; set the variable or fix the reference"
            ) from error


def _leaves(node: DictConfig, prefix: str) -> Iterable[tuple[str, Any]]:
    raw = OmegaConf.to_container(node, resolve=False, throw_on_missing=False)
    stack: list[tuple[str, Any]] = [(prefix, raw)]
    while stack:
        name, value = stack.pop()
        if isinstance(value, dict):
            stack += [(f"{name}.{key}" if name else str(key), item) for key, item in value.items()]
        elif name:
            yield name, value


def _explain(name: str = "") -> str:
    return f"`python -m harness explain{' ' + name if name else ''}` tells what it takes"


def _demand(good: bool, name: str, value: object, need: str) -> None:
    if not good:
        raise UsageError("bad-value", f"{name}={value!r}: {need}; {_explain(name)}")


def _check(config: Config) -> None:
    """Relations that types cannot say."""
    gate, host, load, rule = config.gate, config.host, config.workload, config.rule
    _demand(gate.name in GATES, "gate.name", gate.name, f"the gates built so far are: {', '.join(GATES)}")
    _demand(gate.replays >= 0, "gate.replays", gate.replays, "must not be negative")
    _demand(bool(gate.concurrencies), "gate.concurrencies", gate.concurrencies, "at least one concurrency is needed")
    for concurrency in gate.concurrencies:
        _demand(concurrency in load.points, "workload.points", load.points, f"concurrency {concurrency} has no count")
        _demand(concurrency > 0, "gate.concurrencies", concurrency, "must be positive")
        _demand(
            load.points[concurrency] >= concurrency,
            "workload.points",
            load.points[concurrency],
            f"fewer requests than the concurrency {concurrency} never reach it",
        )
    for name, value in (
        ("gate.repetitions", gate.repetitions),
        ("workload.input_tokens", load.input_tokens),
        ("workload.output_tokens", load.output_tokens),
    ):
        _demand(value > 0, name, value, "must be positive")
    _demand(0 < host.port <= MAX_PORT, "host.port", host.port, f"a port is 1 to {MAX_PORT}")
    for name in ("lease_timeout_s", "ready_timeout_s", "stop_grace_s", "memory_return_timeout_s", "sample_period_s"):
        _demand(getattr(host, name) >= 0, f"host.{name}", getattr(host, name), "must not be negative")
    _demand(host.canary_factor > 1, "host.canary_factor", host.canary_factor, "must be above 1")
    _demand(
        config.client.name in ("closed_loop", "vllm_bench"),
        "client.name",
        config.client.name,
        "is closed_loop or vllm_bench",
    )
    given = load.tokenizer
    need = "is null, `engine`, or the absolute path of a tokenizer.json on the host"
    _demand(given is None or given == "engine" or given.startswith("/"), "workload.tokenizer", given, need)
    _check_transport(host)
    _demand(config.floor.campaigns >= 2, "floor.campaigns", config.floor.campaigns, "at least 2 have a variance")
    _demand(
        config.floor.attempts >= config.floor.campaigns,
        "floor.attempts",
        config.floor.attempts,
        "must not be below floor.campaigns",
    )
    _demand(rule.estimator in ("mean", "median"), "rule.estimator", rule.estimator, "is mean or median")
    _demand(rule.order in ("seed", "abba", "fixed"), "rule.order", rule.order, "is seed, abba or fixed")
    most = load.points[gate.concurrencies[0]]
    need = f"must be 0 to {most}, the requests at the first concurrency"
    _demand(0 <= gate.sequential_requests <= most, "gate.sequential_requests", gate.sequential_requests, need)
    if gate.name == "g3":
        _check_structure(gate)


def _check_structure(gate: GateConfig) -> None:
    """G3's load, its traces and what is counted in them."""
    need = "g3 sends at least 2 prompts, one at a time and then at once"
    _demand(gate.sequential_requests >= 2, "gate.sequential_requests", gate.sequential_requests, need)
    for name, trace in (("candidate", gate.traces.candidate), ("baseline", gate.traces.baseline)):
        need = "a trace needs the number of whole forwards in it, at least 1"
        _demand(trace.path is None or trace.forwards > 0, f"gate.traces.{name}.forwards", trace.forwards, need)
    for family in gate.families:
        need = "is [{name: NAME, pattern: REGEX, per_forward: N}, …] with N above 0"
        _demand(family.keys() == {"name", "pattern", "per_forward"}, "gate.families", family, need)
        count = family["per_forward"]
        _demand(type(count) is int and count > 0, "gate.families", family, need)
        try:
            re.compile(str(family["pattern"]))
        except re.error as error:
            _demand(False, "gate.families", family["pattern"], f"is no regular expression: {error}")


def _check_transport(host: HostConfig) -> None:
    """What SSH needs. Paths on the host are absolute: they would be relative to nobody's folder."""
    _demand(host.transport in ("local", "ssh"), "host.transport", host.transport, "is local or ssh")
    for name in ("connect_timeout_s", "silence_s", "poll_s"):
        _demand(getattr(host, name) > 0, f"host.{name}", getattr(host, name), "must be positive")
    if host.transport == "ssh":
        _demand(
            bool(host.address), "host.address", host.address, "host.transport=ssh needs the host's address or alias"
        )
        for name in ("state_dir", "cache_dir", "lease_path"):
            value = getattr(host, name)
            _demand(value is None or value.startswith("/"), f"host.{name}", value, "is a path on the host: absolute")
