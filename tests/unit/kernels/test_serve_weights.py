from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from kernels.errors import KernelError
from kernels.nvfp4 import Producer, dequantise
from kernels.serve import weights
from kernels.serve.weights import Config

SMALL = Config(layers=1, hidden=32, heads=2, kv_heads=1, head_size=16, intermediate=48, vocabulary=1024)


def test_a_seed_gives_the_same_file_each_time_and_another_seed_another(tmp_path: Path) -> None:
    digests = []
    for number, seed in enumerate((0, 0, 1)):
        weights.save(weights.draw(seed, SMALL), tmp_path / str(number))
        digests.append(hashlib.sha256((tmp_path / str(number)).read_bytes()).hexdigest())
    assert digests[0] == digests[1] != digests[2]


def test_the_default_weights_of_seed_0_are_the_bytes_that_the_kept_stream_belongs_to(tmp_path: Path) -> None:
    assert weights.main(["--seed", "0", str(tmp_path / "w")]) == 0
    digest = hashlib.sha256((tmp_path / "w").read_bytes()).hexdigest()
    assert digest == "7840d8e9c0171b4adac12de5996aec32ecfb1acb4a5dfbd7cfd6e40533f004c2"


def test_a_loaded_file_holds_what_was_drawn(tmp_path: Path) -> None:
    drawn = weights.draw(3, SMALL)
    weights.save(drawn, tmp_path / "w")
    loaded = weights.load(tmp_path / "w")
    assert loaded.config == SMALL
    assert loaded.tensors.keys() == drawn.tensors.keys()
    assert all(np.array_equal(loaded.tensors[name], tensor) for name, tensor in drawn.tensors.items())


def test_laying_out_one_projection_is_one_counted_swizzle() -> None:
    producer = Producer()
    matrix = weights.draw(0, SMALL).matrix(0, "down", producer)
    assert (matrix.rows, matrix.k) == SMALL.shape("down")
    assert producer.standalone_swizzles == 1
    assert 0.5 < dequantise(matrix).std() * SMALL.intermediate**0.5 / 2 < 1.5


@pytest.mark.parametrize("cut", [0, 10, 40, 2000])
def test_a_file_that_is_cut_off_is_refused_with_the_mend(tmp_path: Path, cut: int) -> None:
    weights.save(weights.draw(0, SMALL), tmp_path / "w")
    (tmp_path / "w").write_bytes((tmp_path / "w").read_bytes()[:cut])
    with pytest.raises(KernelError, match="write it again") as error:
        weights.load(tmp_path / "w")
    assert error.value.code == "bad-weights"


def test_a_missing_file_names_the_command_that_writes_one(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"python -m kernels\.serve\.weights") as error:
        weights.load(tmp_path / "none")
    assert error.value.code == "no-weights"
