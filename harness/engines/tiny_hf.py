"""A small Llama-architecture model folder without weights: for servers that draw dummy weights themselves.

`config.json`, `generation_config.json`, `tokenizer_config.json` and `tokenizer.json` (byte-level BPE whose merges make
every pair, then triples, of ASCII letters and digits). The bytes depend on the arguments alone.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["FIRST_MERGED", "MOST_TOKENS", "Shape", "files", "tokenizer", "write"]

SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")
LETTERS = string.ascii_letters + string.digits
FIRST_MERGED = len(SPECIALS) + 256  # specials, then one token a byte, then merges of printable characters
MOST_TOKENS = FIRST_MERGED + 62**2 + 62**3


@dataclass(frozen=True)
class Shape:
    """Sizes of the decoder. The head size is `hidden / heads`; `context` is what the model claims to be trained for."""

    layers: int = 2
    hidden: int = 256
    heads: int = 4
    kv_heads: int = 2
    intermediate: int = 512
    vocabulary: int = 4096
    context: int = 4096


def byte_symbols() -> list[str]:
    """The printable stand-in for each byte value, as byte-level BPE spells it in token text."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    shifted = itertools.count(0x100)
    return [chr(value) if value in plain else chr(next(shifted)) for value in range(256)]


def tokenizer(size: int) -> dict[str, Any]:
    """`tokenizer.json` of `size` tokens, at least FIRST_MERGED and at most MOST_TOKENS."""
    if not FIRST_MERGED <= size <= MOST_TOKENS:
        raise ValueError(f"a vocabulary of {size} is outside {FIRST_MERGED}..{MOST_TOKENS}")
    pairs = itertools.product(LETTERS, repeat=2)
    triples = ((first + second, third) for first, second, third in itertools.product(LETTERS, repeat=3))
    merges = list(itertools.islice(itertools.chain(pairs, triples), size - FIRST_MERGED))
    tokens = [*SPECIALS, *byte_symbols(), *(left + right for left, right in merges)]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": text, **plain} for number, text in enumerate(SPECIALS)],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: number for number, text in enumerate(tokens)},
            "merges": [[left, right] for left, right in merges],
        },
    }


def files(shape: Shape) -> dict[str, bytes]:
    """The folder's files by name."""
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.hidden // shape.heads,
        "hidden_act": "silu",
        "max_position_embeddings": shape.context,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": shape.vocabulary,
        **ids,
    }
    fast = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": shape.context, **special}
    documents: Mapping[str, Any] = {
        "config.json": config,
        "generation_config.json": ids,
        "tokenizer.json": tokenizer(shape.vocabulary),
        "tokenizer_config.json": fast,
    }
    return {name: json.dumps(document).encode("ascii") + b"\n" for name, document in documents.items()}


def write(folder: Path, shape: Shape) -> None:
    """Write the folder under a temporary name and rename it; one that is whole already stays as it is."""
    wanted = files(shape)
    if all((folder / name).is_file() and (folder / name).read_bytes() == data for name, data in wanted.items()):
        return
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    partial.mkdir(parents=True)
    try:
        for name, data in wanted.items():
            (partial / name).write_bytes(data)
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
