"""The reference engine's weights: drawn from a seed once, written to one file, loaded by every process.

File: the line `nvfp4-gates reference weights 1`, one line of JSON (configuration and tensors with dtype, shape, byte
offset behind the padded header), zeros up to a multiple of 64, raw little-endian data. The same seed gives the same
bytes everywhere: values come from PCG64's raw words by exact arithmetic, never through libm or BLAS.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.backends.base import ActivationProducer
from kernels.errors import KernelError
from kernels.nvfp4 import E2M1_MAX, F32, UE4M3_MAX, Fp4Matrix, Producer, unswizzle
from kernels.serve.tokenizer import VOCABULARY

__all__ = ["PROJECTIONS", "Config", "Weights", "draw", "load", "save"]

_MAGIC = b"nvfp4-gates reference weights 1\n"
PROJECTIONS = ("qkv", "o", "gate_up", "down")


@dataclass(frozen=True)
class Config:
    """The decoder's sizes. A head has 64 values by default; `max_position` bounds the rotary table."""

    layers: int = 2
    hidden: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 64
    intermediate: int = 512
    vocabulary: int = VOCABULARY
    rotary_base: float = 10000.0
    epsilon: float = 1e-6
    gated: bool = False  # attention is multiplied by the sigmoid of a gate, which QKV also computes

    @classmethod
    def wide(cls, layers: int) -> Config:
        """The four (N, K) of the model that vllm.cpp's gates serve: (14336, 5120), (5120, 6144), (34816, 5120) and
        (5120, 17408), which are 0.2 GB of packed weights a layer."""
        sizes = {"hidden": 5120, "heads": 24, "kv_heads": 4, "head_size": 256, "intermediate": 17408}
        return cls(layers=layers, gated=True, **sizes)

    def shape(self, projection: str) -> tuple[int, int]:
        """(N, K) of one packed projection."""
        return {
            "qkv": (((2 if self.gated else 1) * self.heads + 2 * self.kv_heads) * self.head_size, self.hidden),
            "o": (self.hidden, self.heads * self.head_size),
            "gate_up": (2 * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
        }[projection]


@dataclass(frozen=True)
class Weights:
    """`tensors` by name: float32 `embedding`, `lm_head` (vocabulary, hidden) and norms; for each projection
    `layer.i.name.packed` (N, K/2) and `.scales` (N, K/16), linear; scalars as float32 arrays of one."""

    config: Config
    tensors: Mapping[str, NDArray[Any]]

    def matrix(self, layer: int, projection: str, producer: ActivationProducer) -> Fp4Matrix:
        """One projection with its scales swizzled: the one-time weight layout, which the producer counts."""
        name = f"layer.{layer}.{projection}"
        n, k = self.config.shape(projection)
        scales = producer.layout(self.tensors[f"{name}.scales"])
        scale = float(self.tensors[f"{name}.weight_global_scale"][0])
        return Fp4Matrix(self.tensors[f"{name}.packed"], scales, n, k, scale)


class _Draws:
    """Exactly reproducible uniform values of variance 1: the top 24 bits of PCG64's words, centred."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def uniform(self, *shape: int) -> F32:
        words = self._bits.random_raw(int(np.prod(shape))) >> np.uint64(40)
        centred = (words.astype(np.float64) - (2**23 - 0.5)) / 2**23
        values: F32 = (centred * 3.0**0.5).reshape(shape).astype(np.float32)
        return values

    def permutation(self, size: int) -> NDArray[np.intp]:
        return np.argsort(self._bits.random_raw(size), kind="stable")


# One activation that rounds to the neighbouring e2m1 code moves a logit by about 0.45, so a fixed token stream needs
# margins above that on every CPU. The head therefore points from each token to a fixed successor; the branches are just
# strong enough for context to overrule it in one token of twenty. Twice these gains: margins of 0.2, a stream by luck.
_BRANCH_GAIN = {"qkv": 1.3, "o": 2.0, "gate_up": 1.0, "down": 2.0}
_HEAD_NOISE = 0.3
_INPUT_LARGEST = {"qkv": 8.0, "o": 8.0, "gate_up": 8.0, "down": 32.0}  # seen: 5.1, 4.0, 5.1, 12


def draw(seed: int, config: Config) -> Weights:
    """Weights for `seed`: the same bytes on every machine."""
    draws = _Draws(seed)
    embedding = draws.uniform(config.vocabulary, config.hidden)
    tensors: dict[str, NDArray[Any]] = {"embedding": embedding}
    for layer in range(config.layers):
        for norm in ("attention_norm", "mlp_norm"):
            tensors[f"layer.{layer}.{norm}"] = np.float32(1) + draws.uniform(config.hidden) * np.float32(0.125)
        for projection in PROJECTIONS:
            tensors.update(_projection(draws, config, layer, projection))
    tensors["final_norm"] = np.ones(config.hidden, dtype=np.float32)
    tensors["lm_head"] = _head(draws, embedding)
    return Weights(config, tensors)


def _projection(draws: _Draws, config: Config, layer: int, projection: str) -> dict[str, NDArray[Any]]:
    n, k = config.shape(projection)
    values = draws.uniform(n, k) * np.float32(_BRANCH_GAIN[projection] / k**0.5)
    global_scale = UE4M3_MAX * E2M1_MAX / float(np.abs(values).max())
    matrix = Producer().quantise(values, float(np.float32(global_scale)))
    input_scale = UE4M3_MAX * E2M1_MAX / _INPUT_LARGEST[projection]
    name = f"layer.{layer}.{projection}"
    return {
        f"{name}.packed": matrix.packed,
        f"{name}.scales": np.ascontiguousarray(unswizzle(matrix.scales, n, k)),
        f"{name}.weight_global_scale": np.array([matrix.global_scale], dtype=np.float32),
        f"{name}.input_global_scale": np.array([input_scale], dtype=np.float32),
    }


def _head(draws: _Draws, embedding: F32) -> F32:
    vocabulary, hidden = embedding.shape
    successor = draws.permutation(vocabulary)
    head = draws.uniform(vocabulary, hidden) * np.float32(_HEAD_NOISE)
    head[successor] += embedding
    return head / np.float32(hidden**0.5)


def save(weights: Weights, path: Path) -> None:
    """Write the file through a temporary neighbour, so that a reader sees all of it or none."""
    arrays = {name: np.ascontiguousarray(array) for name, array in sorted(weights.tensors.items())}
    entries, offset = {}, 0
    for name, array in arrays.items():
        entries[name] = {"dtype": array.dtype.str, "shape": list(array.shape), "offset": offset}
        offset += -(-array.nbytes // 64) * 64
    sizes = asdict(weights.config)
    if not weights.config.gated:  # an option that came later: without it files keep their bytes
        del sizes["gated"]
    header = _MAGIC + json.dumps({"config": sizes, "tensors": entries}, sort_keys=True).encode() + b"\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(header + bytes(-len(header) % 64))
        for array in arrays.values():
            file.write(array.tobytes() + bytes(-array.nbytes % 64))
    temporary.replace(path)


def load(path: Path) -> Weights:
    """Read a weights file. KernelError `no-weights` when there is none, `bad-weights` when it is not one."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise KernelError(
            "no-weights",
            f"cannot read weights {path}: {error.strerror}; write them with `python -m kernels.serve.weights`",
        ) from error
    try:
        if not data.startswith(_MAGIC):
            raise ValueError("its first line is not that of a weights file, version 1")
        end = data.index(b"\n", len(_MAGIC)) + 1
        header = json.loads(data[len(_MAGIC) : end])
        start = -(-end // 64) * 64
        tensors = {name: _tensor(data, start, entry) for name, entry in header["tensors"].items()}
        return Weights(Config(**header["config"]), tensors)
    except (ValueError, KeyError, TypeError) as error:
        raise KernelError("bad-weights", f"{path} is not a weights file: {error}; write it again") from error


def _tensor(data: bytes, start: int, entry: Mapping[str, Any]) -> NDArray[Any]:
    count = int(np.prod(entry["shape"]))
    array: NDArray[Any] = np.frombuffer(data, np.dtype(entry["dtype"]), count, start + entry["offset"])
    return array.reshape(entry["shape"])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.serve.weights", description="Write the engine's weights.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--wide-layers", type=int, default=0, help="this many layers of the gates' own (N, K) instead")
    parser.add_argument("file", type=Path)
    options = parser.parse_args(argv)
    save(draw(options.seed, Config.wide(options.wide_layers) if options.wide_layers else Config()), options.file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
