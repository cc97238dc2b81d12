from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.buckets import MAX_M, hybrid_m_bucket, tuning_buckets
from kernels.errors import KernelError

# Written out, so that the function is compared with the published list and not with itself.
BUCKETS = (
    [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 768, 1024, 1280, 1536, 1792, 2048]
    + [2560, 3072, 3584, 4096]
    + [2**power for power in range(13, 32)]
)


def test_every_m_up_to_9000_falls_into_the_next_bucket_of_the_list() -> None:
    for m in range(1, 9001):
        assert hybrid_m_bucket(m) == BUCKETS[bisect_left(BUCKETS, m)]


@given(st.integers(13, 31), st.integers(-3, 3))
def test_near_powers_of_two_the_bucket_is_the_next_one_of_the_list(power: int, offset: int) -> None:
    m = min(2**power + offset, MAX_M)
    assert hybrid_m_bucket(m) == BUCKETS[bisect_left(BUCKETS, m)]


@given(st.integers(0, MAX_M))
def test_a_bucket_is_its_own_bucket_and_never_smaller(m: int) -> None:
    bucket = hybrid_m_bucket(m)
    assert bucket >= m
    assert hybrid_m_bucket(bucket) == bucket


def test_no_rows_use_the_plan_of_one_row() -> None:
    assert hybrid_m_bucket(0) == 1


@pytest.mark.parametrize("m", [-1, MAX_M + 1, 2**64])
def test_rows_outside_the_range_are_refused_by_name(m: int) -> None:
    with pytest.raises(KernelError, match=f"M={m} has no plan bucket") as caught:
        hybrid_m_bucket(m)
    assert caught.value.code == "m-out-of-range"


def test_a_maximum_of_2048_tunes_the_sixteen_buckets_of_the_oracle() -> None:
    assert tuning_buckets(2048) == tuple(BUCKETS[:16])


@pytest.mark.parametrize("max_m", [1, 3, 300, 2001, 2048, 4097, 9000, MAX_M - 1, MAX_M])
def test_every_row_count_up_to_the_maximum_finds_a_tuned_bucket(max_m: int) -> None:
    tuned = tuning_buckets(max_m)
    probes = {1, max_m, *(bucket + offset for bucket in tuned for offset in (-1, 0, 1))}
    assert {hybrid_m_bucket(m) for m in probes if 1 <= m <= max_m} == set(tuned)


def test_a_maximum_that_is_no_bucket_is_not_tuned_as_one() -> None:
    assert tuning_buckets(300)[-2:] == (256, 512)


@pytest.mark.parametrize("max_m", [0, -5, MAX_M + 1])
def test_an_impossible_maximum_is_refused(max_m: int) -> None:
    with pytest.raises(KernelError) as caught:
        tuning_buckets(max_m)
    assert caught.value.code == "m-out-of-range"
