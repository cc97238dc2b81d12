"""`prepare`: weights, prompts and identities on the host that will run them, before any lease."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import bench_client, canonical, corpus, corpus_text, settings
from harness.agent.values import Prepared
from harness.config import Config, HostConfig
from harness.engines import registry
from harness.engines.base import Engine, WithSanitizer, WithStructure, WithSuites
from harness.errors import HarnessError, UsageError
from harness.state import cache_dir
from harness.telemetry import host, probe

__all__ = ["install", "prepare", "prompts_folder", "structure_of", "suites_of"]

IDENTITY = ("hostname", "kernel", "machine", "cpu_model", "cores", "usable_cores", "mem_total_kib", "python")


def prepare(request: Mapping[str, Any]) -> dict[str, Any]:
    """Request: `config`. UsageError for options or flags that the engine does not know, or an engine not installed."""
    config = settings.load(request["config"])
    engine = registry.create(config.engine.name, config.engine.options, cache_dir(config.host))
    if config.engine.plan is not None and "fp4_plans" not in engine.capabilities:
        raise UsageError(
            "bad-value", f"engine.plan={config.engine.plan}: {engine.name} keeps no FP4 plans; leave it null"
        )
    for arm in (config.engine.candidate, config.engine.baseline):
        engine.launch(asdict(arm), config.host.port, None, True)  # refuses flags that the engine does not know
    suites, not_tested = suites_of(config, engine)
    engine.prepare()
    second = registry.second(config.engine, cache_dir(config.host)) if config.gate.name == "g2" else None
    if second is not None:
        second.prepare()
    bench_client.require(config, engine)
    prompts = _prompts(config, engine)
    name = canonical.sha256_bytes(canonical.dumps(dict(prompts.digests)))[:16]
    corpus.write(prompts, prompts_folder(config.host, name))
    facts, gpu = _identity()
    return Prepared(
        subject={
            **engine.identity(),
            **bench_client.identity(config),
            **({"second_model": second.identity()} if second is not None else {}),
        },
        capabilities=sorted(engine.capabilities),
        host=facts,
        gpu=gpu,
        corpus=dict(prompts.digests),
        prompts=name,
        suites=suites,
        not_tested=not_tested,
        structure=structure_of(config, engine),
    ).to_json()


def structure_of(config: Config, engine: Engine) -> Mapping[str, Any]:
    """What G3 is told of the engine; nothing for other gates. UsageError `not-owned` for servers that run elsewhere."""
    if config.gate.name != "g3":
        return {}
    if "external" in engine.capabilities:
        raise UsageError(
            "not-owned", f"gate=g3 looks into fresh processes of its own, and those of {engine.name} run elsewhere"
        )
    return engine.structure() if isinstance(engine, WithStructure) else {}


def suites_of(config: Config, engine: Engine) -> tuple[list[list[str]], dict[str, str]]:
    """The engine's own commands that G1 and G2 run, and what they leave out; nothing for other gates.

    UsageError `no-suites` for an engine without tests of its own in G1.
    """
    if config.gate.name == "g2" and isinstance(engine, WithSanitizer):
        return [[suite.kind, suite.name] for suite in engine.sanitizers()], dict(engine.not_sanitized())
    if config.gate.name != "g1":
        return [], {}
    if not isinstance(engine, WithSuites):
        raise UsageError(
            "no-suites", f"gate=g1: the adapter of {engine.name} names no tests of the engine's own; take another gate"
        )
    found = engine.suites(config.gate.architectures)
    return [[suite.kind, suite.name] for suite in found], dict(engine.not_tested(config.gate.architectures))


def install(request: Mapping[str, Any]) -> dict[str, Any]:
    """Request: `config`. What the engine needs beside this project, in an environment of its own on this host."""
    config = settings.load(request["config"])
    engine = registry.create(config.engine.name, config.engine.options, cache_dir(config.host))
    if (make := getattr(engine, "install", None)) is not None:
        make()
    bench_client.install(config)
    engine.prepare()
    return {"engine": engine.name}


def prompts_folder(config: HostConfig, name: str) -> Path:
    return cache_dir(config) / "corpus" / name


def _prompts(config: Config, engine: Engine) -> corpus.Corpus:
    load = config.workload
    if load.tokenizer is not None:
        return corpus_text.build(
            corpus_text.load(_tokenizer(load.tokenizer, engine)),
            seed=load.seed,
            tokens=load.input_tokens,
            points=load.points,
            concurrencies=config.gate.concurrencies,
            repetitions=config.gate.repetitions,
        )
    return corpus.build(
        seed=load.seed,
        tokens=load.input_tokens,
        counts={concurrency: load.points[concurrency] for concurrency in config.gate.concurrencies},
        repetitions=config.gate.repetitions,
        first_token=engine.first_token,
        vocabulary=engine.vocabulary,
    )


def _tokenizer(given: str, engine: Engine) -> Path:
    """The file that workload.tokenizer names. UsageError `no-tokenizer` where there is none."""
    path = engine.tokenizer() if given == "engine" else Path(given)
    if path is None or not path.is_file():
        what = f"{engine.name} has none of its own" if given == "engine" else "no such file on the host"
        raise UsageError("no-tokenizer", f"workload.tokenizer={given}: {what}; give a tokenizer.json on the host")
    return path


def _identity() -> tuple[dict[str, Any], bool]:
    """Facts that do not change between runs, and whether NVML knows a GPU; it is asked in its own process."""
    try:
        gpu = probe.ask().identity
    except HarnessError as error:
        raise UsageError(error.code, error.message) from error
    facts = {name: value for name, value in host.snapshot().items() if name in IDENTITY}
    return (facts if gpu is None else {**facts, "gpu": gpu}), gpu is not None
