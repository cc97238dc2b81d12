"""The step that graphs capture, on the CPU: the same rows as the ordinary step."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.backends.cpu import CpuBackend
from kernels.backends.cuda import CudaBackend
from kernels.errors import DeviceError
from kernels.nvfp4 import Producer
from kernels.serve.graphs import buckets
from kernels.serve.model import Decoder
from kernels.serve.scheduler import Batch, Limits, Piece, Sequence
from kernels.serve.weights import Config, draw

LIMITS = Limits(4, 32, 64)
SMALL = Config(layers=2)


def decoder(config: Config) -> Decoder:
    return Decoder(draw(0, config), LIMITS, CpuBackend(), Producer(), lambda m, n, k: 0)


@pytest.mark.parametrize("config", [SMALL, Config(layers=1, gated=True)], ids=["plain", "gated"])
def test_a_decode_step_gives_the_logits_of_the_ordinary_step(config: Config) -> None:
    ordinary, captured = decoder(config), decoder(config)
    sequences = [Sequence([3 + slot, 4, 5 + slot], 4, slot=slot) for slot in range(2)]
    prompts = Batch((), tuple(Piece(sequence, 0, 3, True) for sequence in sequences))
    for model in (ordinary, captured):
        model.step(prompts)
    for sequence in sequences:
        sequence.output.append(7)
        sequence.computed = 3
    expected = ordinary.step(Batch(tuple(Piece(sequence, 3, 1, True) for sequence in sequences), ()))
    seen = captured.decode(np.array([7, 7]), np.array([3, 3]), np.array([0, 1]))
    assert np.array_equal(seen, expected)


def test_the_wide_model_has_the_four_shapes_of_the_gates() -> None:
    config = Config.wide(1)
    shapes = [config.shape(name) for name in ("qkv", "o", "gate_up", "down")]
    assert shapes == [(14336, 5120), (5120, 6144), (34816, 5120), (5120, 17408)]


@pytest.mark.parametrize(("most", "sizes"), [(1, (1,)), (2, (1, 2)), (5, (1, 2, 4, 5)), (32, (1, 2, 4, 8, 16, 32))])
def test_graph_buckets_end_with_the_most_sequences(most: int, sizes: tuple[int, ...]) -> None:
    assert buckets(most) == sizes


def test_without_a_gpu_the_cuda_backend_is_a_typed_refusal(tmp_path: object) -> None:
    with pytest.raises(DeviceError) as caught:
        CudaBackend(env={"NVFP4_GATES_LIBRARIES": str(tmp_path)})
    assert caught.value.code in ("no-gpu", "no-library", "unsupported-gpu")
