"""Which adapter a configuration names. Adapters are imported only when asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.config import EngineConfig
from harness.engines.base import Engine
from harness.errors import UsageError

__all__ = ["ENGINES", "create", "second"]


def _reference(options: Mapping[str, Any], cache_dir: Path) -> Engine:
    from harness.engines.reference import Reference

    return Reference(options, cache_dir)


def _llama_cpp(options: Mapping[str, Any], cache_dir: Path) -> Engine:
    from harness.engines.llama_cpp import LlamaCpp

    return LlamaCpp(options, cache_dir)


def _vllm(options: Mapping[str, Any], cache_dir: Path) -> Engine:
    from harness.engines.vllm import Vllm

    return Vllm(options, cache_dir)


def _openai(options: Mapping[str, Any], cache_dir: Path) -> Engine:
    from harness.engines.openai import OpenAi

    return OpenAi(options, cache_dir)


def _sglang(options: Mapping[str, Any], cache_dir: Path) -> Engine:
    from harness.engines.sglang import Sglang

    return Sglang(options, cache_dir)


def _tensorrt_llm(options: Mapping[str, Any], cache_dir: Path) -> Engine:
    from harness.engines.tensorrt_llm import TensorrtLlm

    return TensorrtLlm(options, cache_dir)


def _vllm_cpp(options: Mapping[str, Any], cache_dir: Path) -> Engine:
    from harness.engines.vllm_cpp import VllmCpp

    return VllmCpp(options, cache_dir)


ENGINES: Mapping[str, Callable[[Mapping[str, Any], Path], Engine]] = {
    "llama_cpp": _llama_cpp,
    "openai": _openai,
    "reference": _reference,
    "sglang": _sglang,
    "tensorrt_llm": _tensorrt_llm,
    "vllm": _vllm,
    "vllm_cpp": _vllm_cpp,
}


def second(config: EngineConfig, cache_dir: Path) -> Engine | None:
    """The adapter of the second model that `engine.second` describes; None where it names none."""
    return create(config.name, {**config.options, **config.second}, cache_dir) if config.second else None


def create(name: str, options: Mapping[str, Any], cache_dir: Path) -> Engine:
    """The adapter called `name`. UsageError `unknown-engine` lists those that exist."""
    if name not in ENGINES:
        raise UsageError("unknown-engine", f"engine.name={name!r}: the engines are {', '.join(sorted(ENGINES))}")
    return ENGINES[name](options, cache_dir)
