from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.backends.cpu import CPU_TACTICS, CpuBackend
from kernels.nvfp4 import F32, Producer, dequantise
from kernels.serve import gate
from kernels.serve.attention import Cache, decode_attention, prefill_attention, runs
from kernels.serve.model import Decoder
from kernels.serve.scheduler import Batch, Limits, Piece, Sequence
from kernels.serve.weights import PROJECTIONS, Config, Weights, draw

LIMITS = Limits(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=160)
WEIGHTS = draw(0, Config())


def decoder(tactic: int = 0, direct: bool = True, limits: Limits = LIMITS) -> Decoder:
    return Decoder(WEIGHTS, limits, CpuBackend(), Producer(direct=direct), lambda m, n, k: tactic)


def attention64(queries: F32, keys: F32, values: F32, start: int) -> np.ndarray:
    """Causal attention by its definition, in float64, one row and head at a time."""
    heads, kv_heads = queries.shape[1], keys.shape[1]
    result = np.zeros(queries.shape)
    for row in range(len(queries)):
        seen = start + row + 1
        for head in range(heads):
            key = keys[:seen, head * kv_heads // heads].astype(np.float64)
            score = key @ queries[row, head].astype(np.float64) / 8
            weight = np.exp(score - score.max())
            result[row, head] = weight @ values[:seen, head * kv_heads // heads] / weight.sum()
    return result


def drawn(seed: int, *shape: int) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("start", "tokens"), [(0, 1), (0, 300), (37, 129), (128, 128)])
def test_attention_of_a_chunk_is_causal_attention_by_its_definition(start: int, tokens: int) -> None:
    keys, values = drawn(1, start + tokens, 2, 64), drawn(2, start + tokens, 2, 64)
    cache = Cache(np, slots=3, kv_heads=2, head_size=64, positions=512)
    cache.store(1, 0, keys[:start], values[:start])
    cache.store(1, start, keys[start:], values[start:])
    queries = drawn(3, tokens, 4, 64)
    seen = prefill_attention(queries, cache, 1, start)
    assert np.allclose(seen, attention64(queries, keys, values, start), atol=2e-5)


def test_decoding_sequences_of_different_lengths_each_see_their_own_cache_alone() -> None:
    slots, lengths = [0, 1, 3, 6, 7], [5, 90, 1, 33, 64]
    cache = Cache(np, slots=8, kv_heads=2, head_size=64, positions=100)
    cache.keys[...] = 9.0  # what an earlier owner of the slot left behind must not matter
    cache.values[...] = -9.0
    queries = drawn(0, len(slots), 4, 64)
    expected = []
    for row, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
        keys, values = drawn(10 + slot, length, 2, 64), drawn(20 + slot, length, 2, 64)
        cache.store(slot, 0, keys, values)
        expected.append(attention64(queries[row : row + 1], keys, values, length - 1)[0])
    assert np.allclose(decode_attention(queries, cache, slots, lengths), expected, atol=2e-5)


@given(st.sets(st.integers(0, 30), min_size=1))
def test_runs_cover_ascending_slots_in_stretches_of_consecutive_numbers(numbers: set[int]) -> None:
    slots = sorted(numbers)
    stretches = [slots[first : first + count] for first, count in runs(slots)]
    assert [slot for stretch in stretches for slot in stretch] == slots
    assert all(stretch == list(range(stretch[0], stretch[0] + len(stretch))) for stretch in stretches)
    assert all(left[-1] + 1 < right[0] for left, right in pairwise(stretches))


def dense_logits(weights: Weights, tokens: tuple[int, ...]) -> np.ndarray:
    """The last token's logits by the architecture's definition in float64, activations not quantised."""
    config = weights.config

    def projected(layer: int, name: str, values: np.ndarray) -> np.ndarray:
        return values @ dequantise(weights.matrix(layer, name, Producer())).T

    def normed(values: np.ndarray, name: str) -> np.ndarray:
        return values / np.sqrt((values**2).mean(axis=1, keepdims=True) + config.epsilon) * weights.tensors[name]

    def rotated(values: np.ndarray) -> np.ndarray:
        angle = np.arange(len(values))[:, None, None] * 10000.0 ** (-np.arange(32) / 32)
        pairs = (values[:, :, :32] + 1j * values[:, :, 32:]) * np.exp(1j * angle)
        return np.concatenate([pairs.real, pairs.imag], axis=2)

    hidden = weights.tensors["embedding"][list(tokens)].astype(np.float64)
    for layer in range(config.layers):
        packed = projected(layer, "qkv", normed(hidden, f"layer.{layer}.attention_norm")).reshape(len(tokens), 8, 64)
        mixed = attention64(rotated(packed[:, :4]), rotated(packed[:, 4:6]), packed[:, 6:], 0)
        hidden = hidden + projected(layer, "o", mixed.reshape(len(tokens), 256))
        gate_up = projected(layer, "gate_up", normed(hidden, f"layer.{layer}.mlp_norm"))
        activated = gate_up[:, :512] / (1 + np.exp(-gate_up[:, :512])) * gate_up[:, 512:]
        hidden = hidden + projected(layer, "down", activated)
    result: np.ndarray = normed(hidden[-1:], "final_norm")[0] @ weights.tensors["lm_head"].T.astype(np.float64)
    return result


def test_the_decoder_is_the_architecture_up_to_the_noise_of_four_bits() -> None:
    expected = dense_logits(WEIGHTS, gate.PROMPT)
    other = dense_logits(WEIGHTS, (*range(11), gate.PROMPT[-1]))
    piece = Piece(Sequence(gate.PROMPT, 1, slot=0), 0, len(gate.PROMPT), True)
    seen = decoder().step(Batch((), (piece,)))[0]
    assert np.corrcoef(seen, expected)[0, 1] > 0.9
    assert np.corrcoef(seen, other)[0, 1] < 0.7


def test_the_kept_stream_comes_out_under_every_tactic_and_producer_with_a_wide_margin() -> None:
    for tactic in CPU_TACTICS:
        for direct in (True, False):
            result = gate.generate(decoder(tactic.id, direct).step, LIMITS, [gate.PROMPT], 16)[0]
            assert result.tokens == gate.STREAM
            assert result.margin > 0.5


def test_both_producers_give_the_same_logits_to_the_bit() -> None:
    direct, composed = (gate.generate(decoder(0, way).step, LIMITS, [(3, 4, 5)], 8)[0] for way in (True, False))
    assert direct.logits.tobytes() == composed.logits.tobytes()


def test_sequences_that_run_together_in_small_chunks_get_the_logits_they_get_alone() -> None:
    random = np.random.default_rng(0)
    prompts = [tuple(random.integers(0, 1024, length).tolist()) for length in (1, 30, 100, 7, 64)]
    small = Limits(max_num_seqs=3, max_num_batched_tokens=23, max_model_len=160)
    together = gate.generate(decoder(limits=small).step, small, prompts, 4)
    for prompt, seen in zip(prompts, together, strict=True):
        alone = gate.generate(decoder().step, LIMITS, [prompt], 4)[0]
        # A value that rounds to the neighbouring code moves the mean square by 0.1, another context by 1.5.
        assert np.sqrt(np.mean((seen.logits[0] - alone.logits[0]) ** 2)) < 0.3


def test_the_composed_producer_swizzles_at_each_projection_and_the_direct_one_never_after_loading() -> None:
    for direct in (True, False):
        model = decoder(direct=direct)
        producer = model.projection(0, "o").producer
        weights = WEIGHTS.config.layers * len(PROJECTIONS)
        assert producer.standalone_swizzles == weights
        gate.generate(model.step, LIMITS, [(1, 2, 3)], 5)
        assert producer.standalone_swizzles == weights + (0 if direct else 5 * weights)


def test_the_model_has_four_shapes_and_looks_each_projection_up_by_its_rows() -> None:
    asked = []

    def tactic(m: int, n: int, k: int) -> int:
        asked.append((m, n, k))
        return 0

    model = Decoder(WEIGHTS, LIMITS, CpuBackend(), Producer(), tactic)
    model.step(Batch((), (Piece(Sequence([1] * 9, 1, slot=0), 0, 9, True),)))
    assert sorted(set(asked)) == [(9, n, k) for n, k in model.shapes()]
    assert len(model.shapes()) == 4
    assert len(asked) == 8
