"""The decoder: RMSNorm, packed QKV, rotary, grouped-query attention, SwiGLU; every projection is NVFP4 through the plan
cache. One call computes one step of the scheduler: all rows together through the projections, attention by sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from kernels.backends.base import Backend, PreparedWeight
from kernels.nvfp4 import F32, Fp4Matrix, Producer, namespace
from kernels.serve.attention import Cache, decode_attention, prefill_attention
from kernels.serve.scheduler import Batch, Limits, Piece
from kernels.serve.weights import PROJECTIONS, Config, Weights

__all__ = ["Decoder", "Linear", "PlanLookup"]

PlanLookup = Callable[[int, int, int], int]


@dataclass(frozen=True)
class Linear:
    """One projection: quantise, look the plan up, multiply. (rows, k) to (rows, n), bfloat16 values as float32."""

    matrix: Fp4Matrix
    weight: PreparedWeight
    input_scale: float
    producer: Producer
    backend: Backend
    tactic: PlanLookup

    def __call__(self, values: F32) -> F32:
        quantised = self.producer.quantise(values, self.input_scale)
        tactic = self.tactic(quantised.rows, self.weight.n, self.weight.k)
        product: F32 = self.backend.gemm(tactic, quantised, self.weight)
        return product


@dataclass(frozen=True)
class _Layer:
    attention_norm: F32
    mlp_norm: F32
    projections: dict[str, Linear]
    cache: Cache


class Decoder:
    """Weights, rotary tables and the KV cache for `limits.max_num_seqs` sequences of `limits.max_model_len` tokens."""

    def __init__(
        self, weights: Weights, limits: Limits, backend: Backend, producer: Producer, tactic: PlanLookup
    ) -> None:
        self.config: Config = weights.config
        self._xp = xp = backend.xp
        self._embedding: F32 = xp.asarray(weights.tensors["embedding"])
        self._head: F32 = xp.ascontiguousarray(xp.asarray(weights.tensors["lm_head"]).T)
        self._final_norm: F32 = xp.asarray(weights.tensors["final_norm"])
        self._cosine, self._sine = _rotary_tables(xp, self.config, limits.max_model_len)
        self._layers = []
        for index in range(self.config.layers):
            projections = {}
            for name in PROJECTIONS:
                matrix = weights.matrix(index, name, producer)
                scale = float(weights.tensors[f"layer.{index}.{name}.input_global_scale"][0])
                projections[name] = Linear(matrix, backend.prepare(matrix), scale, producer, backend, tactic)
            norms = [xp.asarray(weights.tensors[f"layer.{index}.{name}_norm"]) for name in ("attention", "mlp")]
            cache = Cache(
                xp,
                slots=limits.max_num_seqs,
                kv_heads=self.config.kv_heads,
                head_size=self.config.head_size,
                positions=limits.max_model_len,
            )
            self._layers.append(_Layer(norms[0], norms[1], projections, cache))

    def shapes(self) -> tuple[tuple[int, int], ...]:
        """The distinct (N, K) of the projections, sorted: what a warm-up must tune."""
        return tuple(sorted({self.config.shape(name) for name in PROJECTIONS}))

    def projection(self, layer: int, name: str) -> Linear:
        return self._layers[layer].projections[name]

    def step(self, batch: Batch) -> F32:
        """Logits (sampling pieces, vocabulary) of one step, in the order of `batch.pieces`; fills the cache."""
        pieces = batch.pieces
        xp = self._xp
        tokens = xp.asarray([token for piece in pieces for token in piece.tokens()])
        positions = xp.concatenate([xp.arange(p.start, p.start + p.count) for p in pieces])
        cosine, sine = self._cosine[positions][:, None], self._sine[positions][:, None]
        hidden: F32 = self._embedding[tokens]
        for layer in self._layers:
            normed = _norm(hidden, layer.attention_norm, self.config.epsilon)
            hidden += layer.projections["o"](self._attend(layer, batch, normed, cosine, sine))
            normed = _norm(hidden, layer.mlp_norm, self.config.epsilon)
            hidden += layer.projections["down"](_swiglu(layer.projections["gate_up"](normed)))
        ends = accumulate(piece.count for piece in pieces)
        sampling = [end - 1 for end, piece in zip(ends, pieces, strict=True) if piece.samples]
        logits: F32 = _norm(hidden[sampling], self._final_norm, self.config.epsilon) @ self._head
        return logits

    def _attend(self, layer: _Layer, batch: Batch, normed: F32, cosine: F32, sine: F32) -> F32:
        heads, kv_heads, size = self.config.heads, self.config.kv_heads, self.config.head_size
        packed = layer.projections["qkv"](normed).reshape(len(normed), heads + 2 * kv_heads, size)
        rotated = _rotate(packed[:, : heads + kv_heads], cosine, sine)
        queries, keys, values = rotated[:, :heads], rotated[:, heads:], packed[:, heads + kv_heads :]
        result: F32 = self._xp.empty((len(normed), heads, size), dtype=self._xp.float32)
        row = 0
        for piece in batch.pieces:
            part = slice(row, row + piece.count)
            layer.cache.store(piece.sequence.slot, piece.start, keys[part], values[part])
            row += piece.count
        row = len(batch.decodes)
        if row:
            result[:row] = decode_attention(queries[:row], layer.cache, *_slots_and_lengths(batch.decodes))
        for piece in batch.prefills:
            part = slice(row, row + piece.count)
            result[part] = prefill_attention(queries[part], layer.cache, piece.sequence.slot, piece.start)
            row += piece.count
        return result.reshape(len(normed), heads * size)


def _slots_and_lengths(decodes: Sequence[Piece]) -> tuple[list[int], list[int]]:
    return [piece.sequence.slot for piece in decodes], [piece.start + 1 for piece in decodes]


def _norm(values: F32, weight: F32, epsilon: float) -> F32:
    xp = namespace(values)
    square = xp.einsum("ij,ij->i", values, values)  # one pass without a squared temporary
    square *= 1.0 / values.shape[1]
    square += epsilon
    result: F32 = values * (1.0 / xp.sqrt(square))[:, None]
    result *= weight
    return result


def _swiglu(gate_up: F32) -> F32:
    xp = namespace(gate_up)
    half = gate_up.shape[1] // 2
    gate = gate_up[:, :half]
    result: F32 = xp.exp(-gate)
    result += 1.0
    xp.divide(gate, result, out=result)
    result *= gate_up[:, half:]
    return result


def _rotary_tables(xp: Any, config: Config, positions: int) -> tuple[F32, F32]:
    """Cosine and sine (positions, head size / 2)."""
    frequency = config.rotary_base ** (-xp.arange(0, config.head_size, 2) / config.head_size)
    angle = xp.arange(positions)[:, None] * frequency
    return xp.cos(angle).astype(xp.float32), xp.sin(angle).astype(xp.float32)


def _rotate(values: F32, cosine: F32, sine: F32) -> F32:
    """Rotary embedding of (rows, heads, head size), the two halves of a head being the pairs."""
    xp = namespace(values)
    half = values.shape[2] // 2
    first, second = values[:, :, :half], values[:, :, half:]
    result: F32 = xp.empty(values.shape, dtype=xp.float32)
    xp.subtract(first * cosine, second * sine, out=result[:, :, :half])
    xp.add(second * cosine, first * sine, out=result[:, :, half:])
    return result
