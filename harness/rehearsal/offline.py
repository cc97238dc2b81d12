"""What a host would answer to `prepare`, without one: for `rehearse=true`, which needs neither network nor engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from gates.g5 import needed
from harness import bench_client, canonical
from harness.agent.preparing import structure_of, suites_of
from harness.agent.values import Prepared
from harness.config import Config
from harness.engines import registry
from harness.plan import partition, prompts_digest
from harness.state import cache_dir

__all__ = ["GPU", "made_prompts", "prepared", "prerequisites"]

MADE = "0" * 64
GPU = {"driver_version": "0", "library_version": "0", "devices": [["GPU-rehearsed", "made GPU"]]}


def prepared(config: Config) -> Prepared:
    """As for a host that has all that the engine wants, a GPU too. UsageError for options and flags as in a run."""
    engine = registry.create(config.engine.name, config.engine.options, cache_dir(config.host))
    registry.second(config.engine, cache_dir(config.host))
    bench_client.require_texts(config)
    for arm in (config.engine.candidate, config.engine.baseline):
        engine.launch(asdict(arm), config.host.port, None, True)
    suites, not_tested = suites_of(config, engine)
    gpu = "gpu" in engine.capabilities
    counts = {concurrency: config.workload.points[concurrency] for concurrency in config.gate.concurrencies}
    _, corpus = made_prompts(counts, config.gate.repetitions)
    return Prepared(
        subject={"rehearsed": config.engine.name},
        capabilities=sorted(engine.capabilities),
        host={"hostname": "rehearsed", **({"gpu": GPU} if gpu else {})},
        gpu=gpu,
        corpus=corpus,
        prompts="",
        suites=suites,
        not_tested=not_tested,
        structure=structure_of(config, engine),
    )


def prerequisites(second_model: str | None) -> dict[str, Any]:
    """What a grid's plan says of the bundles it stands on, where all are there."""
    rows = {gate: {"digest": MADE, "binding": True} for gate in needed(second_model)}
    return {"gates": rows, "overridden": None, **({"second_model": second_model} if second_model else {})}


def made_prompts(counts: Mapping[int, int], repetitions: int) -> tuple[dict[str, bytes], dict[str, str]]:
    """(JSON lines, digest) of each partition by name: as many prompts as in a run, of one token each."""
    files, digests = {}, {}
    for repetition in range(1, repetitions + 1):
        for concurrency, count in counts.items():
            name = partition(concurrency, repetition)
            shas = [canonical.sha256_bytes(f"{name} {index}".encode()) for index in range(count)]
            rows = [
                {"index": index, "prompt_sha256": sha, "prompt_token_ids": [index]} for index, sha in enumerate(shas)
            ]
            files[name] = b"".join(map(canonical.dumps, rows))
            digests[name] = prompts_digest(shas)
    return files, digests
