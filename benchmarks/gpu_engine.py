"""The small model served by both backends: are the GPU's tokens the CPU's, and are its decode steps replayed graphs?

`OPENBLAS_NUM_THREADS=1 python -m benchmarks.gpu_engine [SEED]` prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from kernels.backends.cuda import CudaBackend
from kernels.serve.engine import Engine
from kernels.serve.scheduler import Limits
from kernels.serve.weights import Config, draw, save

__all__ = ["compared"]

_PROMPTS, _TOKENS = 12, 24
_LIMITS = Limits(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=160)


async def _served(engine: Engine, prompts: list[tuple[int, ...]]) -> list[list[int]]:
    """The tokens of each prompt, all of them served at once."""
    running = asyncio.create_task(engine.run())
    while not (engine.ready or running.done()):
        await asyncio.sleep(0.05)
    if running.done():
        await running
    tickets = [engine.submit(prompt, _TOKENS, True) for prompt in prompts]
    found: list[list[int]] = [[] for _ in prompts]
    for tokens, ticket in zip(found, tickets, strict=True):
        while len(tokens) < _TOKENS:
            event = await ticket.events.get()
            assert event is not None, "the engine stopped"
            tokens.append(event[0])
    engine.stop()
    await running
    return found


def compared(folder: Path, seed: int, devices: tuple[str, str] = ("cpu", "cuda")) -> dict[str, Any]:
    """How many of the prompts got the same tokens from both, and the GEMMs and graph launches of the second."""
    model = folder / "small.weights"
    save(draw(seed, Config()), model)
    drawn = random.Random(seed)
    prompts = [tuple(drawn.randrange(3, 256) for _ in range(drawn.randrange(1, 100))) for _ in range(_PROMPTS)]
    answers = []
    for number, device in enumerate(devices):
        env = {**os.environ, "VT_FP4_AUTOTUNE_CACHE_PATH": str(folder / f"{number}.json")}
        engine = Engine(model, _LIMITS, env, device)
        answers.append(asyncio.run(_served(engine, prompts)))
    backend = engine.backend
    return {
        "equal": sum(a == b for a, b in zip(*answers, strict=True)),
        "gemms": backend.gemms,
        "graph_launches": backend.graph_launches if isinstance(backend, CudaBackend) else None,
        "memory": dict(backend.memory()),
        "prompts": len(prompts),
        "tokens": _TOKENS,
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        print(json.dumps(compared(Path(temporary), int(sys.argv[1]) if sys.argv[1:] else 1), sort_keys=True))
