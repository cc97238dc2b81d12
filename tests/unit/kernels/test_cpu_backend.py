from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest

from kernels.backends import cpu
from kernels.backends.cpu import CPU_TACTICS, CpuBackend, CpuWeight, random_operand
from kernels.errors import KernelError, TuningError
from kernels.nvfp4 import F32, Fp4Matrix, dequantise, reference_gemm
from kernels.plans.key import PlanKey
from kernels.plans.settings import Settings

IDS = [tactic.id for tactic in CPU_TACTICS]
KEY = PlanKey(1, 32, 64, 0, 0, 0, 1)


@pytest.mark.parametrize("tactic", IDS)
@pytest.mark.parametrize(("rows", "n", "k"), [(1, 48, 16), (2, 256, 512), (33, 130, 80), (200, 64, 256)])
def test_every_tactic_agrees_with_float64_on_wide_range_scales(tactic: int, rows: int, n: int, k: int) -> None:
    a, b = random_operand(1, rows, k), random_operand(2, n, k)
    result = CpuBackend().gemm(tactic, a, CpuWeight.of(b))
    expected = reference_gemm(a, b)
    magnitude = np.abs(dequantise(a)) @ np.abs(dequantise(b)).T
    # bfloat16 keeps 8 bits of the result; float32 sums lose at most k roundings of the summed magnitudes.
    assert (np.abs(result - expected) <= np.abs(expected) * 2**-8 + magnitude * k * 2**-24).all()


@pytest.mark.parametrize("tactic", IDS)
def test_a_tactic_gives_the_same_bytes_each_time(tactic: int) -> None:
    a, weight = random_operand(3, 40, 256), CpuWeight.of(random_operand(4, 96, 256))
    backend = CpuBackend()
    first = backend.gemm(tactic, a, weight).tobytes()
    assert all(backend.gemm(tactic, a, weight).tobytes() == first for _ in range(3))


def test_on_wide_range_scales_the_order_of_a_reduction_shows_in_the_bytes() -> None:
    a, weight = random_operand(5, 512, 2048), CpuWeight.of(random_operand(6, 512, 2048))
    results = [CpuBackend().gemm(tactic, a, weight).tobytes() for tactic in IDS]
    assert len(set(results)) >= 3


def test_results_are_bfloat16_values() -> None:
    result = CpuBackend().gemm(0, random_operand(1, 4, 64), CpuWeight.of(random_operand(2, 8, 64)))
    assert not (result.view(np.uint32) & 0xFFFF).any()


def test_operands_of_different_k_are_refused() -> None:
    with pytest.raises(KernelError, match="K of the activation is 64, of the weight 32") as error:
        CpuBackend().gemm(0, random_operand(1, 4, 64), CpuWeight.of(random_operand(2, 8, 32)))
    assert error.value.code == "bad-operand"


class Clock:
    """Time that moves by `cost[tactic]` with each product of that tactic."""

    def __init__(self, backend: CpuBackend, costs: dict[int, float]) -> None:
        self.now = 0.0
        self.calls: list[int] = []
        self.backend = backend
        for tactic, cost in costs.items():
            backend._runs[tactic] = self._costing(tactic, backend._runs[tactic], cost)

    def _costing(self, tactic: int, run, cost: float):  # type: ignore[no-untyped-def]
        def product(a: Fp4Matrix, weight: F32, out: F32) -> None:
            run(a, weight, out)
            self.now += cost
            self.calls.append(tactic)

        return product

    def __call__(self) -> float:
        return self.now


def tuner(costs: dict[int, float]) -> tuple[CpuBackend, Clock]:
    backend = CpuBackend()
    clock = Clock(backend, costs)
    backend._clock = clock
    return backend, clock


def test_tuning_takes_the_fastest_after_three_warm_ups_and_ten_timed_calls_each() -> None:
    backend, clock = tuner({0: 5.0, 1: 4.0, 2: 3.0, 3: 9.0, 4: 3.5, 5: 6.0})
    assert backend.tune(KEY) == 2
    assert clock.calls == [tactic for tactic in IDS for _ in range(13)]
    assert backend.gemms == 0


def test_the_lowest_id_wins_a_tie() -> None:
    assert tuner({0: 5.0, 1: 2.0, 2: 7.0, 3: 2.0, 4: 2.0, 5: 6.0})[0].tune(KEY) == 1


def test_a_candidate_that_raises_or_is_not_finite_never_wins_and_is_named() -> None:
    backend, _ = tuner(dict.fromkeys(IDS, 1.0))

    def broken(a: Fp4Matrix, weight: F32, out: F32) -> None:
        raise ZeroDivisionError("no such tile")

    def infinite(a: Fp4Matrix, weight: F32, out: F32) -> None:
        out[...] = np.inf

    backend._runs[0], backend._runs[1] = broken, infinite
    assert backend.tune(KEY) == 2
    assert backend.failed_candidates == [
        "tactic 0 M=1 N=32 K=64: ZeroDivisionError: no such tile",
        "tactic 1 M=1 N=32 K=64: its result is not finite",
    ]
    for tactic in IDS:
        backend._runs[tactic] = broken
    with pytest.raises(TuningError, match="no such tile") as error:
        backend.tune(KEY)
    assert error.value.code == "no-valid-tactic"


def test_a_stop_is_seen_between_two_candidates() -> None:
    answers: Iterator[bool] = iter([False, False, True])
    backend = CpuBackend(cancelled=lambda: next(answers))
    with pytest.raises(TuningError) as error:
        backend.tune(KEY)
    assert error.value.code == "cancelled"


def test_the_tactic_set_is_small_and_its_default_belongs_to_it() -> None:
    assert CPU_TACTICS.runner == "CpuFp4GemmRunner"
    assert len(CPU_TACTICS) <= 8
    assert CPU_TACTICS.bypass_id in CPU_TACTICS


def test_metadata_says_that_no_delay_was_applied_and_what_was_done_instead() -> None:
    found = cpu.metadata(Settings(delay_us=1234))
    assert found.delay_microseconds == 0
    assert "delay 1234 us not applied" in found.to_json()["timing_method"]
    assert (found.architecture, found.cuda_driver, found.cutlass_version) == (0, "none", "none")
    assert found.tactic_descriptor_digest == CPU_TACTICS.digest
    assert len(found.build_id) == 64
    json.dumps(found.to_json(), allow_nan=False)
