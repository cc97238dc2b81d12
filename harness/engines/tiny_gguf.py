"""Write a small Llama-architecture GGUF whose bytes depend on its arguments alone.

A program for the engine's own environment (`python tiny_gguf.py OUT --layers 6 …`), so it imports gguf and numpy and
nothing of this project. The weights are uniform draws of a seeded PCG64: the generator's integers scaled by powers and
products, no transcendental function, so the bytes are the same under every libm. Tensors are float32.
"""

from __future__ import annotations

import argparse
import itertools
import os
import string
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

__all__ = ["FIRST_MERGED", "SPECIALS", "Shape", "tensors", "vocabulary", "write"]

SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")
FIRST_MERGED = len(SPECIALS) + 256  # specials, then one token a byte, then merges of printable characters
LETTERS = string.ascii_letters + string.digits


@dataclass(frozen=True)
class Shape:
    """Sizes of the decoder; the head size is `hidden / heads`, `context` is what the file claims to be trained for."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    context: int
    seed: int


def byte_symbols() -> list[str]:
    """The printable stand-in for each byte value, as GPT-2's byte-level BPE spells it in token text."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    shifted = itertools.count(0x100)
    return [chr(value) if value in plain else chr(next(shifted)) for value in range(256)]


def vocabulary(size: int) -> tuple[list[str], list[str]]:
    """`size` token texts and the merges that make them: specials, bytes, letter pairs, then letter triples."""
    pairs = itertools.product(LETTERS, repeat=2)
    triples = ((first + second, third) for first, second, third in itertools.product(LETTERS, repeat=3))
    merges = list(itertools.islice(itertools.chain(pairs, triples), size - FIRST_MERGED))
    tokens = [*SPECIALS, *byte_symbols(), *(left + right for left, right in merges)]
    if len(tokens) != size:
        raise SystemExit(f"vocabulary={size} is outside {FIRST_MERGED}..{FIRST_MERGED + 62**2 + 62**3}")
    return tokens, [f"{left} {right}" for left, right in merges]


def silent_rows() -> list[int]:
    """Token ids that must never be generated: a special or a byte of no printable text gives a chunk without text."""
    return [*range(len(SPECIALS)), *(len(SPECIALS) + byte for byte in range(256) if not 0x20 <= byte < 0x7F)]


def tensors(shape: Shape) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Names and float32 arrays in file order. Matrices are (out, in) with standard deviation 1/sqrt(in)."""
    source = np.random.Generator(np.random.PCG64(shape.seed))

    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        bound = np.float32((3.0 / columns) ** 0.5)
        return (source.random((rows, columns), dtype=np.float32) * np.float32(2) - np.float32(1)) * bound

    ones = np.ones(shape.hidden, dtype=np.float32)
    kv_rows = shape.hidden // shape.heads * shape.kv_heads
    yield "token_embd", matrix(shape.vocabulary, shape.hidden)
    for layer in range(shape.layers):
        name = f"blk.{layer}."
        yield name + "attn_norm", ones
        yield name + "attn_q", matrix(shape.hidden, shape.hidden)
        yield name + "attn_k", matrix(kv_rows, shape.hidden)
        yield name + "attn_v", matrix(kv_rows, shape.hidden)
        yield name + "attn_output", matrix(shape.hidden, shape.hidden)
        yield name + "ffn_norm", ones
        yield name + "ffn_gate", matrix(shape.intermediate, shape.hidden)
        yield name + "ffn_up", matrix(shape.intermediate, shape.hidden)
        yield name + "ffn_down", matrix(shape.hidden, shape.intermediate)
    yield "output_norm", ones
    head = matrix(shape.vocabulary, shape.hidden)
    head[silent_rows()] = 0
    yield "output", head


def _describe(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_name("tiny")
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.hidden // shape.heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def _add_tokenizer(writer: gguf.GGUFWriter, size: int) -> None:
    tokens, merges = vocabulary(size)
    kinds = [gguf.TokenType.CONTROL] * len(SPECIALS) + [gguf.TokenType.NORMAL] * (size - len(SPECIALS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_pad_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(3)
    writer.add_add_bos_token(False)


def write(path: Path, shape: Shape) -> None:
    """Write the file under a temporary name beside `path`, force it to disk, then rename: never half a model."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        writer = gguf.GGUFWriter(partial, "llama")
        _describe(writer, shape)
        _add_tokenizer(writer, shape.vocabulary)
        for name, values in tensors(shape):
            writer.add_tensor(f"{name}.weight", values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a deterministic small GGUF model.")
    parser.add_argument("out", type=Path)
    for field in fields(Shape):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=int, required=True)
    values = vars(parser.parse_args())
    write(values.pop("out"), Shape(**values))


if __name__ == "__main__":
    main()
