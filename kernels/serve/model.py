"""The decoder: RMSNorm, packed QKV, rotary, grouped-query attention, SwiGLU; every projection is NVFP4 through the plan
cache. One call computes one step of the scheduler: all rows together through the projections, attention by sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from kernels.backends.base import ActivationProducer, Backend, PreparedWeight
from kernels.nvfp4 import F32, Fp4Matrix, namespace
from kernels.serve.attention import Cache, prefill_attention
from kernels.serve.operations import operations
from kernels.serve.scheduler import Batch, Limits
from kernels.serve.weights import PROJECTIONS, Config, Weights

__all__ = ["Decoder", "Linear", "PlanLookup"]

PlanLookup = Callable[[int, int, int], int]
_Attend = Callable[["_Layer", F32, F32, F32], F32]


@dataclass(frozen=True)
class Linear:
    """One projection: look the plan up, quantise, multiply. (rows, k) to (rows, n), bfloat16 values as float32.

    The plan comes first, so that a miss inside a graph capture is refused before anything is enqueued.
    """

    matrix: Fp4Matrix
    weight: PreparedWeight
    input_scale: float
    producer: ActivationProducer
    backend: Backend
    tactic: PlanLookup

    def __call__(self, values: F32) -> F32:
        return self._multiply(values, self.producer.quantise)

    def gated(self, gate_up: F32) -> F32:
        """The projection of silu(gate) * up, of `gate_up` (rows, 2 k)."""
        return self._multiply(gate_up, self.producer.swiglu)

    def _multiply(self, values: F32, produce: Callable[[F32, float], Fp4Matrix]) -> F32:
        tactic = self.tactic(len(values), self.weight.n, self.weight.k)
        product: F32 = self.backend.gemm(tactic, produce(values, self.input_scale), self.weight)
        return product


@dataclass(frozen=True)
class _Layer:
    attention_norm: F32
    mlp_norm: F32
    projections: dict[str, Linear]
    cache: Cache


class Decoder:
    """Weights, rotary tables and the KV cache for `limits.max_num_seqs` sequences of `limits.max_model_len` tokens.

    `forwards` counts passes through the layers, those of warm-ups and of replayed graphs too.
    """

    def __init__(
        self, weights: Weights, limits: Limits, backend: Backend, producer: ActivationProducer, tactic: PlanLookup
    ) -> None:
        self.config: Config = weights.config
        self.forwards = 0
        self._xp = xp = backend.xp
        self._operations = operations(backend)
        self._embedding: F32 = xp.asarray(weights.tensors["embedding"])
        self._head = self._operations.head(xp.asarray(weights.tensors["lm_head"]))
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
        hidden = self._forward(tokens, positions, self._attends(batch))
        ends = accumulate(piece.count for piece in pieces)
        sampling = [end - 1 for end, piece in zip(ends, pieces, strict=True) if piece.samples]
        return self._logits(hidden[xp.asarray(sampling, dtype=int)])

    def decode(self, tokens: Any, positions: Any, slots: Any) -> F32:
        """Logits of one token a row, all arguments arrays (rows): a step that only decodes, without a look at any value
        on the host, so that it can be captured."""
        place = self._operations.place(slots, positions)

        def attend(layer: _Layer, queries: F32, keys: F32, values: F32) -> F32:
            return self._operations.decode(queries, keys, values, layer.cache, place)

        return self._logits(self._forward(tokens, positions, attend))

    def _logits(self, hidden: F32) -> F32:
        normed = self._operations.norm(hidden, self._final_norm, self.config.epsilon)
        return self._operations.logits(normed, self._head)

    def _forward(self, tokens: Any, positions: Any, attend: _Attend) -> F32:
        """The last hidden state (rows, hidden) of `tokens` at `positions`, both arrays (rows)."""
        norm, epsilon = self._operations.norm, self.config.epsilon
        cosine, sine = self._cosine[positions][:, None], self._sine[positions][:, None]
        hidden: F32 = self._embedding[tokens]
        self.forwards += 1
        for layer in self._layers:
            attended = self._attention(layer, norm(hidden, layer.attention_norm, epsilon), (cosine, sine), attend)
            hidden += layer.projections["o"](attended)
            normed = norm(hidden, layer.mlp_norm, epsilon)
            hidden += layer.projections["down"].gated(layer.projections["gate_up"](normed))
        return hidden

    def _attention(self, layer: _Layer, normed: F32, rotary: tuple[F32, F32], attend: _Attend) -> F32:
        heads, kv_heads, size = self.config.heads, self.config.kv_heads, self.config.head_size
        packed = layer.projections["qkv"](normed).reshape(len(normed), -1, size)
        rotated = _rotate(packed[:, : heads + kv_heads], *rotary)
        queries, keys = rotated[:, :heads], rotated[:, heads:]
        result = attend(layer, queries, keys, packed[:, heads + kv_heads : heads + 2 * kv_heads])
        if self.config.gated:
            result = result / (1.0 + self._xp.exp(-packed[:, heads + 2 * kv_heads :]))
        return result.reshape(len(normed), heads * size)

    def _attends(self, batch: Batch) -> _Attend:
        """Attention of a mixed step: decoding rows together, each prompt chunk for itself."""
        decodes = batch.decodes
        place = self._operations.place([p.sequence.slot for p in decodes], [p.start for p in decodes])

        def attend(layer: _Layer, queries: F32, keys: F32, values: F32) -> F32:
            result: F32 = self._xp.empty(queries.shape, dtype=self._xp.float32)
            row = len(decodes)
            if row:
                result[:row] = self._operations.decode(queries[:row], keys[:row], values[:row], layer.cache, place)
            for piece in batch.prefills:
                part = slice(row, row + piece.count)
                layer.cache.store(piece.sequence.slot, piece.start, keys[part], values[part])
                result[part] = prefill_attention(queries[part], layer.cache, piece.sequence.slot, piece.start)
                row += piece.count
            return result

        return attend


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
