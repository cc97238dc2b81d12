"""Runs the real `vllm bench serve` client out of an unpacked vLLM source, without torch and without a tokenizer.

usage: run_vllm_bench.py SOURCE [arguments of `vllm bench serve`]

The measuring modules (benchmarks/serve.py and benchmarks/lib/) are vLLM's own and are imported from SOURCE untouched.
What they import from the rest of vLLM, none of which measures, is stood in for: the data set reader (JSON lines of
{"prompt", "output_tokens"}), a tokenizer that counts words, argparse, the heap freeze, a host:port join, logging.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any


@dataclass
class SampleRequest:
    """The fields that serve.py reads of a data set's row."""

    prompt: str
    prompt_len: int
    expected_output_len: int
    request_id: str
    multi_modal_data: Any = None
    lora_request: Any = None
    timestamp: float | None = None
    chat_messages: Any = None
    request_overrides: Any = None


class WordTokenizer:
    def __call__(self, text: str, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(input_ids=text.split())


def read_samples(options: argparse.Namespace, _: Any) -> list[SampleRequest]:
    lines = Path(options.dataset_path).read_text(encoding="utf-8").splitlines()[: options.num_prompts]
    return [
        SampleRequest(row["prompt"], len(row["prompt"].split()), row["output_tokens"], f"request-{number}")
        for number, row in enumerate(map(json.loads, lines))
    ]


def add_sample_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-prompts", type=int, default=1)
    parser.add_argument("--dataset-name", default="custom")
    parser.add_argument("--dataset-path", required=True)
    parser.add_argument("--trust-remote-code", action="store_true")


def freeze_heap() -> None:
    gc.collect()
    gc.freeze()


def stand_in(name: str, **attributes: Any) -> None:
    module = ModuleType(name)
    vars(module).update(attributes)
    sys.modules[name] = module


def load_serve(source: Path) -> ModuleType:
    """vLLM's benchmarks.serve. Its packages get a search path but none of their own initialisation."""
    root = source / "vllm"
    for name, folder in {"vllm": root, "vllm.benchmarks": root / "benchmarks", "vllm.utils": root / "utils"}.items():
        stand_in(name, __path__=[str(folder)])
    stand_in(
        "vllm.benchmarks.datasets",
        SampleRequest=SampleRequest,
        add_dataset_parser=add_sample_options,
        get_samples=read_samples,
    )
    stand_in("vllm.tokenizers", TokenizerLike=WordTokenizer, get_tokenizer=lambda *_, **__: WordTokenizer())
    stand_in("vllm.utils.argparse_utils", FlexibleArgumentParser=argparse.ArgumentParser)
    stand_in("vllm.utils.gc_utils", freeze_gc_heap=freeze_heap)
    stand_in("vllm.utils.network_utils", join_host_port=lambda host, port: f"{host}:{port}")
    stand_in("vllm.logger", init_logger=logging.getLogger)
    return importlib.import_module("vllm.benchmarks.serve")


def main(arguments: list[str]) -> None:
    serve = load_serve(Path(arguments[0]))
    parser = argparse.ArgumentParser()
    serve.add_cli_args(parser)
    serve.main(parser.parse_args(arguments[1:]))


if __name__ == "__main__":
    main(sys.argv[1:])
